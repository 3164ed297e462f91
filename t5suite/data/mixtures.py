"""How often each task of a mixture is drawn, and which of its examples comes when.

    >>> mixing_rates({"cola": 8551, "qqp": 363849}, limit=100000, temperature=2.0)
    {'cola': 92.47..., 'qqp': 316.22...}

Rates follow arXiv:1910.10683, section 3.5.2: examples-proportional with an artificial limit, flattened by a
temperature, or equal. Mixing is per example and every task repeats for as long as the run goes on.
"""

import numpy as np

from t5suite.errors import ConfigError

MIXING_STRATEGIES = ("proportional", "equal")


def mixing_rates(examples: dict[str, int], limit: float | None = None, temperature: float = 1.0) -> dict[str, float]:
    """`{task: min(n, limit) ** (1 / temperature)}`, not normalised.

    Raises:
      ConfigError: a limit or temperature that is not positive.
    """
    if limit is not None and limit <= 0:
        raise ConfigError(f"--mixing_limit {limit}: must be more than 0")
    if temperature <= 0:
        raise ConfigError(f"--mixing_temperature {temperature}: must be more than 0")
    return {
        task: float(count if limit is None else min(count, limit)) ** (1 / temperature)
        for task, count in examples.items()
    }


def equal_rates(examples: dict[str, int]) -> dict[str, float]:
    """Rate 1 for every task."""
    return dict.fromkeys(examples, 1.0)


def draw_mixture(sizes: list[int], rates: list[float], num_draws: int, seed: int) -> np.ndarray:
    """The example drawn at each of `num_draws` positions, as an index into the tasks' concatenation.

    The task at position j is drawn with its rate, from (seed, j); a task's own examples are gone through pass by pass,
    each pass in a new order that (seed, task, pass) decides. So position j names the same example in every run.

    >>> draw_mixture([2, 3], [1.0, 1.0], 5, seed=0)
    array([2, 0, 1, 4, 3])
    """
    probabilities = np.asarray(rates, dtype=np.float64) / np.sum(rates)
    tasks = np.random.default_rng((seed, 0)).choice(len(sizes), size=num_draws, p=probabilities)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    drawn = np.empty(num_draws, dtype=np.int64)
    for task, size in enumerate(sizes):
        positions = np.flatnonzero(tasks == task)
        passes = -(-len(positions) // size) if len(positions) else 0
        orders = [np.random.default_rng((seed, 1, task, i)).permutation(size) for i in range(passes)]
        if passes:
            drawn[positions] = starts[task] + np.concatenate(orders)[: len(positions)]
    return drawn
