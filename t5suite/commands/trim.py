"""`t5suite trim`: the same model without the pieces of its vocabulary that your text does not use.

t5suite trim --model_name_or_path google/mt5-small --text articles.txt answers.txt --output_dir mt5-small-de --check
"""

import contextlib
import os
import sys

from t5suite.base.files import check_new_folder
from t5suite.base.libraries import choose_libraries
from t5suite.commands.path_checks import check_model, check_model_revision, check_place
from t5suite.commands.shared import (
    add_json_flag,
    add_libraries_flag,
    check_at_least,
    check_dry_run,
    note,
    print_json,
    show_text,
)
from t5suite.commands.text_flags import INPUT_HELP, add_reading_flags
from t5suite.export.trim_types import check_folder_type

FLAG = "--model_name_or_path"


def trim_flags(parser) -> None:
    """Flags of `t5suite trim`."""
    add = parser.add_argument
    add(FLAG, required=True, help="T5, mT5, umT5, FLAN-T5, mBART, NLLB or T5Gemma: a folder, a run, a name of the hub")
    add(
        "--text", required=True, nargs="+", metavar="TEXT", help=f"all that the model will read and write: {INPUT_HELP}"
    )
    add("--output_dir", help="a new folder, or an empty one")
    add("--keep_pieces", help="a file of further pieces to keep, one a line, such as \u2581Haus")
    add("--min_count", type=int, default=1, help="keep pieces that occur at least this often (default: 1)")
    add(
        "--validation_file",
        nargs="+",
        metavar="TEXT",
        help="text to measure the cost on that the pieces are not chosen by (default: a tenth of --text)",
    )
    add("--dry_run", action="store_true", help="write nothing, show the figures")
    add("--check", action="store_true", help="compare the trimmed model with the untrimmed one")
    add("--model_revision", help="branch, tag or commit of a model of the hub")
    add_reading_flags(parser, several_columns=True)
    add("--verbose", action="store_true", help="show what libraries say, and their progress bars")
    add_libraries_flag(parser)
    add_json_flag(parser)


def trim(arguments) -> None:
    """Writes the trimmed model, and prints what was kept and what it costs.

    Raises:
      ConfigError: flags that do not go together, no such model, or one that is not trimmed.
      DataError: text or pieces that cannot be read.
    """
    check_at_least(arguments, min_count=1)
    check_dry_run(arguments)
    choose_libraries(allow_untested=arguments.allow_untested_libraries)
    _check_files(arguments)
    from t5suite.export.trimming import trim_model
    from t5suite.training.process_setup import start_logging

    start_logging(is_main=True, disable_tqdm=not arguments.verbose, verbose=arguments.verbose)
    # Libraries may print when they are first used, but standard output is for the result only.
    with contextlib.redirect_stdout(sys.stderr):
        record = trim_model(arguments)
    if record["rows_before"] <= record["pieces"]:
        note("the text and what any text needs have all pieces: nothing could be dropped")
    if arguments.json:
        print_json(record)
    else:
        _print_trim(record)


def _check_files(arguments) -> None:
    """Checks the files and folders before anything is loaded.

    Raises:
      ConfigError, DataError: which is wrong.
    """
    from t5suite.data.corpora.documents import check_first_documents
    from t5suite.data.corpora.readers import TextOptions
    from t5suite.export.trim_words import read_piece_names

    check_model(FLAG, arguments.model_name_or_path, of_run=True)
    check_model_revision(arguments)
    if os.path.isdir(arguments.model_name_or_path):
        check_folder_type(arguments.model_name_or_path, f"{FLAG} {arguments.model_name_or_path}")
    if arguments.output_dir is not None:
        check_new_folder(arguments.output_dir)
        check_place("--output_dir", arguments.output_dir)
    for column in arguments.text_column_name:
        options = TextOptions(column, arguments.text_unit, arguments.bad_lines)
        check_first_documents(arguments.text, options)
        if arguments.validation_file:
            check_first_documents(arguments.validation_file, options)
    read_piece_names(arguments.keep_pieces)


def _print_trim(record: dict) -> None:
    """What is kept, what it saves, and what it costs."""
    rows = record["rows_before"]
    kept_counts = ", ".join(f"{count} {reason}" for reason, count in record["kept"].items())
    lines = {
        "text": f"{record['texts']} texts",
        "pieces": f"{rows} rows for {record['pieces_before']} pieces -> {record['pieces']} ({record['kind']})",
        "kept": kept_counts,
        "parameters": _before_and_after(record["parameters_before"], record["parameters"]),
    }
    unseen = record["unseen"]
    if unseen is not None:
        lines["unseen text"] = (
            f"{unseen['texts']} texts: {unseen['equal_percent']} % segmented as before, "
            f"{unseen['more_tokens_percent']} % more tokens, unknown {unseen['unknown_before']} -> {unseen['unknown']} "
            f"({unseen['measured_on']})"
        )
    for heading, text in lines.items():
        show_text(f"{heading:<12} {text}")
    for name, measured in _check_lines(record.get("check")).items():
        show_text(f"{'check':<12} {name:<24} {measured}")


def _before_and_after(before: int, after: int) -> str:
    return f"{before} -> {after} ({after / before:.2f})"


def _check_lines(check: dict | None) -> dict[str, str]:
    """What `--check` measured, by name."""
    if check is None:
        return {}
    segmentation = check["segmentation"]
    lines = {"segmented as before": f"{segmentation['equal']} of {segmentation['texts']} texts"}
    for name, measured in check["model"].items():
        lines[name.replace("_", " ")] = f"{measured:.4g}" if isinstance(measured, float) else str(measured)
    return lines
