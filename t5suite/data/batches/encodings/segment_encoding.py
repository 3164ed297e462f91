"""Segments and one label, a class or a number: the encoding of encoders with a head."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from t5suite.data.batches.collators import IGNORED
from t5suite.data.batches.encodings.text_encoding import TextEncoding
from t5suite.tasks.cells import value_at
from t5suite.tasks.cut_marks import with_cut
from t5suite.tasks.examples import ExampleSet
from t5suite.tasks.formatters import Example
from t5suite.tasks.long_texts import without_unread_part
from t5suite.tasks.registry import Task
from t5suite.tasks.segments import SEPARATOR, segments
from t5suite.tasks.targets import INVALID_CLASS, checked_number, number_text, plain_decimal
from t5suite.tasks.tokens import Spelling, encoded, sizes_after_cut

# What is learned in place of a number that is exactly the code of a missing label: its neighbour in float32.
NEXT_TO_IGNORED = float(np.nextafter(np.float32(IGNORED), np.float32(0)))


@dataclass(frozen=True)
class SegmentEncoding(TextEncoding):
    """Segments and one label for an encoder with a head: a class, as its index in `words`, or (no words) a number.

    >>> SegmentEncoding(bert_tokenizer, Lengths(128, 1), ("entailment", "not_entailment")).rows(
    ...     {"sentence1": ["It rains."], "sentence2": ["It is wet."], "label": [0]}, load_task("glue", "rte"), "train")
    {'input_ids': [[101, 2009, 15756, 1012, 102, 2009, 2003, 4954, 1012, 102]], 'labels': [[0]],
     'token_type_ids': [[0, 0, 0, 0, 0, 1, 1, 1, 1, 1]]}

    Args:
      words: the label words in the order of the head's outputs; None for a number.
      has_types: whether the model takes `token_type_ids`, if the tokenizer returns them.
      reads_input_text: whether it reads T5's input text instead of columns.
    """

    words: tuple[str, ...] | None = None
    has_types: bool = False
    reads_input_text: bool = False

    form = "segments"

    @property
    def key(self) -> str:
        """What caches must distinguish."""
        return f"{self.form}\x00{self.words}\x00{self.has_types}\x00{self.reads_input_text}"

    @property
    def described(self) -> dict:
        """Its description in the manifest."""
        form = "text" if self.reads_input_text and self.form == "segments" else self.form
        return {"form": form, "head": "a number" if self.words is None else list(self.words)}

    def columns(self, examples: ExampleSet, task: Task) -> dict[str, list]:
        """`input_ids` and `labels` (one per row, -100 without a label), and `token_type_ids` if the model takes them.

        In a pair, the longer segment is truncated first.
        """
        pairs = examples.pairs()
        inputs = self.inputs([self.texts_read(example, row, task) for row, example in pairs])
        labels = [[self.label(example, row, task)] for row, example in pairs]
        return {"input_ids": inputs.pop("input_ids"), "labels": labels, **inputs}

    def texts_read(self, example: Example, row, task: Task) -> tuple[str, ...]:
        """The texts of a row that the encoder reads."""
        return (example.inputs,) if self.reads_input_text else segments(example, row, task)

    def examples(self, row, task: Task, split: str) -> list[Example]:
        """The row's one example; its inputs are what the encoder reads, with the separator between segments."""
        examples = task.examples(row, split)
        return [example._replace(inputs=self._joined(self.texts_read(example, row, task))) for example in examples]

    def shown(self, example: Example, row, task: Task) -> str:
        """What the encoder reads of a row, with a mark where it stops reading."""
        return self.with_cut(self.texts_read(example, row, task))

    def with_cut(self, texts: tuple[str, ...], languages: tuple | None = None) -> str:
        """As `TextEncoding.with_cut`, for segments: each has its own mark."""
        parts = zip(texts, self._kept_counts(self._counts(texts)), strict=True)
        return self._joined([with_cut(self.tokenizer, text, room, template=self.template) for text, room in parts])

    def num_cut(self, texts: tuple[str, ...], languages: tuple | None = None) -> int:
        """As `TextEncoding.num_cut`, of all segments together."""
        counts = self._counts(texts)
        return sum(counts) - sum(self._kept_counts(counts))

    def _counts(self, texts: tuple[str, ...]) -> list[int]:
        """The tokens of each segment."""
        settings = {"template": self.template, "add_special_tokens": False, "verbose": False}
        return [len(ids) for ids in encoded(self.tokenizer, list(texts), **settings)["input_ids"]]

    def _kept_counts(self, counts: list[int]) -> list[int]:
        """The tokens of each segment that are read."""
        frame = Spelling(self.tokenizer, ()).frame(len(counts))
        return sizes_after_cut(counts, self.lengths.source - sum(map(len, frame.around)))

    def _joined(self, texts: Sequence[str]) -> str:
        return f" {self.tokenizer.sep_token or SEPARATOR} ".join(texts)

    def inputs(self, texts: Sequence[tuple[str, ...]]) -> dict[str, list]:
        """`input_ids` of texts or text pairs, and `token_type_ids` if the model takes them."""
        first, *second = zip(*texts, strict=True)
        if not second:  # of a pair, which text loses more depends on both lengths
            first = without_unread_part(self.tokenizer, first, self.lengths.source)
        settings = {"template": self.template, "max_length": self.lengths.source, "truncation": "longest_first"}
        columns = encoded(self.tokenizer, list(first), *map(list, second), **settings)
        names = ("input_ids", "token_type_ids") if self.has_types else ("input_ids",)
        return {name: columns[name] for name in names if name in columns}

    def label(self, example: Example, row, task: Task) -> int | float:
        """The index of the row's word among the head's outputs, or its number; -100 for a row without a label."""
        if self.words is None:
            return label_of_number(head_number(row, task.entry)) if task.is_labelled(row) else float(IGNORED)
        number = task.parse(example.targets)
        return IGNORED if number == INVALID_CLASS else self.words.index(task.label_words[number])

    def answers(self, texts: Sequence[str]) -> list[list[int]]:
        """Label words as indices of the head's outputs."""
        return [[self.words.index(text)] for text in texts]

    def word(self, scores: Sequence[float], low: float = -np.inf, high: float = np.inf) -> str:
        """The head's answer: the word of its highest output (the first on ties), or its number clipped to a range."""
        if self.words is None:
            return answer_text(scores[0], low, high)
        return self.words[max(range(len(self.words)), key=lambda i: scores[i])]


def head_number(row, entry) -> float:
    """The number that a head learns: the row's own, or rounded as the entry's `target_decimals` says."""
    label = value_at(row, entry["label_column_name"])
    decimals = entry.get("target_decimals")
    return checked_number(label, entry) if decimals is None else float(number_text(label, entry))


def label_of_number(number: float) -> float:
    """The label of a row's number: the number itself, or if that would count as no label, the number next to it.

    >>> label_of_number(3.8), label_of_number(-100.0)
    (3.8, -99.99999237060547)
    """
    return NEXT_TO_IGNORED if np.float32(number) == IGNORED else number


def answer_text(value: float, low: float = -np.inf, high: float = np.inf) -> str:
    """A head's number as the text that metrics parse, clipped to the task's range: the digits of a float32.

    >>> answer_text(5.3, 0.0, 5.0), answer_text(1.25e-05)
    ('5.0', '0.0000125')
    """
    return plain_decimal(np.float32(np.clip(value, low, high))) if np.isfinite(value) else "nan"
