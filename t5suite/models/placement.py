"""Where a model's weights are, if not all on one device.

    >>> place_model(model, device_map="balanced", max_memory="0=10GiB,1=10GiB", device=torch.device("cuda:0"))
    >>> by_device(model)
    {'0': ['shared', 'encoder'], '1': ['decoder', 'lm_head']}

Naive model parallelism: layers are distributed over the devices in their order, and accelerate's hooks move activations
from one to the next, so that one device works at a time. It makes a model fit, not fast: to use several devices at
once, shard it (FSDP, DeepSpeed). Before that, the whole model is in memory.
"""

import contextlib
import logging
import re
import secrets
import shutil
import weakref
from pathlib import Path

import torch

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import listed
from t5suite.models.caches import CACHE
from t5suite.runs.lock import LOCK_FILE, RunLock

logger = logging.getLogger(__name__)

# Where weights that fit no device are kept; hooks fetch them for every forward pass, and they cannot be trained.
OFFLOADED = ("cpu", "disk")
OFFLOAD_PREFIX = ".offloaded-weights-"
SIZE = re.compile(r"\d+(\.\d+)? ?([KMGT]i?B)?", re.IGNORECASE)
APPLE_GPU_IS_IDLE = "Apple's GPU (MPS) is not used, because the suite was never tested on it; the CPU is"


def has_accelerator() -> bool:
    """Whether models run on an accelerator of this machine; Apple's GPU counts as none (`APPLE_GPU_IS_IDLE`)."""
    return torch.accelerator.is_available() and not torch.backends.mps.is_available()


def check_placement_flags(device_map: str | None, max_memory: str | None, embedding_on_cpu: bool) -> None:
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
    memory_by_device = {}
    for part in text.split(","):
        device, equals, size = (piece.strip() for piece in part.partition("="))
        names_device = device == "cpu" or device.isdigit()
        if not equals or not names_device or not SIZE.fullmatch(size):
            raise ConfigError(f"--max_memory {text}: {part!r} is not DEVICE=SIZE, such as 0=10GiB or cpu=30GiB")
        has_unit = SIZE.fullmatch(size)[2] is not None
        key = int(device) if device.isdigit() else device
        memory_by_device[key] = size if has_unit else int(float(size))
    return memory_by_device


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
    if torch.backends.mps.is_available():  # accelerate would put all layers on it
        raise ConfigError(f"--device_map {device_map}: {APPLE_GPU_IS_IDLE}; leave --device_map out")
    device_by_module = device_map_for(model, device_map, parse_max_memory(max_memory))
    devices = set(device_by_module.values())
    _check_devices_exist(device_map, devices)
    if devices == {"cpu" if device.type == "cpu" else device.index or 0}:
        logger.warning("--device_map %s has no effect: the whole model fits %s", device_map, device)
        return
    if len(devices) == 1 and "disk" not in devices:
        raise ConfigError(
            f"--device_map {device_map} puts the whole model on {next(iter(devices))}, but batches are on "
            f"{device}: choose the device by CUDA_VISIBLE_DEVICES, without --device_map"
        )
    if trains:
        _check_nothing_is_offloaded(device_map, device_by_module)
    _dispatch(model, device_by_module, folder)
    placement = ", ".join(f"{name}: {listed(modules)}" for name, modules in by_device(model).items())
    logger.info("--device_map %s: %s", device_map, placement)


def _check_devices_exist(device_map: str, devices: set[int | str]) -> None:
    numbers = devices.difference(OFFLOADED)
    count = torch.accelerator.device_count() if has_accelerator() else 0
    if numbers and max(numbers) >= count:
        raise ConfigError(f"--device_map {device_map}: device {max(numbers)} is not there; this machine has {count}")


def _check_nothing_is_offloaded(device_map: str, device_by_module: dict[str, int | str]) -> None:
    """Refuses modules whose weights hooks would fetch for every batch; a CPU alone is the device itself."""
    devices = set(device_by_module.values())
    offload_devices = {"disk"} if devices <= set(OFFLOADED) else set(OFFLOADED)
    offloaded = sorted(name for name, device in device_by_module.items() if device in offload_devices)
    if offloaded:
        raise ConfigError(
            f"--device_map {device_map}: {listed(offloaded)} do not fit the devices and would be fetched from the "
            f"{'disk' if 'disk' in devices else 'CPU'} for every batch: that can be evaluated (--eval_only), "
            "not trained. Give more --max_memory or devices, or let DeepSpeed offload (--deepspeed zero3_offload)"
        )


