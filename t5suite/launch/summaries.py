"""What `sweep.json` says of a sweep, and the means and deviations over seeds.

>>> groups_of([{"state": "complete", "parameters": {"seed": 1, "dataset_name": "rte"}, "value": 70.0}, ...])
[{'parameters': {}, 'task': 'rte', 'n': 3, 'mean': 71.0, 'std': 1.0}]
"""

import json
import os
import shlex
import shutil
import statistics

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
