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
from t5suite.tasks.entries import task_figure

logger = logging.getLogger(__name__)

# One of them holds the weights of a finished run's model.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
# Metrics that have their own column.
RATES = ("invalid_rate",)


def rows_of_runs(directories) -> list[dict]:
    """One row per finished run and task: benchmark, task, rows, metrics, invalid_rate, seconds of training, notes, run.

    Raises:
      DataError: a directory holds no finished run.
    """
    rows = []
    for directory in map(Path, directories):
        missing = [name for name in (MANIFEST, RESULTS) if not (directory / name).is_file()]
        if missing:
            raise DataError(f"{directory}: no finished run ({', '.join(missing)} missing)")
        manifest = read_manifest(directory)
        for task, scores in read_results(directory)["tasks"].items():
            rows.append(
                {
                    "benchmark": tasks_named(manifest)[0] or "-",
                    "task": task,
                    "n": rows_scored(manifest, task),
                    "metrics": {name: value for name, value in scores.items() if name not in RATES},
                    "invalid_rate": scores.get("invalid_rate"),
                    "train_seconds": manifest.get("training", {}).get("train_runtime"),
                    "notes": manifest.get("marks", {}).get(task, []),
                    "run": str(directory),
                }
            )
    return rows


def rows_scored(manifest: dict, result: str) -> int | None:
    """The number of rows that a result (`mnli_matched`, `rte.test`) was scored on, where the manifest has it."""
    found = {}
    for name, part in (manifest.get("data") or {}).items():
        task, _, split = name.rpartition(".")
        for role in ("validation", "test"):
            if split.startswith(role) and task + split.removeprefix(role) == result.removesuffix(".test"):
                found[role] = part.get("used")
    return found.get("test") if result.endswith(".test") else found.get("validation", found.get("test"))


def suite_averages(rows: Iterable[dict]) -> dict[str, float]:
    """Each benchmark's published average if the rows cover all of its tasks; MNLI's halves are averaged first.

    Args:
      rows: `{"benchmark", "task", "metrics"}`.
    """
    means: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["metrics"]:
            figure = task_figure(row["metrics"], DATASET_VALS.get(row["benchmark"], {}).get(row["task"]))
            means.setdefault(row["benchmark"], {})[row["task"]] = math.nan if figure is None else figure
    averages = {}
    for benchmark, found in means.items():
        values = []
        for task in MIXTURES.get(benchmark, {}).get("all", {}).get("average", []):
            halves = [found[name] for name in (f"{task}_matched", f"{task}_mismatched") if name in found]
            values.append(sum(halves) / 2 if len(halves) == 2 else found.get(task))
        if values and None not in values:
            averages[benchmark] = sum(values) / len(values)
    return averages


def warn_of_lost_model(directory, manifest: dict) -> None:
    """Says that the model of a finished run is gone, and where weights of it are left."""
    directory = Path(directory)
    if "training" not in manifest or any((directory / name).is_file() for name in WEIGHTS):
        return
    left = [path.name for path in sorted(directory.glob("checkpoint-*"))]
    cure = f"{', '.join(left)} may still have weights" if left else "train it again with another --output_dir"
    logger.warning("the model of the run is gone: %s has no %s; %s", directory, WEIGHTS[0], cure)


def changed_files(manifest: dict) -> list[str]:
    """Files of rows whose content differs from what a finished run read.

    >>> changed_files(manifest)                              # a row was added to it since
    ['reviews.csv']
    """
    known = {facts.get("fingerprint") for facts in (manifest.get("data") or {}).values()}
    if not any(str(fingerprint).startswith("sha256:") for fingerprint in known):
        return []
    named = dict.fromkeys(manifest["settings"].get(name) for name in ("train_file", "validation_file", "test_file"))
    # Several files (a pattern) have one fingerprint together, and are not checked.
    files = [name for name in named if isinstance(name, str) and Path(name).is_file()]
    return [name for name in files if f"sha256:{file_sha256(name)}" not in known]
