"""Errors that a user can fix, with the exit code that a command ends with.

    >>> raise DataError("train.jsonl:12: label 7 is not in 0..1 (negative, positive)")

A command shows the message without a traceback and exits with the error's code (`run_command`). torchrun, accelerate
and deepspeed end with 1 whatever their workers ended with, so a batch script names a file in T5SUITE_EXIT_CODES and
reads it afterwards (`noted_codes`): were the workers stopped, or did the hub fail for now (75: the job goes on when it
is restarted), or would the same error recur (65, 78)?
"""

import contextlib
import errno
import os
import signal
import sys
import traceback
from pathlib import Path

from t5suite.base.redaction import printable, redacted

EXIT_FINISHED = 0
# What Python itself exits with after a traceback.
EXIT_BUG = 1
EXIT_BAD_DATA = 65
EXIT_NUMERICS = 70
EXIT_IO = 74
EXIT_PREEMPTED = 75
EXIT_BAD_CONFIGURATION = 78
# Signals that ask a run to stop: it finishes its step, saves a checkpoint and exits with 75.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

_ELSEWHERE = "write to another folder (--output_dir), or change its permissions"
_ROOM = "make room, or write to another disk (--output_dir)"
_NO_FOLDER = "a file is where a folder is needed; give another path"
_FAULT = "the disk or the network file system is at fault: check it, or write to another one (--output_dir)"
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


class NumericsError(UserError):
    """Non-finite losses, gradients or weights, or ranks that disagree about them (exit 70)."""

    exit_code = EXIT_NUMERICS


class CheckpointError(UserError):
    """A checkpoint cannot be written or read: damage, a full disk (exit 74)."""

    exit_code = EXIT_IO


class FullDiskError(UserError):
    """There is no room for what is downloaded (exit 74)."""

    exit_code = EXIT_IO


class TemporaryError(UserError):
    """The hub or the network failed in a way that may pass (exit 75: start it again)."""

    exit_code = EXIT_PREEMPTED


class Preempted(BaseException):
    """The run was asked to stop (SIGTERM, SIGUSR1, SIGINT) and has saved its state (exit 75: start it again).

    Not an `Exception`, like KeyboardInterrupt: code that handles failures must not catch it.
    """

    exit_code = EXIT_PREEMPTED


def run_command(main, argv=None) -> int:
    """Runs `main(argv)` and returns the exit code; user errors become one clear message on standard error.

    Neither messages nor tracebacks show secrets.

    >>> sys.exit(run_command(main))
    """
    try:
        main(argv)
    except UserError as error:
        print(printable(redacted(f"error: {error}")), file=sys.stderr)
        return error.exit_code
    except Preempted as stop:
        print(f"stopped: {stop}", file=sys.stderr)
        return EXIT_PREEMPTED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:
        discard_output()
        return EXIT_FINISHED
    except OSError as error:
        print(printable(redacted(f"error: {os_error_text(error)}")), file=sys.stderr)
        return EXIT_IO
    except Exception:
        print(printable(redacted(traceback.format_exc())), end="", file=sys.stderr)
        return EXIT_BUG
    return EXIT_FINISHED


def os_error_text(error: OSError) -> str:
    """What the operating system refused, where, and what to do.

    >>> os_error_text(OSError(errno.ENOSPC, "No space left on device", "runs/x/metrics.jsonl"))
    'runs/x/metrics.jsonl: No space left on device; make room, or write to another disk (--output_dir)'
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


def discard_output() -> None:
    """Discards buffered output after its reader closed the pipe (`t5suite tasks | head -1`): exit must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def open_missing_streams() -> None:
    """Gives the process an empty input and discarded outputs where the shell closed them (`t5suite ... >&-`)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (open until the end)


VARIABLE = "T5SUITE_EXIT_CODES"


def note_exit_code(code: int) -> int:
    """Adds the code to the file that the environment names, if it is there, and returns it.

    A worker on another node does not find the file; those on the batch script's node suffice, as all ranks end alike.
    """
    path = os.environ.get(VARIABLE)
    if path:
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(file, f"{code}\n".encode())
            finally:
                os.close(file)
    return code


def noted_codes(path: str | None) -> list[int]:
    """The codes in the file, in the order in which workers ended; empty if there is no file."""
    if not path:
        return []
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except OSError:
        return []
    return [int(line) for line in lines if line.isdecimal()]
