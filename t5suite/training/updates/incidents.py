"""What goes wrong in a run: one line each in `incidents.jsonl`; and which losses and gradient norms are spikes.

    >>> incidents = Incidents(run_dir)
    >>> incidents.add(41, "non_finite", "update skipped", examples=["rte.train:7", "rte.train:93"], loss=float("nan"))

    {"step": 41, "kind": "non_finite", "action": "update skipped", "loss": null, "note": "loss was nan",
     "examples": ["rte.train:7", "rte.train:93"], "time": "2025-06-03T09:12:44+00:00"}

`step` is the number that the update has, counted from 1: the step that the log after it names.

An update is a spike if its loss or its gradient norm lies more than 6 standard deviations above the mean of the last
128 updates: OLMo-core's SkipStepOptimizer (arXiv:2501.00656 section 3.4), but for three things: 16 updates of history
suffice, a standard deviation counts as at least 2% of the mean, so that a flat loss has no spikes, and an update whose
loss is below 0.5 nats a token (each target token has a probability of 0.6) is none: near zero one hard example in the
batch is many deviations, of the loss (0.002 -> 0.1) and of the gradient, and nothing is wrong.
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
      is_main: whether this process writes; on the others every call does nothing.
    """

    def __init__(self, directory, is_main: bool = True):
        self.path = Path(directory) / INCIDENTS_FILE
        self.is_main = is_main

    def add(self, step: int, kind: str, action: str, examples: Iterable = (), **numbers) -> None:
        """Writes one line, at once: the next thing that the run does may be to end.

        Args:
          kind: `non_finite`, `spike` or `out_of_memory`.
          examples: ids of the examples of the update, over all ranks.
          numbers: what was measured.
        """
        if not self.is_main:
            return
        odd = [name for name, value in numbers.items() if isinstance(value, float) and not math.isfinite(value)]
        line = {"step": step, "kind": kind, "action": action, **numbers, **dict.fromkeys(odd)}  # null in JSON
        if odd:
            line["note"] = ", ".join(f"{name} was {numbers[name]}" for name in odd)
        line["examples"] = list(examples)
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


@dataclass(frozen=True)
class Spike:
    """A `loss` or `grad_norm`, the most that would have passed, and so many deviations above the history's mean."""

    name: str
    value: float
    limit: float
    mean: float
    deviations: float

    @property
    def times(self) -> float:
        """How many times the mean it is."""
        return self.value / max(self.mean, 1e-9)

    def __str__(self) -> str:
        return (
            f"{self.name} {self.value:.4g} is {self.deviations:.1f} standard deviations above the {self.mean:.4g} of "
            f"the updates before (limit {self.limit:.4g})"
        )


@dataclass
class SpikeDetector:
    """Remembers the last 128 updates and finds the one that is out of the ordinary.

    >>> detector = SpikeDetector()
    >>> [detector.observe(loss, grad_norm=1.0) for loss in [2.0, 2.1] * 16][-1]
    >>> detector.observe(20.0, grad_norm=1.0)
    Spike(name='loss', value=20.0, limit=2.37..., mean=2.05, deviations=347.6...)

    Args:
      sigmas: standard deviations above the mean that are still ordinary.
      min_history: updates before which nothing is a spike.
      least_deviation: the standard deviation is taken to be at least this share of the mean.
      least_loss: an update whose loss is below is no spike (nats a token).
    """

    sigmas: float = 6.0
    min_history: int = 16
    least_deviation: float = 0.02
    least_loss: float = 0.5

    def __post_init__(self):
        self.history = {name: deque(maxlen=128) for name in ("loss", "grad_norm")}

    def observe(self, loss: float, grad_norm: float | None = None) -> Spike | None:
        """The update's spike, if it is one (of both, the loss's); the update then belongs to the history.

        Non-finite numbers are passed over: such an update is no spike but a failure.
        """
        spike = None
        for name, value in (("loss", loss), ("grad_norm", grad_norm)):
            if value is None or not math.isfinite(value):
                continue
            past = self.history[name]
            if len(past) >= self.min_history:
                mean = math.fsum(past) / len(past)
                variance = math.fsum((x - mean) ** 2 for x in past) / (len(past) - 1)
                deviation = max(math.sqrt(variance), self.least_deviation * abs(mean))
                limit = mean + self.sigmas * deviation
                if value > limit and loss >= self.least_loss:
                    above = (value - mean) / deviation if deviation else math.inf
                    spike = spike or Spike(name, value, limit, mean, above)
            past.append(float(value))
        return spike

    def state(self) -> dict[str, list[float]]:
        """What a checkpoint remembers, as JSON values; floats come back from JSON bit by bit."""
        return {name: list(values) for name, values in self.history.items()}

    def load(self, state: dict[str, list[float]]) -> None:
        for name, values in self.history.items():
            values.clear()
            values.extend(state.get(name, ()))
