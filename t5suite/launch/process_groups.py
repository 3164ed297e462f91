"""A trial's processes: its group and session, which outlive the first process and the sweep that started it.

>>> process = identity(4711)
>>> leftovers(process)                      # those of its group that are still alive
[4711, 4712]
>>> signal_group(4711, signal.SIGTERM)
"""

import contextlib
import os
from pathlib import Path

from t5suite.runs.lock import owner_record, process_start


def identity(pid: int) -> dict:
    """What identifies a process, even if a later one gets the same process id."""
    record = owner_record(None)
    return {"host": record["host"], "boot": record["boot"], "pid": pid, "process_started": process_start(pid)}


def leftovers(process: dict | None) -> list[int]:
    """The processes of a trial's group that are still alive on this machine, even if the first one has ended."""
    if not process:
        return []
    current = identity(process["pid"])
    if any(process.get(key) != current[key] for key in ("host", "boot")):
        return []
    # A new process with the same process id is not that process.
    if current["process_started"] not in (None, process["process_started"]):
        return []
    return group_members(process["pid"])


def group_members(group: int) -> list[int]:
    """The living processes of a session or group, by its first process; without zombies."""
    members = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            _, _, fields = path.read_text().rpartition(")")
            state, _, process_group, session = fields.split()[:4]
            if str(group) in (process_group, session) and state not in "ZX":
                members.append(int(path.parent.name))
    return members


def signal_group(group: int, number: int) -> None:
    """Sends the signal to the group, and to processes of its session that have created their own group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
    for pid in group_members(group):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != group:
                os.kill(pid, number)
