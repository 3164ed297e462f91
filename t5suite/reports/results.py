"""Runs and sweeps -> the one dict of results that every renderer shows, so that all show the same numbers.

>>> data = report_data(["runs/rte-s1", "runs/rte-s2"])
>>> data["scores"][0]["task"], data["scores"][0]["mean"], data["scores"][0]["std"]
('rte', 64.25, 1.06)
>>> data["runs"][0]["status"], data["runs"][0]["results"]["rte"], data["runs"][0]["curves"]["eval/accuracy"][-1]
('finished', {'accuracy': 65.0, 'invalid_rate': 0.0}, [2490, 65.0])

JSON throughout: `report.json` is this dict, and the page contains it too. A run that is not finished, or that logged
nothing, has what exists, and its `notes` say what is missing. Published scores are those of the leaderboards' test
sets (arXiv:1910.10683, table 14); `published_scores.json` says where each comes from.
"""

import functools
import json
import math
import shlex
import statistics
from pathlib import Path

from t5suite import __version__
from t5suite.base.errors import DataError, UserError
from t5suite.base.script_flags import flags_marked
from t5suite.reports import intervals as resampling
from t5suite.reports.evaluations import HELD_OUT, confusion, evaluations_of, examples_of, majority
from t5suite.reports.finished_runs import RATES, rows_scored, suite_averages
from t5suite.reports.formatting import is_number, short_names
from t5suite.reports.resampled_metrics import statistic_of
from t5suite.reports.sweeps import trial_directories
from t5suite.runs.directory import MANIFEST, METRICS, RESULTS, read_manifest, read_results, tasks_named
from t5suite.runs.settings import is_decisive
from t5suite.tasks.entry_metrics import metric_functions
from t5suite.tracking.metric_lines import MetricLines, is_of_the_machine

# Examples on the whole page; each evaluation has an equal share of them.
MOST_EXAMPLES = 1500
# A curve with more points is reduced to this many, evenly spaced, the last one included.
MOST_POINTS = 500
# What may differ between seeds of one setting, and what a table's task column says.
NOT_A_SETTING = frozenset(("seed", "data_seed", "benchmark", "dataset_name"))
# Settings that a label names, and characters of a value.
MOST_NAMED, LONGEST_VALUE = 3, 40


