"""How a long row of tokens is cut into blocks, of one length or of several.

    >>> layout = BlockLayout(num_tokens=100, lengths=[8, 12], weights=[3, 1])
    >>> layout.num_blocks, layout.counts, layout.num_dropped
    (11, (8, 3), 0)
    >>> layout.cut_of(9, seed=0, epoch=0)                # the first token, and the denoiser
    (84, 0)

An objective that mixes denoisers (UL2) needs blocks of several lengths. The number of blocks of each length is then the
same in every epoch, but which part of the text gets which denoiser is drawn anew in each, a piece of the text at a
time: what is kept does not grow with the text.

Shape suffix: K blocks of a piece.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from t5suite.base.errors import ConfigError, DataError

# Blocks of several lengths are cut a piece at a time.
PIECE = 512


def apportion(num_items: int, weights: Sequence[float]) -> list[int]:
    """`num_items` shared out in whole numbers after weights (largest remainders; ties to the first).

    >>> apportion(10, [1, 1, 2])
    [3, 2, 5]
    """
    shares = np.asarray(weights, dtype=np.float64) / sum(weights) * num_items
    counts = np.floor(shares + 1e-9).astype(np.int64)
    largest = np.argsort(-(shares - counts), kind="stable")[: num_items - int(counts.sum())]
    counts[largest] += 1
    return counts.tolist()


@dataclass(frozen=True)
class BlockLayout:
    """How many blocks of each length fit into a text, and where an epoch's blocks begin.

    Args:
      lengths: tokens of a block, one entry for each denoiser.
      weights: how often each denoiser is used, in relative numbers of blocks.

    Attributes:
      counts: blocks of each denoiser in an epoch.
      piece_size: blocks among which denoisers are shuffled; each piece of the text has its share of every denoiser, to
        within one, so that no block's place needs those of the pieces before it. The last piece may be longer.

    Raises:
      DataError: the text holds not one whole block.
    """

    num_tokens: int
    lengths: tuple[int, ...]
    weights: tuple[float, ...] = ()
    counts: tuple[int, ...] = field(init=False)
    piece_size: int = field(init=False)

    def __post_init__(self):
        lengths, weights = tuple(self.lengths), tuple(self.weights) or (1.0,) * len(self.lengths)
        if min(lengths) < 1:
            raise ConfigError(f"blocks of {min(lengths)} tokens: they must have at least 1")
        if len(weights) != len(lengths) or min(weights) < 0 or sum(weights) <= 0:
            raise ConfigError(f"weights {weights} for blocks of {lengths} tokens: one positive number for each")
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "counts", tuple(_most_blocks(self.num_tokens, lengths, weights)))
        if self.num_blocks == 0:
            raise DataError(
                f"{self.num_tokens} tokens, less than one block of {max(lengths)}: give more text, or lower "
                "--inputs_length"
            )
        piece_size, rarest = PIECE, min(count for count in self.counts if count)
        while piece_size < self.num_blocks and rarest * piece_size < 2 * self.num_blocks:
            piece_size *= 2  # with less of a denoiser, rounding could ask for a negative number of blocks
        object.__setattr__(self, "piece_size", piece_size)

    @property
    def num_blocks(self) -> int:
        """Blocks an epoch."""
        return sum(self.counts)

    @property
    def num_dropped(self) -> int:
        """Tokens at the end of the text that make no whole block."""
        return self.num_tokens - int(np.dot(self.counts, self.lengths))

    @property
    def _num_pieces(self) -> int:
        return max(self.num_blocks // self.piece_size, 1)

    def cut_of(self, block: int, seed: int, epoch: int) -> tuple[int, int]:
        """`(first token, denoiser)` of a block, in the order of the text."""
        piece = min(block // self.piece_size, self._num_pieces - 1)
        starts_K, denoisers_K = _cuts(self, seed, epoch, piece)
        place = block - piece * self.piece_size
        return int(starts_K[place]), int(denoisers_K[place])

    def counts_before(self, piece: int) -> np.ndarray:
        """How many blocks of each denoiser the pieces before this one hold."""
        before = self.num_blocks if piece == self._num_pieces else piece * self.piece_size
        ends = [sum(self.counts[: place + 1]) * before // self.num_blocks for place in range(len(self.counts))]
        return np.diff([0, *ends])


def _most_blocks(num_tokens: int, lengths, weights) -> list[int]:
    """The largest number of blocks, shared out after the weights, whose tokens the text has."""
    mean_length = float(np.dot(lengths, weights) / sum(weights))
    num_blocks = int(num_tokens / mean_length) + len(lengths)
    while num_blocks and np.dot(apportion(num_blocks, weights), lengths) > num_tokens:
        num_blocks -= 1
    return apportion(num_blocks, weights)


@functools.lru_cache(maxsize=1024)  # 5 MB, and all the pieces of half a million blocks
def _cuts(layout: BlockLayout, seed: int, epoch: int, piece: int) -> tuple[np.ndarray, np.ndarray]:
    """`(starts_K, denoisers_K)` of a piece of an epoch's blocks; which of them is for which denoiser is drawn anew."""
    before, after = layout.counts_before(piece), layout.counts_before(piece + 1)
    denoisers_K = np.repeat(np.arange(len(layout.lengths), dtype=np.uint8), after - before)
    denoisers_K = np.random.default_rng((seed, epoch, piece, *b"denoisers")).permutation(denoisers_K)
    lengths_K = np.asarray(layout.lengths)[denoisers_K]
    return np.dot(before, layout.lengths) + np.cumsum(lengths_K) - lengths_K, denoisers_K
