"""Bootstrap intervals, and tests of two systems on the same rows.

>>> statistic = statistic_of(accuracy, judged, num_classes=2)
>>> statistic.value()                                     # all rows once: the metric itself
66.66666666666667
>>> statistic.resampled(np.array([[1, 1, 1], [3, 0, 0]]))  # how often each unit is drawn, one line a resample
array([ 66.66666667, 100.        ])
>>> interval_over_values([61.0, 63.0, 66.0])["low"], mcnemar(only_a=3, only_b=12)
(61.0, 0.03515625)

A unit is what is drawn with replacement: a row, or all rows of a group (MultiRC's questions) if the metric has
groups, because their rows do not vary independently. Most metrics are a function of sums over units (of the units' own
scores, or of counts by class); correlations and corpus-level text metrics are recomputed on every resample.

Percentile bootstrap (Efron and Tibshirani 1993, chapters 13 and 15; of two systems: Koehn 2004, aclanthology.org/
W04-3250), 95 %, from a generator of a fixed seed. McNemar's exact test asks whether the rows that only one of the two
has right are split evenly (Fagerland et al. 2013, doi:10.1186/1471-2288-13-91).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from t5suite.tasks.postprocessors import Judged

LEVEL = 0.95
SEED = 0
RESAMPLES = 10_000
# Metrics that are recomputed on every resample have fewer of them; those of texts (BLEU, chrF) the fewest.
RESAMPLES_DIRECT, RESAMPLES_TEXTS = 500, 100
MOST_CELLS = 4_000_000


class Statistic(NamedTuple):
    """A metric over units that can be drawn any number of times.

    Attributes:
      units: [U, k] what each unit adds to the sums; None if the metric is not a function of sums.
      combine: sums [B, k] -> points [B]; without units: counts [U] -> points.
      slow: the metric reads texts each time.
    """

    num_units: int
    units: np.ndarray | None
    combine: Callable
    slow: bool = False

    def value(self) -> float:
        """The metric of every unit once."""
        return float(self.resampled(np.ones((1, self.num_units), dtype=np.int64))[0])

    def resampled(self, counts_BU: np.ndarray) -> np.ndarray:
        """The metric of each resample."""
        if self.units is None:
            return np.array([self.combine(counts) for counts in counts_BU])
        return self.combine(counts_BU @ self.units)


def statistic_of(function: Callable, judged: Judged, num_classes: int | None) -> Statistic:
    """The metric `function` over these predictions: by sums where it is one of SUMS."""
    predictions, references = list(judged.predictions), list(judged.references)
    units = units_of(judged)

    def direct(counts) -> float:
        """The metric of the rows drawn; a unit that is drawn twice is two groups."""
        drawn = [(i, (at, copy)) for at, n in enumerate(counts) for copy in range(int(n)) for i in units[at]]
        groups = None if judged.groups is None else [group for _, group in drawn]
        chosen = [predictions[i] for i, _ in drawn], [references[i] for i, _ in drawn]
        return function(*chosen, groups=groups, num_classes=num_classes)

    if function.__name__ in SUMS:
        return Statistic(len(units), *SUMS[function.__name__](judged, units, num_classes, function))
    return Statistic(len(units), None, direct, bool(predictions) and isinstance(predictions[0], str))


def units_of(judged: Judged) -> list[list[int]]:
    """The predictions of each unit: one per row, or those of each group, in the order of its first."""
    members: dict = {}
    for i, group in enumerate(range(len(judged.predictions)) if judged.groups is None else judged.groups):
        members.setdefault(group, []).append(i)
    return list(members.values())


def _mean(judged: Judged, units, num_classes, function):
    """Metrics that are a mean over rows (or, by groups, over groups): each unit's own score, weighted."""
    sums = []
    for members in units:
        weight = 1 if function.__name__ == "grouped_exact_match" else len(members)
        own = [judged.predictions[i] for i in members], [judged.references[i] for i in members]
        sums.append([weight * function(*own, groups=["-"] * len(members), num_classes=num_classes) / 100, weight])
    return np.array(sums, dtype=float), lambda sums: 100 * _ratio(sums[:, 0], sums[:, 1], math.nan)


