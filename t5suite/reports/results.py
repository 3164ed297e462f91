"""Runs and sweeps -> the one dict of results that every renderer shows, so that all show the same numbers.

>>> data = report_data(["runs/rte-s1", "runs/rte-s2"])
>>> data["scores"][0]["task"], data["scores"][0]["mean"], data["scores"][0]["std"]
('rte', 64.25, 1.06)

JSON throughout: `report.json` is this dict, and the page contains it, too.

| key | holds |
|---|---|
| `title`, `version` | texts |
| `runs` | each run's facts (`read_run`), with `setting`, `intervals` and `baselines` by task |
| `settings` | which runs are seeds of one setting (`group_by_setting`) |
| `scores`, `averages` | one per setting, task and metric (or average): mean, deviation, interval, published score |
| `confusions` | a matrix per run and task with labels (`confusion_matrix`) |
| `label_scores` | precision, recall and F1 by label, of tasks with labels of rows or words (`label_scores`) |
| `examples` | the answers of each run and task, as many as are shown (`shown_examples`) |
| `sweeps` | as `read_sweep_record` has them |
| `method` | how the numbers were made |
"""

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from t5suite import __version__
from t5suite.base.errors import UserError
from t5suite.constants import MIXTURES
from t5suite.reports import intervals
from t5suite.reports.answers import confusion_matrix, majority_baseline, shown_examples
from t5suite.reports.evaluations import TaskEvaluation, notes_on_tasks_left_out, read_evaluations
from t5suite.reports.finished_runs import suite_averages, without_rates
from t5suite.reports.formatting import short_names
from t5suite.reports.label_scores import label_scores
from t5suite.reports.published import has_published_scores, published_average, published_score, published_scores
from t5suite.reports.resampled_metrics import statistic_of
from t5suite.reports.run_facts import read_run
from t5suite.reports.seeds import group_by_setting
from t5suite.reports.sweeps import sweep_titles, trial_directories
from t5suite.tasks.entry_metrics import metric_functions

# Examples on the whole page; each evaluation has an equal share of them, but at least LEAST_EXAMPLES, unless even the
# whole page may have fewer.
MOST_EXAMPLES = 1500
LEAST_EXAMPLES = 10
# Of more tasks and sweeps than this, the title names all but the last few.
MOST_IN_TITLE, NAMED_IN_TITLE = 7, 6


def report_data(
    directories, data_dir: str | None = None, size: str | None = None, most_examples: int = MOST_EXAMPLES, sweeps=()
) -> dict:
    """Everything that a report shows.

    Args:
      directories: of runs, finished or not.
      data_dir: where the rows are now, if not where the runs had them.
      size: the published T5 that scores are compared with; default: that of each run's own model.
      sweeps: as `read_sweep_record` makes them.

    Raises:
      DataError: a directory without a run, or with files that cannot be read.
    """
    runs = [read_run(directory, name) for directory, name in run_names(directories, sweeps).items()]
    settings = group_by_setting(runs)
    for setting in settings:
        for run in runs_of_setting(runs, setting):
            run["setting"] = setting["label"]
    evaluated: list[tuple[dict, TaskEvaluation]] = []
    for run in runs:
        evaluations, notes = read_evaluations_or_note(run, data_dir)
        run["size"] = size or run["size"]
        run["intervals"] = row_intervals(evaluations)
        run["baselines"] = majority_baselines(evaluations)
        run["notes"] += notes
        evaluated += [(run, evaluation) for evaluation in evaluations]
    return {
        "title": report_title(runs, sweeps),
        "version": __version__,
        "runs": runs,
        "settings": settings,
        "scores": score_entries(runs, settings),
        "averages": average_entries(runs, settings),
        "confusions": confusion_entries(evaluated),
        "label_scores": label_score_entries(evaluated),
        "examples": example_entries(evaluated, most_examples),
        "sweeps": list(sweeps),
        "method": method(runs),
    }


def run_names(directories, sweeps) -> dict[str, str]:
    """What each directory's run is called: by its place among the directories, or by its trial's number."""
    trials = trial_names(sweeps)
    names = {}
    for directory, short_name in short_names(directories).items():
        path = Path(directory).resolve()
        names[directory] = trials.get(path, short_name)
    return names


def trial_names(sweeps) -> dict[Path, str]:
    """What the runs of sweeps' trials are called, by directory.

    >>> trial_names([{"directory": "/sweeps/rates", "trials": [{"number": 3, "run_dir": "/sweeps/rates/trials/0003"}]}])
    {PosixPath('/sweeps/rates/trials/0003'): 'rates trial 3'}
    """
    sweep_labels = short_names(sweep["directory"] for sweep in sweeps)
    names = {}
    for sweep in sweeps:
        label = sweep_labels[str(sweep["directory"])]
        for number, path in trial_directories(sweep).items():
            names[path.resolve()] = f"{label} trial {number}"
    return names


