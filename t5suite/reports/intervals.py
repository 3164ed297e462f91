"""Bootstrap intervals, and tests of two systems on the same rows.

>>> statistic = statistic_of("accuracy", accuracy, judged, num_classes=2)
>>> statistic.value()                                     # all rows once: the metric itself
66.66666666666667
>>> statistic.resampled(np.array([[1, 1, 1], [3, 0, 0]]))  # how often each unit is drawn, one line a resample
array([ 66.66666667, 100.        ])
>>> interval_over_values([61.0, 63.0, 66.0])["low"], mcnemar(only_a=3, only_b=12)
(61.0, 0.03515625)

A unit is what is drawn with replacement: a row, or all rows of a group (MultiRC's questions) where the metric has
groups, for their rows do not vary alone. Most metrics are a function of sums over units (accuracy: right ones; F1: true
and false positives and false negatives; Pearson: moments); rank correlations and corpus-level text metrics are computed
anew on every resample. A statistic whose value is not the metric's own is never used: `statistic_of` checks.

Percentile bootstrap (Efron and Tibshirani 1993, chapters 13 and 15; of two systems: Koehn 2004, aclanthology.org/
W04-3250), 95 %, from a generator of a fixed seed. McNemar's exact test asks whether the rows that only one of the two
has right fall evenly (Fagerland et al. 2013, doi:10.1186/1471-2288-13-91).
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from t5suite.tasks.postprocessors import Judged

INVALID = -1


class Statistic(NamedTuple):
    """A metric over units that can be drawn any number of times.

    Attributes:
      units: [U, k] what each unit adds to the sums; None where the metric is no function of sums.
      combine: sums [B, k] -> points [B].
      direct: counts [U] -> points, where there are no sums.
      slow: it reads texts each time.
    """

    num_units: int
    units: np.ndarray | None
    combine: Callable | None
    direct: Callable | None = None
    slow: bool = False

    def value(self) -> float:
        """The metric of every unit once."""
        return float(self.resampled(np.ones((1, self.num_units), dtype=np.int64))[0])

    def resampled(self, counts_BU: np.ndarray) -> np.ndarray:
        """The metric of each resample."""
        if self.units is None:
            return np.array([self.direct(counts) for counts in counts_BU])
        return self.combine(counts_BU @ self.units)


def statistic_of(name: str, function: Callable, judged: Judged, num_classes: int | None) -> Statistic:
    """The metric `function` over these predictions, by sums where it is one of SUMS and comes out the same."""
    judged = Judged(list(judged.predictions), list(judged.references), judged.groups and list(judged.groups))
    units = units_of(judged)
    slow = bool(judged.predictions) and isinstance(judged.predictions[0], str)
    direct = Statistic(len(units), None, None, direct_of(function, judged, units, num_classes), slow)
    maker = SUMS.get(function.__name__)
    if maker is None:
        return direct
    by_prediction, combine = maker(judged, num_classes, function)
    summed = np.zeros((len(units), by_prediction.shape[1]))
    for at, members in enumerate(units):
        summed[at] = by_prediction[members].sum(axis=0)
    if function.__name__ == "grouped_exact_match":
        summed = np.stack([summed[:, 0] == summed[:, 1], np.ones(len(units))], axis=1).astype(float)
    found = Statistic(len(units), summed, combine)
    whole = function(judged.predictions, judged.references, groups=judged.groups, num_classes=num_classes)
    value = found.value()
    agrees = (math.isnan(value) and math.isnan(whole)) or abs(value - whole) < 1e-6
    return found if agrees else direct


def units_of(judged: Judged) -> list[list[int]]:
    """The predictions of each unit: one a row, or those of each group in the order of its first."""
    if judged.groups is None:
        return [[i] for i in range(len(judged.predictions))]
    members: dict = {}
    for i, group in enumerate(judged.groups):
        members.setdefault(group, []).append(i)
    return list(members.values())


def direct_of(function, judged: Judged, units: list[list[int]], num_classes) -> Callable:
    """counts -> the metric of the rows drawn; a unit that is drawn twice is two groups."""

    def direct(counts) -> float:
        chosen = [(at, copy) for at, count in enumerate(counts) for copy in range(int(count))]
        places = [(i, (at, copy)) for at, copy in chosen for i in units[at]]
        return function(
            [judged.predictions[i] for i, _ in places],
            [judged.references[i] for i, _ in places],
            groups=None if judged.groups is None else [group for _, group in places],
            num_classes=num_classes,
        )

    return direct


def _mean(judged, num_classes, function):
    """Metrics that are a mean of rows: each row's own score, and 1."""
    rows = [
        function([p], [r], groups=["-"], num_classes=num_classes) / 100
        for p, r in zip(judged.predictions, judged.references)
    ]
    return np.array([[value, 1.0] for value in rows]), lambda sums: 100 * _ratio(sums[:, 0], sums[:, 1])


def _right(judged, num_classes, function):
    right = [_is_right(p, r) for p, r in zip(judged.predictions, judged.references)]
    return np.array([[float(value), 1.0] for value in right]), lambda sums: 100 * _ratio(sums[:, 0], sums[:, 1])


def _is_right(prediction, reference) -> bool:
    return prediction in reference if isinstance(reference, (list, tuple)) else bool(prediction == reference)


