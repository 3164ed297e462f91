"""What happens beside the steps: metrics are written down, and the best step of each task is remembered.

>>> trainer.add_callback(MetricsCallback(run_dir, trackers))
"""

import json
import logging
import math
import os
import time
from pathlib import Path

from transformers import TrainerCallback

from t5suite.data.jsonl import without_nan
from t5suite.runs import METRICS

logger = logging.getLogger(__name__)


class MetricsCallback(TrainerCallback):
    """One line of `metrics.jsonl` per log, then the trackers. On resume, lines after the resumed step are dropped."""

    def __init__(self, directory, trackers):
        self.path = Path(directory) / METRICS
        self.trackers = trackers
        self.started = time.perf_counter()
        self.seconds_before = 0.0
        self.num_lines = 0

    def remember(self) -> dict:
        """The lines so far, which are on the disk before the checkpoint that counts them."""
        if self.path.is_file():
            with self.path.open("rb") as file:
                os.fsync(file.fileno())
        return {"num_lines": self.num_lines}

    def recall(self, remembered: dict) -> None:
        """How many lines there were."""
        self.num_lines = remembered["num_lines"]

    def on_train_begin(self, args, state, control, **kwargs):
        """Keeps what an interrupted run wrote up to the checkpoint that it goes on from."""
        if not state.is_world_process_zero:
            return
        if self.path.is_file():
            self._trim(state.global_step)
        self.trackers.begin(state.global_step)

    def _trim(self, step: int) -> None:
        lines = _complete_lines(self.path)
        kept = [line for line in lines[: self.num_lines] if line["step"] <= step]
        self.num_lines = len(kept)
        self.seconds_before = kept[-1]["seconds"] if kept else 0.0
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        os.replace(temporary, self.path)

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Writes one line; names without a room get `train/`."""
        if not state.is_world_process_zero or not logs:
            return
        metrics = {
            name if "/" in name else f"train/{name}": value
            for name, value in logs.items()
            if name not in ("epoch", "total_flos", "step") and isinstance(value, (int, float))
        }
        line = {
            "step": state.global_step,
            "epoch": round(state.epoch or 0.0, 6),
            "seconds": round(self.seconds_before + time.perf_counter() - self.started, 3),
            **without_nan(metrics),
        }
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
        self.num_lines += 1
        self.trackers.log(without_nan(metrics), state.global_step)


class BestPerTaskCallback(TrainerCallback):
    """Remembers each task's best step (the earliest of equals), and keeps its weights where asked.

    Args:
      save_weights: a function folder -> None that saves the model, or None to keep no weights.
    """

    def __init__(self, directory, save_weights=None):
        self.directory = Path(directory)
        self.save_weights = save_weights
        self.best: dict[str, dict] = {}
        self.report_of = None

    def remember(self) -> dict:
        """The table, for a checkpoint."""
        return self.best

    def recall(self, remembered: dict) -> None:
        """The table of the run that goes on."""
        self.best = remembered

    def on_evaluate(self, args, state, control, **kwargs):
        """Compares each task's value with its best so far."""
        report = self.report_of()
        for task, value in report.by_task.items():
            best = self.best.get(task)
            if math.isnan(value) or (best is not None and value <= best["value"]):
                continue
            self.best[task] = {"step": state.global_step, "value": value}
            if self.save_weights:
                self.save_weights(str(self.folder(task)))

    def folder(self, task: str) -> Path:
        """Where a task's best weights are kept."""
        return self.directory / "best" / task


def _complete_lines(path) -> list[dict]:
    """The lines that are whole: a run that died while writing leaves half a line at the end."""
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            logger.warning("%s: a broken line is left out: %.60r", path, line)
    return lines
