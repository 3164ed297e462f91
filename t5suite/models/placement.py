"""Where a model's weights are, if not all on one device.

    >>> place_model(model, device_map="balanced", max_memory="0=10GiB,1=10GiB", device=torch.device("cuda:0"))
    >>> by_device(model)
    {'0': ['shared', 'encoder'], '1': ['decoder', 'lm_head']}

Naive model parallelism: layers are distributed over the devices in their order, and accelerate's hooks move activations
from one to the next, so that one device works at a time. It makes a model fit, not fast: to use several devices at
once, shard it (FSDP, DeepSpeed). Before that, the whole model is in memory.
"""

import importlib.util
import logging
import re
import shutil
import weakref
from pathlib import Path

import torch

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import listed
from t5suite.models.caches import CACHE

logger = logging.getLogger(__name__)

# Where weights that fit no device are kept; hooks fetch them for every forward pass, and they cannot be trained.
OFFLOADED = ("cpu", "disk")
OFFLOAD_FOLDER = ".offloaded-weights"
SIZE = re.compile(r"\d+(\.\d+)? ?([KMGT]i?B)?", re.IGNORECASE)


def check_flags(device_map: str | None, max_memory: str | None, embedding_on_cpu: bool) -> None:
    """Checks the flags without a model: names, sizes, and whether they exclude each other."""
    if max_memory is not None and device_map is None:
        raise ConfigError(f"--max_memory {max_memory} has no effect without --device_map balanced")
    if embedding_on_cpu and device_map is not None:
        raise ConfigError(
            f"--embedding_on_cpu and --device_map {device_map} both set the device of the embedding; give one of them"
        )
    parse_max_memory(max_memory)


def parse_max_memory(text: str | None) -> dict[int | str, str] | None:
    """`--max_memory` as accelerate takes it: devices by their number, and cpu.

    >>> parse_max_memory("0=10GiB,cpu=30GiB")
    {0: '10GiB', 'cpu': '30GiB'}

    Raises:
      ConfigError: a part that is not `DEVICE=SIZE`.
    """
    if text is None:
        return None
    found = {}
    for part in text.split(","):
        device, equals, size = (piece.strip() for piece in part.partition("="))
        if not equals or not (device == "cpu" or device.isdigit()) or not SIZE.fullmatch(size):
            raise ConfigError(f"--max_memory {text}: {part!r} is not DEVICE=SIZE, such as 0=10GiB or cpu=30GiB")
        found[int(device) if device.isdigit() else device] = size if SIZE.fullmatch(size)[2] else int(float(size))
    return found


def place_model(
    model,
    *,
    device_map: str | None = None,
    max_memory: str | None = None,
    embedding_on_cpu: bool = False,
    device: torch.device,
    trains: bool = True,
    folder=None,
) -> None:
    """Applies `--device_map`, `--max_memory` and `--embedding_on_cpu`; without them the trainer places the model.

    Args:
      device: where the batches are.
      trains: whether the model is trained, which offloaded weights do not allow.
      folder: where weights may be offloaded (the run's directory); they are deleted with the model.

    Raises:
      ConfigError: the flags do not fit this model or these devices.
    """
    if embedding_on_cpu:
        if device.type == "cpu":
            logger.warning("--embedding_on_cpu saves nothing here: the whole model is on the CPU")
        keep_embedding_on_cpu(model, device)
    if device_map is None:
        return
    placed = device_map_for(model, device_map, parse_max_memory(max_memory))
    numbers = {place for place in placed.values() if place not in OFFLOADED}
    count = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    if numbers and max(numbers) >= count:
        raise ConfigError(f"--device_map {device_map}: device {max(numbers)} is not there; this machine has {count}")
    if set(placed.values()) == {"cpu" if device.type == "cpu" else device.index or 0}:
        logger.warning("--device_map %s has no effect: the whole model fits %s", device_map, device)
        return
    if len(set(placed.values())) == 1 and "disk" not in placed.values():
        raise ConfigError(
            f"--device_map {device_map} puts the whole model on {next(iter(placed.values()))}, but batches are on "
            f"{device}: choose the device by CUDA_VISIBLE_DEVICES, without --device_map"
        )
    offloaded = sorted(name for name, place in placed.items() if place == "disk" or (place == "cpu" and numbers))
    if trains and offloaded:
        raise ConfigError(
            f"--device_map {device_map}: {listed(offloaded)} do not fit the devices and would be fetched from the "
            f"{'disk' if 'disk' in placed.values() else 'CPU'} for every batch: that can be evaluated (--eval_only), "
            "not trained. Give more --max_memory or devices, or let DeepSpeed offload (--deepspeed zero3_offload)"
        )
    _dispatch(model, placed, folder)
    logger.info("--device_map %s: %s", device_map, ", ".join(f"{k}: {listed(v)}" for k, v in by_device(model).items()))


