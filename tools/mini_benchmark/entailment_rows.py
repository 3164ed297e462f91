"""The rows of `mini`'s entailment task: quantifiers, negation, antonyms, hypernyms, and who did it to whom.

    >>> row = entailment(random.Random(3), CONTRADICTION)
    >>> row["premise"], row["hypothesis"]
    ('In the village, the tired farmer criticised the guard.', 'The farmer praised the guard in the village.')

For each label the words have nearly the same frequencies, so that a bag of words does little better than guessing.
"""

from tools.mini_benchmark.drawing import article, chance, pick, pick_two, pick_weighted, sentence
from tools.mini_benchmark.words import DEALS, KINDS, PEOPLE, PLACES, REASONS, TIMES, TRAITS, VERBS

ENTAILMENT, NEUTRAL, CONTRADICTION = 0, 1, 2

# (premise, hypothesis): weight, by label. Under each label each side has every word at the same frequency; for the
# neutral label this needs the rows about something else, which `quantified` and its like mix in.
QUANTIFIERS = [
    {
        ("every", "every"): 2,
        ("every", "some"): 1,
        ("some", "some"): 1,
        ("no", "no"): 2,
        ("no", "not every"): 1,
        ("not every", "not every"): 1,
    },
    {("some", "every"): 1, ("some", "not every"): 1, ("not every", "some"): 1, ("not every", "no"): 1},
    {
        ("every", "no"): 1,
        ("every", "not every"): 2,
        ("some", "no"): 1,
        ("no", "some"): 2,
        ("no", "every"): 1,
        ("not every", "every"): 1,
    },
]
# (premise negated, hypothesis negated, hypothesis has the antonym): weight, by label.
ANTONYMS = [
    {(0, 0, 0): 2, (0, 1, 1): 1, (1, 1, 0): 1},
    {(1, 0, 1): 1, (1, 1, 1): 1},
    {(0, 0, 1): 1, (0, 1, 0): 2, (1, 0, 0): 1},
]
# (premise negated, premise names the kind, hypothesis negated, hypothesis names the kind): weight, by label.
HYPERNYMS = [
    {(0, 0, 0, 1): 1, (1, 1, 1, 0): 1},
    {(0, 1, 0, 0): 1, (1, 0, 1, 1): 1, (0, 1, 1, 0): 1, (1, 0, 0, 1): 1},
    {(0, 0, 1, 1): 1, (1, 1, 0, 0): 1},
]


def act(rng, verb, negated) -> str:
    """act(rng, ("praised", "praise"), True) -> 'did not praise' or 'never praised'"""
    past, base = verb[:2]
    return pick(rng, [f"did not {base}", f"never {past}"]) if negated else past


def strangers(rng, agent, patient):
    """strangers(rng, "cook", "king") -> ('king', 'cook'), or one of the two is somebody else."""
    other = pick(rng, [usual for usual, _ in PEOPLE if usual not in (agent, patient)])
    return pick(rng, [(patient, agent), (patient, agent), (other, patient), (agent, other)])


def people(rng):
    """people(rng) -> ('cook', 'king')"""
    (agent, _), (patient, _) = pick_two(rng, PEOPLE)
    return agent, patient


def adjunct(rng, besides=None) -> str:
    """adjunct(rng) -> 'at the harbour'"""
    return pick(rng, [usual for usual, _ in PLACES + TIMES if usual != besides])


def quantified(rng, label, who, others, unrelated):
    """'every cook praised the king' entails 'some cook praised the king'"""
    verb, _, _ = pick(rng, VERBS)
    first, second = pick_weighted(rng, QUANTIFIERS[label])
    if unrelated:
        first, second = pick(rng, ["every", "no"]), pick(rng, ["every", "some", "no", "not every"])
    return (f"{first} {who[0]} {verb} the {pick(rng, TRAITS)} {who[1]}", f"{second} {others[0]} {verb} the {others[1]}")


def opposed(rng, label, who, others, unrelated):
    """'the cook praised the king' entails 'the cook did not criticise the king'"""
    line = int(rng.random() * len(VERBS))
    first, second, antonym = pick_weighted(rng, ANTONYMS[label])
    if unrelated:
        first, second, antonym = False, chance(rng, 0.5), chance(rng, 0.5)
    return (
        f"the {pick(rng, TRAITS)} {who[0]} {act(rng, VERBS[line], first)} the {who[1]}",
        f"the {others[0]} {act(rng, VERBS[line ^ 1 if antonym else line], second)} the {others[1]}",
    )


def dealt(rng, label, who, others, unrelated):
    """'the cook bought a horse' entails 'the cook bought an animal'"""
    verb, kind = pick(rng, DEALS), pick(rng, list(KINDS))
    example = pick(rng, KINDS[kind])
    first, general, second, general2 = pick_weighted(rng, HYPERNYMS[label])
    if unrelated:
        first, general, second, general2 = [chance(rng, 0.5) for _ in range(4)]
    return (
        f"the {pick(rng, TRAITS)} {who[0]} {act(rng, verb, first)} {article(kind if general else example)}",
        f"the {others[0]} {act(rng, verb, second)} {article(kind if general2 else example)}",
    )


def entailment(rng, label) -> dict:
    """entailment(rng, 2) -> {'premise': 'At noon, no cook helped the king.', 'hypothesis': 'Every cook ...'}

    Three neutral rows in four are about somebody else, another time or place, or a reason that the premise omits.
    """
    unrelated = pick(rng, ["people", "where", "reason", "reason"]) if label == NEUTRAL and chance(rng, 0.75) else None
    who, where, reason = people(rng), adjunct(rng), pick(rng, REASONS) if chance(rng, 0.3) else ""
    others = strangers(rng, *who) if unrelated == "people" else who
    where2 = adjunct(rng, besides=where) if unrelated == "where" else where
    reason2 = reason
    if unrelated == "reason":
        reason, reason2 = "", pick(rng, REASONS)
    first, second = pick(rng, [quantified, opposed, dealt])(rng, label, who, others, unrelated)
    return {"premise": sentence(f"{where} , {first} {reason}"), "hypothesis": sentence(f"{second} {reason2} {where2}")}
