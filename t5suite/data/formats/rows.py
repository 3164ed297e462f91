"""What every source of a user's rows delivers, and how a row is cut down to what its task reads.

    >>> source.read("train")
    Rows(rows=[{'input': 'a', 'output': 'b'}], places=['reviews/train/a.jsonl:1'], origin='reviews/train (1 file)', ...)

A source is any object with `roles`, the splits that it has ('train', 'validation', 'test'), and `read(role,
tokenizer)`; those that cut texts by tokens need the tokenizer.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from t5suite.data.jsonl import file_sha256


class Rows(NamedTuple):
    """A split's rows, where each stands ('file:line'), where they all came from, and what identifies their content."""

    rows: list[dict]
    places: list[str]
    origin: str
    fingerprint: str
    files: dict[str, str] = {}


class RowSource(Protocol):
    """Where a user's rows come from."""

    roles: tuple[str, ...]

    def read(self, role: str, tokenizer=None) -> Rows:
        """All rows of a split."""


@dataclass(frozen=True)
class Columns:
    """What a task reads of a row.

    Attributes:
      texts: columns that every row has; a dotted name reaches into a table (`translation.de`).
      target: the column of the answer, which unlabelled rows lack or leave empty.
      optional: columns that a row may have.
      labels: the label words of a task of classes.
    """

    texts: tuple[str, ...] = ("input",)
    target: str = "output"
    optional: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = field(default=None)

    def shaped(self, row: dict, from_text: bool = False) -> dict:
        """The row with the columns that count, and `idx`, by which predictions name it.

        >>> Columns(("sentence",), "label", labels=("bad", "good")).shaped({"sentence": "Fine.", "label": "1"}, True)
        {'sentence': 'Fine.', 'label': 'good'}

        Args:
          from_text: the row comes from a file that knows no types: an empty answer is none, a number a class id.
        """
        names = [_outermost(column, row) for column in self.texts]
        kept = {name: row[name] for name in names if name in row}
        kept |= {name: row.get(name) for name in self.optional}
        target = _outermost(self.target, row)
        if target not in kept:
            kept[target] = _typed(row.get(target), self.labels) if from_text else row.get(target)
        return kept | ({"idx": row["idx"]} if "idx" in row else {})


def _outermost(column: str, row: dict) -> str:
    """The row's own column that a dotted name begins with: `translation` of `translation.de`."""
    return column if column in row else column.partition(".")[0] if "." in column else column


def _typed(target: str | None, labels):
    if target in (None, ""):
        return None
    number = target.strip()
    if labels and target not in labels and number.isdecimal() and int(number) < len(labels):
        return labels[int(number)]
    return None if labels and number == "-1" else target


def files_fingerprint(files: dict[str, str]) -> str:
    """One hash for several files' hashes, in their order; that of the only file where there is one.

    >>> files_fingerprint({"a.jsonl": "sha256:12", "b.jsonl": "sha256:34"})
    'sha256:6d52...'
    """
    hashes = list(files.values())
    if len(hashes) == 1:
        return hashes[0]
    return f"sha256:{hashlib.sha256(' '.join(hashes).encode()).hexdigest()}"


def hashed_files(paths: Sequence[Path]) -> dict[str, str]:
    """Every file's SHA-256 by its path."""
    return {str(path): f"sha256:{file_sha256(path)}" for path in paths}


def rows_fingerprint(rows: list[dict]) -> str:
    """A hash of rows that come from no file."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False, default=str).encode("utf-8", "replace"))
    return f"sha256:{digest.hexdigest()}"
