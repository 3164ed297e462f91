"""The bundled text: a megabyte and a half of short documents for pre-training, written from a seed.

    >>> documents("validation")[0][:93]
    'To my friend, the student. I was at the counter last week, at night, and I found a saw there.'

Documents hold two to forty sentences of one kind (KINDS_OF_TEXT): stories with people who keep their pronouns,
accounts whose numbers add up, questions that are answered by what was said before. Every word is a piece of the
bundled tokenizer, and what is hidden in a document can mostly be told from the rest of it. No document of one split is
a document of the other.
"""

import random

from tools.mini_benchmark import articles, stories
from tools.mini_benchmark.drawing import pick_weighted

SEED = 2026
NUM_CHARACTERS = {"train": 1_500_000, "validation": 75_000}


def documents(split) -> list:
    """documents("train") -> ['There was an old sailor ...', ...]: NUM_CHARACTERS[split], each document once"""
    seen, split_documents = set(), {}
    for name, num_characters in NUM_CHARACTERS.items():
        rng = random.Random(f"{SEED} documents {name}")
        split_documents[name] = list(fresh_documents(rng, num_characters, seen))
        if name == split:
            return split_documents[name]
    raise KeyError(split)


def fresh_documents(rng, num_characters, seen: set):
    """Documents that are not in `seen` yet, until they hold so many characters; adds them there."""
    while num_characters > 0:
        document = " ".join(pick_weighted(rng, KINDS_OF_TEXT)(rng))
        if document not in seen:
            seen.add(document)
            num_characters -= len(document)
            yield document


# what writes a document: how often, relative to the others
KINDS_OF_TEXT = {
    stories.story: 5,
    stories.journey: 2,
    stories.letter: 2,
    stories.dialogue: 2,
    stories.diary: 2,
    articles.review: 3,
    articles.ledger: 2,
    articles.sums: 1,
    articles.recipe: 2,
    articles.guide: 2,
    articles.comparison: 2,
    articles.conclusions: 2,
    articles.rhyme: 2,
    articles.habits: 2,
}
