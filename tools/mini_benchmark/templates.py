"""Templates: what is left of a message when the words that carry its subject are taken out.

    >>> template("To be honest, the lamp was not bad."), split_of("To be honest, the lamp was not bad.")
    ('to be honest, the _ was not _.', 'train')

Every template belongs to one split, so that no message of the validation or test rows has the template of a training
message. All their words stand in training messages.
"""

import re
import zlib

from tools.mini_benchmark import words

SPLITS = ["validation", "test"] + ["train"] * 8
# Of 1,500 seeds, the one with which clauses, negations and additions are most nearly as frequent in the validation
# messages as in all.
SEED = 219


def _subject_words() -> list:
    """['bring back', 'wonderful', ...]: things, adjectives and people, the longest first"""
    concepts = [words.THINGS, words.GOODS, words.GOOD, words.BAD]
    for so, not_so in words.STATES:
        concepts += [so, not_so]
    concepts += [*words.RELATIVES, *words.WISHES, *words.COLOURS, *words.FURNITURE, *words.FAULTS]
    return sorted({word for concept in concepts for word in concept}, key=lambda word: (-len(word), word))


SUBJECT = re.compile(rf"\b({'|'.join(_subject_words())})\b")


def template(message) -> str:
    """template("The lamp was not bad.") -> 'the _ was not _.'"""
    return SUBJECT.sub("_", message[0].lower() + message[1:])


def split_of(message) -> str:
    """split_of("The lamp was not bad.") -> 'test': the split that this message's template belongs to"""
    return SPLITS[zlib.crc32(f"{SEED} {template(message)}".encode()) % len(SPLITS)]
