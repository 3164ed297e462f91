"""`t5suite verify`: a finished run's scores once more.

The run's record (its settings, scores, answers and hashes of files: `reports.run_records`) is checked, and its model
answers every row again.

t5suite verify runs/mini-sentiment
"""

import contextlib
import os
import re
import sys
from functools import partial
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.libraries import choose_libraries
from t5suite.base.programs import output_may_end_early
from t5suite.commands.path_checks import may_be_of_the_hub, missing_path_hint
from t5suite.commands.shared import (
    add_data_dir_flag,
    add_json_flag,
    add_libraries_flag,
    check_at_least,
    check_data_dir_flag,
    print_json,
    show_text,
)

# Exit code: the run's scores or answers are not those of its record.
EXIT_DIFFERENT = 1


def verify_flags(parser) -> None:
    """Flags of `t5suite verify`."""
    add = parser.add_argument
    add("run", metavar="RUN", help="a run's directory, a copy of it, or OWNER/MODEL on the hub")
    add(
        "--scores_only",
        action="store_true",
        help="check scores and files against the recorded answers, without the model",
    )
    add("--model_revision", help="branch, tag or commit of a model on the hub; a commit cannot have been altered")
    add("--record_sha256", help="what the record's hash must be, if you have it from elsewhere")
    add("--exported", help="let the ONNX or CTranslate2 files of this folder answer in place of the run's model")
    add("--batch_size", type=int, help="rows answered at once; default: the run's own batches")
    add("--dtype", choices=["float32", "bfloat16"], help="precision of the weights; default: the run's")
    add("--use_cpu", action="store_true", help="use no GPU")
    add("--max_rows", type=int, metavar="N", default=20, help="differing rows that are shown (default: 20)")
    add_data_dir_flag(parser)
    add_libraries_flag(parser)
    add_json_flag(parser)


def verify(arguments) -> None:
    """Checks a run's record, answers its rows again, and prints what differs.

    Raises:
      ConfigError: flags that do not go together, or no such run (78).
      DataError: the run cannot be verified: a file is missing, or it needs its author's code (65).
      SystemExit: with EXIT_DIFFERENT, if something differs.
    """
    _check_verify_flags(arguments)
    libraries = choose_libraries(allow_untested=arguments.allow_untested_libraries)
    from t5suite.reports.run_records import read_record

    check_data_dir_flag(arguments.data_dir)
    # Libraries may print when they are first used, but standard output is for the result only.
    with contextlib.redirect_stdout(sys.stderr):
        record = read_record(*place_of_run(arguments))
        verification = verification_of(record, arguments, libraries.off)
    with output_may_end_early():
        print_verification(verification, arguments)
    if not verification.is_equal:
        sys.exit(EXIT_DIFFERENT)


def _check_verify_flags(arguments) -> None:
    """Refuses flags that do not go together, and a run that is nowhere.

    Raises:
      ConfigError: which.
    """
    check_at_least(arguments, batch_size=1, max_rows=0)
    sha256 = arguments.record_sha256
    if sha256 is not None and not re.fullmatch("[0-9a-fA-F]{64}", sha256):
        raise ConfigError(f"--record_sha256 {sha256}: a SHA-256 has 64 hexadecimal digits")
    if arguments.scores_only:
        for name in ("exported", "batch_size", "dtype", "use_cpu"):
            if getattr(arguments, name) not in (None, False):
                raise ConfigError(f"--{name} has no effect with --scores_only, which does not run the model")
    if arguments.exported is not None and not os.path.isdir(arguments.exported):
        raise ConfigError(f"--exported {arguments.exported}: no such folder; give one of t5suite export")
    run = arguments.run
    if os.path.isfile(run):
        raise ConfigError(f"t5suite verify {run}: a file; give the run's directory, {Path(run).parent}")
    if os.path.isdir(run):
        if arguments.model_revision:
            raise ConfigError(f"--model_revision {arguments.model_revision} has no effect: {run} is a folder")
    elif not (may_be_of_the_hub(run) and "/" in run):
        raise ConfigError(f"t5suite verify {run}: no such folder, nor OWNER/MODEL{missing_path_hint(run)}")


