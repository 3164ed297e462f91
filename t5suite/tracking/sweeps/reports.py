"""What a sweep came to, as tables and pictures (`t5suite report SWEEP_DIR`).

    >>> sweep = read_sweep("runs/sweeps/glue_rte")
    >>> print_sweep(sweep)
    >>> draw_sweep(sweep)
    [PosixPath('runs/sweeps/glue_rte/plots/objective.png'), ...]

Reads `sweep.json` alone (and the distributions in `sweep.yaml`), so it needs neither the trials' models nor torch.
"""

import math
from pathlib import Path

from rich import box
from rich.table import Table

from t5suite.base.terminal import Terminal
from t5suite.launch.sweep_tables import best_lines
from t5suite.tracking.sweeps.importance import importances
from t5suite.tracking.sweeps.plots import draw_plots, group_label, wrapped
from t5suite.tracking.sweeps.records import Sweep, Trial, is_number

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


def draw_sweep(sweep: Sweep) -> tuple[list[Path], str | None]:
    """`(the pictures written beside the sweep, why one is missing)`."""
    try:
        shares, lack = importances(sweep), None
    except ImportError:
        shares, lack = {}, "importance.png needs Optuna: python -m pip install 't5suite[sweeps]'"
    return draw_plots(sweep, shares), lack
