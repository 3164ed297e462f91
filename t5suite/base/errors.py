"""Errors that a user can fix, with the exit code that a command ends with.

    >>> raise DataError("train.jsonl:12: label 7 is not in 0..1 (negative, positive)")

A command shows the message without a traceback and exits with the error's code (`base.programs.run_command`).
"""

import errno
import os
import signal

EXIT_FINISHED = 0
# What Python itself exits with after a traceback.
EXIT_BUG = 1
EXIT_BAD_DATA = 65
EXIT_NUMERICS = 70
EXIT_OUT_OF_MEMORY = 71
EXIT_IO = 74
EXIT_PREEMPTED = 75
EXIT_BAD_CONFIGURATION = 78
# Signals that ask a run to stop: it finishes its step, saves a checkpoint and exits with 75.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

_ELSEWHERE = "write to another folder, or change its permissions"
_ROOM = "make room, or write to another disk"
_NO_FOLDER = "a file is where a folder is needed; give another path"
_FAULT = "the disk or the network file system is at fault: check it, or write to another one"
# By the operating system's name of an error: what to do.
CURES = {
    "EIO": _FAULT, "ESTALE": _FAULT, "EREMOTEIO": _FAULT, "ETIMEDOUT": _FAULT,
    "ENOSPC": _ROOM, "EDQUOT": _ROOM, "EFBIG": _ROOM, "EACCES": _ELSEWHERE, "EPERM": _ELSEWHERE,
    "EROFS": _ELSEWHERE, "EEXIST": _NO_FOLDER, "ENOTDIR": _NO_FOLDER,
    "ENAMETOOLONG": "give a shorter name", "EMFILE": "raise the limit of open files (ulimit -n 65536)",
}  # fmt: skip


class UserError(ValueError):
    """Something the user gave is wrong; the message names the value, its location and what would be valid."""

    exit_code = EXIT_BAD_CONFIGURATION


class ConfigError(UserError):
    """A flag, configuration file or registry entry is wrong (exit 78)."""

    exit_code = EXIT_BAD_CONFIGURATION


class DataError(UserError):
    """A data file, row or prediction is wrong (exit 65)."""

    exit_code = EXIT_BAD_DATA


class ChangedDataError(DataError):
    """Data differ from those read earlier under the same name."""


class AnotherCorpusError(ConfigError):
    """A folder holds a corpus that was built with other settings."""


class LackOfMemoryError(ConfigError):
    """Memory ran out, on a device or on the host, where nothing smaller can be tried (exit 71)."""

    exit_code = EXIT_OUT_OF_MEMORY


class NumericsError(UserError):
    """Non-finite losses, gradients or weights, or ranks that disagree about them (exit 70)."""

    exit_code = EXIT_NUMERICS


class CheckpointError(UserError):
    """A checkpoint cannot be written or read: damage, a full disk (exit 74)."""

    exit_code = EXIT_IO


class DiskError(UserError):
    """There is no room for what is downloaded, or it cannot be written or read (exit 74)."""

    exit_code = EXIT_IO


class TemporaryError(UserError):
    """The hub or the network failed in a way that may pass (exit 75: start it again)."""

    exit_code = EXIT_PREEMPTED


class Preempted(BaseException):
    """The run was asked to stop (SIGTERM, SIGUSR1, SIGINT) and has saved its state (exit 75: start it again).

    Not an `Exception`, like KeyboardInterrupt: code that handles failures must not catch it.
    """

    exit_code = EXIT_PREEMPTED


def first_line(error: BaseException) -> str:
    """The first line of what an error says, or the name of its class if it says nothing.

    >>> first_line(ValueError("no such column\\nit has: text, label")), first_line(MemoryError())
    ('no such column', 'MemoryError')
    """
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def os_error_text(error: OSError) -> str:
    """What the operating system refused, where, and what to do.

    >>> os_error_text(OSError(errno.ENOSPC, "No space left on device", "runs/x/metrics.jsonl"))
    'runs/x/metrics.jsonl: No space left on device; make room, or write to another disk'
    """
    if error.errno is None or not error.strerror:
        return str(error) or type(error).__name__
    lacks_unnamed_file = error.errno == errno.ENOENT and error.filename is None
    if lacks_unnamed_file and not _has_current_directory():
        return "the current directory has been deleted; change to one that exists"
    text = str(error.strerror)
    if isinstance(error.filename, (str, os.PathLike)):
        text = f"{os.fspath(error.filename)}: {text}"
    if getattr(error, "bytes_wanted", None):
        text += f" ({error.bytes_wanted:,} bytes wanted)"
    cure = cure_of(error)
    if cure:
        text += f"; {cure}"
    return text


def _has_current_directory() -> bool:
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def cure_of(error: OSError) -> str | None:
    """What to do about an error of the operating system; None if only its own words say it."""
    return CURES.get(errno.errorcode.get(error.errno or 0, ""))
