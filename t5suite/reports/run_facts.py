"""One run directory as plain data, the runs that are seeds of one setting, and T5's published scores.

>>> run = read_run("runs/glue-rte-t5-small")
>>> run["status"], run["results"]["rte"], run["curves"]["eval/accuracy"][-1]
('finished', {'accuracy': 71.1, 'invalid_rate': 0.0}, [2490, 71.1])
>>> [(setting["label"], setting["runs"]) for setting in settings_of(runs)]
[('learning_rate 0.001', ['rte-s1', 'rte-s2', 'cola-s1']), ('learning_rate 0.0001', ['rte-low'])]

Reads `manifest.json`, `results.json`, `metrics.jsonl` and `config.json`; a run that is not finished, or that logged
nothing, has what there is, and `notes` say what there is not. Published scores are those of the leaderboards' test sets
(arXiv:1910.10683, table 14); `published_scores.json` says where each comes from.
"""

import functools
import json
import math
import re
import shlex
import statistics
from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.base.lookup import find
from t5suite.base.script_flags import flags_marked
from t5suite.constants import MIXTURES
from t5suite.reports.evaluations import HELD_OUT
from t5suite.runs.directory import MANIFEST, METRICS, RESULTS, read_json, read_manifest, read_results, tasks_named
from t5suite.runs.settings import is_decisive
from t5suite.tracking.metric_lines import MetricLines

SIZES = ("small", "base", "large", "3B", "11B")


@functools.cache
def published_scores() -> dict:
    """The whole table."""
    return json.loads((Path(__file__).parent / "published_scores.json").read_text(encoding="utf-8"))


def published_score(benchmark: str | None, task: str, metric: str, size: str | None) -> float | None:
    """Points of the T5 of that size; None where none were published.

    Args:
      task: as results name it, such as `mnli_matched`; a test split's `.test` is passed over.
    """
    scores = published_scores()["test"].get(benchmark, {}).get(task.removesuffix(".test"), {}).get(metric)
    return scores[SIZES.index(size)] if scores and size in SIZES else None


def published_average(benchmark: str | None, size: str | None) -> float | None:
    """The benchmark's published average of that size, over the tasks that our average is over.

    The printed GLUE average counts WNLI, which ours leaves out, so GLUE's is taken from the tasks' own scores.
    """
    if size not in SIZES or benchmark not in published_scores()["averages"]:
        return None
    if benchmark != "glue":
        return published_scores()["averages"][benchmark][SIZES.index(size)]
    means = [_task_mean(benchmark, task, size) for task in MIXTURES[benchmark]["all"]["average"]]
    return round(sum(means) / len(means), 2)


def _task_mean(benchmark: str, task: str, size: str) -> float:
    """The mean of a task's published metrics, and of MNLI's halves."""
    table = published_scores()["test"][benchmark]
    values = [
        scores[SIZES.index(size)]
        for name in (task, f"{task}_matched", f"{task}_mismatched")
        for scores in table.get(name, {}).values()
    ]
    return sum(values) / len(values)


def check_size(size: str | None) -> str | None:
    """A size that was given on the command line.

    Raises:
      ConfigError: none of SIZES.
    """
    return None if size is None else find(size, {name: name for name in SIZES}, "size", where="--size")


def size_of_run(directory, settings: dict) -> str | None:
    """The published size that a run's model has: by its shape (`config.json`), else by its name.

    >>> size_of_run("runs/glue-rte-t5-base", {"model_name_or_path": "google-t5/t5-base"})
    'base'
    """
    path = Path(directory) / "config.json"
    try:
        config = read_json(path) if path.is_file() else {}
    except (OSError, ValueError, RecursionError):
        config = {}
    if isinstance(config, dict) and config.get("model_type") == "t5":
        return size_of_shape(config)
    return size_of_name(settings.get("model_name_or_path") or settings.get("config_name") or "")


def size_of_shape(config: dict) -> str | None:
    """The size of a T5 of that shape, v1.0 or v1.1.

    >>> size_of_shape({"d_model": 768, "d_ff": 3072, "num_layers": 12})
    'base'
    """
    shape = (config.get("d_model"), config.get("d_ff"), config.get("num_layers"))
    return SIZE_OF_SHAPE.get(shape)


def size_of_name(name: str) -> str | None:
    """The size that a checkpoint's name tells.

    >>> size_of_name("google/t5-v1_1-xl"), size_of_name("google-t5/t5-small"), size_of_name("facebook/bart-base")
    ('3B', 'small', None)
    """
    words = re.split(r"[^a-z0-9.]+", name.lower())
    if not any("t5" in word for word in words):
        return None
    return next((SIZE_OF_WORD[word] for word in reversed(words) if word in SIZE_OF_WORD), None)


