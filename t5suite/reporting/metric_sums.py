"""Metrics as functions of sums over rows, so that thousands of resamples cost a matrix product.

>>> statistic = statistic_of("accuracy", accuracy, judged, num_classes=2)
>>> statistic.value()                                     # all rows once: the metric itself
66.66666666666667
>>> statistic.resampled(np.array([[1, 1, 1], [3, 0, 0]]))  # how often each unit is drawn, one line a resample
array([ 66.66666667, 100.        ])

A unit is what is drawn with replacement: a row, or all rows of a group (MultiRC's questions) where the metric has
groups, for their rows do not vary alone. Most metrics are a function of sums over units (accuracy: right ones; F1: true
and false positives and false negatives; Pearson: moments); rank correlations and corpus-level text metrics are computed
anew on every resample. A statistic whose value is not the metric's own is never used: `statistic_of` checks.
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
