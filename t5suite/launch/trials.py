"""A trial: a process with a group of its own, its output in a file, and the metric that it logs.

    >>> trial = TrialProcess(["python", "fine_tune_t5.py"], log="trials/0000.log", environment={...})
    >>> trial.prepare()                         # a process that waits; its id can be written down
    >>> trial.start()
    >>> trial.stop(grace=60)                    # SIGTERM to all of its processes, SIGKILL to those left after 60 s
    >>> trial.poll()                            # None while any of them lives, then the exit code
    75

A trial ends when its last process has ended: of a launcher that dies first, the workers are waited for. When the
sweep's own process dies, the kernel sends the trial SIGTERM (prctl(2), PR_SET_PDEATHSIG), so that it ends with a
checkpoint.
"""

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from t5suite.base.errors import (
    EXIT_BAD_CONFIGURATION,
    EXIT_BAD_DATA,
    EXIT_FINISHED,
    EXIT_IO,
    EXIT_NUMERICS,
    EXIT_PREEMPTED,
    ConfigError,
)
from t5suite.constants import DATASET_VALS
from t5suite.runs.lock import owner_record, process_start


def visible_devices() -> list[str]:
    """The GPUs that may be used: CUDA_VISIBLE_DEVICES, else as many as there are `/dev/nvidia0`, ...

    CUDA counts them from 0, whatever the number of a container's only `/dev/nvidia3`.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip() and name.strip() != "-1"]
    found = [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)]
    return [str(i) for i in range(len(found))]


def devices_of_workers(workers: int, devices: list[str], gpus_per_trial: int | None = None) -> list[list[str] | None]:
    """The devices of each worker's trials; None: whatever is visible, for there is nothing to share out.

    Without `gpus_per_trial` they are shared out evenly; workers beyond the number of devices share one with others.

    Raises:
      ConfigError: fewer devices than the workers need.
    """
    if gpus_per_trial is not None and workers * gpus_per_trial > len(devices):
        raise ConfigError(
            f"--workers {workers} --gpus_per_trial {gpus_per_trial}: {workers * gpus_per_trial} GPUs are needed, and "
            f"{len(devices)} are visible; take fewer workers"
        )
    if not devices or (workers == 1 and gpus_per_trial is None):
        return [None] * workers
    each = len(devices) // workers if gpus_per_trial is None else gpus_per_trial
    if each == 0 and gpus_per_trial is None:
        return [[devices[i % len(devices)]] for i in range(workers)]
    return [devices[i * each : (i + 1) * each] for i in range(workers)]


def identity(pid: int) -> dict:
    """What identifies a process, though its number may be given to another one later."""
    record = owner_record(None)
    return {"host": record["host"], "boot": record["boot"], "pid": pid, "process_started": process_start(pid)}


def is_here(process: dict) -> bool:
    """Whether the process ran on this machine since its last start."""
    mine = identity(os.getpid())
    return (process.get("host"), process.get("boot")) == (mine["host"], mine["boot"])


def leftovers(process: dict | None) -> list[int]:
    """The processes of a trial's group that still live here: the group's first one, or whom it has left behind.

    A number that was given to a new process, which began later, is not taken for it.
    """
    if not process or not is_here(process):
        return []
    now = process_start(process["pid"])
    if now is not None and now != process.get("process_started"):
        return []
    return group_members(process["pid"])


def group_members(group: int) -> list[int]:
    """The living processes of a session or group, by its first process; those that only wait to be reaped are not."""
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        state, process_group, session = fields[0], int(fields[2]), int(fields[3])
        if group in (process_group, session) and state not in "ZX":
            found.append(int(entry.name))
    return found


def signal_group(group: int, number: int) -> None:
    """Sends the signal to the group, and to those of its session that have made a group of their own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    for pid in group_members(group):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != group:
                os.kill(pid, number)


# Seconds that processes have for their last checkpoint, unless the sweep says otherwise.
GRACE = 60.0
# Waits for a byte, then becomes the trial; without the byte (the sweep died before it had noted the process) it ends.
WAITER = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if not os.read(0, 1):
    sys.exit(75)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    print(f"{sys.argv[1]}: {error.strerror}", file=sys.stderr)
    sys.exit(127)
