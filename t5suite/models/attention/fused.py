"""Attention with a shared bias as one operation with a gradient, by Triton's kernels (`kernels`).

    >>> found_BTHW = fused_attend(query, key, value, mask, bias, is_causal=False, scaling=1.0, dropout=0.1)
    >>> found_BTHW.sum().backward()                          # query, key, value and bias have their gradients

`torch.compile` takes it whole: it knows the shapes that come out and how gradients are asked for, and looks no further.
What is found, and the gradients, lie in memory as the projections before and behind attention read them.

Shapes: B rows, H heads, T queries, S keys, W width of a head.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from t5suite.models.attention import kernels

LOG2E = math.log2(math.e)


def fused_attend(query, key, value, mask, bias, is_causal: bool, scaling: float, dropout: float = 0.0) -> Tensor:
    """Attention (B, T, H, W). A query that sees nothing gets zeros.

    Args:
      query, key, value: (B, H, T or S, W), of one dtype.
      mask: bool [B, 1, T or 1, S], True for what is seen; or None.
      bias: [1 or B, H, T, S], added to scores in the queries' dtype; or None. Its gradient is summed in float32.
      is_causal: a token sees none behind it.
      dropout: the share of weights that are dropped, drawn by a seed from torch's generator.
    """
    seed = torch.randint(2**31 - 1, (1,), device=query.device) if dropout > 0 else None
    if mask is not None and mask.stride(2) == 0:
        mask = mask[:, :, :1]
    found, _ = biased_attention(query, key, value, bias, mask, seed, is_causal, scaling, dropout)
    return found


def _on_its_device(operation):
    """Triton launches on the current device, which need not be the tensors' (`--device_map`)."""

    @functools.wraps(operation)
    def launched(query, *others):
        with torch.cuda.device_of(query):
            return operation(query, *others)

    return launched


