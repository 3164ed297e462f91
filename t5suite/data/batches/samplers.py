"""Which examples a step sees: a function of the seed and the step, never of workers, ranks or restarts.

    >>> sampler = GlobalBatchSampler(epoch_order, batch_size=2, accumulation=1, rank=0, world_size=2)
    >>> list(sampler)            # rank 0's share of epoch 0; rank 1 gets the other half of every step
    [[3, 1], [0]]

An update takes the next `batch_size * accumulation * world_size` examples of the epoch's order; each micro-batch of it
is cut into one share a rank. No row is repeated to fill ranks: the last update of an epoch is smaller, and a rank that
is left without a row gets `[]` (the collator makes a batch of it that counts for nothing).
"""

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import resource_tracker

import numpy as np
import torch
from torch.utils.data import DataLoader

from t5suite.base.errors import STOP_SIGNALS, ConfigError


class GlobalBatchSampler:
    """A batch sampler for one rank.

    Args:
      epoch_order: epoch -> the indices of all its examples, in order.
      batch_size: examples a rank takes at once.
      accumulation: micro-batches an update.
    """

    def __init__(self, epoch_order: Callable[[int], np.ndarray], batch_size, accumulation, rank=0, world_size=1):
        self.epoch_order, self.batch_size, self.accumulation = epoch_order, batch_size, accumulation
        self.rank, self.world_size = rank, world_size
        self.epoch = self._passed_over = 0
        self._length = -(-len(epoch_order(0)) // (batch_size * world_size))

    def set_epoch(self, epoch: int) -> None:
        """The trainer says which epoch comes next."""
        self.epoch = epoch

    def pass_over(self, num_batches: int) -> None:
        """The next pass gives None for so many batches at its beginning: whoever resumes throws them away unread.

        Making them took a resumed run 20 s for the million batches before it.
        """
        self._passed_over = num_batches

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[list[int]]:
        order = self.epoch_order(self.epoch)
        step = self.batch_size * self.world_size
        passed_over, self._passed_over = self._passed_over, 0
        yield from itertools.repeat(None, passed_over)
        for start in range(passed_over * step, len(order), step):
            yield rank_share(order[start : start + step], self.rank, self.world_size)


def rank_share(indices, rank: int, world_size: int) -> list[int]:
    """A rank's part of a micro-batch; sizes differ by one at most.

    >>> [rank_share([7, 8, 9], rank, 2) for rank in (0, 1)]
    [[7, 8], [9]]
    """
    size, more = divmod(len(indices), world_size)
    start = rank * size + min(rank, more)
    return np.asarray(indices[start : start + size + (rank < more)]).tolist()


def shuffled_order(num_examples: int, seed: int) -> Callable[[int], np.ndarray]:
    """Epoch -> a permutation of all examples."""
    return lambda epoch: np.random.default_rng((seed, epoch)).permutation(num_examples)


# How far, as a share of its length, an example may stand from where sorting would put it: an epoch's updates are made
# anew of neighbours, where few examples are equally long. Twice as much would bring twice the padding.
JITTER = 0.02


def length_grouped_order(lengths, update_size: int, seed: int) -> Callable[[int], np.ndarray]:
    """Epoch -> a permutation in which the examples of one update have about the same length.

    The epoch's permutation is sorted by length (each off by up to 2% by chance, equal ones in the permutation's order),
    cut into updates, and the updates are shuffled; the smaller last update is drawn by chance before, and stays last.
    Of MNLI's input tokens, 32 rows an update, 99% are no padding then; of updates sorted in pieces of 50 updates, 96%;
    of shuffled ones, 46%.
    """
    lengths = np.asarray(lengths)

    def order(epoch: int) -> np.ndarray:
        rng = np.random.default_rng((seed, epoch))
        permutation = rng.permutation(len(lengths))
        whole = len(permutation) - len(permutation) % update_size
        kept, rest = permutation[:whole], permutation[whole:]
        jittered = lengths[kept] * rng.uniform(1 - JITTER, 1 + JITTER, whole)
        updates = kept[np.argsort(-jittered, kind="stable")].reshape(-1, update_size)
        updates = updates[rng.permutation(len(updates))]
        return np.concatenate([updates.reshape(-1), rest[np.argsort(-lengths[rest], kind="stable")]])

    return order


def shifted_order(order: Callable[[int], np.ndarray], epoch_length: int, offset: int) -> Callable[[int], np.ndarray]:
    """Epoch -> its piece of the run-long order (all epochs one after the other), begun `offset` examples further on.

    >>> order = shifted_order(lambda epoch: np.arange(epoch * 4, epoch * 4 + 4), epoch_length=4, offset=6)
    >>> order(0).tolist(), order(1).tolist()
    ([6, 7, 8, 9], [10, 11, 12, 13])

    With a negative offset a run's later steps see the first examples; what would lie before them is filled up, for it
    is passed over.

    Raises:
      ConfigError: the order ends before the epoch does (a mixture is drawn for as many steps as the run has).
    """

    def shifted(epoch: int) -> np.ndarray:
        first, start = divmod(offset + epoch * epoch_length, epoch_length)
        both = _joined(order(max(0, first)), order(max(0, first + 1))) if start else order(max(0, first))
        piece = both[start : start + epoch_length]
        if len(piece) < epoch_length:
            raise ConfigError("a mixture's draws end with its steps: add data to --reset, so that it starts anew")
        return piece

    return shifted


def _joined(first, second):
    """One order behind the other; run-long numbers stay a `range`, however many there are."""
    if isinstance(first, range) and isinstance(second, range) and first.stop == second.start:
        return range(first.start, second.stop)
    return np.concatenate([first, second])


# ---------------------------------------------------------------------------------------------------------------------
# Batches for a trainer: rows -> collator -> the device, in the trainer's own process or in workers.
#
# A batch of `TokenArrays` takes about 60 microseconds to make; workers are for transforms that take longer.


class EpochDataLoader(DataLoader):
    """A DataLoader that tells its sampler the epoch, as the trainer announces it; stop signals spare its workers.

    Args:
      device: where batches go; a GPU is given them from pinned memory, and nothing waits for the copy. They stay where
        they are made without it.
    """

    def __init__(self, *args, device: torch.device | None = None, **kwargs):
        self.device = device if device is not None and device.type != "cpu" else None
        kwargs["pin_memory"] = bool(kwargs.get("pin_memory") and self.device is not None and self.device.type == "cuda")
        super().__init__(*args, worker_init_fn=ignore_in_worker, **kwargs)

    def __iter__(self) -> Iterator[dict]:
        with shielding_workers() if self.num_workers else contextlib.nullcontext():
            batches = super().__iter__()
        return batches if self.device is None else map(self._on_device, batches)

    def _on_device(self, batch: Mapping) -> dict:
        return {
            name: value.to(self.device, non_blocking=True) if torch.is_tensor(value) else value
            for name, value in batch.items()
        }

    def set_epoch(self, epoch: int) -> None:
        """Passes the epoch on."""
        self.batch_sampler.set_epoch(epoch)


# ---------------------------------------------------------------------------------------------------------------------
# Slurm, torchrun and terminals signal all processes of a job at once. A worker that died of it would take with it the
# last step and the checkpoint that `t5suite.training.processes.signals` makes a run end with.


# How often a worker checks that the main process is still there.
SECONDS_BETWEEN_LOOKS = 1.0


@contextlib.contextmanager
def shielding_workers():
    """Processes that are started inside begin with the stop signals blocked; `ignore_in_worker` keeps them so.

    Without it a signal would end a worker that has started but not come to its `worker_init_fn`, and the server that
    'forkserver' workers come from (which ends with the main process anyhow). This process still gets its signals,
    through the thread that counts them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        resource_tracker.ensure_running()  # for its start, in Python 3.11 to 3.14 at least, unblocks two of them
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_in_worker(worker_id: int = 0) -> None:
    """A DataLoader's `worker_init_fn`: stop signals are ignored, unless they are the parent's own.

    `Process.terminate`, by which a DataLoader ends a worker that is stuck, still works, and a worker whose main process
    has died ends within seconds, stuck or not. (Signals are blocked rather than ignored, for only so can one see whom
    they come from.)
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    threading.Thread(target=_follow_parent, name="parent's signals", daemon=True).start()


def _follow_parent() -> None:
    """Waits for the parent's SIGTERM or its end; `starter` is the process that forked this one, the server perhaps."""
    parent, starter = multiprocessing.parent_process(), os.getppid()
    boss = parent.pid if parent else starter
    while os.getppid() == starter and (parent is None or parent.is_alive()):
        sent = signal.sigtimedwait(STOP_SIGNALS, SECONDS_BETWEEN_LOOKS)
        if sent is not None and (sent.si_signo, sent.si_pid) == (signal.SIGTERM, boss):
            break
    os._exit(128 + signal.SIGTERM)
