"""Metrics over rows that are drawn any number of times, as a bootstrap needs them.

>>> statistic = statistic_of(accuracy, judged, num_classes=2)
>>> statistic.value()                                     # all rows once: the metric itself
66.66666666666667
>>> statistic.resampled(np.array([[1, 1, 1], [3, 0, 0]]))  # how often each unit is drawn, one line a resample
array([ 66.66666667, 100.        ])

A unit is what is drawn with replacement: a row, or all rows of a group (MultiRC's questions) if the metric has
groups, because their rows do not vary independently. Most metrics are a function of sums over units (of the units' own
scores, or of counts by class), and rank correlations one of the counts; corpus-level text metrics, and those of your
own, are recomputed on every resample.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from t5suite.tasks.metrics import SHIPPED_METRICS, label_set
from t5suite.tasks.postprocessors import Judged

# Numbers whose squared distances from their mean are a smaller part of their squares differ by rounding alone.
CONSTANT = 1e-12


class Statistic(NamedTuple):
    """A metric over units that can be drawn any number of times.

    Attributes:
      unit_sums: [U, k] what each unit adds to the sums; None if the metric is not a function of sums.
      combine: sums [B, k] -> points [B]; without sums: counts [B, U] -> points [B].
      recomputed: whether the metric is computed anew for each resample, which is slow.
      reads_texts: whether it reads texts then, which is slower.
      is_share: whether it is a share of right answers.
    """

    num_units: int
    unit_sums: np.ndarray | None
    combine: Callable
    recomputed: bool = False
    reads_texts: bool = False
    is_share: bool = False

    def value(self) -> float:
        """The metric of every unit once."""
        return float(self.resampled(np.ones((1, self.num_units), dtype=np.int64))[0])

    def resampled(self, counts_BU: np.ndarray) -> np.ndarray:
        """The metric of each resample."""
        if self.unit_sums is None:
            return self.combine(counts_BU)
        return self.combine(counts_BU @ self.unit_sums)


def statistic_of(function: Callable, judged: Judged, num_classes: int | None) -> Statistic:
    """The metric `function` over these predictions: by sums where it is one of SUMS."""
    name = shipped_name(function)
    units = units_of(judged)
    has_classes = num_classes is not None or name not in SUMS_OF_KNOWN_CLASSES
    if name in SUMS and has_classes:
        unit_sums, combine = SUMS[name](function, judged, units, num_classes)
        return Statistic(len(units), unit_sums, combine, is_share=name in SHARES)
    if name in OF_COUNTS:
        return Statistic(len(units), None, OF_COUNTS[name](judged, units))
    predictions = list(judged.predictions)
    references = list(judged.references)

    def metric_of_drawn(counts) -> float:
        """The metric of the rows drawn; a unit that is drawn twice is two groups."""
        rows = []
        groups = []
        for unit, count in enumerate(counts):
            for copy in range(int(count)):
                rows += units[unit]
                groups += [(unit, copy)] * len(units[unit])
        if judged.groups is None:
            groups = None
        return function(
            [predictions[row] for row in rows],
            [references[row] for row in rows],
            groups=groups,
            num_classes=num_classes,
        )

    def metric_of_each(counts_BU: np.ndarray) -> np.ndarray:
        return np.array([metric_of_drawn(counts) for counts in counts_BU])

    has_texts = bool(predictions) and isinstance(predictions[0], str)
    return Statistic(len(units), None, metric_of_each, recomputed=True, reads_texts=has_texts)


def shipped_name(function: Callable) -> str | None:
    """The name of a shipped metric's function; None for a function of the user's, whatever it is called."""
    if any(function is shipped for shipped in SHIPPED_METRICS.values()):
        return function.__name__
    return None


class Ranked(NamedTuple):
    """Some rows' values in ascending order.

    Attributes:
      order: [R] the rows, the smallest value first.
      starts: [G] where each distinct value begins in this order.
      distinct: [R] the number of each row's value among the distinct ones.
    """

    order: np.ndarray
    starts: np.ndarray
    distinct: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> "Ranked":
        _, distinct, sizes = np.unique(values, return_inverse=True, return_counts=True)
        return cls(np.argsort(distinct, kind="stable"), sizes.cumsum() - sizes, distinct)

    def centred(self, counts_BR: np.ndarray) -> np.ndarray:
        """Each row's rank among the rows drawn, equal ones sharing the mean of theirs, minus the mean of all ranks."""
        counts_BG = np.add.reduceat(counts_BR[:, self.order], self.starts, axis=1)
        ends_BG = counts_BG.cumsum(axis=1)
        ranks_BG = ends_BG - (counts_BG - 1) / 2
        mean_B1 = (ends_BG[:, -1:] + 1) / 2
        return (ranks_BG - mean_B1)[:, self.distinct]


