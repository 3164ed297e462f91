"""A sweep on the terminal: a table that follows it, or a line an event where there is no terminal; then the results.

>>> with SweepView() as view:
...     records = Sweep(plan, directory, view=view).run()
>>> print_results(summary)
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
from t5suite.launch.trials import own_programs

# Parameters that make repetitions and tasks, rather than settings.
SEED, TASK = "seed", "dataset_name"


def summary_of(plan, records: list[dict]) -> dict:
    """The content of `sweep.json`; no trial is the best where several tasks are scored by metrics of their own.

    Args:
      plan: a `sweeps.SweepPlan`.
      records: of all trials, by number.
    """
    searched = {p.name for p in plan.search.parameters if p.distribution != "constant"}
    groups = groups_of(records) if plan.search.method == "grid" and searched & {SEED, TASK} else None
    best = None if groups and TASK in searched else best_record(records, plan.search.goal)
    return {
        "name": plan.name,
        "method": plan.search.method,
        "metric": {"name": plan.metric, "goal": plan.search.goal},
        "trials": records,
        "best": best["number"] if best else None,
        "groups": groups,
    }


def best_record(records: list[dict], goal: str) -> dict | None:
    """The best trial that came to its end; the first of equal ones. One that was stopped early or failed is none."""
    ended = [record for record in records if record["state"] == "complete" and record["value"] is not None]
    if not ended:
        return None
    sign = 1 if goal == "maximize" else -1
    return max(ended, key=lambda record: (sign * record["value"], -record["number"]))


def groups_of(records: list[dict]) -> list[dict]:
    """Mean and sample standard deviation (n - 1; None of one value) over the seeds of each setting and task."""
    groups: dict[str, dict] = {}
    for record in records:
        setting = {name: value for name, value in record["parameters"].items() if name not in (SEED, TASK)}
        task = record["parameters"].get(TASK)
        group = groups.setdefault(json.dumps([setting, task]), {"parameters": setting, "task": task, "values": []})
        if record["state"] == "complete" and record["value"] is not None:
            group["values"].append(record["value"])
    found = []
    for group in groups.values():
        values = group.pop("values")
        mean = statistics.fmean(values) if values else None
        std = statistics.stdev(values) if len(values) > 1 else None
        found.append({**group, "n": len(values), "mean": mean, "std": std})
    return found


def best_groups(groups: list[dict], goal: str) -> list[list[dict]]:
    """Of each task, in their order, the best group and those within its standard deviation, the best first."""
    found: dict = {group["task"]: [] for group in groups}
    valued = [group for group in groups if group["mean"] is not None]
    for group in sorted(valued, key=lambda group: group["mean"], reverse=goal == "maximize"):
        equal = found[group["task"]]
        if not equal or abs(equal[0]["mean"] - group["mean"]) <= (equal[0]["std"] or 0.0):
            equal.append(group)
    return [equal for equal in found.values() if equal]


def shell_line(words: list[str]) -> str:
    """A command as one would type it; PATH before it where the suite's programs are not what a shell finds.

    >>> shell_line(["python", "fine_tune_t5.py", "--run_name=a b"])
    "python fine_tune_t5.py '--run_name=a b'"
    """
    program = words[1] if words[0] == "/usr/bin/env" and len(words) > 1 else words[0]
    own = own_programs()
    prefix = ""
    if os.sep not in program and shutil.which(program) != shutil.which(program, path=own):
        prefix = f"PATH={shlex.quote(own)}:$PATH " if shutil.which(program, path=own) else ""
    return prefix + shlex.join(words)


def shown(value) -> str:
    """A value for people.

    >>> shown({"learning_rate": 0.00031622776, "bf16": True})
    'learning_rate 0.0003162, bf16 True'
    """
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(item)}" for name, item in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    return "none" if value is None else str(value)


SECONDS_BETWEEN_TABLES = 1.0
# Trials that the live table shows; the table at the end shows all.
LIVE_ROWS = 20
# Characters a line in a file or pipe, whose readers do not fold it.
FILE_WIDTH = 200


class SweepView:
    """Follows a sweep: on a terminal a table with the last events above it, elsewhere events alone.

    Args:
      stream: where to; standard error, for standard output is for results.
    """

    def __init__(self, stream=None):
        self.stream = stream or sys.stderr
        self.live = None
        self._next = 0.0

    def __enter__(self) -> "SweepView":
        if self.stream.isatty():
            from rich.live import Live

            from t5suite.base.terminal import Terminal

            self.live = Live(console=Terminal(file=self.stream), auto_refresh=False, transient=True)
            self.live.start()
        return self

    def __exit__(self, *error) -> None:
        if self.live is not None:
            self.live.stop()

    def say(self, text: str) -> None:
        """Tells an event."""
        line = printable(redacted(f"{time.strftime('%H:%M:%S')} {text}"))
        if self.live is not None:
            from rich.text import Text

            self.live.console.print(Text(line))
        else:
            print(line, file=self.stream, flush=True)

    def is_due(self) -> bool:
        """Whether the table is to be drawn again."""
        return self.live is not None and time.monotonic() >= self._next

    def show(self, summary: dict) -> None:
        """Draws the table."""
        self._next = time.monotonic() + SECONDS_BETWEEN_TABLES
        self.live.update(table_of(summary, LIVE_ROWS), refresh=True)


def table_of(summary: dict, rows: int | None = None):
    """The trials as a rich table: the last `rows`, or all of them, the best first.

    Args:
      summary: what `sweep.json` holds.
    """
    from rich.table import Table
    from rich.text import Text

    names = parameter_names(summary["trials"])
    counts = Counter(record["state"] for record in summary["trials"])
    table = Table(title=f"{summary['name']}: {', '.join(f'{n} {state}' for state, n in counts.items()) or 'no trials'}")
    for heading in ("trial", "state", summary["metric"]["name"], "step", "seconds", *names):
        table.add_column(Text(heading), justify="left" if heading in ("state", *names) else "right", overflow="fold")
    records = summary["trials"][-rows:] if rows else ranked(summary)
    for record in records:
        parameters = flat(record["parameters"])
        cells = [record["number"], record["state"], record["value"], record["last_step"], record["seconds"]]
        cells += [parameters.get(name, "") for name in names]
        style = "bold" if record["number"] == summary["best"] else ("dim" if record["state"] == "failed" else "")
        table.add_row(*(Text(cell_text(cell)) for cell in cells), style=style)
    return table


def ranked(summary: dict) -> list[dict]:
    """The trials, best first: those that came to their end, then the others, those without a value last."""
    sign = 1 if summary["metric"]["goal"] == "maximize" else -1

    def rank(record):
        value = record["value"]
        return record["state"] != "complete", value is None, -sign * (value or 0.0), record["number"]

    return sorted(summary["trials"], key=rank)


def parameter_names(records: list[dict]) -> list[str]:
    """The parameters in the order of the trials; those that are the same in all are not worth a column."""
    seen: dict[str, set] = {}
    for record in records:
        for name, value in flat(record["parameters"]).items():
            seen.setdefault(name, set()).add(json.dumps(value))
    varying = [name for name, values in seen.items() if len(values) > 1]
    return varying if len(records) > 1 else list(seen)


def flat(parameters: dict, before: str = "") -> dict:
    """Nested parameters by their whole names.

    >>> flat({"a": {"b": 1}, "c": 2})
    {'a.b': 1, 'c': 2}
    """
    found = {}
    for name, value in parameters.items():
        if isinstance(value, dict):
            found |= flat(value, f"{before}{name}.")
        else:
            found[before + name] = value
    return found


def cell_text(value) -> str:
    """A cell: four digits, and a dash for nothing."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def print_results(summary: dict) -> None:
    """The results of a sweep: all trials, means over seeds where there are some, the best trial and its command."""
    from t5suite.base.terminal import Terminal

    console = Terminal() if sys.stdout.isatty() else Terminal(width=FILE_WIDTH)
    console.print(table_of(summary))
    if summary["groups"]:
        console.print(group_table(summary))
    metric, by_number = summary["metric"], {record["number"]: record for record in summary["trials"]}
    best_of_tasks = best_lines(summary["groups"] or [], metric["goal"], summary["name"])
    print("".join(f"{line}\n" for line in best_of_tasks), end="")
    best = by_number.get(summary["best"])
    if best is not None:
        said = "best single trial" if best_of_tasks else "best: trial"
        print(f"{said} {best['number']}, {metric['name']} {cell_text(best['value'])} ({best['run_dir']})")
        print(best["command"])
    elif not best_of_tasks:
        print("no trial came to its end with a value")


