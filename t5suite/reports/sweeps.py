"""A sweep as its `sweep.json` tells it: its trials, the best of them, tables, importance of its parameters.

    >>> sweep = read_sweep("runs/sweeps/glue_rte")
    >>> sweep.metric, sweep.goal, [(trial.number, trial.state, trial.value) for trial in sweep.ranked()][:2]
    ('eval/accuracy', 'maximize', [(7, 'complete', 71.1), (2, 'pruned', 66.8)])
    >>> importances(sweep)
    {'learning_rate': 0.83, 'warmup_steps': 0.11, 'lr_scheduler_type': 0.06}

The file is rewritten whole while the sweep runs, so a sweep can be looked at at any time; neither the trials' models
nor torch are needed.
"""

import json
import math
import re
import warnings
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.table import Table

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.terminal import Terminal
from t5suite.base.yaml_files import read_yaml
from t5suite.launch.sweep_tables import best_lines
from t5suite.reports.tables import shortened
from t5suite.runs.directory import read_json

SWEEP_FILE, SWEEP_CONFIG = "sweep.json", "sweep.yaml"
GOALS = ("maximize", "minimize")
STATES = ("complete", "pruned", "failed", "preempted", "running")
# Positive values that lie further apart than this are drawn on a logarithmic axis where no file says what they are.
WIDE = 50


class Trial(NamedTuple):
    """One run of a sweep.

    Attributes:
      parameters: name -> value; nested ones as `outer.inner`.
      value: the best logged value of the metric; None where none was logged.
      curve: `(step, value)` of every evaluation.
      why: what a failed trial failed of, where that is known.
    """

    number: int
    state: str
    parameters: dict
    value: float | None
    last_step: int | None
    curve: list[tuple[int, float]]
    seconds: float | None
    exit_code: int | None
    run_dir: str
    command: str
    why: str = ""


class Sweep(NamedTuple):
    """A sweep's trials and what they are compared by.

    Attributes:
      groups: for a grid over seeds and tasks, `{"parameters", "task", "n", "mean", "std"}` of each.
      logarithmic: of the parameters whose distribution the sweep's file names, whether it is a logarithmic one.
    """

    directory: Path
    name: str
    method: str
    metric: str
    goal: str
    trials: list[Trial]
    best: int | None
    groups: list[dict]
    logarithmic: dict[str, bool]

    def ranked(self) -> list[Trial]:
        """The trials, the best first; those without a value last, by number."""
        sign = -1 if self.goal == "maximize" else 1
        return sorted(
            self.trials, key=lambda t: (t.value is None, sign * t.value if t.value is not None else 0, t.number)
        )

    def valued(self) -> list[Trial]:
        """The trials that have a value, by number."""
        return [trial for trial in self.trials if trial.value is not None]

    def best_trial(self) -> Trial | None:
        """The trial that the sweep calls its best."""
        return next((trial for trial in self.trials if trial.number == self.best), None)

    def varied(self) -> list[str]:
        """The parameters that are not the same in all trials, in the order of the file."""
        names = dict.fromkeys(name for trial in self.trials for name in trial.parameters)
        seen = {name: {json.dumps(trial.parameters.get(name)) for trial in self.trials} for name in names}
        return [name for name in names if len(seen[name]) > 1]

    def constant(self) -> dict:
        """The parameters that are the same in all trials."""
        varied = self.varied()
        return {
            name: value for trial in self.trials[:1] for name, value in trial.parameters.items() if name not in varied
        }

    def is_logarithmic(self, name: str) -> bool:
        """Whether an axis for the parameter should be logarithmic."""
        values = [trial.parameters.get(name) for trial in self.trials if name in trial.parameters]
        if not values or not all(is_number(value) and value > 0 for value in values):
            return False
        return self.logarithmic.get(name, max(values) / min(values) >= WIDE)


def is_sweep(directory) -> bool:
    """Whether a directory is a sweep's, rather than a run's."""
    return any((Path(directory) / name).is_file() for name in (SWEEP_FILE, SWEEP_CONFIG))


