"""A model for predicting: its weights, placed or cut into pieces, and the text that it was trained on.

    >>> source = ModelSource("runs/rte")
    >>> card = read_task_card("runs/rte")
    >>> predictor = load_predictor(source, lengths=card.lengths, batch_size=16)
    >>> model_fingerprint(source)
    'sha256:5b0c...'

Under ZeRO-3 a model is made whole on every rank, then cut: what a GPU holds is its share of the weights, and of each
layer what is being computed. `--device_map` deals layers out to one process's devices instead.
"""

import hashlib
import logging
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from t5suite.base.errors import ConfigError
from t5suite.inference.predictor import Predictor
from t5suite.models.families import family_of_model
from t5suite.models.family_encodings import encoding_for
from t5suite.models.loading import load_model, load_tokenizer
from t5suite.models.own_models import OwnModel
from t5suite.models.placement import check_alone, place_model
from t5suite.models.vocabulary import ensure_padding
from t5suite.tasks.registry import Lengths
from t5suite.training.processes.ranks import Ranks, check_meeting_place
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
