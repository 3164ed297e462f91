"""How an entry script begins and ends as a program of its own.

if __name__ == "__main__":
    begin_program("fine_tune_t5", __doc__)       # before the imports that take seconds
import torch
if __name__ == "__main__":
    run_program(main)
"""

import atexit
import gc
import importlib.util
import os
import sys


def begin_program(script: str, description: str, program: str | None = None, words: list[str] | None = None) -> None:
    """Answers `--help`, `--version` and wrong flags without torch; from here on a request to stop ends it with 75.

    A launcher that dies takes this process along in the same way, and the tasks of one srun are ranks of one run.
    Garbage collection of what is imported took a fifth of the imports' time and found nothing.

    Args:
      program: what the help calls the script.
      words: of its command line; default: those of this process.
    """
    from t5suite.base.errors import note_exit_code, run_command
    from t5suite.launch.command_line import asked_for
    from t5suite.launch.script_help import answer
    from t5suite.training.processes.launchers import join_srun, stop_with_launchers, without_launcher_flags
    from t5suite.training.processes.signals import catch_signals

    words = sys.argv[1:] if words is None else words
    answer(words, script, description, program)
    code = run_command(lambda _: asked_for(script, without_launcher_flags(words)))
    if code:
        sys.exit(note_exit_code(code))
    catch_signals()
    stop_with_launchers()
    join_srun()
    gc.disable()


def run_script(script: str, words: list[str], description: str, program: str) -> None:
    """Runs an entry script in this process as `python -m SCRIPT words...` does; ends the process with its code."""
    begin_program(script, description, program, words)
    sys.path.append(os.getcwd())  # where plug-ins may be
    sys.argv = [importlib.util.find_spec(script).origin, *words]
    run_program(importlib.import_module(script).main)


def run_program(main) -> None:
    """Runs `main` and exits with its code."""
    from t5suite.base.errors import note_exit_code, run_command

    gc.freeze()
    gc.enable()
    if "triton" in sys.modules:  # from 3.9 on it reports every object that the last collection has not found
        atexit.register(gc.unfreeze)
    sys.exit(note_exit_code(run_command(main)))