def is_number(value) -> bool:
    """Whether a parameter's value is a number (True is none)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def read_sweep(directory) -> Sweep:
    """The sweep in a directory.

    Raises:
      DataError: no sweep.json there yet, or one that is none.
    """
    path = Path(directory) / SWEEP_FILE
    if not path.is_file():
        raise DataError(f"{directory}: no {SWEEP_FILE}: no trial of this sweep has begun")
    try:
        content = read_json(path)
        metric = content["metric"]
        trials = [_trial(entry) for entry in content["trials"]]
        if metric["goal"] not in GOALS:
            raise ValueError(f"goal {metric['goal']!r} is none of {', '.join(GOALS)}")
        return Sweep(
            directory=Path(directory),
            name=str(content["name"]),
            method=str(content["method"]),
            metric=str(metric["name"]),
            goal=metric["goal"],
            trials=trials,
            best=content.get("best"),
            groups=list(content.get("groups") or []),
            logarithmic=logarithmic_parameters(Path(directory) / SWEEP_CONFIG),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path}: not a sweep's record ({type(error).__name__}: {error})") from None


def _trial(entry: dict) -> Trial:
    if entry["state"] not in STATES:
        raise ValueError(f"trial {entry['number']}: state {entry['state']!r} is none of {', '.join(STATES)}")
    value = entry.get("value")
    return Trial(
        number=int(entry["number"]),
        state=entry["state"],
        parameters=flattened(entry["parameters"]),
        value=float(value) if is_number(value) else None,
        last_step=entry.get("last_step"),
        curve=[(int(step), float(y)) for step, y in entry.get("curve") or [] if is_number(y)],
        seconds=entry.get("seconds"),
        exit_code=entry.get("exit_code"),
        run_dir=str(entry.get("run_dir") or ""),
        command=str(entry.get("command") or ""),
        why=str(entry.get("why") or ""),
    )


def flattened(parameters: dict, prefix: str = "") -> dict:
    """Nested parameters under one name each.

    >>> flattened({"seed": 1, "optim_args": {"eps": 1e-8}})
    {'seed': 1, 'optim_args.eps': 1e-08}
    """
    flat = {}
    for name, value in parameters.items():
        if isinstance(value, dict):
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def logarithmic_parameters(path: Path) -> dict[str, bool]:
    """Of a sweep file's parameters with a range, whether it is logarithmic; none where the file cannot be read."""
    try:
        content = read_yaml(path).content if path.is_file() else None
    except ConfigError:
        return {}
    parameters = content.get("parameters") if isinstance(content, dict) else None
    return dict(_logarithmic(parameters)) if isinstance(parameters, dict) else {}


def _logarithmic(parameters: dict, prefix: str = ""):
    for name, entry in parameters.items():
        if not isinstance(entry, dict):
            continue
        if isinstance(entry.get("parameters"), dict):
            yield from _logarithmic(entry["parameters"], f"{prefix}{name}.")
        elif "min" in entry or "distribution" in entry:
            yield f"{prefix}{name}", "log_" in str(entry.get("distribution", "uniform"))


FEWEST_TRIALS = 4


def importances(sweep: Sweep) -> dict[str, float]:
    """`{parameter: share of the variance}`, the greatest first; empty where there is nothing to tell.

    Only finished trials count, and parameters that all of them have: a trial that was stopped early has a value of
    another kind.

    Raises:
      ImportError: Optuna is not installed.
    """
    import optuna

    trials = [trial for trial in sweep.valued() if trial.state == "complete"]
    names = [name for name in sweep.varied() if all(name in trial.parameters for trial in trials)]
    names = [name for name in names if len({str(trial.parameters[name]) for trial in trials}) > 1]
    if len(trials) < FEWEST_TRIALS or not names or len({trial.value for trial in trials}) == 1:
        return {}
    distributions = {name: _distribution(sweep, [trial.parameters[name] for trial in trials], name) for name in names}
    study = _quiet_study(optuna, sweep.goal)
    for trial in trials:
        chosen = {name: _value(trial.parameters[name], distributions[name]) for name in names}
        study.add_trial(optuna.create_trial(params=chosen, distributions=distributions, value=trial.value))
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in found.items()}


def _quiet_study(optuna, goal: str):
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        return optuna.create_study(direction=goal)
    finally:
        optuna.logging.set_verbosity(before)


def _distribution(sweep: Sweep, values: list, name: str):
    """What the values may have been drawn from, as far as it can be told from them."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if all(map(is_number, values)):
        return FloatDistribution(min(values), max(values), log=sweep.is_logarithmic(name))
    return CategoricalDistribution(sorted({str(value) for value in values}))


def _value(value, distribution):
    return float(value) if hasattr(distribution, "low") else str(value)


LONGEST_LABEL = 28


def wrapped(text, width: int = 14) -> str:
    """A name over several lines, broken behind its underscores, slashes and dots where it has any.

    >>> wrapped("per_device_train_batch_size").split("\\n")
    ['per_device_', 'train_batch_', 'size']
    """
    lines = [""]
    for part in re.split(r"(?<=[_/. ])", shortened(text, 4 * width)):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def group_label(parameters: dict) -> str:
    """A setting of a grid in one line.

    >>> group_label({"learning_rate": 0.001, "optimizer": "adafactor"})
    'learning_rate 0.001, optimizer adafactor'
    """
    return ", ".join(
        f"{name} {value:g}" if is_number(value) else f"{name} {value}" for name, value in parameters.items()
    )


# Columns of a table that is not on a terminal.
WIDTH = 118


def rows_of_sweep(sweep: Sweep) -> list[dict]:
    """One row a trial, the best first; then the groups of a grid; then the best trial."""
    rows = []
    for trial in sweep.ranked():
        row = {"sweep": sweep.name, **trial._asdict(), "metric": sweep.metric}
        rows.append({name: value for name, value in row.items() if name != "curve"})
    rows += [{"sweep": sweep.name, "metric": sweep.metric, **group} for group in sweep.groups]
    return [*rows, {"sweep": sweep.name, "metric": sweep.metric, "best": sweep.best}]


def print_sweep(sweep: Sweep) -> None:
    """The trials, the best of them with its command, and a grid's means."""
    console = Terminal(width=None if Terminal().is_terminal else WIDTH, markup=False, emoji=False, highlight=False)
    console.print(_trials_table(sweep))
    for trial in sweep.trials:
        if trial.why:
            console.print(f"trial {trial.number}: {trial.why}")
    constant = ", ".join(f"{name}={shown(value)}" for name, value in sweep.constant().items())
    if constant and len(sweep.trials) > 1:
        console.print(f"in all trials: {constant}")
    if sweep.groups:
        console.print(_groups_table(sweep))
    lines = best_lines(sweep.groups, sweep.goal, sweep.name)
    best = sweep.best_trial()
    if best is not None:
        said = "best single trial" if lines else "best: trial"
        lines += [f"{said} {best.number}, {sweep.metric} {shown(best.value)} ({best.run_dir})", best.command]
    for line in lines or [f"no trial has come to its end with a value of {sweep.metric} yet"]:
        console.print(line, soft_wrap=True)


