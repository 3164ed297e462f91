"""Tensors to a device and back, without the host waiting for what the device still does.

    >>> ids_BS = to_device(ids_BS, torch.device("cuda"))               # on its way while the host goes on
    >>> answers = to_host(written_BT)                                  # on its way back
    >>> answers().tolist()                                             # waits for this one alone

A GPU works behind the host: what it computes is there a while after it was asked for. Every look at a value (`.item()`,
`.tolist()`, `bool()` of a tensor, indexing by booleans) makes the host wait until the GPU has done all, which then has
nothing to do until the host asks for more. Copies from and to pinned memory do without. On a CPU nothing is copied.
"""

from collections import deque
from collections.abc import Callable

import torch

# How many looks a GPU may be behind: by then it has most often come that far, and nobody waits.
LAG = 2


def to_device(tensor: torch.Tensor, device) -> torch.Tensor:
    """The tensor on a device; what follows there finds it complete."""
    device = torch.device(device)
    if device.type != "cuda" or tensor.device.type == "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Begins to copy a tensor to the host; what it returns waits for that copy and gives it."""
    if tensor.device.type != "cuda":
        return lambda: tensor
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    event = torch.cuda.Event()
    event.record()

    def wait() -> torch.Tensor:
        event.synchronize()
        return copy

    return wait


class LateCounts:
    """A number that changes at every step, told a few steps late where the device works behind.

    >>> numbers = LateCounts(torch.device("cpu"))                     # here at once
    >>> numbers.look(torch.tensor(7))
    7
    >>> numbers = LateCounts(torch.device("cuda"))
    >>> [numbers.look(count) for count in counts]                      # of counts that are 7, 5, 3, ...
    [None, None, 7, 5, ...]
    """

    def __init__(self, device: torch.device, lag: int | None = None):
        self.lag = (LAG if device.type == "cuda" else 0) if lag is None else lag
        self.coming = deque()

    def look(self, number: torch.Tensor) -> int | None:
        """Hands in this step's number; returns the one of `lag` steps ago, None where there was none."""
        self.coming.append(to_host(number))
        return int(self.coming.popleft()()) if len(self.coming) > self.lag else None
