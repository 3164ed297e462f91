"""`t5suite predict`: rows go in, lines come out, window by window.

    >>> settings = EncodingSettings(read_task_card("runs/rte").lengths)
    >>> predictor = load_predictor(parse_command_line(["predict", ...]), settings, batch_size=16)
    >>> job = Job(task=load_task("glue", "rte"), decoding=DecodingSettings(), max_new_tokens=5)
    >>> predict_rows(InputRows("rows.jsonl"), ResumableOutput("answers.jsonl", {}), job, lambda: predictor)
    (277, 277)                                             # rows read, rows answered now

The main process reads and writes; all ranks answer. The model is loaded at the first row without an answer.
"""

import argparse
import contextlib
import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from t5suite.base.errors import ConfigError, DataError, LackOfMemoryError, Preempted, UserError
from t5suite.data.batches.encodings import DEFAULT_SEPARATOR, PromptEncoding, TextEncoding
from t5suite.inference.exported import CTRANSLATE2, EncodingSettings, exported_kind
from t5suite.inference.jobs import WINDOW, AnswerCounts, Job, RowRequest
from t5suite.inference.model_loading import load_predictor, model_fingerprint, tokenizer_of_source
from t5suite.inference.outputs import ResumableOutput, StreamOutput
from t5suite.inference.predictor import warn_of_cut_labels
from t5suite.inference.row_texts import with_hints_about_columns
from t5suite.inference.rows import InputRows
from t5suite.inference.settings import (
    InputSettings,
    candidate_labels,
    check_separator,
    decoding_by_flags,
    source_by_flags,
    template_by_flags,
    text_settings_by_flags,
    writes_text,
)
from t5suite.inference.web import serve_page
from t5suite.models.load_errors import short_message
from t5suite.models.loading import family_of
from t5suite.models.placement import check_placement_flags
from t5suite.tasks.formatters import FITTED_FORMATTERS
from t5suite.tasks.task_card import TaskCard, task_card_after_file
from t5suite.training.eval_sets import has_fixed_answers, longest_label
from t5suite.training.process_setup import start_logging
from t5suite.training.processes.ranks import Ranks, check_meeting_place
from t5suite.training.processes.signals import agree_to_stop, stop_requests
from t5suite.training.sharding.process_state import leave_group_at_exit
from t5suite.training.sharding.settings import DEEPSPEED, FSDP, PRECISION, is_set

logger = logging.getLogger(__name__)

# Fields of a task's entry that determine its texts.
TEXT_FIELDS = (
    "prefix text_column_name labels formatter target target_decimals instruction input_format output_format "
    "max_input_tokens max_output_tokens"
).split()
# Flags that answers depend on; the optional ones only where they are given.
FLAGS_OF_ANSWERS = ("raw", "input_format", "scores", "include_inputs", "input_type", "dtype", "adapter_base")
OPTIONAL_FLAGS_OF_ANSWERS = ("text_column", "delimiter", "tokenizer_name", "model_family", "model_class")


def predict_by_flags(arguments) -> None:
    """`t5suite predict`, given its flags."""
    check_accelerate_settings(arguments)
    check_placement_flags(arguments.device_map, arguments.max_memory, embedding_on_cpu=False)
    ranks = join_processes()
    start_logging(ranks.is_main, disable_tqdm=not arguments.verbose, verbose=arguments.verbose)
    card = ranks.together(
        task_card_after_file, arguments.model_name_or_path, arguments.model_revision, arguments.task_file
    )
    text = text_settings_of_model(arguments, card)
    job = make_job(arguments, text)

    def make_predictor():
        return predictor_by_flags(arguments, card, text, job, ranks)

    if arguments.web:
        if ranks.world_size > 1:
            raise ConfigError(f"--web: one process answers, but {ranks.world_size} were launched")
        serve_page(job, make_predictor(), arguments.model_name_or_path)
        return
    has_answers = arguments.output and Path(arguments.output).exists()
    if not Path(arguments.model_name_or_path).is_dir() and not has_answers:
        # A hub's model that is not there is the cause, not the rows.
        predictor = make_predictor()
        _predict_file(arguments, text, job, lambda: predictor, ranks)
    else:
        _predict_file(arguments, text, job, make_predictor, ranks)


def check_accelerate_settings(source) -> None:
    """Refuses training settings in `accelerate launch`'s configuration: predict has its own flags for them.

    Raises:
      ConfigError: its configuration asks for something that the flags do not.
    """
    settings = [f"{name}=true" for name in (DEEPSPEED, FSDP) if is_set(name)]
    precision = os.environ.get(PRECISION, "no").lower()
    if precision != "no" and (precision, source.dtype) != ("bf16", "bfloat16"):
        settings.append(f"{PRECISION}={precision}")
    if settings:
        raise ConfigError(
            f"accelerate's configuration ({', '.join(settings)}) is for training; predicting has --device_map balanced "
            f"for a model larger than a device, and --dtype float32 (given: {source.dtype}) or bfloat16"
        )


