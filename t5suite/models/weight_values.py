"""Values, types and memory of weights: finite numbers, floating-point where the model computes, each its own tensor.

    >>> non_finite_weights(model)
    [('shared.weight', 3, 2064384)]

Weights of NaN answer nothing, and a T5 that a tool has stored as integers is another model: both load in transformers
without a word. They are refused by name before anything is trained, answered or exported.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import torch
from transformers.integrations import is_deepspeed_zero3_enabled, is_fsdp_enabled

from t5suite.base.errors import DataError
from t5suite.base.lookup import listed
from t5suite.models.quantization import is_quantized

logger = logging.getLogger(__name__)


def non_finite(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[tuple[str, int, int]]:
    """`(name, number of non-finite elements, size)` of each tensor that has some.

    250M float32 values take 0.1 s on one CPU core, where `isfinite` takes 1.6 s; on two busy cores, threads that wait
    for each other make it 1 to 3 s.
    """
    named = [(name, tensor) for name, tensor in tensors if _has_floats(tensor)]
    if not named:
        return []
    # Minimum and maximum are NaN if any value is.
    device = named[0][1].device
    with _one_thread():
        extremes = [torch.stack(torch.aminmax(tensor)).to(device, torch.float64) for _, tensor in named]
    if bool(torch.stack(extremes).isfinite().all()):
        return []
    counts = [(name, int((~torch.isfinite(tensor)).sum()), tensor.numel()) for name, tensor in named]
    return [(name, count, size) for name, count, size in counts if count]


def _has_floats(tensor: torch.Tensor) -> bool:
    """Whether a tensor has floating-point values."""
    return tensor.is_floating_point() and tensor.numel() > 0 and not tensor.is_meta


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """torch computes on one core within this block."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def non_finite_weights(model) -> list[tuple[str, int, int]]:
    """`non_finite` of a model's parameters; of one that DeepSpeed's ZeRO-3 or FSDP2 shards, of this rank's shards."""
    shards = []
    for name, parameter in model.named_parameters():
        shard = getattr(parameter, "ds_tensor", parameter).detach()
        shards.append((name, shard.to_local() if hasattr(shard, "to_local") else shard))
    return non_finite(shards)


def check_finite(model, place: str, file_of: Callable[[str], str] | None = None) -> None:
    """Refuses a model with NaN or infinite weights. Under ZeRO-3 a collective call, before which each rank has loaded.

    Args:
      place: where the weights are from, for messages.
      file_of: the file that a tensor is in.

    Raises:
      DataError: names the tensors and their counts; on all ranks.
    """
    if is_fsdp_enabled() and torch.distributed.is_initialized() and torch.distributed.get_rank() > 0:
        return  # accelerate may load weights on one rank only and send them to the others later
    damaged = non_finite_weights(model)
    if is_deepspeed_zero3_enabled() and torch.distributed.is_initialized():
        damaged_by_rank = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(damaged_by_rank, damaged)
        damaged = next(filter(None, damaged_by_rank), [])
    if damaged and file_of is not None:
        place = f"{place}: {file_of(damaged[0][0])}"
    refuse_non_finite(damaged, place)


def refuse_non_finite(damaged: list[tuple[str, int, int]], place: str) -> None:
    """Raises a DataError that names what `non_finite` has returned, if it is anything."""
    if damaged:
        names = listed([f"{name} ({count} of {size} values)" for name, count, size in damaged])
        raise DataError(
            f"{place}: NaN or infinite values in {len(damaged)} of its tensors: {names}; use an undamaged copy"
        )


def check_not_empty(model, place: str) -> list[str]:
    """Refuses a model whose matrices all hold nothing but 0, and warns of single ones, whose names it returns.

    A file system gives zeros for what was never written: the rest of a copy that a full disk or a power cut ended.

    Raises:
      DataError: there is nothing but 0.
    """
    if is_deepspeed_zero3_enabled() or is_fsdp_enabled():
        return []  # a rank has parts of the weights, padded with zeros
    weights = [(name, parameter.detach()) for name, parameter in model.named_parameters() if _has_floats(parameter)]
    matrices = [(name, weight) for name, weight in weights if weight.ndim > 1]
    names = [name for name, matrix in matrices if _is_zero(matrix)]
    if names and len(names) == len(matrices):
        raise DataError(f"{place}: all {len(names)} matrices hold nothing but 0; use an undamaged copy")
    if names:
        logger.warning(
            "%s: %d of %d matrices hold nothing but 0, as after a copy that was cut off: %s",
            place,
            len(names),
            len(matrices),
            listed(names),
        )
    return names


def _is_zero(tensor: torch.Tensor) -> bool:
    """Whether every element is 0; a first or last one that is not spares a look at the others."""
    first = tensor[(0,) * tensor.ndim]
    last = tensor[(-1,) * tensor.ndim]
    if bool(first != 0) or bool(last != 0):
        return False
    return not bool(tensor.any())


def integers_for_floats(model, stored: Mapping[str, torch.Tensor], unknown: Collection[str]) -> list[str]:
    """Stored tensors of integers, booleans or complex numbers that would become floating-point weights, with types.

    Args:
      stored: as in the file, under the file's names; meta tensors suffice.
      unknown: names that the model does not read.

    A model's own buffers of integers (positions, masks), what its class ignores on loading and the state of a
    quantized model are not meant.
    """
    if is_quantized(model):
        return []
    integer_buffers = {_ending(name) for name, buffer in model.named_buffers() if not buffer.is_floating_point()}
    entries = []
    for name, tensor in stored.items():
        if tensor.is_floating_point() or name in unknown or _ending(name) in integer_buffers:
            continue
        if is_ignored_on_loading(model, name):
            continue
        entries.append(f"{name} ({str(tensor.dtype).removeprefix('torch.')})")
    return sorted(entries)


def is_ignored_on_loading(model, name: str) -> bool:
    """Whether a model's class says that a stored tensor of this name is not loaded."""
    return any(re.search(pattern, name) for pattern in model._keys_to_ignore_on_load_unexpected or ())


def refuse_integers(entries: list[str], place: str) -> None:
    """Raises a DataError that names what `integers_for_floats` has returned, if it is anything."""
    if entries:
        kind = "complex numbers" if "complex" in entries[0] else "integers"
        raise DataError(
            f"{place}: {len(entries)} tensors are stored as {kind}, and the model's are floating-point numbers: "
            f"{listed(entries)}; use the original weights"
        )


def separate_memory(model) -> list[str]:
    """Gives each parameter memory of its own; returns the names of those that shared another's.

    A pickle keeps that two of its tensors are one (`torch.save(model.state_dict())` of a model that was tied). Loaded
    into a model that ties nothing, two parameters would change together, and only one of them would be saved.
    """
    spans = []
    for name, parameter in model.named_parameters():
        is_sharded = hasattr(parameter, "ds_id") or hasattr(parameter, "device_mesh")
        if parameter.numel() and not parameter.is_meta and not is_sharded:
            spans.append((*_span(parameter), name, parameter))
    spans.sort(key=lambda span: span[:2])
    separated = []
    highest_end = 0
    for start, end, name, parameter in spans:
        if start < highest_end:
            parameter.data = parameter.detach().clone()
            separated.append(name)
        highest_end = max(highest_end, end)
    if separated:
        logger.warning("weights that shared memory with others become weights of their own: %s", listed(separated))
    return separated


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of a tensor's first byte and of the byte after its last."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (steps + 1) * tensor.element_size()


def _ending(name: str) -> str:
    """The last two parts of a tensor's name, which no prefix changes: `embeddings.position_ids`."""
    return ".".join(name.split(".")[-2:])