SIZE_OF_WORD = {
    "small": "small",
    "base": "base",
    "large": "large",
    "3b": "3B",
    "xl": "3B",
    "11b": "11B",
    "xxl": "11B",
}
# (d_model, d_ff, num_layers) of v1.0 and v1.1
SIZE_OF_SHAPE = {
    (512, 2048, 6): "small",
    (512, 1024, 8): "small",
    (768, 3072, 12): "base",
    (768, 2048, 12): "base",
    (1024, 4096, 24): "large",
    (1024, 2816, 24): "large",
    (1024, 16384, 24): "3B",
    (2048, 5120, 24): "3B",
    (1024, 65536, 24): "11B",
    (4096, 10240, 24): "11B",
}
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


# What may differ between seeds of one setting, and what a table's task column says.
SEEDS = frozenset(("seed", "data_seed"))
TASKS = frozenset(("benchmark", "dataset_name"))
# How a run is laid out over devices and how often it is evaluated is no setting of interest.
MOST_NAMED = 3
LONGEST_VALUE = 40


def settings_of(runs: list[dict]) -> list[dict]:
    """`[{"label", "differs": {name: value}, "runs": [names]}]`, in the order of their first runs.

    The label names what differs from the other settings, or, where that is much, from those of the same tasks; a
    setting whose tasks no other has is then called by them. It is empty where there is one setting alone.
    """
    found: dict[str, dict] = {}
    for run in runs:
        kept = comparable(run["settings"])
        key = json.dumps(kept, sort_keys=True, default=str)
        group = found.setdefault(key, {"settings": kept, "runs": [], "tasks": []})
        group["runs"].append(run["name"])
        group["tasks"] += [task for task in tasks_of(run) if task not in group["tasks"]]
    groups = list(found.values())
    settings = []
    for group in groups:
        kind = [other for other in groups if is_fine_tuning(other) == is_fine_tuning(group)]
        near = [other for other in kind if set(other["tasks"]) & set(group["tasks"])]
        differs = _differs(group, kind)
        label = label_of(differs)
        if len(differs) > MOST_NAMED and len(near) < len(kind):
            differs = _differs(group, near)
            label = label_of(differs) if differs else _few(group["tasks"])
        settings.append({"label": label, "differs": differs, "runs": group["runs"]})
        if len(groups) > 1 and not settings[-1]["label"]:
            settings[-1]["label"] = "as given" if is_fine_tuning(group) else "pre-training"
    _tell_apart(settings)
    return settings


def tasks_of(run: dict) -> list[str]:
    """The names of what a run is about: of its results, or of what its flags say."""
    named = run.get("dataset_name") or run["settings"].get("dataset_name")
    return list(run.get("results") or []) or ([str(named)] if named else [])


def _differs(group: dict, others: list[dict]) -> dict:
    return {name: group["settings"].get(name) for name in _varied([other["settings"] for other in others])}


def is_fine_tuning(group: dict) -> bool:
    """Whether a setting is of the script that has tasks; those of pre-training have other flags and other results."""
    return "max_source_length" in group["settings"]


def comparable(settings: dict) -> dict:
    """The settings that make two runs different ones, but for seeds and tasks."""
    left_out = SEEDS | TASKS
    return {
        name: value
        for name, value in settings.items()
        if is_decisive(name) and name not in left_out and value is not None
    }


def label_of(differs: dict) -> str:
    """What a setting is called.

    >>> label_of({"learning_rate": 0.001, "optimizer": "adafactor"})
    'learning_rate 0.001, optimizer adafactor'
    """
    return _few([f"{name} {_shown(value)}" for name, value in differs.items()])


def _few(said: list[str]) -> str:
    """The first few, and how many others there are."""
    more = f", {len(said) - MOST_NAMED} more" if len(said) > MOST_NAMED else ""
    return ", ".join(said[:MOST_NAMED]) + more


def _varied(settings: list[dict]) -> list[str]:
    """The names whose values are not the same everywhere, the best known ones first."""
    names = dict.fromkeys(name for one in settings for name in one)
    varied = [name for name in names if len({json.dumps(one.get(name), default=str) for one in settings}) > 1]
    known = flags_marked("report")
    return sorted(varied, key=lambda name: known.index(name) if name in known else len(known))


def _tell_apart(settings: list[dict]) -> None:
    """Labels that were cut to the same words get a number."""
    labels = [setting["label"] for setting in settings]
    for at, setting in enumerate(settings):
        if setting["label"] and labels.count(setting["label"]) > 1:
            setting["label"] = f"{setting['label']} (setting {at + 1})"


def _shown(value) -> str:
    text = f"{value:g}" if isinstance(value, float) else "unset" if value is None else str(value)
    return text if len(text) <= LONGEST_VALUE else "..." + text[3 - LONGEST_VALUE :]
