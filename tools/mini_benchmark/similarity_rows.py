"""The rows of `mini`'s similarity task: how many of five roles (agent, verb, patient, place, time) agree in meaning.

    >>> row = similarity(random.Random(1), 5)
    >>> row["sentence1"]
    'The doctor commended the seaman in the hamlet at midnight.'
    >>> row["sentence2"], row["label"]
    ('The physician praised the sailor in the village at night.', 5.0)

How many words two sentences share says nothing about how many roles agree.
"""

from tools.mini_benchmark.drawing import chance, pick_two, sentence, shuffled
from tools.mini_benchmark.words import PEOPLE, VERBS

# One concept a line, in two words. Every phrase of a role begins alike, so that function words tell nothing.
ROLES = {
    "agent": PEOPLE[:8],
    "verb": [(past, synonym) for past, _, synonym in VERBS[:8]],
    "patient": PEOPLE[:8],
    "place": [("forest", "woods"), ("shop", "store"), ("village", "hamlet"), ("harbour", "port"), ("hotel", "inn")],
    "time": [("noon", "midday"), ("dawn", "sunrise"), ("dusk", "sunset"), ("night", "midnight")],
}
MAX_SHARED = 2


def scene(rng) -> dict:
    """scene(rng) -> {'agent': 3, 'verb': 0, 'patient': 7, 'place': 1, 'time': 4}: a line of each role's table"""
    lines = {role: int(rng.random() * len(table)) for role, table in ROLES.items()}
    lines["agent"], lines["patient"] = pick_two(rng, range(len(ROLES["agent"])))
    return lines


def other_scene(rng, first: dict, kept: set, num_crossed: int) -> dict:
    """other_scene(rng, first, {'place'}, 2) -> a scene that agrees with `first` in the roles `kept` alone.

    Crossed people change sides: the first scene's patient acts (1), or the two swap (2).
    """
    crossing = [{}, {"agent": first["patient"]}, {"agent": first["patient"], "patient": first["agent"]}][num_crossed]
    while True:
        second = scene(rng) | {role: first[role] for role in kept} | crossing
        crossed = (second["agent"] == first["patient"]) + (second["patient"] == first["agent"])
        agreeing = {role for role in ROLES if second[role] == first[role]}
        if agreeing == kept and crossed == num_crossed and second["agent"] != second["patient"]:
            return second


def tell(lines: dict, words: dict) -> str:
    """'The cook praised the king in the village at noon.'; words[role] says which of the two words is taken"""
    said = {role: ROLES[role][line][words[role]] for role, line in lines.items()}
    return sentence("the {agent} {verb} the {patient} in the {place} at {time}".format(**said))


def similarity(rng, num_kept) -> dict:
    """similarity(rng, 4) -> two events that agree in four of five roles: {'sentence1', 'sentence2', 'label': 4.0}

    How many words the two sentences share says nothing about how many roles agree: no, one or both people go by the
    same word in both, equally often at every label - in the same role, or in the other one's. All else that agrees is
    said in other words.
    """
    num_shared = int(rng.random() * (MAX_SHARED + 1))
    kept = set(shuffled(rng, list(ROLES))[:num_kept])
    while num_shared == 2 and len(kept & {"agent", "patient"}) == 1:
        kept = set(shuffled(rng, list(ROLES))[:num_kept])
    people_kept = shuffled(rng, sorted(kept & {"agent", "patient"}))
    num_crossed = 0 if people_kept else num_shared
    first = scene(rng)
    second = other_scene(rng, first, kept, num_crossed)
    words = {role: int(chance(rng, 0.5)) for role in ROLES}
    words2 = {role: 1 - words[role] if role in kept else int(chance(rng, 0.5)) for role in ROLES}
    words2 |= {role: words[role] for role in people_kept[:num_shared]}
    if num_crossed:
        words2["agent"] = words["patient"]
    if num_crossed == 2:
        words2["patient"] = words["agent"]
    return {"sentence1": tell(first, words), "sentence2": tell(second, words2), "label": float(num_kept)}
