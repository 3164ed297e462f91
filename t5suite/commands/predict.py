"""`t5suite predict`: answers of a trained model, to rows of a file or to what is typed into a page.

t5suite predict --model_name_or_path runs/mini-sentiment-tiny --input rows.jsonl --output answers.jsonl

Everything that can be checked without the model is checked first, and without torch.
"""

import argparse
import contextlib
import importlib.util
import itertools
import os

from t5suite.base.errors import ConfigError
from t5suite.base.files import STANDARD_INPUT
from t5suite.base.libraries import choose_libraries
from t5suite.base.script_flags import flags_of
from t5suite.commands.path_checks import (
    check_input_file,
    check_model,
    check_model_revision,
    check_output_file,
    is_only_process,
)
from t5suite.commands.shared import add_libraries_flag, check_at_least

# Of files in other forms than the answers'.
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")
# Flags of rows and of lines of answers.
FLAGS_OF_FILES = (
    "input_type",
    "text_column",
    "delimiter",
    "window",
    "num_return_sequences",
    "scores",
    "include_inputs",
)


def predict_flags(parser) -> None:
    """Flags of `t5suite predict`."""
    add = parser.add_argument
    add("--model_name_or_path", required=True, help="a run, checkpoint, adapter or model folder, or a hub name")
    add(
        "--input",
        help="JSON lines, CSV, TSV, Parquet or lines of text (.gz, .zst too), a folder of such files, "
        "- for standard input",
    )
    add("--output", help="JSON lines; a half-written file is continued. Default: standard output")
    add("--overwrite", action="store_true", help="start --output over, discarding its answers")
    add(
        "--web",
        action="store_true",
        help="a page for this machine only (loopback): type a row, see answer and label probabilities; "
        "needs t5suite[web]",
    )
    add = parser.add_argument_group("rows").add_argument
    input_types = ["auto", "jsonl", "text", "csv", "tsv", "parquet"]
    add(
        "--input_type",
        choices=input_types,
        default="auto",
        help="default: by the file's name (.txt: text); of - and other names by the first line that is not blank: "
        "jsonl or text",
    )
    add("--text_column", help="the rows' column(s), with commas, if not those that the model was trained on")
    add("--delimiter", help="between cells of CSV and TSV: ';', tab, ...; default: what fits the file (TSV: tab)")
    add("--window", type=int, default=512, help="rows read, sorted by length and written at once")
    add_text_flags(parser)
    add_answer_flags(parser)
    add_model_flags(parser)
    add_libraries_flag(parser)


def add_text_flags(parser) -> None:
    """Flags of the texts that the model reads."""
    add = parser.add_argument_group("texts").add_argument
    add("--raw", action="store_true", help="rows hold finished texts: no prefix is added")
    add("--input_format", help=r"template of finished texts, for outside models: 'Ask:\n__input__' (\n, \t work)")
    add("--benchmark", help="the task's benchmark, if not the one that the model was trained on")
    add("--dataset_name", help="the task; needed where the model knows several")
    add("--task_file", help="YAML or Python file with tasks of your own")
    add("--max_source_length", type=int, help="longest input in tokens; default: as in training, else 512")
    add("--answer_separator", help=r"between a decoder-only model's prompt and answer (\n works); default: training's")
    for name in ("source_lang", "target_lang", "source_lang_column", "target_lang_column"):
        add(f"--{name}", help=flags_of("fine_tune_t5")[name]["help"])


