"""Files with one line of JSON per step, which a resumed run continues: `StepLines`, and `metrics.jsonl` as one of them.

    >>> trainer.add_callback(MetricsCallback(run_dir, trackers))

A checkpoint counts the lines that were written before it. A run that resumes from it drops all later lines.
"""

import bisect
import collections
import contextlib
import itertools
import json
import logging
import os
import time
from pathlib import Path
from typing import BinaryIO

from t5suite.base.files import named_errors, whole_file
from t5suite.data.rows.jsonl import without_nan
from t5suite.runs.directory import METRICS, run_id_of
from t5suite.training.callback import Callback
from t5suite.training.evaluation_report import report_metrics

logger = logging.getLogger(__name__)

# What the trainer adds to its logs that is not a metric.
NOT_METRICS = ("epoch", "total_flos", "step")
# Logs that the trainer's state holds, in memory and in `trainer_state.json`, beside older evaluations.
MOST_LOGS = 1000


class StepLines(Callback):
    """Writes one JSON object per line, each with its `step`; lines written after the resumed checkpoint are dropped.

    >>> lines = StepLines(run_dir, "metrics.jsonl")
    >>> lines.add({"step": 10, "train/loss": 0.4})

    Attributes:
      num_lines: lines of the file so far.
      last_line: the last line that a resumed run has kept.
    """

    def __init__(self, directory, name: str):
        self.path = Path(directory) / name
        self.num_lines = 0
        self.last_line: dict | None = None
        self.has_trained = False

    def state_dict(self) -> dict:
        """The number of lines so far; they are on the disk before the checkpoint that counts them."""
        if self.path.is_file():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
        return {"num_lines": self.num_lines, "run_id": run_id_of(self.path.parent)}

    def load_state_dict(self, state_dict: dict) -> None:
        """Takes up the count of a checkpoint; the lines of another run's are not in this directory."""
        run_ids = (run_id_of(self.path.parent), state_dict.get("run_id"))
        if None in run_ids:  # a directory without a manifest: its file is all there is
            has_the_lines = self.path.is_file()
        else:
            has_the_lines = run_ids[0] == run_ids[1]
        self.num_lines = state_dict["num_lines"] if has_the_lines else 0

    def add(self, line: dict) -> None:
        """Appends a line."""
        with named_errors(self.path), self.path.open("a", encoding="utf-8") as file:
            file.write(_as_text(line))
        self.num_lines += 1

    def on_train_begin(self, args, state, control, **kwargs):
        """Keeps what an interrupted run wrote up to the checkpoint that it resumes from."""
        self.has_trained = True
        if state.is_world_process_zero:
            self.last_line = self.trim(state.global_step)

    def trim_final(self) -> None:
        """Where nothing was trained: drops what an interrupted evaluation wrote."""
        if not self.has_trained:
            self.trim(-1)

    def trim(self, step: int) -> dict | None:
        """Keeps the lines that the checkpoint counted, up to its step, and returns the last of them."""
        expected_count = self.num_lines
        self.num_lines = 0
        if not self.path.is_file():
            if expected_count:
                logger.warning("%s is gone, and with it %d earlier lines", self.path, expected_count)
            return None
        with self.path.open("r+b") as file:
            sizes = self._sizes_of_lines(file, expected_count)
            end = sum(sizes)
            last_line = None
            while sizes and last_line is None:
                file.seek(end - sizes[-1])
                last_line = self._parse_line(file.read(sizes[-1]), len(sizes), step)
                if last_line is None:
                    end -= sizes.pop()
            file.truncate(end)
        self.num_lines = len(sizes)
        return last_line

    def _sizes_of_lines(self, file: BinaryIO, expected_count: int) -> list[int]:
        """The numbers of bytes of the first lines, which are complete; warns of lines that are damaged or missing."""
        sizes = []
        for line in itertools.islice(file, expected_count):
            if not (line.startswith(b"{") and line.endswith(b"}\n")):
                logger.warning("%s:%d is not a line of JSON: %.60r", self.path, len(sizes) + 1, line)
            if line.endswith(b"\n"):
                sizes.append(len(line))
        if len(sizes) < expected_count:
            logger.warning("%s: %d of the %d earlier lines remain", self.path, len(sizes), expected_count)
        return sizes

    def _parse_line(self, text: bytes, number: int, last_step: int) -> dict | None:
        """A line of the file; None if it is of a later step, or is no line at all."""
        try:
            line = json.loads(text)
            return line if line["step"] <= last_step else None
        except (ValueError, KeyError, TypeError):  # a process that died while writing leaves half a line
            logger.warning("%s:%d is dropped: %.60r", self.path, number, text)
            return None


def _as_text(line: dict) -> str:
    return json.dumps(line, allow_nan=False) + "\n"