def report_data(
    directories, data_dir: str | None = None, size: str | None = None, most_examples: int = MOST_EXAMPLES, sweeps=()
) -> dict:
    """Everything that a report shows.

    Args:
      directories: of runs, finished or not.
      data_dir: where the rows are now, if not where the runs had them.
      size: the published T5 that scores are compared with; default: that of each run's own model.
      sweeps: as `sweep_data` makes them.

    Raises:
      DataError: a directory without a run, or with files that cannot be read.
    """
    trials = trial_names(sweeps)
    names = {
        directory: trials.get(Path(directory).resolve(), name) for directory, name in short_names(directories).items()
    }
    runs = [read_run(directory, name) for directory, name in names.items()]
    settings = settings_of(runs)
    pairs = []
    for run in runs:
        run["size"] = size or run["size"]
        run["setting"] = next(setting["label"] for setting in settings if run["name"] in setting["runs"])
        run["intervals"], run["baselines"] = {}, {}
        try:
            evaluations = evaluations_of(run["directory"], data_dir)
        except (UserError, OSError) as error:
            run["notes"].append(f"predictions: {error}")
            continue
        for evaluation in evaluations:
            pairs.append((run, evaluation))
            if evaluation.note:
                run["notes"].append(f"{evaluation.name}: {evaluation.note}")
            if evaluation.judged is None:
                continue
            run["baselines"][evaluation.name] = majority(evaluation)
            for metric, function in metric_functions(evaluation.task.entry).items():
                if evaluation.scores.get(metric) is not None:
                    statistic = statistic_of(function, evaluation.judged, evaluation.num_classes)
                    if interval := resampling.interval_over_rows(statistic):
                        run["intervals"].setdefault(evaluation.name, {})[metric] = interval
    most = max(10, most_examples // max(1, len(pairs)))
    matrices = [(run, evaluation, confusion(evaluation)) for run, evaluation in pairs]
    tasks = [f"{run['benchmark'] or 'text'}/{task}" for run in runs for task in run["results"] or [run["dataset_name"]]]
    titles = list(dict.fromkeys([*(f"sweep {sweep['name']}" for sweep in sweeps), *tasks]))
    return {
        "title": ", ".join(titles if len(titles) < 8 else [*titles[:6], f"{len(titles) - 6} more"]),
        "version": __version__,
        "runs": runs,
        "settings": settings,
        "scores": scores_of(runs, settings),
        "averages": averages_of(runs, settings),
        "confusions": [{"run": run["name"], "task": e.name, **matrix} for run, e, matrix in matrices if matrix],
        "examples": [{"run": run["name"], "task": e.name, "note": e.note, **examples_of(e, most)} for run, e in pairs],
        "sweeps": list(sweeps),
        "method": method(),
    }


def trial_names(sweeps) -> dict[Path, str]:
    """What the runs of sweeps' trials are called, by directory.

    >>> trial_names([{"directory": "/sweeps/rates", "trials": [{"number": 3, "run_dir": "/sweeps/rates/trials/0003"}]}])
    {PosixPath('/sweeps/rates/trials/0003'): 'rates trial 3'}
    """
    labels = short_names(sweep["directory"] for sweep in sweeps)
    found = [(labels[str(sweep["directory"])], trial_directories(sweep)) for sweep in sweeps]
    return {path.resolve(): f"{label} trial {at}" for label, paths in found for at, path in paths.items()}


def scores_of(runs: list[dict], settings: list[dict]) -> list[dict]:
    """One per setting, task and metric: mean, standard deviation, interval, published score, majority baseline."""
    entries = []
    for setting in settings:
        members = [run for run in runs if run["name"] in setting["runs"] and run["results"]]
        for benchmark, task in dict.fromkeys((run["benchmark"], task) for run in members for task in run["results"]):
            of_task = [run for run in members if run["benchmark"] == benchmark and task in run["results"]]
            size = _size_of(of_task)
            for metric in dict.fromkeys(name for run in of_task for name in run["results"][task]):
                having = [run for run in of_task if metric in run["results"][task]]
                values = {run["name"]: run["results"][task][metric] for run in having}
                baselines = [(run["baselines"].get(task) or {}).get("scores", {}).get(metric) for run in of_task]
                known = [value for value in baselines if value is not None]
                entry = {
                    "setting": setting["label"],
                    "benchmark": benchmark,
                    "task": task,
                    "metric": metric,
                    "values": values,
                    "rows": of_task[0]["rows"][task],
                    "size": size,
                    "marks": marks_of(having, task),
                    "published": published_score(benchmark, task, metric, size),
                    "majority": sum(known) / len(known) if known else None,
                    **spread(list(values.values())),
                }
                if len(values) == 1:
                    rows = of_task[0]["intervals"].get(task, {}).get(metric)
                    entry["interval"] = {**rows, "over": "rows"} if rows else None
                entries.append(entry)
    return entries


def marks_of(runs: list[dict], task: str) -> list[str]:
    """The remarks on the runs' scores of a task, and whether they were scored on different rows."""
    marks = [mark for run in runs for mark in run["marks"].get(task, [])]
    if len({rows_identity(run, task) for run in runs}) > 1:
        marks.append("different rows")
    return list(dict.fromkeys(marks))


def rows_identity(run: dict, task: str) -> tuple:
    """What tells the rows of a task's score apart: their fingerprints, and the seed where it has drawn them."""
    is_test = task.endswith(".test")
    splits = [
        split
        for split in sorted(run["fingerprints"])
        if task.startswith(split.rpartition(".")[0])
        and not split.endswith(".train")
        and split.endswith(".test") == is_test
    ]
    is_drawn = "subset" in run["marks"].get(task, []) or any(split in run["held_out"] for split in splits)
    return *(run["fingerprints"][split] for split in splits), run["seed"] if is_drawn else None


def spread(values: list) -> dict:
    """`{"n", "mean", "std", "interval"}`; std is that of a sample (n - 1), None of one value.

    >>> spread([60.0, 64.0])["std"]
    2.8284271247461903
    """
    whole = bool(values) and all(value is not None and math.isfinite(value) for value in values)
    interval = resampling.interval_over_values(values) if whole else None
    return {
        "n": len(values),
        "mean": statistics.fmean(values) if whole else None,
        "std": statistics.stdev(values) if whole and len(values) > 1 else None,
        "interval": {**interval, "over": "seeds"} if interval else None,
    }


def _size_of(runs: list[dict]) -> str | None:
    sizes = {run["size"] for run in runs}
    return sizes.pop() if len(sizes) == 1 else None


def averages_of(runs: list[dict], settings: list[dict]) -> list[dict]:
    """Suite averages over seeds: those in the runs' results, and those of one-task runs that together cover a suite.

    If every task has one run, the runs' settings may differ.
    """
    entries, places = [], [(run["benchmark"], task) for run in runs for task in run["results"]]
    if len(set(places)) == len(places) and not any(run["averages"] for run in runs):
        settings = [{"label": "", "runs": [run["name"] for run in runs]}]
    for setting in settings:
        members = [run for run in runs if run["name"] in setting["runs"] and run["results"]]
        found: dict[str, dict[str, float | None]] = {}
        for run in members:
            for suite, value in run["averages"].items():
                found.setdefault(suite, {})[run["name"]] = value
        for seed in dict.fromkeys(run["seed"] for run in members):
            single = [run for run in members if run["seed"] == seed and not run["averages"]]
            rows = [
                {
                    "benchmark": run["benchmark"],
                    "task": task,
                    "metrics": {name: value for name, value in scores.items() if name not in RATES},
                }
                for run in single
                for task, scores in run["results"].items()
            ]
            for suite, value in suite_averages(rows).items():
                names = ", ".join(run["name"] for run in single if run["benchmark"] == suite)
                found.setdefault(suite, {})[names] = value if math.isfinite(value) else None
        size = _size_of(members)
        for suite, values in found.items():
            entries.append(
                {
                    "setting": setting["label"],
                    "suite": suite,
                    "values": values,
                    "size": size,
                    "published": published_average(suite, size),
                    **spread(list(values.values())),
                }
            )
    return entries


def method() -> dict:
    """How the numbers were made, in words that the renderers print."""
    few = f"{resampling.RESAMPLES_DIRECT} ({resampling.RESAMPLES_TEXTS} over texts)"
    return {
        "Intervals": (
            f"{resampling.LEVEL:.0%} percentile bootstrap, generator seed {resampling.SEED}. Over rows: rows (groups "
            f"of rows, such as MultiRC's questions) drawn with replacement {resampling.RESAMPLES} times, {few} where "
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


def is_run(directory) -> bool:
    """Whether a directory holds a run, finished or not."""
    return (Path(directory) / MANIFEST).is_file()


def read_run(directory, name: str | None = None) -> dict:
    """A run's facts; every value is JSON's (a score that is not a number is None).

    Raises:
      DataError: no run there, or a file of it that cannot be read.
    """
    directory = Path(directory)
    if not is_run(directory):
        raise DataError(f"{directory}: no run ({MANIFEST} missing); give a run's --output_dir, or a sweep's directory")
    manifest = read_manifest(directory)
    results = read_results(directory) if (directory / RESULTS).is_file() else None
    lines = MetricLines(directory / METRICS).new_lines()
    settings, model, curves = manifest["settings"], manifest.get("model") or {}, curves_of(lines)
    benchmark, dataset_name = tasks_named(manifest)
    status = manifest.get("status", "unknown")
    notes = [] if results is not None else [f"not finished (status: {status}): no {RESULTS}"]
    if not lines:
        notes.append(f"no {METRICS}: no curves, no speed" if not (directory / METRICS).is_file() else "nothing logged")
    splits = {split: part for split, part in (manifest.get("data") or {}).items() if isinstance(part, dict)}
    given = settings.get("model_name_or_path") or settings.get("config_name") or "bundled tiny model"
    return {
        "name": name or directory.name or str(directory),
        "directory": str(directory),
        "run_id": manifest["run_id"],
        "status": "finished" if results is not None else status,
        "benchmark": benchmark,
        "dataset_name": dataset_name,
        "model": {"name": given, **{key: model.get(key) for key in ("class", "parameters", "trainable", "adapter")}},
        "size": size_of(model),
        "seed": settings.get("seed"),
        "settings": settings,
        "results": (results or {}).get("tasks", {}),
        "averages": (results or {}).get("averages", {}),
        "groups": (results or {}).get("groups", {}),
        "rows": {task: rows_scored(manifest, task) for task in (results or {}).get("tasks", {})},
        "fingerprints": {split: part["fingerprint"] for split, part in splits.items() if "fingerprint" in part},
        "held_out": [split for split, part in splits.items() if HELD_OUT in str(part.get("origin"))],
        "marks": manifest.get("marks", {}),
        "last_step": lines[-1]["step"] if lines else None,
        "curves": {metric: thinned(points) for metric, points in curves.items()},
        "speed": speed_of(lines),
        "environment": {
            "command": shlex.join(["python", *map(str, manifest["command"])]) if manifest.get("command") else None,
            "started": manifest.get("started"),
            "finished": manifest.get("finished"),
            "versions": manifest.get("versions") or {},
            "commit": {key: value for key, value in (manifest.get("commit") or {}).items() if key != "diff"},
            "hardware": manifest.get("hardware") or {},
        },
        "notes": notes,
    }


def curves_of(lines: list[dict]) -> dict[str, list]:
    """`{name: [[step, value], ...]}` of what was logged under `train/` and `eval/`; the last of a step counts.

    >>> curves_of([{"step": 5, "train/loss": 2.0}, {"step": 5, "train/loss": 1.9}, {"step": 9, "train/loss": 1.5}])
    {'train/loss': [[5, 1.9], [9, 1.5]]}
    >>> curves_of([{"step": 5, "seconds": 1.0, "eval/x": None, "train/train_loss": 3.0}])  # of the whole training
    {}
    """
    found: dict[str, dict] = {}
    for line in lines:
        for name, value in line.items():
            if "/" in name and not name.startswith("train/train_") and is_number(value):
                found.setdefault(name, {})[line["step"]] = value
    return {name: [[step, value] for step, value in sorted(points.items())] for name, points in found.items()}


def thinned(points: list, most: int = MOST_POINTS) -> list:
    """At most `most` of the points, evenly spaced, first and last included."""
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def speed_of(lines: list[dict]) -> dict[str, float]:
    """Medians of the logged rates, seconds and memory: `{"train/tokens_per_second": 117028.6}`."""
    series: dict[str, list] = {}
    for line in lines:
        for name, value in line.items():
            if name.startswith("train/") and is_of_the_machine(name) and is_number(value):
                series.setdefault(name, []).append(value)
    return {name: statistics.median(values) for name, values in series.items()}


def settings_of(runs: list[dict]) -> list[dict]:
    """Runs that are seeds of one setting: `[{"label", "differs": {name: value}, "runs": [names]}]`, in the runs' order.

    >>> [(setting["label"], setting["runs"]) for setting in settings_of(runs)]
    [('learning_rate 0.001', ['rte-s1', 'rte-s2', 'cola-s1']), ('learning_rate 0.0001', ['rte-low'])]

    The label names what differs from the other settings of the same script; it is empty where there is one setting.
    """
    groups: dict[str, dict] = {}
    for run in runs:
        kept = {
            name: value
            for name, value in run["settings"].items()
            if is_decisive(name) and name not in NOT_A_SETTING and value is not None
        }
        key = json.dumps(kept, sort_keys=True, default=str)
        groups.setdefault(key, {"settings": kept, "runs": []})["runs"].append(run["name"])
    known, found = flags_marked("report"), []
    for group in groups.values():
        is_fine_tuning = "max_source_length" in group["settings"]
        kind = [
            other["settings"]
            for other in groups.values()
            if ("max_source_length" in other["settings"]) == is_fine_tuning
        ]
        names = dict.fromkeys(name for settings in kind for name in settings)
        varied = [name for name in names if len({json.dumps(one.get(name), default=str) for one in kind}) > 1]
        varied.sort(key=lambda name: known.index(name) if name in known else len(known))
        differs = {name: group["settings"].get(name) for name in varied}
        alone = "" if len(groups) == 1 else "as given" if is_fine_tuning else "pre-training"
        found.append({"label": label_of(differs) or alone, "differs": differs, "runs": group["runs"]})
    labels = [setting["label"] for setting in found]
    for at, setting in enumerate(found):
        if setting["label"] and labels.count(setting["label"]) > 1:
            setting["label"] += f" (setting {at + 1})"
    return found


def label_of(differs: dict) -> str:
    """What a setting is called.

    >>> label_of({"learning_rate": 0.001, "optimizer": "adafactor"})
    'learning_rate 0.001, optimizer adafactor'
    """
    said = []
    for name, value in list(differs.items())[:MOST_NAMED]:
        text = f"{value:g}" if isinstance(value, float) else "unset" if value is None else str(value)
        said.append(f"{name} {text if len(text) <= LONGEST_VALUE else '...' + text[3 - LONGEST_VALUE :]}")
    return ", ".join(said + ([f"{len(differs) - MOST_NAMED} more"] if len(differs) > MOST_NAMED else []))


SIZES = ("small", "base", "large", "3B", "11B")
# Millions of parameters of v1.0 and v1.1; an adapter, or a few more pieces, adds less than a twentieth.
MILLIONS = {"small": (60.5, 77.0), "base": (222.9, 247.6), "large": (737.7, 783.2), "3B": (2851.6, 2849.8),
            "11B": (11307.3, 11135.3)}  # fmt: skip


@functools.cache
def published_scores() -> dict:
    """The whole table."""
    return json.loads((Path(__file__).parent / "published_scores.json").read_text(encoding="utf-8"))


def published_score(benchmark: str | None, task: str, metric: str, size: str | None) -> float | None:
    """Points of the T5 of that size; None where none were published.

    Args:
      task: as results name it, such as `mnli_matched`; a test split's `.test` is ignored.
    """
    scores = published_scores()["test"].get(benchmark, {}).get(task.removesuffix(".test"), {}).get(metric)
    return scores[SIZES.index(size)] if scores and size in SIZES else None


def published_average(benchmark: str | None, size: str | None) -> float | None:
    """The benchmark's published average of that size, over the tasks that our average is over."""
    averages = published_scores()["averages"].get(benchmark)
    return averages[SIZES.index(size)] if averages and size in SIZES else None


def size_of(model: dict) -> str | None:
    """The published size that a T5 has, by its number of parameters.

    >>> size_of({"class": "T5ForConditionalGeneration", "parameters": 247577856}), size_of({"class": "MT5Model"})
    ('base', None)
    """
    found = (model.get("parameters") or 0) / 1e6 if model.get("class") == "T5ForConditionalGeneration" else 0.0
    return next((size for size, known in MILLIONS.items() if any(1 <= found / m + 0.001 < 1.05 for m in known)), None)