def device_map_for(model, wanted: str, max_memory: dict | None) -> dict[str, int | str]:
    """Module (or parameter) -> device: a number, 'cpu' or 'disk'. The model may be on the meta device.

    Blocks are never split, and tied weights are on one device.
    """
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    whole = list(model._no_split_modules or [])
    if wanted != "sequential":
        max_memory = get_balanced_memory(model, max_memory, no_split_module_classes=whole)
    return dict(infer_auto_device_map(model, max_memory=max_memory, no_split_module_classes=whole))


def _dispatch(model, placed: dict, folder) -> None:
    """Moves every module to its device and hooks it, so that activations follow."""
    from accelerate import dispatch_model

    place = None
    if "disk" in placed.values():
        if folder is None:
            raise ConfigError("--device_map: weights would be offloaded to disk, but there is no folder for them")
        place = str(Path(folder) / OFFLOAD_FOLDER)
        shutil.rmtree(place, ignore_errors=True)  # files of another model would be read instead of its own
        Path(place).mkdir(parents=True)
        weakref.finalize(model, shutil.rmtree, place, ignore_errors=True)
    if set(placed) == {""}:  # accelerate 1.15 offloads nothing under "", the whole model: its parts are named instead
        held = [*model.named_children(), *model.named_parameters(recurse=False), *model.named_buffers(recurse=False)]
        placed = {name: placed[""] for name, _ in held}
    logging.getLogger("transformers.trainer").addFilter(_is_news)
    dispatch_model(model, device_map=placed, offload_dir=place, force_hooks=place is not None)


def keep_embedding_on_cpu(model, device: torch.device) -> None:
    """Puts the model on the device except its embedding matrix, which stays on the CPU: saves rows x width x 4 bytes
    there, and as much again for the gradient and for each of the optimizer's moments.

    Tokens are looked up on the CPU and the vectors sent to the device; their gradients come back, so that the
    optimizer steps a parameter on the CPU.

    Raises:
      ConfigError: the output layer is the same matrix, which the device needs for its logits.
    """
    from accelerate.utils import send_to_device

    matrix = model.get_input_embeddings().weight
    output = model.get_output_embeddings()
    if output is not None and output.weight is matrix:
        raise ConfigError(
            "--embedding_on_cpu: the model's output layer is the embedding matrix itself, which the device needs; "
            "use a model with a separate output layer (T5 v1.1, or --config_overrides tie_word_embeddings=False)"
        )

    def inputs_to_device(module, args, kwargs):
        return send_to_device(args, device), send_to_device(kwargs, device, skip_keys=[CACHE])

    def move(module) -> None:
        """The largest parts that do not hold the matrix."""
        if any(parameter is matrix for parameter in module.parameters()):
            for child in module.children():
                move(child)
        else:
            module.to(device)

    move(model)
    names = []
    for name, module in model.named_modules():
        if getattr(module, "weight", None) is matrix:
            module.register_forward_pre_hook(lambda module, args: (args[0].to(module.weight.device), *args[1:]))
            module.register_forward_hook(lambda module, args, vectors: vectors.to(device))
            names.append(name)
        elif any(parameter is matrix for parameter in module.parameters()):
            # transformers creates tensors on the device of a model's first weight, which is the matrix.
            module.register_forward_pre_hook(inputs_to_device, with_kwargs=True)
    # Trainer and accelerate do not move a model that has this map; the string "cpu" in it would mean offloaded.
    logging.getLogger("transformers.trainer").addFilter(_is_news)
    model.hf_device_map = {**dict.fromkeys(names, matrix.device), "": device}


