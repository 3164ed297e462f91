"""The flags of `t5suite predict` and what the model's `task.json` says -> a run.

>>> predict_by_flags(arguments)
INFO t5suite.inference.from_flags: 277 rows answered
"""

import contextlib
import dataclasses
import logging
import sys
from pathlib import Path

import torch

from t5suite.base.errors import ConfigError, Preempted
from t5suite.inference.interactive import converse
from t5suite.inference.loading import (
    ModelSource,
    check_accelerate_settings,
    join_processes,
    load_predictor,
    model_fingerprint,
)
from t5suite.inference.outputs import ResumableOutput, StreamOutput
from t5suite.inference.rows import RowSource
from t5suite.inference.running import Job, predict_rows
from t5suite.inference.texts import TextSettings, decoding_by_flags, given_labels, text_settings
from t5suite.models.configs import first_line
from t5suite.models.loading import load_tokenizer
from t5suite.tasks.formatters import FITTED_FORMATTERS
from t5suite.tasks.registry import bind_fits
from t5suite.tasks.targets import unescaped
from t5suite.tasks.task_card import read_task_card
from t5suite.training.processes.ranks import Ranks
from t5suite.training.processes.signals import agree_to_stop, stop_requests
from t5suite.training.steps import start_logging

logger = logging.getLogger(__name__)


def predict_by_flags(arguments) -> None:
    """`t5suite predict`, given its flags."""
    source = ModelSource(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(ModelSource)})
    check_accelerate_settings(source)
    ranks = join_processes(arguments.deepspeed, arguments.use_cpu)
    start_logging(ranks.is_main, disable_tqdm=not arguments.verbose, verbose=arguments.verbose)
    card = ranks.together(read_task_card, source.model_name_or_path)
    text = text_settings(
        card,
        benchmark=arguments.benchmark,
        dataset_name=arguments.dataset_name,
        task_file=arguments.task_file,
        raw=arguments.raw,
        max_source_length=arguments.max_source_length,
        answer_separator=unescaped(arguments.answer_separator),
        model_family=arguments.model_family,
    )
    job = job_of(arguments, text)
    folder = Path(arguments.output).parent if arguments.output else Path()

    def make_predictor():
        return load_predictor(
            dataclasses.replace(source, model_family=text.family),
            lengths=text.lengths,
            batch_size=arguments.batch_size,
            separator=text.separator,
            tasks=card.tasks.values() if card else () if text.task is None else (text.task,),
            ranks=ranks,
            folder=folder,
        )

    if arguments.interactive:
        if ranks.world_size > 1:
            raise ConfigError(f"--interactive: one process answers, but {ranks.world_size} were launched")
        converse(job, make_predictor(), as_json=arguments.json)
        return
    _predict_file(arguments, source, text, job, make_predictor, ranks)


def job_of(arguments, text: TextSettings) -> Job:
    """What is asked of every row, by the flags."""
    decoding, labels = decoding_by_flags(arguments, text), arguments.labels
    if labels not in (None, "task"):
        labels = given_labels(labels, text)
    return Job(
        text.task,
        arguments.raw,
        decoding,
        decoding.max_new_tokens or text.max_new_tokens,
        labels,
        arguments.scores,
        arguments.include_inputs,
        text.family,
        fits_of(arguments, text),
    )


def fits_of(arguments, text: TextSettings):
    """Whether a text is short enough: only asked by tasks that show as many examples as fit."""
    if text.task is None or text.task.entry.get("formatter") not in FITTED_FORMATTERS:
        return None
    name = arguments.tokenizer_name or arguments.model_name_or_path
    return bind_fits(load_tokenizer(name, arguments.model_revision, arguments.trust_remote_code), text.lengths)


def _predict_file(arguments, source: ModelSource, text: TextSettings, job: Job, make_predictor, ranks: Ranks) -> None:
    """Rows of a file or of standard input."""
    stop = stop_requests()

    def check_stop(rows: int) -> None:
        if agree_to_stop(ranks, stop):
            onward = "goes on from there" if arguments.output else "starts again"
            cause = stop.signal_name or "another rank was asked to stop"
            raise Preempted(f"{cause}: stopped after {rows} rows; the same command {onward}")

    rows = RowSource(arguments.input, arguments.input_type)
    output = StreamOutput(sys.stdout)
    if arguments.output:
        settings = ranks.together(run_settings, arguments, source, text, job)
        output = ResumableOutput(arguments.output, settings, arguments.overwrite)
    try:
        # Libraries print, too, when they are first used: standard output is for answers alone.
        with stop.phase("evaluation"), contextlib.redirect_stdout(sys.stderr):
            count = predict_rows(rows, output, job, make_predictor, ranks, arguments.window, check_stop)
    except torch.OutOfMemoryError as error:
        onward = "; the same command with a smaller one goes on" if arguments.output else ""
        raise ConfigError(f"--batch_size {arguments.batch_size}: {first_line(error)}{onward}") from None
    logger.info(said_of(count.answered, count.read - count.answered))
    if not count.read:
        logger.warning("%s has no rows", arguments.input)


def said_of(answered: int, before: int) -> str:
    """How a run over a file ended.

    >>> said_of(answered=7, before=3), said_of(answered=0, before=10)
    ('7 rows answered, 3 more had been before', 'all 10 rows had been answered before; --overwrite answers them anew')
    """
    if before and not answered:
        return f"all {before} rows had been answered before; --overwrite answers them anew"
    return f"{answered} rows answered" + (f", {before} more had been before" if before else "")


def run_settings(arguments, source: ModelSource, text: TextSettings, job: Job) -> dict:
    """What answers depend on; a batch's size and the machine are not among it."""
    labels = {} if job.labels is None else {"labels": job.labels}
    entry = {}
    if text.task is not None:
        kept = {name: value for name, value in text.task.entry.items() if name in TEXT_FIELDS}
        entry = {"task": f"{text.task.benchmark}/{text.task.name}", "entry": kept}
    changed = {name: value for name, value in dataclasses.asdict(job.decoding).items() if value is not None}
    return {
        "model": model_fingerprint(source),
        **entry,
        **changed,
        **labels,
        "max_new_tokens": job.max_new_tokens,
        "max_source_length": text.lengths.source,
        "answer_separator": text.separator,
        "raw": job.raw,
        "scores": job.scores,
        "include_inputs": job.inputs,
        "input_type": arguments.input_type,
        "dtype": source.dtype,
        "adapter_base": source.adapter_base,
    }


# What of a task's entry decides its texts.
TEXT_FIELDS = (
    "prefix text_column_name labels formatter target instruction input_format output_format max_input_tokens "
    "max_output_tokens"
).split()
