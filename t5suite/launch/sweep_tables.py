"""A sweep on the terminal: a line for every event, the table of its trials, and the best settings of a grid.

>>> say("trial 3: started, learning_rate 0.001")
17:02:11 trial 3: started, learning_rate 0.001
"""

import os
import shlex
import shutil
import sys
import time
from collections import Counter

from t5suite.base.redaction import printable, redacted
from t5suite.launch.sweep_summaries import flat_parameters, parameter_names, rank_trials, score_names, trial_scores
from t5suite.launch.trial_environments import own_programs

# More metrics of tasks than these make no column each.
MOST_SCORES = 4


def say(text: str) -> None:
    """Shows an event on standard error; standard output is for results."""
    print(printable(redacted(f"{time.strftime('%H:%M:%S')} {text}")), file=sys.stderr, flush=True)


def shell_line(words: list[str]) -> str:
    """A command as a user would type it, with PATH before it if a shell would not find the suite's programs.

    >>> shell_line(["python", "fine_tune_t5.py", "--run_name=a b"])
    "python fine_tune_t5.py '--run_name=a b'"
    """
    program = words[0]
    if program == "/usr/bin/env" and len(words) > 1:
        program = words[1]
    line = shlex.join(words)
    if _needs_path(program):
        return f"PATH={shlex.quote(own_programs())}:$PATH {line}"
    return line


def _needs_path(program: str) -> bool:
    """Whether a shell would find another program of this name than the suite's, or none."""
    if os.sep in program:
        return False
    program_of_suite = shutil.which(program, path=own_programs())
    return program_of_suite is not None and program_of_suite != shutil.which(program)


def summary_table(summary: dict):
    """The trials as a rich table, best first, for a `Terminal`.

    Args:
      summary: what `sweep.json` holds.
    """
    from rich.table import Table

    trials = summary["trials"]
    names = parameter_names(trials)
    metrics = shown_scores(trials)
    states = Counter(record["state"] for record in trials)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    table = Table(title=f"{summary['name']}: {counts or 'no trials'}")
    headings = [name.removeprefix("eval/") for name in metrics]
    for heading in ("trial", "state", summary["metric"]["name"], *headings, "step", "seconds", *names):
        justify = "right"
        if heading in ("state", *names):
            justify = "left"
        table.add_column(heading, justify=justify, overflow="fold")
    for record in rank_trials(summary):
        parameters = flat_parameters(record["parameters"])
        cells = [record[key] for key in ("number", "state", "value")]
        cells += [trial_scores(record).get(name) for name in metrics]
        cells += [record[key] for key in ("last_step", "seconds")]
        cells += [parameters.get(name, "") for name in names]
        texts = [cell_text(cell) for cell in cells]
        table.add_row(*texts, style=_row_style(record, summary["best"]))
    return table


def shown_scores(records: list[dict]) -> list[str]:
    """The tasks' metrics that the tables show beside the sweep's; of more than fit, none (`sweep.json` has all)."""
    names = score_names(records)
    return names if len(names) <= MOST_SCORES else []


def _row_style(record: dict, best: int | None) -> str:
    """The best trial is bold, and failed ones are dim."""
    if record["number"] == best:
        return "bold"
    if record["state"] == "failed":
        return "dim"
    return ""


def cell_text(value) -> str:
    """Four digits of a float, and a dash for None."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if value is None:
        return "-"
    return str(value)


def parameters_text(parameters: dict) -> str:
    """Parameters in a line.

    >>> parameters_text({"learning_rate": 0.00031622776, "lr_scheduler_kwargs": {"min_lr": 0.0}})
    'learning_rate 0.0003162, lr_scheduler_kwargs.min_lr 0'
    """
    return ", ".join(f"{name} {cell_text(value)}" for name, value in flat_parameters(parameters).items())


def best_lines(groups: list[dict], goal: str, name: str) -> list[str]:
    """One line per task: its best setting, and those within one standard deviation of it.

    >>> best_lines([{"parameters": {}, "task": "rte", "n": 3, "mean": 71.0, "std": 1.0}], "maximize", "grid-1")
    ['best setting for rte, by the mean of its trials: mean 71.00, standard deviation 1.00, n 3']

    Args:
      name: the sweep's, for trials of which no task is known.
    """
    lines = []
    for task, best_groups in _best_groups(groups, goal).items():
        settings = "; ".join(_group_text(group) for group in best_groups)
        if len(best_groups) == 1:
            lines.append(f"best setting {_place(task, name)}, by the mean of its trials: {settings}")
        elif best_groups:
            lines.append(f"equal settings {_place(task, name)} (within one standard deviation of the best): {settings}")
    return lines


def _place(task: str | None, name: str) -> str:
    return f"of sweep {name}" if task is None else f"for {task}"


def _best_groups(groups: list[dict], goal: str) -> dict[str | None, list[dict]]:
    """Each task's best group, followed by those within one standard deviation of it."""
    best_groups: dict = {group["task"]: [] for group in groups}
    valued = [group for group in groups if group["mean"] is not None]
    for group in sorted(valued, key=lambda group: group["mean"], reverse=goal == "maximize"):
        best = best_groups[group["task"]]
        if not best or _is_within_deviation(best[0], group):
            best.append(group)
    return best_groups


def _is_within_deviation(best_group: dict, group: dict) -> bool:
    """Whether a group's mean is within one standard deviation of the best one's."""
    deviation = best_group["std"] or 0.0
    return abs(best_group["mean"] - group["mean"]) <= deviation


def _group_text(group: dict) -> str:
    """`learning_rate 0.001, mean 71.00, standard deviation 1.00, n 3`."""
    text = f"mean {group['mean']:.2f}"
    if group["parameters"]:
        text = f"{parameters_text(group['parameters'])}, {text}"
    if group["std"] is not None:
        text += f", standard deviation {group['std']:.2f}"
    return f"{text}, n {group['n']}"