def _is_news(record: logging.LogRecord) -> bool:
    """False for transformers' message that a model is already on several devices."""
    return "already on multiple devices" not in record.getMessage()


def by_device(model) -> dict[str, list[str]]:
    """The modules on each device, for logs and manifests; empty for a model that is on one.

    >>> by_device(model)
    {'cpu': ['shared', 'encoder.embed_tokens', 'decoder.embed_tokens'], 'cuda:0': ['the rest']}
    """
    found: dict[str, list[str]] = {}
    for name, device in (getattr(model, "hf_device_map", None) or {}).items():
        found.setdefault(str(device), []).append(name or "the rest")
    return found


def check_alone(flag: str, world_size: int, sharded: str | None = None) -> None:
    """Checks that a model on several devices has one process and is not sharded.

    Args:
      sharded: what shards the model already: 'DeepSpeed' or 'FSDP'.

    Raises:
      ConfigError: it is sharded, or several processes were launched.
    """
    if sharded:
        raise ConfigError(f"{flag} and {sharded} both place the weights: leave {flag} out, {sharded} shards them")
    if world_size > 1:
        raise ConfigError(
            f"{flag} spreads one model over the devices of one process, but {world_size} processes were launched; "
            "start one process with python, or shard the model over them with FSDP or DeepSpeed"
        )


# ---------------------------------------------------------------------------------------------------------------------
# Matrices in 8 or 4 bits

KINDS = ("8bit", "4bit")


def quantization_of(load_in_8bit: bool, load_in_4bit: bool) -> str | None:
    """What the two flags say.

    >>> quantization_of(False, True)
    '4bit'

    Raises:
      ConfigError: both; bitsandbytes is not installed.
    """
    if not (load_in_8bit or load_in_4bit):
        return None
    if load_in_8bit and load_in_4bit:
        raise ConfigError("--load_in_8bit and --load_in_4bit: give one of them")
    kind = "4bit" if load_in_4bit else "8bit"
    if importlib.util.find_spec("bitsandbytes") is None:
        install = "pip install 't5suite[quantization]'"
        raise ConfigError(f"--load_in_{kind} needs bitsandbytes, which is not installed: {install}")
    return kind


def quantization_options(kind: str | None, name: str | None, scratch: bool) -> dict:
    """The options of `from_pretrained`; none without a kind.

    Raises:
      ConfigError: weights that are random.
    """
    if kind is None:
        return {}
    if scratch or name is None:
        raise ConfigError(
            f"--load_in_{kind} is for trained weights below an adapter; these would be random: leave "
            f"it out, or give --model_name_or_path alone"
        )
    from transformers import BitsAndBytesConfig

    if kind == "8bit":
        config = BitsAndBytesConfig(load_in_8bit=True)
    else:
        computed = torch.bfloat16 if torch.cuda.is_available() and torch.cuda.is_bf16_supported() else torch.float32
        config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=computed)
    device = torch.cuda.current_device() if torch.cuda.is_available() else "cpu"
    return {"quantization_config": config, "device_map": {"": device}}


def is_quantized(model) -> bool:
    """Whether a model's matrices are in 8 or 4 bits."""
    return bool(getattr(model, "is_quantized", False))