def place_of_run(arguments) -> tuple[Path, str | None]:
    """The folder of the run on this machine, and its commit if it was downloaded from the hub."""
    if os.path.isdir(arguments.run):
        return Path(arguments.run), None
    from t5suite.base.hub_runs import download_run
    from t5suite.reports.shared_files import FILES_TO_VERIFY

    return download_run(arguments.run, arguments.model_revision, FILES_TO_VERIFY)


def verification_of(record, arguments, fast_paths_off: frozenset[str]):
    """The verification as the flags ask for it.

    Args:
      fast_paths_off: names of fast paths that are not used with the installed libraries.
    """
    from t5suite.reports.run_records import check_model_is_here
    from t5suite.reports.verification import verify_record

    expected_sha256 = None
    if arguments.record_sha256 is not None:
        expected_sha256 = arguments.record_sha256.lower()
    if arguments.scores_only:
        return verify_record(record, arguments.data_dir, expected=expected_sha256)
    check_model_is_here(record)
    from t5suite.reports.answering_again import answer_again, tokenizer_problems
    from t5suite.training.process_setup import start_logging

    start_logging(is_main=True, disable_tqdm=True)
    answering = answering_by_flags(record, arguments, fast_paths_off)
    other_answers = None  # the run's model answers
    if arguments.exported is not None:
        other_answers = answers_of_exported_files(record, arguments, answering)
    return verify_record(
        record,
        arguments.data_dir,
        answer=partial(answer_again, answering=answering, other_answers=other_answers),
        check_tokenizer=tokenizer_problems,
        expected=expected_sha256,
    )


def check_tokenizer_of_export(record, folder: str) -> None:
    """Refuses exported files that read other ids than the run's model, as those of a model that `t5suite trim` made.

    Raises:
      ConfigError: how their tokenizer differs.
    """
    from t5suite.models.loading import load_tokenizer
    from t5suite.models.tokenizer_checks import TOKENIZER_KEY, tokenizer_differences

    description = record.manifest.get(TOKENIZER_KEY)
    if not description:  # a run of an earlier version
        return
    differences = tokenizer_differences(description, load_tokenizer(folder, flag="--exported"))
    if differences:
        raise ConfigError(
            f"--exported {folder}: its tokenizer is not the run's: {'; '.join(differences)}; evaluate the model that "
            "was exported (t5suite evaluate), and verify that run"
        )


def answering_by_flags(record, arguments, fast_paths_off: frozenset[str]):
    """How the run answered, with what the flags change."""
    from dataclasses import replace

    from t5suite.reports.answering_again import Answering

    answering = Answering.of(record, fast_paths_off)
    if arguments.batch_size is not None:  # in place of batches of so many tokens, too
        answering = replace(answering, batch_rows=arguments.batch_size, batch_tokens=None)
    if arguments.dtype is not None:  # autocast would compute in its own type, whatever the weights'
        answering = replace(answering, dtype=arguments.dtype, autocast="no")
    if arguments.use_cpu:
        answering = replace(answering, use_cpu=True)
    return answering


def answers_of_exported_files(record, arguments, answering):
    """What answers in place of the run's model.

    The run's model only measures how far apart two answers are that differ.

    Raises:
      ConfigError: the folder has no exported files, or they read other ids than the run's model.
    """
    from t5suite.inference.export_answers import answers_of_export
    from t5suite.inference.exported import exported_kind

    if exported_kind(arguments.exported) is None:
        raise ConfigError(f"--exported {arguments.exported}: no folder of t5suite export --format onnx or ctranslate2")
    check_tokenizer_of_export(record, arguments.exported)
    return answers_of_export(arguments.exported, record.settings, answering)


def print_verification(verification, arguments) -> None:
    """Prints the verdict, then what was compared and what differs."""
    from t5suite.reports.verification_text import verification_json, verification_lines

    if arguments.json:
        for line in verification_json(verification):
            print_json(line)
        return
    for line in verification_lines(verification, arguments.max_rows):
        show_text(line)