def _binary(judged, num_classes, function):
    """True positives, false positives, false negatives of class 1; an invalid prediction is the wrong class."""
    if num_classes != 2:
        return _macro(judged, num_classes, function)
    pairs = [(p if p in (0, 1) else 1 - r, r) for p, r in zip(judged.predictions, judged.references)]
    units = np.array([[p == 1 and r == 1, p == 1 and r == 0, p == 0 and r == 1] for p, r in pairs], dtype=float)
    return units, lambda sums: 100 * _f1(sums[:, 0], sums[:, 1], sums[:, 2])


def _macro(judged, num_classes, function):
    """The same for every class, whose F1 are averaged."""
    classes = 3 if function.__name__ == "mean_3class_f1" else num_classes or 1
    units = np.array(
        [
            [part for c in range(classes) for part in (p == c and r == c, p == c and r != c, p != c and r == c)]
            for p, r in zip(judged.predictions, judged.references)
        ],
        dtype=float,
    )
    combine = lambda sums: 100 * np.mean([_f1(*sums[:, 3 * c : 3 * c + 3].T) for c in range(classes)], axis=0)
    return units, combine


def _matthews(judged, num_classes, function):
    """The confusion matrix, in which invalid predictions are a class of their own (Gorodkin 2004, equation 8)."""
    classes = sorted({*judged.predictions, *judged.references})
    K = len(classes)
    units = np.zeros((len(judged.predictions), K * K))
    for i, (p, r) in enumerate(zip(judged.predictions, judged.references)):
        units[i, classes.index(r) * K + classes.index(p)] = 1

    def combine(sums):
        table = sums.reshape(-1, K, K)
        total, right = table.sum((1, 2)), np.trace(table, axis1=1, axis2=2)
        true, predicted = table.sum(2), table.sum(1)
        over = right * total - (true * predicted).sum(1)
        under = np.sqrt((total**2 - (predicted**2).sum(1)) * (total**2 - (true**2).sum(1)))
        return 100 * _ratio(over, under, empty=0.0)

    return units, combine


def _pearson(judged, num_classes, function):
    """Moments of both sides, each around its mean so that nothing cancels."""
    x, y = np.array(judged.predictions, float), np.array(judged.references, float)
    x, y = x - x.mean(), y - y.mean()
    units = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1)

    def combine(sums):
        n, sx, sy, sxx, syy, sxy = sums.T
        vx, vy = sxx - sx * sx / n, syy - sy * sy / n
        flat = (vx <= 1e-12 * np.maximum(sxx, 1e-300)) | (vy <= 1e-12 * np.maximum(syy, 1e-300))
        with np.errstate(all="ignore"):
            return np.where(flat, np.nan, 100 * (sxy - sx * sy / n) / np.sqrt(vx * vy))

    return units, combine


def _f1(true_positive, false_positive, false_negative):
    return _ratio(2 * true_positive, 2 * true_positive + false_positive + false_negative, empty=0.0)


def _ratio(over, under, empty=math.nan):
    with np.errstate(all="ignore"):
        return np.where(under > 0, over / np.where(under > 0, under, 1), empty)


# A metric's function -> what makes (what each prediction adds, sums -> points) of it.
SUMS = {
    "accuracy": _right,
    "exact_match": _right,
    "grouped_exact_match": _right,
    "f1": _binary,
    "f1_macro": _macro,
    "mean_3class_f1": _macro,
    "matthews_correlation": _matthews,
    "pearson": _pearson,
    "squad_f1": _mean,
    "squad_exact_match": _mean,
    "rouge1": _mean,
    "rouge2": _mean,
    "rouge_l": _mean,
    "rouge_l_sum": _mean,
    "instruction_rouge_l": _mean,
    "instruction_exact_match": _mean,
}
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


def paired_bootstrap(a: Statistic, b: Statistic) -> dict | None:
    """The difference b - a in points with its interval and p; None with fewer than two units, or where it is no number.

    The two are over the same units, in the same order.
    """
    if a.num_units != b.num_units:
        raise AssertionError(f"{a.num_units} and {b.num_units} units: the two are not over the same rows")
    difference = b.value() - a.value()
    if a.num_units < 2 or not math.isfinite(difference):
        return None
    of_a, of_b = resampled_values([a, b])
    drawn = of_b - of_a
    drawn = drawn[np.isfinite(drawn)]
    if len(drawn) < len(of_a) / 2:
        return None
    # Sums over the same rows in another order differ in their last bits, which are no difference.
    drawn[np.abs(drawn) < 1e-9] = 0.0
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    below, above = int((drawn <= 0).sum()), int((drawn >= 0).sum())
    p = min(1.0, 2 * (1 + min(below, above)) / (1 + len(drawn)))
    return {
        "difference": float(difference),
        "low": float(low),
        "high": float(high),
        "p": float(p),
        "resamples": len(of_a),
        "units": a.num_units,
    }


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided p that rows which one of the two has right belong to either with the same chance.

    >>> mcnemar(0, 0), mcnemar(5, 0)
    (1.0, 0.0625)
    """
    from scipy.stats import binomtest

    if only_a + only_b == 0:
        return 1.0
    return float(binomtest(only_a, only_a + only_b, 0.5).pvalue)


def right_units(statistic: Statistic) -> np.ndarray | None:
    """Whether each unit is right, for metrics that are a share of right ones; None for others.

    A unit of several rows (accuracy over MultiRC's questions) is no single right or wrong.
    """
    if statistic.units is None or statistic.units.shape[1] != 2 or not (statistic.units[:, 1] == 1).all():
        return None
    values = statistic.units[:, 0]
    return values == 1 if np.isin(values, (0, 1)).all() else None
