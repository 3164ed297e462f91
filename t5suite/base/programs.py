"""How a program runs and ends: one message for what a user can fix, and an exit code.

    >>> sys.exit(run_command(main))

torchrun and accelerate exit with 1 whatever their workers exit with; deepspeed passes on the code of the first failure.
So a batch script names a file in T5SUITE_EXIT_CODES and reads it afterwards (`noted_codes`): were the workers stopped,
or did the hub fail for now (75: the job goes on when it is restarted), or would the same error recur (65, 71, 78)? A
sweep does so for each of its trials.
"""

import atexit
import contextlib
import gc
import os
import signal
import sys
import traceback
from pathlib import Path

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


def run_program(main) -> None:
    """Runs an entry script's `main` and exits with its code."""
    gc.freeze()
    gc.enable()
    if "triton" in sys.modules:  # Triton 3.9 and later reports every object that the last collection did not find
        atexit.register(gc.unfreeze)
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


def open_missing_streams() -> None:
    """Gives the process an empty input and discarded outputs where the shell closed them (`t5suite ... >&-`)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (open until the end)


def note_exit_code(code: int) -> int:
    """Adds the code to the file that the environment names, if it is there, and returns it.

    A worker on another node does not find the file; those on the batch script's node suffice, as all ranks end alike.
    """
    path = os.environ.get(EXIT_CODES_VARIABLE)
    if path:
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(file, f"{code}\n".encode())
            finally:
                os.close(file)
    return code


def noted_codes(path: str | Path | None) -> list[int]:
    """The codes in the file, in the order in which workers ended; empty if there is no file."""
    if not path:
        return []
    try:
        lines = Path(path).read_text(encoding="utf-8").split()
    except OSError:
        return []
    return [int(line) for line in lines if line.isdecimal()]


def first_failure(noted: list[int]) -> int | None:
    """The first noted code of a worker that failed and would fail again; None if none has."""
    for code in noted:
        if code not in (EXIT_FINISHED, EXIT_PREEMPTED):
            return code
    return None


def code_of_workers(exit_code: int, noted: list[int]) -> int:
    """What a program's workers ended with, where its launcher has a code of its own: a failure first, then a stop.

    A program that finished has, whatever workers noted before the launcher started them again.

    >>> code_of_workers(1, [75, 70]), code_of_workers(1, [0, 75]), code_of_workers(-9, []), code_of_workers(0, [70, 0])
    (70, 75, -9, 0)
    """
    if exit_code == EXIT_FINISHED:
        return exit_code
    failure = first_failure(noted)
    if failure is not None:
        return failure
    if EXIT_PREEMPTED in noted:
        return EXIT_PREEMPTED
    return exit_code
