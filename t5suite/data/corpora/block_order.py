"""The order in which an epoch reads its blocks: a permutation drawn from the seed and the epoch.

>>> orders = BlockOrders(seed=0, num_blocks=4)
>>> sorted(orders.block_of(3, place) for place in range(4))
[0, 1, 2, 3]
"""

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.data.objectives.random_numbers import mixed

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
        num_low_bits = bits // 2
        num_high_bits = bits - num_low_bits
        self._low_bits = np.uint64(num_low_bits)
        self._low_mask = np.uint64(2**num_low_bits - 1)
        self._high_mask = np.uint64(2**num_high_bits - 1)
        self._keys = np.random.default_rng(seed).integers(2**64, size=NUM_ROUNDS, dtype=np.uint64)

    def __getitem__(self, positions):
        values = np.array(positions, dtype=np.int64, ndmin=1)
        if values.size and not (values.min() >= 0 and values.max() < self.size):
            raise IndexError(f"position {positions} of {self.size}")
        shuffled = self._shuffled(values.astype(np.uint64))
        too_large = np.flatnonzero(shuffled >= self.size)
        while too_large.size:  # each is on a cycle that leads back below `size`
            shuffled[too_large] = self._shuffled(shuffled[too_large])
            too_large = too_large[shuffled[too_large] >= self.size]
        if np.ndim(positions) == 0:
            return int(shuffled[0])
        return shuffled.astype(np.int64)

    def _shuffled(self, values: np.ndarray) -> np.ndarray:
        """One pass of the network: every round XORs a function of one half into the other."""
        low = values & self._low_mask
        high = values >> self._low_bits
        for number, key in enumerate(self._keys):
            if number % 2:
                high = high ^ (mixed(low ^ key) & self._high_mask)
            else:
                low = low ^ (mixed(high ^ key) & self._low_mask)
        return high << self._low_bits | low


class BlockOrders:
    """The orders of a data set's epochs; those of two are kept, as a loader that prefetches can be in both at once."""

    def __init__(self, seed: int, num_blocks: int):
        self.seed = seed
        self.num_blocks = num_blocks
        self._orders_by_epoch: dict[int, np.ndarray | Permutation] = {}

    def block_of(self, epoch: int, place: int) -> int:
        """The block at a place of an epoch's order, from 0."""
        if epoch not in self._orders_by_epoch:
            if len(self._orders_by_epoch) == 2:
                del self._orders_by_epoch[next(iter(self._orders_by_epoch))]
            self._orders_by_epoch[epoch] = block_order(self.seed, epoch, self.num_blocks)
        return int(self._orders_by_epoch[epoch][place])


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
