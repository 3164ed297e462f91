"""Bootstrap intervals, and tests of two systems on the same rows.

>>> interval_over_values([61.0, 63.0, 66.0])["low"], mcnemar(only_a=3, only_b=12)
(61.0, 0.03515625)

Percentile bootstrap (Efron and Tibshirani 1993, chapters 13 and 15; of two systems: Koehn 2004, aclanthology.org/
W04-3250), 95 %, from a generator of a fixed seed. Over runs it is scipy's. Over rows it is ours, because units that add
the same to a metric's sums can be drawn together: an accuracy over 10,000 rows takes 0.2 s instead of 3 s. McNemar's
exact test asks whether the rows that only one of the two has right are split evenly (Fagerland et al. 2013,
doi:10.1186/1471-2288-13-91). Rows that are all alike have no other resample, which would read as certainty: a share of
right rows has Clopper and Pearson's exact interval there (1934, doi:10.1093/biomet/26.4.404), other metrics have none.
"""

import math
from collections.abc import Iterator

import numpy as np

from t5suite.reports.resampled_metrics import Statistic, right_units

LEVEL = 0.95
SEED = 0
RESAMPLES = 10_000
# Metrics that are recomputed on every resample (precision, those of labels for words, a user's own) have fewer of them;
# where they read texts (BLEU, chrF, a user's own), the fewest.
RESAMPLES_DIRECT = 500
RESAMPLES_TEXTS = 100
# How many counts (resamples times kinds of units) are drawn at once: 32 MB.
MOST_CELLS = 4_000_000
# Rank correlations hold so many arrays of the counts' size at once.
ARRAYS_OF_RANKS = 8
# Sums over the same rows in another order differ in their last bits, which does not count as a difference.
ROUNDING = 1e-9


def interval_over_rows(statistic: Statistic) -> dict | None:
    """`{"low", "high", "resamples", "units"}`; None with fewer than two units, or where resamples are all equal or most
    are NaN.

    Of a share of right units, all or none of which are right, it is exact, of 0 resamples.
    """
    if statistic.num_units < 2:
        return None
    right = right_units(statistic)
    if right is not None and right.all() == right.any():
        return _exact_interval(right)
    (values,) = resampled_values([statistic])
    interval = _percentile_interval(values, statistic.num_units)
    if interval is None or interval["high"] - interval["low"] < ROUNDING:
        return None
    return interval


def _exact_interval(right: np.ndarray) -> dict:
    """Clopper and Pearson's interval of the share of right units, in points."""
    from scipy.stats import binomtest

    low, high = binomtest(int(right.sum()), len(right)).proportion_ci(LEVEL, method="exact")
    return _interval_entry(100 * low, 100 * high, 0, len(right))


