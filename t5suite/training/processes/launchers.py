"""A launcher that dies takes its workers along: `accelerate launch` and the `deepspeed` runner leave them behind.

    >>> stop_with_launchers()               # in a worker of `accelerate launch fine_tune_t5.py`, where it begins
    >>> os.kill(os.getppid(), signal.SIGTERM)
    the launcher (accelerate, process 4711) has ended: this process stops, too
    stopped: SIGTERM: stopped after step 40; the same command goes on from checkpoint-40

Whoever stops a run (a sweep's agent, a scheduler, `kill`) signals the process that it started. torchrun passes SIGTERM
on; `accelerate launch` with one process (1.15) and the `deepspeed` runner (0.19) die of it and leave their workers to
themselves, and of SIGKILL every launcher does. So a worker looks once a second whether the launchers above it are still
there, and asks itself to stop when one is not: as SIGTERM would, with a checkpoint.

Linux only (`/proc`); elsewhere nothing is found and nothing changes. Entry scripts call this before they import torch.
"""

import os
import signal
import threading
import time
from pathlib import Path
from typing import NamedTuple

from t5suite.training.processes.signals import stop_requests

SECONDS_BETWEEN_LOOKS = 1.0
# The programs, by the name of their script or of the module behind `-m`.
LAUNCHER_SCRIPTS = {"accelerate": "accelerate", "torchrun": "torchrun", "deepspeed": "deepspeed", "ds": "deepspeed"}
LAUNCHER_MODULES = {
    "accelerate.commands.launch": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
}
# Zombies and processes that are just going have ended, though their entry stands until they are waited for.
ENDED_STATES = ("Z", "X", "x")


class Launcher(NamedTuple):
    """A process that started this one, directly or not; its start time tells it from a later one of the same number."""

    name: str
    pid: int
    start_time: int


def stop_with_launchers() -> threading.Thread | None:
    """Watches the launchers above this process from now on; returns the thread, or None where there are none."""
    launchers = launchers_above(os.getpid())
    if not launchers:
        return None
    watcher = threading.Thread(target=_watch, args=(launchers,), name="launchers", daemon=True)
    watcher.start()
    return watcher


def launchers_above(pid: int) -> list[Launcher]:
    """The launchers among a process's ancestors, the closest first.

    >>> launchers_above(os.getpid())      # a worker of `accelerate launch`
    [Launcher(name='accelerate', pid=4711, start_time=8812345)]
    """
    found, pid = [], _parent(pid)
    while pid > 1:
        name, start_time = launcher_name(_command(pid)), _start_time(pid)
        if name and start_time is not None:
            found.append(Launcher(name, pid, start_time))
        pid = _parent(pid)
    return found


def launcher_name(command: list[str]) -> str | None:
    """Which launcher a command line is, if it is one.

    >>> launcher_name(["/opt/bin/python", "/opt/bin/accelerate", "launch", "fine_tune_t5.py"])
    'accelerate'
    >>> launcher_name(["python", "fine_tune_t5.py", "accelerate"]) is None
    True
    """
    if not command:
        return None
    words = command[1:] if Path(command[0]).name.startswith("python") else command
    while words and words[0].startswith("-") and words[0] != "-m":
        words = words[1:]
    if words[:1] == ["-m"]:
        return LAUNCHER_MODULES.get(words[1]) if len(words) > 1 else None
    return LAUNCHER_SCRIPTS.get(Path(words[0]).name) if words else None


def _watch(launchers: list[Launcher]) -> None:
    while True:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        for launcher in launchers:
            if _start_time(launcher.pid) != launcher.start_time:
                _stop(launcher)
                return


def _stop(launcher: Launcher) -> None:
    """A launcher that has passed the signal on before it died has said it all: a third one would be the last."""
    if stop_requests().requested:
        return
    text = f"the launcher ({launcher.name}, process {launcher.pid}) has ended: this process stops, too\n"
    try:
        os.write(2, text.encode())  # which may have been the launcher's, too
    except OSError:
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _status(pid: int) -> list[str]:
    """The fields of `/proc/<pid>/stat` from the state on; the name before it, in brackets, may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _parent(pid: int) -> int:
    fields = _status(pid)
    return int(fields[1]) if fields else 0


def _start_time(pid: int) -> int | None:
    """In clock ticks since the machine's start; None for a process that has ended."""
    fields = _status(pid)
    return int(fields[19]) if fields and fields[0] not in ENDED_STATES else None


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []
