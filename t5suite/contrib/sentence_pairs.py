"""Documents cut into sentences -> numbered sentence pairs for `MaskedLMCollator`.

    >>> tokens = np.array([5, 6, 7, 8, 9, 20, 21, 30, 31, 32, 33])
    >>> documents = SentenceDocuments(tokens, documents=[0, 5, 7], sentences=[0, 2, 5, 7, 8, 9])
    >>> dataset = SentencePairDataset(documents, inputs_length=9, cls_token_id=101, sep_token_id=102, kind="order")
    >>> len(dataset), dataset.num_pairs
    (3, 3)
    >>> dataset[0]["input_ids"].tolist(), dataset[0]["token_type_ids"].tolist(), dataset[0]["sentence_order_label"]
    ([101, 31, 102, 32, 33, 102], [0, 0, 0, 1, 1, 1], 0)

A document of one sentence begins no pair.
Shape suffixes: D documents, S sentences.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from torch.utils.data import Dataset

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import find
from t5suite.data.corpora.block_order import BlockOrders
from t5suite.data.objectives.random_numbers import datum_rng

# The name of each kind's label in transformers' models.
LABELS = {"next": "next_sentence_label", "order": "sentence_order_label"}
# The values of both labels: the second part follows the first, or it does not.
IN_ORDER = 0
OTHER = 1
# How often a pair is shortened, like the texts of real tasks: to at most a random 2..max_tokens.
SHORT_RATE = 0.1


class SentenceDocuments:
    """Documents as lists of sentences, over one row of tokens: `documents[d][i:j]` -> arrays of token ids.

    >>> documents = SentenceDocuments(np.array([5, 6, 7, 8, 9, 20]), documents=[0, 5], sentences=[0, 2, 5])
    >>> [sentence.tolist() for sentence in documents[0][:]], documents.num_sentences_D.tolist()
    ([[5, 6], [7, 8, 9]], [2, 1])

    `tokens` is anything with a length and slices; `documents` and `sentences` are the tokens at which each starts
    (`TokenSequence.documents`, `.sentences`). Raises DataError if a document starts within a sentence, or a
    sentence is empty.
    """

    def __init__(self, tokens, documents, sentences):
        self.tokens = tokens
        self.sentences = sentences
        starts_S = np.asarray(sentences)
        starts_D = np.asarray(documents)
        self.first_D = np.searchsorted(starts_S, starts_D)
        self.num_sentences_D = np.diff(self.first_D, append=len(starts_S))
        empty_S = np.diff(starts_S, append=len(tokens)) < 1
        if empty_S.any():
            raise DataError(f"sentence {np.argmax(empty_S)} has no tokens: drop empty sentences")
        if not np.array_equal(np.append(starts_S, -1)[self.first_D], starts_D):
            raise DataError("a document does not start where a sentence does: were they cut by the same corpus build?")

    def __len__(self):
        return len(self.first_D)

    def __getitem__(self, document):
        return Sentences(self, int(self.first_D[document]), int(self.num_sentences_D[document]))


class Sentences:
    """The sentences of one document, in slices; only the requested ones are read: a document may be a book."""

    def __init__(self, documents: SentenceDocuments, first: int, count: int):
        self.documents = documents
        self.numbers = range(first, first + count)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index: slice):
        numbers = self.numbers[index]
        if not numbers:
            return []
        starts = np.asarray(self.documents.sentences[numbers[0] : numbers[-1] + 2]).tolist()
        if len(starts) == len(numbers):  # no sentence follows the last one
            starts.append(len(self.documents.tokens))
        tokens = np.asarray(self.documents.tokens[starts[0] : starts[-1]])
        return [tokens[start - starts[0] : stop - starts[0]] for start, stop in pairwise(starts)]


class SentencePairDataset(Dataset):
    """Pairs by run-long index: every sentence but a document's last begins one pair per epoch, in random order.

    The pair at index j depends on (seed, j) alone.

    Args:
      inputs_length: the most tokens in a pair, [CLS] and both [SEP] included.
      kind: "next" (BERT: does the second part follow the first?) or "order" (ALBERT: which came first?).
      num_examples: the length in examples; None means one epoch (`num_pairs`).
    """

    def __init__(
        self,
        documents: SentenceDocuments,
        inputs_length: int,
        cls_token_id: int,
        sep_token_id: int,
        kind: str = "next",
        seed: int = 0,
        num_examples: int | None = None,
    ):
        find(kind, LABELS, "kind of sentence pair", where="--sentence_pairs")
        if inputs_length < 5:
            raise ConfigError(f"--inputs_length {inputs_length}: a sentence pair and its special tokens need 5")
        self.documents = documents
        self.inputs_length = inputs_length
        self.seed = seed
        self.kind = kind
        self.special_ids = cls_token_id, sep_token_id
        self.ends_D = np.cumsum(documents.num_sentences_D - 1)  # the number of pairs that begin up to each document
        self.num_pairs = int(self.ends_D[-1]) if len(documents) else 0
        if self.num_pairs == 0:
            raise DataError(f"none of {len(documents)} documents has two sentences, as a sentence pair needs")
        if kind == "next" and len(documents) == 1:
            raise DataError("there is one document, but next-sentence pairs also need text from another")
        self.orders = BlockOrders(seed, self.num_pairs)
        self.num_examples = self.num_pairs if num_examples is None else num_examples

    def __len__(self):
        return self.num_examples

    def __getitem__(self, index):
        if not 0 <= index < self.num_examples:
            raise IndexError(f"example {index} of a dataset of {self.num_examples}")
        epoch, position = divmod(int(index), self.num_pairs)
        number = self.orders.block_of(epoch, position)
        document = int(np.searchsorted(self.ends_D, number, side="right"))
        start = number - (int(self.ends_D[document - 1]) if document else 0)
        rng = datum_rng(self.seed, int(index))
        rng.bit_generator.advance(2**128)  # far from what the datum's mask draws
        sentences = self.documents[document]
        max_tokens = self.inputs_length - 3

        def other_document(rng):
            number = int(rng.integers(len(self.documents) - 1))
            return self.documents[number + 1 if number >= document else number]

        if self.kind == "next":
            first, second, label = next_sentence_pair(sentences, start, rng, max_tokens, other_document)
        else:
            first, second, label = sentence_order_pair(sentences, start, rng, max_tokens)
        cls_id, sep_id = self.special_ids
        return {
            "input_ids": np.concatenate([[cls_id], first, [sep_id], second, [sep_id]]).astype(np.int64),
            "token_type_ids": np.repeat([0, 1], [len(first) + 2, len(second) + 1]),
            LABELS[self.kind]: label,
            "index": int(index),
        }


def sentence_pairs(tokens, *settings) -> SentencePairDataset:
    """The pairs of a corpus's `TokenSequence`; the settings are those of `SentencePairDataset`."""
    documents = SentenceDocuments(tokens, np.asarray(tokens.documents), np.asarray(tokens.sentences))
    return SentencePairDataset(documents, *settings)


