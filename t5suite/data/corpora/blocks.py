"""A long row of tokens -> blocks, and the order in which a run reads them.

    >>> layout = BlockLayout(num_tokens=100, lengths=[8])
    >>> layout.num_blocks
    12
    >>> dataset = BlockDataset(np.arange(100), layout, seed=0, num_examples=24)
    >>> dataset[13]["index"], len(dataset[13]["input_ids"])
    (13, 8)

Every datum has one run-long index j: it is block `j % n` in the order of epoch `j // n`; n is the blocks per epoch.
Which tokens and which noise j stands for depends on (seed, j) alone: not on workers, ranks, batches or restarts.
Shape suffixes: B blocks of a batch, K blocks or draws of a piece, L tokens of a block.
"""

import bisect
import functools
import sys
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
from torch.utils.data import Dataset

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.objectives.random_numbers import mixed

# ---------------------------------------------------------------------------------------------------------------------
# The order of an epoch's blocks


# Up to this many blocks, the order is an array (4 MB, 40 ms an epoch); above it, it is computed block by block.
LARGEST_ARRAY = 2**20
# Four rounds make a Feistel network of random functions look random from both sides (Luby and Rackoff 1988).
NUM_ROUNDS = 4


class Permutation:
    """The numbers below `size` in an order that depends on `seed` alone, each computed on demand.

    >>> sorted(Permutation(5, seed=1)[np.arange(5)].tolist())
    [0, 1, 2, 3, 4]

    A Feistel network over the smallest power of two that holds all numbers, applied again to results that are too
    large (Black and Rogaway 2002, doi:10.1007/3-540-45760-7_9), with the mixing of SplitMix64 as its round function.
    Sizes are 1 to 2**62; the seed is a number or a tuple.
    """

    def __init__(self, size: int, seed):
        if not 1 <= size <= 2**62:
            raise ConfigError(f"a permutation of {size} numbers: from 1 to 2**62 are possible")
        self.size = size
        bits = max((size - 1).bit_length(), 2)
        self._low_bits = np.uint64(bits // 2)
        self._masks = tuple(np.uint64(2**half - 1) for half in (bits // 2, bits - bits // 2))  # of low and high halves
        self._keys = np.random.default_rng(seed).integers(2**64, size=NUM_ROUNDS, dtype=np.uint64)

    def __getitem__(self, positions):
        values = np.array(positions, dtype=np.int64, ndmin=1)
        if values.size and not (values.min() >= 0 and values.max() < self.size):
            raise IndexError(f"position {positions} of {self.size}")
        found = self._shuffled(values.astype(np.uint64))
        outside = np.flatnonzero(found >= self.size)
        while outside.size:  # each is on a cycle that leads back below `size`
            found[outside] = self._shuffled(found[outside])
            outside = outside[found[outside] >= self.size]
        return int(found[0]) if np.ndim(positions) == 0 else found.astype(np.int64)

    def _shuffled(self, values: np.ndarray) -> np.ndarray:
        """One pass of the network: every round XORs a function of one half into the other."""
        low_mask, high_mask = self._masks
        low, high = values & low_mask, values >> self._low_bits
        for number, key in enumerate(self._keys):
            if number % 2:
                high = high ^ (mixed(low ^ key) & high_mask)
            else:
                low = low ^ (mixed(high ^ key) & low_mask)
        return high << self._low_bits | low


@functools.lru_cache(maxsize=2)  # a loader that prefetches can be in two epochs at once
def block_order(seed: int, epoch: int, num_blocks: int) -> np.ndarray | Permutation:
    """The order of the blocks in one epoch, [num_blocks], read-only: a permutation drawn from (seed, epoch).

    >>> sorted(block_order(0, 3, 4).tolist())
    [0, 1, 2, 3]
    """
    if num_blocks > LARGEST_ARRAY:
        return Permutation(num_blocks, (seed, epoch))
    order = np.arange(num_blocks, dtype=np.uint32)
    np.random.default_rng((seed, epoch)).shuffle(order)
    order.setflags(write=False)
    return order


# ---------------------------------------------------------------------------------------------------------------------
# How a text is cut into blocks of one length or of several, as an objective that mixes denoisers (UL2) needs them: each
# epoch has the same number of each, but which part of the text gets which is redrawn, one piece of the text at a time.


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
        self.num_tokens, self.lengths, weights = num_tokens, tuple(lengths), tuple(weights) or (1.0,) * len(lengths)
        check_lengths(self.lengths, weights)
        num_blocks = int(num_tokens * sum(weights) / float(np.dot(lengths, weights))) + len(lengths)
        while num_blocks and np.dot(apportion(num_blocks, weights), lengths) > num_tokens:
            num_blocks -= 1
        if num_blocks == 0:
            raise DataError(
                f"{num_tokens} tokens, less than one block of {max(lengths)}: give more text, or lower --inputs_length"
            )
        self.counts = tuple(apportion(num_blocks, weights))
        self.piece_size, rarest = PIECE, min(count for count in self.counts if count)
        while self.piece_size < num_blocks and rarest * self.piece_size < 2 * num_blocks:
            self.piece_size *= 2  # with fewer of a denoiser, rounding could give a negative number of blocks

    @property
    def num_blocks(self) -> int:
        """Blocks per epoch."""
        return sum(self.counts)

    def cut_of(self, block: int, seed: int, epoch: int) -> tuple[int, int]:
        """`(first token, denoiser)` of a block, in the order of the text."""
        piece = min(block // self.piece_size, max(self.num_blocks // self.piece_size, 1) - 1)
        starts_K, denoisers_K = _cuts(self, seed, epoch, piece)
        place = block - piece * self.piece_size
        return int(starts_K[place]), int(denoisers_K[place])

    def counts_before(self, piece: int) -> np.ndarray:
        """How many blocks of each denoiser the pieces before this one hold."""
        before = piece * self.piece_size
        if piece == max(self.num_blocks // self.piece_size, 1):
            before = self.num_blocks
        ends = [sum(self.counts[: place + 1]) * before // self.num_blocks for place in range(len(self.counts))]
        return np.diff([0, *ends])


@functools.lru_cache(maxsize=1024)  # 5 MB, and all the pieces of half a million blocks
def _cuts(layout: BlockLayout, seed: int, epoch: int, piece: int) -> tuple[np.ndarray, np.ndarray]:
    """`(starts_K, denoisers_K)` of a piece of an epoch's blocks; which of them is for which denoiser is redrawn."""
    before, after = layout.counts_before(piece), layout.counts_before(piece + 1)
    denoisers_K = np.repeat(np.arange(len(layout.lengths), dtype=np.uint8), after - before)
    denoisers_K = np.random.default_rng((seed, epoch, piece, *b"denoisers")).permutation(denoisers_K)
    lengths_K = np.asarray(layout.lengths)[denoisers_K]
    return np.dot(before, layout.lengths) + np.cumsum(lengths_K) - lengths_K, denoisers_K


# ---------------------------------------------------------------------------------------------------------------------
# Which of several corpora a run's datum j comes from: a function of only the weights, a seed and j.
#
# The run is cut into chunks. At every chunk border each corpus has had its share, to within one block; inside a chunk
# the order is random. So no draw depends on earlier ones, and a resumed run finds its place at once.


class CorpusMixture:
    """A random-access mixture of corpora.

    `weights` are positive numbers, which need not sum to one; `seed` is a number or a tuple. `chunk_size`, the draws of
    a chunk, is doubled until the smallest corpus occurs at least twice in each (with fewer, rounding could give a
    negative number of blocks).
    """

    def __init__(self, weights: Sequence[float], seed=0, chunk_size: int = 4096):
        if not weights or not all(0 < weight < float("inf") for weight in weights):
            raise ConfigError(f"corpus weights {tuple(weights)}: give one positive number for each corpus")
        total = sum(map(Fraction, weights))
        shares = [Fraction(weight) / total for weight in weights]
        while min(shares) * chunk_size < 2:
            chunk_size *= 2
        self.seed, self.chunk_size = seed if isinstance(seed, tuple) else (seed,), chunk_size
        self._borders = tuple(sum(shares[:count]) for count in range(len(shares) + 1))

    def corpus_of(self, j: int) -> tuple[int, int]:
        """The corpus of datum j, and how many data before j came from it."""
        chunk, place = divmod(int(j), self.chunk_size)
        corpora_K, indices_K = _chunk(self, chunk)
        return int(corpora_K[place]), int(indices_K[place])

    def counts_before(self, chunk: int) -> list[int]:
        """How many data of each corpus the chunks before this one hold, in whole numbers without rounding error.

        >>> CorpusMixture((2, 1)).counts_before(1)
        [2730, 1366]
        """
        ends = [int(border * chunk * self.chunk_size) for border in self._borders]
        return [end - start for start, end in pairwise(ends)]


@functools.lru_cache(maxsize=256)  # a process serves many virtual streams, each in its own chunk
def _chunk(mixture: CorpusMixture, chunk: int) -> tuple[np.ndarray, np.ndarray]:
    """`(corpora_K, indices_K)` of a chunk's K draws."""
    before, after = mixture.counts_before(chunk), mixture.counts_before(chunk + 1)
    counts = [end - start for start, end in zip(before, after)]
    corpora_K = np.random.default_rng((*mixture.seed, chunk)).permutation(np.repeat(np.arange(len(counts)), counts))
    indices_K = np.empty_like(corpora_K)
    for corpus, (start, count) in enumerate(zip(before, counts)):
        indices_K[corpora_K == corpus] = np.arange(start, start + count)
    return corpora_K, indices_K


# ---------------------------------------------------------------------------------------------------------------------
# Blocks


class BlockDataset(Dataset):
    """Blocks by run-long index, as `{"input_ids": [L], "index": j}`, with the "denoiser" where there are several.

    >>> dataset = BlockDataset(np.array([5, 6, 7, 8, 9, 10]), BlockLayout(6, [2]), seed=0, num_examples=6)
    >>> len(dataset), dataset[4]["index"]
    (6, 4)
    >>> sorted(dataset[j]["input_ids"][0].item() for j in (3, 4, 5))     # the second epoch has every block once
    [5, 7, 9]

    Read it in order (a sequential sampler): it is shuffled already, except with shuffle=False, for evaluation. `tokens`
    is anything with `tokens[start:stop]` -> ids; `num_examples` None means one epoch.
    """

    def __init__(self, tokens, layout: BlockLayout, seed: int = 0, num_examples: int | None = None, shuffle=True):
        self.tokens, self.layout, self.seed, self.shuffle = tokens, layout, seed, shuffle
        self.num_examples = layout.num_blocks if num_examples is None else num_examples

    def __len__(self):
        return self.num_examples

    def __getitem__(self, index):
        if not 0 <= index < self.num_examples:
            raise IndexError(f"example {index} of a dataset of {self.num_examples}")
        index, num_blocks = int(index), self.layout.num_blocks
        epoch, position = divmod(index, num_blocks)
        block = int(block_order(self.seed, epoch, num_blocks)[position]) if self.shuffle else position
        if len(self.layout.lengths) == 1:
            length = self.layout.lengths[0]
            return {"input_ids": self.tokens[block * length : (block + 1) * length], "index": index}
        start, denoiser = self.layout.cut_of(block, self.seed, epoch)
        tokens = self.tokens[start : start + self.layout.lengths[denoiser]]
        return {"input_ids": tokens, "index": index, "denoiser": denoiser}


class BlocksInOrder(Sequence):
    """The blocks of several held-out texts, in order and numbered, so that their noise is always the same.

    >>> blocks = BlocksInOrder([np.arange(7), np.arange(10, 14)], lengths=(2,), limit=3)
    >>> len(blocks), [(block["index"], block["input_ids"].tolist()) for block in blocks]
    (3, [(0, [0, 1]), (2, [4, 5]), (4, [12, 13])])

    `lengths` and `weights` are those of a `BlockLayout`; `limit`: at most this many, evenly spread over the texts.
    """

    def __init__(self, texts, lengths, weights=(), limit: int | None = None):
        layouts = [BlockLayout(len(tokens), lengths, weights) for tokens in texts]
        self.datasets = [BlockDataset(tokens, layout, shuffle=False) for tokens, layout in zip(texts, layouts)]
        self.ends = np.cumsum([len(dataset) for dataset in self.datasets]).tolist()
        self.chosen = spread(self.ends[-1] if self.ends else 0, limit)

    def __len__(self):
        return len(self.chosen)

    def __getitem__(self, number):
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        index = self.chosen[number]
        text = bisect.bisect_right(self.ends, index)
        block = self.datasets[text][index - (self.ends[text - 1] if text else 0)]
        return {**block, "index": index}


def spread(total: int, limit: int | None = None) -> Sequence[int]:
    """At most `limit` of the numbers below `total`, evenly spread.

    >>> spread(9, 3), spread(3, 9)
    ([0, 4, 8], range(0, 3))
    """
    if limit is None or limit >= total:
        return range(total)
    return np.linspace(0, total - 1, limit).astype(int).tolist()


class MixedBlocks(Dataset):
    """Endless blocks of several corpora by weight; each corpus has its own epochs.

    >>> corpora = [np.arange(60), np.arange(100, 120)]
    >>> mixed = MixedBlocks(corpora, [BlockLayout(len(tokens), [2]) for tokens in corpora], weights=(3, 1), seed=0)
    >>> mixed.num_blocks
    40

    `weights`: how often each corpus is drawn from, in blocks; None means in proportion to their sizes. `num_blocks`:
    the blocks of all corpora together, which is called an epoch here.
    """

    def __init__(self, corpora, layouts, weights=None, seed: int = 0):
        self.num_blocks = sum(layout.num_blocks for layout in layouts)
        self.mixture = CorpusMixture(weights or [float(layout.num_blocks) for layout in layouts], seed)
        # Different numbers of blocks give different orders; separate seeds distinguish corpora of equal size, too.
        self.datasets = []
        for number, (tokens, layout) in enumerate(zip(corpora, layouts, strict=True)):
            own = np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0]
            self.datasets.append(BlockDataset(tokens, layout, int(own), sys.maxsize))

    def __len__(self):
        return sys.maxsize

    def __getitem__(self, index):
        corpus, position = self.mixture.corpus_of(index)
        return {**self.datasets[corpus][position], "index": int(index)}
