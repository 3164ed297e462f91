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
| `scores`, `averages` | one entry per setting, task and metric (or suite): mean, deviation, interval, published score |
| `confusions` | a matrix per run and task with labels (`confusion_matrix`) |
| `examples` | the answers of each run and task, as many as are shown (`shown_examples`) |
| `sweeps` | as `read_sweep_record` has them |
| `method` | how the numbers were made |
"""

import math
import statistics
from pathlib import Path

from t5suite import __version__
from t5suite.base.errors import UserError
from t5suite.reports import intervals
from t5suite.reports.answers import confusion_matrix, majority_baseline, shown_examples
from t5suite.reports.evaluations import TaskEvaluation, read_evaluations
from t5suite.reports.finished_runs import RATES, suite_averages
from t5suite.reports.formatting import short_names
from t5suite.reports.published import published_average, published_score, published_scores
from t5suite.reports.resampled_metrics import statistic_of
from t5suite.reports.run_facts import read_run
from t5suite.reports.seeds import group_by_setting
from t5suite.reports.sweeps import trial_directories
from t5suite.tasks.entry_metrics import metric_functions

# Examples on the whole page; each evaluation has an equal share of them, but at least LEAST_EXAMPLES.
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
    label_of_run = {name: setting["label"] for setting in settings for name in setting["runs"]}
    evaluated: list[tuple[dict, TaskEvaluation]] = []
    for run in runs:
        evaluations, notes = read_evaluations_or_note(run, data_dir)
        run["size"] = size or run["size"]
        run["setting"] = label_of_run[run["name"]]
        run["intervals"] = row_intervals(evaluations)
        run["baselines"] = {e.name: majority_baseline(e) for e in evaluations if e.judged is not None}
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
        "examples": example_entries(evaluated, most_examples),
        "sweeps": list(sweeps),
        "method": method(),
    }


def run_names(directories, sweeps) -> dict[str, str]:
    """What each directory's run is called: by its place among the directories, or by its trial's number."""
    trials = trial_names(sweeps)
    return {
        directory: trials.get(Path(directory).resolve(), name) for directory, name in short_names(directories).items()
    }


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
    names = [f"sweep {sweep['name']}" for sweep in sweeps]
    for run in runs:
        benchmark = run["benchmark"] or "text"
        names += [f"{benchmark}/{task}" for task in run["results"] or [run["dataset_name"]]]
    names = list(dict.fromkeys(names))
    if len(names) > MOST_IN_TITLE:
        names = [*names[:NAMED_IN_TITLE], f"{len(names) - NAMED_IN_TITLE} more"]
    return ", ".join(names)


def read_evaluations_or_note(run: dict, data_dir: str | None) -> tuple[list[TaskEvaluation], list[str]]:
    """A run's evaluations, and notes on what cannot be read."""
    try:
        evaluations = read_evaluations(run["directory"], data_dir)
    except (UserError, OSError) as error:
        return [], [f"predictions: {error}"]
    return evaluations, [f"{evaluation.name}: {evaluation.note}" for evaluation in evaluations if evaluation.note]


def row_intervals(evaluations: list[TaskEvaluation]) -> dict[str, dict]:
    """`{task: {metric: interval over rows}}`, where there is one."""
    by_task: dict[str, dict] = {}
    for evaluation in evaluations:
        if evaluation.judged is None:
            continue
        for metric, function in metric_functions(evaluation.task.entry).items():
            if evaluation.scores.get(metric) is None:
                continue
            statistic = statistic_of(function, evaluation.judged, evaluation.num_classes)
            interval = intervals.interval_over_rows(statistic)
            if interval:
                by_task.setdefault(evaluation.name, {})[metric] = interval
    return by_task


def confusion_entries(evaluated: list[tuple[dict, TaskEvaluation]]) -> list[dict]:
    """`{"run", "task", "labels", "answers", "counts"}` of every task with labels."""
    matrices = [(run["name"], evaluation.name, confusion_matrix(evaluation)) for run, evaluation in evaluated]
    return [{"run": run, "task": task, **matrix} for run, task, matrix in matrices if matrix]


