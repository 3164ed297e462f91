"""What an update came to over all ranks, and the one message by which they agree on it.

>>> UpdateVote(Ranks()).take(loss=torch.tensor(2.5), grad_norm=torch.tensor(0.5), stop=False)
Totals(loss=2.5, grad_norm=0.5, stop=False, grew=False)
"""

from dataclasses import dataclass

import torch

from t5suite.training.processes.ranks import Ranks


@dataclass(frozen=True)
class Totals:
    """What an update came to over all ranks.

    Attributes:
      loss, grad_norm: of the whole update; nan or inf if one rank's is. grad_norm is None where it is not known.
      stop: one rank at least was asked to stop.
      grew: on one rank at least, micro-batches are now cut into more pieces.
    """

    loss: float
    grad_norm: float | None
    stop: bool = False
    grew: bool = False


@dataclass
class UpdateVote:
    """One all-reduce an update for everything that ranks must agree on; none where there is one rank.

    >>> UpdateVote(Ranks()).take(loss=torch.tensor(2.5), grad_norm=torch.tensor(0.5), stop=False)
    Totals(loss=2.5, grad_norm=0.5, stop=False, grew=False)
    """

    ranks: Ranks

    def take(self, loss, grad_norm=None, stop: bool = False, grew: bool = False) -> Totals:
        """Every rank must call it once an update.

        Args:
          loss: this rank's, scaled as the trainer scales it: the mean over ranks is the update's.
          grad_norm: of the gradients that all ranks have in common.
        """
        loss, norm = numbers(loss, grad_norm)
        size = self.ranks.world_size
        if size > 1:
            sums = self.ranks.sum([loss / size, (norm or 0.0) / size, float(stop), float(grew)])
            loss, norm = sums[0], None if norm is None else sums[1]
            stop, grew = sums[2] > 0, sums[3] > 0
        return Totals(loss, norm, bool(stop), bool(grew))


def numbers(loss, grad_norm) -> tuple[float, float | None]:
    """Both as Python numbers, fetched from the device at once."""
    if hasattr(grad_norm, "full_tensor"):
        grad_norm = grad_norm.full_tensor()
    if torch.is_tensor(loss) and torch.is_tensor(grad_norm):
        return tuple(torch.stack([loss.double(), grad_norm.to(loss.device).double()]).tolist())
    return float(loss), None if grad_norm is None else float(grad_norm)
