"""What two runs leave behind, compared file by file.

    >>> results_difference("runs/a", "runs/b"), history_difference("runs/a", "runs/b")
    (None, 'metrics.jsonl line 3: train/loss 4.1 there, 4.2 here')

Times differ between any two runs and are left out.
"""

import hashlib
import itertools
import json
from pathlib import Path

from t5suite.tracking.metric_lines import is_of_the_machine

RESULT_FILES = ("results.json", "model.safetensors", "predictions/*.jsonl")
# Of the trainer's state in a checkpoint.
STATE = ("global_step", "epoch", "max_steps", "log_history", "best_global_step", "best_metric", "total_flos")


def results_difference(directory, reference) -> str | None:
    """The first of the final files that is not the same bytes."""
    directory, reference = Path(directory), Path(reference)
    names = {path.relative_to(root) for root in (directory, reference) for p in RESULT_FILES for path in root.glob(p)}
    if not names:
        return "neither run has results"
    for name in sorted(names):
        here, there = directory / name, reference / name
        if not (here.is_file() and there.is_file()):
            return f"{name} is {'here' if here.is_file() else 'there'} only"
        if here.read_bytes() != there.read_bytes():
            return f"{name} differs"
    return None


def history_difference(directory, reference) -> str | None:
    """The first difference of `metrics.jsonl`, of the last checkpoint's history, of steps and loss of the training."""
    for number, (here, there) in enumerate(itertools.zip_longest(metrics(directory), metrics(reference)), 1):
        found = value_difference(here, there)
        if found:
            return f"metrics.jsonl line {number}: {found}"
    here, there = last_state(directory), last_state(reference)
    found = value_difference({key: here.get(key) for key in STATE}, {key: there.get(key) for key in STATE})
    if found:
        return f"the last checkpoint's state: {found}"
    found = value_difference(training(directory), training(reference))
    return f"manifest.json, training: {found}" if found else None


def metrics(directory) -> list[dict]:
    """The lines of `metrics.jsonl`, without times."""
    lines = (Path(directory) / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [without_times(json.loads(line)) for line in lines]


def last_state(directory) -> dict:
    """The trainer's state in the newest checkpoint, without times."""
    found = [(int(path.parent.name.split("-")[1]), path) for path in Path(directory).glob("checkpoint-*/*state.json")]
    return without_times(json.loads(max(found)[1].read_text(encoding="utf-8"))) if found else {}


def training(directory) -> dict:
    """What the manifest says of the training, without times and the step that this process went on from."""
    manifest = json.loads((Path(directory) / "manifest.json").read_text(encoding="utf-8"))
    found = without_times(manifest.get("training", {}))
    return {key: value for key, value in found.items() if key != "from_step"}


def without_times(value):
    """A JSON value without its entries that are times, speeds or memory."""
    if isinstance(value, dict):
        return {key: without_times(v) for key, v in value.items() if not is_of_the_machine(key)}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def value_difference(here, there, path: str = "") -> str | None:
    """The first place at which two JSON values differ.

    >>> value_difference({"a": [1, 2]}, {"a": [1, 3]})
    'a.1: 3 there, 2 here'
    """
    if isinstance(here, dict) and isinstance(there, dict):
        pairs = [(key, here.get(key), there.get(key)) for key in [*there, *(key for key in here if key not in there)]]
    elif isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        pairs = [(index, *both) for index, both in enumerate(zip(here, there))]
    else:
        return None if here == there else f"{path}: {str(there)[:60]} there, {str(here)[:60]} here"
    found = (value_difference(ours, theirs, f"{path}.{key}".lstrip(".")) for key, ours, theirs in pairs)
    return next(filter(None, found), None)


def files(directory) -> dict[str, tuple[int, str]]:
    """Every file of a folder with its time of change and its SHA-256: equal before and after, nothing was touched."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(Path(directory).rglob("*"))
        if path.is_file()
    }


def changed_files(before: dict, after: dict, but=()) -> str | None:
    """The names that are new, gone or changed between two `files`, but for some; None without any."""
    names = sorted(name for name in {*before, *after}.difference(but) if before.get(name) != after.get(name))
    return f"changed: {', '.join(names[:4])}" if names else None
