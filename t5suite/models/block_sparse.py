"""Block-sparse self-attention for T5's encoder: a token sees its own block, those around it, and the first ones.

    >>> block_pattern(6, block_size=2, num_window_blocks=0, num_global_blocks=1).int()
    tensor([[1, 1, 1, 1, 1, 1],
            [1, 1, 1, 1, 1, 1],
            [1, 1, 1, 1, 0, 0],
            [1, 1, 1, 1, 0, 0],
            [1, 1, 0, 0, 1, 1],
            [1, 1, 0, 0, 1, 1]])

BigBird's pattern without its random blocks (arXiv:2007.14062, section 2). The pattern is a mask: what is seen is exact,
but scores are computed for all pairs, so that it saves no time or memory. It is the worked example of
`t5suite.models.own_models`, and shows what a pattern costs in quality. Shapes: B rows, S source tokens.
"""

import torch
from transformers.models.t5.modeling_t5 import T5Attention

from t5suite.base.errors import ConfigError


class BlockSparseT5Attention(T5Attention):
    """T5's self-attention under a `block_pattern`; weights and their names are those of the module it replaces.

    Args:
      attention: a `T5Attention` of an encoder.
      block_size: tokens of a block.
      num_window_blocks: blocks seen on either side of a token's own.
      num_global_blocks: blocks at the beginning that see all and are seen by all.
    """

    def __init__(self, attention, block_size: int = 64, num_window_blocks: int = 1, num_global_blocks: int = 1):
        if not isinstance(attention, T5Attention) or attention.is_decoder:
            raise ConfigError("BlockSparseT5Attention replaces the self-attention of a T5's encoder alone")
        counts = {"num_window_blocks": (num_window_blocks, 0), "num_global_blocks": (num_global_blocks, 0)}
        for name, (value, least) in {"block_size": (block_size, 1), **counts}.items():
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"BlockSparseT5Attention: {name} {value!r} must be a whole number from {least} on")
        torch.nn.Module.__init__(self)
        self.__dict__.update(attention.__dict__)
        self.pattern = {
            "block_size": block_size,
            "num_window_blocks": num_window_blocks,
            "num_global_blocks": num_global_blocks,
        }

    def forward(self, hidden_states, mask=None, key_value_states=None, **kwargs):
        """As `T5Attention.forward`, fewer pairs seeing each other."""
        assert key_value_states is None, "this is self-attention"
        seen_SS = block_pattern(hidden_states.shape[1], **self.pattern, device=hidden_states.device)
        return super().forward(hidden_states, mask=_both(mask, seen_SS, self.config, hidden_states.dtype), **kwargs)


def block_pattern(length: int, block_size: int, num_window_blocks: int, num_global_blocks: int, device=None):
    """Who sees whom, bool [length, length]."""
    block_S = torch.arange(length, device=device) // block_size
    near_SS = (block_S[:, None] - block_S[None, :]).abs() <= num_window_blocks
    global_S = block_S < num_global_blocks
    return near_SS | global_S[:, None] | global_S[None, :]


def _both(mask, seen_SS, config, dtype):
    """The mask and the pattern at once, in the mask's form (booleans, or numbers to be added).

    A token always sees itself: padding far from all real tokens would see nobody, and an empty softmax is no number.
    """
    itself_SS = torch.eye(len(seen_SS), dtype=torch.bool, device=seen_SS.device)
    if mask is not None and mask.dtype != torch.bool:
        lowest = torch.finfo(mask.dtype).min
        return mask.masked_fill(~seen_SS, lowest).masked_fill(itself_SS, 0.0)
    both = (seen_SS if mask is None else mask & seen_SS) | itself_SS
    both = both if both.dim() == 4 else both[None, None]
    if config._attn_implementation != "eager":
        return both
    return torch.zeros(both.shape, dtype=dtype, device=both.device).masked_fill(~both, torch.finfo(dtype).min)
