"""How a program runs and ends: one message for what a user can fix, and an exit code.

    >>> sys.exit(run_command(main))

torchrun and accelerate exit with 1 whatever their workers exit with; deepspeed passes on the code of the first failure.
So a batch script names a file in T5SUITE_EXIT_CODES and reads it afterwards (`read_notes`): were the workers stopped,
or did the hub fail for now (75: the job goes on when it is restarted), or would the same error recur (65, 71, 78)? A
sweep does so for each of its trials. Launchers stop the workers that are left when one dies, so their 75 is a stop only
if each worker that began has noted its end.
"""

import atexit
import contextlib
import gc
import glob
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import (
    EXIT_BUG,
    EXIT_FINISHED,
    EXIT_IO,
    EXIT_OUT_OF_MEMORY,
    EXIT_PREEMPTED,
    Preempted,
    UserError,
    first_line,
    os_error_text,
)
from t5suite.base.memory_errors import is_out_of_memory
from t5suite.base.redaction import printable, redacted

# Names the file to which workers add their exit codes.
EXIT_CODES_VARIABLE = "T5SUITE_EXIT_CODES"
# Stands in that file for each worker that began.
BEGAN = "began"


def run_program(main) -> None:
    """Runs an entry script's `main` and exits with its code."""
    gc.freeze()
    gc.enable()
    if "triton" in sys.modules:  # Triton 3.9 and later reports every object that the last collection did not find
        atexit.register(gc.unfreeze)
    _note(BEGAN)
    code = EXIT_BUG  # of exceptions that `run_command` lets through
    try:
        code = run_command(main)
    except SystemExit as stop:
        code = code_of_exit(stop)
        raise
    finally:
        note_exit_code(code)
    sys.exit(code)


def code_of_exit(stop: SystemExit) -> int:
    """The exit code that `sys.exit` makes of a code, of nothing, or of a message.

    >>> code_of_exit(SystemExit(3)), code_of_exit(SystemExit()), code_of_exit(SystemExit("no licence"))
    (3, 0, 1)
    """
    if stop.code is None:
        return EXIT_FINISHED
    if isinstance(stop.code, int):
        return stop.code & 0xFF  # -1 is 255
    return EXIT_BUG


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
    except Exception as error:
        if is_out_of_memory(error):
            print(printable(redacted(f"error: {_out_of_memory_text(error)}")), file=sys.stderr)
            return EXIT_OUT_OF_MEMORY
        if isinstance(error, OSError):
            print(printable(redacted(f"error: {os_error_text(error)}")), file=sys.stderr)
            return EXIT_IO
        print(printable(redacted(traceback.format_exc())), end="", file=sys.stderr)
        return EXIT_BUG
    return EXIT_FINISHED


def _out_of_memory_text(error: Exception) -> str:
    """The message of an out-of-memory error that no caller handles."""
    return (
        f"out of memory ({first_line(error)}); use smaller batches, shorter texts, a smaller number format, a "
        "smaller model, or more memory"
    )


def discard_output() -> None:
    """Discards buffered output after its reader closed the pipe (`t5suite tasks | head -1`): exit must not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def output_may_end_early() -> Iterator[None]:
    """A reader that closes the pipe ends what a block prints, not what follows it: a failure keeps its exit code.

    >>> with output_may_end_early():
    ...     print_verification(verification)
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


def open_missing_streams() -> None:
    """Gives the process an empty input and discarded outputs where the shell closed them (`t5suite ... >&-`)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (open until the end)


def note_exit_code(code: int) -> int:
    """Adds the code to the file that the environment names, if it is there, and returns it."""
    _note(str(code))
    return code


def _note(word: str) -> None:
    """Adds a line to the file that the environment names, if it is there.

    Each further node of a Slurm job has a file of its own beside it: NFS loses lines that two nodes add at once.
    """
    path = os.environ.get(EXIT_CODES_VARIABLE)
    if not path or not os.path.exists(path):
        return
    node = os.environ.get("SLURM_NODEID", "0")
    if node != "0":
        path = f"{path}.{node}"
    with contextlib.suppress(OSError):
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            os.write(file, f"{word}\n".encode())
        finally:
            os.close(file)


class Notes(NamedTuple):
    """What a program's workers have noted of their ends.

    Attributes:
      codes: in the order in which workers ended, node by node.
      lost_count: how many workers began and noted no end: a signal such as the kernel's SIGKILL has ended them.
    """

    codes: tuple[int, ...] = ()
    lost_count: int = 0

    def first_failure(self) -> int | None:
        """The code of a worker that failed and would fail again, the first with a cause if any has; None if none has.

        Codes stand node by node, and the first cause may be on a later node than a failure (1) that followed from it.
        """
        failures = [code for code in self.codes if code not in (EXIT_FINISHED, EXIT_PREEMPTED)]
        causes = [code for code in failures if code != EXIT_BUG]
        return next(iter([*causes, *failures]), None)

    def tell_of_stop(self) -> bool:
        """Whether workers were stopped on request, rather than by their launcher because another one had died."""
        return EXIT_PREEMPTED in self.codes and self.lost_count == 0


def clear_notes(path: Path) -> None:
    """Empties the file, and removes those of further nodes beside it."""
    for file in _files_of_notes(path):
        file.unlink(missing_ok=True)
    path.touch()


def _files_of_notes(path: Path) -> list[Path]:
    """The file, and those of further nodes beside it."""
    return [path, *sorted(path.parent.glob(f"{glob.escape(path.name)}.[0-9]*"))]


def read_notes(path: str | Path | None) -> Notes:
    """What the file and those of further nodes beside it hold; nothing if there is no file."""
    if not path:
        return Notes()
    words = []
    for file in _files_of_notes(Path(path)):
        with contextlib.suppress(OSError):
            words += file.read_text(encoding="utf-8").split()
    codes = tuple(int(word) for word in words if word.isdecimal())
    return Notes(codes, max(0, words.count(BEGAN) - len(codes)))


def code_of_workers(exit_code: int, notes: Notes) -> int:
    """What a program's workers ended with, where its launcher has a code of its own: a failure first, then a stop.

    A program that finished has, whatever workers noted before the launcher started them again.

    >>> code_of_workers(1, Notes((75, 70))), code_of_workers(1, Notes((0, 75))), code_of_workers(0, Notes((70, 0)))
    (70, 75, 0)
    >>> code_of_workers(1, Notes((75,), lost_count=1))
    1
    """
    if exit_code == EXIT_FINISHED:
        return exit_code
    failure = notes.first_failure()
    if failure is not None:
        return failure
    if notes.tell_of_stop():
        return EXIT_PREEMPTED
    return exit_code
