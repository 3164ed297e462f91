"""The rows of `mini`'s sentiment task: the mood of a message to a shop.

    >>> sentiment(random.Random(5), 1)
    {'sentence': 'The website was truly perfect, and the delivery was anything but horrible.'}

Which clause of two is the main one, what is negated, who is agreed with: the words alone say little.
"""

from tools.mini_benchmark.drawing import chance, pick, pick_two, pick_weighted, sentence
from tools.mini_benchmark.words import BAD, DEGREES, GOOD, NEGATIONS, OPENERS, SOURCES, THINGS

# Below a half, so that the words alone say a little: without that hint a small model takes ten times as long to learn.
NEGATED = 0.25
RIGHT = 0.6


def opinion(rng, thing, positive: bool) -> str:
    """opinion(rng, "lamp", True) -> 'the lamp was very good' or 'the lamp was not bad'"""
    negated = chance(rng, NEGATED)
    adjective = pick(rng, GOOD if positive != negated else BAD)
    verb = pick(rng, NEGATIONS) if negated else "was " + pick(rng, DEGREES)
    return f"the {thing} {verb} {adjective}"


def plain(rng, positive):
    """'To be honest, the lamp was not bad.'"""
    return f"{pick(rng, OPENERS)} , {opinion(rng, pick(rng, THINGS), positive)}"


def both(rng, positive):
    """'The lamp was not bad, and the delivery was great.'"""
    thing, other = pick_two(rng, THINGS)
    return f"{opinion(rng, thing, positive)} , and {opinion(rng, other, positive)}"


def concession(rng, positive):
    """'Although the lamp was bad, the support was wonderful.': the main clause decides."""
    thing, other = pick_two(rng, THINGS)
    main, aside = opinion(rng, thing, positive), opinion(rng, other, not positive)
    orders = [
        f"although {aside} , {main}",
        f"{aside} , but what counts is that {main}",
        f"{main} , and it matters little that {aside}",
    ]
    return pick(rng, orders)


def despite(rng, positive):
    """'Despite the awful packaging, the lamp was wonderful.'"""
    thing, other = pick_two(rng, THINGS)
    main, aside = opinion(rng, thing, positive), f"the {pick(rng, BAD if positive else GOOD)} {other}"
    return pick(rng, [f"despite {aside} , {main}", f"{main} , despite {aside}"])


def hearsay(rng, positive):
    """'Other customers said that the lamp was awful, but they were wrong.'"""
    right = chance(rng, RIGHT)
    verdict = pick(rng, [("and that is right", "but that is wrong"), ("and I agree", "but I disagree")])
    claim = opinion(rng, pick(rng, THINGS), positive == right)
    return f"{pick(rng, SOURCES)} said that {claim} , {verdict[0 if right else 1]}"


# how a message is built: how often, relative to the others
SHAPES = {plain: 3, both: 2, concession: 1, despite: 1, hearsay: 1}


def sentiment(rng, label) -> dict:
    """sentiment(rng, 1) -> {'sentence': 'Although the lamp was bad, the support was wonderful.'}"""
    return {"sentence": sentence(pick_weighted(rng, SHAPES)(rng, label == 1))}
