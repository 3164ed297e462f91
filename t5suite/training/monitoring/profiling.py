"""`--profile FIRST:LAST`: a trace, tables and a memory snapshot of some steps.

>>> trainer.add_callback(ProfileCallback("10:12", run_dir, rank=0))
"""

import logging
import re
from pathlib import Path

import torch

from t5suite.base.errors import ConfigError
from t5suite.base.libraries import require_proved
from t5suite.training.callback import Callback

logger = logging.getLogger(__name__)


def parse_steps(text: str) -> tuple[int, int]:
    """First and last step, both included: `"10:12"` -> `(10, 12)`, `"7"` -> `(7, 7)`.

    Raises:
      ConfigError: not a range of steps.
    """
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    first = int(match[1]) if match else 0
    last = int(match[2] or match[1]) if match else 0
    if not 1 <= first <= last:
        raise ConfigError(
            f"--profile {text}: expected FIRST:LAST, steps from 1 on, both included, such as 10:12 (or one step: 10)"
        )
    return first, last


class ProfileCallback(Callback):
    """Profiles a range of steps. If the profiler fails, logs a warning and training continues.

    >>> trainer.add_callback(ProfileCallback("10:12", run_dir, rank=0))

    Every rank writes to `profile/`: `steps-10-12.rank-0.trace.json` (for ui.perfetto.dev), the operators that took
    most time and memory (`.table.txt`; rank 0 prints those by time), and on CUDA a snapshot for pytorch.org/memory_viz
    (`.memory.pickle`).
    """

    def __init__(self, steps: str, directory, rank: int = 0):
        self.steps = steps
        self.rank = rank
        self.first, self.last = parse_steps(steps)
        self.folder = Path(directory) / "profile"
        self._profiler = None

    def on_train_begin(self, args, state, control, **kwargs):
        """A run that resumes after the range profiles nothing; within the range, it profiles the rest."""
        if state.global_step >= self.last or self.first > state.max_steps:
            logger.warning(
                "--profile %s has no effect: the run trains steps %d to %d",
                self.steps,
                state.global_step + 1,
                state.max_steps,
            )
        self.first = max(self.first, state.global_step + 1)

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.first <= self.last and self._profiler is None:
            self._safely(self._start)

    def on_step_end(self, args, state, control, **kwargs):
        if self._profiler is not None and state.global_step >= self.last:
            self.on_train_end(args, state, control)

    def on_train_end(self, args, state, control, **kwargs):
        if self._profiler is not None:
            profiler = self._profiler
            self._profiler = None
            self._safely(lambda: self._write(profiler, state.global_step))

    def _start(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            require_proved("memory_snapshots")
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            torch.cuda.memory._record_memory_history(max_entries=200_000)
        profiler = torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True)
        profiler.start()
        self._profiler = profiler

    def _write(self, profiler, last: int) -> None:
        profiler.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        base = self.folder / f"steps-{self.first}-{last}.rank-{self.rank}"
        profiler.export_chrome_trace(f"{base}.trace.json")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        averages = profiler.key_averages()
        table = averages.table(sort_by=f"self_{device}_time_total", row_limit=12, max_name_column_width=48)
        by_memory = averages.table(sort_by=f"self_{device}_memory_usage", row_limit=12, max_name_column_width=48)
        Path(f"{base}.table.txt").write_text(f"{table}\n{by_memory}", encoding="utf-8")
        if device == "cuda":
            torch.cuda.memory._dump_snapshot(f"{base}.memory.pickle")
            torch.cuda.memory._record_memory_history(enabled=None)
        if self.rank == 0:
            print(table, flush=True)
        logger.info("--profile: steps %d to %d are in %s", self.first, last, self.folder)

    def _safely(self, call) -> None:
        try:
            call()
        except (RuntimeError, OSError, ValueError, AttributeError) as error:
            self._profiler = None
            logger.warning("--profile %s failed (%s: %s); training goes on", self.steps, type(error).__name__, error)
