"""What the directories of finished runs say: scores by task, averages, and files that have changed or are gone since.

>>> rows_of_runs(["runs/mini-sentiment"])[0]["metrics"]
{'accuracy': 91.5}

Only `results.json` and `manifest.json` are read, so neither the models nor torch are needed.
"""

import logging
import math
from collections import Counter
from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.base.files import file_sha256
from t5suite.constants import DATASET_VALS, MIXTURES
from t5suite.runs.directory import MANIFEST, RESULTS, has_finished, read_manifest, read_results, tasks_named
from t5suite.runs.trained_splits import origin_of_all_rows
from t5suite.tasks.entry_metrics import task_figure

logger = logging.getLogger(__name__)

# One of them holds the weights of a finished run's model.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
# Metrics that have their own column.
RATES = ("invalid_rate",)
# What a result of a half of MNLI has behind the task's name.
HALVES = ("_matched", "_mismatched")


def rows_of_runs(directories) -> list[dict]:
    """One row per finished run and task: benchmark, task, rows, metrics, invalid_rate, seconds of training, notes, run.

    Raises:
      DataError: a directory holds no finished run.
    """
    rows = []
    for directory in directories:
        rows += _rows_of_run(Path(directory))
    return rows


def _rows_of_run(directory: Path) -> list[dict]:
    """One row per task of a finished run."""
    missing_files = [name for name in (MANIFEST, RESULTS) if not (directory / name).is_file()]
    if missing_files:
        raise DataError(f"{directory}: no finished run ({', '.join(missing_files)} missing)")
    manifest = read_manifest(directory)
    if not has_finished(directory, manifest):
        raise DataError(f"{directory}: no finished run (status: {manifest.get('status')})")
    benchmark, _ = tasks_named(manifest)
    marks = manifest.get("marks", {})
    scored = manifest.get("scored") or {}
    rows = []
    for task, scores in read_results(directory)["tasks"].items():
        row = {
            "benchmark": benchmark or "-",
            "task": task,
            "n": rows_scored(manifest, task),
            "metrics": without_rates(scores),
            "invalid_rate": scores.get("invalid_rate"),
            "train_seconds": manifest.get("training", {}).get("train_runtime"),
            "notes": [*method_remarks(scored.get(task) or {}), *marks.get(task, [])],
            "run": str(directory),
        }
        rows.append(row)
    return rows


def method_remarks(facts: dict) -> list[str]:
    """The remark on how the answers of a split were made, where it needs one.

    >>> method_remarks({"split": "validation", "method": "score"})
    ['scored labels']

    Args:
      facts: what the manifest's `scored` says of the split.
    """
    if facts.get("method") == "score":
        return ["scored labels"]
    return []


def without_rates(scores: dict) -> dict:
    """A task's metrics that share a column.

    >>> without_rates({"accuracy": 91.5, "invalid_rate": 0.0})
    {'accuracy': 91.5}
    """
    return {name: score for name, score in scores.items() if name not in RATES}


def data_facts(manifest: dict) -> dict:
    """What the manifest says of each split that was read; empty if it says nothing."""
    data = manifest.get("data") or {}
    return {split: facts for split, facts in data.items() if isinstance(facts, dict)}


def hub_commits(hub: dict, section: str) -> str:
    """The commits that a run has read of the hub's `datasets` or `models`, `NAME=COMMIT`, with commas.

    >>> hub_commits({"datasets": {"nyu-mll/glue": {"commit": "bcdcba79"}}}, "datasets")
    'nyu-mll/glue=bcdcba79'
    """
    commits = []
    for name, entry in hub.get(section, {}).items():
        if "@" not in name:
            commits.append(f"{name}={entry['commit']}")
    return ",".join(commits)


def rows_scored(manifest: dict, result: str) -> int | None:
    """The number of rows that a result (`mnli_matched`, `rte.test`) was scored on, where the manifest has it."""
    splits = splits_of_result(manifest, result)
    if not splits:
        return None
    return data_facts(manifest).get(splits[0], {}).get("used")


def splits_of_result(manifest: dict, result: str) -> list[str]:
    """The splits (`mnli.validation_matched`) that a result (`mnli_matched`) is of, as the manifest names them.

    A manifest that does not say which was scored is read by the splits' names: the validation split, or a test split
    alone.
    """
    facts = (manifest.get("scored") or {}).get(result) or {}
    if facts.get("file"):
        return [str(facts["file"]).removesuffix(".jsonl")]
    splits_of_role = {}
    for role in ("validation", "test"):
        splits_of_role[role] = [
            split for split in sorted(data_facts(manifest)) if _is_scored_in_role(result, split, role)
        ]
    if result.endswith(".test"):
        return splits_of_role["test"]
    return splits_of_role["validation"] or splits_of_role["test"]


