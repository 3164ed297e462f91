"""Rows of different lengths, as one flat array.

Shape suffixes: B rows, X width.
"""

from typing import NamedTuple

import numpy as np


class Ragged(NamedTuple):
    """Rows laid end to end in `values`, row b having `lengths[b]` of them.

    >>> ragged = Ragged(np.array([5, 6, 1, 7, 1]), np.array([3, 2]))
    >>> [row.tolist() for row in ragged.rows()]
    [[5, 6, 1], [7, 1]]
    >>> ragged.padded(4, -100).tolist()
    [[5, 6, 1, -100], [7, 1, -100, -100]]
    """

    values: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, rows_BX):
        """Rows that are equally long."""
        return cls(rows_BX.reshape(-1), np.full(len(rows_BX), rows_BX.shape[1]))

    def starts(self):
        """Where each row begins in `values`, [B]."""
        return np.cumsum(self.lengths) - self.lengths

    def rows(self):
        """One array a row."""
        return np.split(self.values, self.starts()[1:]) if len(self.lengths) else []

    def padded(self, width, fill):
        """[B, width], rows filled up at their end; no copy where every row is that long.

        Raises ValueError where a row is longer.
        """
        if self._longest() > width:
            raise ValueError(f"a row of {self._longest()} does not fit a width of {width}")
        if self._fills(width):
            return self.values.reshape(len(self.lengths), width)
        padded_BX = np.full((len(self.lengths), width), fill, dtype=self.values.dtype)
        padded_BX[np.arange(width) < self.lengths[:, None]] = self.values
        return padded_BX

    def marks(self, width):
        """Int64 [B, width]: 1 where `padded` has a row's own values, 0 behind them."""
        if self._fills(width) and self._longest() <= width:
            return np.ones((len(self.lengths), width), dtype=np.int64)
        return (np.arange(width) < self.lengths[:, None]).astype(np.int64)

    def _longest(self):
        return np.maximum.reduce(self.lengths, initial=0)

    def _fills(self, width):
        """Whether rows that are no longer than `width` all are that long."""
        return len(self.values) == len(self.lengths) * width

    def prepended(self, value):
        """Every row with `value` in front."""
        return Ragged(np.insert(self.values, self.starts(), value), self.lengths + 1)

    def take(self, order):
        """The rows of these numbers, in this order.

        >>> Ragged(np.array([5, 6, 1, 7, 1]), np.array([3, 2])).take(np.array([1, 0])).values.tolist()
        [7, 1, 5, 6, 1]
        """
        lengths = self.lengths[order]
        ends = np.cumsum(lengths)
        shifts = np.repeat(self.starts()[order] - (ends - lengths), lengths)
        return Ragged(self.values[np.arange(len(shifts)) + shifts], lengths)

    @classmethod
    def concatenated(cls, parts):
        """The rows of all parts, one part after the other."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*parts)))
