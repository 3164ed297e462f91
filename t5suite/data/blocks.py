"""A long row of tokens -> blocks, and the order in which a run reads them.

    >>> layout = BlockLayout(num_tokens=100, lengths=[8])
    >>> layout.num_blocks, layout.num_dropped
    (12, 4)
    >>> dataset = BlockDataset(np.arange(100), layout, seed=0, num_examples=24)
    >>> dataset[13]["index"], len(dataset[13]["input_ids"])
    (13, 8)

Every datum has one run-long index j: it is block `j % n` of epoch `j // n`'s order, n being the blocks of an epoch.
Which tokens and which noise j stands for depends on (seed, j) alone: not on workers, ranks, batches or restarts.

An objective that mixes denoisers (UL2) needs blocks of several lengths. The number of blocks of each length is then the
same in every epoch, but which part of the text gets which denoiser is drawn anew in each.
Shape suffixes: N blocks, L tokens of a block.
"""

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from torch.utils.data import Dataset

from t5suite.data.corpus_mixtures import CorpusMixture
from t5suite.data.permutations import Permutation
from t5suite.errors import ConfigError, DataError


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
    """How many blocks of each length fit into a text; `denoisers_N` and `starts_N` say what an epoch's blocks are.

    Args:
      lengths: tokens of a block, one entry for each denoiser.
      weights: how often each denoiser is used, in relative numbers of blocks.

    Raises:
      DataError: the text holds not one whole block.
    """

    num_tokens: int
    lengths: tuple[int, ...]
    weights: tuple[float, ...] = ()
    counts: tuple[int, ...] = field(init=False)

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

    @property
    def num_blocks(self) -> int:
        """Blocks an epoch."""
        return sum(self.counts)

    @property
    def num_dropped(self) -> int:
        """Tokens at the end of the text that make no whole block."""
        return self.num_tokens - int(np.dot(self.counts, self.lengths))

    def denoisers_N(self, seed: int, epoch: int) -> np.ndarray:
        """Which denoiser each block of an epoch is for, in the order of the text."""
        denoisers_N = np.repeat(np.arange(len(self.lengths)), self.counts)
        return denoisers_N if len(self.lengths) == 1 else _rng(seed, epoch, "denoisers").permutation(denoisers_N)


def _most_blocks(num_tokens: int, lengths, weights) -> list[int]:
    """The largest number of blocks, shared out after the weights, whose tokens the text has."""
    mean_length = float(np.dot(lengths, weights) / sum(weights))
    num_blocks = int(num_tokens / mean_length) + len(lengths)
    while num_blocks and np.dot(apportion(num_blocks, weights), lengths) > num_tokens:
        num_blocks -= 1
    return apportion(num_blocks, weights)