def best_lines(groups: list[dict], goal: str, name: str) -> list[str]:
    """A line a task: its best setting, or those that a standard deviation does not tell from it.

    >>> best_lines([{"parameters": {}, "task": "rte", "n": 3, "mean": 71.0, "std": 1.0}], "maximize", "grid-1")
    ['best for rte: mean 71.00, standard deviation 1.00, n 3']
    """
    lines = []
    for equal in best_groups(groups, goal):
        said = []
        for group in equal:
            setting = f"{shown(flat(group['parameters']))}, " if group["parameters"] else ""
            std = "" if group["std"] is None else f", standard deviation {group['std']:.2f}"
            said.append(f"{setting}mean {group['mean']:.2f}{std}, n {group['n']}")
        what = "equal for {} (within one standard deviation of the best): " if len(said) > 1 else "best for {}: "
        lines.append(what.format(equal[0]["task"] or name) + "; ".join(said))
    return lines


def group_table(summary: dict):
    """Mean and sample standard deviation of each setting and task."""
    from rich.table import Table
    from rich.text import Text

    groups = summary["groups"]
    names = list(dict.fromkeys(name for group in groups for name in flat(group["parameters"])))
    table = Table(title=f"{summary['metric']['name']}, mean and std (n - 1)")
    for heading in ("task", *names, "n", "mean", "std"):
        table.add_column(Text(heading), justify="right" if heading in ("n", "mean", "std") else "left")
    for group in groups:
        parameters = flat(group["parameters"])
        cells = [group["task"], *(parameters.get(name, "") for name in names), group["n"]]
        figures = [None if group[key] is None else f"{group[key]:.2f}" for key in ("mean", "std")]
        table.add_row(*(Text(cell_text(cell)) for cell in [*cells, *figures]))
    return table
