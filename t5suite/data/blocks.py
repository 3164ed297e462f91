"""Text documents -> blocks of tokens, and the order in which a run reads them.

Shape suffixes: N blocks, L tokens of a block.
"""

import functools

import numpy as np
from torch.utils.data import Dataset

from t5suite.errors import ConfigError, DataError


def token_blocks(documents, encode, tokens_length):
    """Join the encoded documents and cut them into consecutive blocks of `tokens_length` tokens.

    >>> vocabulary = {"Hello": 8774, "world": 296, "again": 541}
    >>> encode = lambda text: [vocabulary[word] for word in text.split()]
    >>> blocks_NL, num_dropped = token_blocks(["Hello world", "Hello again world"], encode, tokens_length=2)
    >>> blocks_NL.tolist(), num_dropped
    ([[8774, 296], [8774, 541]], 1)

    No separator and no EOS stands between documents, as in T5's pipeline (arXiv:1910.10683): `encode` maps a text to
    its ids alone, e.g. `lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]`.

    Returns the blocks, int32 [N, tokens_length], and the number of tokens of the last partial block, which is dropped
    so that every block has the same shape (T5 keeps it, padded). Raises ValueError when there is not one whole block.
    """
    if tokens_length < 1:
        raise ConfigError(f"tokens_length is {tokens_length}: it must be at least 1 token")
    parts = [np.asarray(encode(document), dtype=np.int32) for document in documents]
    tokens = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
    num_blocks, num_dropped = divmod(len(tokens), tokens_length)
    if num_blocks == 0:
        raise DataError(
            f"{len(parts)} documents hold {len(tokens)} tokens, less than one block of {tokens_length}: "
            "give more text, or lower --inputs_length"
        )
    return tokens[: num_blocks * tokens_length].reshape(num_blocks, tokens_length), num_dropped


@functools.lru_cache(maxsize=2)  # a loader that runs ahead stands in two epochs at once
def block_order(seed, epoch, num_blocks):
    """The order of the blocks in one epoch, int64 [num_blocks], read-only: a permutation drawn from (seed, epoch).

    >>> sorted(block_order(0, 3, 4).tolist())
    [0, 1, 2, 3]
    """
    order = np.random.default_rng((seed, epoch)).permutation(num_blocks)
    order.setflags(write=False)
    return order


class BlockDataset(Dataset):
    """Blocks by run-long index: datum j is block `block_order(seed, epoch)[j % N]` of epoch `j // N`.

    >>> dataset = BlockDataset(np.array([[5, 6], [7, 8], [9, 10]]), seed=0, num_examples=6)
    >>> len(dataset), dataset[4]["index"]
    (6, 4)
    >>> sorted(dataset[j]["input_ids"][0].item() for j in (3, 4, 5))     # the second epoch has every block once
    [5, 7, 9]

    Read it in order (a sequential sampler): it is shuffled already, and a shuffled sampler would reshuffle whole epochs
    together. `num_examples` is the length in examples, steps x examples per step; None means one epoch.

    Raises ValueError for no blocks or a negative length, IndexError for j outside [0, num_examples).
    """

    def __init__(self, blocks_NL, seed=0, num_examples=None):
        if len(blocks_NL) == 0:
            raise DataError("no blocks to read: the text gave none")
        self.blocks_NL = blocks_NL
        self.seed = seed
        self.num_examples = len(blocks_NL) if num_examples is None else num_examples
        if self.num_examples < 0:
            raise ConfigError(f"num_examples is {num_examples}: it must be at least 0")

    def __len__(self):
        return self.num_examples

    def __getitem__(self, index):
        if not 0 <= index < self.num_examples:
            raise IndexError(f"example {index} of a dataset of {self.num_examples}")
        epoch, position = divmod(int(index), len(self.blocks_NL))
        block = block_order(self.seed, epoch, len(self.blocks_NL))[position]
        return {"input_ids": self.blocks_NL[block], "index": int(index)}