def report_title(runs: list[dict], sweeps) -> str:
    """The sweeps and tasks of a report; of many the first ones, and how many more there are."""
    names = [f"sweep {title}" for title in sweep_titles(sweeps)]
    for run in runs:
        benchmark = run["benchmark"] or "text"
        tasks = run["results"] or [run["dataset_name"]]
        names += [f"{benchmark}/{task}" for task in tasks]
    names = list(dict.fromkeys(names))
    if len(names) > MOST_IN_TITLE:
        num_unnamed = len(names) - NAMED_IN_TITLE
        names = [*names[:NAMED_IN_TITLE], f"{num_unnamed} more"]
    return ", ".join(names)


def read_evaluations_or_note(run: dict, data_dir: str | None) -> tuple[list[TaskEvaluation], list[str]]:
    """A run's evaluations, and notes on what cannot be read."""
    try:
        evaluations = read_evaluations(run["directory"], data_dir)
    except (UserError, OSError) as error:
        return [], [f"predictions: {error}"]
    notes = notes_on_tasks_left_out(run["directory"])
    for evaluation in evaluations:
        if evaluation.note:
            notes.append(f"{evaluation.name}: {evaluation.note}")
    return evaluations, notes


def row_intervals(evaluations: list[TaskEvaluation]) -> dict[str, dict]:
    """`{task: {metric: interval over rows}}`, where there is one."""
    by_task = {}
    for evaluation in evaluations:
        by_metric = intervals_of_task(evaluation)
        if by_metric:
            by_task[evaluation.name] = by_metric
    return by_task


def intervals_of_task(evaluation: TaskEvaluation) -> dict[str, dict]:
    """`{metric: interval over rows}`, where there is one; empty without labels."""
    if evaluation.judged is None:
        return {}
    by_metric = {}
    for metric, function in metric_functions(evaluation.task.entry).items():
        if evaluation.scores.get(metric) is None:
            continue
        statistic = statistic_of(function, evaluation.judged, evaluation.num_classes)
        interval = intervals.interval_over_rows(statistic)
        if interval:
            by_metric[metric] = interval
    return by_metric


def majority_baselines(evaluations: list[TaskEvaluation]) -> dict[str, dict | None]:
    """`{task: majority baseline}` of the tasks whose labels are known."""
    baselines = {}
    for evaluation in evaluations:
        if evaluation.judged is not None:
            baselines[evaluation.name] = majority_baseline(evaluation)
    return baselines


def confusion_entries(evaluated: list[tuple[dict, TaskEvaluation]]) -> list[dict]:
    """`{"run", "task", "labels", "answers", "counts"}` of every task with labels."""
    return _entries_of_tasks(evaluated, confusion_matrix)


def label_score_entries(evaluated: list[tuple[dict, TaskEvaluation]]) -> list[dict]:
    """`{"run", "task", "of", "labels", "other_answers"}` of tasks with labels of rows, words or spans."""
    return _entries_of_tasks(evaluated, label_scores)


def _entries_of_tasks(
    evaluated: list[tuple[dict, TaskEvaluation]], facts_of_task: Callable[[TaskEvaluation], dict | None]
) -> list[dict]:
    """Facts of each run's tasks, with the names of both; nothing of tasks without such facts."""
    entries = []
    for run, evaluation in evaluated:
        facts = facts_of_task(evaluation)
        if facts:
            entries.append({"run": run["name"], "task": evaluation.name, **facts})
    return entries


