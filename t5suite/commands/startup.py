"""How an entry script starts and ends when it is run as a program.

if __name__ == "__main__":
    begin_program("fine_tune_t5", __doc__)       # before the imports that take seconds
import torch
if __name__ == "__main__":
    run_program(main)
"""

import atexit
import gc
import importlib.util
import logging
import os
import sys

# The arguments of a script that is run without any.
BARE = {"fine_tune_t5": ["mini.yaml"], "pre_train_t5": []}
# What a script says that is run without any.
BARE_NOTES = {
    "fine_tune_t5": (
        "no flags: the bundled toy model learns the bundled task mini/sentiment, in about a minute; "
        "a model of your choice: --model_name_or_path google/t5-v1_1-small; all flags: --help"
    ),
    "pre_train_t5": (
        "no flags: the bundled toy model learns the bundled text, in about a minute; text and model of your choice: "
        "--train_file articles.txt --config_name t5-v1_1-small --tokenizer_name t5-small; all flags: --help"
    ),
}
# Flags of the user's own rows that are read before torch is imported, and formats whose files name their columns.
ROW_FLAGS = ("train_dir", "train_file", "validation_file", "text_column", "target_column", "delimiter")
FORMATS_WITH_COLUMNS = ("jsonl", "csv", "tsv", "parquet")


def begin_program(script: str, description: str, program: str | None = None, words: list[str] | None = None) -> None:
    """Handles help, wrong flags and finished runs without importing torch; otherwise prints what will run.

    From here on a stop request ends the process with exit code 75, and so does the death of its launcher. The tasks of
    one srun become ranks of one run. Garbage collection is off during the imports: it took a fifth of their time and
    found nothing.

    Args:
      program: the script's name in the help.
      words: its command-line arguments; default: those of this process.
    """
    from t5suite.base.errors import note_exit_code, open_missing_streams, run_command
    from t5suite.launch.script_help import answer
    from t5suite.training.processes.launchers import join_srun, stop_with_launchers, without_launcher_flags
    from t5suite.training.processes.signals import catch_signals

    words = sys.argv[1:] if words is None else words
    open_missing_streams()
    answer(words, script, description, program)
    join_srun()
    code = run_command(lambda _: _look_ahead(script, without_launcher_flags(words)))
    if code:
        sys.exit(note_exit_code(code))
    catch_signals()
    stop_with_launchers()
    gc.disable()


def _look_ahead(script: str, words: list[str]) -> None:
    """Refuses wrong flags. Shows the results if this command finished before, and exits; else prints what will run.

    Args:
      words: the command line; none at all is that of BARE.
    """
    from t5suite.base.script_flags import flags_marked, flags_of
    from t5suite.launch.command_line import flag_values
    from t5suite.launch.row_formats import with_format
    from t5suite.runs.opening import finished_run
    from t5suite.training.processes.launchers import check_launched_ranks

    values = flag_values(script, words or BARE[script])
    if script == "fine_tune_t5":
        values = with_format(values)
    check_launched_ranks(os.environ)
    if os.environ.get("RANK", "0") != "0":
        return
    script_flags = flags_of(script)
    intro_flags = [name for name in flags_marked("intro") if name in script_flags]
    intro = {name: values.get(name, script_flags[name].get("default")) for name in intro_flags}
    intro["output_dir"] = intro["output_dir"] or os.environ.get("T5SUITE_RUN_DIR")
    if not intro["output_dir"] and values.keys().isdisjoint(flags_marked("apart")):
        intro["output_dir"] = _default_output_dir(intro)
    run = finished_run(intro["output_dir"], script, values)
    if run:
        from t5suite.reports.tables import print_finished

        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
        print_finished(run)
        sys.exit(0)
    if values.keys() & {"data_format", "data_class"}:
        # Rows of the user's own: the defaults do not say which.
        intro |= dict.fromkeys({"benchmark", "dataset_name"} - values.keys())
    if not words:
        print(f"{script}: {BARE_NOTES[script]}", file=sys.stderr)
    settings = ", ".join(f"{name} {text}" for name, text in intro.items() if text not in (None, "None"))
    print(f"{script}: {settings}", file=sys.stderr)
    _check_columns(values)


def _check_columns(values: dict) -> None:
    """Refuses a mistyped column of the user's own rows within a second; the run itself checks whatever this leaves."""
    row_settings = {name: values[name] for name in ROW_FLAGS if name in values}
    has_other_values = any(not isinstance(text, str) or text == "None" for text in row_settings.values())
    only_scores = not values.keys().isdisjoint(("eval_only", "predict_only", "eval_checkpoints"))
    if values.get("data_format") not in FORMATS_WITH_COLUMNS or has_other_values or only_scores:
        return
    from t5suite.data.rows.formats import check_columns_of_files, format_form, format_options

    form = format_form(values["data_format"], format_options(row_settings))
    check_columns_of_files(form.source, evaluates=False)


def _default_output_dir(intro: dict) -> str:
    """The directory that a run takes by itself; the objective of pre-training is in its name, if it is not T5's."""
    from t5suite.runs.directory import default_output_dir

    objective = intro.get("objective")
    if not objective:
        return default_output_dir(intro["benchmark"], intro["dataset_name"], intro["model_name_or_path"], "")
    model = intro["config_name"] or intro["model_name_or_path"]
    return default_output_dir("pre_train", "", model, "" if objective == "span_corruption" else objective)


def run_script(script: str, words: list[str], description: str, program: str) -> None:
    """Runs an entry script in this process as `python -m SCRIPT words...` does; exits with its code."""
    begin_program(script, description, program, words)
    sys.path.append(os.getcwd())  # where plug-ins may be
    sys.argv = [importlib.util.find_spec(script).origin, *words]
    run_program(importlib.import_module(script).main)


def run_program(main) -> None:
    """Runs `main` and exits with its code."""
    from t5suite.base.errors import note_exit_code, run_command

    gc.freeze()
    gc.enable()
    if "triton" in sys.modules:  # Triton 3.9 and later reports every object that the last collection did not find
        atexit.register(gc.unfreeze)
    sys.exit(note_exit_code(run_command(main)))
