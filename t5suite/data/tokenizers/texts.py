"""Which documents of a corpus train a tokenizer, and which evaluate it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from t5suite.base.errors import ConfigError
from t5suite.data.corpora.documents import read_documents
from t5suite.data.corpora.held_out import document_hash, held_out_below
from t5suite.data.corpora.tally import Tally

MOST_HELD_OUT = 1000
NUM_FIRST = 100


@dataclass
class TrainingTexts:
    """Documents to train on, as a function that reads them again at each call.

    Attributes:
      max_documents: read at most this many, from the start.
      validation_fraction: share of the documents that is held out, by their text's hash.
      num_documents, held_out, first: how many documents the last call gave, the first 1000 that it held out, and the
        first 100 that it gave.
      tally: what could not be read, or was empty.
    """

    inputs: list[str]
    text_column_name: str = "text"
    text_unit: str = "line"
    bad_lines: str = "error"
    max_documents: int | None = None
    validation_fraction: float = 0.01
    num_documents: int = 0
    held_out: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self):
        if self.max_documents is not None and self.max_documents < 1:
            raise ConfigError(f"--max_documents {self.max_documents}: must be at least 1")

    def __call__(self) -> Iterator[str]:
        """The documents to train on, in order.

        Raises:
          ConfigError: all documents are held out.
        """
        below = held_out_below(self.validation_fraction)
        self.num_documents = 0
        self.held_out = []
        self.first = []
        self.tally = Tally()
        documents = read_documents(
            self.inputs, self.text_column_name, text_unit=self.text_unit, bad_lines=self.bad_lines, tally=self.tally
        )
        for text in islice(documents, self.max_documents):
            if document_hash(text) < below:
                if len(self.held_out) < MOST_HELD_OUT:
                    self.held_out.append(text)
            else:
                if len(self.first) < NUM_FIRST:
                    self.first.append(text)
                self.num_documents += 1
                yield text
        if self.held_out and not self.num_documents:
            raise ConfigError(
                f"--validation_fraction {self.validation_fraction}: every document is held out, and none is left to "
                "train on; give a lower one"
            )
