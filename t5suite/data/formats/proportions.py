"""Several data sets in given proportions: exact counts an epoch, and every row before any row comes again.

    >>> order = proportional_order([4, 100], [1, 3], seed=0)
    >>> epoch = order(0)                 # 104 draws: 26 of the first data set, 78 of the second
    >>> len(epoch), int((epoch < 4).sum())
    (104, 26)

An epoch has as many draws as the data sets have rows. A data set's rows are gone through pass by pass, each pass in an
order of its own; an epoch goes on where the one before ended. So a data set of which an epoch takes a part is covered
over several epochs. A draw is a function of (seed, data set, pass, index).
"""

from collections.abc import Callable

import numpy as np

from t5suite.base.errors import ConfigError

_PASSES, _EPOCHS = 2, 3


def epoch_counts(proportions: list[float], total: int) -> list[int]:
    """How many of `total` draws each data set gets: exact shares, what is left over to the largest remainders.

    >>> epoch_counts([1, 3], 10)
    [3, 7]
    """
    shares = np.asarray(proportions, dtype=np.float64) / np.sum(proportions) * total
    counts = np.floor(shares).astype(int)
    for i in np.argsort(-(shares - counts), kind="stable")[: total - counts.sum()]:
        counts[i] += 1
    return [int(count) for count in counts]


def draws(size: int, start: int, count: int, seed: int, number: int) -> np.ndarray:
    """Draws `start` to `start + count` of a data set of `size` rows: row numbers, each once a pass.

    >>> sorted(draws(3, 0, 3, seed=0, number=0).tolist()), len(draws(3, 2, 5, seed=0, number=0))
    ([0, 1, 2], 5)

    Args:
      number: which of the data sets it is.
    """
    first, last = start // size, -(-(start + count) // size)
    passes = [np.random.default_rng((seed, _PASSES, number, i)).permutation(size) for i in range(first, last)]
    found = np.concatenate([*passes, np.empty(0, dtype=np.int64)]).astype(np.int64)
    return found[start - first * size :][:count]


def proportional_order(sizes: list[int], proportions: list[float], seed: int) -> Callable[[int], np.ndarray]:
    """Epoch -> the examples that it draws, as indices into the data sets' concatenation.

    Raises:
      ConfigError: another number of proportions than of data sets, or one that is not above 0.
    """
    if len(proportions) != len(sizes):
        raise ConfigError(f"--data_sampling_proportion has {len(proportions)} values for {len(sizes)} data sets")
    if not all(0 < value < float("inf") for value in proportions):
        raise ConfigError(f"--data_sampling_proportion {' '.join(map(str, proportions))}: each must be above 0")
    counts = epoch_counts(proportions, sum(sizes))
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def order(epoch: int) -> np.ndarray:
        parts = [
            starts[i] + draws(size, epoch * count, count, seed, i)
            for i, (size, count) in enumerate(zip(sizes, counts, strict=True))
        ]
        return np.random.default_rng((seed, _EPOCHS, epoch)).permutation(np.concatenate(parts))

    return order


def grouped_in_updates(order: Callable[[int], np.ndarray], lengths, update_size: int) -> Callable[[int], np.ndarray]:
    """The same updates, the longest example of each first: its micro-batches and ranks then need little padding."""
    lengths = np.asarray(lengths)

    def grouped(epoch: int) -> np.ndarray:
        examples = order(epoch)
        updates = [examples[start : start + update_size] for start in range(0, len(examples), update_size)]
        return np.concatenate([update[np.argsort(-lengths[update], kind="stable")] for update in updates])

    return grouped
