"""Tokenized examples in two flat arrays: no Python lists to walk, and workers share the memory.

>>> features = TokenArrays.from_dataset(tokenized)
>>> features[0]
{'input_ids': array([3, 7, 1], dtype=int32), 'labels': array([1465, 1], dtype=int32)}
"""

from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Ragged:
    """Rows of differing length, one behind the other; row i is `values[offsets[i]:offsets[i + 1]]`."""

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
    def from_rows(cls, rows) -> "Ragged":
        """From any sequence of integer sequences."""
        lengths = [len(row) for row in rows]
        values = np.fromiter((token for row in rows for token in row), dtype=np.int32, count=sum(lengths))
        return cls(values, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64))

    @classmethod
    def concatenate(cls, parts: list["Ragged"]) -> "Ragged":
        """The rows of all parts, in order."""
        starts = np.cumsum([0, *(len(part.values) for part in parts)])
        offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts[:-1], strict=True)]
        return cls(np.concatenate([part.values for part in parts]), np.concatenate([*offsets, starts[-1:]]))

    def take(self, rows) -> "Ragged":
        """The given rows, in the given order."""
        return Ragged.from_rows([self[int(i)] for i in rows])


@dataclass(frozen=True)
class TokenArrays(torch.utils.data.Dataset):
    """A map-style dataset of `{"input_ids", "labels"}`, and `token_type_ids` where a model reads segments."""

    input_ids: Ragged
    labels: Ragged
    token_type_ids: Ragged | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, i: int) -> dict:
        example = {"input_ids": self.input_ids[i], "labels": self.labels[i]}
        return example if self.token_type_ids is None else {**example, "token_type_ids": self.token_type_ids[i]}

    @classmethod
    def from_dataset(cls, tokenized) -> "TokenArrays":
        """From a `datasets.Dataset` with the ragged columns input_ids and labels."""
        types = _column(tokenized, "token_type_ids") if "token_type_ids" in tokenized.column_names else None
        return cls(_column(tokenized, "input_ids"), _column(tokenized, "labels"), types)

    @classmethod
    def concatenate(cls, parts: list["TokenArrays"]) -> "TokenArrays":
        """The examples of all parts, in order."""
        columns = [[p.input_ids for p in parts], [p.labels for p in parts]]
        if all(p.token_type_ids is not None for p in parts):
            columns.append([p.token_type_ids for p in parts])
        return cls(*map(Ragged.concatenate, columns))


def _column(tokenized, name: str) -> Ragged:
    if len(tokenized) == 0:
        return Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64))
    chunks = tokenized.with_format("arrow")[:][name].chunks
    parts = []
    for chunk in chunks:
        offsets = np.asarray(chunk.offsets).astype(np.int64)
        values = np.asarray(chunk.values)[offsets[0] : offsets[-1]]
        values = values.astype(np.float32 if values.dtype.kind == "f" else np.int32)
        parts.append(Ragged(values, offsets - offsets[0]))
    return Ragged.concatenate(parts)
