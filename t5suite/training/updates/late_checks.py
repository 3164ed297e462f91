"""An update's loss and gradient norm, looked at one update later, so that the host never waits for a GPU.

    >>> late = LateNumbers(torch.device("cuda"))
    >>> optimizer.found_inf = late.put(41, loss, grad_norm)    # 1.0 where one is none: the device leaves the step out
    >>> late.take()                                            # at the next update, or before a log or checkpoint
    Late(step=41, totals=Totals(loss=2.31, grad_norm=0.5, stop=False, grew=False), items=None, failure=None)

To decide on the host whether an update is sound, the host must wait for it, and meanwhile queues nothing: the device
then idles while the next step is launched. Here the device decides: torch's fused optimizers take a `found_inf` and
leave weights, moments and step counts alone where it is 1, as under fp16's loss scaler. The numbers are copied to
pinned memory behind the step's work; when the next update is settled, they have arrived.

Several ranks add their numbers up before the device decides, by one all-reduce of four numbers in the group that has
just exchanged the gradients: on GPUs it is queued like any other work (NCCL), so that no host waits for another one,
either. That a rank was asked to stop, or ran out of memory, travels with them and is known one update later.
"""

from typing import NamedTuple

import torch
import torch.distributed as dist

from t5suite.training.updates.votes import Totals

CHECKS = ("auto", "now", "late")


class Late(NamedTuple):
    """What an update came to.

    Attributes:
      items: the target tokens that it was divided by.
      failure: what this rank's allocator said in it, None if nothing.
    """

    step: int
    totals: Totals
    items: torch.Tensor | None = None
    failure: str | None = None


class LateNumbers:
    """The numbers of one update on their way from the device.

    Args:
      num_ranks: how many add their numbers up; more than one in torch's default process group.
    """

    def __init__(self, device: torch.device, num_ranks: int = 1):
        on_gpu = device.type == "cuda"
        self.num_ranks = num_ranks
        self._host = torch.zeros(4, dtype=torch.float64, pin_memory=on_gpu)
        self._arrived = torch.cuda.Event() if on_gpu else None
        self._numbers = self._host.numpy()  # the same memory; reading it asks no tensor
        self._waiting: tuple | None = None

    def put(
        self, step: int, loss: torch.Tensor, grad_norm: torch.Tensor, items=None, *, stop=False, failure=None
    ) -> torch.Tensor:
        """Sends an update's numbers on their way; 1.0 where one is none, else 0.0, as 0-d float32 on the device.

        Args:
          loss: this rank's, scaled as the trainer scales it: the mean over ranks is the update's.
          grad_norm: of the gradients that all ranks have in common.
          stop, failure: whether this rank was asked to stop, and what its allocator said.
        """
        assert self._waiting is None, "the update before has not been looked at"
        flags = [_filled(loss, bool(stop)), _filled(loss, failure is not None)]
        sums = torch.stack([loss.detach().double(), grad_norm.detach().to(loss.device).double(), *flags])
        if self.num_ranks > 1:
            sums[:2] /= self.num_ranks
            dist.all_reduce(sums)
        self._host.copy_(sums, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record()
        self._waiting = (step, items, failure)
        return torch.isfinite(sums).all().logical_not().float()

    def take(self) -> Late | None:
        """The numbers that are on their way, once; None where there are none."""
        if self._waiting is None:
            return None
        if self._arrived is not None:
            self._arrived.synchronize()
        (step, items, failure), self._waiting = self._waiting, None
        loss, grad_norm, stop, grew = map(float, self._numbers)
        return Late(step, Totals(loss, grad_norm, stop > 0, grew > 0), items, failure)


def _filled(like: torch.Tensor, flag: bool) -> torch.Tensor:
    """A flag on the device of a tensor: filled there, where a copy from the host would be waited for."""
    return torch.full((), float(flag), dtype=torch.float64, device=like.device)


def hindrance(optimizer, policy: str, accelerator) -> str | None:
    """Why a run's updates cannot be looked at late; None where they can.

    >>> hindrance(optimizer, "skip", accelerator)
    '--loss_spikes skip must know of a spike before the update is made'
    """
    if accelerator.distributed_type.value in ("DEEPSPEED", "FSDP"):
        return "where weights are sharded, ranks agree on each update before they make it"
    if accelerator.num_processes > 1 and not _adds_on(accelerator.device):
        return "the ranks' process group copies a GPU's numbers to the host to add them up"
    if policy in ("skip", "rollback"):
        return f"--loss_spikes {policy} must know of a spike before the update is made"
    if accelerator.scaler is not None:
        return "under --fp16 the loss scaler looks at every update itself"
    optimizer = getattr(optimizer, "optimizer", optimizer)
    able = getattr(optimizer, "skips_on_device", getattr(optimizer, "_step_supports_amp_scaling", False))
    return None if able else f"{type(optimizer).__name__} cannot leave a step out on the device; --optimizer adamw can"


def _adds_on(device: torch.device) -> bool:
    """Whether ranks add numbers up where they are."""
    return device.type == "cpu" or "nccl" in str(dist.get_backend_config())
