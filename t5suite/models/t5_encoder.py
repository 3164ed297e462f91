"""T5's encoder taken apart, for evaluation: what all layers share is made once, and layers hand on plain tensors.

    >>> encoded(model, ids_BS, mask_BS)                        # (B, S, D); a T5, mT5 or umT5
    >>> encoded(model, ids_BS, None)                           # nothing is padded
    >>> in_row_pieces(functools.partial(encoded, model), ids_BS, mask_BS, lengths_B, most_tokens=2048)    # many rows

transformers 5.23 puts bias and mask together anew in every layer and asks on the device whether anything is padded.
Here both are put together once a batch, queries, keys and values are one product, and on a CPU short rows attend by
plain batched products, which take 0.6 to 0.9 of the time of torch's fused kernel there. The numbers are the model's own
but for rounding. Gradients need the model itself.

Shapes: B rows, S source tokens, D model width, H heads, K width of a head, X = B x H.
"""

import numpy as np
import torch
import torch.nn.functional as F

from t5suite.models.cached_prompts import plain
from t5suite.models.t5_decoder import STOCK_ATTENTION, bare, in_pieces, is_plain_linear, is_stock, normed

# Kernels that add the bias to the scores as they come; with others the encoder is the model's own.
KERNELS = ("sdpa", "eager")
# On a CPU, rows up to this many tokens attend by batched products.
SHORT = 64


def takes_encoder_apart(model) -> bool:
    """Whether a model's encoder is transformers' own T5, mT5 or umT5, whole in this process, in a dtype that is wide
    enough (float16 needs T5's clamps), with nothing hooked into its layers."""
    inner = plain(model)
    if not is_stock(inner, STOCK_ATTENTION) or model.dtype == torch.float16 or in_pieces(model):
        return False
    if getattr(inner.config, "_attn_implementation", None) not in KERNELS:
        return False
    attentions = [block.layer[0].SelfAttention for block in inner.encoder.block]
    layers = [part for block in inner.encoder.block for part in (block, *block.layer)]
    stock = is_stock(inner.encoder, STACKS) and all(is_stock(part, STOCK_ATTENTION.values()) for part in attentions)
    return stock and all(is_stock(part, LAYERS) and bare(part) for part in layers)


def encoded(model, ids_BS: torch.Tensor, mask_BS: torch.Tensor | None) -> torch.Tensor:
    """The encoder's states, as the model's own encoder in evaluation makes them.

    Args:
      mask_BS: 1 for a token; None where nothing is padded.
    """
    encoder = plain(model).encoder
    x_BSD = encoder.embed_tokens(ids_BS)
    attends = None
    for block in encoder.block:
        own, feed_forward = block.layer
        if own.SelfAttention.has_relative_attention_bias:  # umT5 has one a layer, T5 one for all
            attends = _Attention(own.SelfAttention, x_BSD, mask_BS)
        x_BSD = x_BSD + attends(own.SelfAttention, normed(own.layer_norm, x_BSD))
        x_BSD = x_BSD + feed_forward.DenseReluDense(normed(feed_forward.layer_norm, x_BSD))
    return normed(encoder.final_layer_norm, x_BSD)


def in_row_pieces(encode, ids_BS, mask_BS, lengths_B: np.ndarray, most_tokens: int) -> torch.Tensor:
    """What `encode(ids, mask)` says of neighbouring rows, in pieces of so many tokens at most, each as wide as its
    longest row and without a mask where nothing is padded. Behind a row's piece there are zeros.

    Args:
      lengths_B: tokens of each row, on the host; rows of like length had better stand together.
    """
    found_BSD = None
    pieces = row_pieces(lengths_B, most_tokens)
    for rows in pieces:
        width = int(lengths_B[rows].max())
        if ids_BS.device.type == "cuda":  # kernels there take rows of eighths; others are copied for them
            width = min(-(-width // 8) * 8, ids_BS.shape[1])
        mask = None if lengths_B[rows].min() == width else mask_BS[rows, :width]
        states = encode(ids_BS[rows, :width], mask)
        if len(pieces) == 1 and width == ids_BS.shape[1]:
            return states
        if found_BSD is None:
            found_BSD = states.new_zeros(*ids_BS.shape, states.shape[-1])
        found_BSD[rows, :width] = states
    return found_BSD


def cast_to(device: torch.device) -> torch.dtype | None:
    """What autocast has products computed in on this device; None where it is off."""
    kind = device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if on else None


def row_pieces(lengths_B, most_tokens: int) -> list[slice]:
    """Neighbouring rows in pieces of at most so many tokens, padding counted, each of one row at least.

    >>> row_pieces([9, 5, 4, 3], 10)
    [slice(0, 1, None), slice(1, 3, None), slice(3, 4, None)]
    """
    starts, longest = [0], 0
    for row, length in enumerate(lengths_B):
        longest = max(longest, length)
        if row > starts[-1] and (row + 1 - starts[-1]) * longest > most_tokens:
            starts.append(row)
            longest = length
    return [slice(start, end) for start, end in zip(starts, [*starts[1:], len(lengths_B)], strict=True)]


class _Attention:
    """Bias and mask of a batch, put together, and what attends with them."""

    def __init__(self, attention, x_BSD, mask_BS):
        self.rows, self.length = x_BSD.shape[:2]
        bias_1HSS = attention.compute_bias(self.length, self.length, device=x_BSD.device)
        wide = x_BSD.dtype in (torch.float32, torch.float64) and cast_to(x_BSD.device) is None
        self.by_products = x_BSD.device.type == "cpu" and wide and self.length <= SHORT
        bias_1HSS = bias_1HSS.to(cast_to(x_BSD.device) or x_BSD.dtype)  # as the queries, before it grows
        if mask_BS is not None:
            lowest = torch.finfo(bias_1HSS.dtype).min
            bias_1HSS = torch.where(mask_BS.bool()[:, None, None, :], bias_1HSS, lowest)
        self.bias_BHSS = bias_1HSS.expand(self.rows, -1, -1, -1)
        self.bias_XSS = self.bias_BHSS.reshape(-1, self.length, self.length) if self.by_products else None

    def __call__(self, attention, x_BSD) -> torch.Tensor:
        query, key, value = self._by_head(attention, x_BSD)
        if self.by_products:
            scores_XSS = torch.baddbmm(self.bias_XSS, query.flatten(0, 1), key.flatten(0, 1).transpose(1, 2))
            found = torch.bmm(scores_XSS.softmax(-1), value.flatten(0, 1)).unflatten(0, query.shape[:2])
        else:
            found = F.scaled_dot_product_attention(query, key, value, attn_mask=self.bias_BHSS, scale=1.0)
        return attention.o(found.transpose(1, 2).flatten(2))

    def _by_head(self, attention, x_BSD):
        """Queries, keys and values (B, H, S, K), contiguous where products take them."""
        parts, shape = (attention.q, attention.k, attention.v), (attention.n_heads, attention.key_value_proj_dim)
        if not all(map(is_plain_linear, parts)):
            return [part(x_BSD).unflatten(-1, shape).transpose(1, 2).contiguous() for part in parts]
        found = F.linear(x_BSD, torch.cat([part.weight for part in parts])).unflatten(-1, (3, *shape))
        found = found.permute(2, 0, 3, 1, 4)
        return (found.contiguous() if self.by_products else found).unbind(0)


STACKS = ("T5Stack", "MT5Stack", "UMT5Stack")
LAYERS = tuple(name + part for name in ("T5", "MT5", "UMT5") for part in ("Block", "LayerSelfAttention", "LayerFF"))
