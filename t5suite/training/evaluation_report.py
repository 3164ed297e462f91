"""The results of an evaluation, and the one number that selects checkpoints: the mean over tasks of their own metrics.

>>> report = evaluator.evaluate(model, eval_sets)
>>> report.results["mnli_matched"].metrics, report.selection
({'accuracy': 84.2, 'invalid_rate': 0.0}, 84.35)
"""

import math
from dataclasses import dataclass, field

from t5suite.tasks.entry_metrics import is_loss_alone
from t5suite.training.eval_sets import EvalSet


@dataclass
class Result:
    """The result of evaluating one split."""

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


@dataclass
class Report:
    """The results of all splits, and the number that selects checkpoints.

    Attributes:
      selection: the mean over the tasks that choose one checkpoint for all.
      by_task: each task's one number.
      splits_of_only_task: those that make the number of the only task; empty if there are several tasks.
    """

    results: dict[str, Result]
    selection: float
    by_task: dict[str, float]
    splits_of_only_task: list[str] = field(default_factory=list)


def make_report(eval_sets: list[EvalSet], results: dict[str, Result], selection_metric: str | None = None) -> Report:
    """Each task's one number (higher is better) and their mean; a task of several splits (MNLI) has its splits' mean.

    A task that a mixture evaluates beside its average (WNLI) has a number, which does not count in the mean.

    Args:
      selection_metric: 'loss' instead of the tasks' own metrics.
    """
    values: dict[str, list[float]] = {}
    scored_splits = []
    tasks_of_average = set()
    for eval_set in eval_sets:
        result = results[eval_set.name]
        if not (eval_set.is_validation and result.labelled):
            continue
        if selection_metric == "loss" or is_loss_alone(result.metrics):
            value = math.nan if result.loss is None else -result.loss
        elif result.metrics:
            value = eval_set.optimised(result.metrics)
        else:
            continue
        values.setdefault(eval_set.task.name, []).append(value)
        scored_splits.append(eval_set.name)
        if eval_set.counts_in_average:
            tasks_of_average.add(eval_set.task.name)
    by_task = {name: sum(splits) / len(splits) for name, splits in values.items()}
    averaged = {name: value for name, value in by_task.items() if name in tasks_of_average}
    has_one_task = len({eval_set.task.name for eval_set in eval_sets}) == 1
    return Report(results, mean_of_tasks(averaged), by_task, scored_splits if has_one_task else [])


def mean_of_tasks(by_task: dict[str, float]) -> float:
    """The mean over tasks; NaN without any."""
    return sum(by_task.values()) / len(by_task) if by_task else math.nan


def selection_value(value: float) -> float:
    """What is not a finite number counts as worst, and never selects: no number is below minus infinity.

    >>> selection_value(float("nan"))
    -inf
    """
    return value if math.isfinite(value) else -math.inf


def report_metrics(report: Report, prefix: str = "eval") -> dict[str, float]:
    """A report as flat metrics; where all splits are of one task (MNLI), also the mean over those that select.

    >>> report_metrics(report)    # one task
    {'eval/accuracy': 91.2, 'eval/invalid_rate': 0.0, 'eval/loss': 0.31, 'eval/average': 91.2}
    """
    metrics = {}
    for name, result in report.results.items():
        path = f"{prefix}/" if len(report.results) == 1 else f"{prefix}/{name}/"
        metrics |= {path + metric: value for metric, value in result_metrics(result).items()}
    if len(report.results) > 1:
        metrics |= {f"{prefix}/{metric}": value for metric, value in means_over_splits(report).items()}
    is_pre_training = any(result.method == "nll" for result in report.results.values())
    if not is_pre_training:  # which has no tasks
        metrics[f"{prefix}/average"] = report.selection
    return metrics


def result_metrics(result: Result) -> dict[str, float]:
    """A split's metrics, loss, and share of truncated answers in percent."""
    metrics = dict(result.metrics)
    if result.loss is not None:
        metrics["loss"] = result.loss
    if result.method == "generate" and result.predictions:
        metrics["truncated_rate"] = 100 * result.truncated / len(result.predictions)
    return metrics


def means_over_splits(report: Report) -> dict[str, float]:
    """The means of the only task's metrics over the splits that make its number; nothing of several tasks."""
    metrics_of_splits = [report.results[name].metrics for name in report.splits_of_only_task]
    if not metrics_of_splits:
        return {}
    means = {}
    for name in metrics_of_splits[0]:
        means[name] = sum(metrics[name] for metrics in metrics_of_splits) / len(metrics_of_splits)
    return means
