"""T5's attention without what transformers does anew in every layer: bias and mask are put together once a stack.

    >>> quicken_attention(model)                     # a T5 or mT5; the number of attention modules that are quick now
    36
    >>> slow_attention(model)                        # transformers' own again
    36

T5's layers share one position bias, and all rows of a batch share it too, until a mask joins in: [1, H, S, S] and
[B, 1, 1, S] make [B, H, S, S]. transformers 5.23 makes that in each layer (`create_position_bias_mask`), keeps it for
the backward pass of each, and gives cross-attention, which has no bias, a tensor of zeros. Here the first layer of a
stack makes it and hands it on where it would hand on the bias; cross-attention hands its mask on, or nothing where
nothing is padded, and torch may then choose among kernels that take no mask. A kernel of the suite's own
(`implementations.SEPARATE`) gets bias and mask apart.

With keys and values of a cache (generation) a module does as it did. Weights, their names and the numbers are
transformers' (`tests/test_quick_attention.py`). umT5, whose layers have a bias each, stays as it is.

Shapes: B rows, H heads, T queries, S keys, K width of a head, D model width.
"""

import functools
from typing import ClassVar

import torch
import torch.nn.functional as F
from transformers.models.mt5 import modeling_mt5
from transformers.models.t5 import modeling_t5

from t5suite.models.attention.implementations import SEPARATE, attend_apart

MERGED = ("sdpa", "eager")


class QuickAttention:
    """Before a T5's attention class in the order of bases, its training forward.

    Attributes:
      stock: the class of transformers' that this one stands for.
    """

    stock: ClassVar[type]

    def forward(
        self,
        hidden_states,
        mask=None,
        key_value_states=None,
        position_bias=None,
        past_key_values=None,
        **kwargs,
    ):
        """As `T5Attention.forward`; in place of the position bias it hands on what the next layer attends with."""
        kernel = self.config._attn_implementation
        if past_key_values is not None or kernel not in (*MERGED, *SEPARATE):
            return super().forward(hidden_states, mask, key_value_states, position_bias, past_key_values, **kwargs)
        states_BSD = hidden_states if key_value_states is None else key_value_states
        query, key, value = (
            self.by_head("q", hidden_states),
            self.by_head("k", states_BSD),
            self.by_head("v", states_BSD),
        )
        causal = self.is_causal and query.shape[2] > 1
        if kernel in SEPARATE:
            bias = self.bias_of(query, key) if position_bias is None else position_bias
            found, weights = attend_apart(kernel, self, query, key, value, mask, bias, causal), None
        else:
            bias = position_bias
            if bias is None:
                bias = merged(self.bias_of(query, key), mask, causal and mask is None, query.dtype)
            found, weights = ATTENDS[kernel](self, query, key, value, bias)
        return self.o(found.reshape(*hidden_states.shape[:-1], self.inner_dim)), bias, weights

    def by_head(self, name: str, states) -> torch.Tensor:
        """Queries, keys or values of states (B, H, T, K)."""
        return getattr(self, name)(states).unflatten(-1, (self.n_heads, self.key_value_proj_dim)).transpose(1, 2)

    def bias_of(self, query, key) -> torch.Tensor | None:
        """The position bias [1, H, T, S]; None where there is none (cross-attention)."""
        if not self.has_relative_attention_bias:
            return None
        return self.compute_bias(query.shape[2], key.shape[2], device=query.device).contiguous()


class QuickT5Attention(QuickAttention, modeling_t5.T5Attention):
    """T5's."""

    stock = modeling_t5.T5Attention


class QuickMT5Attention(QuickAttention, modeling_mt5.MT5Attention):
    """mT5's."""

    stock = modeling_mt5.MT5Attention


def merged(bias, mask, is_causal: bool, dtype: torch.dtype) -> torch.Tensor | None:
    """What is added to scores: the bias where the mask shows something, else the lowest number of `dtype`.

    >>> merged(torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[True, False]]]]), False, torch.float32)
    tensor([[[[ 1.0000e+00, -3.4028e+38]]]])

    Args:
      bias: [1, H, T, S], or None.
      mask: bool [B, 1, T or 1, S], True for what is seen; or floats that are added; or None.
      is_causal: a token sees none behind it, which no mask says.
      dtype: the queries'. With a mask for each row the sum is as large as all scores: it is cast once, here, and not
        by autocast in every layer.
    """
    if is_causal:
        mask = torch.ones(bias.shape[-2:], dtype=torch.bool, device=bias.device).tril()
    if mask is None or (bias is None and mask.dtype != torch.bool):
        return bias if mask is None else mask
    if mask.dtype != torch.bool:
        return bias + mask
    lowest = torch.finfo(dtype).min
    if bias is None:
        return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, lowest)
    return torch.where(mask, bias.to(dtype) if mask.dim() == 4 and len(mask) > 1 else bias, lowest)


def quicken_attention(model) -> int:
    """Makes the attention of a T5's or mT5's stacks quick, where all of a stack is transformers' own; how many are."""
    return sum(_turned(stack, QUICK) for stack in _stacks(model))


def slow_attention(model) -> int:
    """Gives a model transformers' own attention again; returns how many modules."""
    return sum(_turned(stack, {quick: stock for stock, quick in QUICK.items()}) for stack in _stacks(model))


def stock_class(module) -> type:
    """The class of transformers' that a quick module stands for; of any other, its own."""
    return getattr(type(module), "stock", type(module))


def _stacks(model):
    return [m for m in model.modules() if type(m) in (modeling_t5.T5Stack, modeling_mt5.MT5Stack)]


def _turned(stack, classes: dict[type, type]) -> int:
    """A layer hands its merged bias to the next: all of a stack are turned, or none (one may be the user's own)."""
    found = [module for layer in stack.block for module in layer.modules() if hasattr(module, "compute_bias")]
    if any(type(module) not in classes for module in found):
        return 0
    for module in found:
        module.__class__ = classes[type(module)]
    return len(found)


def _sdpa(module, query, key, value, bias):
    dropout = module.dropout if module.training else 0.0
    found = F.scaled_dot_product_attention(query, key, value, bias, dropout_p=dropout, scale=module.scaling)
    return found.transpose(1, 2), None


def _eager(module, query, key, value, bias):
    dropout = module.dropout if module.training else 0.0
    attend = functools.partial(EAGER[module.stock], scaling=module.scaling, dropout=dropout)
    return attend(module, query, key, value, None, position_bias=bias)


QUICK = {modeling_t5.T5Attention: QuickT5Attention, modeling_mt5.MT5Attention: QuickMT5Attention}
ATTENDS = {"sdpa": _sdpa, "eager": _eager}
EAGER = {
    modeling_t5.T5Attention: modeling_t5.eager_attention_forward,
    modeling_mt5.MT5Attention: modeling_mt5.eager_attention_forward,
}
