"""A long row of tokens -> blocks, and the order in which a run reads them.

    >>> layout = BlockLayout(num_tokens=100, lengths=[8])
    >>> layout.num_blocks, layout.num_dropped
    (12, 4)
    >>> dataset = BlockDataset(np.arange(100), layout, seed=0, num_examples=24)
    >>> dataset[13]["index"], len(dataset[13]["input_ids"])
    (13, 8)

Every datum has one run-long index j: it is block `j % n` of epoch `j // n`'s order, n being the blocks of an epoch.
Which tokens and which noise j stands for depends on (seed, j) alone: not on workers, ranks, batches or restarts.

Shape suffixes: B blocks of a batch, L tokens of a block.
"""

import bisect
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch.utils.data import Dataset

from t5suite.base.errors import ConfigError
from t5suite.data.block_layouts import BlockLayout
from t5suite.data.corpus_mixtures import CorpusMixture
from t5suite.data.permutations import Permutation

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
        start, denoiser = self.layout.cut_of(block, self.seed, epoch)
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


class BlocksInOrder(Sequence):
    """The blocks of several texts, one after the other and numbered, so that their noise is always the same: held out.

    >>> blocks = BlocksInOrder([np.arange(7), np.arange(10, 14)], lengths=(2,), limit=3)
    >>> len(blocks), [(block["index"], block["input_ids"].tolist()) for block in blocks]
    (3, [(0, [0, 1]), (2, [4, 5]), (4, [12, 13])])

    They are read where they are asked for.

    Args:
      lengths, weights: as of a `BlockLayout`.
      limit: at most so many, evenly spread over the texts.
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