def _rng(seed: int, epoch: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng((seed, epoch, *purpose.encode()))


# Up to so many blocks their order is an array (4 MB, 40 ms an epoch); above, it is computed block by block.
LARGEST_ARRAY = 2**20


@functools.lru_cache(maxsize=2)  # a loader that runs ahead stands in two epochs at once
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


@functools.lru_cache(maxsize=2)
def _cuts(layout: BlockLayout, seed: int, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    """`(starts_N, denoisers_N)` of an epoch's blocks, for blocks of several lengths."""
    denoisers_N = layout.denoisers_N(seed, epoch)
    lengths_N = np.asarray(layout.lengths)[denoisers_N]
    return np.cumsum(lengths_N) - lengths_N, denoisers_N


@dataclass(frozen=True)
class Blocks(Sequence):
    """Equally long blocks of a batch as one array, which a collator may take whole; each is an example as well.

    >>> blocks = Blocks(np.array([[5, 6], [7, 8]]), indices=[12, 13])
    >>> len(blocks), blocks[1]["index"], blocks[1]["input_ids"].tolist()
    (2, 13, [7, 8])

    A dictionary and an array of its own for each of 128 blocks cost as much as all of their noise. tokens_BL are of the
    type that they are stored in, such as uint16; an example's are int32.
    """

    tokens_BL: np.ndarray
    indices: Sequence[int] | np.ndarray

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, row):
        if isinstance(row, slice):
            return Blocks(self.tokens_BL[row], self.indices[row])
        return {"input_ids": self.tokens_BL[row].astype(np.int32), "index": int(self.indices[row])}


class BlockDataset(Dataset):
    """Blocks by run-long index, as `{"input_ids": [L], "index": j}`, with the "denoiser" where there are several.

    >>> dataset = BlockDataset(np.array([5, 6, 7, 8, 9, 10]), BlockLayout(6, [2]), seed=0, num_examples=6)
    >>> len(dataset), dataset[4]["index"]
    (6, 4)
    >>> sorted(dataset[j]["input_ids"][0].item() for j in (3, 4, 5))     # the second epoch has every block once
    [5, 7, 9]

    Read it in order (a sequential sampler): it is shuffled already. In an epoch of shuffle=False, blocks keep the order
    of the text: for evaluation.

    Args:
      tokens: anything with `tokens[start:stop]` -> ids, such as an array or a memory-mapped `TokenSequence`.
      num_examples: the length in examples, steps x examples a step; None means one epoch.

    Raises ValueError for a negative length, IndexError for j outside [0, num_examples).
    """

    def __init__(self, tokens, layout: BlockLayout, seed: int = 0, num_examples: int | None = None, shuffle=True):
        self.tokens = tokens
        self.layout = layout
        self.seed = seed
        self.shuffle = shuffle
        self.num_examples = layout.num_blocks if num_examples is None else num_examples
        if self.num_examples < 0:
            raise ConfigError(f"num_examples is {num_examples}: it must be at least 0")

    def __len__(self):
        return self.num_examples

    def __getitems__(self, indices):
        """The examples of a batch, which a `DataLoader` asks for at once: `Blocks` where all are equally long."""
        if len(self.layout.lengths) > 1 or not len(indices):
            return [self[index] for index in indices]
        indices_B = np.asarray(indices, dtype=np.int64)
        first, last = int(indices_B.min()), int(indices_B.max())
        self._check(first)
        self._check(last)
        length, num_blocks = self.layout.lengths[0], self.layout.num_blocks
        if first // num_blocks == last // num_blocks:
            starts_B = self._starts_of(indices_B, first // num_blocks)
        else:
            starts_B = np.empty_like(indices_B)
            for epoch in np.unique(indices_B // num_blocks).tolist():
                of_epoch_B = indices_B // num_blocks == epoch
                starts_B[of_epoch_B] = self._starts_of(indices_B[of_epoch_B], epoch)
        return Blocks(read_rows(self.tokens, starts_B, length), indices_B)

    def _starts_of(self, indices_B, epoch: int) -> np.ndarray:
        """The tokens at which equally long blocks of one epoch start."""
        positions_B = indices_B - epoch * self.layout.num_blocks
        if self.shuffle:
            positions_B = block_order(self.seed, epoch, self.layout.num_blocks)[positions_B].astype(np.int64)
        return positions_B * self.layout.lengths[0]

    def _check(self, index) -> None:
        if not 0 <= index < self.num_examples:
            raise IndexError(f"example {index} of a dataset of {self.num_examples}")

    def __getitem__(self, index):
        self._check(index)
        index, num_blocks = int(index), self.layout.num_blocks
        epoch, position = divmod(index, num_blocks)
        block = int(block_order(self.seed, epoch, num_blocks)[position]) if self.shuffle else position
        if len(self.layout.lengths) == 1:
            length = self.layout.lengths[0]
            return {"input_ids": self.tokens[block * length : (block + 1) * length], "index": index}
        starts_N, denoisers_N = _cuts(self.layout, self.seed, epoch)
        start, denoiser = int(starts_N[block]), int(denoisers_N[block])
        tokens = self.tokens[start : start + self.layout.lengths[denoiser]]
        return {"input_ids": tokens, "index": index, "denoiser": denoiser}


def read_rows(tokens, starts_B, length: int) -> np.ndarray:
    """Tokens from several places on, [B, L].

    >>> read_rows(np.arange(9), np.array([4, 0]), 3).tolist()
    [[4, 5, 6], [0, 1, 2]]
    """
    if hasattr(tokens, "rows"):  # a memory-mapped `TokenSequence`
        return tokens.rows(starts_B, length)
    return np.stack([tokens[start : start + length] for start in starts_B.tolist()])


class MixedBlocks(Dataset):
    """Blocks of several corpora by weight; each corpus runs through epochs of its own.

    >>> corpora = [np.arange(60), np.arange(100, 120)]
    >>> mixed = MixedBlocks(corpora, [BlockLayout(len(tokens), [2]) for tokens in corpora], weights=(3, 1), seed=0)
    >>> mixed.num_blocks, len(mixed)
    (40, 40)

    Args:
      weights: how often each corpus is drawn from, in blocks; None means after their sizes.
      num_examples: the length in examples; None means as many as all corpora have blocks together, which is called an
        epoch here.
    """

    def __init__(self, corpora, layouts, weights=None, seed: int = 0, num_examples: int | None = None):
        self.num_blocks = sum(layout.num_blocks for layout in layouts)
        self.mixture = CorpusMixture(tuple(weights or [float(layout.num_blocks) for layout in layouts]), seed)
        self.num_examples = self.num_blocks if num_examples is None else num_examples
        # Corpora differ in their numbers of blocks and so in their orders; a seed of its own parts equal ones too.
        self.datasets = [
            BlockDataset(tokens, layout, _corpus_seed(seed, number), sys.maxsize)
            for number, (tokens, layout) in enumerate(zip(corpora, layouts, strict=True))
        ]

    def __len__(self):
        return self.num_examples

    def __getitems__(self, indices):
        """The examples of a batch, as `BlockDataset` gives them."""
        if len(self.datasets[0].layout.lengths) > 1 or not len(indices):
            return [self[index] for index in indices]
        indices_B = np.asarray(indices, dtype=np.int64)
        self._check(int(indices_B.min()))
        self._check(int(indices_B.max()))
        corpora_B, positions_B = self.mixture.corpora_of(indices_B)
        parts = {corpus: corpora_B == corpus for corpus in np.unique(corpora_B).tolist()}
        read = {corpus: self.datasets[corpus].__getitems__(positions_B[of_B]) for corpus, of_B in parts.items()}
        tokens_BL = np.concatenate([blocks.tokens_BL for blocks in read.values()])
        order_B = np.argsort(np.concatenate([np.flatnonzero(of_B) for of_B in parts.values()]))
        return Blocks(tokens_BL[order_B], indices_B)

    def _check(self, index) -> None:
        if not 0 <= index < self.num_examples:
            raise IndexError(f"example {index} of a dataset of {self.num_examples}")

    def __getitem__(self, index):
        self._check(index)
        corpus, position = self.mixture.corpus_of(index)
        return {**self.datasets[corpus][position], "index": int(index)}


def _corpus_seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0])
