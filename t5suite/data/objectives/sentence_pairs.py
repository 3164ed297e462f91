"""Sentence pairs: does the second part follow the first (BERT), do the two stand in their order (ALBERT)?

    document            [[5, 6], [7, 8, 9], [10, 11]]           three sentences of 2, 3 and 2 tokens
    input_ids           [101, 5, 6, 102, 7, 8, 9, 10, 11, 102]  [CLS] first part [SEP] second part [SEP]
    token_type_ids      [  0, 0, 0,   0, 1, 1, 1,  1,  1,   1]
    label               0                                       the second part follows the first, in order

A pair is a pure function of (sentences, rng). Lengths are in tokens.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.objectives.random_numbers import datum_rng

IN_ORDER, OTHER = 0, 1  # Hugging Face's next_sentence_label and sentence_order_label


class SentencePair(NamedTuple):
    """Two runs of tokens without special ones, int64, and the label: 0 = as in the text, 1 = not."""

    first: np.ndarray
    second: np.ndarray
    label: int


def pair_rng(seed, index):
    """The generator that datum `index` draws its pair from: `datum_rng`'s stream, far from what its mask draws."""
    rng = datum_rng(seed, index)
    rng.bit_generator.advance(2**128)
    return rng


def next_sentence_pair(
    sentences: Sequence, rng, max_tokens: int, other_document: Callable, start: int | None = None, short_rate=0.1
) -> SentencePair:
    """Two parts of a text that follow each other, or, every second time, a second part from another document.

    >>> sentences = [[5, 6], [7, 8, 9], [10, 11]]
    >>> next_sentence_pair(sentences, datum_rng(0, 3), 8, lambda rng: [[20, 21], [22, 23]], start=0)
    SentencePair(first=array([5, 6]), second=array([ 7,  8,  9, 10, 11]), label=0)
    >>> next_sentence_pair(sentences, datum_rng(0, 4), 8, lambda rng: [[20, 21], [22, 23]], start=0)
    SentencePair(first=array([5, 6]), second=array([20, 21, 22, 23]), label=1)

    Args:
      sentences: a document of at least two sentences, each a sequence of one or more token ids.
      max_tokens: both parts together are at most that long; longer ones lose tokens at either end, the longer part
        first.
      other_document: rng -> the sentences of a document that is not this one.
      start: the first sentence of the pair, not the last of the document; None: drawn at random.
      short_rate: how often a pair is kept shorter, as the texts of real tasks are: at most a random 2..max_tokens.

    Raises ConfigError for max_tokens < 2, DataError for a document of one sentence, or a `start` that none follows.
    Source: arXiv:1810.04805 sec. 3.1 and appendix A.2. Half of the pairs are in order; BERT's data script has fewer,
    since it takes text of one sentence for pairs out of order only.
    """
    first, second, wanted = _two_parts(sentences, rng, max_tokens, start, short_rate)
    if rng.random() < 0.5:
        return SentencePair(*_shortened(first, second, wanted, rng), IN_ORDER)
    others = other_document(rng)
    second = _sentences_from(others, int(rng.integers(len(others))), max(wanted - len(first), 1))
    return SentencePair(*_shortened(first, _joined(second), wanted, rng), OTHER)


def sentence_order_pair(
    sentences: Sequence, rng, max_tokens: int, start: int | None = None, short_rate=0.1
) -> SentencePair:
    """Two parts of a text that follow each other, swapped every second time (label 1).

    >>> sentences = [[5, 6], [7, 8, 9], [10, 11]]
    >>> sentence_order_pair(sentences, datum_rng(0, 0), 8, start=0)
    SentencePair(first=array([ 7,  8,  9, 10]), second=array([5, 6]), label=1)

    Arguments and errors as in `next_sentence_pair`. Source: arXiv:1909.11942 sec. 3.1.
    """
    first, second, wanted = _two_parts(sentences, rng, max_tokens, start, short_rate)
    first, second = _shortened(first, second, wanted, rng)
    return SentencePair(first, second, IN_ORDER) if rng.random() < 0.5 else SentencePair(second, first, OTHER)


def pair_inputs(pair: SentencePair, cls_token_id: int, sep_token_id: int) -> tuple[np.ndarray, np.ndarray]:
    """A pair -> (input_ids, token_type_ids), int64, three tokens longer than its parts.

    >>> pair = SentencePair(np.array([5, 6]), np.array([7]), 0)
    >>> [ids.tolist() for ids in pair_inputs(pair, 101, 102)]
    [[101, 5, 6, 102, 7, 102], [0, 0, 0, 0, 1, 1]]
    """
    input_ids = np.concatenate([[cls_token_id], pair.first, [sep_token_id], pair.second, [sep_token_id]])
    token_type_ids = np.repeat([0, 1], [len(pair.first) + 2, len(pair.second) + 1])
    return input_ids.astype(np.int64), token_type_ids


def _two_parts(sentences, rng, max_tokens, start, short_rate):
    """Sentences from `start` until there are enough tokens, cut into two after one of them."""
    if max_tokens < 2:
        raise ConfigError(f"sentence pairs of {max_tokens} tokens: they need at least 2; raise --inputs_length")
    last_start = len(sentences) - 2
    if last_start < 0 or not 0 <= (start or 0) <= last_start:
        raise DataError(
            f"no sentence follows sentence {start or 0} of {len(sentences)}: a pair needs two in a document"
        )
    start = int(rng.integers(last_start + 1)) if start is None else start
    wanted = int(rng.integers(2, max_tokens + 1)) if rng.random() < short_rate else max_tokens
    parts = _sentences_from(sentences, start, wanted)
    if len(parts) == 1:
        parts = sentences[start : start + 2]
    if not all(len(sentence) for sentence in parts):
        raise DataError(f"one of the sentences {start} to {start + len(parts) - 1} has no tokens: leave such out")
    cut = int(rng.integers(1, len(parts)))
    return _joined(parts[:cut]), _joined(parts[cut:]), wanted


def _sentences_from(sentences, start, wanted):
    """As many sentences from `start` as it takes to have `wanted` tokens, or all up to the end."""
    enough = sentences[start : start + wanted]  # none is empty, so no more are needed: a document may be a book
    num_tokens = np.cumsum([len(sentence) for sentence in enough])
    return enough[: 1 + int(np.searchsorted(num_tokens, wanted))]


def _joined(sentences):
    return np.concatenate([np.asarray(sentence, dtype=np.int64) for sentence in sentences])


def _shortened(first, second, wanted, rng):
    """Both together at most `wanted` tokens: the longer part gives first; every token is lost at a random end."""
    lengths = _shared_out(len(first), len(second), wanted)
    parts = []
    for part, length in zip((first, second), lengths):
        at_front = int(rng.binomial(len(part) - length, 0.5))
        parts.append(part[at_front : at_front + length])
    return parts


def _shared_out(first_length, second_length, wanted):
    """Lengths after taking tokens, one by one, from the longer part (from the second where they are equal)."""
    if first_length + second_length <= wanted:
        return first_length, second_length
    first_length = min(first_length, max(wanted - second_length, wanted - wanted // 2))
    return first_length, wanted - first_length