def _is_scored_in_role(result: str, split: str, role: str) -> bool:
    """Whether a split (`mnli.validation_matched`) is what a result (`mnli_matched`) is of in a role (`validation`)."""
    task, _, name = split.rpartition(".")
    if not name.startswith(role):
        return False
    return task + name.removeprefix(role) == result.removesuffix(".test")


def averages_of_runs(rows: list[dict]) -> list[dict]:
    """`{"benchmark", "average"}` of each benchmark that the runs cover together, each task once.

    Where several runs have the same task, each run that covers the benchmark alone has its own, with `"run"`.

    Args:
      rows: as `rows_of_runs` has them.
    """
    entries = [{"benchmark": benchmark, "average": average} for benchmark, average in suite_averages(rows).items()]
    repeated = _benchmarks_with_repeated_tasks(rows)
    rows_by_run: dict[str, list[dict]] = {}
    for row in rows:
        if row["benchmark"] in repeated:
            rows_by_run.setdefault(row["run"], []).append(row)
    for run, rows_of_run in rows_by_run.items():
        for benchmark, average in suite_averages(rows_of_run).items():
            entries.append({"benchmark": benchmark, "average": average, "run": run})
    return entries


def _benchmarks_with_repeated_tasks(rows: list[dict]) -> set[str]:
    """The benchmarks of which a task was scored several times."""
    counts = Counter((row["benchmark"], row["task"]) for row in rows if row["metrics"])
    return {benchmark for (benchmark, _), count in counts.items() if count > 1}


def suite_averages(rows: list[dict]) -> dict[str, float]:
    """Each benchmark's published average if the rows cover all of its tasks, each once.

    MNLI's halves are averaged first.

    Args:
      rows: `{"benchmark", "task", "metrics"}`.
    """
    repeated = _benchmarks_with_repeated_tasks(rows)
    figures: dict[str, dict[str, float]] = {}
    for row in rows:
        if not row["metrics"] or row["benchmark"] in repeated:
            continue
        benchmark = row["benchmark"]
        task = row["task"]
        entry = DATASET_VALS.get(benchmark, {}).get(_task_of_result(task))
        figure = task_figure(row["metrics"], entry)
        if figure is None:
            figure = math.nan
        figures.setdefault(benchmark, {})[task] = figure
    averages = {}
    for benchmark, figures_of_tasks in figures.items():
        tasks = MIXTURES.get(benchmark, {}).get("all", {}).get("average", [])
        counted = [_figure_or_mean_of_halves(figures_of_tasks, task) for task in tasks]
        if counted and None not in counted:
            averages[benchmark] = sum(counted) / len(counted)
    return averages


def _task_of_result(result: str) -> str:
    """The task of a result, which may be one of MNLI's halves.

    >>> _task_of_result("mnli_mismatched"), _task_of_result("rte")
    ('mnli', 'rte')
    """
    for half in HALVES:
        result = result.removesuffix(half)
    return result


def _figure_or_mean_of_halves(figures: dict[str, float], task: str) -> float | None:
    """A task's figure: the mean of its matched and mismatched half if it has both; None if it has no score."""
    names = [f"{task}{half}" for half in HALVES]
    if all(name in figures for name in names):
        return sum(figures[name] for name in names) / len(names)
    return figures.get(task)


def has_weights(directory) -> bool:
    """Whether the run's directory holds its model."""
    return any((Path(directory) / name).is_file() for name in WEIGHTS)


def warn_of_lost_model(directory, manifest: dict) -> None:
    """Says that the model of a finished run is gone, and where weights of it are left."""
    directory = Path(directory)
    if has_weights(directory) or "training" not in manifest:
        return
    checkpoints = [path.name for path in sorted(directory.glob("checkpoint-*"))]
    cure = "train it again with another --output_dir"
    if checkpoints:
        cure = f"{', '.join(checkpoints)} may still have weights"
    logger.warning("the model of the run is gone: %s has no %s; %s", directory, WEIGHTS[0], cure)


def changed_files(manifest: dict) -> list[str]:
    """Files of rows whose content differs from what a finished run read; those of a folder or pattern one by one.

    >>> changed_files(manifest)                              # a row was added to it since
    ['reviews.csv']
    """
    hashes: dict[str, str] = {}
    for facts in data_facts(manifest).values():
        hashes |= _hashes_of_files(facts)
    return [file for file, digest in hashes.items() if Path(file).is_file() and f"sha256:{file_sha256(file)}" != digest]


def _hashes_of_files(facts: dict) -> dict[str, str]:
    """The files of a split and their hashes, as the manifest has them: several apart, a single one as the origin."""
    files = facts.get("files")
    if isinstance(files, dict):
        return files
    fingerprint = str(facts.get("fingerprint"))
    if not fingerprint.startswith("sha256:"):
        return {}
    return {origin_of_all_rows(str(facts.get("origin"))): fingerprint}
