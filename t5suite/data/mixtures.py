"""How often each task of a mixture is drawn, and in which order its examples come.

    >>> mixing_rates({"cola": 8551, "qqp": 363849}, limit=100000, temperature=2.0)
    {'cola': 92.47..., 'qqp': 316.22...}

Rates follow arXiv:1910.10683, section 3.5.2: examples-proportional with an artificial limit, flattened by a
temperature, or equal. Mixing is per example and every task repeats for as long as the run lasts. Or data sets are
mixed in given proportions: exact counts per epoch, no row again before all rows of its set (`proportional_order`).
"""

import math
from collections.abc import Callable

import numpy as np

from t5suite.base.errors import ConfigError

# Powers with a larger logarithm could be out of a float's range, or their sum.
_LARGEST_LOG = 600.0
# Random streams of proportional orders.
_PASSES, _EPOCHS = 2, 3


def mixing_rates(examples: dict[str, int], limit: float | None = None, temperature: float = 1.0) -> dict[str, float]:
    """`{task: min(n, limit) ** (1 / temperature)}`, not normalised; in units of the largest where that is out of range.

    Raises:
      ConfigError: a limit or temperature that is not positive.
    """
    if limit is not None and limit <= 0:
        raise ConfigError(f"--mixing_limit {limit}: must be more than 0")
    if temperature <= 0:
        raise ConfigError(f"--mixing_temperature {temperature}: must be more than 0")
    counts = {task: float(count if limit is None else min(count, limit)) for task, count in examples.items()}
    power = 1 / temperature
    largest = max(counts.values()) or 1.0
    unit = largest if abs(power * math.log(largest)) > _LARGEST_LOG else 1.0
    return {task: (count / unit) ** power for task, count in counts.items()}


class MixtureDraws:
    """The example drawn at each position of a run, as an index into the tasks' concatenation: `draws[start:stop]`.

    >>> draws = MixtureDraws([2, 3], [1.0, 1.0], 10**9, seed=0)
    >>> len(draws), draws[999_999:1_000_002].tolist()
    (1000000000, [1, 0, 4])

    The task at position j is drawn with its rate, from (seed, j); a task's own examples are used pass by pass,
    each pass in a new order that (seed, task, pass) decides. Draws are computed on demand. For every `CHUNK`-th
    position, the number of each task's earlier draws is stored; they are counted (10 ns a draw) as far as needed.
    """

    CHUNK = 2**16

    def __init__(self, sizes: list[int], rates: list[float], num_draws: int, seed: int):
        self.sizes = list(sizes)
        self.num_draws, self.seed = num_draws, seed
        self._borders = np.cumsum(np.asarray(rates, dtype=np.float64) / np.sum(rates))
        self._borders /= self._borders[-1]
        self._counts = [np.zeros(len(sizes), dtype=np.int64)]

    def __len__(self) -> int:
        return self.num_draws

    def __getitem__(self, part: slice) -> np.ndarray:
        start, stop, step = part.indices(self.num_draws)
        if step != 1:
            raise ValueError(f"step {step}: draws are consecutive")
        tasks = self._tasks(start, stop)
        drawn = np.empty(len(tasks), dtype=np.int64)
        firsts = np.concatenate([[0], np.cumsum(self.sizes)[:-1]])
        for task, before in enumerate(self._counts_before(start).tolist()):
            positions = np.flatnonzero(tasks == task)
            if len(positions):
                drawn[positions] = firsts[task] + self._examples(task, before, before + len(positions))
        return drawn

    def _tasks(self, start: int, stop: int) -> np.ndarray:
        """The task at each of these positions; a draw takes one number of the generator."""
        rng = np.random.default_rng((self.seed, 0))
        rng.bit_generator.advance(start)
        return self._borders.searchsorted(rng.random(max(stop - start, 0)), side="right")

    def _counts_before(self, start: int) -> np.ndarray:
        """How many draws of each task come before this position."""
        chunk = start // self.CHUNK
        while len(self._counts) <= chunk:
            end = len(self._counts) * self.CHUNK
            self._counts.append(self._counts[-1] + self._counted(end - self.CHUNK, end))
        return self._counts[chunk] + self._counted(chunk * self.CHUNK, start)

    def _counted(self, start: int, stop: int) -> np.ndarray:
        return np.bincount(self._tasks(start, stop), minlength=len(self.sizes))

    def _examples(self, task: int, start: int, stop: int) -> np.ndarray:
        """The task's examples at these of its draws, pass by pass."""
        return draws(self.sizes[task], start, stop - start, (self.seed, 1, task))


def epoch_counts(proportions: list[float], total: int) -> list[int]:
    """How many of `total` draws each data set gets: exact shares, the rest by the largest remainders.

    >>> epoch_counts([1, 3], 10)
    [3, 7]
    """
    shares = np.asarray(proportions, dtype=np.float64) / np.sum(proportions) * total
    counts = np.floor(shares).astype(int)
    for i in np.argsort(-(shares - counts), kind="stable")[: total - counts.sum()]:
        counts[i] += 1
    return [int(count) for count in counts]


def draws(size: int, start: int, count: int, key: tuple[int, ...]) -> np.ndarray:
    """Draws `start` to `start + count` of a data set of `size` rows: row numbers, each once per pass.

    >>> sorted(draws(3, 0, 3, key=(0, 0)).tolist()), len(draws(3, 2, 5, key=(0, 0)))
    ([0, 1, 2], 5)

    Args:
      key: decides the order of a pass, together with the pass's number.
    """
    first_pass = start // size
    end_pass = math.ceil((start + count) / size)
    passes = [np.random.default_rng((*key, i)).permutation(size) for i in range(first_pass, end_pass)]
    rows = np.concatenate([*passes, np.empty(0, dtype=np.int64)]).astype(np.int64)
    return rows[start - first_pass * size :][:count]


def proportional_order(sizes: list[int], proportions: list[float], seed: int) -> Callable[[int], np.ndarray]:
    """Epoch -> the examples that it draws, as indices into the data sets' concatenation.

    >>> order = proportional_order([4, 100], [1, 3], seed=0)
    >>> epoch = order(0)                 # 104 draws: 26 of the first data set, 78 of the second
    >>> len(epoch), int((epoch < 4).sum())
    (104, 26)

    An epoch has as many draws as the data sets have rows. A data set's rows are used pass by pass, each pass in
    its own order; an epoch continues where the previous one ended. A draw is a function of (seed, data set, pass,
    index).

    Raises:
      ConfigError: not as many proportions as data sets, or a proportion that is not above 0.
    """
    if len(proportions) != len(sizes):
        raise ConfigError(f"--data_sampling_proportion has {len(proportions)} values for {len(sizes)} data sets")
    if not all(0 < value < float("inf") for value in proportions):
        raise ConfigError(f"--data_sampling_proportion {' '.join(map(str, proportions))}: each must be above 0")
    counts = epoch_counts(proportions, sum(sizes))
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def order(epoch: int) -> np.ndarray:
        parts = [
            starts[i] + draws(size, epoch * count, count, (seed, _PASSES, i))
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
