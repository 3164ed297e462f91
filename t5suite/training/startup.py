"""How an entry script begins and ends as a program of its own.

if __name__ == "__main__":
    begin_program("fine_tune_t5", __doc__)       # before the imports that take seconds
import torch
if __name__ == "__main__":
    run_program(main)
"""

import atexit
import gc
import sys


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
