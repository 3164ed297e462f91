"""Catches code in the act of writing outside a folder, running a program or opening a connection.

    with WriteGuard(folder):
        read_jsonl(folder / "rows.jsonl")

Python announces such calls to audit hooks (PEP 578) before they are made, also those of the standard library; libraries
in C that open files by themselves announce nothing, so look at what lies around the folder as well (`tree`).
"""

import functools
import hashlib
import os
import sys
from pathlib import Path

# Event -> the positions of the paths that it would change.
FIRST = "os.mkdir os.rmdir os.remove os.truncate os.chmod os.chown os.utime shutil.rmtree".split()
CHANGES = {**dict.fromkeys(FIRST, (0,)), "os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,)}
FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.connect", "pty.spawn")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

_active = []


class ForbiddenAct(BaseException):
    """Not an Exception: nothing under test may take it for a failure of its own."""


class WriteGuard:
    """While it is entered, only `folder` may be written to; anything else raises ForbiddenAct."""

    def __init__(self, folder):
        self.folder = os.path.realpath(folder) + os.sep

    def __enter__(self):
        _install()
        _active.append(self)
        return self

    def __exit__(self, *_):
        _active.remove(self)

    def check(self, event: str, args: tuple) -> None:
        if event in FORBIDDEN:
            raise ForbiddenAct(f"{event} {args!r:.200}")
        if event == "open":
            path, mode, flags = args
            writes = bool(flags & WRITING) if mode is None else any(letter in mode for letter in "wax+")
            paths = [path] if writes else []
        else:
            paths = [args[position] for position in CHANGES.get(event, ())]
        for path in paths:
            if not isinstance(path, int) and not self._is_inside(os.fsdecode(path)):
                raise ForbiddenAct(f"{event} {path!r} outside {self.folder}")

    def _is_inside(self, path: str) -> bool:
        # The name itself may be a link that is replaced; the folder that it lies in counts.
        folder, name = os.path.split(os.path.abspath(path))
        return os.path.join(os.path.realpath(folder), name).startswith(self.folder) or path == os.devnull


def tree(folder) -> dict:
    """`{relative path: content}` of all that lies below a folder, to be compared with what lies there later."""

    def content(path: Path) -> str:
        if path.is_symlink():
            return f"link to {os.readlink(path)}"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"

    return {str(path.relative_to(folder)): content(path) for path in sorted(Path(folder).rglob("*"))}


@functools.cache  # hooks cannot be taken away again, so there must be one only
def _install():
    sys.addaudithook(_hook)


def _hook(event, args):
    if _active and (event == "open" or event in CHANGES or event in FORBIDDEN):
        guard = _active[-1]
        _active.remove(guard)  # looking at a path must not be looked at
        try:
            guard.check(event, args)
        finally:
            _active.append(guard)
