"""The rows of `mini`'s sentiment task: which clause of two is the main one, what is negated, who is agreed with.

    >>> sentiment(random.Random(5), 1)
    {'sentence': 'Despite the awful lobby, the cast was truly enjoyable.'}

For each label the words have nearly the same frequencies, so that a bag of words does little better than guessing.
"""

from tools.mini_benchmark.drawing import chance, pick, pick_two, sentence
from tools.mini_benchmark.words import BAD, DEGREES, GOOD, JUDGES, NEGATIONS, OPENERS, THINGS

# Below a half, so that the words alone say a little: without that hint a small model takes ten times as long to learn.
NEGATED = 0.3
RIGHT = 0.6
CONTRAST = 0.7


def opinion(rng, thing, positive: bool) -> str:
    """opinion(rng, "soup", True) -> 'the soup was very good' or 'the soup was not bad'"""
    negated = chance(rng, NEGATED)
    adjective = pick(rng, GOOD if positive != negated else BAD)
    verb = pick(rng, NEGATIONS) if negated else "was " + pick(rng, DEGREES)
    return f"the {thing} {verb} {adjective}"


def plain(rng, positive):
    """'To be honest, the soup was not bad.'"""
    return f"{pick(rng, OPENERS)} , {opinion(rng, pick(rng, THINGS), positive)}"


def concession(rng, positive):
    """'Although the soup was bad, the service was wonderful.': the main clause decides."""
    thing, other = pick_two(rng, THINGS)
    main, aside = opinion(rng, thing, positive), opinion(rng, other, positive != chance(rng, CONTRAST))
    orders = [
        f"although {aside} , {main}",
        f"{aside} , but what counts is that {main}",
        f"{main} , and it matters little that {aside}",
    ]
    return pick(rng, orders)


def despite(rng, positive):
    """'Despite the awful soup, the service was wonderful.'"""
    thing, other = pick_two(rng, THINGS)
    main, aside = opinion(rng, thing, positive), f"the {pick(rng, BAD if positive else GOOD)} {other}"
    return pick(rng, [f"despite {aside} , {main}", f"{main} , despite {aside}"])


def report(rng, positive):
    """'The critics said that the plot was dull, but they were wrong.'"""
    right = chance(rng, RIGHT)
    verdict = pick(rng, [("and they were right", "but they were wrong"), ("and I agree", "but I disagree")])
    claim = opinion(rng, pick(rng, THINGS), positive == right)
    return f"{pick(rng, JUDGES)} said that {claim} , {verdict[0 if right else 1]}"


def sentiment(rng, label) -> dict:
    """sentiment(rng, 1) -> {'sentence': 'Although the soup was bad, the service was wonderful.'}"""
    shape = pick(rng, [plain, concession, despite, report])
    return {"sentence": sentence(shape(rng, label == 1))}
