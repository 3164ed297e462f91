"""Saves in checkpoints what losses count for the logs: a log may be written after a restart, of updates before it.

    >>> UpdateCounts(lambda: trainer.compute_loss_func, ranks).state_dict()
    {'MeasuredLoss': {'length': ['8.0', '2.0']}}
    >>> GuessCounts(watched_loss, "cpu", ranks).state_dict()
    {'counts': [7, 12]}

A checkpoint has the sums over all ranks. After a restart the main rank begins with them and the others with nothing,
so that their sum is the same, whatever their number is.
"""

from collections.abc import Callable

import torch

from t5suite.training.callback import Callback
from t5suite.training.losses import WatchedLoss, counting_losses


class UpdateCounts(Callback):
    """Saves in checkpoints what the losses counted in the last update.

    With `--logging_strategy epoch` its log may be written after a restart.

    Args:
      current_loss: returns the trainer's loss. The counts of it and of those that it wraps are saved, if they have
        `means`.
    """

    def __init__(self, current_loss: Callable, ranks):
        self.current_loss = current_loss
        self.ranks = ranks

    def state_dict(self) -> dict:
        """The counts over all ranks, by the name of the loss's class."""
        return {type(loss).__name__: texts_of_counts(loss.summed_counts(self.ranks)) for loss in self._losses()}

    def load_state_dict(self, state_dict: dict) -> None:
        """The main rank goes on from the counts of all, the others from none."""
        for loss in self._losses():
            loss.counts = counts_of_texts(state_dict.get(type(loss).__name__), self.ranks.is_main)

    def _losses(self) -> list:
        return [loss for loss in counting_losses(self.current_loss()) if hasattr(loss, "means")]


class GuessCounts(Callback):
    """Saves in checkpoints the guesses that a loss has counted since the last log."""

    def __init__(self, loss: WatchedLoss, device, ranks):
        self.loss = loss
        self.device = device
        self.ranks = ranks

    def state_dict(self) -> dict:
        """The counts over all ranks."""
        return {"counts": self.loss.summed_counts(self.ranks)}

    def load_state_dict(self, state_dict: dict) -> None:
        """The main rank goes on from the counts of all, the others from none."""
        counts = state_dict["counts"]
        if counts is not None:
            self.loss.counts = torch.tensor(counts, device=self.device) * self.ranks.is_main


def texts_of_counts(counts):
    """Counts as JSON values: texts, as JSON has no number for infinity.

    >>> texts_of_counts({"length": [8.0, 2.0]})
    {'length': ['8.0', '2.0']}
    """
    if isinstance(counts, dict):
        return {name: texts_of_counts(pair) for name, pair in counts.items()}
    return None if counts is None else [str(number) for number in counts]


def counts_of_texts(texts, is_main: bool):
    """Counts over all ranks, by `texts_of_counts` -> a rank's own, whose sum over the ranks is the same.

    >>> counts_of_texts({"length": ["8.0", "2.0"]}, is_main=True)
    {'length': tensor([8., 2.], dtype=torch.float64)}
    """
    if texts is None:
        return None
    if isinstance(texts, dict):
        return {name: counts_of_texts(pair, is_main) for name, pair in texts.items()}
    counts = torch.tensor([float(text) for text in texts], dtype=torch.float64)
    return counts if is_main else torch.zeros_like(counts)
