"""Exit codes that get past launchers: torchrun, accelerate and deepspeed end with 1 whatever their workers ended with.

    >>> os.environ["T5SUITE_EXIT_CODES"] = "/tmp/codes"
    >>> sys.exit(note_exit_code(run_command(main)))      # a worker, at its end

A batch script names a file there and asks afterwards (`noted_codes`): were the workers stopped (75: the job goes on
when it is started again), or is something wrong that will be wrong again (65, 78)?
"""

import contextlib
import os
from pathlib import Path

VARIABLE = "T5SUITE_EXIT_CODES"


def note_exit_code(code: int) -> int:
    """Adds the code to the file that the environment names, if it is there, and returns it.

    A worker on another node does not find the file; those beside the batch script are enough, for ranks end alike.
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
    """The codes in the file, in the order in which workers ended; none where there is no file."""
    try:
        lines = Path(path).read_text(encoding="utf-8").split() if path else []
    except OSError:
        return []
    return [int(line) for line in lines if line.isdecimal()]
