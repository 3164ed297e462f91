"""Reads the lines of `metrics.jsonl` and `samples.jsonl`, to mirror, resume or plot a run.

    >>> follower = MetricLines("runs/a/metrics.jsonl")
    >>> follower.new_lines()
    [{'step': 10, 'epoch': 0.5, 'seconds': 3.2, 'train/loss': 0.4}]
    >>> follower.new_lines()                              # nothing was added since
    []
    >>> rows_by_step([{"step": 10, "train/loss": 0.4}, {"step": 10, "eval/accuracy": 90.1}])
    [(10, {'train/loss': 0.4, 'eval/accuracy': 90.1})]

A step may have several lines (its loss, then its evaluation); trackers show one row per step. Samples, some rows'
answers at each evaluation, are tables there: `samples/<task>`, and `final_samples/<task>` of the last evaluation.
"""

import contextlib
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

SAMPLES = "samples.jsonl"
# The columns of a table of samples.
SAMPLE_COLUMNS = ("row", "input", "target", "prediction", "right")
# How much of a file is read at once if all of it would take too much memory.
PIECE = 4 << 20
# Parts of the names of metrics that measure time, speed or memory.
OF_THE_MACHINE = ("second", "runtime", "mfu", "data_wait", "peak_memory")


class MetricLines:
    """A growing file, read incrementally; an incomplete last line is left for a later call.

    Attributes:
      behind: whether the last call left lines unread, because it reached its limit.
    """

    def __init__(self, path):
        self.path = Path(path)
        self.behind = False
        self._offset = 0
        self._num_lines = 0

    def new_lines(self, most_bytes: int | None = None) -> list[dict]:
        """The complete lines since the last call; those that are not lines of metrics are skipped with a warning.

        Args:
          most_bytes: about how much to read at most; None reads all that is there.
        """
        if not self.path.is_file():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            if most_bytes is None:
                text = file.read()
            else:
                text = file.read(most_bytes) + file.readline()
            self.behind = text.endswith(b"\n") and file.tell() < os.fstat(file.fileno()).st_size
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        texts = complete.split(b"\n")[:-1]
        first = self._num_lines + 1
        self._num_lines += len(texts)
        return parsed_lines(texts, self.path, first)


def is_of_the_machine(name: str) -> bool:
    """Whether a metric measures time, speed or memory, in which two equal runs differ.

    >>> is_of_the_machine("train/data_wait"), is_of_the_machine("train/loss")
    (True, False)
    """
    return any(word in name for word in OF_THE_MACHINE)


def thinned_lines(path, target_count: int = 10_000) -> Iterator[dict]:
    """The lines of metrics, or, of very many, about `target_count` from all over, the evaluations and the last line.

    For plots: parsing all of a million lines took 28 s and 2 GB for a plot that is 800 dots wide.
    """
    path = Path(path)
    if not path.is_file():
        return
    with path.open("rb") as file:
        num_lines = sum(1 for _ in file)
        stride = max(1, num_lines // target_count)
        file.seek(0)
        for number, line in enumerate(file, 1):
            is_evaluation = b'"eval/' in line or b'"final/' in line
            if is_evaluation or (number - 1) % stride == 0 or number == num_lines:
                yield from parsed_lines([line], path, number)


def metrics_of(line: dict) -> dict[str, float]:
    """The metrics of a line, for trackers: the names with a `/`; null, which stands for NaN in JSON, as NaN.

    >>> metrics_of({"step": 10, "epoch": 0.5, "train/loss": None})
    {'train/loss': nan}
    """
    return {name: math.nan if value is None else value for name, value in line.items() if "/" in name}


def rows_by_step(lines: list[dict]) -> list[tuple[int, dict]]:
    """Lines in order, merged into one row per step."""
    rows: dict[int, dict] = {}
    for line in lines:
        rows.setdefault(line["step"], {}).update(metrics_of(line))
    return list(rows.items())


def parsed_lines(texts: Iterable[bytes], path, first: int = 1) -> list[dict]:
    """The lines of metrics among these; what is none is named: a run that was killed while writing leaves broken text.

    Args:
      first: the number of the first of the lines in the file.
    """
    lines = []
    for number, text in enumerate(texts, first):
        line = None
        with contextlib.suppress(ValueError):
            line = json.loads(text)
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
        else:
            logger.warning("%s:%d is skipped: it is not a line of metrics or samples: %.60r", path, number, text)
    return lines


class SampleLines:
    """The samples of a run, read as they come; those before the step asked for are dropped."""

    def __init__(self, directory):
        self._lines = MetricLines(Path(directory) / SAMPLES)
        self._by_step: dict[int, list[dict]] = {}

    def tables(self, step: int) -> dict[str, list[dict]]:
        """The step's samples by the name that trackers give them."""
        for line in self._lines.new_lines():
            self._by_step.setdefault(line["step"], []).append(line)
        self._by_step = {line_step: lines for line_step, lines in self._by_step.items() if line_step >= step}
        tables: dict[str, list[dict]] = {}
        for line in self._by_step.get(step, []):
            folder = "final_samples" if line.get("final") else "samples"
            table = tables.setdefault(f"{folder}/{line.get('task')}", [])
            table.append({column: line.get(column) for column in SAMPLE_COLUMNS})
        return tables