def _step_and_names(line: dict) -> tuple[int, frozenset[str]]:
    """What tells the lines of a run's metrics apart: a step may have one of training and one of an evaluation."""
    return line["step"], frozenset(line)


class MetricsCallback(StepLines):
    """One line of `metrics.jsonl` per log, which trackers read. On resume, lines after the resumed step are dropped."""

    def __init__(self, directory, trackers):
        super().__init__(directory, METRICS)
        self.trackers = trackers
        self.started = time.perf_counter()
        self.seconds_before = 0.0

    @property
    def seconds(self) -> float:
        """Seconds of training so far, those before a restart included."""
        return round(self.seconds_before + time.perf_counter() - self.started, 3)

    def state_dict(self) -> dict:
        """The number of lines, and the seconds so far."""
        return {**super().state_dict(), "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict) -> None:
        """Takes up lines and seconds of a checkpoint."""
        super().load_state_dict(state_dict)
        if self.num_lines:
            self.seconds_before = state_dict.get("seconds", 0.0)

    def on_train_begin(self, args, state, control, **kwargs):
        """Rewrites lines that a damaged or deleted file has lost, as far as the checkpoint's log history has them."""
        expected_count = self.num_lines
        super().on_train_begin(args, state, control)
        if not state.is_world_process_zero:
            return
        if self.last_line:
            self.seconds_before = self.last_line["seconds"]
        if expected_count > self.num_lines:
            # Of what is older the history has evaluations alone; of what is older than the file it has another run's.
            self._write_again(state.log_history[-min(expected_count, MOST_LOGS) :])
        self.trackers.begin()

    def _write_again(self, logs: list[dict]) -> None:
        """Adds the lines of those logs that the file has lost, each at its step."""
        lines = self._readable_lines()
        remaining = collections.Counter(map(_step_and_names, lines))
        lost_steps = []
        for log in logs:
            line = {"step": log["step"], "epoch": round(log["epoch"], 6), "seconds": self.seconds_before}
            line |= without_nan(training_metrics(log))
            if remaining[_step_and_names(line)]:
                remaining[_step_and_names(line)] -= 1
                continue
            place = bisect.bisect(lines, line["step"], key=lambda earlier: earlier["step"])
            if lines:
                line["seconds"] = lines[max(0, place - 1)]["seconds"]
            lines.insert(place, line)
            lost_steps.append(line["step"])
        with whole_file(self.path) as temporary:
            temporary.write_text("".join(map(_as_text, lines)), encoding="utf-8")
        self.num_lines = len(lines)
        steps = f", of steps {lost_steps[0]} to {lost_steps[-1]}," if lost_steps else ""
        logger.warning("%s: %d lines%s are written again from the checkpoint", self.path, len(lost_steps), steps)

    def _readable_lines(self) -> list[dict]:
        """The lines that are left, without those that are damaged."""
        lines = []
        if self.path.is_file():
            for text in self.path.read_bytes().splitlines():
                with contextlib.suppress(ValueError):
                    lines.append(json.loads(text))
        return [line for line in lines if isinstance(line, dict) and {"step", "seconds"} <= line.keys()]

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Writes one line; names without a prefix get `train/`."""
        if state.is_world_process_zero and logs:
            self.write(training_metrics(logs), state)

    def on_final(self, args, state, control, *, report, eval_sets, **kwargs) -> None:
        """Writes the scores of the final weights, with the prefix `final/`."""
        metrics = report_metrics(report, "final")
        if state.is_world_process_zero and metrics:
            self.trim_final()
            self.write(metrics, state)

    def write(self, metrics: dict, state) -> None:
        """Writes a line of metrics at the trainer's step."""
        line = {
            "step": state.global_step,
            "epoch": round(state.epoch or 0.0, 6),
            "seconds": self.seconds,
            **without_nan(metrics),
        }
        self.add(line)


def forget_old_logs(log_history: list[dict]) -> None:
    """Keeps the last logs, and of older ones the evaluations that have selected, or could have.

    `metrics.jsonl` has them all: kept here, they would make every checkpoint of a long run larger than the last.
    """
    log_history[:-MOST_LOGS] = [log for log in log_history[:-MOST_LOGS] if "eval/average" in log]


def training_metrics(logs: dict) -> dict:
    """The numbers of the trainer's log by their names in `metrics.jsonl`.

    >>> training_metrics({"loss": 0.4, "eval/accuracy": 91.2, "epoch": 0.5})
    {'train/loss': 0.4, 'eval/accuracy': 91.2}
    """
    metrics = {}
    for name, value in logs.items():
        if name not in NOT_METRICS and isinstance(value, (int, float)):
            metrics[name if "/" in name else f"train/{name}"] = value
    return metrics
