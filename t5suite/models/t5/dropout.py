"""Dropout on CPUs with fewer random bits.

    >>> quicken_dropout(model)                                      # the number of dropouts, attention's among them
    98

torch draws 24 random bits or more for every element. Here one 64-bit number decides for four elements, 16 bits each:
p is rounded to a multiple of 1/65536, and kept elements are scaled by exactly 1/(1-p) for that p. The numbers come from
torch's generator: a resumed run continues its sequence, and a recomputed layer (gradient checkpointing) draws the same
numbers again. GPUs, compiled models and evaluation use torch's own dropout.
"""

import torch

# Values of the 16 random bits of an element.
NUM_LEVELS = 1 << 16
# The attribute of `attention.QuickAttention` that makes it use `quick_dropout`.
SWITCH = "quick_dropout"


class QuickDropout(torch.nn.Dropout):
    """`torch.nn.Dropout` with quick random numbers."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Elements set to 0 with probability p in training, the others scaled up."""
        if self.training and draws_quickly(input, self.p):
            return quick_dropout(input, self.p)
        return super().forward(input)


def draws_quickly(input: torch.Tensor, p: float) -> bool:
    """Whether elements of a tensor are dropped, and `quick_dropout` can do it."""
    if torch.compiler.is_compiling():
        return False
    return 0 < p < 1 and input.device.type == "cpu" and input.is_floating_point()


def quick_dropout(input: torch.Tensor, p: float) -> torch.Tensor:
    """The input with elements set to 0 with probability p, to the nearest 1/65536, and the others scaled up."""
    dropped_levels = min(max(round(p * NUM_LEVELS), 1), NUM_LEVELS - 1)
    count = input.numel()
    numbers = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    levels = numbers.view(torch.int16)[:count].view(input.shape).float()
    keeps = levels.ge_(dropped_levels - NUM_LEVELS // 2)
    return input * keeps.mul_(NUM_LEVELS / (NUM_LEVELS - dropped_levels)).to(input.dtype)


def quicken_dropout(model: torch.nn.Module) -> int:
    """Makes every plain `torch.nn.Dropout` and every quick attention use quick dropout; returns how many."""
    plain_dropouts = [module for module in model.modules() if _is_plain_dropout(module)]
    for module in plain_dropouts:
        module.__class__ = QuickDropout
    attention = [module for module in model.modules() if hasattr(module, SWITCH)]
    for module in attention:
        setattr(module, SWITCH, True)
    return len(plain_dropouts) + len(attention)


def _is_plain_dropout(module: torch.nn.Module) -> bool:
    return type(module) is torch.nn.Dropout and not module.inplace