def interval_over_values(values) -> dict | None:
    """The interval of the mean of some runs' scores; None for fewer than two, or where one is NaN or None."""
    if len(values) < 2 or any(value is None for value in values):
        return None
    scores = np.array(values, dtype=float)
    if not np.isfinite(scores).all():
        return None
    from scipy.stats import bootstrap

    resampled = bootstrap(
        (scores,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=LEVEL,
        method="percentile",
        rng=np.random.default_rng(SEED),
    )
    low, high = resampled.confidence_interval
    return _interval_entry(low, high, RESAMPLES, len(scores))


def _percentile_interval(values: np.ndarray, num_units: int) -> dict | None:
    """The interval of a statistic's resampled values; None where most are NaN."""
    finite = values[np.isfinite(values)]
    if len(finite) < max(2, len(values) / 2):
        return None
    low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return _interval_entry(low, high, len(values), num_units)


def _interval_entry(low: float, high: float, num_resamples: int, num_units: int) -> dict:
    return {"low": float(low), "high": float(high), "resamples": num_resamples, "units": num_units}


def resampled_values(statistics: list[Statistic]) -> list[np.ndarray]:
    """Each statistic's values over the same resamples of their units (which they share)."""
    rng = np.random.default_rng(SEED)
    if all(statistic.unit_sums is not None for statistic in statistics):
        return _values_by_sums(statistics, rng)
    num_resamples = RESAMPLES
    if any(statistic.recomputed for statistic in statistics):
        num_resamples = RESAMPLES_DIRECT
    if any(statistic.reads_texts for statistic in statistics):
        num_resamples = RESAMPLES_TEXTS
    num_units = statistics[0].num_units
    parts: list[list[np.ndarray]] = [[] for _ in statistics]
    for size in _sizes(num_resamples, ARRAYS_OF_RANKS * num_units):
        counts = rng.multinomial(num_units, np.full(num_units, 1 / num_units), size=size)
        for part, statistic in zip(parts, statistics, strict=True):
            part.append(statistic.resampled(counts))
    return [np.concatenate(part) for part in parts]


def _values_by_sums(statistics: list[Statistic], rng: np.random.Generator) -> list[np.ndarray]:
    """Units that add the same to every sum are drawn together, weighted by their number: the same distribution.

    The sums are joined in the order of their bytes: which statistic comes first does not change what is drawn.
    """
    joint_sums = np.hstack(sorted((statistic.unit_sums for statistic in statistics), key=np.ndarray.tobytes))
    _, unit_of_kind, num_of_kind = np.unique(joint_sums, axis=0, return_index=True, return_counts=True)
    num_units = num_of_kind.sum()
    parts: list[list[np.ndarray]] = [[] for _ in statistics]
    for size in _sizes(RESAMPLES, len(num_of_kind)):
        counts = rng.multinomial(num_units, num_of_kind / num_units, size=size)
        for part, statistic in zip(parts, statistics, strict=True):
            part.append(statistic.combine(counts @ statistic.unit_sums[unit_of_kind]))
    return [np.concatenate(part) for part in parts]


def _sizes(num_resamples: int, num_kinds: int) -> Iterator[int]:
    """How many resamples are drawn at once, as often as it takes."""
    at_once = max(1, MOST_CELLS // num_kinds)
    for start in range(0, num_resamples, at_once):
        yield min(at_once, num_resamples - start)


def paired_bootstrap(a: Statistic, b: Statistic) -> dict | None:
    """The difference b - a in points with its interval, two-sided p and `smallest_p`; None where it is not defined.

    `smallest_p` is the least that p can be with so many resamples. The two are over the same units, in the same order.
    """
    assert a.num_units == b.num_units, f"{a.num_units} and {b.num_units} units: not the same rows"
    difference = b.value() - a.value()
    if a.num_units < 2 or not math.isfinite(difference):
        return None
    values_of_a, values_of_b = resampled_values([a, b])
    differences = values_of_b - values_of_a
    differences[np.abs(differences) < ROUNDING] = 0.0
    interval = _percentile_interval(differences, a.num_units)
    if interval is None:
        return None
    finite = differences[np.isfinite(differences)]
    num_rarer = min((finite <= 0).sum(), (finite >= 0).sum())
    p = _two_sided_p(num_rarer, len(finite))
    return {"difference": float(difference), "p": p, "smallest_p": _two_sided_p(0, len(finite)), **interval}


def _two_sided_p(num_rarer: int, num_resamples: int) -> float:
    """Twice the share of resamples on the rarer side of zero; the difference itself counts as one of them."""
    return float(min(1.0, 2 * (1 + num_rarer) / (1 + num_resamples)))


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided p-value; null hypothesis: a row that only one has right is equally likely to be either's.

    >>> mcnemar(0, 0), mcnemar(5, 0)
    (1.0, 0.0625)
    """
    from scipy.stats import binomtest

    num_differing = only_a + only_b
    if not num_differing:
        return 1.0
    test = binomtest(only_a, num_differing, 0.5)
    return float(test.pvalue)
