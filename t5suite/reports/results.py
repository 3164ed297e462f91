"""Runs and sweeps -> the one dict of results that every renderer shows, so that all show the same numbers.

>>> data = report_data(["runs/rte-s1", "runs/rte-s2"])
>>> data["scores"][0]["task"], data["scores"][0]["mean"], data["scores"][0]["std"]
('rte', 64.25, 1.06)

JSON all the way down: `report.json` is this dict, and the page carries it too.
"""

import math
import statistics
from pathlib import Path

from t5suite import __version__
from t5suite.base.errors import UserError
from t5suite.reports import intervals as resampling
from t5suite.reports.evaluations import Evaluation, confusion, evaluations_of, examples_of, majority
from t5suite.reports.intervals import statistic_of
from t5suite.reports.run_facts import published_average, published_score, published_scores, read_run, settings_of
from t5suite.reports.tables import averages_of_runs, named, read_runs
from t5suite.tasks.entries import metric_functions

# Examples on the whole page; each evaluation has an equal part of them.
MOST_EXAMPLES = 1500


def report_data(
    directories, data_dir: str | None = None, size: str | None = None, most_examples: int = MOST_EXAMPLES, sweeps=()
) -> dict:
    """Everything that a report shows.

    Args:
      directories: of runs, finished or not.
      data_dir: where the rows are now, if not where the runs had them.
      size: the published T5 beside which scores stand; default: that of each run's own model.
      sweeps: as `sweep_data` makes them.

    Raises:
      DataError: a directory without a run, or with files that cannot be read.
    """
    trials = trial_names(sweeps)
    names = {directory: trials.get(Path(directory).resolve(), name) for directory, name in named(directories).items()}
    runs = [read_run(directory, name) for directory, name in names.items()]
    for run in runs:
        run["size"] = size or run["size"]
    settings = settings_of(runs)
    for setting in settings:
        for run in runs:
            if run["name"] in setting["runs"]:
                run["setting"] = setting["label"]
    details = {run["name"]: _evaluated(run, data_dir) for run in runs}
    num_evaluations = sum(len(evaluations) for evaluations in details.values())
    most = max(10, most_examples // max(1, num_evaluations))
    for run in runs:
        run["intervals"] = _intervals(details[run["name"]])
        run["baselines"] = {e.name: majority(e) for e in details[run["name"]] if e.judged is not None}
        run["notes"] += [f"{e.name}: {e.note}" for e in details[run["name"]] if e.note]
    pairs = [(run, evaluation) for run in runs for evaluation in details[run["name"]]]
    return {
        "title": title_of(runs, sweeps),
        "version": __version__,
        "runs": runs,
        "settings": settings,
        "scores": scores_of(runs, settings),
        "averages": averages_of(runs, settings),
        "confusions": [
            {"run": run["name"], "task": e.name, **matrix} for run, e in pairs if (matrix := confusion(e)) is not None
        ],
        "examples": [{"run": run["name"], "task": e.name, "note": e.note, **examples_of(e, most)} for run, e in pairs],
        "sweeps": list(sweeps),
        "method": method(),
    }


def _evaluated(run: dict, data_dir: str | None) -> list[Evaluation]:
    try:
        return evaluations_of(run["directory"], data_dir)
    except (UserError, OSError) as error:
        run["notes"].append(f"predictions: {error}")
        return []


def _intervals(evaluations: list[Evaluation]) -> dict:
    """`{task: {metric: interval}}` over rows."""
    found: dict = {}
    for evaluation in evaluations:
        if evaluation.judged is None:
            continue
        for name, function in metric_functions(evaluation.task.entry).items():
            if evaluation.scores.get(name) is None:
                continue
            statistic = statistic_of(name, function, evaluation.judged, evaluation.num_classes)
            interval = resampling.interval_over_rows(statistic)
            if interval:
                found.setdefault(evaluation.name, {})[name] = interval
    return found


def scores_of(runs: list[dict], settings: list[dict]) -> list[dict]:
    """One entry a setting, task and metric: mean, standard deviation, interval, published score, majority baseline."""
    entries = []
    for setting in settings:
        members = [run for run in runs if run["name"] in setting["runs"] and run["results"]]
        tasks = dict.fromkeys((run["benchmark"], task) for run in members for task in run["results"])
        for benchmark, task in tasks:
            having = [run for run in members if run["benchmark"] == benchmark and task in run["results"]]
            for metric in dict.fromkeys(m for run in having for m in run["results"][task]):
                entries.append(_score_entry(setting["label"], benchmark, task, metric, having))
    return entries


def _score_entry(label: str, benchmark, task: str, metric: str, runs: list[dict]) -> dict:
    values = {run["name"]: run["results"][task][metric] for run in runs if metric in run["results"][task]}
    sizes = {run["size"] for run in runs}
    size = sizes.pop() if len(sizes) == 1 else None
    baselines = [(run["baselines"].get(task) or {}).get("scores", {}).get(metric) for run in runs]
    known = [value for value in baselines if value is not None]
    entry = {
        "setting": label,
        "benchmark": benchmark,
        "task": task,
        "metric": metric,
        "values": values,
        "rows": _rows_of_task(runs[0], task),
        "published": published_score(benchmark, task, metric, size),
        "size": size,
        "majority": sum(known) / len(known) if known else None,
        **spread(list(values.values())),
    }
    if len(values) == 1:
        rows = runs[0]["intervals"].get(task, {}).get(metric)
        entry["interval"] = {**rows, "over": "rows"} if rows else None
    return entry


def spread(values: list) -> dict:
    """`{"n", "mean", "std", "interval"}`; the standard deviation is that of a sample (n - 1), and none of one value.

    >>> spread([60.0, 64.0])["std"]
    2.8284271247461903
    """
    numbers = [value for value in values if value is not None and math.isfinite(value)]
    whole = len(numbers) == len(values) and bool(values)
    interval = resampling.interval_over_values(values) if whole else None
    return {
        "n": len(values),
        "mean": statistics.fmean(numbers) if whole else None,
        "std": statistics.stdev(numbers) if whole and len(numbers) > 1 else None,
        "interval": {**interval, "over": "seeds"} if interval else None,
    }


def _rows_of_task(run: dict, task: str) -> int | None:
    """The number of rows that a result was scored on."""
    for name, used in run["rows"].items():
        owner, _, split = name.rpartition(".")
        half = split.removeprefix("validation").removeprefix("test")
        if task in (owner + half, f"{owner}{half}.test"):
            return used
    return None


def averages_of(runs: list[dict], settings: list[dict]) -> list[dict]:
    """Suite averages over seeds: those in the runs' results, and those of one-task runs that together cover a suite."""
    entries = []
    for setting in settings:
        members = [run for run in runs if run["name"] in setting["runs"] and run["results"]]
        found: dict[str, dict[str, float | None]] = {}
        for run in members:
            for suite, value in run["averages"].items():
                found.setdefault(suite, {})[run["name"]] = value
        for seed in dict.fromkeys(run["seed"] for run in members):
            single = [run for run in members if run["seed"] == seed and not run["averages"]]
            for suite, value in averages_of_runs(read_runs(run["directory"] for run in single)).items():
                names = ", ".join(run["name"] for run in single if run["benchmark"] == suite)
                found.setdefault(suite, {})[names] = value if math.isfinite(value) else None
        sizes = {run["size"] for run in members}
        size = sizes.pop() if len(sizes) == 1 else None
        for suite, values in found.items():
            published = published_average(suite, size)
            entry = {"setting": setting["label"], "suite": suite, "values": values, "published": published}
            entries.append({**entry, "size": size, **spread(list(values.values()))})
    return entries


def trial_names(sweeps) -> dict[Path, str]:
    """What the runs of sweeps' trials are called, by directory.

    >>> trial_names([{"name": "rates", "directory": "/r", "trials": [{"number": 3, "run_dir": "/r/trials/0003"}]}])
    {PosixPath('/r/trials/0003'): 'rates trial 3'}
    """
    labels = [sweep["name"] for sweep in sweeps]
    if len(set(labels)) < len(labels):
        labels = [named(sweep["directory"] for sweep in sweeps)[sweep["directory"]] for sweep in sweeps]
    names = {}
    for label, sweep in zip(labels, sweeps):
        for trial in sweep["trials"]:
            for place in ((trial["run_dir"],), (sweep["directory"], trial["run_dir"])) if trial["run_dir"] else ():
                names[Path(*place).resolve()] = f"{label} trial {trial['number']}"
    return names


def title_of(runs: list[dict], sweeps) -> str:
    """What the report is about; a sweep's trials are part of it.

    >>> title_of([rte_run, cola_run], []), title_of([rte_run], [{"name": "rates", "trials": []}])
    ('glue: rte, cola', 'Sweep rates; glue: rte')
    """
    trials = trial_names(sweeps)
    others = [run for run in runs if Path(run["directory"]).resolve() not in trials]
    parts = ["Sweep " + ", ".join(sweep["name"] for sweep in sweeps)] if sweeps else []
    return "; ".join([*parts, *([_title_of_runs(others)] if others or not parts else [])])


def _title_of_runs(runs: list[dict]) -> str:
    tasks = list(dict.fromkeys(task for run in runs for task in run["results"] or [run["dataset_name"] or "run"]))
    suites = list(dict.fromkeys(run["benchmark"] for run in runs if run["benchmark"]))
    named_tasks = ", ".join(map(str, tasks[:6])) + (f" and {len(tasks) - 6} more" if len(tasks) > 6 else "")
    return f"{', '.join(suites)}: {named_tasks}" if suites else named_tasks


def method() -> dict:
    """How the numbers were made, in words that the renderers print."""
    many = resampling.RESAMPLES
    few = f"{resampling.RESAMPLES_DIRECT} ({resampling.RESAMPLES_TEXTS} over texts)"
    return {
        "interval": (
            f"{resampling.LEVEL:.0%} percentile bootstrap, generator seed {resampling.SEED}. Over rows: rows (groups "
            f"of rows, such as MultiRC's questions) drawn with replacement, {many} times, {few} for metrics that are "
            f"computed anew each time. Over seeds: the runs' scores drawn with replacement, {many} times; of two seeds "
            "that is their range, and of few it is too narrow."
        ),
        "std": "Sample standard deviation over seeds (n - 1).",
        "majority": "Always the most frequent label of the very rows that the run was scored on.",
        "published": (
            f"{published_scores()['sources']['test']} GLUE's published average is taken over the eight tasks that ours "
            "is over, without WNLI."
        ),
        "speed": "Medians of the logged values; nothing is shown that was not logged.",
    }


# What is logged beside the scores and says nothing that a curve would show.
LEFT_OUT = (
    "average",
    "perplexity",
    "runtime",
    "samples_per_second",
    "steps_per_second",
    "gender_parity",
)
MOST_PANELS = 60
# Shares of answers in percent, which say nothing as long as they are 0 in every run.
SHARES = {"invalid_rate": "invalid answers", "truncated_rate": "answers cut off"}
LOSSES = ("loss", "nll")


def panels_of(data: dict) -> list[dict]:
    """`[{"name", "title", "unit", "lines": [{"run", "setting", "finished", "points"}], "means": {setting: points}}]`.

    The mean stands at the steps that all finished runs of a setting logged, and only where there are several.
    """
    found: dict[tuple[str, str], list] = {}
    for run in data["runs"]:
        for name, points in run["curves"].items():
            place = _place(name, run)
            if place is not None:
                finished = run["status"] == "finished"
                line = {"run": run["name"], "setting": run["setting"], "finished": finished, "points": points}
                found.setdefault(place, []).append(line)
    found = {place: lines for place, lines in found.items() if place[1] not in SHARES.values() or _ever_above_0(lines)}
    panels = [
        {
            "name": "curve-" + "-".join(part.replace("/", "-").replace(" ", "-") for part in place if part),
            "title": f"{place[0]}: {place[1]}" if place[0] else place[1],
            "unit": unit_of(place[1]),
            "lines": lines,
            "means": means_of(lines),
        }
        for place, lines in found.items()
    ]
    order = list(dict.fromkeys(place[0] for place in found))
    places = {id(panel): place for panel, place in zip(panels, found)}
    panels.sort(key=lambda panel: (order.index(places[id(panel)][0]), _rank(places[id(panel)][1])))
    return panels[:MOST_PANELS]


def _rank(metric: str) -> int:
    """Scores first, then shares of answers, then losses."""
    return 2 if "loss" in metric else int(metric in SHARES.values())


def _ever_above_0(lines: list[dict]) -> bool:
    return any(value > 0 for line in lines for _, value in line["points"])


def _place(name: str, run: dict) -> tuple[str, str] | None:
    """`(task, metric)` of a logged name; None for what is no learning curve."""
    parts = name.split("/")
    task = run["dataset_name"] if run["benchmark"] else "pre-training"
    if parts[0] == "train":
        return (str(task), "training loss") if parts[1:] == ["loss"] else None
    if parts[0] != "eval" or parts[-1] in LEFT_OUT:
        return None
    leaf = "held-out loss" if parts[-1] == "loss" else SHARES.get(parts[-1], parts[-1])
    if len(parts) == 3:
        return parts[1], leaf
    # A pre-training run's loss is its nll.
    return None if leaf == "held-out loss" and "eval/nll" in run["curves"] else (str(task), leaf)


def unit_of(metric: str) -> str:
    """What an axis counts in.

    >>> unit_of("accuracy"), unit_of("training loss"), unit_of("answers cut off")
    ('points', 'nats per token', '%')
    """
    if metric in SHARES.values():
        return "%"
    return "nats per token" if any(word in metric for word in LOSSES) else "points"


def means_of(lines: list[dict]) -> dict[str, list]:
    """`{setting: [[step, mean], ...]}` of settings that have several finished runs: those that the tables average."""
    means = {}
    for setting in dict.fromkeys(line["setting"] for line in lines):
        seeds = [dict(map(tuple, line["points"])) for line in lines if line["setting"] == setting and line["finished"]]
        steps = sorted(set.intersection(*(set(points) for points in seeds))) if len(seeds) > 1 else []
        if steps:
            means[setting] = [[step, sum(points[step] for points in seeds) / len(seeds)] for step in steps]
    return means


def shown_settings(data: dict, most: int) -> list[str]:
    """The settings that have a colour of their own: all, or those with the best mean score where there are too many."""
    labels = [setting["label"] for setting in data["settings"]]
    if len(labels) <= most:
        return labels
    best: dict[str, list] = {label: [] for label in labels}
    for entry in data["scores"]:
        if entry["metric"] != "invalid_rate" and entry["mean"] is not None:
            best[entry["setting"]].append(entry["mean"])
    mean = {label: sum(values) / len(values) if values else float("-inf") for label, values in best.items()}
    chosen = sorted(labels, key=lambda label: -mean[label])[: most - 1]
    return [label for label in labels if label in chosen]
