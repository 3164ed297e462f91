"""A sweep as its `sweep.json` records it: its trials, and the best of them.

    >>> sweep = read_sweep("runs/sweeps/glue_rte")
    >>> sweep["metric"], sweep["goal"], [(t["number"], t["state"], t["value"]) for t in sweep["trials"]][:2]
    ('eval/accuracy', 'maximize', [(7, 'complete', 71.1), (2, 'pruned', 66.8)])

The file is rewritten whole while the sweep runs, so it can be read at any time.
"""

from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.base.terminal import Terminal
from t5suite.launch.commands import SEED, TASK
from t5suite.launch.sweep_tables import best_lines, cell_text, flat, parameter_names, ranked, shown, table_of
from t5suite.reports.formatting import is_number
from t5suite.reports.tables import new_table
from t5suite.runs.directory import read_json

SWEEP_FILE, SWEEP_CONFIG = "sweep.json", "sweep.yaml"
# Positive values that are further apart than this factor are drawn on a logarithmic axis.
WIDE = 50


def is_sweep(directory) -> bool:
    """Whether a directory is a sweep's, rather than a run's."""
    return any((Path(directory) / name).is_file() for name in (SWEEP_FILE, SWEEP_CONFIG))


def read_sweep(directory) -> dict:
    """The sweep in a directory, as its tables, its plots and reports take it.

    `{"name", "directory", "method", "metric", "goal", "varied": names, "constant": {name: value}, "trials", "best",
    "command", "groups"}`: `varied` are the parameters that differ between trials; `best` is the number of the best
    trial, and `command` its command; `groups` are a grid's over seeds and tasks, `{"parameters", "task", "n", "mean",
    "std"}`. Trials are `sweep.json`'s: the best first, then those that did not finish, then those without a value;
    nested parameters are `outer.inner`, `curve` has `[step, value]` of every evaluation.

    Raises:
      DataError: no sweep.json there yet, or a broken one.
    """
    path = Path(directory) / SWEEP_FILE
    if not path.is_file():
        raise DataError(f"{directory}: no {SWEEP_FILE}: no trial of this sweep has begun")
    try:
        record = read_json(path)
        trials = []
        for entry in ranked(record):
            value, curve = entry["value"], [point for point in entry["curve"] if is_number(point[1])]
            trials.append(
                {
                    **entry,
                    "parameters": flat(entry["parameters"]),
                    "why": entry.get("why") or "",
                    "value": value if is_number(value) else None,
                    "curve": curve,
                }
            )
        varied = parameter_names(record["trials"]) if len(trials) > 1 else []
        first = trials[0]["parameters"] if trials else {}
        return {
            "name": record["name"],
            "directory": str(directory),
            "method": record["method"],
            "metric": record["metric"]["name"],
            "goal": record["metric"]["goal"],
            "varied": varied,
            "constant": {name: value for name, value in first.items() if name not in varied},
            "trials": trials,
            "best": record["best"],
            "command": next((trial["command"] for trial in trials if trial["number"] == record["best"]), ""),
            "groups": record["groups"] or [],
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: not a sweep's record ({type(error).__name__}: {error})") from None


def valued(sweep: dict) -> list[dict]:
    """The trials that have a value, by number."""
    return sorted((t for t in sweep["trials"] if t["value"] is not None), key=lambda trial: trial["number"])


def searched(sweep: dict) -> list[str]:
    """The varied parameters except the seed, whose trials are replicates, and the task, whose scores are its own."""
    return [name for name in sweep["varied"] if name not in (SEED, TASK)]


def is_logarithmic(sweep: dict, name: str) -> bool:
    """Whether an axis for the parameter should be logarithmic."""
    values = [trial["parameters"][name] for trial in sweep["trials"] if name in trial["parameters"]]
    is_positive = bool(values) and all(is_number(value) and value > 0 for value in values)
    return is_positive and max(values) / min(values) >= WIDE


def rows_of_sweep(sweep: dict) -> list[dict]:
    """One row per trial, the best first; then the groups of a grid; then the best trial."""
    base = {"sweep": sweep["name"], "metric": sweep["metric"]}
    trials = [{name: value for name, value in trial.items() if name != "curve"} for trial in sweep["trials"]]
    return [*({**base, **row} for row in [*trials, *sweep["groups"]]), {**base, "best": sweep["best"]}]


def print_sweep(sweep: dict) -> None:
    """The trials, a grid's means, and the best trial with its command."""
    console = Terminal(width=None if Terminal().is_terminal else 118, markup=False, emoji=False, highlight=False)
    metric, trials, groups = (sweep[name] for name in ("metric", "trials", "groups"))
    console.print(table_of({**sweep, "metric": {"name": metric, "goal": sweep["goal"]}}))
    for trial in trials:
        if trial["why"]:
            console.print(f"trial {trial['number']}: {trial['why']}")
    if sweep["constant"] and len(trials) > 1:
        console.print(f"in all trials: {', '.join(f'{name}={value}' for name, value in sweep['constant'].items())}")
    if groups:  # settings by tasks
        tasks = list(dict.fromkeys(group["task"] for group in groups))
        columns = ["all trials" if task is None else str(task) for task in tasks]
        columns += ["average"] if len(tasks) > 1 else []
        title = f"{metric}: mean ± standard deviation (number of trials)"
        table = new_table(title, ["setting", *columns], right=columns)
        for label in dict.fromkeys(shown(group["parameters"]) for group in groups):
            of_task = {group["task"]: group for group in groups if shown(group["parameters"]) == label}
            means = [of_task[task]["mean"] if task in of_task else None for task in tasks]
            cells = []
            for task, mean in zip(tasks, means):
                std = None if mean is None else of_task[task]["std"]
                spread = "" if std is None else f" ± {std:.2f}"
                cells.append("-" if mean is None else f"{mean:.2f}{spread} ({of_task[task]['n']})")
            if len(tasks) > 1:
                cells.append("-" if None in means else f"{sum(means) / len(means):.2f}")
            table.add_row(label or "(as given)", *cells)
        console.print(table)
    lines = best_lines(groups, sweep["goal"], sweep["name"])
    for best in (trial for trial in trials if trial["number"] == sweep["best"]):
        said = "best single trial" if lines else "best: trial"
        lines += [f"{said} {best['number']}, {metric} {cell_text(best['value'])} ({best['run_dir']})", best["command"]]
    for line in lines or [f"no trial has finished with a value of {metric} yet"]:
        console.print(line, soft_wrap=True)


def trial_directories(sweep: dict) -> dict[int, Path]:
    """Where the runs of a sweep's trials are, by number; a relative path may be relative to the sweep's directory."""
    trials = sorted(sweep["trials"], key=lambda trial: trial["number"])
    paths = {trial["number"]: Path(trial["run_dir"]) for trial in trials if trial["run_dir"]}
    return {at: path if path.is_dir() else Path(sweep["directory"], path) for at, path in paths.items()}
