"""What an entry script finds out before torch is imported: a wrong flag, a finished run, a run that is there already.

    >>> look_ahead("fine_tune_t5", ["--benchmark", "glue", "--dataset_name", "rte"])
    fine_tune_t5: benchmark glue, dataset_name rte, output_dir runs/glue-rte-tiny

The run itself checks everything again, and what this leaves out.
"""

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from t5suite.base.errors import ConfigError, UserError
from t5suite.base.programs import note_exit_code
from t5suite.base.script_flags import flags_marked, flags_of
from t5suite.constants import OWN_BENCHMARK
from t5suite.launch.bundled_runs import bundled_note, with_recipe
from t5suite.launch.changed_flags import certain_changes, changed_flags, typed_value
from t5suite.launch.command_line import flag_values
from t5suite.launch.row_formats import with_format
from t5suite.runs.choosing import CHOOSING_SETTINGS, directory_for
from t5suite.runs.directory import MANIFEST, Run, default_output_dir, read_manifest
from t5suite.runs.opening import check_changes, finished_run, starts_again
from t5suite.runs.settings import allowed_names
from t5suite.training.processes.launchers import check_launched_ranks

# Flags of the user's own rows that are read before torch is imported, and formats whose files name their columns.
ROW_FLAGS = ("train_dir", "train_file", "validation_file", "text_column", "target_column", "delimiter")
FORMATS_WITH_COLUMNS = ("jsonl", "csv", "tsv", "parquet")
SCORING_FLAGS = ("eval_only", "predict_only", "eval_checkpoints")
# With one of these, opening the run decides which directory it takes, and what may have changed.
DECIDED_LATER = ("overwrite_output_dir", "resume", "resume_from_checkpoint", "dry_run", "eval_checkpoints")


def look_ahead(script: str, words: list[str]) -> None:
    """Refuses wrong flags. Shows the results if this command finished before, and exits; else prints what will run.

    Each of several processes makes the same checks, so that none waits for one that was refused. Whether a run has
    finished they find out together, later: what they compare, such as CUDA_VISIBLE_DEVICES, may differ between them.

    Args:
      words: the command line; one that says nothing of the run is that of the bundled recipe.
    """
    values = flag_values(script, with_recipe(script, words))
    bundled = bundled_note(script, words, values)
    if script == "fine_tune_t5":
        values = with_tasks_of_model(with_format(values))
    check_launched_ranks(os.environ)
    intro_flags = [name for name in flags_marked("intro") if name in flags_of(script)]
    intro = {name: values.get(name, flags_of(script)[name].get("default")) for name in intro_flags}
    named_directory = intro["output_dir"] or os.environ.get("T5SUITE_RUN_DIR")
    intro["output_dir"] = named_directory or default_directory(script, values)
    run = finished_run(intro["output_dir"], script, values)
    if run and os.environ.get("WORLD_SIZE", "1") == "1":
        show_finished(run)
        sys.exit(0)
    if values.keys() & {"data_format", "data_class"}:
        # Rows of the user's own: the defaults do not say which.
        intro |= dict.fromkeys({"benchmark", "dataset_name"} - values.keys())
    if os.environ.get("RANK", "0") == "0":
        if bundled:
            print(f"{script}: {bundled}", file=sys.stderr)
        settings = ", ".join(f"{name} {text}" for name, text in intro.items() if text not in (None, "None"))
        print(f"{script}: {settings}", file=sys.stderr)
    with one_message_per_machine():
        if script == "pre_train_t5":
            check_text_files(values)
        else:
            check_columns_of_own_rows(values)
        check_run_there(script, values, intro["output_dir"], is_default=not named_directory)


@contextlib.contextmanager
def one_message_per_machine():
    """Of the processes of a machine that refuse the same, the first raises the error; the others exit with its code."""
    try:
        yield
    except UserError as error:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            raise
        sys.exit(note_exit_code(error.exit_code))


def with_tasks_of_model(values: Mapping[str, object]) -> dict[str, object]:
    """The flags of fine-tuning; where none of them names a task, with those that a saved model was trained on."""
    if not values.keys().isdisjoint(("data_format", "data_class", "benchmark")):
        return dict(values)
    from t5suite.tasks.task_card import read_task_card

    model = values.get("model_name_or_path")
    card = read_task_card(str(model)) if model else None
    if card is None or not card.tasks:
        return dict(values)
    dataset_name = values.get("dataset_name")
    return {**values, **card.task_flags(None if dataset_name is None else str(dataset_name))}


def show_finished(run: Run) -> None:
    """Prints the results of a run that this same command has finished."""
    from t5suite.reports.tables import print_finished

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    print_finished(run)


