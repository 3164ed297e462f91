"""`--batch_metrics`: the user's numbers of a training batch, as means over the logged updates.

>>> trainer.measure(certainty)                          # certainty(outputs, batch) -> {"certainty": [B]}
>>> weighted_sums({"certainty": torch.tensor([0.5, 0.7])}, torch.tensor([[7, -100], [8, 9]]))
{'certainty': tensor([1.2000, 2.0000], dtype=torch.float64)}
"""

import math
from collections.abc import Callable

import torch

from t5suite.base.errors import ConfigError
from t5suite.data.batches.collators import IGNORED
from t5suite.training.losses import LossWithMeans

# Names that the trainer logs itself.
RESERVED_NAMES = (
    "loss", "grad_norm", "learning_rate", "epoch", "step", "total_flos", "skipped_updates", "kl", "seconds_per_step",
    "tokens_per_second", "tokens_seen", "mfu", "data_wait", "peak_memory_gb", "seconds_left", "train_loss",
    "train_runtime", "train_samples_per_second", "train_steps_per_second",
)  # fmt: skip


class MeasuredLoss(LossWithMeans):
    """A loss that also calls `batch_metrics`; its `counts` are `{name: [sum, weight]}`."""

    def __init__(self, loss, batch_metrics: Callable):
        super().__init__(loss)
        self.batch_metrics = batch_metrics

    def summed_counts(self, ranks) -> dict[str, list[float]] | None:
        """`counts` over all ranks; None, on all ranks, before the first batch of an update."""
        if self.counts is None:
            return None
        return {name: ranks.sum(self.counts[name].tolist()) for name in sorted(self.counts)}

    def means(self, ranks) -> dict[str, float]:
        """The means over the last update and all ranks, which the call clears."""
        counts = self.summed_counts(ranks) or {}
        self.counts = None
        means = {name: total / weight if weight else math.nan for name, (total, weight) in counts.items()}
        inner_means = self.loss.means(ranks) if hasattr(self.loss, "means") else {}
        return inner_means | means

    def __call__(self, outputs, labels, num_items_in_batch=None) -> torch.Tensor:
        loss = self.loss(outputs, labels, num_items_in_batch=num_items_in_batch)
        if self.watching:
            with torch.no_grad():
                sums = weighted_sums(self.batch_metrics(outputs, self.batch), labels)
            earlier = self.counts or {}
            self.counts = {name: pair + earlier.get(name, 0.0) for name, pair in sums.items()}
        return loss


def weighted_sums(metrics, labels) -> dict[str, torch.Tensor]:
    """The result of `batch_metrics` as `{name: [sum, weight]}`.

    >>> weighted_sums({"length": torch.tensor([3.0, 5.0])}, torch.tensor([[7, -100], [8, 9]]))
    {'length': tensor([8., 2.])}
    """
    if not isinstance(metrics, dict):
        raise ConfigError(f"--batch_metrics: it returned {metrics!r:.80}, not {{name: tensor}}")
    counts = labels.ne(IGNORED)
    row_counts = counts.reshape(len(counts), -1).any(dim=1)
    sums = {}
    for name, value in metrics.items():
        if name in RESERVED_NAMES:
            raise ConfigError(f"--batch_metrics: {name!r} is logged by the trainer; give it another name")
        if not isinstance(name, str) or "/" in name:
            raise ConfigError(f"--batch_metrics: {name!r} is not a metric's name; give a text without a slash")
        value = torch.as_tensor(value, device=labels.device).detach().double()
        if value.shape == labels.shape:
            weights = counts
        elif value.shape == row_counts.shape:
            weights = row_counts
        elif value.ndim == 0:
            value = value.reshape(1)
            weights = counts.sum().reshape(1)
        else:
            raise ConfigError(
                f"--batch_metrics: {name!r} has shape {tuple(value.shape)}; it may be a number, one per row "
                f"[{len(labels)}], or one per label {list(labels.shape)}"
            )
        # A padded row's number may be NaN (0/0): it does not count.
        total = torch.where(weights > 0, value * weights, 0.0).sum()
        sums[name] = torch.stack([total, weights.sum().double()])
    return sums