def add_answer_flags(parser) -> None:
    """Flags of what is answered, and how."""
    add = parser.add_argument_group("answers").add_argument
    add("--max_new_tokens", type=int, help="longest answer in tokens; default: what the task needs, else 64")
    add("--min_new_tokens", type=int, help="shortest answer in tokens")
    add("--num_beams", type=int, default=1, help="beams; 1 is greedy")
    add(
        "--num_beam_groups",
        type=int,
        default=1,
        help="groups of beams that avoid each other's tokens, by --diversity_penalty",
    )
    add("--diversity_penalty", type=float, help="lowers the score of a token that another group chose; such as 0.5")
    add("--length_penalty", type=float, help="beams' scores are divided by length ** this")
    add("--do_sample", action="store_true", help="draw answers at random; the same --seed draws the same")
    add("--temperature", type=float, help="of the drawn distribution; default: the model's own, else 1")
    add("--top_k", type=int, help="draw from this many likeliest tokens; default: the model's own, else all")
    add(
        "--top_p",
        type=float,
        help="draw from the likeliest tokens with this total probability; default: the model's own, else 1",
    )
    add("--seed", type=int, default=42, help="seed of the draws; a row's draws do not depend on its batch")
    add("--repetition_penalty", type=float, help="above 1: tokens that occurred before become less likely")
    add("--no_repeat_ngram_size", type=int, help="no n-gram of this many tokens occurs twice")
    add("--num_return_sequences", type=int, default=1, help="answers per row, with their scores")
    add("--scores", action="store_true", help="also each answer's log-probability")
    add("--labels", nargs="?", const="task", help="choose: the task's labels, or a,b,c; none: write")
    add("--include_inputs", action="store_true", help="also the text that the model read")


def add_model_flags(parser) -> None:
    """Flags of the model, and where it runs."""
    add = parser.add_argument_group("model and machine").add_argument
    add("--batch_size", type=int, default=16, help="rows answered at once on a device")
    add("--tokenizer_name", help="folder or hub name of a tokenizer, if not the model's")
    families = ["auto", "seq2seq", "causal", "masked", "encoder"]
    add("--model_family", choices=families, help="default: what the configuration says")
    add("--model_class", help="module:Class of your own that the model is one of")
    add("--model_revision", help="branch, tag or commit of the hub's model")
    add("--adapter_base", help="an adapter's base model, if not where the adapter says")
    add("--attn_implementation", help="sdpa, eager, ...; default: transformers' choice")
    add("--dtype", choices=["float32", "bfloat16"], default="float32", help="precision of the weights")
    add("--device_map", choices=["balanced", "auto", "sequential"], help="distribute the layers over the devices")
    add("--max_memory", help="memory that --device_map may use: 0=10GiB,cpu=30GiB")
    add("--use_cpu", action="store_true", help="use no GPU")
    add("--verbose", action="store_true", help="show what libraries say, and their progress bars")
    add("--trust_remote_code", action="store_true", help="run code from the hub repository")


def predict(arguments) -> None:
    """Answers every row, or what is typed."""
    _check_predict_flags(arguments)
    choose_libraries(allow_untested=arguments.allow_untested_libraries)
    check_model("--model_name_or_path", arguments.model_name_or_path)
    check_model_revision(arguments)
    if is_only_process():
        _check_task_and_files(arguments)
    from t5suite.training.processes.launchers import check_launched_ranks, join_srun
    from t5suite.training.processes.signals import catching_signals

    join_srun()
    check_launched_ranks(os.environ)
    with contextlib.nullcontext() if arguments.web else catching_signals():
        from t5suite.inference.running import predict_by_flags

        predict_by_flags(arguments)


def _check_predict_flags(arguments) -> None:
    """Checks that need no model.

    Raises:
      ConfigError: flags that do not go together, or one out of its range; Gradio is not installed.
    """
    if arguments.web:
        _check_flags_beside_web(arguments)
    if not arguments.web and arguments.input is None:
        raise ConfigError("give --input FILE (or - for standard input) or --web")
    if arguments.web and not importlib.util.find_spec("gradio"):
        raise ConfigError("--web needs Gradio: python -m pip install 't5suite[web]'")
    check_at_least(arguments, batch_size=1, window=1, max_source_length=1)
    if arguments.output == "-":
        raise ConfigError("--output -: leave --output out for standard output (a file of this name is ./-)")
    if arguments.overwrite and not arguments.output:
        raise ConfigError("--overwrite has no effect without --output")


