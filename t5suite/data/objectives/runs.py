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
