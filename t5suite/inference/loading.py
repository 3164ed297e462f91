"""A model for predicting: its weights, placed or cut into pieces, and the text that it was trained on.

    >>> source = ModelSource("runs/rte")
    >>> card = read_task_card("runs/rte")
    >>> predictor = load_predictor(source, lengths=card.lengths, batch_size=16)
    >>> model_fingerprint(source)
    'sha256:5b0c...'

Under ZeRO-3 a model is made whole on every rank, then cut: what a GPU holds is its share of the weights, and of each
layer what is being computed. `--device_map` deals layers out to one process's devices instead.
"""

import contextlib
import dataclasses
import hashlib
import logging
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from t5suite.base.errors import ConfigError, Preempted
from t5suite.inference.outputs import ResumableOutput, StreamOutput
from t5suite.inference.predictor import Predictor
from t5suite.inference.rows import RowSource
from t5suite.inference.running import (
    Job,
    converse,
    predict_rows,
)
from t5suite.inference.settings import TextSettings, decoding_by_flags, given_labels, text_settings
from t5suite.models.configs import first_line
from t5suite.models.families import family_of_model
from t5suite.models.loading import encoding_for, load_model, load_tokenizer
from t5suite.models.own_models import OwnModel
from t5suite.models.placement import check_alone, place_model
from t5suite.models.vocabulary import ensure_padding
from t5suite.tasks.formatters import FITTED_FORMATTERS
from t5suite.tasks.registry import Lengths, bind_fits
from t5suite.tasks.targets import unescaped
from t5suite.tasks.task_card import read_task_card
from t5suite.training.processes.ranks import Ranks, check_meeting_place
from t5suite.training.processes.signals import agree_to_stop, stop_requests
from t5suite.training.run import start_logging
from t5suite.training.sharding.deepspeed import read_deepspeed
from t5suite.training.sharding.process_state import prepare_for_deepspeed, start_deepspeed
from t5suite.training.sharding.settings import DEEPSPEED, FSDP, PRECISION, is_set

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# A file of weights counts by its size and by so many parts of it: any training changes nearly all of them.
SAMPLED_PARTS, PART_BYTES = 64, 1 << 16


@dataclass(frozen=True)
class ModelSource:
    """Where a model comes from, by the flags of the same names."""

    model_name_or_path: str
    tokenizer_name: str | None = None
    model_family: str | None = None
    model_class: str | None = None
    model_revision: str | None = None
    adapter_base: str | None = None
    attn_implementation: str | None = None
    dtype: str = "float32"
    device_map: str | None = None
    max_memory: str | None = None
    deepspeed: str | None = None
    use_cpu: bool = False
    trust_remote_code: bool = False


def load_predictor(
    source: ModelSource,
    *,
    lengths: Lengths,
    batch_size: int,
    separator: str | None = None,
    tasks=(),
    ranks: Ranks | None = None,
    folder=None,
) -> Predictor:
    """The model, ready to answer.

    Args:
      separator: between a decoder-only model's prompt and answer.
      tasks: those that an encoder's head is for.
      folder: where `--device_map` may offload weights to.

    Raises:
      ConfigError: no such model, or what the flags say cannot be done with it.
    """
    ranks = ranks or Ranks()
    tokenizer, model = load_parts(source, tasks)
    device = process_device(source.use_cpu)
    family, encoding = family_of_model(model), encoding_for(model, tokenizer, lengths, separator)
    model = placed(model, source, device, ranks, folder)
    synced = source.deepspeed is not None and ranks.world_size > 1
    return Predictor(model, encoding, batch_size, family, ranks, synced, device)


def load_parts(source: ModelSource, tasks=()) -> tuple:
    """`(tokenizer, model)`, the model in main memory."""
    tokenizer = load_tokenizer(
        source.tokenizer_name or source.model_name_or_path,
        source.model_revision,
        source.trust_remote_code,
        flag="--tokenizer_name" if source.tokenizer_name else "--model_name_or_path",
    )
    ensure_padding(tokenizer)
    model = load_model(
        source.model_name_or_path,
        tokenizer=tokenizer,
        family=source.model_family,
        tasks=tasks,
        adapter_base=source.adapter_base,
        attn_implementation=source.attn_implementation,
        revision=source.model_revision,
        trust_remote_code=source.trust_remote_code,
        model_class=source.model_class,
    )
    check_head(model)
    return tokenizer, model.to(DTYPES[source.dtype]).eval()


def placed(model, source: ModelSource, device, ranks: Ranks, folder):
    """The model where its flags say: in pieces on all ranks, layer by layer on several devices, or whole on one."""
    if source.deepspeed is not None:
        return cut_into_pieces(model, source.deepspeed)
    if source.device_map is None:
        return model.to(device)
    check_alone(f"--device_map {source.device_map}", ranks.world_size, None)
    memory = source.max_memory
    place_model(model, device_map=source.device_map, max_memory=memory, device=device, trains=False, folder=folder)
    return model


