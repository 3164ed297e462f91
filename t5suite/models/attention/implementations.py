"""The kernels of T5's attention by the names that `--attn_implementation` takes, and where each can be used.

    >>> set_attention(model, "flex_attention")
    >>> why_not("flex_attention", torch.device("cuda"), trains=True, dropout=0.1)
    'it has no dropout: --dropout_rate 0, or sdpa'

`sdpa` and `eager` are transformers'. The others are the suite's, and are made known to transformers under names of
their own (`AttentionInterface`), for layers that `quick` leaves as they are and for generation.
"""

import importlib.util
import os
from collections.abc import Callable
from typing import NamedTuple

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion
from t5suite.models.attention.flex import flex_attend

PLAIN = "sdpa"
# What transformers is told: its own `flex_attention` is another one.
PREFIX = "t5suite_"


class Kernel(NamedTuple):
    """A kernel that takes position bias and mask apart.

    Attributes:
      attend: (query, key, value, mask, bias, is_causal, scaling, dropout) -> (B, T, H, K).
      drops: whether it has dropout.
      missing: the device's type -> why it cannot be used there, or None.
    """

    attend: Callable[..., torch.Tensor]
    drops: bool
    missing: Callable[[str], str | None]


def set_attention(model, name: str) -> None:
    """Has a T5's stacks attend by this kernel from now on.

    Raises:
      ConfigError: there is no such kernel.
    """
    if name not in CHOICES:
        raise ConfigError(f"--attn_implementation: unknown kernel {name!r}; {suggestion(name, CHOICES)}")
    model.set_attn_implementation(known_as(name))


def known_as(name: str) -> str:
    """The name by which transformers knows a kernel; ours are made known to it first."""
    if name not in KERNELS:
        return name
    registered = PREFIX + name
    AttentionInterface.register(registered, KERNELS_FOR_TRANSFORMERS[name])
    AttentionMaskInterface.register(registered, sdpa_mask)
    return registered


def kernel_of(model) -> str:
    """The kernel that a model attends by, as `--attn_implementation` names it."""
    return model.config._attn_implementation.removeprefix(PREFIX)


def takes_booleans(registered: str) -> bool:
    """Whether a kernel, by the name that transformers has of it, takes masks of booleans."""
    return registered == PLAIN or registered in SEPARATE


def why_not(name: str, device: torch.device, trains: bool, dropout: float) -> str | None:
    """Why a kernel cannot be used; None where it can."""
    kernel = KERNELS.get(name)
    if kernel is None:
        return None
    if trains and dropout > 0 and not kernel.drops:
        return "it has no dropout: --dropout_rate 0, or sdpa"
    return kernel.missing(device.type)


def attend_apart(registered: str, module, query, key, value, mask, bias, is_causal: bool) -> torch.Tensor:
    """Attention (B, T, H, K) by one of SEPARATE; `module` says whether it trains, with which dropout."""
    dropout = module.dropout if module.training else 0.0
    return _attended(registered.removeprefix(PREFIX), query, key, value, mask, bias, is_causal, module.scaling, dropout)


def _attended(name, query, key, value, mask, bias, is_causal, scaling, dropout) -> torch.Tensor:
    kernel = KERNELS[name]
    if dropout > 0 and not kernel.drops:
        raise ConfigError(f"--attn_implementation {name}: it has no dropout: --dropout_rate 0, or sdpa")
    if mask is not None and mask.dtype != torch.bool:
        raise ConfigError(f"--attn_implementation {name} takes masks of booleans; sdpa takes numbers, too")
    return kernel.attend(query, key, value, mask, bias, is_causal, scaling, dropout)


def _for_transformers(name: str):
    """A kernel as transformers calls it. One query, of generation, is sdpa's: there is nothing to save."""

    def forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, position_bias=None, **kwargs):
        if query.shape[2] == 1:
            return sdpa_attention_forward(
                module, query, key, value, attention_mask,
                dropout=dropout, scaling=scaling, position_bias=position_bias, **kwargs,
            )  # fmt: skip
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        mask = attention_mask if attention_mask is None else attention_mask[..., : key.shape[2]]
        is_causal = mask is None and module.is_causal
        return _attended(name, query, key, value, mask, position_bias, is_causal, scaling, dropout), None

    return forward


def _flex(query, key, value, mask, bias, is_causal, scaling, dropout):
    return flex_attend(query, key, value, mask, bias, is_causal, scaling)


def _flex_missing(device: str) -> str | None:
    return None if device == "cuda" else "FlexAttention has no backward pass on a CPU"


def _triton(query, key, value, mask, bias, is_causal, scaling, dropout):
    from t5suite.models.attention.fused import fused_attend

    return fused_attend(query, key, value, mask, bias, is_causal, scaling, dropout)


def _triton_missing(device: str) -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed: pip install triton"
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return "Triton's kernels need a GPU"
    if device == "cuda" and torch.cuda.get_device_capability() < (8, 0):
        return "its kernels need a GPU of compute capability 8.0 (Ampere) or later"
    return None


KERNELS = {
    "flex_attention": Kernel(_flex, drops=False, missing=_flex_missing),
    "triton": Kernel(_triton, drops=True, missing=_triton_missing),
}
CHOICES = (PLAIN, "eager", *KERNELS)
SEPARATE = tuple(PREFIX + name for name in KERNELS)
KERNELS_FOR_TRANSFORMERS = {name: _for_transformers(name) for name in KERNELS}