def _by_class(judged: Judged, units, num_classes, function):
    """F1 and Matthews (Gorodkin 2004, equation 8): how often each class is predicted rightly, predicted, and true.

    An invalid prediction is the wrong class for a binary F1, no class for F1 of several, and an extra one for Matthews.
    """
    predictions, references = np.array(judged.predictions), np.array(judged.references)
    matthews, binary = function.__name__ == "matthews_correlation", function.__name__ == "f1" and num_classes == 2
    if binary:
        predictions = np.where(np.isin(predictions, (0, 1)), predictions, 1 - references)
    count = 3 if function.__name__ == "mean_3class_f1" else num_classes or 1
    classes = np.unique(np.concatenate([predictions, references])) if matthews else np.arange(count)
    predicted, true = predictions[:, None] == classes, references[:, None] == classes
    by_row = np.hstack([predicted & true, predicted, true]).astype(float)

    def combine(sums):
        right, predicted, true = np.split(sums, 3, axis=1)
        if matthews:
            total = true.sum(1)
            over = right.sum(1) * total - (predicted * true).sum(1)
            under = np.sqrt((total**2 - (predicted**2).sum(1)) * (total**2 - (true**2).sum(1)))
            return 100 * _ratio(over, under, 0.0)
        scores = _ratio(2 * right, predicted + true, 0.0)
        return 100 * (scores[:, 1] if binary else scores.mean(1))

    return np.stack([by_row[members].sum(axis=0) for members in units]), combine


def _ratio(over, under, empty: float):
    return np.where(under > 0, over / np.where(under > 0, under, 1), empty)


# A metric's function -> (judged, units, num_classes, function) -> (what each unit adds, sums -> points).
SUMS = {
    **dict.fromkeys(("f1", "f1_macro", "mean_3class_f1", "matthews_correlation"), _by_class),
    **dict.fromkeys(("accuracy", "grouped_exact_match", "squad_f1", "squad_exact_match"), _mean),
    **dict.fromkeys(("rouge1", "rouge2", "rougeL", "rougeLsum"), _mean),
    **dict.fromkeys(("instruction_rouge_l", "instruction_exact_match", "json_match"), _mean),
}


def interval_over_rows(statistic: Statistic) -> dict | None:
    """`{"low", "high", "resamples", "units"}`; None with fewer than two units, or where most resamples are NaN."""
    return None if statistic.num_units < 2 else _interval(resampled_values([statistic])[0], statistic.num_units)


def interval_over_values(values) -> dict | None:
    """The interval of the mean of some runs' scores; None for fewer than two, or where one is NaN or None."""
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

    Units that add the same to every sum are drawn together, weighted by their number: the same distribution.
    """
    rng = np.random.default_rng(SEED)
    if any(statistic.units is None for statistic in statistics):
        size = RESAMPLES_TEXTS if any(statistic.slow for statistic in statistics) else RESAMPLES_DIRECT
        units = statistics[0].num_units
        counts = rng.multinomial(units, np.full(units, 1 / units), size=size)
        return [statistic.resampled(counts) for statistic in statistics]
    together = np.hstack([statistic.units for statistic in statistics])
    kinds, how_many = np.unique(together, axis=0, return_counts=True)
    widths = np.cumsum([statistic.units.shape[1] for statistic in statistics])[:-1]
    parts: list[list] = [[] for _ in statistics]
    at_once = max(1, MOST_CELLS // len(kinds))
    for start in range(0, RESAMPLES, at_once):
        size = min(at_once, RESAMPLES - start)
        sums = rng.multinomial(how_many.sum(), how_many / how_many.sum(), size=size) @ kinds
        for part, statistic, own in zip(parts, statistics, np.split(sums, widths, axis=1)):
            part.append(statistic.combine(own))
    return [np.concatenate(part) for part in parts]


def paired_bootstrap(a: Statistic, b: Statistic) -> dict | None:
    """The difference b - a in points with its interval and two-sided p; None where it is not defined.

    The two are over the same units, in the same order.
    """
    assert a.num_units == b.num_units, f"{a.num_units} and {b.num_units} units: not the same rows"
    difference = b.value() - a.value()
    if a.num_units < 2 or not math.isfinite(difference):
        return None
    of_a, of_b = resampled_values([a, b])
    drawn = of_b - of_a
    # Sums over the same rows in another order differ in their last bits, which does not count as a difference.
    drawn[np.abs(drawn) < 1e-9] = 0.0
    interval = _interval(drawn, a.num_units)
    if interval is None:
        return None
    drawn = drawn[np.isfinite(drawn)]
    p = min(1.0, 2 * (1 + min((drawn <= 0).sum(), (drawn >= 0).sum())) / (1 + len(drawn)))
    return {"difference": float(difference), "p": float(p), **interval}


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided p-value; null hypothesis: a row that only one has right is equally likely to be either's.

    >>> mcnemar(0, 0), mcnemar(5, 0)
    (1.0, 0.0625)
    """
    from scipy.stats import binomtest

    return float(binomtest(only_a, only_a + only_b, 0.5).pvalue) if only_a + only_b else 1.0


def right_units(statistic: Statistic) -> np.ndarray | None:
    """Whether each unit is right, for metrics that are a share of right ones; None for others.

    A unit of several rows (accuracy over MultiRC's questions) is not simply right or wrong.
    """
    if statistic.units is None or statistic.units.shape[1] != 2 or not (statistic.units[:, 1] == 1).all():
        return None
    values = statistic.units[:, 0]
    return values == 1 if np.isin(values, (0, 1)).all() else None
