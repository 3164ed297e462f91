"""What an evaluation found, split by split, and the one number of it that selects checkpoints.

    >>> report = evaluator.evaluate(model, eval_sets)
    >>> report.results["mnli_matched"].metrics, report.selection
    ({'accuracy': 84.2, 'invalid_rate': 0.0}, 84.35)

The selection is the mean over tasks, each counting with its own metric (`task_values`).
"""

import math
import sys
from dataclasses import dataclass, field

from t5suite.training.eval_sets import EvalSet


@dataclass
class Result:
    """What an evaluation of one split found."""

    name: str
    metrics: dict[str, float]
    predictions: list[str]
    num_rows: int
    seconds: float
    loss: float | None
    truncated: int
    method: str
    marks: list[str]
    labelled: bool
    samples: list[dict] = field(default_factory=list)

    @property
    def scores(self) -> dict[str, float]:
        """The metrics, and the rates that say what is behind them."""
        return dict(self.metrics)


@dataclass
class Report:
    """The results of all splits, and the number that selects checkpoints."""

    results: dict[str, Result]
    selection: float
    by_task: dict[str, float]


def task_values(eval_sets: list[EvalSet], results: dict[str, Result], selection_metric: str | None) -> dict[str, float]:
    """Each task's one number, more being better; a task of several splits (MNLI) counts with their mean."""
    values: dict[str, list[float]] = {}
    for eval_set in eval_sets:
        result = results[eval_set.name]
        if not eval_set.selects or not result.labelled:
            continue
        if selection_metric == "loss" or set(result.metrics) == {"loss"}:
            value = -result.loss if result.loss is not None else math.nan
        elif result.metrics:
            value = eval_set.optimised(result.metrics)
        else:
            continue
        values.setdefault(eval_set.task.name, []).append(value)
    return {name: sum(parts) / len(parts) for name, parts in values.items()}


def selection_value(value: float) -> float:
    """NaN counts as worst: the smallest number that JSON can hold.

    >>> selection_value(float("nan")) < -1e300
    True
    """
    return -sys.float_info.max if math.isnan(value) else value