def join_processes() -> Ranks:
    """The ranks of `torchrun`, `accelerate launch` or `srun`, which communicate over gloo.

    Raises:
      ConfigError: the environment does not say where they meet.
    """
    size = os.environ.get("WORLD_SIZE", "1")
    if int(size) > 1 and not torch.distributed.is_initialized():
        check_meeting_place()
        missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
        if missing:
            raise ConfigError(
                f"WORLD_SIZE={size} in the environment without {' and '.join(missing)}: start with torchrun, which "
                "sets all of them, or, for one process, unset WORLD_SIZE"
            )
        torch.distributed.init_process_group("gloo")
        leave_group_at_exit()
    return Ranks.of_process()


def text_settings_of_model(arguments, card: TaskCard | None) -> InputSettings:
    """`text_settings_by_flags`, with the model's family and the length of the task's labels if no card says them."""
    text = _with_family_of_model(arguments, text_settings_by_flags(arguments, card))
    check_separator(arguments.answer_separator, text.family)
    if arguments.max_new_tokens is not None:
        return text
    return dataclasses.replace(text, max_new_tokens=_longest_answer(arguments, text, card))


def _with_family_of_model(arguments, text: InputSettings) -> InputSettings:
    """The settings with the family that the model's configuration says, if they have none."""
    if text.family is not None or exported_kind(arguments.model_name_or_path) == CTRANSLATE2:
        return text
    with contextlib.suppress(UserError):  # loading the model says what is wrong with it
        family = family_of(
            arguments.model_name_or_path,
            revision=arguments.model_revision,
            trust_remote_code=arguments.trust_remote_code,
            adapter_base=arguments.adapter_base,
            model_class=arguments.model_class,
        )
        return dataclasses.replace(text, family=family.name)
    return text


def make_job(arguments, text: InputSettings) -> Job:
    """How rows are answered, from the flags.

    Raises:
      ConfigError: flags that do not fit the task or one another.
    """
    decoding = decoding_by_flags(arguments, text)
    return Job(
        task=text.task,
        labels_of_sets=text.labels_of_sets,
        raw=arguments.raw,
        decoding=decoding,
        max_new_tokens=decoding.max_new_tokens or text.max_new_tokens,
        labels=candidate_labels(arguments.labels, text),
        scores=arguments.scores,
        inputs=arguments.include_inputs,
        family=text.family,
        fits=_fits_by_flags(arguments, text),
        languages=text.languages,
        input_format=template_by_flags(arguments, text),
    )


def _longest_answer(arguments, text: InputSettings, card: TaskCard | None) -> int:
    """The tokens that an answer of the task needs: as `task.json` says, else those of the longest label."""
    task = text.task
    if task is None or (card and task.name in card.max_answer_tokens):
        return text.max_new_tokens
    if not has_fixed_answers(task) or not writes_text(arguments.labels, text):
        return text.max_new_tokens
    return longest_label(task, _encoding_by_flags(arguments, text))


def _fits_by_flags(arguments, text: InputSettings) -> Callable[[str], bool] | None:
    """Whether a text is short enough: a function for tasks that show as many examples as fit, else None."""
    if text.task is None or text.task.entry.get("formatter") not in FITTED_FORMATTERS:
        return None
    return _encoding_by_flags(arguments, text).fits


def _encoding_by_flags(arguments, text: InputSettings) -> TextEncoding:
    """How a model that writes reads and writes the task's texts, before it is loaded."""
    tokenizer = tokenizer_of_source(arguments)
    template = text.task.template
    if text.family == "causal":
        separator = DEFAULT_SEPARATOR if text.separator is None else text.separator
        return PromptEncoding(tokenizer, text.lengths, separator, template=template)
    return TextEncoding(tokenizer, text.lengths, template=template)


def predictor_by_flags(arguments, card: TaskCard | None, text: InputSettings, job: Job, ranks: Ranks):
    """The model that the flags name, ready to answer the job's texts."""
    source = argparse.Namespace(**{**vars(arguments), "model_family": text.family})
    if card:
        tasks = card.tasks.values()
    else:
        tasks = (text.task,) if text.task else ()
    task_template = text.task.template if text.task else ""
    settings = EncodingSettings(
        text.lengths,
        text.separator,
        text.languages,
        template="\n".join([task_template, job.input_format or ""]),
    )
    predictor = load_predictor(
        source,
        settings,
        batch_size=arguments.batch_size,
        tasks=tasks,
        ranks=ranks,
        offload_folder=Path(arguments.output).parent if arguments.output else Path(),
    )
    warn_of_cut_labels(predictor.encoding, job.labels)
    return predictor


