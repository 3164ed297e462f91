"""T5's attention in evaluation, with position bias and mask put together once a stack.

    >>> quicken_attention(model)                     # a T5 or mT5; the number of attention modules that are quick now
    36
    >>> slow_attention(model)                        # transformers' own again
    36

T5's layers share one position bias, and all rows of a batch share it too, until a mask joins in: [1, H, S, S] and
[B, 1, 1, S] make [B, H, S, S]. transformers 5.23 makes that in each layer (`create_position_bias_mask`), and gives
cross-attention, which has no bias, a tensor of zeros. Here the first layer of a stack makes it and hands it on where it
would hand on the bias; cross-attention hands its mask on, or nothing where nothing is padded. Evaluating 1,200 rows of
RTE takes 14% less processor time so, and training no less: a module that trains does as transformers' own, and so does
one with keys and values of a cache, and any kernel but sdpa. Weights, their names and the numbers are transformers'
(`tests/test_attention.py`). umT5, whose layers have a bias each, stays as it is.

Shapes: B rows, H heads, T queries, S keys, K width of a head, D model width.
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from transformers.models.mt5 import modeling_mt5
from transformers.models.t5 import modeling_t5

SDPA = "sdpa"


class QuickAttention:
    """Before a T5's attention class in the order of bases, its forward pass in evaluation.

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
        if self.training or past_key_values is not None or self.config._attn_implementation != SDPA:
            return super().forward(hidden_states, mask, key_value_states, position_bias, past_key_values, **kwargs)
        states_BSD = hidden_states if key_value_states is None else key_value_states
        query, key, value = (
            getattr(self, name)(states).unflatten(-1, (self.n_heads, self.key_value_proj_dim)).transpose(1, 2)
            for name, states in (("q", hidden_states), ("k", states_BSD), ("v", states_BSD))
        )
        bias = position_bias
        if bias is None:
            if self.has_relative_attention_bias:
                bias = self.compute_bias(query.shape[2], key.shape[2], device=query.device).contiguous()
            causal = self.is_causal and query.shape[2] > 1 and mask is None
            bias = merged(bias, mask, causal, query.dtype)
        found = F.scaled_dot_product_attention(query, key, value, bias, scale=self.scaling).transpose(1, 2)
        return self.o(found.reshape(*hidden_states.shape[:-1], self.inner_dim)), bias, None


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


QUICK = {modeling_t5.T5Attention: QuickT5Attention, modeling_mt5.MT5Attention: QuickMT5Attention}
