"""Text to text: the encoding of encoder-decoder models, on which those of other families build."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from t5suite.data.batches.encodings.special_tokens import around
from t5suite.tasks.cut_marks import num_cut, with_cut
from t5suite.tasks.examples import ExampleSet
from t5suite.tasks.formatters import Example
from t5suite.tasks.registry import Task
from t5suite.tasks.tokenization import Lengths, bind_fits, by_row, decode_ids
from t5suite.tasks.tokens import cut_ids, target_ids


@dataclass(frozen=True)
class TextEncoding:
    """Text to text, for encoder-decoder models."""

    tokenizer: object
    lengths: Lengths
    template: str = field(default="", kw_only=True)  # the task's own texts around rows: control tokens in it are tokens

    key = ""
    num_fixed_tokens = 0  # how many of an answer's first tokens are fixed, not chosen by the model

    @property
    def described(self) -> dict:
        """Its description in the manifest."""
        return {"form": "text to text"}

    def for_task(self, task: Task) -> "TextEncoding":
        """A copy with the task's own lengths, if it has any, and with its own texts around rows."""
        return replace(self, lengths=task.lengths(self.lengths), template=task.template)

    def rows(self, rows: dict[str, list], task: Task, split: str) -> dict[str, list]:
        """`columns` of a batch of rows, by column."""
        encoding = self.for_task(task)
        return encoding.columns(encoding.example_set(by_row(rows), task, split), task)

    def example_set(self, rows: Iterable, task: Task, split: str) -> ExampleSet:
        """Rows as `ExampleSet`, with the texts that the model reads; `self` has the task's own lengths (`for_task`)."""
        return ExampleSet.of(rows, split, lambda row, split: self.examples(row, task, split))

    def columns(self, examples: ExampleSet, task: Task) -> dict[str, list]:
        """`input_ids` and `labels`, one of each per example."""
        return {
            "input_ids": self.prompts([example.inputs for example in examples.examples]),
            "labels": self.answers([example.targets for example in examples.examples]),
        }

    @property
    def longest_input(self) -> int:
        """The most tokens of an input text that is read whole, with those that its tokenizer puts around it."""
        return self.lengths.source

    def fits(self, text: str) -> bool:
        """Whether an input text is read whole."""
        return bind_fits(self.tokenizer, self.lengths, self.template)(text)

    def examples(self, row, task: Task, split: str) -> list[Example]:
        """The (inputs, targets) pairs of a row as the model reads them: without demonstrations that do not fit."""
        return task.examples(row, split, self.fits)

    def shown(self, example: Example, row, task: Task) -> str:
        """The inputs of an example, for people: whole, with a mark where the model stops reading."""
        return self.with_cut((example.inputs,))

    def with_cut(self, texts: tuple[str, ...], languages: tuple | None = None) -> str:
        """What the model reads as one text, whole, with a mark where it stops reading (`cut_marks.with_cut`).

        Args:
          languages: (source, target) of this text, if not the same for all.
        """
        (text,) = texts
        return with_cut(self.tokenizer, text, self._room, self.lengths.kept_end, self.template)

    def num_cut(self, texts: tuple[str, ...], languages: tuple | None = None) -> int:
        """How many tokens of one text the model does not read, because it is too long; arguments as `with_cut`."""
        (text,) = texts
        return num_cut(self.tokenizer, text, self._room, self.lengths.kept_end, self.template)

    def is_full(self, ids: Sequence[int]) -> bool:
        """Whether what is read of a text has the longest length, so that it may have been longer."""
        return len(ids) >= self.lengths.source

    @property
    def _room(self) -> int:
        """The most tokens of a text that are read, without those around it."""
        return self.lengths.source - sum(map(len, around(self.tokenizer)))

    def prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """Formatted input texts as ids."""
        if not texts:
            return []
        return cut_ids(self.tokenizer, self.lengths.source, self.lengths.kept_end, list(texts), template=self.template)

    def answers(self, texts: Sequence[str]) -> list[list[int]]:
        """Answers as ids, with end-of-sequence."""
        if not texts:
            return []
        return target_ids(self.tokenizer, self.lengths.target, self.lengths.kept_end, list(texts), self.template)

    def choices(self, texts: Sequence[str]) -> list[list[int]]:
        """Answers that a model chooses from, as ids."""
        return self.answers(texts)

    def texts(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Generated ids as texts, up to the first end-of-sequence token."""
        return decode_ids(sequences, self.tokenizer)


def bind_encoding(encoding: TextEncoding, task: Task, split: str) -> Callable:
    """The lambda that `Dataset.map(batched=True)` calls."""
    return lambda rows: encoding.rows(rows, task, split)