class RankCorrelation(NamedTuple):
    """Spearman's correlation of the rows drawn: Pearson's of their ranks."""

    predictions: Ranked
    references: Ranked
    unit_of_row: np.ndarray
    is_finite: bool

    @classmethod
    def of(cls, judged: Judged, units: list[list[int]]) -> "RankCorrelation":
        predictions, references = _two_sides(judged)
        unit_of_row = np.empty(len(predictions), dtype=np.int64)
        for unit, rows in enumerate(units):
            unit_of_row[rows] = unit
        is_finite = bool(np.isfinite(predictions).all() and np.isfinite(references).all())
        return cls(Ranked.of(predictions), Ranked.of(references), unit_of_row, is_finite)

    def __call__(self, counts_BU: np.ndarray) -> np.ndarray:
        """The points of each resample; NaN where all ranks of one side are equal, and where a value is not finite."""
        if not self.is_finite:
            return np.full(len(counts_BU), math.nan)
        counts_BR = counts_BU[:, self.unit_of_row]
        predicted = self.predictions.centred(counts_BR)
        true = self.references.centred(counts_BR)
        covariance = (counts_BR * predicted * true).sum(axis=1)
        spread = (counts_BR * predicted**2).sum(axis=1) * (counts_BR * true**2).sum(axis=1)
        return 100 * _ratio(covariance, np.sqrt(spread), math.nan)


def _two_sides(judged: Judged) -> tuple[np.ndarray, np.ndarray]:
    """Predictions and references as numbers."""
    return np.array(judged.predictions, dtype=float), np.array(judged.references, dtype=float)


def units_of(judged: Judged) -> list[list[int]]:
    """The predictions of each unit: one per row, or those of each group, in the order of its first."""
    if judged.groups is None:
        return [[row] for row in range(len(judged.predictions))]
    rows_of_group: dict = {}
    for row, group in enumerate(judged.groups):
        rows_of_group.setdefault(group, []).append(row)
    return list(rows_of_group.values())


def right_units(statistic: Statistic) -> np.ndarray | None:
    """Whether each unit is right, for metrics that are a share of right ones; None for others.

    A unit of several rows (accuracy over MultiRC's questions) is not simply right or wrong.
    """
    if not statistic.is_share:
        return None
    scores, weights = statistic.unit_sums.T
    if (weights != 1).any():
        return None
    return scores == 1


def _mean_sums(function: Callable, judged: Judged, units: list[list[int]], num_classes: int | None):
    """Metrics that are a mean over rows: each unit's own score times its rows, and the number of its rows."""
    return _weighted_scores(function, judged, units, num_classes, [len(rows) for rows in units]), _weighted_mean


def _group_mean_sums(function: Callable, judged: Judged, units: list[list[int]], num_classes: int | None):
    """Metrics that are a mean over groups: each unit's own score, and 1."""
    return _weighted_scores(function, judged, units, num_classes, [1] * len(units)), _weighted_mean


def _weighted_scores(function, judged: Judged, units, num_classes: int | None, weights: list[int]) -> np.ndarray:
    """[U, 2]: weight * score (0 to 1), and weight."""
    unit_sums = []
    for rows, weight in zip(units, weights, strict=True):
        predictions = [judged.predictions[row] for row in rows]
        references = [judged.references[row] for row in rows]
        score = function(predictions, references, groups=["-"] * len(rows), num_classes=num_classes)
        unit_sums.append([weight * score / 100, weight])
    return np.array(unit_sums, dtype=float)


