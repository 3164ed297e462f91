"""The lines of `metrics.jsonl`, as those read them who mirror or resume a run.

    >>> follower = MetricLines("runs/a/metrics.jsonl")
    >>> follower.new_lines()
    [{'step': 10, 'epoch': 0.5, 'seconds': 3.2, 'train/loss': 0.4}]
    >>> follower.new_lines()                              # nothing was added since
    []
    >>> rows_by_step([{"step": 10, "train/loss": 0.4}, {"step": 10, "eval/accuracy": 90.1}])
    [(10, {'train/loss': 0.4, 'eval/accuracy': 90.1})]

A step may have several lines (its loss, then its evaluation); trackers show one row a step.
"""

import itertools
import json
import math
from pathlib import Path


class MetricLines:
    """A file that grows, read as it does; half a line at its end waits for the rest."""

    def __init__(self, path):
        self.path = Path(path)
        self._offset = 0

    def new_lines(self) -> list[dict]:
        """The whole lines since the last call; what is no line of metrics is left out."""
        if not self.path.is_file():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [line for line in map(_parsed, whole.splitlines()) if line is not None]


def metrics_of(line: dict) -> dict[str, float]:
    """What trackers show of a line: the names that have a room; null, which stands for NaN in JSON, as NaN.

    >>> metrics_of({"step": 10, "epoch": 0.5, "train/loss": None})
    {'train/loss': nan}
    """
    return {name: math.nan if value is None else value for name, value in line.items() if "/" in name}


def rows_by_step(lines: list[dict]) -> list[tuple[int, dict]]:
    """Lines in order as one row a step."""
    rows = []
    for step, group in itertools.groupby(lines, key=lambda line: line["step"]):
        row = {}
        for line in group:
            row.update(metrics_of(line))
        rows.append((step, row))
    return rows


def _parsed(text: bytes) -> dict | None:
    """A run that was killed while writing leaves broken text, which its resumption cuts off."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("step"), int) else None
