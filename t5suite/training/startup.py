"""How an entry script begins and ends as a program of its own, and where compiled code is kept.

if __name__ == "__main__":
    begin_program("fine_tune_t5", __doc__)       # before the imports that take seconds
import torch
if __name__ == "__main__":
    run_program(main)
"""

import atexit
import gc
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


def begin_program(script: str, description: str) -> None:
    """Answers `--help` and `--version` without torch; from here on a request to stop ends the process with 75.

    A launcher that dies takes this process along in the same way, and the tasks of one srun are ranks of one run.
    Garbage collection of what is imported took a fifth of the imports' time and found nothing.
    """
    from t5suite.launch.script_help import answer

    answer(sys.argv[1:], script, description)

    from t5suite.training.processes.launchers import join_srun, stop_with_launchers
    from t5suite.training.processes.signals import catch_signals

    catch_signals()
    stop_with_launchers()
    join_srun()
    gc.disable()


def run_program(main) -> None:
    """Runs `main` and exits with its code."""
    from t5suite.base.errors import note_exit_code, run_command

    gc.freeze()
    gc.enable()
    if "triton" in sys.modules:  # from 3.9 on it reports every object that the last collection has not found
        atexit.register(gc.unfreeze)
    sys.exit(note_exit_code(run_command(main)))


def compile_cache_folder(environ: Mapping[str, str]) -> Path:
    """The folder that is used unless `--compile_cache` names another.

    >>> compile_cache_folder({"XDG_CACHE_HOME": "/scratch/ann"})
    PosixPath('/scratch/ann/t5suite/compiled')
    """
    if environ.get(VARIABLE):
        return Path(environ[VARIABLE])
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "t5suite" / "compiled"


def keep_compiled(folder: str | None = None) -> Path | None:
    """Has this process and its children keep what `torch.compile` makes; None where torch's own place stays.

    torch's own place is a temporary folder, which a cluster's next job finds empty. Compiling the bundled tiny T5 takes
    58 processor seconds, 12 with what an earlier run has kept.

    Args:
      folder: `--compile_cache`: a folder, "none" for torch's own place, None for `compile_cache_folder`.
    """
    if folder == "none":
        return None
    place = Path(folder).expanduser().absolute() if folder else compile_cache_folder(os.environ)
    try:
        place.mkdir(parents=True, exist_ok=True)
        if not os.access(place, os.W_OK):
            raise PermissionError("it cannot be written")
    except OSError as error:
        logger.warning("compiled code is not kept in %s: %s", place, error)
        return None
    os.environ[VARIABLE] = str(place)
    return place
