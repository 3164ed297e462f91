"""Maximal runs of tokens, such as spans of noise, over the rows of a batch laid end to end.

    mask_BL  [[0, 1, 1, 0, 1],      starts   [1, 4, 8]
              [0, 0, 0, 1, 1]]      lengths  [2, 1, 2]      counts_B  [2, 1]

Shape suffixes: B rows, L tokens of a block, K runs of a row.
"""

from typing import NamedTuple

import numpy as np


class Runs(NamedTuple):
    """Runs of marked tokens, none of which touches another of its row.

    >>> runs = Runs.of(np.array([[False, True, True, False, True], [False, False, False, True, True]]))
    >>> runs.starts.tolist(), runs.lengths.tolist(), runs.counts_B.tolist()
    ([1, 4, 8], [2, 1, 2], [2, 1])

    Attributes:
      starts: the first token of each, counted over all rows; lengths: its tokens; counts_B: runs of each row.
    """

    starts: np.ndarray
    lengths: np.ndarray
    counts_B: np.ndarray

    @classmethod
    def of(cls, mask_BL):
        """The runs of a mask, bool [B, L]."""
        start_BL, end_BL = mask_BL.copy(), mask_BL.copy()
        start_BL[:, 1:] &= ~mask_BL[:, :-1]
        end_BL[:, :-1] &= ~mask_BL[:, 1:]
        starts = np.flatnonzero(start_BL)
        counts_B = np.bincount(starts // max(mask_BL.shape[1], 1), minlength=len(mask_BL))
        return cls(starts, np.flatnonzero(end_BL) + 1 - starts, counts_B)

    @classmethod
    def alternating(cls, first_BK, second_BK):
        """Two kinds of runs that take turns and fill every row, from their lengths: `(first runs, second runs)`.

        >>> clean, noise = Runs.alternating(np.array([[2, 1]]), np.array([[1, 3]]))
        >>> clean.starts.tolist(), noise.starts.tolist()
        ([0, 3], [2, 4])
        """
        lengths_BK2 = np.stack([first_BK, second_BK], axis=2)
        ends_N2 = np.cumsum(lengths_BK2).reshape(-1, 2)
        counts_B = np.full(len(first_BK), first_BK.shape[1])
        lengths_N2 = lengths_BK2.reshape(-1, 2)
        starts_N2 = ends_N2 - lengths_N2
        return tuple(cls(starts_N2[:, i], lengths_N2[:, i], counts_B) for i in (0, 1))