def default_directory(script: str, values: Mapping[str, object]) -> str | None:
    """The directory that a run without `--output_dir` takes; None where that takes more than its flags."""
    if not values.keys().isdisjoint((*SCORING_FLAGS, *DECIDED_LATER, "data_class")):
        return None
    default = default_name(script, values)
    names = [name for name in CHOOSING_SETTINGS if name in flags_of(script)]
    if default is None or any(isinstance(values.get(name), (list, dict)) for name in names):
        return None
    settings = {name: typed_value(script, name, values) for name in names}
    return directory_for(default, settings, allowed_names(values.get("allow_changed")))


def default_name(script: str, values: Mapping[str, object]) -> str | None:
    """The directory's name without a number; None if the name of the user's own rows is not known yet."""
    model = typed_value(script, "model_name_or_path", values)
    if script == "pre_train_t5":
        objective = typed_value(script, "objective", values)
        suffix = "" if objective == "span_corruption" else objective
        return default_output_dir("pre_train", "", typed_value(script, "config_name", values) or model, suffix)
    dataset_name = typed_value(script, "dataset_name", values)
    if "data_format" not in values:
        return default_output_dir(typed_value(script, "benchmark", values), dataset_name, model)
    if "dataset_name" not in values:
        dataset_name = name_of_rows(values)
    return default_output_dir(OWN_BENCHMARK, dataset_name, model) if dataset_name else None


def name_of_rows(values: Mapping[str, object]) -> str | None:
    """The name that the files of the user's own rows give a data set."""
    row_settings = settings_of_rows(values)
    if row_settings is None:
        return None
    from t5suite.data.rows.formats import form_name, format_options

    return form_name(format_options(row_settings))


def settings_of_rows(values: Mapping[str, object]) -> dict[str, str] | None:
    """The flags of rows in files that name their columns; None for other rows."""
    row_settings = {name: values[name] for name in ROW_FLAGS if name in values}
    has_other_values = any(not isinstance(text, str) or text == "None" for text in row_settings.values())
    if has_other_values or values.get("data_format") not in FORMATS_WITH_COLUMNS:
        return None
    return row_settings


def check_columns_of_own_rows(values: Mapping[str, object]) -> None:
    """Refuses a mistyped column of the user's own rows within a second."""
    row_settings = settings_of_rows(values)
    if row_settings is None or not values.keys().isdisjoint(SCORING_FLAGS):
        return
    from t5suite.data.rows.file_rows import check_columns_of_files
    from t5suite.data.rows.formats import format_form, format_options

    form = format_form(values["data_format"], format_options(row_settings))
    check_columns_of_files(form.source, evaluates=False)


def check_text_files(values: Mapping[str, object]) -> None:
    """Refuses missing files of text, and ones without the text's column, within a second."""
    from t5suite.data.corpora.documents import check_first_documents
    from t5suite.data.corpora.readers import TextOptions

    names = words_of_list(values.get("validation_file"))
    scores_alone = typed_value("pre_train_t5", "eval_only", values)
    if not (scores_alone and names):
        names = [*words_of_list(values.get("train_file")), *names]
    option_names = ("text_column_name", "text_unit", "bad_lines")
    options = TextOptions(*(typed_value("pre_train_t5", name, values) for name in option_names))
    for name in names:
        check_first_documents([name], options)


def words_of_list(value: object) -> list[str]:
    """The words of a flag that takes several, as a command line or a file of flags has them.

    >>> words_of_list("a.txt"), words_of_list(["a.txt", "b.txt"]), words_of_list(None)
    (['a.txt'], ['a.txt', 'b.txt'], [])
    """
    if value is None or value == "None":
        return []
    return [str(word) for word in value] if isinstance(value, (list, tuple)) else [str(value)]


def check_run_there(script: str, values: Mapping[str, object], directory: str | None, is_default: bool) -> None:
    """Refuses flags that make another run of the one that is there.

    Args:
      is_default: no flag names the directory.
    """
    decides_later = not values.keys().isdisjoint(DECIDED_LATER)
    if directory is None or decides_later or not os.path.isfile(os.path.join(directory, MANIFEST)):
        return
    try:
        manifest = read_manifest(directory)
    except ConfigError:  # opening the run rebuilds a damaged one, or says why it cannot
        return
    changes = changed_flags(script, manifest, values)
    certain = certain_changes(changes, values)
    allowed = frozenset(allowed_names(values.get("allow_changed")))
    extend = bool(typed_value(script, "extend", values))
    run_with = functools.partial(Run, Path(directory), manifest, resumed=True, allowed=allowed)
    run = run_with(changed=certain)
    if starts_again(run):
        return
    try:
        check_changes(run, extend, is_default)
    except ConfigError:  # the one refusal names the less certain changes, too
        check_changes(run_with(changed={**certain, **changes}), extend, is_default)