def _trials_table(sweep: Sweep) -> Table:
    counts = {
        state: sum(trial.state == state for trial in sweep.trials)
        for state in dict.fromkeys(t.state for t in sweep.trials)
    }
    said = ", ".join(f"{count} {state}" for state, count in counts.items())
    title = f"{sweep.name} ({sweep.method}): {said or 'no trials'}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    names = sweep.varied()
    table.add_column("trial", justify="right")
    for name in (sweep.metric, *names):
        table.add_column(wrapped(name, 11), justify="right", overflow="fold")
    table.add_column("state")
    for name in ("step", "seconds"):
        table.add_column(name, justify="right")
    for trial in sweep.ranked():
        mark = "*" if trial.number == sweep.best else ""
        cells = [wrapped(shown(trial.parameters.get(name, "-")), 14) for name in names]
        table.add_row(f"{mark}{trial.number}", shown(trial.value), *cells, state_of(trial), *_progress(trial))
    return table


def state_of(trial: Trial) -> str:
    """The state, with the exit code of a trial that failed.

    >>> state_of(trial_that_ran_out_of_memory)
    'failed (1)'
    """
    return f"{trial.state} ({trial.exit_code})" if trial.state == "failed" and trial.exit_code else trial.state


def _progress(trial: Trial) -> tuple[str, str]:
    step = "-" if trial.last_step is None else str(trial.last_step)
    return step, "-" if trial.seconds is None else f"{trial.seconds:.0f}"


def _groups_table(sweep: Sweep) -> Table:
    """Settings by tasks: mean and standard deviation over so many seeds."""
    tasks = list(dict.fromkeys(group["task"] for group in sweep.groups))
    title = f"{sweep.metric}: mean ± standard deviation (number of trials)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("setting")
    for task in tasks:
        table.add_column("all trials" if task is None else str(task), justify="right")
    if len(tasks) > 1:
        table.add_column("average", justify="right")
    for label in dict.fromkeys(group_label(group["parameters"]) for group in sweep.groups):
        of_task = {g["task"]: g for g in sweep.groups if group_label(g["parameters"]) == label}
        cells = [_spread(of_task.get(task)) for task in tasks]
        means = [of_task[task].get("mean") for task in tasks if task in of_task]
        if len(tasks) > 1:
            whole = len(means) == len(tasks) and all(map(is_number, means))
            cells.append(f"{sum(means) / len(means):.2f}" if whole else "-")
        table.add_row(label or "(as given)", *cells)
    return table


def _spread(group: dict | None) -> str:
    if group is None or not is_number(group.get("mean")):
        return "-"
    spread = f" ± {group['std']:.2f}" if is_number(group.get("std")) else ""
    return f"{group['mean']:.2f}{spread} ({group['n']})"


def shown(value) -> str:
    """A parameter or score in a table's cell.

    >>> shown(0.00031234), shown(71.123456), shown(None)
    ('0.0003123', '71.12', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, float):
        return "nan" if math.isnan(value) else f"{value:.4g}"
    return str(value)


def sweep_data(sweep: Sweep, shares: dict[str, float], lack: str) -> dict:
    """What the tables show; trials, the best first."""
    best = sweep.best_trial()
    return {
        "name": sweep.name,
        "directory": str(sweep.directory),
        "method": sweep.method,
        "metric": sweep.metric,
        "goal": sweep.goal,
        "best": sweep.best,
        "command": best.command if best else "",
        "varied": sweep.varied(),
        "constant": sweep.constant(),
        "groups": sweep.groups,
        "importances": shares,
        "trials": [{**trial._asdict(), "curve": [list(point) for point in trial.curve]} for trial in sweep.ranked()],
        "notes": [lack] if lack else [],
    }


def trial_directories(sweep: dict) -> list[Path]:
    """Where the runs of a sweep's trials are, in the order of their numbers; a relative path may be the sweep's own."""
    trials = sorted(sweep["trials"], key=lambda trial: trial["number"])
    paths = [Path(trial["run_dir"]) for trial in trials if trial["run_dir"]]
    beside = Path(sweep["directory"])
    return [path if path.is_dir() else beside / path for path in paths]
