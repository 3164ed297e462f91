"""What tests of masked models share: a vocabulary of forty tokens, collocations of some, and texts with many of them."""

import numpy as np

from t5suite.data.objectives import MaskVocabulary

PAD, CLS, SEP, MASK = 0, 1, 2, 3
NUM_SPECIAL, V = 5, 40
# Ids 5..39; those divisible by 3 continue a word.
VOCABULARY = MaskVocabulary(MASK, np.arange(V) < NUM_SPECIAL, (np.arange(V) % 3 != 0) | (np.arange(V) < NUM_SPECIAL))


class NgramTable:
    """A table of collocations that looks up every n-gram."""

    def __init__(self, ngrams):
        self.ngrams = {tuple(ngram) for ngram in ngrams}
        self.longest = max(map(len, self.ngrams))

    def longest_matches(self, tokens_BL):
        """The length of the longest collocation that starts at each position; 1 where none does."""
        return np.array([self.longest_in_row(row) for row in np.asarray(tokens_BL).tolist()])

    def longest_in_row(self, row) -> list[int]:
        lengths = []
        for place in range(len(row)):
            longest = min(self.longest, len(row) - place)
            fitting = [n for n in range(2, longest + 1) if tuple(row[place : place + n]) in self.ngrams]
            lengths.append(max(fitting, default=1))
        return lengths


# Of 2 to 5 tokens, overlapping and containing each other.
TABLE = NgramTable([(7, 8), (8, 10), (7, 8, 10), (10, 7, 8, 10, 11), (13, 14)])


def example_text(*shape, seed=0):
    """Tokens of which half are likely to make collocations."""
    rng = np.random.default_rng(seed)
    common = rng.choice([7, 8, 10, 11, 13, 14], size=shape)
    return np.where(rng.random(shape) < 0.5, common, rng.integers(NUM_SPECIAL, V, size=shape))


def words_of(tokens, word_start_V=VOCABULARY.word_start_V) -> list[list[int]]:
    """The places of every word."""
    words = []
    for place, token in enumerate(tokens):
        if place and not word_start_V[token]:
            words[-1].append(place)
        else:
            words.append([place])
    return words


def collocations_of(tokens, table=TABLE, word_start_V=VOCABULARY.word_start_V) -> list[list[int]]:
    """Collocations from left to right, the longest first; what is between them in words. As lists of places."""
    units, place = [], 0
    in_words = {place: word for word in words_of(tokens, word_start_V) for place in word}
    while place < len(tokens):
        longest = min(table.longest, len(tokens) - place)
        length = next((n for n in range(longest, 1, -1) if tuple(tokens[place : place + n]) in table.ngrams), 0)
        if length:
            units.append(list(range(place, place + length)))
        elif (
            units and in_words[place] is in_words[place - 1] and tuple(tokens[units[-1][0] : place]) not in table.ngrams
        ):
            units[-1].append(place)
        else:
            units.append([place])
        place += max(length, 1)
    return units