"""
EXIT_CODES = {
    EXIT_FINISHED: "finished",
    EXIT_BAD_DATA: "bad data",
    EXIT_NUMERICS: "its numbers were none (NaN or infinite)",
    EXIT_IO: "a file could not be written or read",
    EXIT_PREEMPTED: "preempted",
    EXIT_BAD_CONFIGURATION: "bad configuration",
    126: "the command cannot be executed",
    127: "the command was not found",
}


class TrialProcess:
    """The processes of a trial.

    Args:
      words: the command.
      log: the file that its output is added to.
    """

    def __init__(self, words: list[str], log, environment: dict[str, str]):
        self.words = words
        self.log = Path(log)
        self.environment = environment
        self.exit_code: int | None = None
        self._process: subprocess.Popen | None = None
        self._kill_at: float | None = None

    def prepare(self) -> dict:
        """Makes the process, which waits for `start`, and returns what identifies it."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-c", WAITER, *self.words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        return identity(self._process.pid)

    def start(self) -> None:
        """Lets the process become the command."""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"1")
            self._process.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def stop(self, grace: float) -> None:
        """Asks all processes to end; those that have not within `grace` seconds are killed. A second time: nothing."""
        if self._kill_at is None:
            signal_group(self._process.pid, signal.SIGTERM)
            self._kill_at = time.monotonic() + grace

    def kill(self) -> None:
        """Ends all processes now."""
        self._kill_at = time.monotonic()

    def poll(self) -> int | None:
        """The exit code of the first process, once all have ended; minus the signal that ended it."""
        if self.exit_code is not None:
            return self.exit_code
        code = self._process.poll()
        if code is None and self._kill_at is None:
            return None
        left = group_members(self._process.pid)
        if not left and code is not None:
            self.exit_code = code
            return code
        if code is not None:
            self.stop(grace=GRACE)  # the first one has ended, and left others behind
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            signal_group(self._process.pid, signal.SIGKILL)
        return None


def describe_exit(code: int) -> str:
    """An exit code in words.

    >>> describe_exit(78), describe_exit(-9)
    ('exit code 78: bad configuration', 'ended by SIGKILL')
    """
    if code < 0:
        try:
            return f"ended by {signal.Signals(-code).name}"
        except ValueError:
            return f"ended by signal {-code}"
    return f"exit code {code}: {EXIT_CODES[code]}" if code in EXIT_CODES else f"exit code {code}"


def trial_environment(run_dir, run_id: str, group: str, workers: int, devices: list[str] | None) -> dict[str, str]:
    """What a trial's process finds in its environment.

    The programs beside this Python (`python`, `accelerate`) come first in PATH, so that a sweep runs in the suite's
    environment whether or not that is activated. Threads are shared out among the workers unless OMP_NUM_THREADS says.

    Args:
      devices: the GPUs for CUDA_VISIBLE_DEVICES; None: whatever is visible.
    """
    found = {name: value for name, value in os.environ.items() if name not in OF_A_SERVER}
    found["PATH"] = os.pathsep.join([own_programs(), found.get("PATH", os.defpath)])
    found.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // workers)))
    found |= {"T5SUITE_RUN_DIR": str(Path(run_dir).absolute()), "WANDB_RUN_ID": run_id, "WANDB_RUN_GROUP": group}
    if devices is not None:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    return found


# A sweep of W&B's own that this one was started from must not take its trials for its runs.
OF_A_SERVER = ("WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH")


def own_programs() -> str:
    """The folder of this Python and the programs installed with it."""
    return str(Path(sys.executable).parent)


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


def result_of_run(directory) -> float | None:
    """What `results.json` says of the run: its task's `metric_to_optimize`, the mean over several tasks.

    None: no results, or none that is a number.
    """
    from t5suite.tasks.entries import task_figure

    try:
        results = json.loads((Path(directory) / "results.json").read_text(encoding="utf-8"))
        settings = json.loads((Path(directory) / "manifest.json").read_text(encoding="utf-8"))["settings"]
        tasks = results["tasks"]
    except (OSError, ValueError, KeyError):
        return None
    entries = DATASET_VALS.get(settings.get("benchmark"), {})
    values = [task_figure(scores, entries.get(name)) for name, scores in tasks.items()]
    return None if not values or None in values else sum(values) / len(values)
