"""torch's FlexAttention with T5's position bias, read from a tensor that is there already.

    >>> found_BTHK = flex_attend(query, key, value, mask, bias, is_causal=False, scaling=1.0)

The bias [1, H, T, S] is read in the score of each pair; computing it from distances there is slower (pytorch issue
138493: 386 against 496 TFLOP/s forward). Its gradient is summed by atomic additions in the backward kernel, in an order
that differs from run to run. transformers 5.23's own form reads the bias by the row's number and so out of bounds, and
is not used (`test_transformers_flex_still_reads_out_of_bounds`).

No dropout, and on CPUs no backward pass (torch 2.13). Outside of `torch.compile` the kernel is compiled alone, once a
shape, on GPUs; on a CPU it is computed step by step.

Shapes: B rows, H heads, T queries, S keys, K width of a head.
"""

import functools

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import flex_attention


def flex_attend(query, key, value, mask, bias, is_causal: bool, scaling: float) -> torch.Tensor:
    """Attention (B, T, H, K). A query that sees nothing gets zeros.

    Args:
      query, key, value: (B, H, T or S, K).
      mask: bool [B, 1, T or 1, S], True for what is seen; or None.
      bias: [1 or B, H, T, S], added to scores; or None.
      is_causal: a token sees none behind it.
    """
    if query.device.type == "meta":  # where torch 2.13 refuses it: the same shapes and products without values
        found = F.scaled_dot_product_attention(query, key, value, bias, is_causal=is_causal and bias is None)
        return found.transpose(1, 2)
    kernel = flex_attention if torch.compiler.is_compiling() or query.device.type == "cpu" else _compiled()
    modify = _score(query, key, mask, bias, is_causal)
    return kernel(query, key, value, score_mod=modify, scale=scaling).transpose(1, 2)


def _score(query, key, mask, bias, is_causal: bool):
    """How the score of a pair (row b, head h, query q, key k) is made of the product of its vectors."""
    if mask is not None:
        mask = mask[:, 0].expand(query.shape[0], query.shape[2], key.shape[2])
    if bias is not None:
        bias = bias.expand(query.shape[0], -1, -1, -1) if len(bias) > 1 else bias[0]

    def modify(score, b, h, q, k):
        if bias is not None:
            score = score + (bias[h, q, k] if bias.dim() == 3 else bias[b, h, q, k])
        if mask is not None:
            score = torch.where(mask[b, q, k], score, -torch.inf)
        return torch.where(q >= k, score, -torch.inf) if is_causal else score

    return modify


@functools.cache
def _compiled():
    return torch.compile(flex_attention)
