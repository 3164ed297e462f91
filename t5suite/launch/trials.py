"""A trial: a process in its own group, with its output in a file.

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
import itertools
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from t5suite.base import errors
from t5suite.launch.process_groups import group_members, identity, signal_group

# Seconds that processes have for their last checkpoint, unless the sweep says otherwise.
GRACE = 60.0
# Lines that are shown of a failed trial's log, and bytes at its end that are searched for them.
LOG_LINES = 5
LOG_BYTES = 20_000
# Stands in a log between two starts of its trial.
STARTED_AGAIN = "---- the trial is started again ----"
# How lines behind a script's message begin: another rank's message, a traceback, `[rank0]: ...`, logs of torchrun
# (`E0726 05:10:12.123456 ...`), of torch (`[W726 05:10:12 ...`) and of DeepSpeed (`[2026-07-26 05:10:12,123] ...`).
BEHIND_A_MESSAGE = re.compile(r"error: |Traceback \(|\[rank\d+\]|\[?[IWEF]\d{3,4} \d\d:|\[\d{4}-\d\d-\d\d ")
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
    errors.EXIT_FINISHED: "finished",
    errors.EXIT_BAD_DATA: "bad data",
    errors.EXIT_PREEMPTED: "preempted",
    errors.EXIT_NUMERICS: "it diverged (NaN or infinite)",
    errors.EXIT_OUT_OF_MEMORY: "out of memory",
    errors.EXIT_IO: "a file could not be written or read",
    errors.EXIT_BAD_CONFIGURATION: "bad configuration",
    126: "the command cannot be executed",
    127: "the command was not found",
}


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
            if log.tell():
                log.write(f"\n{STARTED_AGAIN}\n".encode())
                log.flush()
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
        if code is not None:
            if not group_members(self._process.pid):
                return code
            self.stop(grace=GRACE)  # the first one has ended before others of its group
        if time.monotonic() >= self._kill_at:
            signal_group(self._process.pid, signal.SIGKILL)
        return None


def end_of_log(log) -> list[str]:
    """The lines of a trial's log that say why its last start ended: its first `error:`, else the last lines.

    Of several ranks the others end later, because they have lost the first one. Behind the script's own message a
    launcher prints a traceback of itself. No lines of a missing log.
    """
    path = Path(log)
    if not path.is_file():
        return []
    text = path.read_bytes()[-LOG_BYTES:].decode("utf-8", errors="replace")
    lines = text.rpartition(f"{STARTED_AGAIN}\n")[2].splitlines()
    return _first_message(lines)[:LOG_LINES] or lines[-LOG_LINES:]


def _first_message(lines: list[str]) -> list[str]:
    """The first line that begins with `error: ` and the rest of its message; empty if there is none.

    >>> _first_message(["2 rows", "error: no rte.csv;", "give --data_dir", "Traceback (most recent call last):"])
    ['error: no rte.csv;', 'give --data_dir']
    """
    from_error = list(itertools.dropwhile(lambda line: not line.startswith("error: "), lines))
    further_lines = itertools.takewhile(lambda line: not BEHIND_A_MESSAGE.match(line), from_error[1:])
    return [*from_error[:1], *further_lines]


def describe_exit(code: int) -> str:
    """An exit code in words.

    >>> describe_exit(78), describe_exit(-9)
    ('exit code 78: bad configuration', 'ended by SIGKILL')
    """
    if code < 0:
        names = {int(number): number.name for number in signal.Signals}
        return f"ended by {names.get(-code, f'signal {-code}')}"
    if code in EXIT_CODES:
        return f"exit code {code}: {EXIT_CODES[code]}"
    return f"exit code {code}"
