"""Records a run's incidents, one line each in `incidents.jsonl`, and detects spikes of loss and gradient norm.

    >>> incidents = Incidents(run_dir)
    >>> incidents.add(41, "non_finite", "update skipped", examples=["rte.train:7", "rte.train:93"], loss=float("nan"))

    {"step": 41, "kind": "non_finite", "action": "update skipped", "loss": null, "note": "loss was nan",
     "examples": ["rte.train:7", "rte.train:93"], "time": "2025-06-03T09:12:44+00:00"}

`step` is the update's number, counted from 1: the step in the log line after it.

An update is a spike if its loss or gradient norm is more than 6 standard deviations above the mean of the last 128
updates, as in OLMo-core's SkipStepOptimizer (arXiv:2501.00656 section 3.4), with three changes. A history of 16 updates
suffices. A standard deviation counts as at least 2% of the mean, so that a flat loss has no spikes. An update with a
loss below 0.5 nats per token (each target token has a probability of 0.6) is no spike: near zero, one hard example in
the batch is many deviations of loss (0.002 -> 0.1) and gradient, and nothing is wrong.
"""

import datetime
import json
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from t5suite.base.files import named_errors, whole_file

INCIDENTS_FILE = "incidents.jsonl"


class Incidents:
    """The incidents of a run directory.

    Args:
      is_main: whether this process writes; in other processes every call does nothing.
    """

    def __init__(self, directory, is_main: bool = True):
        self.path = Path(directory) / INCIDENTS_FILE
        self.is_main = is_main

    def add(self, step: int, kind: str, action: str, examples: Iterable = (), **numbers) -> None:
        """Writes one line immediately, because the run may end next.

        Args:
          kind: `non_finite`, `spike` or `out_of_memory`.
          examples: ids of the update's examples, over all ranks.
          numbers: the measured values, and other fields of the line.
        """
        if not self.is_main:
            return
        floats = {name: number for name, number in numbers.items() if isinstance(number, float)}
        non_finite = [name for name, number in floats.items() if not math.isfinite(number)]
        line = {"step": step, "kind": kind, "action": action, **numbers, **dict.fromkeys(non_finite)}  # null in JSON
        if non_finite:
            line["note"] = ", ".join(f"{name} was {numbers[name]}" for name in non_finite)
        line["examples"] = list(examples)
        line["time"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with named_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")

    def drop_after(self, step: int) -> None:
        """Drops the incidents after a step: a run that resumes from that step meets them again."""
        if not self.is_main or not self.path.is_file():
            return
        lines = [line for line in read_incidents(self.path.parent) if line["step"] <= step]
        text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
        with whole_file(self.path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def read_incidents(directory) -> list[dict]:
    """The complete lines of a run directory's incidents; none if there is no file."""
    path = Path(directory) / INCIDENTS_FILE
    if not path.is_file():
        return []
    lines = []
    # Not by `splitlines`, which also ends a line at characters that JSON leaves in texts, such as U+2028.
    for text in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            line = json.loads(text)
        except ValueError:  # an incomplete line: the process died while writing
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            lines.append(line)
    return lines


@dataclass(frozen=True)
class Spike:
    """A `loss` or `grad_norm` above its limit, and how many standard deviations it is above the history's mean."""

    name: str
    value: float
    limit: float
    mean: float
    deviations: float

    @property
    def times(self) -> float:
        """The value divided by the mean."""
        return self.value / max(self.mean, 1e-9)

    def __str__(self) -> str:
        return (
            f"{self.name} {self.value:.4g} is {self.deviations:.1f} standard deviations above the {self.mean:.4g} of "
            f"the updates before (limit {self.limit:.4g})"
        )


@dataclass
class SpikeDetector:
    """Keeps the loss and gradient norm of the last 128 updates, and detects spikes.

    >>> detector = SpikeDetector()
    >>> [detector.observe(loss, grad_norm=1.0) for loss in [2.0, 2.1] * 16][-1]
    >>> detector.observe(20.0, grad_norm=1.0)
    Spike(name='loss', value=20.0, limit=2.37..., mean=2.05, deviations=347.6...)

    Args:
      sigmas: standard deviations above the mean that are still normal.
      min_history: number of updates before the first that can be a spike.
      least_deviation: the standard deviation counts as at least this share of the mean.
      least_loss: an update with a lower loss (nats per token) is no spike.
    """

    sigmas: float = 6.0
    min_history: int = 16
    least_deviation: float = 0.02
    least_loss: float = 0.5

    def __post_init__(self):
        self.history = {name: deque(maxlen=128) for name in ("loss", "grad_norm")}

    def observe(self, loss: float, grad_norm: float | None = None) -> Spike | None:
        """Returns the update's spike, if any (the loss's if both are spikes), and adds the update to the history.

        NaN or non-finite numbers are ignored: such an update is a failure, not a spike.
        """
        spikes = []
        for name, value in (("loss", loss), ("grad_norm", grad_norm)):
            if value is None or not math.isfinite(value):
                continue
            spike = self._spike_against_history(name, value)
            if spike is not None and loss >= self.least_loss:
                spikes.append(spike)
            self.history[name].append(float(value))
        return spikes[0] if spikes else None

    def _spike_against_history(self, name: str, value: float) -> Spike | None:
        past = self.history[name]
        if len(past) < self.min_history:
            return None
        mean = math.fsum(past) / len(past)
        variance = math.fsum((number - mean) ** 2 for number in past) / (len(past) - 1)
        deviation = max(math.sqrt(variance), self.least_deviation * abs(mean))
        limit = mean + self.sigmas * deviation
        if not value > limit:
            return None
        return Spike(name, value, limit, mean, (value - mean) / deviation if deviation else math.inf)

    def state(self) -> dict[str, list[float]]:
        """The state for a checkpoint, as JSON values; JSON restores floats bit for bit."""
        return {name: list(values) for name, values in self.history.items()}

    def load(self, state: dict[str, list[float]]) -> None:
        for name, values in self.history.items():
            values.clear()
            values.extend(state.get(name, ()))
