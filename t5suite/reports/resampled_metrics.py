"""Metrics over rows that are drawn any number of times, as a bootstrap needs them.

>>> statistic = statistic_of(accuracy, judged, num_classes=2)
>>> statistic.value()                                     # all rows once: the metric itself
66.66666666666667
>>> statistic.resampled(np.array([[1, 1, 1], [3, 0, 0]]))  # how often each unit is drawn, one line a resample
array([ 66.66666667, 100.        ])

A unit is what is drawn with replacement: a row, or all rows of a group (MultiRC's questions) if the metric has
groups, because their rows do not vary independently. Most metrics are a function of sums over units (of the units' own
scores, or of counts by class); correlations and corpus-level text metrics are recomputed on every resample.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from t5suite.tasks.metrics import label_set
from t5suite.tasks.postprocessors import Judged


class Statistic(NamedTuple):
    """A metric over units that can be drawn any number of times.

    Attributes:
      unit_sums: [U, k] what each unit adds to the sums; None if the metric is not a function of sums.
      combine: sums [B, k] -> points [B]; without sums: counts [U] -> points.
      reads_texts: whether the metric reads texts each time, which is slow.
    """

    num_units: int
    unit_sums: np.ndarray | None
    combine: Callable
    reads_texts: bool = False

    def value(self) -> float:
        """The metric of every unit once."""
        return float(self.resampled(np.ones((1, self.num_units), dtype=np.int64))[0])

    def resampled(self, counts_BU: np.ndarray) -> np.ndarray:
        """The metric of each resample."""
        if self.unit_sums is None:
            return np.array([self.combine(counts) for counts in counts_BU])
        return self.combine(counts_BU @ self.unit_sums)


def statistic_of(function: Callable, judged: Judged, num_classes: int | None) -> Statistic:
    """The metric `function` over these predictions: by sums where it is one of SUMS."""
    units = units_of(judged)
    has_classes = num_classes is not None or function.__name__ not in SUMS_OF_KNOWN_CLASSES
    if function.__name__ in SUMS and has_classes:
        unit_sums, combine = SUMS[function.__name__](function, judged, units, num_classes)
        return Statistic(len(units), unit_sums, combine)
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

    has_texts = bool(predictions) and isinstance(predictions[0], str)
    return Statistic(len(units), None, metric_of_drawn, reads_texts=has_texts)


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
    if statistic.unit_sums is None or statistic.unit_sums.shape[1] != 2:
        return None
    scores, weights = statistic.unit_sums.T
    is_share = (weights == 1).all() and np.isin(scores, (0, 1)).all()
    if not is_share:
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


def _ratio(numerator, denominator, empty: float):
    """The quotient; `empty` where the denominator is 0."""
    return np.where(denominator > 0, numerator / np.where(denominator > 0, denominator, 1), empty)


# A metric's function -> (function, judged, units, num_classes) -> (what each unit adds, sums -> points).
SUMS = {
    "f1": _f1_sums,
    "f1_macro": _macro_f1_sums,
    "mean_3class_f1": _mean_3class_f1_sums,
    "matthews_correlation": _matthews_sums,
    "grouped_exact_match": _group_mean_sums,
    "micro_f1": _micro_f1_of_sets_sums,
    "macro_f1": _macro_f1_of_sets_sums,
    **dict.fromkeys(("accuracy", "subset_accuracy", "squad_f1", "squad_exact_match"), _mean_sums),
    **dict.fromkeys(("rouge1", "rouge2", "rougeL", "rougeLsum"), _mean_sums),
    **dict.fromkeys(("instruction_rouge_l", "instruction_exact_match", "json_match"), _mean_sums),
}
# Without labels (free text) the classes are the answers among the rows drawn, so these are recomputed.
SUMS_OF_KNOWN_CLASSES = ("f1", "f1_macro")