def example_entries(evaluated: list[tuple[dict, TaskEvaluation]], most_examples: int) -> list[dict]:
    """`{"run", "task", "note", "total", "verdicts", "shown", "examples"}` of every run and task."""
    share = max(LEAST_EXAMPLES, most_examples // max(1, len(evaluated)))
    return [
        {"run": run["name"], "task": evaluation.name, "note": evaluation.note, **shown_examples(evaluation, share)}
        for run, evaluation in evaluated
    ]


def score_entries(runs: list[dict], settings: list[dict]) -> list[dict]:
    """One per setting, task and metric: mean, standard deviation, interval, published score, majority baseline."""
    entries = []
    for setting in settings:
        members = runs_with_results(runs, setting)
        for benchmark, task in dict.fromkeys((run["benchmark"], task) for run in members for task in run["results"]):
            of_benchmark = [run for run in members if run["benchmark"] == benchmark]
            task_runs = [run for run in of_benchmark if task in run["results"]]
            metrics = dict.fromkeys(metric for run in task_runs for metric in run["results"][task])
            entries += [score_entry(setting["label"], task_runs, task, metric) for metric in metrics]
    return entries


def runs_with_results(runs: list[dict], setting: dict) -> list[dict]:
    """The runs of a setting that are finished."""
    return [run for run in runs if run["name"] in setting["runs"] and run["results"]]


def score_entry(label: str, runs: list[dict], task: str, metric: str) -> dict:
    """A metric over the runs of one setting that were scored on a task."""
    scored_runs = [run for run in runs if metric in run["results"][task]]
    values = {run["name"]: run["results"][task][metric] for run in scored_runs}
    benchmark = runs[0]["benchmark"]
    size = common_size(runs)
    entry = {
        "setting": label,
        "benchmark": benchmark,
        "task": task,
        "metric": metric,
        "values": values,
        "rows": runs[0]["rows"][task],
        "size": size,
        "marks": score_marks(scored_runs, task),
        "published": published_score(benchmark, task, metric, size),
        "majority": mean_baseline(runs, task, metric),
        **spread_over_seeds(list(values.values())),
    }
    if len(values) == 1:
        interval = runs[0]["intervals"].get(task, {}).get(metric)
        entry["interval"] = {**interval, "over": "rows"} if interval else None
    return entry


def common_size(runs: list[dict]) -> str | None:
    """The published T5 that the runs are compared with, if it is the same for all."""
    sizes = {run["size"] for run in runs}
    return sizes.pop() if len(sizes) == 1 else None


def mean_baseline(runs: list[dict], task: str, metric: str) -> float | None:
    """The mean over the runs of what the most frequent label scores, where that is known."""
    baselines = [run["baselines"].get(task) or {"scores": {}} for run in runs]
    scores = [baseline["scores"].get(metric) for baseline in baselines]
    defined = [score for score in scores if score is not None]
    return sum(defined) / len(defined) if defined else None


def score_marks(runs: list[dict], task: str) -> list[str]:
    """The remarks on the runs' scores of a task, and whether they were scored on different rows."""
    marks = [mark for run in runs for mark in run["marks"].get(task, [])]
    if len({rows_identity(run, task) for run in runs}) > 1:
        marks.append("different rows")
    return list(dict.fromkeys(marks))


def rows_identity(run: dict, task: str) -> tuple:
    """What tells the rows of a task's score from others: their fingerprints, and the seed where it has drawn them."""
    splits = [split for split in sorted(run["fingerprints"]) if _is_scored_split(split, task)]
    is_drawn = "subset" in run["marks"].get(task, []) or any(split in run["held_out"] for split in splits)
    fingerprints = [run["fingerprints"][split] for split in splits]
    return *fingerprints, run["seed"] if is_drawn else None


def _is_scored_split(split: str, result: str) -> bool:
    """Whether a result (`mnli_matched`, `rte.test`) may be of a split (`mnli.validation_matched`, `rte.test`)."""
    task, _, role = split.rpartition(".")
    is_of_same_role = (role == "test") == result.endswith(".test")
    return result.startswith(task) and role != "train" and is_of_same_role


def spread_over_seeds(values: list) -> dict:
    """`{"n", "mean", "std", "interval"}`; std is that of a sample (n - 1), None of one value.

    >>> spread_over_seeds([60.0, 64.0])["std"]
    2.8284271247461903
    """
    are_finite = all(value is not None and math.isfinite(value) for value in values)
    if not values or not are_finite:
        return {"n": len(values), "mean": None, "std": None, "interval": None}
    interval = intervals.interval_over_values(values)
    return {
        "n": len(values),
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "interval": {**interval, "over": "seeds"} if interval else None,
    }


def average_entries(runs: list[dict], settings: list[dict]) -> list[dict]:
    """Suite averages over seeds: those in the runs' results, and those of one-task runs that together cover a suite.

    If every task has one run, the runs' settings may differ.
    """
    if every_task_has_one_run(runs):
        settings = [{"label": "", "runs": [run["name"] for run in runs]}]
    entries = []
    for setting in settings:
        members = runs_with_results(runs, setting)
        size = common_size(members)
        for suite, values in suite_values(members).items():
            entries.append(
                {
                    "setting": setting["label"],
                    "suite": suite,
                    "values": values,
                    "size": size,
                    "published": published_average(suite, size),
                    **spread_over_seeds(list(values.values())),
                }
            )
    return entries


def every_task_has_one_run(runs: list[dict]) -> bool:
    """Whether no task was scored twice, and no run has an average of its own."""
    scored = [(run["benchmark"], task) for run in runs for task in run["results"]]
    return len(set(scored)) == len(scored) and not any(run["averages"] for run in runs)


def suite_values(runs: list[dict]) -> dict[str, dict[str, float | None]]:
    """`{suite: {run, or runs that cover it together: average}}` of the runs of one setting."""
    values: dict[str, dict[str, float | None]] = {}
    for run in runs:
        for suite, average in run["averages"].items():
            values.setdefault(suite, {})[run["name"]] = average
    for seed in dict.fromkeys(run["seed"] for run in runs):
        of_seed = [run for run in runs if run["seed"] == seed]
        without_average = [run for run in of_seed if not run["averages"]]
        for suite, average in suite_averages(metric_rows(without_average)).items():
            names = ", ".join(run["name"] for run in without_average if run["benchmark"] == suite)
            values.setdefault(suite, {})[names] = average if math.isfinite(average) else None
    return values


def metric_rows(runs: list[dict]) -> list[dict]:
    """`{"benchmark", "task", "metrics"}` of each run and task, as `suite_averages` takes them."""
    rows = []
    for run in runs:
        for task, scores in run["results"].items():
            metrics = {name: value for name, value in scores.items() if name not in RATES}
            rows.append({"benchmark": run["benchmark"], "task": task, "metrics": metrics})
    return rows


def method() -> dict:
    """How the numbers were made, in words that the renderers print."""
    few = f"{intervals.RESAMPLES_DIRECT} ({intervals.RESAMPLES_TEXTS} over texts)"
    return {
        "Intervals": (
            f"{intervals.LEVEL:.0%} percentile bootstrap, generator seed {intervals.SEED}. Over rows: rows (groups "
            f"of rows, such as MultiRC's questions) drawn with replacement {intervals.RESAMPLES} times, {few} where "
            "a metric is recomputed each time. Over seeds: the runs' scores drawn with replacement; with two seeds "
            "that is their range, and with few it is too narrow."
        ),
        "Standard deviation": "Of a sample, over seeds (n - 1).",
        "Majority baseline": "Always the most frequent label of the same rows that the run was scored on.",
        "Published scores": (
            f"{published_scores()['sources']['test']} GLUE's published average is taken over the eight tasks that ours "
            "is over, without WNLI."
        ),
        "Speed": "Medians of the logged values; nothing is shown that was not logged.",
    }
