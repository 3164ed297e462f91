"""A sweep as its `sweep.json` records it: its trials, and the best of them.

    >>> sweep = read_sweep_record("runs/sweeps/glue_rte")
    >>> sweep["metric"], sweep["goal"], sweep["trials"][0]["value"]
    ('eval/accuracy', 'maximize', 71.1)

The file is rewritten whole while the sweep runs, so it can be read at any time.
"""

from collections.abc import Iterable
from pathlib import Path

from rich.table import Table

from t5suite.base.errors import DataError
from t5suite.base.files import read_json
from t5suite.launch.commands import SEED, TASK
from t5suite.launch.sweep_summaries import flat_parameters, parameter_names, rank_trials
from t5suite.launch.sweep_tables import best_lines, cell_text, parameters_text, shown_scores, summary_table
from t5suite.reports.formatting import is_plain_number, short_names
from t5suite.reports.tables import new_console, new_table

SWEEP_FILE = "sweep.json"
SWEEP_CONFIG = "sweep.yaml"
# Positive values that are further apart than this factor are drawn on a logarithmic axis.
WIDE = 50


def is_sweep(directory) -> bool:
    """Whether a directory is a sweep's, rather than a run's."""
    return any((Path(directory) / name).is_file() for name in (SWEEP_FILE, SWEEP_CONFIG))


def read_sweep_record(directory) -> dict:
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
        return _sweep_of(read_json(path), directory)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: not a sweep's record ({type(error).__name__}: {error})") from None


def _sweep_of(record: dict, directory) -> dict:
    """What `sweep.json` holds, in the form of `read_sweep_record`."""
    trials = [_trial_of(entry) for entry in rank_trials(record)]
    varied = []
    if len(trials) > 1:
        varied = parameter_names(record["trials"])
    constant = _constant_parameters(trials, varied)
    command = _command_of_trial(trials, record["best"])
    return {
        "name": record["name"],
        "directory": str(directory),
        "method": record["method"],
        "metric": record["metric"]["name"],
        "goal": record["metric"]["goal"],
        "varied": varied,
        "constant": constant,
        "trials": trials,
        "best": record["best"],
        "command": command,
        "groups": record["groups"] or [],
    }


def _constant_parameters(trials: list[dict], varied: list[str]) -> dict:
    """The parameters that all trials have in common; of one trial, all."""
    if not trials:
        return {}
    return {name: value for name, value in trials[0]["parameters"].items() if name not in varied}


def _command_of_trial(trials: list[dict], number: int | None) -> str:
    """The command of the trial of that number; empty without one."""
    commands = [trial["command"] for trial in trials if trial["number"] == number]
    if not commands:
        return ""
    return commands[0]


def _trial_of(entry: dict) -> dict:
    """A trial of `sweep.json`, with numbers alone among its values."""
    parameters = flat_parameters(entry["parameters"])
    value = None
    if is_plain_number(entry["value"]):
        value = entry["value"]
    return {
        **entry,
        "parameters": parameters,
        "why": entry.get("why") or "",
        "value": value,
        "curve": [point for point in entry["curve"] if is_plain_number(point[1])],
    }


def sweep_titles(sweeps: Iterable[dict]) -> list[str]:
    """What each sweep is called: its name, and its directory where others have the same name.

    >>> sweep_titles([{"name": "rte", "directory": "runs/small"}, {"name": "rte", "directory": "runs/base"}])
    ['rte (small)', 'rte (base)']
    """
    sweeps = list(sweeps)
    names = [sweep["name"] for sweep in sweeps]
    short_name_of = short_names(sweep["directory"] for sweep in sweeps)
    titles = []
    for sweep, name in zip(sweeps, names, strict=True):
        title = name
        if names.count(name) > 1:
            title = f"{name} ({short_name_of[str(sweep['directory'])]})"
        titles.append(title)
    return titles


def valued(sweep: dict) -> list[dict]:
    """The trials that have a value, by number."""
    trials = [trial for trial in sweep["trials"] if trial["value"] is not None]
    return sorted(trials, key=lambda trial: trial["number"])


def searched(sweep: dict) -> list[str]:
    """The varied parameters except the seed, whose trials are replicates, and the task, whose scores are its own."""
    return [name for name in sweep["varied"] if name not in (SEED, TASK)]


def is_logarithmic(sweep: dict, name: str) -> bool:
    """Whether an axis for the parameter should be logarithmic."""
    values = []
    for trial in sweep["trials"]:
        parameters = trial["parameters"]
        if name in parameters:
            values.append(parameters[name])
    are_positive = all(is_plain_number(value) and value > 0 for value in values)
    if not values or not are_positive:
        return False
    return max(values) / min(values) >= WIDE


def rows_of_sweep(sweep: dict) -> list[dict]:
    """One row per trial, the best first; then the groups of a grid; then the best trial."""
    columns_of_all = {"sweep": sweep["name"], "metric": sweep["metric"]}
    trials = [_without_curve(trial) for trial in sweep["trials"]]
    rows = [*trials, *sweep["groups"], {"best": sweep["best"]}]
    return [{**columns_of_all, **row} for row in rows]


def _without_curve(trial: dict) -> dict:
    return {name: value for name, value in trial.items() if name != "curve"}


