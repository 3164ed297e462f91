"""Imported by Python at the start of each process of a traced run: notes the order in which the run's files change.

T5SUITE_GOLDEN_EFFECTS names the file of notes, T5SUITE_GOLDEN_RUN the run's directory. Rank 0 alone notes.
T5SUITE_GOLDEN_SCALER: the run trains with a gradient scaler.
"""

import os
import sys
import threading

_DIRECTORY = os.environ.get("T5SUITE_GOLDEN_RUN", "")
_WRITES = os.O_WRONLY | os.O_RDWR
_main_thread = threading.main_thread()


def _relative(path) -> str | None:
    """The path below the run's directory, temporary names without their random part."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return None
    absolute = os.path.abspath(os.fsdecode(path))
    return os.path.relpath(absolute, _DIRECTORY) if absolute.startswith(_DIRECTORY + os.sep) else None


def _effect(event: str, arguments: tuple) -> str | None:
    """A line for an event that changes a file of the run; None for all others."""
    if event == "open":
        path, _, flags = arguments
        is_write = bool(flags & _WRITES)
        name = _relative(path) if is_write else None
        return f"write {name}" if name else None
    if event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"):
        name = _relative(arguments[0])
        target = f" to {_relative(arguments[1])}" if event == "os.rename" else ""
        return f"{event.rpartition('.')[2]} {name}{target}" if name else None
    return None


def _install() -> None:
    notes = os.open(os.environ["T5SUITE_GOLDEN_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    process = os.getpid()

    def note(event, arguments):
        if os.getpid() != process or threading.current_thread() is not _main_thread:
            return
        line = _effect(event, arguments)
        if line is not None:
            os.write(notes, f"{line}\n".encode())

    sys.addaudithook(note)


if _DIRECTORY and os.environ.get("RANK", "0") == "0":
    _install()
if os.environ.get("T5SUITE_GOLDEN_SCALER"):
    from tools.golden.plug_ins import install_gradient_scaler

    install_gradient_scaler()
