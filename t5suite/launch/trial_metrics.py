"""What a trial's run directory says of it: the metric that it logs, its last step, its score.

>>> curve = read_curve("runs/sweeps/rte/trials/0003/metrics.jsonl", "eval/accuracy")
>>> curve.points, curve.last_step
([(100, 61.0), (200, 66.8)], 200)
"""

import contextlib
import functools
import json
import math
import os
import sys
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import DataError, UserError
from t5suite.base.files import read_json
from t5suite.constants import MIXTURES
from t5suite.launch.sweep_metrics import is_score_of_task
from t5suite.runs.directory import MANIFEST, read_manifest, read_results, tasks_named


class TrialCurve(NamedTuple):
    """A metric as logged so far: `(step, value)` in the order of steps, and the names of all metrics of the run.

    `other_scores` are those of the task or tasks that were logged beside it, by step.
    """

    points: list[tuple[int, float]]
    metric_names: set[str]
    other_scores: dict[int, dict[str, float]]

    @property
    def values(self) -> list[float]:
        """The values in the order of steps."""
        return [value for _, value in self.points]

    @property
    def last_step(self) -> int | None:
        """The step of the last value; None if there is none."""
        if not self.points:
            return None
        return self.points[-1][0]

    def scores_at_best(self, goal: str) -> dict[str, float | None]:
        """The tasks' scores at the first step where the metric is best; None for one that is not a number."""
        best = best_of(self.values, goal)
        steps = [step for step, value in self.points if value == best]
        if not steps:
            return {}
        scores = self.other_scores[steps[0]]
        return {name: None if math.isnan(score) else score for name, score in scores.items()}


def read_curve(path, metric: str) -> TrialCurve:
    """A metric as logged so far in a `metrics.jsonl`.

    A value that is not a number counts as NaN; an incomplete last line is ignored for now.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return TrialCurve([], set(), {})
    return _parse_curve(path, metric, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=1000)
def _parse_curve(path, metric: str, *file_state) -> TrialCurve:
    points: dict[int, float] = {}
    metric_names: set[str] = set()
    other_scores: dict[int, dict[str, float]] = {}
    whole_lines, _, _ = Path(path).read_bytes().rpartition(b"\n")
    for text in whole_lines.splitlines():
        line = _parse_line(text)
        metric_names.update(name for name in line if "/" in name)
        if metric in line:
            points[line["step"]] = _finite_or_nan(line[metric])
            score_names = [name for name in line if is_score_of_task(name) and name != metric]
            other_scores[line["step"]] = {name: _finite_or_nan(line[name]) for name in score_names}
    return TrialCurve(sorted(points.items()), metric_names, other_scores)


def _parse_line(text: bytes) -> dict:
    """A line that has a step; an empty table for another one."""
    with contextlib.suppress(ValueError):
        line = json.loads(text)
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            return line
    return {}


def _finite_or_nan(value) -> float:
    """The number, or NaN for what is none or infinite."""
    is_finite = isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
    if not is_finite:
        return math.nan
    return float(value)


def has_done_all_steps(directory, step: int | None) -> bool:
    """Whether a run's last logged step is its last one, as far as its manifest says how many it makes."""
    try:
        total_steps = read_json(Path(directory) / MANIFEST).get("total_steps")
    except (OSError, DataError, AttributeError):
        return False
    if step is None or not isinstance(total_steps, int):
        return False
    return step >= total_steps


def best_of(values: list[float], goal: str) -> float | None:
    """The best of the values; NaN is the worst; None if there is no other value.

    >>> best_of([70.0, float("nan"), 80.0], "maximize")
    80.0
    """
    numbers = [value for value in values if not math.isnan(value)]
    if goal == "maximize":
        return max(numbers, default=None)
    return min(numbers, default=None)


def result_of_run(directory, metric: str) -> float | None:
    """What `results.json` says of a metric that the run has not logged while it trained.

    `eval/average` is the task's `metric_to_optimize` in this run; with several tasks, the mean over them; in a mixture,
    over those of its average. Test splits count only if nothing else was scored.

    None: no results, a score that is not a number, or a metric that such a run does not have.
    """
    try:
        scores_by_split = read_results(directory)["tasks"]
        manifest = read_manifest(directory)
    except (OSError, UserError):
        return None
    validation_scores = {name: scores for name, scores in scores_by_split.items() if not name.endswith(".test")}
    judged_scores = validation_scores or scores_by_split
    if metric == "eval/average":
        return _mean_of_tasks(judged_scores, manifest)
    name = metric.removeprefix("eval/")
    return _mean([scores.get(name) for scores in judged_scores.values()])


def _mean_of_tasks(scores_by_split: dict[str, dict], manifest: dict) -> float | None:
    """The mean over a run's tasks, each of which counts once, however many splits it has (MNLI).

    A task whose number is an error has no part in it where others have points.
    """
    from t5suite.tasks.entry_metrics import is_loss_alone, tasks_in_points

    tasks = _tasks_by_split(manifest)
    figures_of_task: dict[str, list] = {}
    entries = {}
    for split, scores in scores_by_split.items():
        name, entry = tasks.get(split.removesuffix(".test"), (split, None))
        figure = _figure_of_split(scores, entry, manifest["settings"].get("metric_for_best_model"))
        figures_of_task.setdefault(name, []).append(figure)
        if entry and not is_loss_alone(scores):
            entries[name] = entry
    average = _tasks_of_average(manifest)
    names = [name for name in figures_of_task if name in average] or list(figures_of_task)
    names_of_scores = tasks_in_points({name: entries[name] for name in names if name in entries})
    names_of_losses = [name for name in names if name not in entries]
    return _mean([_mean(figures_of_task[name]) for name in (*names_of_scores, *names_of_losses)])


def _tasks_of_average(manifest: dict) -> list[str]:
    """The tasks of a mixture's average; empty for a run on no mixture."""
    benchmark, dataset_name = tasks_named(manifest)
    mixture = MIXTURES.get(benchmark, {}).get(dataset_name, {})
    return mixture.get("average", [])


def _tasks_by_split(manifest: dict) -> dict[str, tuple[str, dict]]:
    """A run's tasks, as `(name, entry)`, by each name that a split of theirs may have in results."""
    from t5suite.tasks.registry import Task

    tasks = {}
    for name, entry in (manifest.get("tasks") or {}).items():
        task = Task("", name, entry)
        for split in (name, *task.splits("validation"), *task.splits("test")):
            tasks[split] = (name, entry)
    return tasks


def _figure_of_split(scores: dict, entry: dict | None, selecting_metric: str | None) -> float | None:
    """The one number of a split, of which more is better: the metric that selects checkpoints, or else its task's.

    Args:
      entry: of the task; None for what is none, such as the held-out text of pre-training.
    """
    from t5suite.tasks.entry_metrics import is_loss_alone, task_figure

    if entry is None:
        return None
    if is_loss_alone(scores):
        loss = scores.get("loss", scores.get("nll"))
        return None if loss is None else -loss
    if selecting_metric in scores.keys() - {"loss"}:
        return scores[selecting_metric]
    return task_figure(scores, entry)


def _mean(values: list) -> float | None:
    """The mean; None of no values, or where one is None."""
    if not values or None in values:
        return None
    return sum(values) / len(values)
