"""What a run has left: a dict of plain values that equals another run's if, and only if, they did the same."""

import hashlib
import json
import re
from pathlib import Path

from safetensors.numpy import load_file

# Fields of metrics.jsonl that tell of the machine and the clock.
OF_THE_MACHINE = re.compile(
    r"^time$|seconds|data_wait|per_second|runtime|mfu|waiting|memory|gb$|flops|temperature|tokens_per|_time$",
    re.IGNORECASE,
)
# Words of a log that differ from run to run: times, rates, process ids, temporary folders.
VARYING = (
    (re.compile(r"\x1b\[[0-9;]*m"), ""),
    (re.compile(r"/\S*/golden-[^/\s]*"), "FOLDER"),
    (re.compile(r"\b\d+(\.\d+)?(k|M)? ?(s/step|tokens/s|GB|s left|rows/s)\b"), "N \\3"),
    (re.compile(r"\b(rows in) \d+(\.\d+)? s\b"), "\\1 N s"),  # of an evaluation
    (re.compile(r"(?<=\s)\d+\.\d(?=   )"), "SECONDS"),  # a column of the table of results
    (re.compile(r" · waiting for data \d+%"), ""),
    (re.compile(r"\b(\d+h )?(\d+m )?\d+(\.\d+)?s\b"), "TIME"),
    (re.compile(r"\b[0-9a-f]{8,64}\b"), "HASH"),
    (re.compile(r"\b(pid|process) \d+"), "\\1 N"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*"), "DATE"),
)
# Temporary siblings are named after host and process: `.node7.4950.manifest.json`.
TEMPORARY = re.compile(r"(?<=[/\s])\.[^./\s]+\.\d+\.")


def trace_of(directory: Path, logs: list[str], effects: str) -> dict:
    """Metrics by step, weights and files by checkpoint, results, incidents, answers, log lines, order of effects."""
    return {
        "metrics": metric_lines(directory / "metrics.jsonl"),
        "results": json.loads((directory / "results.json").read_text()),
        "incidents": metric_lines(directory / "incidents.jsonl"),
        "weights": {path.parent.name: weight_hash(path) for path in sorted(directory.rglob("model*.safetensors"))},
        "states": {
            str(path.relative_to(directory)): state_names(path) for path in sorted(directory.glob("checkpoint-*"))
        },
        "answers": {path.name: text_hash(path) for path in sorted(directory.glob("predictions/*.jsonl"))},
        "samples": text_hash(directory / "samples.jsonl"),
        "log": [line for log in logs for line in log_lines(log)],
        "effects": effect_lines(effects),
    }


def metric_lines(path: Path) -> list[dict]:
    """The lines of a .jsonl file without what the clock decides; floats in full."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [{name: value for name, value in line.items() if not OF_THE_MACHINE.search(name)} for line in lines]


def weight_hash(path: Path) -> str:
    """Of names, types, shapes and bytes of all tensors; a file's metadata does not count."""
    digest = hashlib.sha256()
    for name, tensor in sorted(load_file(path).items()):
        digest.update(f"{name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()[:16]


def state_names(checkpoint: Path) -> list[str]:
    """The files of a checkpoint."""
    return sorted(str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file())


def text_hash(path: Path) -> str | None:
    """Of a file's bytes; None if there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else None


def log_lines(log: str) -> list[str]:
    """The lines that a user sees, in order, with what varies replaced.

    Progress bars are left out, and the line of a signal, which may come before or after that of a step.
    """
    lines = []
    for line in log.split("\n"):
        is_bar = "\r" in line or "it/s]" in line or "examples/s]" in line
        if is_bar or "SIGTERM: the run stops" in line:
            continue
        for pattern, replacement in VARYING:
            line = pattern.sub(replacement, line)
        lines.append(line.rstrip())
    return [line for line in lines if line]


def effect_lines(text: str) -> list[str]:
    """Changes of files in the order in which they were made; repeated ones in a row count once."""
    lines = []
    for line in TEMPORARY.sub(".temporary.", text).splitlines():
        is_repeated = bool(lines) and lines[-1] == line
        if not is_repeated and line != "write diff.patch":  # there if the checkout has changes
            lines.append(line)
    return lines


def differences(before, after, place: str = "") -> list[str]:
    """Where two traces differ, one line a place; lists are compared by position."""
    if isinstance(before, dict) and isinstance(after, dict):
        lines_at = [differences(before.get(key), after.get(key), f"{place}/{key}") for key in sorted({*before, *after})]
        return [line for lines in lines_at for line in lines]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        lines_at = [differences(*pair, f"{place}[{number}]") for number, pair in enumerate(zip(before, after))]
        return [line for lines in lines_at for line in lines]
    if before == after:
        return []
    return [f"{place}: {str(before)[:200]} -> {str(after)[:200]}"]