def next_sentence_pair(
    sentences: Sequence, start: int, rng, max_tokens: int, other_document: Callable, short_rate=SHORT_RATE
) -> tuple[np.ndarray, np.ndarray, int]:
    """`(first, second, label)`: parts that follow each other, or, half of the time, the second from another document.

    >>> sentences = [[5, 6], [7, 8, 9], [10, 11]]
    >>> next_sentence_pair(sentences, 0, datum_rng(0, 3), 8, lambda rng: [[20, 21], [22, 23]])
    (array([5, 6]), array([ 7,  8,  9, 10, 11]), 0)
    >>> next_sentence_pair(sentences, 0, datum_rng(0, 4), 8, lambda rng: [[20, 21], [22, 23]])
    (array([5, 6]), array([20, 21, 22, 23]), 1)

    Args:
      sentences: a document of at least two sentences, each a sequence of one or more token ids.
      start: the first sentence of the pair, not the last of the document.
      max_tokens: the most tokens of both parts together (at least 2); longer ones lose tokens at either end, the
        longer part first.
      other_document: rng -> the sentences of a document that is not this one.

    Source: arXiv:1810.04805 sec. 3.1 and appendix A.2. Half of the pairs are in order; BERT's data script has fewer,
    since it takes text of one sentence for pairs out of order only.
    """
    first, second, num_tokens = _two_parts(sentences, start, rng, max_tokens, short_rate)
    if rng.random() < 0.5:
        return *_shortened(first, second, num_tokens, rng), IN_ORDER
    other_sentences = other_document(rng)
    other_start = int(rng.integers(len(other_sentences)))
    second = _concatenated(_sentences_from(other_sentences, other_start, max(num_tokens - len(first), 1)))
    return *_shortened(first, second, num_tokens, rng), OTHER


def sentence_order_pair(sentences: Sequence, start: int, rng, max_tokens: int, short_rate=SHORT_RATE):
    """Two parts of a text that follow each other, swapped half of the time (label 1).

    >>> sentences = [[5, 6], [7, 8, 9], [10, 11]]
    >>> sentence_order_pair(sentences, 0, datum_rng(0, 0), 8)
    (array([ 7,  8,  9, 10]), array([5, 6]), 1)

    Arguments as in `next_sentence_pair`. Source: arXiv:1909.11942 sec. 3.1.
    """
    first, second = _shortened(*_two_parts(sentences, start, rng, max_tokens, short_rate), rng)
    return (first, second, IN_ORDER) if rng.random() < 0.5 else (second, first, OTHER)


def _two_parts(sentences, start, rng, max_tokens, short_rate):
    """Sentences from `start` until there are enough tokens, cut into two after one of them."""
    num_tokens = int(rng.integers(2, max_tokens + 1)) if rng.random() < short_rate else max_tokens
    parts = _sentences_from(sentences, start, num_tokens)
    if len(parts) == 1:
        parts = sentences[start : start + 2]
    cut = int(rng.integers(1, len(parts)))
    return _concatenated(parts[:cut]), _concatenated(parts[cut:]), num_tokens


def _sentences_from(sentences, start, num_tokens):
    """As many sentences from `start` as it takes to have so many tokens, or all up to the end."""
    enough = sentences[start : start + num_tokens]  # none is empty, so no more are needed: a document may be a book
    sums = np.cumsum([len(sentence) for sentence in enough])
    return enough[: 1 + int(np.searchsorted(sums, num_tokens))]


def _concatenated(sentences):
    return np.concatenate([np.asarray(sentence, dtype=np.int64) for sentence in sentences])


def _shortened(first, second, num_tokens, rng):
    """Both together at most so many tokens: the longer part is cut first; each token is lost at a random end."""
    parts = []
    for part, length in zip((first, second), _shortened_lengths(len(first), len(second), num_tokens), strict=True):
        at_front = int(rng.binomial(len(part) - length, 0.5))
        parts.append(part[at_front : at_front + length])
    return parts


def _shortened_lengths(first_length, second_length, num_tokens):
    """Lengths after taking tokens, one by one, from the longer part (from the second if they are equal)."""
    if first_length + second_length <= num_tokens:
        return first_length, second_length
    first_length = min(first_length, max(num_tokens - second_length, num_tokens - num_tokens // 2))
    return first_length, num_tokens - first_length
