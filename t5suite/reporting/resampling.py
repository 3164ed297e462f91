"""Bootstrap intervals: over the rows of a run, and over the seeds of a setting.

>>> interval_over_values([61.0, 63.0, 66.0])["low"], interval_over_values([61.0, 63.0, 66.0])["high"]
(61.0, 66.0)

Percentile bootstrap (Efron and Tibshirani 1993, chapter 13), 95 %, from a generator of a fixed seed, so that the same
files give the same page. Over rows: units (rows, or groups of rows) are drawn with replacement. Over seeds: the scores
of the runs are drawn; with few seeds that says little, and with two it is their range.
"""

import math

import numpy as np

from t5suite.reporting.metric_sums import Statistic

LEVEL = 0.95
SEED = 0
RESAMPLES = 10_000
# Metrics that are computed anew on every resample have fewer of them: Spearman, and those of texts (BLEU, chrF).
RESAMPLES_DIRECT, RESAMPLES_TEXTS = 500, 100
MOST_CELLS = 4_000_000


def interval_over_rows(statistic: Statistic) -> dict | None:
    """`{"low", "high", "resamples", "units"}` of a metric; None with fewer than two units.

    Resamples in which the metric is no number are left out; where half of them are none, neither is the interval.
    """
    if statistic.num_units < 2:
        return None
    values = resampled_values([statistic])[0]
    return _interval(values, statistic.num_units)


def interval_over_values(values) -> dict | None:
    """The interval of the mean of some runs' scores; None for fewer than two, or where one is no number."""
    values = np.array([math.nan if value is None else value for value in values], dtype=float)
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    drawn = np.random.default_rng(SEED).integers(len(values), size=(RESAMPLES, len(values)))
    return _interval(values[drawn].mean(axis=1), len(values))


def _interval(values: np.ndarray, units: int) -> dict | None:
    finite = values[np.isfinite(values)]
    if len(finite) < max(2, len(values) / 2):
        return None
    low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"low": float(low), "high": float(high), "resamples": len(values), "units": units}


def resampled_values(statistics: list[Statistic]) -> list[np.ndarray]:
    """Each statistic's values over the same resamples of their units (which they share).

    Units that add the same to every sum are drawn together, by how many there are of them: the same distribution, and
    a right answer is like any other.
    """
    rng = np.random.default_rng(SEED)
    if any(statistic.units is None for statistic in statistics):
        size = RESAMPLES_TEXTS if any(statistic.slow for statistic in statistics) else RESAMPLES_DIRECT
        counts = rng.multinomial(*_even(statistics[0].num_units), size=size)
        return [statistic.resampled(counts) for statistic in statistics]
    together = np.hstack([statistic.units for statistic in statistics])
    kinds, how_many = np.unique(together, axis=0, return_counts=True)
    shares, total = how_many / how_many.sum(), int(how_many.sum())
    widths = np.cumsum([statistic.units.shape[1] for statistic in statistics])[:-1]
    parts: list[list] = [[] for _ in statistics]
    for size in _chunks(RESAMPLES, len(kinds)):
        sums = rng.multinomial(total, shares, size=size) @ kinds
        for part, statistic, own in zip(parts, statistics, np.split(sums, widths, axis=1)):
            part.append(statistic.combine(own))
    return [np.concatenate(part) for part in parts]


def _even(count: int) -> tuple[int, np.ndarray]:
    return count, np.full(count, 1 / count)


def _chunks(resamples: int, width: int):
    """Sizes that add up to `resamples`, each small enough for memory."""
    most = max(1, MOST_CELLS // max(1, width))
    while resamples > 0:
        yield min(most, resamples)
        resamples -= most