def check_head(model) -> None:
    """An encoder without a trained head would choose at random.

    Raises:
      ConfigError: it has none.
    """
    trained = any("SequenceClassification" in name for name in model.config.architectures or ())
    trained = trained or hasattr(model, "peft_config") or isinstance(model, OwnModel)
    if family_of_model(model) == "masked" and not trained:
        raise ConfigError(
            f"{type(model).__name__}: this encoder has no trained head for labels; fine-tune it first, or take a model "
            "that writes (T5, BART, GPT-2)"
        )


def process_device(use_cpu: bool = False) -> torch.device:
    """This process's device: the GPU of its local rank, else the CPU."""
    if use_cpu or not torch.cuda.is_available():
        return torch.device("cpu")
    number = int(os.environ.get("LOCAL_RANK", "0"))
    if number >= torch.cuda.device_count():
        raise ConfigError(f"local rank {number}, but there are {torch.cuda.device_count()} GPUs; start fewer processes")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def join_processes(deepspeed: str | None = None, use_cpu: bool = False) -> Ranks:
    """The ranks of `torchrun`, `accelerate launch` or `srun`; what they tell each other goes over gloo.

    Pieces of weights go from GPU to GPU, so DeepSpeed needs NCCL there.
    """
    if deepspeed is not None:
        os.environ.setdefault("DS_ACCELERATOR", "cuda" if process_device(use_cpu).type == "cuda" else "cpu")
        prepare_for_deepspeed()
    if (deepspeed is None and int(os.environ.get("WORLD_SIZE", "1")) == 1) or torch.distributed.is_initialized():
        return Ranks.of_process()
    check_meeting_place()
    on_gpu = deepspeed is not None and process_device(use_cpu).type == "cuda"
    torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    if deepspeed is not None:
        start_deepspeed()
    return Ranks.of_process()


def check_accelerate_settings(source: ModelSource) -> None:
    """What `accelerate launch` was told beside the number of processes is told to predict by flags of its own.

    Raises:
      ConfigError: its configuration asks for what no flag does.
    """
    sharding = next((name for name in (DEEPSPEED, FSDP) if is_set(name)), None)
    if sharding:
        raise ConfigError(
            f"accelerate's configuration ({sharding}=true) is for training; to share the weights among the ranks leave "
            "it out and give --deepspeed zero3"
        )
    precision = os.environ.get(PRECISION, "no").lower()
    if precision != "no" and (precision, source.dtype) != ("bf16", "bfloat16"):
        raise ConfigError(
            f"{PRECISION}={precision} (accelerate's configuration) and --dtype {source.dtype} ask for different "
            "precisions; predicting knows --dtype float32 and --dtype bfloat16"
        )


def cut_into_pieces(model, deepspeed: str):
    """The model with its weights shared among the ranks (ZeRO-3), each put together where it is used.

    Raises:
      ConfigError: the file is no ZeRO-3 configuration, or deepspeed is not installed.
    """
    try:
        import deepspeed as library
    except ImportError:
        raise ConfigError("--deepspeed needs deepspeed: pip install 't5suite[deepspeed]'") from None
    config, name = read_deepspeed(deepspeed)
    zero = config.get("zero_optimization", {})
    if zero.get("stage") != 3:
        raise ConfigError(
            f"--deepspeed {name}: stage {zero.get('stage')}; predicting needs stage 3, which cuts weights"
        )
    settled = {key: value for key, value in zero.items() if value != "auto" and key != "offload_optimizer"}
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": settled}
    if next(model.parameters()).dtype == torch.bfloat16:
        config["bf16"] = {"enabled": True}
    engine, *_ = library.initialize(model=model, config=config)
    engine.module.eval()
    return engine.module


def model_fingerprint(source: ModelSource) -> str:
    """What tells a model from others: the contents of a folder, in parts where they are large; a hub name as it is."""
    folder = Path(source.model_name_or_path)
    if not folder.is_dir():
        return f"{source.model_name_or_path}@{source.model_revision or 'main'}"
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.suffix in (".safetensors", ".bin", ".json", ".model")):
        if path.name in VOLATILE:
            continue
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        digest.update(_sampled(path))
    return f"sha256:{digest.hexdigest()}"


def _sampled(path: Path) -> bytes:
    """The file's digest; of a large one, that of parts evenly spread over it."""
    size, digest = path.stat().st_size, hashlib.sha256()
    with path.open("rb") as file:
        if size <= SAMPLED_PARTS * PART_BYTES:
            digest.update(file.read())
        else:
            for part in range(SAMPLED_PARTS):
                file.seek(part * (size - PART_BYTES) // (SAMPLED_PARTS - 1))
                digest.update(file.read(PART_BYTES))
    return digest.digest()


# What lies beside a model and says nothing about its answers.
VOLATILE = ("manifest.json", "results.json", "trainer_state.json", "metrics.json", "progress.json", "position.json")


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
