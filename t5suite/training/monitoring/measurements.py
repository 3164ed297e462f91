"""What steps spend their time and memory on (`--profile 10:12`), and a training its energy.

    >>> parse_steps("10:12"), parse_steps("7")
    ((10, 12), (7, 7))
    >>> trainer.add_callback(ProfileCallback("10:12", run_dir, rank=0))

Every rank writes below `profile/`: `steps-10-12.rank-0.trace.json` (for chrome://tracing or ui.perfetto.dev), the top
of the table of operators as text, and memory: on CUDA a snapshot for pytorch.org/memory_viz (`.memory.pickle`),
everywhere the resident memory step by step and the operators that asked for most (`.memory.json`).

    >>> with metered() as meter:
    ...     trainer.train()
    >>> meter.described()
    {'joules': 5400.2, 'seconds': 12.0, 'of': ['intel-rapl:0 (package-0)', 'NVIDIA H200']}

Energy is what the devices' own counters say: of processors by RAPL (docs.kernel.org/power/powercap/powercap.html), in
files that most systems let root alone read; of NVIDIA's cards by NVML (nvmlDeviceGetTotalEnergyConsumption), through
pynvml. A counter counts its whole device, whoever uses it; memory, fans and power supplies are left out.
"""

import contextlib
import logging
import os
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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


# ---------------------------------------------------------------------------------------------------------------------
# Energy


POWERCAP = Path("/sys/class/powercap")
# RAPL begins at 0 again after about 262 kJ, which 250 W take in a quarter of an hour.
POLL_SECONDS = 60.0
INSTALL = "pip install 't5suite[energy]'"


@dataclass(frozen=True)
class Counter:
    """A device's counter.

    Attributes:
      read: joules since some time.
      wraps_at: joules at which it begins at 0 again; None: never.
    """

    name: str
    read: Callable[[], float]
    wraps_at: float | None = None


class Meter:
    """Counts while its thread runs.

    Args:
      why: why a device is not counted.
    """

    def __init__(self, counters: list[Counter], why: list[str], poll_seconds: float = POLL_SECONDS):
        self._counters, self._why, self._poll = counters, why, poll_seconds
        self._joules = dict.fromkeys((counter.name for counter in counters), 0.0)
        self._last: dict[str, float] = {}
        self._lock, self._done = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="energy", daemon=True)
        self._started = self._ended = time.perf_counter()

    def start(self) -> None:
        """Begins to count."""
        self._started = time.perf_counter()
        self._update()
        if any(counter.wraps_at for counter in self._counters):
            self._thread.start()

    def stop(self) -> None:
        """Counts for the last time."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()
        self._update()
        self._ended = time.perf_counter()

    def described(self) -> dict:
        """For the manifest: joules and what they are of, or why there are none."""
        found = {"seconds": round(self._ended - self._started, 3)}
        if self._joules:
            found |= {"joules": round(sum(self._joules.values()), 3), "of": list(self._joules)}
        return {**found, **({"why": "; ".join(self._why)} if self._why else {})}

    def _run(self) -> None:
        while not self._done.wait(self._poll):
            self._update()

    def _update(self) -> None:
        """Adds what came since the last look; a counter that fails is left out, and said to be."""
        with self._lock:
            for counter in [counter for counter in self._counters if counter.name in self._joules]:
                try:
                    now = counter.read()
                except Exception as error:
                    del self._joules[counter.name]
                    self._why.append(f"{counter.name}: {error or type(error).__name__}")
                    continue
                step = now - self._last.get(counter.name, now)
                self._joules[counter.name] += step if step >= 0 else step + (counter.wraps_at or 0.0)
                self._last[counter.name] = now


@contextlib.contextmanager
def metered(is_main: bool = True) -> Iterator[Meter]:
    """A meter of this node's devices, on the main process; on others one that counts nothing."""
    counters, why = ([], []) if not is_main else devices()
    meter = Meter(counters, why)
    meter.start()
    try:
        yield meter
    finally:
        meter.stop()


def devices() -> tuple[list[Counter], list[str]]:
    """The counters of what this run computes with, and why others are missing."""
    processors, lack = rapl_counters()
    why = [] if processors else [lack]
    cards = []
    if torch.cuda.is_available() and torch.version.cuda:
        cards, lack = nvml_counters()
        why += [lack] if lack else []
    nodes = int(os.environ.get("WORLD_SIZE", "1")) // int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)
    why += [f"the first of {nodes} nodes alone"] if nodes > 1 and (processors or cards) else []
    return processors + cards, why


def rapl_counters(folder: Path = POWERCAP) -> tuple[list[Counter], str]:
    """A counter for every processor, and what is the matter where there is none.

    >>> rapl_counters(Path("/nowhere"))
    ([], 'the processor has no energy counter (RAPL) here')
    """
    found = []
    for zone in sorted(folder.glob("intel-rapl:*")):
        if zone.name.count(":") > 1:
            continue  # a part of a package, which counts it already
        path = zone / "energy_uj"
        try:
            path.read_text()
            largest = int((zone / "max_energy_range_uj").read_text())
            name = f"{zone.name} ({(zone / 'name').read_text().strip()})"
        except OSError:
            return [], f"{path} cannot be read by this user"
        found.append(Counter(name, lambda path=path: int(path.read_text()) / 1e6, largest / 1e6))
    return found, "" if found else "the processor has no energy counter (RAPL) here"


def nvml_counters() -> tuple[list[Counter], str]:
    """A counter for every card that this node's processes use, and what is the matter where there is none."""
    try:
        import pynvml
    except ImportError:
        return [], f"graphics cards need pynvml: {INSTALL}"
    try:
        pynvml.nvmlInit()
        used = min(torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))
        found = [_card(pynvml, index) for index in range(max(1, used))]
    except pynvml.NVMLError as error:
        return [], f"graphics cards: {error}"
    return found, ""


def _card(pynvml, index: int) -> Counter:
    """NVML numbers cards as the machine does, torch as CUDA_VISIBLE_DEVICES: they agree about the id."""
    about = torch.cuda.get_device_properties(index)
    handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{about.uuid}")
    pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)  # older cards than Volta have none
    return Counter(f"{about.name} {index}", lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3)