def _weighted_mean(sums_B2: np.ndarray) -> np.ndarray:
    return 100 * _ratio(sums_B2[:, 0], sums_B2[:, 1], math.nan)


def _f1_sums(function: Callable, judged: Judged, units: list[list[int]], num_classes: int):
    """F1 of class 1 for two classes, where an invalid prediction is the wrong class; of more classes, their mean."""
    if num_classes != 2:
        return _macro_f1_sums(function, judged, units, num_classes)
    predictions = np.array(judged.predictions)
    references = np.array(judged.references)
    wrong_if_invalid = np.where(np.isin(predictions, (0, 1)), predictions, 1 - references)
    return _counts_by_class(wrong_if_invalid, references, np.arange(2), units), _f1_of_class_1


def _macro_f1_sums(function: Callable, judged: Judged, units: list[list[int]], num_classes: int):
    """The mean F1 of the task's classes; an invalid prediction is none of them."""
    classes = np.arange(num_classes)
    return _counts_by_class(np.array(judged.predictions), np.array(judged.references), classes, units), _macro_f1


def _mean_3class_f1_sums(function: Callable, judged: Judged, units: list[list[int]], num_classes: int | None):
    """The mean F1 of the classes 0, 1 and 2."""
    return _macro_f1_sums(function, judged, units, num_classes=3)


def _matthews_sums(function: Callable, judged: Judged, units: list[list[int]], num_classes: int | None):
    """Matthews' correlation; an invalid prediction is an extra class."""
    predictions = np.array(judged.predictions)
    references = np.array(judged.references)
    classes = np.unique(np.concatenate([predictions, references]))
    return _counts_by_class(predictions, references, classes, units), _matthews


def _pearson_sums(function: Callable, judged: Judged, units: list[list[int]], num_classes: int | None):
    """Pearson's correlation, by sums of numbers, squares and products around the means of all rows."""
    predictions, references = (side - side.mean() for side in _two_sides(judged))
    ones = np.ones_like(predictions)
    terms = [ones, predictions, references, predictions**2, references**2, predictions * references]
    return _sums_of_units(np.stack(terms, axis=1), units), _pearson


def _counts_by_class(predictions, references, classes, units: list[list[int]]) -> np.ndarray:
    """[U, 3 C]: how often each class is predicted rightly, is predicted, and is true in a unit's rows."""
    predicted = predictions[:, None] == classes
    true = references[:, None] == classes
    by_row = np.hstack([predicted & true, predicted, true]).astype(float)
    return _sums_of_units(by_row, units)


def _micro_f1_of_sets_sums(function: Callable, judged: Judged, units: list[list[int]], num_classes: int | None):
    """F1 of sets of labels, all labels counted together."""
    by_row = [[len(a & b), len(a), len(b)] for a, b in _pairs_of_sets(judged)]
    return _sums_of_units(np.array(by_row, dtype=float), units), _f1_of_class_0


def _macro_f1_of_sets_sums(function: Callable, judged: Judged, units: list[list[int]], num_classes: int | None):
    """The mean F1 of the labels that the references of the rows drawn have; a label of no reference counts nowhere."""
    pairs = _pairs_of_sets(judged)
    labels = sorted(frozenset().union(*(reference for _, reference in pairs)))
    predicted = np.array([[label in prediction for label in labels] for prediction, _ in pairs], dtype=bool)
    true = np.array([[label in reference for label in labels] for _, reference in pairs], dtype=bool)
    by_row = np.hstack([predicted & true, predicted, true]).astype(float)
    return _sums_of_units(by_row, units), _macro_f1_of_true_classes


def _pairs_of_sets(judged: Judged) -> list[tuple[frozenset[str], frozenset[str]]]:
    """Each row's predicted set of labels, and its true one."""
    pairs = zip(judged.predictions, judged.references, strict=True)
    return [(label_set(prediction), label_set(reference)) for prediction, reference in pairs]


