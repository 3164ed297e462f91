"""The flags of `t5suite predict` and what the model's `task.json` says -> the plain parameters of a run.

>>> text = text_settings(read_task_card("runs/rte"), max_source_length=256)
WARNING: --max_source_length 256 differs from 512, which the model was trained with
>>> text.task.name, text.lengths.source, text.max_new_tokens
('rte', 256, 5)
"""

import contextlib
import dataclasses
import logging
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from t5suite.errors import ConfigError, Preempted
from t5suite.inference.decoding import Decoding
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
from t5suite.models.configs import first_line
from t5suite.models.loading import load_tokenizer
from t5suite.tasks.formatters import FITTED_FORMATTERS
from t5suite.tasks.registry import Lengths, Task, bind_fits, load_task
from t5suite.tasks.task_card import TaskCard, read_task_card
from t5suite.training.processes.ranks import Ranks
from t5suite.training.processes.signals import agree_to_stop, stop_requests
from t5suite.training.steps import start_logging

logger = logging.getLogger(__name__)

# Where neither the flags nor the task say how long texts and answers are, in tokens.
DEFAULT_SOURCE_LENGTH, DEFAULT_ANSWER_LENGTH = 512, 64


@dataclass(frozen=True)
class TextSettings:
    """What becomes of rows before and after the model.

    Attributes:
      task: None where rows hold finished texts only.
      max_new_tokens: the longest answer that the task needs.
      separator, family: of the model, where somebody says so.
    """

    task: Task | None
    lengths: Lengths
    max_new_tokens: int
    separator: str | None = None
    family: str | None = None


def text_settings(
    card: TaskCard | None,
    *,
    benchmark: str | None = None,
    dataset_name: str | None = None,
    task_file: str | None = None,
    raw: bool = False,
    max_source_length: int | None = None,
    answer_separator: str | None = None,
    model_family: str | None = None,
) -> TextSettings:
    """What the flags say, else the card, else the defaults; a flag that differs from the card warns.

    Raises:
      ConfigError: no such task, or several and none is named.
    """
    task = _task(card, benchmark, dataset_name, task_file, raw)
    known = card.lengths if card else Lengths(DEFAULT_SOURCE_LENGTH, DEFAULT_SOURCE_LENGTH)
    stored = {
        "max_source_length": (task.lengths(known) if task else known).source if card else None,
        "answer_separator": card.settings.get("answer_separator") if card else None,
        "model_family": card.family if card else None,
    }
    given = dict(max_source_length=max_source_length, answer_separator=answer_separator, model_family=model_family)
    for name, value in given.items():
        if None not in (value, stored[name]) and value not in (stored[name], "auto"):
            logger.warning("--%s %s differs from %s, which the model was trained with", name, value, stored[name])
    chosen = {name: stored[name] if value in (None, "auto") else value for name, value in given.items()}
    answer_length = card.max_answer_tokens.get(task.name) if card and task else None
    lengths = task.lengths(known) if task else known
    return TextSettings(
        task,
        lengths if max_source_length is None else lengths._replace(source=max_source_length),
        answer_length or DEFAULT_ANSWER_LENGTH,
        chosen["answer_separator"],
        chosen["model_family"],
    )


def _task(card, benchmark, dataset_name, task_file, raw: bool) -> Task | None:
    """The task that rows are formatted by."""
    if benchmark is not None and dataset_name is None:
        raise ConfigError(f"--benchmark {benchmark}: which of its tasks? Give --dataset_name")
    if benchmark is not None or task_file is not None:
        given = load_task(benchmark or (card and next(iter(card.tasks.values())).benchmark), dataset_name, task_file)
        known = card.tasks.get(dataset_name) if card else None
        if card and (
            known is None or (known.benchmark, known.entry["prefix"]) != (given.benchmark, given.entry["prefix"])
        ):
            names = ", ".join(f"{task.benchmark}/{name}" for name, task in card.tasks.items())
            logger.warning(
                "--benchmark %s --dataset_name %s differs from %s, which the model was trained on",
                benchmark,
                dataset_name,
                names,
            )
        return given
    if card is None:
        if dataset_name is not None:
            raise ConfigError(f"--dataset_name {dataset_name}: the model has no task.json; give --benchmark, too")
        return None
    if dataset_name is None and raw and len(card.tasks) > 1:
        return None
    return card.task(dataset_name)


def predict_by_flags(arguments) -> None:
    """`t5suite predict`, given its flags."""
    source = ModelSource(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(ModelSource)})
    check_accelerate_settings(source)
    ranks = join_processes(arguments.deepspeed, arguments.use_cpu)
    start_logging(ranks.is_main, disable_tqdm=True)
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
    decoding = Decoding(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Decoding)})
    labels = arguments.labels
    if labels is not None or text.family == "masked":
        idle = [name for name in WRITING_FLAGS if getattr(decoding, name) != getattr(Decoding(), name)]
        if idle or arguments.scores:
            raise ConfigError(f"--{(idle or ['scores'])[0]} has no effect: labels are chosen, and nothing is written")
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
    return bind_fits(load_tokenizer(arguments.tokenizer_name or arguments.model_name_or_path), text.lengths)


def given_labels(labels: str, text: TextSettings) -> list[str]:
    """`--labels a,b,c`, which may be others than the task's.

    Raises:
      ConfigError: fewer than two, or an encoder's head, which knows its own only.
    """
    found = [label for label in labels.split(",") if label]
    if len(found) < 2 or len(set(found)) < len(found):
        raise ConfigError(f"--labels {labels}: give two different labels or more, commas between")
    stored = text.task.label_words if text.task else None
    if text.family == "masked":
        raise ConfigError(f"--labels {labels}: an encoder's head knows its own labels only; give --labels alone")
    if stored and sorted(stored) != sorted(found):
        logger.warning("--labels %s differs from %s, which the model was trained with", labels, ",".join(stored))
    return found


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
    done = count.read - count.answered
    logger.info("%d rows answered%s", count.answered, f", {done} were answered before" if done else "")
    if not count.read:
        logger.warning("%s has no rows", arguments.input)


def unescaped(separator: str | None) -> str | None:
    r"""A separator as a shell passes it: `\n` is a line break."""
    return None if separator is None else separator.replace("\\n", "\n").replace("\\t", "\t")


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
# Settings of `Decoding` that choosing a label does not heed.
WRITING_FLAGS = tuple(field.name for field in dataclasses.fields(Decoding) if field.name != "seed")