def print_sweep(sweep: dict) -> None:
    """The trials, a grid's means, and the best trial with its command."""
    console = new_console(highlight=False)
    metric = sweep["metric"]
    trials = sweep["trials"]
    console.print(summary_table({**sweep, "metric": {"name": metric, "goal": sweep["goal"]}}))
    for trial in trials:
        if trial["why"]:
            console.print(f"trial {trial['number']}: {trial['why']}")
    if sweep["constant"] and len(trials) > 1:
        parameters = [f"{name}={value}" for name, value in sweep["constant"].items()]
        console.print(f"in all trials: {', '.join(parameters)}")
    if sweep["groups"]:
        console.print(_table_of_groups(sweep["groups"], metric, shown_scores(trials)))
    lines = _lines_of_best(sweep)
    if not lines:
        lines = [_why_no_best(trials, metric)]
    for line in lines:
        console.print(line, soft_wrap=True)


def _why_no_best(trials: list[dict], metric: str) -> str:
    """Why no trial is the best one."""
    complete_count = sum(trial["state"] == "complete" for trial in trials)
    if complete_count:
        return f"no best trial: {metric} of all {complete_count} that are complete is NaN or missing"
    return f"no trial has finished with a value of {metric} yet"


def _table_of_groups(groups: list[dict], metric: str, scores: list[str]) -> Table:
    """A grid's means: settings by tasks, and the mean over the tasks if there are several.

    Args:
      scores: metrics of the task that get a column each, if there is one task.
    """
    tasks = list(dict.fromkeys(group["task"] for group in groups))
    columns = [_column_of_task(task) for task in tasks]
    if len(tasks) > 1:
        columns.append("average")
        scores = []
    columns += [name.removeprefix("eval/") for name in scores]
    title = f"{metric}: mean ± standard deviation (number of trials)"
    table = new_table(title, ["setting", *columns], right=columns)
    by_setting: dict[str, dict] = {}
    for group in groups:
        setting = parameters_text(group["parameters"])
        by_setting.setdefault(setting, {})[group["task"]] = group
    for setting, group_of_task in by_setting.items():
        groups_of_setting = [group_of_task.get(task) for task in tasks]
        table.add_row(setting or "(as given)", *_cells_of_setting(groups_of_setting, scores))
    return table


def _cells_of_setting(groups: list[dict | None], scores: list[str]) -> list[str]:
    """A setting's means: of each task, of all if there are several, of the further metrics of the only one."""
    cells = [_cell_of_group(group) for group in groups]
    if len(groups) > 1:
        cells.append(_average_cell(groups))
    scores_of_task = (groups[0] or {}).get("scores") or {}
    return cells + [_cell_of_group(scores_of_task.get(name)) for name in scores]


def _column_of_task(task: str | None) -> str:
    """A task's name; where the trials name none, they are all of one."""
    if task is None:
        return "all trials"
    return str(task)


def _cell_of_group(group: dict | None) -> str:
    """`71.20 ± 1.30 (3)`; a dash without a trial that has a value."""
    if group is None or group["mean"] is None:
        return "-"
    text = f"{group['mean']:.2f}"
    if group["std"] is not None:
        text += f" ± {group['std']:.2f}"
    return f"{text} ({group['n']})"


def _average_cell(groups: list[dict | None]) -> str:
    """The mean of the groups' means; a dash if a task has none."""
    means = []
    for group in groups:
        if group is None or group["mean"] is None:
            return "-"
        means.append(group["mean"])
    return f"{sum(means) / len(means):.2f}"


def _lines_of_best(sweep: dict) -> list[str]:
    """The best settings of a grid, then the best trial and its command; none without a value."""
    lines = best_lines(sweep["groups"], sweep["goal"], sweep["name"])
    for trial in sweep["trials"]:
        if trial["number"] != sweep["best"]:
            continue
        score = f"{sweep['metric']} {cell_text(trial['value'])} ({trial['run_dir']})"
        if lines:
            lines.append(f"best single trial: {_numbered_setting(trial, sweep['varied'])}, {score}; its command:")
        else:
            lines.append(f"best: trial {trial['number']}, {score}")
        lines.append(trial["command"])
    return lines


def _numbered_setting(trial: dict, varied: list[str]) -> str:
    """`3, learning_rate 0.001, seed 1`: a trial's number, and what it has of the varied parameters."""
    setting = {name: trial["parameters"][name] for name in varied if name in trial["parameters"]}
    if not setting:
        return str(trial["number"])
    return f"{trial['number']}, {parameters_text(setting)}"


def trial_directories(sweep: dict) -> dict[int, Path]:
    """Where the runs of a sweep's trials are, by number.

    They are in its folder `trials`: the recorded path may be relative to where the sweep was started, and the sweep may
    have moved since.
    """
    directories = {}
    for trial in sorted(sweep["trials"], key=lambda trial: trial["number"]):
        if not trial["run_dir"]:
            continue
        path = Path(sweep["directory"], "trials", Path(trial["run_dir"]).name)
        if not path.is_dir():
            path = Path(sweep["directory"], trial["run_dir"])
        directories[trial["number"]] = path
    return directories
