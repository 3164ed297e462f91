"""What went wrong in a run and what was done about it: one line each in `incidents.jsonl`.

    >>> incidents = Incidents(run_dir)
    >>> incidents.add(41, "non_finite", "update skipped", examples=["rte.train:7", "rte.train:93"], loss=float("nan"))

    {"step": 41, "kind": "non_finite", "action": "update skipped", "loss": null, "note": "loss was nan",
     "examples": ["rte.train:7", "rte.train:93"], "time": "2025-06-03T09:12:44+00:00"}

`step` is the number that the update has, counted from 1: the step that the log after it names.
"""

import datetime
import json
import math
from collections.abc import Iterable
from pathlib import Path

from t5suite.base.files import named_errors, whole_file

INCIDENTS_FILE = "incidents.jsonl"


class Incidents:
    """The incidents of a run directory.

    Args:
      is_main: whether this process writes; on the others every call does nothing.
    """

    def __init__(self, directory, is_main: bool = True):
        self.path = Path(directory) / INCIDENTS_FILE
        self.is_main = is_main

    def add(self, step: int, kind: str, action: str, examples: Iterable = (), **numbers) -> None:
        """Writes one line, at once: the next thing that the run does may be to end.

        Args:
          kind: `non_finite`, `spike`, `out_of_memory`, ...
          examples: ids of the examples of the update, over all ranks.
          numbers: what was measured; those that are no numbers become null, and the note says what they were.
        """
        if not self.is_main:
            return
        line = {"step": step, "kind": kind, "action": action, **json_numbers(numbers), "examples": list(examples)}
        line["time"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with named_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")

    def drop_after(self, step: int) -> None:
        """Keeps what happened up to a step: a run that goes on from there comes to the others again."""
        if not self.is_main or not self.path.is_file():
            return
        kept = [line for line in read_incidents(self.path.parent) if line["step"] <= step]
        text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in kept)
        with whole_file(self.path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def read_incidents(directory) -> list[dict]:
    """The lines of a run directory's incidents that are whole; none where there is no file."""
    path, lines = Path(directory) / INCIDENTS_FILE, []
    if not path.is_file():
        return lines
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:  # half a line: the process died while it wrote
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines


def json_numbers(numbers: dict) -> dict:
    """The numbers as JSON has them: what is none becomes null, with a note.

    >>> json_numbers({"loss": float("inf"), "grad_norm": 0.5})
    {'loss': None, 'grad_norm': 0.5, 'note': 'loss was inf'}
    """
    odd = [name for name, value in numbers.items() if isinstance(value, float) and not math.isfinite(value)]
    plain = {name: None if name in odd else value for name, value in numbers.items()}
    return {**plain, "note": ", ".join(f"{name} was {numbers[name]}" for name in odd)} if odd else plain
