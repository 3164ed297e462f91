"""Which of a corpus's documents a tokenizer is trained on, and which it is measured on.

    >>> texts = TrainingTexts(["articles.txt.gz"], sample_documents=10_000)
    >>> for text in texts():
    ...     count(text)
    >>> texts.num_documents, len(texts.held_out)
    (10000, 101)

Each call reads the documents anew, so that none is kept; the same ones come in the same order.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.text.documents import Tally, read_documents
from t5suite.data.text.held_out import document_hash, held_out_below

MOST_HELD_OUT = 1000
NUM_FIRST = 100


@dataclass
class TrainingTexts:
    """Documents to train on, as a function; what it held out and left out of them is told after a call.

    Attributes:
      inputs: files, folders, patterns, data sets of the hub (`read_documents`).
      max_documents: read no more than the first so many.
      sample_documents: of these, so many drawn at random by `seed`; needs one more reading, to count them.
      validation_fraction: share of the documents that is held out, by their text's hash (`held_out`).
      num_documents: how many the last call gave.
      held_out: the first 1000 documents that the last call held out.
      first: the first 100 that it gave.
      tally: what it could not read, or found empty.

    Raises (when called):
      ConfigError: a number outside its range.
      DataError: as `read_documents`.
    """

    inputs: list[str]
    text_column_name: str = "text"
    text_unit: str = "line"
    bad_lines: str = "error"
    max_documents: int | None = None
    sample_documents: int | None = None
    seed: int = 42
    validation_fraction: float = 0.01
    num_documents: int = 0
    held_out: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self):
        for name in ("max_documents", "sample_documents"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name} {value}: must be at least 1")

    def __call__(self) -> Iterator[str]:
        """The documents to train on, in order."""
        below = held_out_below(self.validation_fraction)
        sampled = self._sampled_numbers() if self.sample_documents else None
        self.num_documents, self.held_out, self.first, self.tally = 0, [], [], Tally()
        for number, text in enumerate(self._documents()):
            if document_hash(text) < below:
                if len(self.held_out) < MOST_HELD_OUT:
                    self.held_out.append(text)
            elif sampled is None or number in sampled:
                if len(self.first) < NUM_FIRST:
                    self.first.append(text)
                self.num_documents += 1
                yield text

    def _documents(self) -> Iterator[str]:
        documents = read_documents(
            self.inputs,
            self.text_column_name,
            text_unit=self.text_unit,
            bad_lines=self.bad_lines,
            tally=self.tally,
        )
        return islice(documents, self.max_documents)

    def _sampled_numbers(self) -> set[int]:
        """Which documents, by their place, are drawn among those that are not held out."""
        below = held_out_below(self.validation_fraction)
        numbers = [number for number, text in enumerate(self._documents()) if document_hash(text) >= below]
        if self.sample_documents > len(numbers):
            raise DataError(f"--sample_documents {self.sample_documents}: there are {len(numbers)} to draw from")
        return set(random.Random(self.seed).sample(numbers, self.sample_documents))
