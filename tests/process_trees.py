"""Which processes belong to a test's run: those that have a word of its own in their environment.

>>> environment = marked("run-1")
>>> subprocess.Popen(command, env=environment)
>>> wait_until_gone(environment, seconds=30)
[]
"""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

MARK = "T5SUITE_TEST_RUN"


def marked(name: str, **changes: str) -> dict[str, str]:
    """This process's environment with a mark that all descendants inherit."""
    return {**os.environ, MARK: f"{name}-{os.getpid()}-{time.monotonic_ns()}", **changes}


def with_mark(environment: dict[str, str]) -> list[int]:
    """The processes that have the environment's mark, zombies left out."""
    mark, found = f"{MARK}={environment[MARK]}".encode(), []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            is_ours = mark in (path / "environ").read_bytes().split(b"\0")
            state = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
        except OSError:
            continue
        if is_ours and state not in ("Z", "X"):
            found.append(int(path.name))
    return found


def wait_until_gone(environment: dict[str, str], seconds: float) -> list[int]:
    """The marked processes that are still there after so many seconds."""
    deadline = time.monotonic() + seconds
    while with_mark(environment) and time.monotonic() < deadline:
        time.sleep(0.1)
    return with_mark(environment)


@contextlib.contextmanager
def started(command, directory, **changes):
    """`(process, environment, log)`; what is left of it is killed."""
    variables = {
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    environment, log = marked("launcher", **variables, **changes), directory / "log"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, cwd=directory, stdout=output, stderr=output)
        try:
            yield process, environment, log
        finally:
            for pid in with_mark(environment):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def wait_for(condition, process, seconds=400):
    deadline = time.monotonic() + seconds
    while not condition() and not (process and process.poll() is not None) and time.monotonic() < deadline:
        time.sleep(0.1)
