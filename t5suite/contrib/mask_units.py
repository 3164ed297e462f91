"""Units of `--mask_units` beyond tokens and words: n-grams and spans of words, collocations.

Shape suffixes: B rows, L tokens of a row, U units of a row.
"""

import numpy as np

from t5suite.base.errors import ConfigError

MAX_NGRAM = 3  # words, ALBERT's
MAX_SPAN = 10  # words, SpanBERT's


def ngrams(words_BL, tokens_BL, keys_BL, collocations, mean_span_length):
    """N-grams of words, N from 1 to 3 with P(N) in proportion to 1/N (arXiv:1909.11942 sec. 4.1)."""
    return _runs_of_words(words_BL, keys_BL, 1 / np.arange(1, MAX_NGRAM + 1))


def spans(words_BL, tokens_BL, keys_BL, collocations, mean_span_length):
    """Runs of words whose lengths are geometric, truncated at 10 (arXiv:1907.10529 sec. 3.1)."""
    if not mean_span_length >= 1:
        raise ConfigError(f"--mean_span_length {mean_span_length}: it must be at least 1 word (SpanBERT: 5)")
    return _runs_of_words(words_BL, keys_BL, (1 - 1 / mean_span_length) ** np.arange(MAX_SPAN))


def collocation_starts(words_BL, tokens_BL, keys_BL, collocations, mean_span_length):
    """Collocations from left to right, the longest at each position; words elsewhere (arXiv:2010.01825)."""
    lengths_BL = collocations.longest_matches(tokens_BL)
    starts_BL = reached(lengths_BL)
    within_BL = np.repeat(lengths_BL[starts_BL] > 1, lengths_BL[starts_BL]).reshape(starts_BL.shape)
    after_BL = np.zeros_like(within_BL)
    after_BL[:, 1:] = within_BL[:, :-1] & ~within_BL[:, 1:]
    return (starts_BL & within_BL) | (~within_BL & (words_BL | after_BL))


def _runs_of_words(words_BL, keys_BL, weights):
    """Words grouped into consecutive runs of length 1, 2, ..., drawn in proportion to `weights`."""
    thresholds = np.cumsum(weights / weights.sum())[:-1] * 2**32
    lengths_BU = np.searchsorted(thresholds, keys_BL, side="right") + 1
    word_BL = np.cumsum(words_BL, axis=1) - 1
    return words_BL & np.take_along_axis(reached(lengths_BU), word_BL, axis=1)


def reached(steps_BL):
    """The positions reached from the first one, moving `steps_BL[b, position]` ahead from each, bool [B, L].

    >>> reached(np.array([[2, 9, 1, 3, 1, 1]])).astype(int).tolist()
    [[1, 0, 1, 1, 0, 0]]

    By doubling: after round i all positions within 2**i steps are known.
    """
    batch, length = steps_BL.shape
    next_BL = np.full((batch, length + 1), length)
    next_BL[:, :length] = np.minimum(np.arange(length) + steps_BL, length)
    flat = (next_BL + (length + 1) * np.arange(batch)[:, None]).reshape(-1)
    reached_BL = np.zeros((batch, length + 1), dtype=bool)
    reached_BL[:, :1] = True
    is_reached = reached_BL.reshape(-1)
    for _ in range(length.bit_length()):
        is_reached[flat[is_reached]] = True
        flat = flat[flat]
    return reached_BL[:, :length]
