"""Tokenized examples in two flat arrays: no Python lists to iterate over, and workers share the memory.

>>> features = TokenArrays.from_dataset(tokenized)
>>> features[0]
{'input_ids': array([3, 7, 1], dtype=int32), 'labels': array([1465, 1], dtype=int32)}
>>> features.__getitems__([0, 4]).input_ids.padded(0)     # what a collator makes of a batch, in a few array operations
array([[3, 7, 1, 0], [8, 5, 9, 1]])

Shapes: B rows, X their width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch


@dataclass(frozen=True)
class RaggedColumn:
    """Rows of different lengths, one after the other; row i is `values[offsets[i]:offsets[i + 1]]`."""

    values: np.ndarray
    offsets: np.ndarray

    def __getitem__(self, i: int) -> np.ndarray:
        return self.values[self.offsets[i] : self.offsets[i + 1]]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return np.diff(self.offsets)

    @classmethod
    def from_rows(cls, rows) -> "RaggedColumn":
        """From lists or arrays of numbers of any type, which is kept."""
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum([len(row) for row in rows], out=offsets[1:])
        return cls(np.concatenate([np.asarray(row) for row in rows if len(row)] or [np.zeros(0, np.int64)]), offsets)

    def some(self, rows) -> "Picked":
        """The given rows, not yet copied."""
        rows = np.asarray(rows, dtype=np.int64)
        starts_B = self.offsets[rows]
        return Picked(self.values, starts_B, self.offsets[rows + 1] - starts_B)

    @classmethod
    def concatenate(cls, parts: list["RaggedColumn"]) -> "RaggedColumn":
        """The rows of all parts, in order; a single part is returned unchanged, mapped or not."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(len(part.values) for part in parts)])
        offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts[:-1], strict=True)]
        return cls(np.concatenate([part.values for part in parts]), np.concatenate([*offsets, starts[-1:]]))


class Picked(NamedTuple):
    """Some rows of a `RaggedColumn`: where each begins in the flat array, and how long it is; nothing is copied yet."""

    values: np.ndarray
    starts_B: np.ndarray
    lengths_B: np.ndarray

    def mask(self, width: int) -> np.ndarray:
        """Bool [B, width]: where rows have values."""
        return np.arange(width) < self.lengths_B[:, None]

    def padded(self, fill, mask: np.ndarray | None = None) -> np.ndarray:
        """[B, width], int64 (floats for rows of floats), padded on the right."""
        mask = self.mask(int(self.lengths_B.max(initial=1))) if mask is None else mask
        values = self.at(np.arange(mask.shape[1]))
        return np.where(mask, values, fill if values.dtype.kind == "f" else np.int64(fill))

    def at(self, columns) -> np.ndarray:
        """The values in these columns of each row, [B, X]; undefined outside of a row.

        columns: [X], or [B, X] where rows differ.
        """
        if not len(self.values):
            return np.zeros(np.broadcast_shapes((len(self.starts_B), 1), np.shape(columns)), np.int64)
        return self.values.take(self.starts_B[:, None] + columns, mode="clip")

    def first(self) -> np.ndarray:
        """The first value of each row, [B]."""
        return self.at(np.zeros(1, np.int64))[:, 0]


class TokenRows(Sequence):
    """The examples of a batch, as slices of flat arrays; `rows[i]` is one of them, as a dictionary of arrays.

    >>> rows = TokenRows.of([{"input_ids": [5, 1], "labels": [9, 1]}])      # or TokenArrays.__getitems__([7, 3])
    >>> rows.input_ids.padded(0), rows.labels.lengths_B
    (array([[5, 1]]), array([2]))
    """

    def __init__(self, **columns: Picked | None):
        self.input_ids = columns["input_ids"]
        self.labels = columns.get("labels")
        self.token_type_ids = columns.get("token_type_ids")

    @classmethod
    def of(cls, features) -> "TokenRows":
        """From dictionaries of lists or arrays; a column that the first one lacks is None."""
        if isinstance(features, TokenRows):
            return features
        everything = np.arange(len(features))
        columns = [name for name in COLUMNS if features[0].get(name) is not None]
        return cls(
            **{name: RaggedColumn.from_rows([row[name] for row in features]).some(everything) for name in columns}
        )

    def __len__(self) -> int:
        return len(self.input_ids.starts_B)

    def __getitem__(self, i):
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        columns = {name: getattr(self, name) for name in COLUMNS if getattr(self, name) is not None}
        return {name: some.values[some.starts_B[i] :][: some.lengths_B[i]] for name, some in columns.items()}


COLUMNS = ("input_ids", "labels", "token_type_ids")


@dataclass(frozen=True)
class TokenArrays(torch.utils.data.Dataset):
    """A map-style dataset of `{"input_ids", "labels"}`, and `token_type_ids` if the model takes them."""

    input_ids: RaggedColumn
    labels: RaggedColumn
    token_type_ids: RaggedColumn | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, i: int) -> dict:
        example = {"input_ids": self.input_ids[i], "labels": self.labels[i]}
        return example if self.token_type_ids is None else {**example, "token_type_ids": self.token_type_ids[i]}

    def __getitems__(self, indices) -> TokenRows:
        """A batch; `DataLoader` calls this."""
        indices = np.asarray(indices, dtype=np.int64)
        columns = {name: getattr(self, name) for name in COLUMNS}
        return TokenRows(**{name: ragged.some(indices) for name, ragged in columns.items() if ragged is not None})

    @classmethod
    def from_dataset(cls, tokenized) -> "TokenArrays":
        """From a `datasets.Dataset` with the ragged columns input_ids and labels."""
        types = _column(tokenized, "token_type_ids") if "token_type_ids" in tokenized.column_names else None
        return cls(_column(tokenized, "input_ids"), _column(tokenized, "labels"), types)

    @classmethod
    def from_columns(cls, columns: dict[str, list]) -> "TokenArrays":
        """From lists of ids (or of numbers to learn), one for each example, by column."""
        ragged = {name: RaggedColumn.from_rows(rows) for name, rows in columns.items()}
        return cls(**{name: RaggedColumn(_narrow(column.values), column.offsets) for name, column in ragged.items()})

    @classmethod
    def concatenate(cls, parts: list["TokenArrays"]) -> "TokenArrays":
        """The examples of all parts, in order."""
        columns = [[getattr(part, name) for part in parts] for name in COLUMNS]
        return cls(*(RaggedColumn.concatenate(column) for column in columns if None not in column))


def _narrow(values: np.ndarray) -> np.ndarray:
    """Numbers in 32 bits."""
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)


def _column(tokenized, name: str) -> RaggedColumn:
    if len(tokenized) == 0:
        return RaggedColumn(np.zeros(0, np.int32), np.zeros(1, np.int64))
    chunks = tokenized.with_format("arrow")[:][name].chunks
    parts = []
    for chunk in chunks:
        offsets = np.asarray(chunk.offsets).astype(np.int64)
        values = np.asarray(chunk.values)[offsets[0] : offsets[-1]]
        parts.append(RaggedColumn(_narrow(values), offsets - offsets[0]))
    return RaggedColumn.concatenate(parts)
