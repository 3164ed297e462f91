"""One run directory as plain data: what it is, where it stands, its scores, curves, speed and command.

>>> run = read_run("runs/glue-rte-t5-small")
>>> run["status"], run["results"]["rte"], run["curves"]["eval/accuracy"][-1]
('finished', {'accuracy': 71.1, 'invalid_rate': 0.0}, [2490, 71.1])

Reads `manifest.json`, `results.json`, `metrics.jsonl` and `config.json`; a run that is not finished, or that logged
nothing, has what there is, and `notes` say what there is not.
"""

import math
import shlex
import statistics
from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.reporting.published import size_of_run
from t5suite.reporting.rereading import HELD_OUT
from t5suite.runs.directory import MANIFEST, METRICS, RESULTS, read_manifest, read_results, tasks_named
from t5suite.tracking.metric_lines import MetricLines

# A curve of more points than this is shown by so many of them, evenly spaced, the last one included.
MOST_POINTS = 500


def is_run(directory) -> bool:
    """Whether a directory holds a run, finished or not."""
    return (Path(directory) / MANIFEST).is_file()


def read_run(directory, name: str | None = None) -> dict:
    """A run's facts; every value is JSON's (a score that is no number is None).

    Raises:
      DataError: no run there, or a file of it that cannot be read.
    """
    directory = Path(directory)
    if not is_run(directory):
        raise DataError(f"{directory}: no run ({MANIFEST} missing); give a run's --output_dir, or a sweep's directory")
    manifest = read_manifest(directory)
    results = _results(directory)
    lines = MetricLines(directory / METRICS).new_lines()
    settings, notes = manifest["settings"], []
    if results is None:
        notes.append(f"not finished (status: {manifest.get('status', 'unknown')}): no {RESULTS}")
    if not lines:
        notes.append(f"no {METRICS}: no curves, no speed" if not (directory / METRICS).is_file() else "nothing logged")
    curves = curves_of(lines)
    if any(len(points) > MOST_POINTS for points in curves.values()):
        notes.append(f"curves of more than {MOST_POINTS} points are shown by {MOST_POINTS} of them")
    return {
        "name": name or directory.name or str(directory),
        "directory": str(directory),
        "run_id": manifest["run_id"],
        "status": "finished" if results is not None else manifest.get("status", "unknown"),
        "benchmark": tasks_named(manifest)[0],
        "dataset_name": tasks_named(manifest)[1],
        "model": model_of(manifest),
        "size": size_of_run(directory, settings),
        "seed": settings.get("seed"),
        "settings": settings,
        "results": (results or {}).get("tasks", {}),
        "averages": (results or {}).get("averages", {}),
        "groups": (results or {}).get("groups", {}),
        "rows": rows_of(manifest),
        "fingerprints": fingerprints_of(manifest),
        "held_out": held_out_of(manifest),
        "marks": manifest.get("marks", {}),
        "eval_methods": manifest.get("eval_methods", {}),
        "last_step": lines[-1]["step"] if lines else None,
        "curves": {metric: thinned(points) for metric, points in curves.items()},
        "speed": speed_of(lines, manifest.get("training") or {}),
        "environment": environment_of(manifest),
        "notes": notes,
    }


def _results(directory: Path) -> dict | None:
    return read_results(directory) if (directory / RESULTS).is_file() else None


def model_of(manifest: dict) -> dict:
    """What the run trained: its name as given, class, number of parameters, adapter."""
    settings, model = manifest["settings"], manifest.get("model") or {}
    given = settings.get("model_name_or_path") or settings.get("config_name")
    return {
        "name": given or "bundled tiny model",
        "class": model.get("class"),
        "parameters": model.get("parameters"),
        "trainable": model.get("trainable"),
        "adapter": model.get("adapter"),
    }


def rows_of(manifest: dict) -> dict[str, int]:
    """How many rows each evaluated split has: `{"rte.validation": 277}`."""
    data = manifest.get("data") or {}
    parts = {name: part for name, part in data.items() if isinstance(part, dict) and "used" in part}
    return {name: part["used"] for name, part in parts.items() if "kept_for_selection" not in part}


def fingerprints_of(manifest: dict) -> dict[str, str]:
    """What identifies the content of each split: `{"rte.validation": "sha256:aabc..."}`."""
    data = manifest.get("data") or {}
    return {
        name: part["fingerprint"] for name, part in data.items() if isinstance(part, dict) and "fingerprint" in part
    }


def held_out_of(manifest: dict) -> list[str]:
    """The splits that are a part of the training rows, drawn by the seed: `["reviews.validation"]`."""
    data = manifest.get("data") or {}
    return [name for name, part in data.items() if isinstance(part, dict) and HELD_OUT in str(part.get("origin"))]


def curves_of(lines: list[dict]) -> dict[str, list]:
    """`{name: [[step, value], ...]}` of what was logged under `train/` and `eval/`; the last of a step counts.

    >>> curves_of([{"step": 5, "train/loss": 2.0}, {"step": 10, "train/loss": 1.5, "eval/accuracy": None}])
    {'train/loss': [[5, 2.0], [10, 1.5]]}

    What Trainer says once of the whole training (`train/train_loss`) is no curve.
    """
    found: dict[str, dict] = {}
    for line in lines:
        for name, value in line.items():
            if "/" in name and not name.startswith("train/train_") and _is_number(value):
                found.setdefault(name, {})[line["step"]] = value
    return {name: [[step, value] for step, value in sorted(points.items())] for name, points in found.items()}


def thinned(points: list, most: int = MOST_POINTS) -> list:
    """At most `most` of the points, evenly spaced, first and last included; each is one that was logged."""
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def speed_of(lines: list[dict], training: dict) -> dict[str, dict]:
    """Rates and memory: `{"train/tokens_per_second": {"median": 117028.6, "max": ..., "logs": 12}}`, and run-long ones.

    Nothing is computed that was not logged; what was not logged is not there.
    """
    series: dict[str, list] = {}
    for line in lines:
        for name, value in line.items():
            if _is_number(value) and is_speed(name):
                series.setdefault(name, []).append(value)
    for name in ("train_runtime", "train_samples_per_second", "train_steps_per_second"):
        if _is_number(training.get(name)) and f"train/{name}" not in series:
            series[f"train/{name}"] = [training[name]]
    return {
        name: {"median": statistics.median(values), "max": max(values), "logs": len(values)}
        for name, values in series.items()
    }


def is_speed(name: str) -> bool:
    """Whether a logged name tells of time, throughput or memory."""
    room, _, leaf = name.partition("/")
    known = ("mfu", "data_wait", "seconds_per_step", "train_runtime")
    return room == "train" and (leaf in known or leaf.endswith("per_second") or "memory" in leaf or "mem_" in leaf)


def environment_of(manifest: dict) -> dict:
    """The command as it can be typed, versions, commit, machine and times."""
    return {
        "command": shlex.join(["python", *map(str, manifest["command"])]) if manifest.get("command") else None,
        "started": manifest.get("started"),
        "finished": manifest.get("finished"),
        "versions": manifest.get("versions") or {},
        "commit": {name: value for name, value in (manifest.get("commit") or {}).items() if name != "diff"},
        "hardware": manifest.get("hardware") or {},
        "restarts": len(manifest.get("restarts") or []),
    }


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