def _sums_of_units(by_row: np.ndarray, units: list[list[int]]) -> np.ndarray:
    """[U, k]: what the rows of each unit add together."""
    return np.stack([by_row[rows].sum(axis=0) for rows in units])


def _f1_by_class(sums: np.ndarray) -> np.ndarray:
    right, predicted, true = np.split(sums, 3, axis=1)
    return _ratio(2 * right, predicted + true, 0.0)


def _f1_of_class_0(sums: np.ndarray) -> np.ndarray:
    return 100 * _f1_by_class(sums)[:, 0]


def _f1_of_class_1(sums: np.ndarray) -> np.ndarray:
    return 100 * _f1_by_class(sums)[:, 1]


def _macro_f1(sums: np.ndarray) -> np.ndarray:
    return 100 * _f1_by_class(sums).mean(1)


def _macro_f1_of_true_classes(sums: np.ndarray) -> np.ndarray:
    """The mean over the classes that are true in a row drawn; NaN where none is."""
    is_true = np.split(sums, 3, axis=1)[2] > 0
    total = np.where(is_true, _f1_by_class(sums), 0.0).sum(1)
    return 100 * _ratio(total, is_true.sum(1), math.nan)


def _matthews(sums: np.ndarray) -> np.ndarray:
    """Gorodkin 2004, equation 8."""
    right, predicted, true = np.split(sums, 3, axis=1)
    total = true.sum(1)
    covariance = right.sum(1) * total - (predicted * true).sum(1)
    deviations = np.sqrt((total**2 - (predicted**2).sum(1)) * (total**2 - (true**2).sum(1)))
    return 100 * _ratio(covariance, deviations, 0.0)


def _pearson(sums_B6: np.ndarray) -> np.ndarray:
    """NaN where one side of the rows drawn is constant, but for rounding."""
    count, predicted, true, predicted_squares, true_squares, products = sums_B6.T
    covariance = products - predicted * true / count
    predicted_spread = predicted_squares - predicted**2 / count
    true_spread = true_squares - true**2 / count
    is_constant = (predicted_spread <= CONSTANT * predicted_squares) | (true_spread <= CONSTANT * true_squares)
    spread = np.where(is_constant, 0.0, predicted_spread * true_spread)
    return 100 * _ratio(covariance, np.sqrt(spread), math.nan)


def _ratio(numerator, denominator, empty: float):
    """The quotient; `empty` where the denominator is 0."""
    return np.where(denominator > 0, numerator / np.where(denominator > 0, denominator, 1), empty)


# Metrics that are a share of right answers. ROUGE is none, even where it is 0 or 1 in every row.
SHARES = (
    "accuracy",
    "subset_accuracy",
    "json_match",
    "grouped_exact_match",
    "squad_exact_match",
    "instruction_exact_match",
)
# A metric's function -> (function, judged, units, num_classes) -> (what each unit adds, sums -> points).
SUMS = {
    "f1": _f1_sums,
    "f1_macro": _macro_f1_sums,
    "mean_3class_f1": _mean_3class_f1_sums,
    "matthews_correlation": _matthews_sums,
    "pearson": _pearson_sums,
    "micro_f1": _micro_f1_of_sets_sums,
    "macro_f1": _macro_f1_of_sets_sums,
    **dict.fromkeys(SHARES, _mean_sums),
    "grouped_exact_match": _group_mean_sums,
    **dict.fromkeys(("neg_mean_absolute_error", "squad_f1", "instruction_rouge_l"), _mean_sums),
    **dict.fromkeys(("rouge1", "rouge2", "rougeL", "rougeLsum"), _mean_sums),
}
# A metric's function -> (judged, units) -> (how often each unit is drawn -> points).
OF_COUNTS = {"spearman": RankCorrelation.of}
# Without labels (free text) the classes are the answers among the rows drawn, so these are recomputed.
SUMS_OF_KNOWN_CLASSES = ("f1", "f1_macro")
