"""What the directories of finished runs say: scores by task, averages, and files that have changed or are gone since.

>>> rows_of_runs(["runs/mini-sentiment"])[0]["metrics"]
{'accuracy': 91.5}

Only `results.json` and `manifest.json` are read, so neither the models nor torch are needed.
"""

import logging
import math
from collections.abc import Iterable
from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.constants import DATASET_VALS, MIXTURES
from t5suite.data.rows.jsonl import file_sha256
from t5suite.runs.directory import MANIFEST, RESULTS, read_manifest, read_results, tasks_named
from t5suite.tasks.entry_metrics import task_figure

logger = logging.getLogger(__name__)

# One of them holds the weights of a finished run's model.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
# Metrics that have their own column.
RATES = ("invalid_rate",)
# Flags that name a file of rows.
FILE_FLAGS = ("train_file", "validation_file", "test_file")


def rows_of_runs(directories) -> list[dict]:
    """One row per finished run and task: benchmark, task, rows, metrics, invalid_rate, seconds of training, notes, run.

    Raises:
      DataError: a directory holds no finished run.
    """
    return [row for directory in directories for row in _rows_of_run(Path(directory))]


def _rows_of_run(directory: Path) -> list[dict]:
    missing_files = [name for name in (MANIFEST, RESULTS) if not (directory / name).is_file()]
    if missing_files:
        raise DataError(f"{directory}: no finished run ({', '.join(missing_files)} missing)")
    manifest = read_manifest(directory)
    benchmark = tasks_named(manifest)[0] or "-"
    marks = manifest.get("marks", {})
    return [
        {
            "benchmark": benchmark,
            "task": task,
            "n": rows_scored(manifest, task),
            "metrics": {name: score for name, score in scores.items() if name not in RATES},
            "invalid_rate": scores.get("invalid_rate"),
            "train_seconds": manifest.get("training", {}).get("train_runtime"),
            "notes": marks.get(task, []),
            "run": str(directory),
        }
        for task, scores in read_results(directory)["tasks"].items()
    ]


def rows_scored(manifest: dict, result: str) -> int | None:
    """The number of rows that a result (`mnli_matched`, `rte.test`) was scored on, where the manifest has it."""
    task_and_part = result.removesuffix(".test")
    counts = {}
    for name, facts in (manifest.get("data") or {}).items():
        task, _, split = name.rpartition(".")
        for role in ("validation", "test"):
            if split.startswith(role) and task + split.removeprefix(role) == task_and_part:
                counts[role] = facts.get("used")
    if result.endswith(".test"):
        return counts.get("test")
    return counts.get("validation", counts.get("test"))


def suite_averages(rows: Iterable[dict]) -> dict[str, float]:
    """Each benchmark's published average if the rows cover all of its tasks; MNLI's halves are averaged first.

    Args:
      rows: `{"benchmark", "task", "metrics"}`.
    """
    figures: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["metrics"]:
            figure = task_figure(row["metrics"], DATASET_VALS.get(row["benchmark"], {}).get(row["task"]))
            figures.setdefault(row["benchmark"], {})[row["task"]] = math.nan if figure is None else figure
    averages = {}
    for benchmark, figures_of_tasks in figures.items():
        tasks = MIXTURES.get(benchmark, {}).get("all", {}).get("average", [])
        counted = [_figure_or_mean_of_halves(figures_of_tasks, task) for task in tasks]
        if counted and None not in counted:
            averages[benchmark] = sum(counted) / len(counted)
    return averages


def _figure_or_mean_of_halves(figures: dict[str, float], task: str) -> float | None:
    """A task's figure: the mean of its matched and mismatched half if it has both; None if it has no score."""
    halves = (f"{task}_matched", f"{task}_mismatched")
    if all(half in figures for half in halves):
        return sum(figures[half] for half in halves) / 2
    return figures.get(task)


def warn_of_lost_model(directory, manifest: dict) -> None:
    """Says that the model of a finished run is gone, and where weights of it are left."""
    directory = Path(directory)
    if "training" not in manifest or any((directory / name).is_file() for name in WEIGHTS):
        return
    checkpoints = [path.name for path in sorted(directory.glob("checkpoint-*"))]
    cure = "train it again with another --output_dir"
    if checkpoints:
        cure = f"{', '.join(checkpoints)} may still have weights"
    logger.warning("the model of the run is gone: %s has no %s; %s", directory, WEIGHTS[0], cure)


def changed_files(manifest: dict) -> list[str]:
    """Files of rows whose content differs from what a finished run read.

    >>> changed_files(manifest)                              # a row was added to it since
    ['reviews.csv']
    """
    fingerprints = {facts.get("fingerprint") for facts in (manifest.get("data") or {}).values()}
    if not any(str(fingerprint).startswith("sha256:") for fingerprint in fingerprints):
        return []
    files = dict.fromkeys(manifest["settings"].get(flag) for flag in FILE_FLAGS)
    # Several files (a pattern) have one fingerprint together, and are not checked.
    single_files = [file for file in files if isinstance(file, str) and Path(file).is_file()]
    return [file for file in single_files if f"sha256:{file_sha256(file)}" not in fingerprints]
