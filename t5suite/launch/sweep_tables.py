"""A sweep on the terminal: one line per event, the content of its results, and their format.

>>> say("trial 3: started, learning_rate 0.001")
17:02:11 trial 3: started, learning_rate 0.001
"""

import json
import os
import shlex
import shutil
import statistics
import sys
import time
from collections import Counter

from t5suite.base.redaction import printable, redacted
from t5suite.launch.commands import SEED, TASK
from t5suite.launch.trials import own_programs


def summary_of(plan, records: list[dict]) -> dict:
    """The content of `sweep.json`; no trial is the best if several tasks have their own metrics.

    Args:
      plan: a `SweepPlan`.
      records: of all trials, by number.
    """
    searched = {p.name for p in plan.search.parameters if p.distribution != "constant"}
    groups = groups_of(records) if plan.search.method == "grid" and searched & {SEED, TASK} else None
    ended = [record for record in records if record["state"] == "complete" and record["value"] is not None]
    sign = 1 if plan.search.goal == "maximize" else -1
    best = max(ended, key=lambda record: (sign * record["value"], -record["number"]), default=None)
    return {
        "name": plan.name,
        "method": plan.search.method,
        "metric": {"name": plan.metric, "goal": plan.search.goal},
        "trials": records,
        "best": best["number"] if best and not (groups and TASK in searched) else None,
        "groups": groups,
    }


def groups_of(records: list[dict]) -> list[dict]:
    """Mean and sample standard deviation (n - 1; None of one value) over the seeds of each setting and task."""
    groups: dict[str, dict] = {}
    for record in records:
        setting = {name: value for name, value in record["parameters"].items() if name not in (SEED, TASK)}
        task = record["parameters"].get(TASK)
        group = groups.setdefault(json.dumps([setting, task]), {"parameters": setting, "task": task, "values": []})
        if record["state"] == "complete" and record["value"] is not None:
            group["values"].append(record["value"])
    for group in groups.values():
        values = group.pop("values")
        group["n"] = len(values)
        group["mean"] = statistics.fmean(values) if values else None
        group["std"] = statistics.stdev(values) if len(values) > 1 else None
    return list(groups.values())


def shell_line(words: list[str]) -> str:
    """A command as a user would type it, with PATH before it if a shell would not find the suite's programs.

    >>> shell_line(["python", "fine_tune_t5.py", "--run_name=a b"])
    "python fine_tune_t5.py '--run_name=a b'"
    """
    program = words[1] if words[0] == "/usr/bin/env" and len(words) > 1 else words[0]
    own = shutil.which(program, path=own_programs()) if os.sep not in program else None
    prefix = f"PATH={shlex.quote(own_programs())}:$PATH " if own and own != shutil.which(program) else ""
    return prefix + shlex.join(words)


def say(text: str) -> None:
    """Shows an event on standard error; standard output is for results."""
    print(printable(redacted(f"{time.strftime('%H:%M:%S')} {text}")), file=sys.stderr, flush=True)


def table_of(summary: dict):
    """The trials as a rich table, best first.

    Args:
      summary: what `sweep.json` holds.
    """
    from rich.table import Table
    from rich.text import Text

    trials, metric = summary["trials"], summary["metric"]["name"]
    names, counts = parameter_names(trials), Counter(record["state"] for record in trials)
    table = Table(title=f"{summary['name']}: {', '.join(f'{n} {state}' for state, n in counts.items()) or 'no trials'}")
    for heading in ("trial", "state", metric, "step", "seconds", *names):
        justify = "left" if heading in ("state", *names) else "right"
        table.add_column(Text(heading), justify=justify, overflow="fold")
    for record in ranked(summary):
        parameters = flat(record["parameters"])
        cells = [record[key] for key in ("number", "state", "value", "last_step", "seconds")]
        cells += [parameters.get(name, "") for name in names]
        is_best, has_failed = record["number"] == summary["best"], record["state"] == "failed"
        # Rich does not parse markup in `Text`.
        table.add_row(*(Text(cell_text(cell)) for cell in cells), style="bold" * is_best or "dim" * has_failed)
    return table


def ranked(summary: dict) -> list[dict]:
    """The trials, best first: complete ones, then the others; those without a value last."""
    sign = 1 if summary["metric"]["goal"] == "maximize" else -1

    def rank(trial: dict) -> tuple:
        value = trial["value"]
        return value is None, trial["state"] != "complete", -sign * (value or 0.0), trial["number"]

    return sorted(summary["trials"], key=rank)


def parameter_names(records: list[dict]) -> list[str]:
    """The parameters in the order of the trials; of several trials, only those that vary."""
    seen: dict[str, set] = {}
    for record in records:
        for name, value in flat(record["parameters"]).items():
            seen.setdefault(name, set()).add(json.dumps(value))
    return [name for name, values in seen.items() if len(values) > 1 or len(records) == 1]


def flat(parameters: dict, before: str = "") -> dict:
    """Nested parameters by their whole names.

    >>> flat({"a": {"b": 1}, "c": 2})
    {'a.b': 1, 'c': 2}
    """
    found = {}
    for name, value in parameters.items():
        found |= flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return found


def cell_text(value) -> str:
    """Four digits of a float, and a dash for None."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)


def shown(parameters: dict) -> str:
    """Parameters in a line.

    >>> shown({"learning_rate": 0.00031622776, "lr_scheduler_kwargs": {"min_lr": 0.0}})
    'learning_rate 0.0003162, lr_scheduler_kwargs.min_lr 0'
    """
    return ", ".join(f"{name} {cell_text(value)}" for name, value in flat(parameters).items())


def best_lines(groups: list[dict], goal: str, name: str) -> list[str]:
    """One line per task: its best setting, and those within one standard deviation of it.

    >>> best_lines([{"parameters": {}, "task": "rte", "n": 3, "mean": 71.0, "std": 1.0}], "maximize", "grid-1")
    ['best for rte: mean 71.00, standard deviation 1.00, n 3']
    """
    found: dict = {group["task"]: [] for group in groups}
    valued = [group for group in groups if group["mean"] is not None]
    for group in sorted(valued, key=lambda group: group["mean"], reverse=goal == "maximize"):
        equal = found[group["task"]]
        if not equal or abs(equal[0]["mean"] - group["mean"]) <= (equal[0]["std"] or 0.0):
            equal.append(group)
    lines = []
    for task, equal in found.items():
        said = []
        for group in equal:
            setting = f"{shown(group['parameters'])}, " if group["parameters"] else ""
            std = "" if group["std"] is None else f", standard deviation {group['std']:.2f}"
            said.append(f"{setting}mean {group['mean']:.2f}{std}, n {group['n']}")
        what = "equal for {} (within one standard deviation of the best): " if len(said) > 1 else "best for {}: "
        lines += [what.format(task or name) + "; ".join(said)] if said else []
    return lines