def _predict_file(arguments, text: InputSettings, job: Job, make_predictor: Callable, ranks: Ranks) -> None:
    """Rows of a file or of standard input."""
    stop = stop_requests()
    same_command = "the same command without --overwrite" if arguments.overwrite else "the same command"

    def check_stop(row_count: int) -> None:
        if agree_to_stop(ranks, stop):
            cause = stop.signal_name or "another rank was asked to stop"
            next_run = "resumes from there" if arguments.output else "starts again"
            raise Preempted(f"{cause}: stopped after {row_count} rows; {same_command} {next_run}")

    input_rows = source_by_flags(arguments, text)
    if arguments.output:
        settings = ranks.together(run_settings, arguments, text, job)
        output = ResumableOutput(arguments.output, settings, arguments.overwrite)
    else:
        output = StreamOutput(sys.stdout)
    try:
        # Libraries may print when they are first used, but standard output is for answers only.
        with stop.phase("evaluation"), contextlib.redirect_stdout(sys.stderr):
            read_count, answered_count = predict_rows(
                input_rows, output, job, make_predictor, ranks, arguments.window, check_stop
            )
    except torch.OutOfMemoryError as error:
        advice = f"; with a smaller one {same_command} resumes" if arguments.output else ""
        raise LackOfMemoryError(f"--batch_size {arguments.batch_size}: {short_message(error)}{advice}") from None
    _log_counts(arguments.input, read_count, answered_count)


def _log_counts(input_name: str, read_count: int, answered_count: int) -> None:
    """Says how many rows were answered, now and before."""
    if not read_count:
        logger.warning("%s has no rows", input_name)
    elif not answered_count:
        logger.info("all %d rows were answered before; --overwrite answers them again", read_count)
    elif read_count > answered_count:
        logger.info("%d rows answered, %d were answered before", answered_count, read_count - answered_count)
    else:
        logger.info("%d rows answered", answered_count)


def run_settings(arguments, text: InputSettings, job: Job) -> dict:
    """The settings that answers depend on, so neither the batch size nor the machine."""
    settings = {"model": model_fingerprint(arguments)}
    if text.task is not None:
        settings["task"] = f"{text.task.benchmark}/{text.task.name}"
        settings["entry"] = {name: field for name, field in text.task.entry.items() if name in TEXT_FIELDS}
    settings |= _without_none(dataclasses.asdict(job.decoding))
    settings["max_new_tokens"] = job.max_new_tokens
    settings["max_source_length"] = text.lengths.source
    settings["labels"] = job.labels
    settings |= _without_none(text.languages._asdict())
    settings["answer_separator"] = text.separator
    settings |= {name: getattr(arguments, name) for name in FLAGS_OF_ANSWERS}
    settings |= _without_none({name: getattr(arguments, name) for name in OPTIONAL_FLAGS_OF_ANSWERS})
    return settings


def _without_none(settings: dict) -> dict:
    return {name: setting for name, setting in settings.items() if setting is not None}


def predict_rows(
    input_rows: InputRows,
    output,
    job: Job,
    make_predictor: Callable,
    ranks: Ranks | None = None,
    window: int = WINDOW,
    check_stop: Callable[[int], None] = lambda row_count: None,
) -> tuple[int, int]:
    """Answers every row that has no answer yet. Every rank calls this; the main one reads and writes.

    Args:
      check_stop: called after every window with the rows done; what it raises ends the run, which can be resumed.

    Returns:
      how many rows the input has, and how many of them were answered now.

    Raises:
      DataError: a row cannot be read or does not belong to the task; the windows before it are written.
    """
    ranks = ranks or Ranks()
    predictor = None
    counts = AnswerCounts()
    windows = read_windows(input_rows, output, job, window) if ranks.is_main else None
    try:
        while True:
            requests, row_count, digest = ranks.together(lambda: next(windows))
            if not requests:
                break
            predictor = predictor or make_predictor()
            lines = job.lines(requests, predictor)
            ranks.together(output.append, lines, row_count, digest)
            counts.add(lines)
            check_stop(row_count)
        ranks.together(lambda: output.is_complete(row_count) or output.finish(row_count, digest))
    finally:
        output.close()
    counts.warn(job)
    return row_count, counts.answered


def read_windows(input_rows: InputRows, output, job: Job, window: int) -> Iterator[tuple[list[RowRequest], int, str]]:
    """The rows without an answer, in windows that begin at multiples of `window`; at the end, one without rows.

    Yields:
      requests, how many rows have been read, and the digest of those.

    Raises:
      DataError: the input is not the one that the answers belong to.
    """
    answered_count = output.open(window)
    if output.recorded_rows and output.overwrite:
        is_same_input = input_rows.begins_with(output.recorded_rows, output.recorded_digest)
        answered_count = answered_count if is_same_input else output.start_over()
    row_count = 0
    requests = []
    for row in input_rows.rows():
        row_count = row.index + 1
        if row_count == output.recorded_rows:
            output.check_input(row_count, input_rows.digest.hexdigest())
        if row_count > answered_count:
            with with_hints_about_columns():
                requests.append(job.request(row))
        if len(requests) == window:
            yield requests, row_count, input_rows.digest.hexdigest()
            requests = []
    output_count = max(answered_count, output.recorded_rows)
    if row_count < output_count:
        raise DataError(
            f"{input_rows.name} has {row_count} rows, but --output has answers for {output_count}; restore it, give "
            "another --output, or start over with --overwrite"
        )
    if requests and not output.is_complete(row_count):
        yield requests, row_count, input_rows.digest.hexdigest()
    yield [], row_count, input_rows.digest.hexdigest()