@torch.library.custom_op("t5suite::biased_attention", mutates_args=())
@_on_its_device
def biased_attention(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: Tensor | None, seed: Tensor | None,
    is_causal: bool, scaling: float, dropout: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What is found (B, T, H, W), and the log of each query's sum of weights (B, H, T), float32, base 2."""
    inputs = _Inputs.of(query, key, value, bias, mask, seed)
    rows, heads, num_queries, width = query.shape
    found = query.new_empty(rows, num_queries, heads, width)
    log_sums = query.new_empty(rows, heads, num_queries, dtype=torch.float32)
    tile_t, tile_s, options = inputs.tiles("forward")
    kernels.forward_kernel[(_count(num_queries, tile_t) * rows * heads,)](
        *inputs.tensors, found, log_sums, *inputs.strides, *_strides(found.transpose(1, 2)),
        scaling * LOG2E, dropout, heads, num_queries, key.shape[2],
        **inputs.kinds(is_causal, dropout), TILE_T=tile_t, TILE_S=tile_s, **options,
    )  # fmt: skip
    return found, log_sums


@biased_attention.register_fake
def _(query, key, value, bias, mask, seed, is_causal, scaling, dropout):
    rows, heads, num_queries, width = query.shape
    log_sums = query.new_empty(rows, heads, num_queries, dtype=torch.float32)
    return query.new_empty(rows, num_queries, heads, width), log_sums


@torch.library.custom_op("t5suite::biased_attention_backward", mutates_args=())
@_on_its_device
def biased_attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, mask: Tensor | None,
    seed: Tensor | None, found: Tensor, log_sums: Tensor, is_causal: bool, scaling: float, dropout: float,
    asks_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of query, key, value and bias; the last one is empty where it is not asked for."""
    inputs = _Inputs.of(query, key, value, bias, mask, seed)
    rows, heads, num_queries, _ = query.shape
    num_keys = key.shape[2]
    given = gradient.transpose(1, 2)
    if given.stride(3) != 1:
        given = given.contiguous()
    deltas = torch.empty_like(log_sums)
    dq, dk, dv, db = _empty_gradients(query, key, value, bias, asks_bias)
    kinds, scale = inputs.kinds(is_causal, dropout), scaling * LOG2E
    shape = (heads, num_queries, num_keys)
    width = {"WIDTH": kinds["WIDTH"], "TILE_W": kinds["TILE_W"]}
    tile_t, _, options = inputs.tiles("delta")
    kernels.delta_kernel[(_count(num_queries, tile_t) * rows * heads,)](
        found.transpose(1, 2), given, deltas, *_strides(found.transpose(1, 2)), *_strides(given), *shape[:2],
        TILE_T=tile_t, **width, **options,
    )  # fmt: skip
    common = (*inputs.tensors, given, log_sums, deltas)
    strides = (*inputs.strides, *_strides(given))
    tile_t, tile_s, options = inputs.tiles("key")
    kernels.key_kernel[(_count(num_keys, tile_s) * rows * heads,)](
        *common, dk, dv, *strides, *_strides(dk), *_strides(dv), scale, scaling, dropout, *shape,
        **kinds, TILE_T=tile_t, TILE_S=tile_s, **options,
    )  # fmt: skip
    tile_t, tile_s, options = inputs.tiles("query")
    kernels.query_kernel[(_count(num_queries, tile_t) * rows * heads,)](
        *common, dq, *strides, *_strides(dq), scale, scaling, dropout, *shape,
        **kinds, TILE_T=tile_t, TILE_S=tile_s, **options,
    )  # fmt: skip
    if asks_bias:
        tile_t, tile_s, options = inputs.tiles("bias")
        kernels.bias_kernel[(_count(num_keys, tile_s) * _count(num_queries, tile_t) * len(bias) * heads,)](
            *common, db, *strides, scale, dropout, *shape, rows // len(bias),
            **kinds, TILE_T=tile_t, TILE_S=tile_s, **options,
        )  # fmt: skip
    return dq, dk, dv, db


@biased_attention_backward.register_fake
def _(
    gradient, query, key, value, bias, mask, seed, found, log_sums, is_causal, scaling, dropout, asks_bias
):  # fmt: skip
    return _empty_gradients(query, key, value, bias, asks_bias)


def _empty_gradients(query, key, value, bias, asks_bias: bool):
    """Room for gradients, which lie in memory as [B, T, H, W]."""
    rooms = [
        given.new_empty(given.shape[0], given.shape[2], given.shape[1], given.shape[3]).transpose(1, 2)
        for given in (query, key, value)
    ]
    bias_room = bias.shape if asks_bias else (0,)
    return *rooms, query.new_empty(bias_room, dtype=torch.float32)


def _keep(ctx, inputs, output):
    query, key, value, bias, mask, seed, is_causal, scaling, dropout = inputs
    found, log_sums = output
    ctx.save_for_backward(query, key, value, bias, mask, seed, found, log_sums)
    ctx.settings = is_causal, scaling, dropout


def _backward(ctx, gradient, _):
    query, key, value, bias, mask, seed, found, log_sums = ctx.saved_tensors
    asks_bias = ctx.needs_input_grad[3]
    dq, dk, dv, db = biased_attention_backward(
        gradient, query, key, value, bias, mask, seed, found, log_sums, *ctx.settings, asks_bias
    )
    return dq, dk, dv, db.to(bias.dtype) if asks_bias else None, None, None, None, None, None


biased_attention.register_autograd(_backward, setup_context=_keep)


@register_flop_formula(torch.ops.t5suite.biased_attention)
def _forward_flops(query, key, value, *others, out_shape=None, **kwargs) -> int:
    """Of a model, as `torch.utils.flop_counter` counts them (shapes are given): two products."""
    return 4 * math.prod(query) * key[2]


@register_flop_formula(torch.ops.t5suite.biased_attention_backward)
def _backward_flops(gradient, query, key, *others, out_shape=None, **kwargs) -> int:
    """Four products; what the kernels compute anew is not the model's."""
    return 8 * math.prod(query) * key[2]


class _Inputs(NamedTuple):
    """What all kernels are given.

    Attributes:
      tensors: query, key, value, bias, mask and seed; in place of one that is not there the query, not to be looked at.
      strides: of them but the seed, three each.
      mask_kind: 0 without a mask, 1 for one number a key, 2 for one a pair (`kernels.OF_KEYS`, `OF_PAIRS`).
    """

    tensors: tuple
    strides: tuple
    has_bias: bool
    mask_kind: int

    @classmethod
    def of(cls, query, key, value, bias, mask, seed) -> "_Inputs":
        query, key, value = (given if given.stride(3) == 1 else given.contiguous() for given in (query, key, value))
        bias_strides = mask_strides = (0, 0, 0)
        kind = 0
        if bias is not None:
            bias = bias.to(query.dtype).contiguous()
            bias_strides = (bias.stride(0) * (len(bias) > 1), bias.stride(1), bias.stride(2))
        if mask is not None:
            kind = 1 if mask.shape[2] == 1 else 2
            mask_strides = (mask.stride(0) * (len(mask) > 1), mask.stride(2) * (kind == 2), mask.stride(3))
            mask = mask.view(torch.uint8)
        tensors = (query, key, value, *(query if given is None else given for given in (bias, mask, seed)))
        strides = (*_strides(query), *_strides(key), *_strides(value), *bias_strides, *mask_strides)
        return cls(tensors, strides, bias is not None, kind)

    def tiles(self, kernel: str) -> tuple:
        """Of these inputs in a kernel."""
        query = self.tensors[0]
        return (TILES if query.shape[3] * query.element_size() <= SHORT_VECTOR else SMALL_TILES)[kernel]

    def kinds(self, is_causal: bool, dropout: float) -> dict:
        """What a kernel is compiled for."""
        query = self.tensors[0]
        exact = query.dtype == torch.float32 and not torch.backends.cuda.matmul.allow_tf32
        width = query.shape[3]
        return {
            "HAS_BIAS": self.has_bias,
            "MASK": self.mask_kind,
            "CAUSAL": is_causal,
            "DROPS": dropout > 0,
            "WIDTH": width,
            "TILE_W": max(16, 1 << (width - 1).bit_length()),
            "PRECISION": "ieee" if exact else "tf32",
        }


def _strides(given: Tensor) -> tuple[int, int, int]:
    """Of rows, heads and tokens of (B, H, T, W)."""
    return given.stride(0), given.stride(1), given.stride(2)


def _count(length: int, tile: int) -> int:
    return -(-length // tile)


# Queries and keys of a tile, and how a program is laid out on the GPU, for vectors of up to 128 bytes (64 numbers in
# bfloat16) and for longer ones. Chosen by what Triton 3.6 makes of them for compute capability 9.0: shared memory below
# the 99 KiB of small cards, registers without spilling where nothing is dropped. Not tuned on a card yet.
SHORT_VECTOR = 128
TILES = {
    "forward": (128, 64, {"num_warps": 8, "num_stages": 3}),
    "delta": (128, 0, {"num_warps": 4}),
    "key": (64, 128, {"num_warps": 8, "num_stages": 2}),
    "query": (128, 64, {"num_warps": 8, "num_stages": 2}),
    "bias": (64, 64, {"num_warps": 8, "num_stages": 2}),
}
SMALL_TILES = {
    "forward": (64, 64, {"num_warps": 4, "num_stages": 2}),
    "delta": (64, 0, {"num_warps": 4}),
    "key": (32, 64, {"num_warps": 4, "num_stages": 1}),
    "query": (64, 32, {"num_warps": 4, "num_stages": 1}),
    "bias": (64, 32, {"num_warps": 4, "num_stages": 1}),
}
