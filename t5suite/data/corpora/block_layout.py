"""How a text is cut into blocks of one length, or of several for an objective that mixes denoisers (UL2).

    >>> BlockLayout(num_tokens=100, lengths=[8]).num_blocks
    12

Each epoch has the same number of blocks of each denoiser, but which part of the text gets which is redrawn, one piece
of the text at a time. Shape suffix: K blocks of a piece.
"""

import functools
import itertools
from collections.abc import Sequence

import numpy as np

from t5suite.base.errors import ConfigError, DataError

PIECE = 512


def check_lengths(lengths: Sequence[int], weights: Sequence[float]) -> None:
    """Raises ConfigError if blocks of these lengths and weights are impossible."""
    if not lengths or min(lengths) < 1:
        raise ConfigError(f"blocks of {tuple(lengths)} tokens: give lengths of at least 1")
    if len(weights) != len(lengths) or min(weights) < 0 or sum(weights) <= 0:
        raise ConfigError(f"weights {weights} for blocks of {tuple(lengths)} tokens: one positive number for each")


def apportion(num_items: int, weights: Sequence[float]) -> list[int]:
    """`num_items` split into whole numbers in proportion to weights (largest remainders; ties to the first).

    >>> apportion(10, [1, 1, 2])
    [3, 2, 5]
    """
    shares = np.asarray(weights, dtype=np.float64) / sum(weights) * num_items
    counts = np.floor(shares + 1e-9).astype(np.int64)
    largest = np.argsort(-(shares - counts), kind="stable")[: num_items - int(counts.sum())]
    counts[largest] += 1
    return counts.tolist()


class BlockLayout:
    """How many blocks of each length fit into a text, and where an epoch's blocks begin.

    Attributes:
      lengths, weights: tokens of a block and how often it occurs, one entry for each denoiser.
      counts: blocks of each denoiser in an epoch.
      piece_size: blocks among which denoisers are shuffled; each piece of the text has its share of every denoiser, to
        within one, so a block's place does not depend on earlier pieces. The last piece may be longer.

    Raises:
      DataError: the text is shorter than one block.
    """

    def __init__(self, num_tokens: int, lengths: Sequence[int], weights: Sequence[float] = ()):
        self.num_tokens = num_tokens
        self.lengths = tuple(lengths)
        weights = tuple(weights) or (1.0,) * len(lengths)
        check_lengths(self.lengths, weights)
        num_blocks = int(num_tokens * sum(weights) / float(np.dot(lengths, weights))) + len(lengths)
        while num_blocks and np.dot(apportion(num_blocks, weights), lengths) > num_tokens:
            num_blocks -= 1
        if num_blocks == 0:
            raise DataError(
                f"{num_tokens} tokens, less than one block of {max(lengths)}: give more text, or lower --inputs_length"
            )
        self.counts = tuple(apportion(num_blocks, weights))
        self.piece_size = PIECE
        rarest = min(count for count in self.counts if count)
        while self.piece_size < num_blocks and rarest * self.piece_size < 2 * num_blocks:
            self.piece_size *= 2  # with fewer of a denoiser, rounding could give a negative number of blocks

    @property
    def num_blocks(self) -> int:
        """Blocks per epoch."""
        return sum(self.counts)

    def cut_of(self, block: int, seed: int, epoch: int) -> tuple[int, int]:
        """`(first token, denoiser)` of a block, in the order of the text."""
        piece = min(block // self.piece_size, self._num_pieces - 1)
        starts_K, denoisers_K = _cuts(self, seed, epoch, piece)
        place = block - piece * self.piece_size
        return int(starts_K[place]), int(denoisers_K[place])

    def counts_before(self, piece: int) -> np.ndarray:
        """How many blocks of each denoiser the pieces before this one hold."""
        before = piece * self.piece_size
        if piece == self._num_pieces:
            before = self.num_blocks
        ends = [total * before // self.num_blocks for total in itertools.accumulate(self.counts)]
        return np.diff([0, *ends])

    @property
    def _num_pieces(self) -> int:
        return max(self.num_blocks // self.piece_size, 1)


@functools.lru_cache(maxsize=1024)  # 5 MB, and all the pieces of half a million blocks
def _cuts(layout: BlockLayout, seed: int, epoch: int, piece: int) -> tuple[np.ndarray, np.ndarray]:
    """`(starts_K, denoisers_K)` of a piece of an epoch's blocks; which of them is for which denoiser is redrawn."""
    before = layout.counts_before(piece)
    after = layout.counts_before(piece + 1)
    denoisers_K = np.repeat(np.arange(len(layout.lengths), dtype=np.uint8), after - before)
    denoisers_K = np.random.default_rng((seed, epoch, piece, *b"denoisers")).permutation(denoisers_K)
    lengths_K = np.asarray(layout.lengths)[denoisers_K]
    return np.dot(before, layout.lengths) + np.cumsum(lengths_K) - lengths_K, denoisers_K
