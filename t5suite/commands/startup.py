"""How an entry script starts when it is run as a program.

if __name__ == "__main__":
    begin_program("fine_tune_t5", __doc__)       # before the imports that take seconds
import torch
if __name__ == "__main__":
    run_program(main)
"""

import gc
import importlib.util
import sys

from t5suite.base.programs import note_exit_code, open_missing_streams, run_command, run_program


def begin_program(script: str, description: str, program: str | None = None, words: list[str] | None = None) -> None:
    """Handles help, wrong flags and finished runs without importing torch; otherwise prints what will run.

    From here on a stop request ends the process with exit code 75, and so does the death of its launcher. The tasks of
    one srun become ranks of one run. Garbage collection is off during the imports: it took a fifth of their time and
    found nothing.

    Args:
      program: the script's name in the help.
      words: its command-line arguments; default: those of this process.
    """
    from t5suite.commands.looking_ahead import look_ahead
    from t5suite.launch.script_help import answer
    from t5suite.training.processes.launchers import join_srun, stop_with_launchers
    from t5suite.training.processes.signals import catch_signals

    words = sys.argv[1:] if words is None else words
    open_missing_streams()
    answer(words, script, description, program)
    join_srun()
    code = run_command(lambda _: look_ahead(script, words))
    if code:
        sys.exit(note_exit_code(code))
    catch_signals()
    stop_with_launchers()
    gc.disable()


def run_script(script: str, words: list[str], description: str, program: str) -> None:
    """Runs an entry script in this process as `python -m SCRIPT words...` does; exits with its code."""
    begin_program(script, description, program, words)
    sys.argv = [importlib.util.find_spec(script).origin, *words]
    run_program(importlib.import_module(script).main)
