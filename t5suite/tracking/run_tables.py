"""The results of several runs as one table (`t5suite report`).

    >>> print_run_table(read_runs(["runs/mini-sentiment", "runs/mini-entailment", "runs/mini-similarity"]))

Reads `results.json` and `manifest.json` alone, so it needs neither the models nor torch.
"""

import math
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.table import Table

from t5suite.base.errors import DataError
from t5suite.base.terminal import Terminal
from t5suite.constants import DATASET_VALS, MIXTURES
from t5suite.launch.results import task_figure
from t5suite.runs.directory import MANIFEST, RESULTS, read_manifest, read_results, tasks_named
from t5suite.tracking.glossary import one_line

RATES = ("invalid_rate",)
# Characters of a directory; where there is a longer one, all are shown by their ends that tell them apart.
LONGEST_RUN = 20
HEADER = ("task", "n", "metrics", "invalid %", "train s", "notes", "run")


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
        manifest = read_manifest(directory)
        benchmark = tasks_named(manifest)[0] or "-"
        runs.append(RunResults(directory, benchmark, read_results(directory), manifest))
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
    console = Terminal(width=None if Terminal().is_terminal else 118)
    rows = rows_of_runs(runs)
    names = {row["run"]: row["run"] for row in rows}
    if any(len(name) > LONGEST_RUN for name in names):
        names = {run: f"…/{name}" for run, name in named(names).items()}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in HEADER:
        justify = "right" if name in ("n", "invalid %", "train s") else "left"
        # Scores are hard to read when they are broken: notes are broken first.
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name == "metrics")
    for row in rows:
        table.add_row(*_cells(row, names))
    console.print(table)
    columns = ["invalid %"] if any(row["invalid_rate"] for row in rows) else []
    said = one_line([*columns, "train s"], [note for row in rows for note in row["notes"]])
    console.print(said, style="dim", highlight=False)
    for benchmark, value in averages_of_runs(runs).items():
        console.print(f"average {benchmark}: {_points(value)}", highlight=False)


def named(directories) -> dict[str, str]:
    """`{directory: a name for it}`: its last part, and as many before it as tell it from the others.

    >>> named(["runs/a/s1", "runs/b/s1", "runs/c"])
    {'runs/a/s1': 'a/s1', 'runs/b/s1': 'b/s1', 'runs/c': 'c'}
    """
    kept = list(dict.fromkeys(str(directory) for directory in directories))
    parts = {directory: Path(directory).resolve().parts for directory in kept}
    names = {}
    for directory in kept:
        depth = 1
        tail = parts[directory][-depth:]
        while depth < len(parts[directory]) and any(
            parts[other][-depth:] == tail and parts[other] != parts[directory] for other in kept
        ):
            depth += 1
            tail = parts[directory][-depth:]
        names[directory] = "/".join(tail)
    return names


def _cells(row: dict, names: dict[str, str]) -> list[str]:
    """One line of the table."""
    return [
        f"{row['benchmark']}/{row['task']}",
        str(row["n"] or "-"),
        "  ".join(f"{name} {_points(value)}" for name, value in row["metrics"].items()),
        _points(row["invalid_rate"]) if row["invalid_rate"] is not None else "-",
        f"{row['train_seconds']:.0f}" if row["train_seconds"] else "-",
        ", ".join(row["notes"]),
        names[row["run"]],
    ]


def _group_mean(found: dict[str, float], task: str) -> float | None:
    """A task's mean, MNLI's halves averaged first."""
    halves = [found[name] for name in (f"{task}_matched", f"{task}_mismatched") if name in found]
    if len(halves) == 2:
        return sum(halves) / 2
    return found.get(task)


def _points(value) -> str:
    return "nan" if value is None or math.isnan(value) else f"{value:.2f}"
