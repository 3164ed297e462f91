"""A run's averages: the mean over its tasks, each of which counts once, however many metrics and splits it has.

>>> cola = SplitFigure("cola", load_task("glue", "cola"), "validation", 60.0)
>>> rte = SplitFigure("rte", load_task("glue", "rte"), "validation", 70.0)
>>> averages_of([cola, rte], "glue", ["cola", "rte"], published=False)
{'average': 65.0}

A run that is finished and `t5suite verify` compute them here.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from t5suite.constants import MIXTURES, OWN_BENCHMARK
from t5suite.reports.finished_runs import RATES
from t5suite.tasks.entry_metrics import tasks_in_points
from t5suite.tasks.registry import Task

# What is no score of answers.
NO_SCORES = (*RATES, "loss")


class SplitFigure(NamedTuple):
    """A split of a task, and its one number.

    Attributes:
      name: as results name it (`mnli_matched`, `rte.test`).
      role: 'validation' or 'test'.
      figure: points; NaN: not defined; None: the split has no scores.
    """

    name: str
    task: Task
    role: str
    figure: float | None


def figure_of(metrics: Mapping[str, float], optimised: Callable[[Mapping[str, float]], float]) -> float | None:
    """The one number of a split's metrics; None if none of them is a score.

    Args:
      optimised: makes the number, as `Task.optimised`.
    """
    if all(name in NO_SCORES for name in metrics):
        return None
    return optimised(metrics)


def averages_of(
    splits: Sequence[SplitFigure],
    benchmark: str,
    average_over: Sequence[str],
    published: bool,
    with_errors: bool = False,
) -> dict[str, float]:
    """The mean over several tasks by its name, which says if some are missing; nothing for one task.

    Args:
      average_over: the tasks' names. Test splits count only if nothing else was scored.
      published: the average is the benchmark's own and has its name, if no task is missing.
      with_errors: errors in the targets' unit count beside points, as in earlier versions.
    """
    figure_of_task = _mean_of_splits(splits)
    entry_of_task = {split.task.name: split.task.entry for split in splits}
    names = [task for task in average_over if task in figure_of_task]
    if not with_errors:
        names = tasks_in_points({task: entry_of_task[task] for task in names})
    figures = [figure_of_task[task] for task in names]
    if len(average_over) < 2 or not figures:
        return {}
    if len(figures) < len(average_over):
        name = f"{benchmark} ({len(figures)} of {len(average_over)} tasks)"
    elif published:
        name = benchmark
    else:
        name = "average"
    return {name: sum(figures) / len(figures)}


def _mean_of_splits(splits: Sequence[SplitFigure]) -> dict[str, float]:
    """Each task's one number, the mean over its splits, without tasks of which a split has no score."""
    counted = [split for split in splits if not split.name.endswith(".test")] or splits
    num_splits = {split.task.name: len(split.task.splits(split.role)) for split in counted}
    figures_of_task: dict[str, list[float]] = {}
    for split in counted:
        if split.figure is not None:
            figures_of_task.setdefault(split.task.name, []).append(split.figure)
    means = {}
    for task, figures in figures_of_task.items():
        if len(figures) == num_splits[task]:
            means[task] = sum(figures) / len(figures)
    return means


def averaged_tasks(benchmark: str, dataset_name: str, entries: Mapping[str, Mapping]) -> tuple[list[str], bool]:
    """`(the tasks that a run averages over, whether the average is the benchmark's published one)`.

    >>> averaged_tasks("glue", "cola,rte", {"cola": {...}, "rte": {...}})
    (['cola', 'rte'], False)

    Args:
      dataset_name: the run's mixture, or its tasks with commas.
      entries: those of the run's tasks.
    """
    mixture = MIXTURES.get(benchmark, {}).get(dataset_name)
    if mixture is not None:
        return list(mixture["average"]), True
    names = [name.strip() for name in dataset_name.split(",")]
    if benchmark == OWN_BENCHMARK:
        names = [name for name in names if entries.get(name, {}).get("metric_names")]
    return names, False
