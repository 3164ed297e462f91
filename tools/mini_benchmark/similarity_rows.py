"""The rows of `mini`'s similarity task: how many of five things two messages to a shop have in common.

    >>> row = similarity(random.Random(1), 4)
    >>> row["sentence1"]
    'Sorry, my girl will bring back the noisy red parka.'
    >>> row["sentence2"], row["label"]
    ('Sorry, it is the noisy red parka that my girl will repair.', 4.0)

The five are who it is, what is wanted, the thing, its colour, and what is wrong with it. What agrees is mostly said in
another word: how many words two messages share says little about how much they have in common.
"""

from tools.mini_benchmark.drawing import chance, pick, sentence, shuffled
from tools.mini_benchmark.words import COLOURS, FAULTS, FURNITURE, RELATIVES, WISHES

ROLES = {"who": RELATIVES, "wish": WISHES, "colour": COLOURS, "thing": FURNITURE, "fault": FAULTS}
SAME_WORD = 0.25  # of what agrees, how much is said in the same word
OPENERS = ["", "hello , ", "sorry , ", "today ", "please , "]
MESSAGES = [
    "my {who} {will} {wish} the {fault} {colour} {thing}",
    "it is the {fault} {colour} {thing} that my {who} {will} {wish}",
    "the {fault} {colour} {thing} is what my {who} {will} {wish}",
]
MODALS = ["will", "must", "may", "can"]


def similarity(rng, num_agreeing) -> dict:
    """similarity(rng, 4) -> two messages that agree in four of five roles: {'sentence1', 'sentence2', 'label': 4.0}"""
    agreeing = shuffled(rng, list(ROLES))[:num_agreeing]
    first, second = {}, {}
    for role, concepts in ROLES.items():
        concept = int(rng.random() * len(concepts))
        word = int(rng.random() * 2)
        other_concept = (concept + 1 + int(rng.random() * (len(concepts) - 1))) % len(concepts)
        other_word = word if chance(rng, SAME_WORD) else 1 - word
        first[role] = concepts[concept][word]
        second[role] = concepts[concept if role in agreeing else other_concept][other_word]
    return {
        "sentence1": sentence(pick(rng, OPENERS) + pick(rng, MESSAGES).format(will=pick(rng, MODALS), **first)),
        "sentence2": sentence(pick(rng, OPENERS) + pick(rng, MESSAGES).format(will=pick(rng, MODALS), **second)),
        "label": float(num_agreeing),
    }
