"""A long row of tokens -> blocks, and the order in which a run reads them.

    >>> layout = BlockLayout(num_tokens=100, lengths=[8])
    >>> layout.num_blocks
    12
    >>> dataset = BlockDataset(np.arange(100), layout, seed=0, num_examples=24)
    >>> dataset[13]["index"], len(dataset[13]["input_ids"])
    (13, 8)

Every datum has one run-long index j: it is block `j % n` in the order of epoch `j // n`; n is the blocks per epoch.
Which tokens and which noise j stands for depends on (seed, j) alone: not on workers, ranks, batches or restarts.
Shape suffix: L tokens of a block.
"""

import bisect
import sys
from collections.abc import Sequence

import numpy as np
from torch.utils.data import Dataset

from t5suite.data.corpora.block_layout import BlockLayout
from t5suite.data.corpora.block_order import BlockOrders
from t5suite.data.corpora.corpus_mixture import CorpusMixture


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
        self.tokens = tokens
        self.layout = layout
        self.orders = BlockOrders(seed, layout.num_blocks)
        self.shuffle = shuffle
        self.num_examples = layout.num_blocks if num_examples is None else num_examples

    def __len__(self):
        return self.num_examples

    def __getitem__(self, index):
        if not 0 <= index < self.num_examples:
            raise IndexError(f"example {index} of a dataset of {self.num_examples}")
        index = int(index)
        num_blocks = self.layout.num_blocks
        epoch, block = divmod(index, num_blocks)
        if self.shuffle:
            block = self.orders.block_of(epoch, block)
        if len(self.layout.lengths) == 1:
            length = self.layout.lengths[0]
            return {"input_ids": self.tokens[block * length : (block + 1) * length], "index": index}
        start, denoiser = self.layout.cut_of(block, self.orders.seed, epoch)
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
        start = self.ends[text] - len(self.datasets[text])
        block = self.datasets[text][index - start]
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
        if weights is None:
            weights = [float(layout.num_blocks) for layout in layouts]
        self.mixture = CorpusMixture(weights, seed)
        # Different numbers of blocks give different orders; separate seeds distinguish corpora of equal size, too.
        self.datasets = []
        for number, (tokens, layout) in enumerate(zip(corpora, layouts, strict=True)):
            corpus_seed = int(np.random.SeedSequence((seed, number)).generate_state(1, np.uint64)[0])
            self.datasets.append(BlockDataset(tokens, layout, corpus_seed, num_examples=sys.maxsize))

    def __len__(self):
        return sys.maxsize

    def __getitem__(self, index):
        corpus, position = self.mixture.corpus_of(index)
        return {**self.datasets[corpus][position], "index": int(index)}
