"""`t5suite predict`: a model is loaded and placed, rows go in, lines come out, window by window.

    >>> source = parse_arguments(["predict", "--model_name_or_path", "runs/rte"])
    >>> card = read_task_card("runs/rte")
    >>> predictor = load_predictor(source, lengths=card.lengths, batch_size=16)
    >>> job = Job(task=load_task("glue", "rte"), decoding=Decoding(), max_new_tokens=5)
    >>> predict_rows(RowSource("rows.jsonl"), ResumableOutput("answers.jsonl", {}), job, lambda: predictor)
    (277, 277)                                             # rows read, rows answered now

The main process reads and writes; all ranks answer. The model is loaded at the first row without an answer.
`--device_map` distributes a large model's layers over the devices of one process.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from t5suite.base.errors import ConfigError, DataError, Preempted
from t5suite.base.hub_commits import revision_to_read
from t5suite.inference.exported import ExportedPredictor, exported_kind, exported_predictor
from t5suite.inference.predictor import WINDOW, Job, Predictor, Request
from t5suite.inference.rows import ResumableOutput, RowSource, StreamOutput
from t5suite.inference.settings import (
    TextSettings,
    decoding_by_flags,
    given_labels,
    source_by_flags,
    template_by_flags,
    text_settings,
)
from t5suite.inference.web import serve
from t5suite.models.adapters import HEAD_TASKS
from t5suite.models.families import encoding_for, recognize_family
from t5suite.models.load_errors import short_message
from t5suite.models.loading import load_model, load_tokenizer
from t5suite.models.placement import check_alone, place_model
from t5suite.models.vocabulary import ensure_padding
from t5suite.tasks.formatters import FITTED_FORMATTERS
from t5suite.tasks.languages import Languages
from t5suite.tasks.task_card import read_task_card
from t5suite.tasks.templates import unescaped
from t5suite.tasks.tokenization import Lengths, bind_fits
from t5suite.training.processes.ranks import Ranks, check_meeting_place
from t5suite.training.processes.signals import agree_to_stop, stop_requests
from t5suite.training.run import start_logging
from t5suite.training.sharding.process_state import leave_group_at_exit
from t5suite.training.sharding.settings import DEEPSPEED, FSDP, PRECISION, is_set

logger = logging.getLogger(__name__)

# Of a file of weights, the size and this many parts are hashed: any training changes nearly all of them.
SAMPLED_PARTS, PART_BYTES = 64, 1 << 16
WEIGHTS_AND_SETTINGS = (".safetensors", ".bin", ".onnx", ".data", ".json", ".model")
# Files in a model's folder that do not affect its answers.
VOLATILE = ("manifest.json", "results.json", "trainer_state.json", "metrics.json", "progress.json", "position.json")


def load_predictor(
    source,
    *,
    lengths: Lengths,
    batch_size: int,
    separator: str | None = None,
    languages: Languages | None = None,
    tasks=(),
    ranks: Ranks | None = None,
    folder=None,
    template: str = "",
) -> Predictor | ExportedPredictor:
    """The model, or its exported files, ready to answer.

    Args:
      source: the flags of `t5suite predict` that say which model, and on which devices.
      separator: between a decoder-only model's prompt and answer.
      languages: of the texts, for a model that has languages.
      tasks: those that an encoder's head is for.
      folder: where `--device_map` may offload weights to.
      template: texts around every row, whose control tokens are tokens (`tasks.tokens`).

    Raises:
      ConfigError: no such model, or flags that it does not support.
    """
    ranks = ranks or Ranks()
    if exported_kind(source.model_name_or_path):
        settings = {"lengths": lengths, "batch_size": batch_size, "separator": separator}
        return exported_predictor(source, **settings, world_size=ranks.world_size, template=template)
    tokenizer, model = load_parts(source, tasks)
    family, encoding = recognize_family(model).name, encoding_for(model, tokenizer, lengths, separator, languages)
    encoding = dataclasses.replace(encoding, template=template)
    device = process_device(source.use_cpu)
    if source.device_map is None:
        model.to(device)
    else:
        check_alone(f"--device_map {source.device_map}", ranks.world_size, None)
        places = {"device_map": source.device_map, "max_memory": source.max_memory, "folder": folder}
        place_model(model, device=device, trains=False, **places)
    return Predictor(model, encoding, batch_size, family, ranks, device)


def load_parts(source, tasks=()) -> tuple:
    """`(tokenizer, model)`, the model in main memory.

    Raises:
      ConfigError: no such model, or an encoder without a trained head, which would choose at random.
    """
    options = {"revision": source.model_revision, "trust_remote_code": source.trust_remote_code}
    flag = "--tokenizer_name" if source.tokenizer_name else "--model_name_or_path"
    tokenizer = load_tokenizer(source.tokenizer_name or source.model_name_or_path, flag=flag, **options)
    ensure_padding(tokenizer)
    options |= {name: getattr(source, name) for name in ("adapter_base", "attn_implementation", "model_class")}
    name, family = source.model_name_or_path, source.model_family
    model = load_model(name, tokenizer=tokenizer, family=family, tasks=tasks, **options)
    trained = any(name.endswith(tuple(HEAD_TASKS)) for name in model.config.architectures or ())
    trained = trained or hasattr(model, "peft_config") or source.model_class is not None
    if recognize_family(model).has_head and not trained:
        raise ConfigError(
            f"{type(model).__name__}: this encoder has no trained head for labels; fine-tune it first, or take a model "
            "that writes (T5, BART, GPT-2)"
        )
    return tokenizer, model.to(getattr(torch, source.dtype)).eval()


def process_device(use_cpu: bool = False) -> torch.device:
    """This process's device: the GPU of its local rank, else the CPU."""
    if use_cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    number = int(os.environ.get("LOCAL_RANK", "0"))
    if number >= torch.cuda.device_count():
        raise ConfigError(f"local rank {number}, but there are {torch.cuda.device_count()} GPUs; start fewer processes")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def join_processes() -> Ranks:
    """The ranks of `torchrun`, `accelerate launch` or `srun`, which communicate over gloo."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not torch.distributed.is_initialized():
        check_meeting_place()
        torch.distributed.init_process_group("gloo")
        leave_group_at_exit()
    return Ranks.of_process()


def check_accelerate_settings(source) -> None:
    """Refuses training settings in `accelerate launch`'s configuration: predict has its own flags for them.

    Raises:
      ConfigError: its configuration asks for something that the flags do not.
    """
    precision, found = os.environ.get(PRECISION, "no").lower(), [f"{n}=true" for n in (DEEPSPEED, FSDP) if is_set(n)]
    if precision != "no" and (precision, source.dtype) != ("bf16", "bfloat16"):
        found.append(f"{PRECISION}={precision}")
    if found:
        raise ConfigError(
            f"accelerate's configuration ({', '.join(found)}) is for training; predicting has --device_map balanced "
            f"for a model larger than a device, and --dtype float32 (given: {source.dtype}) or bfloat16"
        )


def model_fingerprint(source) -> str:
    """Identifies a model: a hash of a folder's contents (of large files, parts), or the hub name and commit.

    >>> model_fingerprint(source)
    'sha256:5b0c...'
    """
    folder = Path(source.model_name_or_path)
    if not folder.is_dir():
        revision = revision_to_read("model", source.model_name_or_path, source.model_revision)
        return f"{source.model_name_or_path}@{revision or 'main'}"
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.suffix in WEIGHTS_AND_SETTINGS):
        if path.name in VOLATILE or not path.is_file():  # loading refuses a broken link by name
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for start in (*range(0, size, max(PART_BYTES, size // SAMPLED_PARTS)), max(0, size - PART_BYTES)):
                file.seek(start)
                digest.update(file.read(PART_BYTES))
    return f"sha256:{digest.hexdigest()}"


def predict_by_flags(arguments) -> None:
    """`t5suite predict`, given its flags."""
    check_accelerate_settings(arguments)
    ranks = join_processes()
    start_logging(ranks.is_main, disable_tqdm=not arguments.verbose, verbose=arguments.verbose)
    card = ranks.together(read_task_card, arguments.model_name_or_path)
    names = ("benchmark", "dataset_name", "task_file", "raw", "max_source_length", "model_family")
    flags = {name: getattr(arguments, name) for name in names}
    languages = Languages(*(getattr(arguments, name) for name in Languages._fields))
    text = text_settings(card, answer_separator=unescaped(arguments.answer_separator), languages=languages, **flags)
    decoding, labels = decoding_by_flags(arguments, text), given_labels(arguments.labels, text)
    longest = decoding.max_new_tokens or text.max_new_tokens
    also = {"scores": arguments.scores, "inputs": arguments.include_inputs}
    fits = fits_of(arguments, text)
    job = Job(
        text.task,
        arguments.raw,
        decoding,
        longest,
        labels,
        family=text.family,
        fits=fits,
        languages=text.languages,
        input_format=template_by_flags(arguments, text),
        **also,
    )
    source = argparse.Namespace(**{**vars(arguments), "model_family": text.family})

    def make_predictor():
        return load_predictor(
            source,
            lengths=text.lengths,
            batch_size=arguments.batch_size,
            separator=text.separator,
            languages=text.languages,
            tasks=card.tasks.values() if card else () if text.task is None else (text.task,),
            ranks=ranks,
            folder=Path(arguments.output).parent if arguments.output else Path(),
            template="\n".join([text.task.template if text.task else "", job.input_format or ""]),
        )

    is_started = arguments.output and Path(arguments.output).exists()
    if not arguments.web and not Path(arguments.model_name_or_path).is_dir() and not is_started:
        predictor = make_predictor()  # a hub's model that is not there is the cause, not the rows
        _predict_file(arguments, text, job, lambda: predictor, ranks)
    elif not arguments.web:
        _predict_file(arguments, text, job, make_predictor, ranks)
    elif ranks.world_size > 1:
        raise ConfigError(f"--web: one process answers, but {ranks.world_size} were launched")
    else:
        serve(job, make_predictor(), arguments.model_name_or_path)


def fits_of(arguments, text: TextSettings):
    """Whether a text is short enough: a function for tasks that show as many examples as fit, else None."""
    if text.task is None or text.task.entry.get("formatter") not in FITTED_FORMATTERS:
        return None
    name = arguments.tokenizer_name or arguments.model_name_or_path
    tokenizer = load_tokenizer(name, arguments.model_revision, arguments.trust_remote_code)
    return bind_fits(tokenizer, text.lengths, text.task.template)


def _predict_file(arguments, text: TextSettings, job: Job, make_predictor, ranks: Ranks) -> None:
    """Rows of a file or of standard input."""
    stop = stop_requests()

    def check_stop(rows: int) -> None:
        if agree_to_stop(ranks, stop):
            onward = "resumes from there" if arguments.output else "starts again"
            cause = stop.signal_name or "another rank was asked to stop"
            raise Preempted(f"{cause}: stopped after {rows} rows; the same command {onward}")

    rows, output = source_by_flags(arguments, text), StreamOutput(sys.stdout)
    if arguments.output:
        settings = ranks.together(run_settings, arguments, text, job)
        output = ResumableOutput(arguments.output, settings, arguments.overwrite)
    try:
        # Libraries may print when they are first used, but standard output is for answers only.
        with stop.phase("evaluation"), contextlib.redirect_stdout(sys.stderr):
            read, answered = predict_rows(rows, output, job, make_predictor, ranks, arguments.window, check_stop)
    except torch.OutOfMemoryError as error:
        onward = "; the same command with a smaller one resumes" if arguments.output else ""
        raise ConfigError(f"--batch_size {arguments.batch_size}: {short_message(error)}{onward}") from None
    if not read:
        logger.warning("%s has no rows", arguments.input)
    elif not answered:
        logger.info("all %d rows were answered before; --overwrite answers them again", read)
    else:
        before = f", {read - answered} were answered before" if read > answered else ""
        logger.info("%d rows answered%s", answered, before)


def run_settings(arguments, text: TextSettings, job: Job) -> dict:
    """The settings that answers depend on, so neither the batch size nor the machine."""
    settings = {"model": model_fingerprint(arguments)}
    if text.task is not None:
        kept = {name: value for name, value in text.task.entry.items() if name in TEXT_FIELDS}
        settings |= {"task": f"{text.task.benchmark}/{text.task.name}", "entry": kept}
    settings |= {name: value for name, value in dataclasses.asdict(job.decoding).items() if value is not None}
    settings |= {"max_new_tokens": job.max_new_tokens, "max_source_length": text.lengths.source, "labels": job.labels}
    flags = ("raw", "input_format", "scores", "include_inputs", "input_type", "dtype", "adapter_base")
    flags += tuple(name for name in ("text_column", "delimiter") if getattr(arguments, name) is not None)
    settings |= {name: value for name, value in text.languages._asdict().items() if value is not None}
    return {**settings, "answer_separator": text.separator, **{name: getattr(arguments, name) for name in flags}}


# Fields of a task's entry that determine its texts.
TEXT_FIELDS = (
    "prefix text_column_name labels formatter target target_decimals instruction input_format output_format "
    "max_input_tokens max_output_tokens"
).split()


def predict_rows(
    source: RowSource,
    output,
    job: Job,
    make_predictor: Callable,
    ranks: Ranks | None = None,
    window: int = WINDOW,
    check_stop: Callable[[int], None] = lambda rows: None,
) -> tuple[int, int]:
    """Answers every row that has no answer yet. Every rank calls this; the main one reads and writes.

    Args:
      check_stop: called after every window with the rows done; what it raises ends the run, which can be resumed.

    Returns:
      how many rows the input has, and how many of them were answered now.

    Raises:
      DataError: a row cannot be read or does not belong to the task; the windows before it are written.
    """
    ranks, predictor, answered = ranks or Ranks(), None, 0
    windows = read_windows(source, output, job, window) if ranks.is_main else None
    try:
        while True:
            requests, rows, digest = ranks.together(lambda: next(windows))
            if not requests:
                break
            predictor = predictor or make_predictor()
            lines = job.lines(requests, predictor)
            ranks.together(output.append, lines, rows, digest)
            answered += len(lines)
            check_stop(rows)
        ranks.together(lambda: output.is_complete(rows) or output.finish(rows, digest))
    finally:
        output.close()
    return rows, answered


def read_windows(source: RowSource, output, job: Job, window: int) -> Iterator[tuple[list[Request], int, str]]:
    """The rows without an answer, in windows that begin at multiples of `window`; at the end, one without rows.

    Yields:
      requests, how many rows have been read, and the digest of those.

    Raises:
      DataError: the input is not the one that the answers belong to.
    """
    kept, rows, requests = output.open(window), 0, []
    for row in source.rows():
        rows = row.index + 1
        if rows == output.known_rows:
            output.check_input(rows, source.digest.hexdigest())
        if rows > kept:
            requests.append(job.request(row))
        if len(requests) == window:
            yield requests, rows, source.digest.hexdigest()
            requests = []
    if rows < max(kept, output.known_rows):
        raise DataError(
            f"{source.name} has {rows} rows, but --output has answers for {max(kept, output.known_rows)}; restore "
            "it, give another --output, or start over with --overwrite"
        )
    if requests and not output.is_complete(rows):
        yield requests, rows, source.digest.hexdigest()
    yield [], rows, source.digest.hexdigest()