def _check_flags_beside_web(arguments) -> None:
    """Refuses flags of rows and lines, which a page has not.

    Raises:
      ConfigError: the first of them.
    """
    if arguments.input or arguments.output:
        raise ConfigError("--web takes no --input and no --output")
    parser = argparse.ArgumentParser()
    predict_flags(parser)
    for name in FLAGS_OF_FILES:
        if getattr(arguments, name) != parser.get_default(name):
            raise ConfigError(f"--{name} has no effect with --web: a page takes one text and shows one answer")


def _check_task_and_files(arguments) -> None:
    """Checks that task, labels and decoding fit, the input starts with a row of the task, the output is writable.

    Raises:
      ConfigError, DataError: which of them does not.
    """
    from t5suite.inference.settings import (
        candidate_labels,
        decoding_by_flags,
        template_by_flags,
        text_settings_by_flags,
    )
    from t5suite.tasks.task_card import task_card_after_file

    card = task_card_after_file(arguments.model_name_or_path, arguments.model_revision, arguments.task_file)
    text = text_settings_by_flags(arguments, card, warns=False)
    decoding_by_flags(arguments, text)
    template_by_flags(arguments, text)
    candidate_labels(arguments.labels, text, warns=False)
    if arguments.web:
        _check_languages_of_page(text)
        return
    check_input_file("--input", arguments.input, or_folder=os.path.isdir(arguments.input))
    if arguments.output:
        _check_output(arguments)
    if not _continues_output(arguments):
        _check_first_row(arguments, text)


def _check_languages_of_page(text) -> None:
    """Refuses a language that each row has in a column, for a page has none for it.

    Raises:
      ConfigError: there is such a column.
    """
    for flag in ("source_lang", "target_lang"):
        column = getattr(text.languages, f"{flag}_column")
        if column:
            raise ConfigError(f"--web: a text that is typed has no column {column!r}; give its language by --{flag}")


def _check_output(arguments) -> None:
    """Checks that the answers have a place outside of the input.

    Raises:
      ConfigError: they do not.
    """
    if os.path.isdir(arguments.input) and _is_among_rows(arguments.output, arguments.input):
        raise ConfigError(f"--output {arguments.output}: it would be among the files that are read (--input)")
    check_output_file("--output", arguments.output, arguments.input)
    stem, suffix = os.path.splitext(arguments.output)
    if suffix.lower() in TABLE_SUFFIXES:
        raise ConfigError(f"--output {arguments.output}: answers are JSON lines; name the file {stem}.jsonl")


def _is_among_rows(path: str, input_folder: str) -> bool:
    """Whether a file is in a folder whose files of rows are read: the input itself, or that of its test split."""
    from t5suite.inference.rows import row_files

    folders = {input_folder, *(os.path.dirname(file) for file in row_files(input_folder))}
    return os.path.realpath(os.path.dirname(path) or ".") in map(os.path.realpath, folders)


def _continues_output(arguments) -> bool:
    """Whether a file of answers is continued.

    Raises:
      ConfigError: there is a file that cannot be.
    """
    from t5suite.inference.outputs import ResumableOutput

    if not arguments.output or arguments.overwrite or not os.path.exists(arguments.output):
        return False
    ResumableOutput(arguments.output, {}).read_progress()
    return True


def _check_first_row(arguments, text) -> None:
    """Reads the first row as the model will.

    Raises:
      DataError: it is not a row of the task.
    """
    from t5suite.inference.row_texts import input_text, with_hints_about_columns
    from t5suite.inference.settings import source_by_flags
    from t5suite.tasks.formatters import FITTED_FORMATTERS

    if arguments.input == STANDARD_INPUT:  # can be read only once
        return
    if not os.path.isdir(arguments.model_name_or_path):
        return  # A model that may be the hub's, or nowhere, is looked for before rows are said not to fit it.
    if text.task is not None and text.task.entry.get("formatter") in FITTED_FORMATTERS:
        return  # Texts with as many examples as fit need the tokenizer.
    for row in itertools.islice(source_by_flags(arguments, text).rows(), 1):
        with with_hints_about_columns():
            input_text(row, text.task, arguments.raw)
