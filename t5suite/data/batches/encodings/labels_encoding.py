"""Words with a label each: the encoding of encoders that label tokens."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from t5suite.data.batches.collators import IGNORED, UNKNOWN_LABEL
from t5suite.data.batches.encodings.segment_encoding import SegmentEncoding
from t5suite.data.batches.encodings.special_tokens import around
from t5suite.tasks.cut_marks import cut_mark
from t5suite.tasks.examples import ExampleSet
from t5suite.tasks.formatters import Example
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import INVALID_CLASS
from t5suite.tasks.tokens import encoded

LONGEST_ROW = 1 << 40  # more tokens than any row has


def with_spaces(words: Sequence[str]) -> list[str]:
    """Words as they are tokenized, each but the first with the space before it.

    >>> with_spaces(["Ann", "sings"])
    ['Ann', ' sings']
    """
    return [word if place == 0 else f" {word}" for place, word in enumerate(words)]


@dataclass(frozen=True)
class LabelsEncoding(SegmentEncoding):
    """Words with a label each, at the first token of the word; its other tokens have no label.

    >>> encoding = LabelsEncoding(t5, Lengths(128, 1), ("O", "B"))
    >>> encoding.rows({"tokens": [["Ann", "sings"]], "tags": [[1, 0]]}, task, "train")
    {'input_ids': [[5608, 27055, 1]], 'labels': [[1, 0, -100]]}

    Words beyond the maximum source length are truncated, with their labels.
    """

    form = "words"

    def columns(self, examples: ExampleSet, task: Task) -> dict[str, list]:
        """`input_ids`, and `labels` of the same length: -101 at the first token of a word whose label is hidden."""
        pairs = examples.pairs()
        columns = self.inputs([task.words(row) for row, _ in pairs])
        for labels, (row, example) in zip(columns["labels"], pairs, strict=True):
            starts = (place for place, label in enumerate(labels) if label != IGNORED)
            numbers = task.label_numbers(row, example)
            for place, number in zip(starts, numbers):  # truncated words have no position
                labels[place] = UNKNOWN_LABEL if number == INVALID_CLASS else self.words.index(task.label_words[number])
        return columns

    def texts_read(self, example: Example, row, task: Task) -> tuple[str, ...]:
        """The words of a row."""
        return tuple(task.words(row))

    def with_cut(self, texts: tuple[str, ...], languages: tuple | None = None) -> str:
        """As `TextEncoding.with_cut`, for words: the mark is behind the last one that is read."""
        cut_count = self.num_cut(texts)
        if not cut_count:
            return self._joined(texts)
        num_words = sum(label != IGNORED for label in self.inputs([texts])["labels"][0])
        unread_words = "".join(f" {word}" for word in texts[num_words:])
        return self._joined(texts[:num_words]) + cut_mark(cut_count) + unread_words

    def num_cut(self, texts: tuple[str, ...], languages: tuple | None = None) -> int:
        """As `TextEncoding.num_cut`, of all words together."""
        untruncated = replace(self, lengths=self.lengths._replace(source=LONGEST_ROW))
        token_count = len(untruncated.inputs([texts])["input_ids"][0])
        return token_count - len(self.inputs([texts])["input_ids"][0])

    def _joined(self, texts: Sequence[str]) -> str:
        return " ".join(texts)

    def inputs(self, texts: Sequence[Sequence[str]]) -> dict[str, list]:
        """`input_ids` of words, and `labels` that mark the first token of each: no label of a text without words."""
        words_with_spaces = itertools.chain.from_iterable(map(with_spaces, texts))
        ids_of_words = iter(self._ids_of_words(list(words_with_spaces)))
        lead, tail = around(self.tokenizer)
        room = self.lengths.source - len(tail)
        columns = {"input_ids": [], "labels": []}
        for words in texts:
            ids = list(lead)
            labels = [IGNORED] * len(lead)
            for word_ids in itertools.islice(ids_of_words, len(words)):
                word_ids = word_ids or [self.tokenizer.unk_token_id]  # the tokenizer drops some words, such as U+200B
                ids += word_ids
                labels += [UNKNOWN_LABEL] + [IGNORED] * (len(word_ids) - 1)
            columns["input_ids"].append(ids[:room] + tail)
            columns["labels"].append(labels[:room] + [IGNORED] * len(tail))
        return columns

    def _ids_of_words(self, words: list[str]) -> list[list[int]]:
        if not words:  # fast tokenizers raise an IndexError for an empty list
            return []
        return encoded(self.tokenizer, words, add_special_tokens=False, verbose=False)["input_ids"]

    def answers(self, texts: Sequence[str]) -> list[list[int]]:
        """Labels as indices of the head's outputs."""
        return [[self.words.index(word) for word in text.split()] for text in texts]

    def word(self, scores: Sequence[Sequence[float]], low: float = -np.inf, high: float = np.inf) -> str:
        """The head's answer: each word's most likely label, in one text."""
        return " ".join(super(LabelsEncoding, self).word(word_scores) for word_scores in scores)
