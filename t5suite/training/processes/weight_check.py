"""Detects non-finite weights, and ranks whose weights differ, before they are saved.

    >>> check_weights(model, 400, ranks)
    >>> check_agreement(model, ranks, 400)
    NumericsError: step 400: the weights of rank 1 differ from those of ranks 0, 2 and 3 (decoder.final_layer_norm.weight)

Under plain data parallelism all ranks hold bitwise identical weights. A rank whose weights differ (a memory error, a
faulty device) corrupts every later update, and nothing else reveals it.
"""  # noqa: E501

from collections import Counter

import torch

from t5suite.base.errors import NumericsError
from t5suite.base.lookup import listed
from t5suite.models.t5.decoder import holds_parts
from t5suite.models.weight_values import non_finite_weights
from t5suite.training.processes.ranks import Ranks

# Elements per chunk of the position-weighted sum, with 8-byte temporaries: on a CPU a chunk fits into the cache
# (16M elements take 0.07 s, but 0.42 s in chunks of 2^20); elsewhere fewer and larger kernels are faster.
CPU_CHUNK = 1 << 16
DEVICE_CHUNK = 1 << 22
# Odd, so that multiplying by it loses nothing modulo 2^64 (the constant of Knuth's multiplicative hashing, as int64).
FACTOR = -7046029254386353131
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest_tensors(tensors) -> int:
    """A hash of the tensors' bits and positions: a flipped bit or two swapped values change it.

    250M float32 weights take 1.1 s on one CPU core.

    Bits b_i of a tensor, read as integers, are summed as b_i (2 i + 1) modulo 2^64. A flipped bit changes the sum by an
    odd multiple of a power of two, which is never 0; the sums of chunks and tensors are digits in base FACTOR.
    """
    tensors = [tensor.detach() for tensor in tensors if tensor.numel()]
    if not tensors:
        return 0
    device = tensors[0].device
    chunk_size = CPU_CHUNK if device.type == "cpu" else DEVICE_CHUNK
    longest = min(chunk_size, max(tensor.numel() for tensor in tensors))
    odd = torch.arange(longest, device=device, dtype=torch.int64).mul_(2).add_(1)
    total = torch.zeros((), dtype=torch.int64, device=device)
    for tensor in tensors:
        bits = tensor.to(device).contiguous().view(-1).view(BITS[tensor.element_size()])
        for chunk in bits.split(chunk_size):
            total.mul_(FACTOR).add_((chunk.to(torch.int64) * odd[: chunk.numel()]).sum())
    return int(total)


def check_agreement(model, ranks: Ranks, step: int) -> None:
    """A collective call, at the same step. Does nothing with one process or sharded weights.

    Raises:
      NumericsError: on all ranks; names the ranks that differ from the majority and the first differing weights.
    """
    if ranks.world_size == 1 or holds_parts(model):
        return
    digests = ranks.gather(digest_tensors(model.parameters()))
    if len(set(digests)) == 1:
        return
    named = ranks.gather([digest_tensors([parameter]) for parameter in model.parameters()])
    names = [name for name, _ in model.named_parameters()]
    differing = [name for name, values in zip(names, zip(*named)) if len(set(values)) > 1]
    raise NumericsError(disagreement(digests, differing, step))


def disagreement(digests: list[int], differing: list[str], step: int) -> str:
    """The error message for digests that are not all equal.

    >>> disagreement([7, 7, 8], ["lm_head.weight"], step=400)
    'step 400: the weights of rank 2 differ from those of ranks 0 and 1 (lm_head.weight); ...'
    """
    value, count = Counter(digests).most_common(1)[0]
    if 2 * count > len(digests):
        odd = [rank for rank, digest in enumerate(digests) if digest != value]
        even = [rank for rank, digest in enumerate(digests) if digest == value]
        what = f"the weights of {_ranks(odd)} differ from those of {_ranks(even)}"
    else:
        what = f"the weights of {_ranks(list(range(len(digests))))} differ, and no value has a majority"
    return (
        f"step {step}: {what} ({listed(differing)}); nothing is saved. Resume from the last checkpoint; if a "
        "rank differs again, exclude its machine or device: its memory may be faulty"
    )


def _ranks(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    return f"ranks {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def check_weights(model, step: int, ranks: Ranks | None = None) -> None:
    """Call it before weights are saved.

    Args:
      ranks: given if ranks may differ or hold shards, to share what each one finds; then a collective call.

    Raises:
      NumericsError: on all ranks; names the first non-finite weights.
    """
    non_finite = [f"{name} ({count} of {size})" for name, count, size in non_finite_weights(model)]
    non_finite_of_ranks = ranks.gather(non_finite) if ranks else [non_finite]
    for rank, names in enumerate(non_finite_of_ranks):
        if names:
            place = f" on rank {rank}" if len(non_finite_of_ranks) > 1 else ""
            raise NumericsError(
                f"step {step}: weights are NaN or infinite{place}: {listed(names)}; they are not saved. Resume "
                "from the last checkpoint with a lower --learning_rate (under --fp16: with --bf16)"
            )
