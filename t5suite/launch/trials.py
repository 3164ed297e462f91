"""A trial: a process with a group of its own, and its output in a file.

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
import os
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
)
from t5suite.launch.process_groups import group_members, identity, signal_group

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