def device_map_for(model, device_map: str, max_memory: dict | None) -> dict[str, int | str]:
    """Module (or parameter) -> device: a number, 'cpu' or 'disk'. The model may be on the meta device.

    Blocks are never split, and tied weights are on one device.
    """
    from accelerate import infer_auto_device_map
    from accelerate.utils import get_balanced_memory

    block_classes = list(model._no_split_modules or [])
    if device_map != "sequential":
        max_memory = get_balanced_memory(model, max_memory, no_split_module_classes=block_classes)
    return dict(infer_auto_device_map(model, max_memory=max_memory, no_split_module_classes=block_classes))


def _dispatch(model, device_by_module: dict[str, int | str], folder) -> None:
    """Moves every module to its device and hooks it, so that activations follow."""
    from accelerate import dispatch_model

    offload_folder = None
    if "disk" in device_by_module.values():
        offload_folder = _new_offload_folder(model, folder)
    if set(device_by_module) == {""}:
        device_by_module = dict.fromkeys(_names_of_parts(model), device_by_module[""])
    logging.getLogger("transformers.trainer").addFilter(_is_news)
    dispatch_model(
        model, device_map=device_by_module, offload_dir=offload_folder, force_hooks=offload_folder is not None
    )


def _new_offload_folder(model, folder) -> Path:
    """A folder for the offloaded weights of this model alone; it is deleted with the model.

    Its lock shows later processes whether this one has been killed, so that they delete it.
    """
    if folder is None:
        raise ConfigError("--device_map: weights would be offloaded to disk, but there is no folder for them")
    parent = Path(folder)
    _delete_folders_of_killed_processes(parent)
    offload_folder = parent / f"{OFFLOAD_PREFIX}{secrets.token_hex(4)}"
    lock = RunLock(offload_folder).acquire()
    weakref.finalize(model, _delete_folder, offload_folder, lock)
    return offload_folder


def _delete_folders_of_killed_processes(parent: Path) -> None:
    for lock_file in sorted(parent.glob(f"{OFFLOAD_PREFIX}*/{LOCK_FILE}")):
        offload_folder = lock_file.parent
        # A ConfigError: its process lives; a PermissionError: it is another user's.
        with contextlib.suppress(ConfigError, PermissionError):
            _delete_folder(offload_folder, RunLock(offload_folder).acquire())


def _delete_folder(offload_folder: Path, lock: RunLock) -> None:
    shutil.rmtree(offload_folder, ignore_errors=True)
    lock.release()


def _names_of_parts(model) -> list[str]:
    """The parts of a model: accelerate 1.15 offloads nothing under "", the name of the whole model."""
    parts = [*model.named_children(), *model.named_parameters(recurse=False), *model.named_buffers(recurse=False)]
    return [name for name, _ in parts]


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

    def tokens_to_matrix(module, args):
        return (args[0].to(module.weight.device), *args[1:])

    def vectors_to_device(module, args, vectors):
        return vectors.to(device)

    _move_without(model, matrix, device)
    names = []
    for name, module in model.named_modules():
        if getattr(module, "weight", None) is matrix:
            module.register_forward_pre_hook(tokens_to_matrix)
            module.register_forward_hook(vectors_to_device)
            names.append(name)
        elif _holds(module, matrix):
            # transformers creates tensors on the device of a model's first weight, which is the matrix.
            module.register_forward_pre_hook(inputs_to_device, with_kwargs=True)
    # Trainer and accelerate do not move a model that has this map; the string "cpu" in it would mean offloaded.
    logging.getLogger("transformers.trainer").addFilter(_is_news)
    model.hf_device_map = {**dict.fromkeys(names, matrix.device), "": device}


def _move_without(module, matrix: torch.Tensor, device: torch.device) -> None:
    """Moves the largest parts of a module that do not hold the matrix."""
    if _holds(module, matrix):
        for child in module.children():
            _move_without(child, matrix, device)
    else:
        module.to(device)


def _holds(module, matrix: torch.Tensor) -> bool:
    return any(parameter is matrix for parameter in module.parameters())


def _is_news(record: logging.LogRecord) -> bool:
    """False for transformers' message that a model is already on several devices."""
    return "already on multiple devices" not in record.getMessage()


def by_device(model) -> dict[str, list[str]]:
    """The modules on each device, for logs and manifests; empty for a model that is on one.

    >>> by_device(model)
    {'cpu': ['shared', 'encoder.embed_tokens', 'decoder.embed_tokens'], 'cuda:0': ['the rest']}
    """
    modules_by_device: dict[str, list[str]] = {}
    for name, device in (getattr(model, "hf_device_map", None) or {}).items():
        modules_by_device.setdefault(str(device), []).append(name or "the rest")
    return modules_by_device


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