def example_entries(evaluated: list[tuple[dict, TaskEvaluation]], most_examples: int) -> list[dict]:
    """`{"run", "task", "note", "total", "verdicts", "shown", "examples"}` of every run and task."""
    num_evaluations = max(1, len(evaluated))
    least_share = min(LEAST_EXAMPLES, most_examples)
    share = max(least_share, most_examples // num_evaluations)
    entries = []
    for run, evaluation in evaluated:
        examples = shown_examples(evaluation, share)
        entries.append({"run": run["name"], "task": evaluation.name, "note": evaluation.note, **examples})
    return entries


def score_entries(runs: list[dict], settings: list[dict]) -> list[dict]:
    """One per setting, task and metric: mean, standard deviation, interval, published score, majority baseline."""
    entries = []
    for setting in settings:
        for (_, task), task_runs in runs_by_task(runs_with_results(runs, setting)).items():
            for metric in metrics_of_task(task_runs, task):
                entries.append(score_entry(setting["label"], task_runs, task, metric))
    return entries


def runs_of_setting(runs: list[dict], setting: dict) -> list[dict]:
    """The runs that are seeds of a setting."""
    return [run for run in runs if run["name"] in setting["runs"]]


def runs_with_results(runs: list[dict], setting: dict) -> list[dict]:
    """The runs of a setting that are finished."""
    return [run for run in runs_of_setting(runs, setting) if run["results"]]


def runs_by_task(runs: list[dict]) -> dict[tuple[str | None, str], list[dict]]:
    """`{(benchmark, task): the runs that have results of it}`."""
    by_task: dict[tuple[str | None, str], list[dict]] = {}
    for run in runs:
        for task in run["results"]:
            by_task.setdefault((run["benchmark"], task), []).append(run)
    return by_task


def metrics_of_task(runs: list[dict], task: str) -> list[str]:
    """The metrics that any of the runs has of a task."""
    metrics = []
    for run in runs:
        metrics += run["results"][task]
    return list(dict.fromkeys(metrics))


def score_entry(label: str, runs: list[dict], task: str, metric: str) -> dict:
    """A metric over the runs of one setting that were scored on a task."""
    scored_runs = [run for run in runs if metric in run["results"][task]]
    values = {run["name"]: run["results"][task][metric] for run in scored_runs}
    spread = spread_over_seeds(list(values.values()))
    if len(values) == 1:
        interval = scored_runs[0]["intervals"].get(task, {}).get(metric)
        spread["interval"] = with_source(interval, "rows")
    benchmark = runs[0]["benchmark"]
    size = common_size(runs)
    return {
        "setting": label,
        "benchmark": benchmark,
        "task": task,
        "metric": metric,
        "values": values,
        "rows": scored_runs[0]["rows"][task],
        "size": size,
        "marks": score_marks(scored_runs, task),
        "published": published_score(benchmark, task, metric, size),
        "majority": mean_baseline(runs, task, metric),
        **spread,
    }


def with_source(interval: dict | None, source: str) -> dict | None:
    """An interval that says what it is over: rows or seeds."""
    if not interval:
        return None
    return {**interval, "over": source}


def common_size(runs: list[dict]) -> str | None:
    """The published T5 that the runs are compared with, if it is the same for all."""
    sizes = {run["size"] for run in runs}
    if len(sizes) != 1:
        return None
    return sizes.pop()


def mean_baseline(runs: list[dict], task: str, metric: str) -> float | None:
    """The mean over the runs of what the most frequent label scores, where that is known."""
    scores = []
    for run in runs:
        baseline = run["baselines"].get(task) or {"scores": {}}
        score = baseline["scores"].get(metric)
        if score is not None:
            scores.append(score)
    if not scores:
        return None
    return sum(scores) / len(scores)


def score_marks(runs: list[dict], task: str) -> list[str]:
    """The remarks on the runs' scores of a task, and whether they were scored on different rows."""
    marks = []
    for run in runs:
        marks += run["marks"].get(task, [])
    identities = {rows_identity(run, task) for run in runs}
    if len(identities) > 1:
        marks.append("different rows")
    return list(dict.fromkeys(marks))


def rows_identity(run: dict, task: str) -> tuple:
    """What tells the rows of a task's score from others: their fingerprints, and the seed where it has drawn them."""
    splits = [split for split in run["splits"].get(task, []) if split in run["fingerprints"]]
    fingerprints = [run["fingerprints"][split] for split in splits]
    is_subset = "subset" in run["marks"].get(task, [])
    is_held_out = any(split in run["held_out"] for split in splits)
    if is_subset or is_held_out:
        return *fingerprints, run["seed"]
    return *fingerprints, None


def spread_over_seeds(values: list) -> dict:
    """`{"n", "mean", "std", "interval"}`; std is that of a sample (n - 1), None of one value.

    >>> spread_over_seeds([60.0, 64.0])["std"]
    2.8284271247461903
    """
    are_finite = all(value is not None and math.isfinite(value) for value in values)
    if not values or not are_finite:
        return {"n": len(values), "mean": None, "std": None, "interval": None}
    deviation = None
    if len(values) > 1:
        deviation = statistics.stdev(values)
    interval = intervals.interval_over_values(values)
    return {
        "n": len(values),
        "mean": statistics.fmean(values),
        "std": deviation,
        "interval": with_source(interval, "seeds"),
    }


def average_entries(runs: list[dict], settings: list[dict]) -> list[dict]:
    """Suite averages over seeds: those in the runs' results, and those of one-task runs that together cover a suite.

    If every task of a benchmark has one run, the runs' settings and seeds may differ.
    """
    entries = []
    for benchmark_runs in runs_by_benchmark(runs).values():
        entries += _average_entries_of_benchmark(benchmark_runs, settings)
    return entries


def runs_by_benchmark(runs: list[dict]) -> dict[str | None, list[dict]]:
    """`{benchmark: its runs}`; None: of running text."""
    by_benchmark: dict[str | None, list[dict]] = {}
    for run in runs:
        by_benchmark.setdefault(run["benchmark"], []).append(run)
    return by_benchmark


def _average_entries_of_benchmark(runs: list[dict], settings: list[dict]) -> list[dict]:
    if every_task_has_one_run(runs):
        settings = [{"label": "", "runs": [run["name"] for run in runs]}]
    entries = []
    for setting in settings:
        members = runs_with_results(runs, setting)
        size = common_size(members)
        for average, values in averages_by_tasks(members).items():
            entries.append(
                {
                    "setting": setting["label"],
                    "suite": average.suite,
                    "tasks": average.tasks,
                    "values": values,
                    "size": size,
                    "published": published_average(average.suite, size),
                    **spread_over_seeds(list(values.values())),
                }
            )
    return entries


class TasksOfAverage(NamedTuple):
    """What an average is of.

    Attributes:
      suite: its name in results.
      tasks: the run's tasks with their benchmark, `glue/cola,rte`; empty for a benchmark's own average, whose tasks the
        benchmark says.
    """

    suite: str
    tasks: str


def every_task_has_one_run(runs: list[dict]) -> bool:
    """Whether no task was scored twice, and no run has an average of its own."""
    if any(run["averages"] for run in runs):
        return False
    return all(len(task_runs) == 1 for task_runs in runs_by_task(runs).values())


def tasks_of_average(run: dict, suite: str) -> TasksOfAverage:
    """What an average in a run's results is of."""
    if suite in MIXTURES:
        return TasksOfAverage(suite, "")
    names = sorted(name.strip() for name in str(run["dataset_name"]).split(","))
    return TasksOfAverage(suite, f"{run['benchmark']}/{','.join(names)}")


def averages_by_tasks(runs: list[dict]) -> dict[TasksOfAverage, dict[str, float | None]]:
    """`{what it is of: {run, or runs that cover it together: average}}` of the runs of one setting."""
    values: dict[TasksOfAverage, dict[str, float | None]] = {}
    for run in runs:
        for suite, average in run["averages"].items():
            values.setdefault(tasks_of_average(run, suite), {})[run["name"]] = average
    without_average = [run for run in runs if not run["averages"]]
    for group in runs_averaged_together(without_average):
        for suite, average in suite_averages(metric_rows(group)).items():
            names = [run["name"] for run in group if run["benchmark"] == suite]
            value = None
            if math.isfinite(average):
                value = average
            values.setdefault(TasksOfAverage(suite, ""), {})[", ".join(names)] = value
    return values


def runs_averaged_together(runs: list[dict]) -> list[list[dict]]:
    """The runs that may cover a suite together: those of one seed, or all of them if every task has one run."""
    if every_task_has_one_run(runs):
        return [runs]
    return list(runs_by_seed(runs).values())


def runs_by_seed(runs: list[dict]) -> dict[int | None, list[dict]]:
    """`{seed: its runs}`."""
    by_seed: dict[int | None, list[dict]] = {}
    for run in runs:
        by_seed.setdefault(run["seed"], []).append(run)
    return by_seed


def metric_rows(runs: list[dict]) -> list[dict]:
    """`{"benchmark", "task", "metrics"}` of each run and task, as `suite_averages` takes them."""
    rows = []
    for run in runs:
        for task, scores in run["results"].items():
            rows.append({"benchmark": run["benchmark"], "task": task, "metrics": without_rates(scores)})
    return rows


def method(runs: list[dict]) -> dict:
    """How the numbers were made, in words for the reader; baselines and published scores only where there are some."""
    baseline = {}
    if any(any(run["baselines"].values()) for run in runs):
        baseline["Majority baseline"] = (
            "Always the most frequent label, or set of labels, of the same rows that the run was scored on."
        )
    published = {}
    if any(has_published_scores(run["benchmark"]) for run in runs):
        published["Published scores"] = (
            f"{published_scores()['sources']['test']} GLUE's published average is taken over the eight tasks that ours "
            "is over, without WNLI."
        )
    few = f"{intervals.RESAMPLES_DIRECT} ({intervals.RESAMPLES_TEXTS} over texts)"
    return {
        "Intervals": (
            f"{intervals.LEVEL:.0%} percentile bootstrap, generator seed {intervals.SEED}. Over rows: rows (groups "
            f"of rows, such as MultiRC's questions) drawn with replacement {intervals.RESAMPLES} times, {few} where "
            "a metric is recomputed each time; exact (Clopper and Pearson) where all rows are right, or none is. Over "
            "seeds: the runs' scores drawn with replacement; with two seeds that is their range, and with few it is "
            "too narrow."
        ),
        "Standard deviation": "Of a sample, over seeds (n - 1).",
        **baseline,
        **published,
        "Speed": (
            "Medians of the logged values; nothing is shown that was not logged. The seconds of training, and examples "
            "and updates a second, are of all starts of a run together, evaluations included."
        ),
    }
