"""Processes that belong together: who of them lives, and signals to all of them.

    >>> leftovers({"host": "node7", "boot": "9f0c...", "pid": 4242, "process_started": 81233})
    [4243, 4250]
    >>> signal_group(4242, signal.SIGTERM)

A group is named by its first process, which made a session of its own. Linux's `/proc` says who is in it.
"""

import contextlib
import os
from pathlib import Path

from t5suite.runs.lock import owner_record, process_start


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
