"""A trial: a process in its own group, with its output in a file, and the metric that it logs.

    >>> trial = TrialProcess(["python", "fine_tune_t5.py"], log="trials/0000.log", environment={...})
    >>> trial.prepare()                         # a process that waits; its id can be written down
    >>> trial.start()
    >>> trial.stop(grace=60)                    # SIGTERM to all of its processes, SIGKILL to those left after 60 s
    >>> trial.poll()                            # None while any of them lives, then the exit code
    75

A trial ends when its last process has ended: if a launcher dies first, its workers are waited for. When the
sweep's own process dies, the kernel sends the trial SIGTERM (prctl(2), PR_SET_PDEATHSIG), so that it ends with a
checkpoint.
"""

import contextlib
import functools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from t5suite.base import errors
from t5suite.constants import DATASET_VALS
from t5suite.runs.directory import MANIFEST, read_json, read_manifest, read_results
from t5suite.runs.lock import owner_record, process_start

# Seconds that processes have for their last checkpoint, unless the sweep says otherwise.
GRACE = 60.0


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
    """The devices of each worker's trials; None: all that are visible, because nothing needs dividing.

    Without `gpus_per_trial` they are divided evenly; if there are more workers than devices, workers share devices.

    Raises:
      ConfigError: fewer devices than the workers need.
    """
    if gpus_per_trial is not None and workers * gpus_per_trial > len(devices):
        raise errors.ConfigError(
            f"--workers {workers} --gpus_per_trial {gpus_per_trial}: {workers * gpus_per_trial} GPUs are needed, and "
            f"{len(devices)} are visible; take fewer workers"
        )
    if not devices or (workers == 1 and gpus_per_trial is None):
        return [None] * workers
    if gpus_per_trial is None and len(devices) < workers:
        return [[devices[i % len(devices)]] for i in range(workers)]
    each = len(devices) // workers if gpus_per_trial is None else gpus_per_trial
    return [devices[i * each : (i + 1) * each] for i in range(workers)]


def identity(pid: int) -> dict:
    """What identifies a process, even if a later one gets the same process id."""
    record = owner_record(None)
    return {"host": record["host"], "boot": record["boot"], "pid": pid, "process_started": process_start(pid)}


def leftovers(process: dict | None) -> list[int]:
    """The processes of a trial's group that are still alive on this machine, even if the first one has ended."""
    if not process:
        return []
    here, pid = identity(process["pid"]), process["pid"]
    is_here = all(process.get(key) == here[key] for key in ("host", "boot"))
    # A new process with the same process id is not that process.
    return group_members(pid) if is_here and here["process_started"] in (None, process["process_started"]) else []


def group_members(group: int) -> list[int]:
    """The living processes of a session or group, by its first process; without zombies."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, process_group, session = path.read_text().rpartition(")")[2].split()[:4]
            if str(group) in (process_group, session) and state not in "ZX":
                found.append(int(path.parent.name))
    return found


def signal_group(group: int, number: int) -> None:
    """Sends the signal to the group, and to processes of its session that have created their own group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    for pid in group_members(group):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != group:
                os.kill(pid, number)


# Waits for a byte, then becomes the trial; without the byte (the sweep died before it recorded the process) it ends.
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
    errors.EXIT_FINISHED: "finished", errors.EXIT_BAD_DATA: "bad data", errors.EXIT_PREEMPTED: "preempted",
    errors.EXIT_NUMERICS: "it diverged (NaN or infinite)", errors.EXIT_IO: "a file could not be written or read",
    errors.EXIT_BAD_CONFIGURATION: "bad configuration", 126: "the command cannot be executed",
    127: "the command was not found",
}  # fmt: skip


class TrialProcess:
    """The processes of a trial: a command whose output is added to the file `log`."""

    def __init__(self, words: list[str], log, environment: dict[str, str]):
        self.words = words
        self.log = Path(log)
        self.environment = environment
        self._process: subprocess.Popen | None = None
        self._kill_at: float | None = None

    def prepare(self) -> dict:
        """Creates the process, which waits for `start`, and returns what identifies it."""
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
        with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
            pipe.write(b"1")

    def stop(self, grace: float) -> None:
        """Asks all processes to end; kills those that have not within `grace` seconds. A second call does nothing."""
        if self._kill_at is None:
            signal_group(self._process.pid, signal.SIGTERM)
            self._kill_at = time.monotonic() + grace

    def kill(self) -> None:
        """Ends all processes now."""
        self._kill_at = time.monotonic()

    def poll(self) -> int | None:
        """The exit code of the first process, once all have ended; negative: the signal that ended it."""
        code = self._process.poll()
        if code is None and self._kill_at is None:
            return None
        left = group_members(self._process.pid)
        if code is not None:
            if not left:
                return code
            self.stop(grace=GRACE)  # the first one has ended, and left others behind
        if time.monotonic() >= self._kill_at:
            signal_group(self._process.pid, signal.SIGKILL)
        return None


def describe_exit(code: int) -> str:
    """An exit code in words.

    >>> describe_exit(78), describe_exit(-9)
    ('exit code 78: bad configuration', 'ended by SIGKILL')
    """
    if code < 0:
        names = {int(number): number.name for number in signal.Signals}
        return f"ended by {names.get(-code, f'signal {-code}')}"
    return f"exit code {code}: {EXIT_CODES[code]}" if code in EXIT_CODES else f"exit code {code}"


def trial_environment(run_dir, run_id: str, group: str, workers: int, devices: list[str] | None) -> dict[str, str]:
    """The environment variables of a trial's process.

    The programs installed with this Python (`python`, `accelerate`) come first in PATH, so that a sweep runs in the
    suite's environment even if it is not activated. Threads are divided among the workers unless OMP_NUM_THREADS is
    set.

    Args:
      devices: the GPUs for CUDA_VISIBLE_DEVICES; None: all that are visible.
    """
    # A W&B sweep that started this one must not count these trials as its own runs.
    of_a_server = ("WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH")
    found = {name: value for name, value in os.environ.items() if name not in of_a_server}
    found["PATH"] = os.pathsep.join([own_programs(), found.get("PATH", os.defpath)])
    found.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // workers)))
    found |= {"T5SUITE_RUN_DIR": str(Path(run_dir).absolute()), "WANDB_RUN_ID": run_id, "WANDB_RUN_GROUP": group}
    if devices is not None:
        found["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    return found


def own_programs() -> str:
    """The folder of this Python and the programs installed with it."""
    return str(Path(sys.executable).parent)


def curve_of(path, name: str) -> tuple[list[tuple[int, float]], set[str]]:
    """A metric's `(step, value)` in the order of steps, as logged so far, and the names of all metrics.

    A value that is not a number counts as NaN; an incomplete last line is ignored for now.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return [], set()
    return _read_curve(path, name, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=1000)
def _read_curve(path, name: str, *state):
    points, logged = {}, set()
    for text in Path(path).read_bytes().rpartition(b"\n")[0].splitlines():
        with contextlib.suppress(ValueError):
            line = json.loads(text)
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                logged.update(metric for metric in line if "/" in metric)
                if name in line:
                    is_finite = isinstance(line[name], (int, float)) and abs(line[name]) <= sys.float_info.max
                    points[line["step"]] = float(line[name]) if is_finite else math.nan
    return sorted(points.items()), logged


def has_done_all_steps(directory, step: int | None) -> bool:
    """Whether a run's last logged step is its last one, as far as its manifest says how many it makes."""
    try:
        total = read_json(Path(directory) / MANIFEST).get("total_steps")
    except (OSError, errors.DataError, AttributeError):
        return False
    return step is not None and isinstance(total, int) and step >= total


def best_of(values: list[float], goal: str) -> float | None:
    """The best of the values; NaN is the worst; None if there is no other value.

    >>> best_of([70.0, float("nan"), 80.0], "maximize")
    80.0
    """
    numbers = [value for value in values if not math.isnan(value)]
    return (max if goal == "maximize" else min)(numbers, default=None)


def result_of_run(directory) -> float | None:
    """The run's score in `results.json`: its task's `metric_to_optimize`; with several tasks, their mean.

    None: no results, or a score that is not a number.
    """
    from t5suite.tasks.entry_metrics import task_figure

    try:
        tasks, settings = read_results(directory)["tasks"], read_manifest(directory)["settings"]
    except (OSError, errors.UserError):
        return None
    entries = DATASET_VALS.get(settings.get("benchmark"), {})
    values = [task_figure(scores, entries.get(name)) for name, scores in tasks.items()]
    return None if not values or None in values else sum(values) / len(values)
