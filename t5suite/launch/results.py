"""The figure of a finished run, where its metrics file does not hold it.

>>> result_of_run("runs/sweeps/seeds/trials/0000")
71.2
"""

import json
from pathlib import Path

from t5suite.constants import DATASET_VALS, METRIC_GROUPS

RATES = ("invalid_rate", "truncated_rate")


def result_of_run(directory) -> float | None:
    """What `results.json` says of the run: its task's `metric_to_optimize`, the mean over several tasks.

    None: no results, or none that is a number.
    """
    try:
        results = json.loads((Path(directory) / "results.json").read_text(encoding="utf-8"))
        settings = json.loads((Path(directory) / "manifest.json").read_text(encoding="utf-8"))["settings"]
        tasks = results["tasks"]
    except (OSError, ValueError, KeyError):
        return None
    entries = DATASET_VALS.get(settings.get("benchmark"), {})
    values = [task_figure(scores, entries.get(name)) for name, scores in tasks.items()]
    if not values or None in values:
        return None
    return sum(values) / len(values)


def task_figure(scores: dict, entry: dict | None) -> float | None:
    """One number for a task.

    >>> task_figure({"f1": 80.0, "accuracy": 70.0, "invalid_rate": 0.0}, DATASET_VALS["glue"]["mrpc"])
    75.0
    """
    names = [name for name in scores if name not in RATES]
    wanted = entry["metric_to_optimize"] if entry else None
    if wanted in scores:
        names = [wanted]
    elif entry and wanted == "average":
        names = [name for name in entry["metric_names"] if name in scores] or names
    elif wanted in METRIC_GROUPS:
        names = [name for name in METRIC_GROUPS[wanted] if name in scores] or names
    values = [scores[name] for name in names]
    if not values or any(value is None for value in values):
        return None
    return sum(values) / len(values)
