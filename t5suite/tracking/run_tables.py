"""The results of several runs as one table (`t5suite report`).

    >>> print_run_table(read_runs(["runs/mini-sentiment", "runs/mini-entailment", "runs/mini-similarity"]))

Reads `results.json` and `manifest.json` alone, so it needs neither the models nor torch.
"""

import math
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from t5suite.constants import DATASET_VALS, MIXTURES
from t5suite.errors import DataError
from t5suite.launch.results import task_figure
from t5suite.runs import MANIFEST, RESULTS, read_json, tasks_named

RATES = ("invalid_rate",)


class RunResults(NamedTuple):
    """A finished run: where it is, which benchmark it is about, and its results."""

    directory: Path
    benchmark: str
    results: dict
    manifest: dict


def read_runs(directories) -> list[RunResults]:
    """The finished runs in these directories, in order.

    Raises:
      DataError: a directory holds no finished run.
    """
    runs = []
    for directory in map(Path, directories):
        missing = [name for name in (MANIFEST, RESULTS) if not (directory / name).is_file()]
        if missing:
            raise DataError(f"{directory}: no finished run ({', '.join(missing)} missing)")
        manifest = read_json(directory / MANIFEST)
        benchmark = tasks_named(manifest)[0] or "-"
        runs.append(RunResults(directory, benchmark, read_json(directory / RESULTS), manifest))
    return runs


def rows_of_runs(runs: list[RunResults]) -> list[dict]:
    """One row a run and task: benchmark, task, rows, metrics, invalid_rate, seconds of training, notes, run."""
    rows = []
    for run in runs:
        for task, scores in run.results["tasks"].items():
            data = [v for k, v in run.manifest.get("data", {}).items() if k.split(".")[0] == task.split("_m")[0]]
            evaluated = [part["used"] for part in data if "kept_for_selection" not in part]
            rows.append(
                {
                    "benchmark": run.benchmark,
                    "task": task,
                    "n": evaluated[0] if evaluated else None,
                    "metrics": {name: value for name, value in scores.items() if name not in RATES},
                    "invalid_rate": scores.get("invalid_rate"),
                    "train_seconds": run.manifest.get("training", {}).get("train_runtime"),
                    "notes": run.manifest.get("marks", {}).get(task, []),
                    "run": str(run.directory),
                }
            )
    return rows


def averages_of_runs(runs: list[RunResults]) -> dict[str, float]:
    """Each benchmark's published average where the runs cover all of its tasks, one run a task."""
    means: dict[str, dict[str, float]] = {}
    for row in rows_of_runs(runs):
        if row["metrics"]:
            figure = task_figure(row["metrics"], DATASET_VALS.get(row["benchmark"], {}).get(row["task"]))
            means.setdefault(row["benchmark"], {})[row["task"]] = math.nan if figure is None else figure
    averages = {}
    for benchmark, found in means.items():
        wanted = MIXTURES.get(benchmark, {}).get("all", {}).get("average", [])
        values = [_group_mean(found, task) for task in wanted]
        if wanted and None not in values:
            averages[benchmark] = sum(values) / len(values)
    return averages


def print_run_table(runs: list[RunResults]) -> None:
    """The rows and averages as a table on standard output."""
    console = Console(width=None if Console().is_terminal else 118)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in (("task", "left"), ("n", "right"), ("metrics", "left"), ("invalid %", "right")):
        table.add_column(name, justify=justify)
    table.add_column("train s", justify="right")
    table.add_column("notes")
    table.add_column("run")
    for row in rows_of_runs(runs):
        table.add_row(
            f"{row['benchmark']}/{row['task']}",
            str(row["n"] or "-"),
            "  ".join(f"{name} {_points(value)}" for name, value in row["metrics"].items()),
            _points(row["invalid_rate"]) if row["invalid_rate"] is not None else "-",
            f"{row['train_seconds']:.0f}" if row["train_seconds"] else "-",
            ", ".join(row["notes"]),
            row["run"],
        )
    console.print(table)
    for benchmark, value in averages_of_runs(runs).items():
        console.print(f"average {benchmark}: {_points(value)}", highlight=False)


def _group_mean(found: dict[str, float], task: str) -> float | None:
    """A task's mean, MNLI's halves averaged first."""
    halves = [found[name] for name in (f"{task}_matched", f"{task}_mismatched") if name in found]
    if len(halves) == 2:
        return sum(halves) / 2
    return found.get(task)


def _points(value) -> str:
    return "nan" if value is None or math.isnan(value) else f"{value:.2f}"
