"""Batches for a plain `torch.nn.Module`, which makes its loss of the labels by itself.

>>> ModuleCollator(Seq2SeqCollator(0, 0))([{"input_ids": [5, 1], "labels": [9, 1]}])
{'input_ids': [[5, 1]], ..., 'labels': [[9, 1]], 'labels_of_module': [[9, 1]]}

The trainer takes `labels` out of a batch for a loss of its own, and counts those that are not -100. The module is given
the second copy. Shapes: B rows, T target tokens.
"""

import torch

from t5suite.data.collators import IGNORED

MODULE_LABELS = "labels_of_module"


class ModuleCollator:
    """A collator whose batches carry labels twice: to be counted, and for the module.

    Args:
      takes_labels: whether the module is given labels; its loss is counted by rows if not, or if there are none.
    """

    def __init__(self, collator, takes_labels: bool = True):
        self.collator = collator
        self.takes_labels = takes_labels

    def __getattr__(self, name):
        if name in ("collator", "takes_labels"):  # not there yet while a worker unpickles
            raise AttributeError(name)
        return getattr(self.collator, name)

    def __call__(self, features):
        batch = dict(self.collator(features))
        labels = batch.get("labels")
        if labels is None or not self.takes_labels:
            rows = len(next(iter(batch.values())))
            return {**batch, "labels": torch.full((rows,), 0 if features else IGNORED)}
        return {**batch, MODULE_LABELS: labels}


def as_module_sees(batch: dict) -> dict:
    """A batch with the module's labels under their usual name."""
    if MODULE_LABELS not in batch:
        return dict(batch)
    return {**{name: value for name, value in batch.items() if name != MODULE_LABELS}, "labels": batch[MODULE_LABELS]}
