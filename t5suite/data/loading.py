"""Batches for a trainer: rows -> collator -> the device, in the trainer's own process or in workers.

>>> loader = EpochDataLoader(features, batch_sampler=sampler, collate_fn=collator, device=torch.device("cuda"))
>>> for batch in loader:                     # on the device; the copy runs beside what the device is doing
...     loss = model(**batch).loss

A batch of `TokenArrays` takes about 60 microseconds to make: it is made here, without workers, while a GPU is busy with
the last one. Workers are for collators and transforms that take longer (`--dataloader_num_workers`).
"""

from collections.abc import Callable, Iterator, Mapping

import torch
from torch.utils.data import DataLoader

from t5suite.data.worker_signals import ignore_in_worker, shielding_workers


class EpochDataLoader(DataLoader):
    """A DataLoader that tells its sampler the epoch, as the trainer announces it; stop signals spare its workers.

    Args:
      device: where batches go; a GPU is given them from pinned memory, and nothing waits for the copy. They stay where
        they are made without it.
      on_host: what a batch goes through before: whoever looked at it on the GPU would wait for all that goes before.
    """

    def __init__(self, *args, device: torch.device | None = None, on_host: Callable | None = None, **kwargs):
        self.on_host = on_host
        self.device = device if device is not None and device.type != "cpu" else None
        pin_memory = kwargs.pop("pin_memory", False) and self.device is not None and self.device.type == "cuda"
        self.pins_here = pin_memory and not kwargs.get("num_workers")
        kwargs["pin_memory"] = pin_memory and not self.pins_here  # a thread that only pins pays with workers alone
        super().__init__(*args, worker_init_fn=ignore_in_worker, **kwargs)

    def __iter__(self) -> Iterator[dict]:
        batches = self._made_here() if self.num_workers == 0 else self._made_by_workers()
        batches = batches if self.on_host is None else map(self.on_host, batches)
        return batches if self.device is None else (self._on_device(batch) for batch in batches)

    def _made_by_workers(self) -> Iterator[dict]:
        with shielding_workers():
            return super().__iter__()

    def _made_here(self) -> Iterator[dict]:
        """What `DataLoader` does without workers, less its profiler's marks, a third of the time of a batch."""
        # The number that it draws to seed its workers: how batches are made must not change what is drawn later.
        torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        pick = getattr(self.dataset, "__getitems__", None) or self._one_by_one
        return (self.collate_fn(pick(indices)) for indices in self.batch_sampler)

    def _one_by_one(self, indices) -> list:
        return [self.dataset[i] for i in indices]

    def _on_device(self, batch: Mapping) -> dict:
        if self.pins_here:
            batch = {name: value.pin_memory() if torch.is_tensor(value) else value for name, value in batch.items()}
        return {
            name: value.to(self.device, non_blocking=True) if torch.is_tensor(value) else value
            for name, value in batch.items()
        }

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on."""
        self.batch_sampler.set_epoch(epoch)
