"""The values of a metric as a run logs them, and the best of them.

>>> Curve("trials/0000/metrics.jsonl", "eval/accuracy").update()
[(10, 88.5), (20, 91.0)]
"""

import json
import math
import os
import sys
from pathlib import Path


class Curve:
    """The values of a metric, as a run logs them.

    Args:
      name: the metric's.
    """

    def __init__(self, path, name: str):
        self.path = Path(path)
        self.name = name
        self.points: dict[int, float] = {}
        self.logged: set[str] = set()
        self._offset = 0

    def update(self) -> list[tuple[int, float]]:
        """Reads what was added, and returns `(step, value)` in the order of steps; null counts as NaN.

        A run that goes on from a checkpoint cuts the lines behind it off and writes them again: a step counts once.
        Half a line at the end waits for its rest.
        """
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return self.values()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._take(line)
        return self.values()

    def reread(self) -> list[tuple[int, float]]:
        """The file from its beginning, for a last look."""
        self._offset = 0
        return self.update()

    def values(self) -> list[tuple[int, float]]:
        """What has been read."""
        return sorted(self.points.items())

    def _take(self, text: bytes) -> None:
        try:
            line = json.loads(text)
        except ValueError:
            return
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            return
        self.logged.update(name for name in line if "/" in name)
        if self.name in line:
            self.points[line["step"]] = _finite(line[self.name])


def _finite(value) -> float:
    """NaN for whatever is no finite number."""
    good = isinstance(value, (int, float)) and abs(value) <= sys.float_info.max
    return float(value) if good else math.nan


def best_of(values: list[float], goal: str) -> float | None:
    """The best of the values; NaN is the worst of all, and None where there is no other.

    >>> best_of([70.0, float("nan"), 80.0], "maximize")
    80.0
    """
    numbers = [value for value in values if not math.isnan(value)]
    if not numbers:
        return None
    return max(numbers) if goal == "maximize" else min(numbers)
