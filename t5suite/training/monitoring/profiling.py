"""`--profile 10:12`: what the steps 10 to 12 spent their time and memory on.

    >>> parse_steps("10:12"), parse_steps("7")
    ((10, 12), (7, 7))
    >>> trainer.add_callback(ProfileCallback("10:12", run_dir, rank=0))

Every rank writes below `profile/`: `steps-10-12.rank-0.trace.json` (for chrome://tracing or ui.perfetto.dev), the top
of the table of operators as text, and memory: on CUDA a snapshot for pytorch.org/memory_viz (`.memory.pickle`),
everywhere the resident memory step by step and the operators that asked for most (`.memory.json`).
"""

import logging
import os
import re
import resource
import sys
from pathlib import Path

import torch
from transformers import TrainerCallback

from t5suite.base.errors import ConfigError
from t5suite.runs.directory import write_json

logger = logging.getLogger(__name__)

FOLDER = "profile"
TABLE_ROWS = 12
# A trace of T5-base has 10 MB a step; more steps than these are not readable either.
MANY_STEPS = 30


def parse_steps(text: str) -> tuple[int, int]:
    """First and last step, both included.

    Raises:
      ConfigError: no range of steps.
    """
    found = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= first <= last:
        raise ConfigError(
            f"--profile {text}: expected FIRST:LAST, steps from 1 on, both included, such as 10:12 (or one step: 10)"
        )
    return first, last


class ProfileCallback(TrainerCallback):
    """Profiles a range of steps; what goes wrong with the profiler is a warning, and training goes on.

    Args:
      steps: FIRST:LAST.
      rank: whose files these are; the first one prints the table.
    """

    def __init__(self, steps: str, directory, rank: int = 0):
        self.steps, self.rank = steps, rank
        self.first, self.last = parse_steps(steps)
        self.folder = Path(directory) / FOLDER
        self._profiler = None
        self._memory: list[dict] = []

    def on_train_begin(self, args, state, control, **kwargs):
        """A run that goes on behind the range has nothing to profile; one within it, the rest."""
        if state.global_step >= self.last:
            self._warn("the run goes on from step %d, behind that", state.global_step)
        elif self.first > state.max_steps:
            self._warn("the run has %d steps", state.max_steps)
        elif self.last - self.first >= MANY_STEPS:
            logger.warning("--profile %s: a trace of that many steps is large and slow to look at", self.steps)
        self.first = max(self.first, state.global_step + 1)

    def on_step_begin(self, args, state, control, **kwargs):
        """Starts with the first step."""
        if state.global_step + 1 == self.first and self.first <= self.last and self._profiler is None:
            self._safely(self._start)

    def on_step_end(self, args, state, control, **kwargs):
        """Ends with the last step, before what follows it."""
        if self._profiler is None:
            return
        self._safely(lambda: self._memory.append({"step": state.global_step, **memory_now()}))
        if state.global_step >= self.last:
            self._end(state)

    def on_train_end(self, args, state, control, **kwargs):
        """A run that ends within the range has profiled what there was."""
        if self._profiler is not None:
            self._end(state)

    def _start(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
            torch.cuda.memory._record_memory_history(max_entries=200_000)
        profiler = torch.profiler.profile(activities=activities, record_shapes=True, profile_memory=True)
        profiler.start()
        self._profiler = profiler

    def _end(self, state) -> None:
        profiler, self._profiler = self._profiler, None
        self._safely(lambda: self._write(profiler, state.global_step))

    def _write(self, profiler, last: int) -> None:
        profiler.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        base = self.folder / f"steps-{self.first}-{last}.rank-{self.rank}"
        profiler.export_chrome_trace(f"{base}.trace.json")
        averages, device = profiler.key_averages(), "cuda" if torch.cuda.is_available() else "cpu"
        table = averages.table(sort_by=f"self_{device}_time_total", row_limit=TABLE_ROWS, max_name_column_width=48)
        Path(f"{base}.table.txt").write_text(table, encoding="utf-8")
        if torch.cuda.is_available():
            torch.cuda.memory._dump_snapshot(f"{base}.memory.pickle")
            torch.cuda.memory._record_memory_history(enabled=None)
        write_json(f"{base}.memory.json", {"steps": self._memory, "operators": top_allocators(averages)})
        if self.rank == 0:
            print(narrow(table), flush=True)
        logger.info("--profile: steps %d to %d are in %s", self.first, last, self.folder)

    def _safely(self, call) -> None:
        try:
            call()
        except (RuntimeError, OSError, ValueError, AttributeError) as error:
            self._profiler = None
            logger.warning("--profile %s failed (%s: %s); training goes on", self.steps, type(error).__name__, error)

    def _warn(self, reason: str, *args) -> None:
        logger.warning(f"--profile {self.steps} has no effect: {reason}", *args)


def memory_now() -> dict[str, int]:
    """Bytes: what the process has resident, the most that it ever had, and of a GPU what is and was allocated."""
    unit = 1 if sys.platform == "darwin" else 1024
    found = {"peak_resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
    statm = Path("/proc/self/statm")
    if statm.is_file():
        found["resident_bytes"] = int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if torch.cuda.is_available():
        found["gpu_bytes"] = torch.cuda.memory_allocated()
        found["peak_gpu_bytes"] = torch.cuda.max_memory_allocated()
    return found


def top_allocators(averages, most: int = 20) -> list[dict]:
    """The operators that asked for most memory: their own, not what they call; what they gave back is taken off."""
    name = "self_device_memory_usage" if torch.cuda.is_available() else "self_cpu_memory_usage"
    events = sorted(averages, key=lambda event: -getattr(event, name))[:most]
    return [{"operator": event.key, "bytes": getattr(event, name), "calls": event.count} for event in events]


def narrow(table: str) -> str:
    """The table without the columns that a terminal has no room for.

    The profiler's columns have fixed widths, told by the dashes of the line above the head.
    """
    lines = table.splitlines()
    spans = [match.span() for match in re.finditer(r"-+", lines[0])]
    heads = [lines[1][a:b].strip() for a, b in spans]
    kept = [i for i, head in enumerate(heads) if head in SHOWN_COLUMNS]
    return "\n".join(
        "  ".join(line[slice(*spans[i])] for i in kept).rstrip() if len(line) >= spans[-1][0] else line
        for line in lines
    )


SHOWN_COLUMNS = (
    "Name",
    "Self CPU %",
    "Self CPU",
    "Self CUDA %",
    "Self CUDA",
    "Self CPU Mem",
    "Self CUDA Mem",
    "# of Calls",
)
