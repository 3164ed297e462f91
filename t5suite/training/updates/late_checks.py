"""An update's loss and gradient norm, looked at one update later, so that the host never waits for a GPU.

    >>> late = LateNumbers(torch.device("cuda"))
    >>> optimizer.found_inf = late.put(41, loss, grad_norm)    # 1.0 where one is none: the device leaves the step out
    >>> late.take()                                            # at the next update, or before a log or checkpoint
    Late(step=41, loss=2.31, grad_norm=0.5)

To decide on the host whether an update is sound, the host must wait for it, and meanwhile queues nothing: the device
then idles while the next step is launched. Here the device decides: torch's fused optimizers take a `found_inf` and
leave weights, moments and step counts alone where it is 1, as under fp16's loss scaler. The numbers are copied to
pinned memory behind the step's work; when the next update is settled, they have arrived.
"""

from typing import NamedTuple

import torch

CHECKS = ("auto", "now", "late")


class Late(NamedTuple):
    """What an update came to. items: the target tokens that it was divided by."""

    step: int
    loss: float
    grad_norm: float
    items: torch.Tensor | None = None


class LateNumbers:
    """The numbers of one update on their way from the device."""

    def __init__(self, device: torch.device):
        on_gpu = device.type == "cuda"
        self._host = torch.zeros(2, dtype=torch.float64, pin_memory=on_gpu)
        self._arrived = torch.cuda.Event() if on_gpu else None
        self._numbers = self._host.numpy()  # the same memory; reading it asks no tensor
        self._waiting: tuple | None = None

    def put(self, step: int, loss: torch.Tensor, grad_norm: torch.Tensor, items=None) -> torch.Tensor:
        """Sends an update's numbers on their way; 1.0 where one is none, else 0.0, as 0-d float32 on the device."""
        assert self._waiting is None, "the update before has not been looked at"
        both = torch.stack([loss.detach().double(), grad_norm.detach().to(loss.device).double()])
        self._host.copy_(both, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()
        self._waiting = (step, items)
        return torch.isfinite(both).all().logical_not().float()

    def take(self) -> Late | None:
        """The numbers that are on their way, once; None where there are none."""
        if self._waiting is None:
            return None
        if self._arrived is not None:
            self._arrived.synchronize()
        (step, items), self._waiting = self._waiting, None
        return Late(step, float(self._numbers[0]), float(self._numbers[1]), items)


def hindrance(optimizer, policy: str, accelerator) -> str | None:
    """Why a run's updates cannot be looked at late; None where they can.

    >>> hindrance(optimizer, "skip", accelerator)
    '--loss_spikes skip must know of a spike before the update is made'
    """
    if accelerator.num_processes > 1 or accelerator.distributed_type.value in ("DEEPSPEED", "FSDP"):
        return "several ranks agree on each update before they make it"
    if policy in ("skip", "rollback"):
        return f"--loss_spikes {policy} must know of a spike before the update is made"
    if accelerator.scaler is not None:
        return "under --fp16 the loss scaler looks at every update itself"
    optimizer = getattr(optimizer, "optimizer", optimizer)
    able = getattr(optimizer, "skips_on_device", getattr(optimizer, "_step_supports_amp_scaling", False))
    return None if able else f"{type(optimizer).__name__} cannot leave a step out on the device; --optimizer adamw can"
