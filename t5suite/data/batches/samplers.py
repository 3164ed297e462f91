"""Which examples a step uses: a function of the seed and the step, never of workers, ranks or restarts.

    >>> sampler = GlobalBatchSampler(epoch_order, batch_size=2, rank=0, world_size=2)
    >>> list(sampler)            # rank 0's share of epoch 0; rank 1 gets the other half of every step
    [[3, 1], [0]]

A micro-batch takes the next `batch_size * world_size` examples of the epoch's order and is split into one share per
rank; an update takes the next micro-batches. No row is repeated to fill ranks: the last micro-batch of an epoch is
smaller, and a rank without rows gets `[]` (which the collator turns into a batch that the loss ignores).
"""

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import resource_tracker

import numpy as np
import torch
from torch.utils.data import DataLoader

from t5suite.base.errors import STOP_SIGNALS


class GlobalBatchSampler:
    """A batch sampler for one rank.

    Args:
      epoch_order: epoch -> the indices of all its examples, in order.
      batch_size: examples per rank and micro-batch.
    """

    def __init__(self, epoch_order: Callable[[int], np.ndarray], batch_size, rank=0, world_size=1):
        self.epoch_order, self.batch_size = epoch_order, batch_size
        self.rank, self.world_size = rank, world_size
        self.epoch = self._passed_over = 0
        self._length = -(-len(epoch_order(0)) // (batch_size * world_size))

    def set_epoch(self, epoch: int) -> None:
        """Sets the next epoch; the trainer calls this."""
        self.epoch = epoch

    def pass_over(self, num_batches: int) -> None:
        """The next pass yields None for this many batches at its start: a resumed run discards them unread.

        Making the million batches before it took a resumed run 20 s.
        """
        self._passed_over = num_batches

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[list[int]]:
        order = self.epoch_order(self.epoch)
        step = self.batch_size * self.world_size
        passed_over = self._passed_over
        self._passed_over = 0
        yield from itertools.repeat(None, passed_over)
        for start in range(passed_over * step, len(order), step):
            yield rank_share(order[start : start + step], self.rank, self.world_size)


def rank_share(indices, rank: int, world_size: int) -> list[int]:
    """A rank's part of a micro-batch; sizes differ by one at most.

    >>> [rank_share([7, 8, 9], rank, 2) for rank in (0, 1)]
    [[7, 8], [9]]
    """
    size, num_larger = divmod(len(indices), world_size)
    start = rank * size + min(rank, num_larger)
    end = start + size + (1 if rank < num_larger else 0)
    return np.asarray(indices[start:end]).tolist()


def shuffled_order(num_examples: int, seed: int) -> Callable[[int], np.ndarray]:
    """Epoch -> a permutation of all examples."""
    return lambda epoch: np.random.default_rng((seed, epoch)).permutation(num_examples)


# The random change of an example's length before sorting, as a share of it: each epoch then forms its updates from
# different neighbours, even if few examples are equally long. Twice as much would cause twice the padding.
JITTER = 0.02


def length_grouped_order(lengths, update_size: int, seed: int) -> Callable[[int], np.ndarray]:
    """Epoch -> a permutation in which the examples of one update have about the same length.

    The epoch's permutation is sorted by length (each changed at random by up to 2%, equal ones in the permutation's
    order), split into updates, and the updates are shuffled; the smaller last update is drawn before that, and stays
    last. With MNLI's inputs, 32 rows an update, 99% of the tokens are not padding; with updates sorted in pieces of 50
    updates, 96%; with shuffled ones, 46%.
    """
    lengths = np.asarray(lengths)

    def order(epoch: int) -> np.ndarray:
        rng = np.random.default_rng((seed, epoch))
        permutation = rng.permutation(len(lengths))
        num_in_full_updates = len(permutation) - len(permutation) % update_size
        in_full_updates = permutation[:num_in_full_updates]
        in_last_update = permutation[num_in_full_updates:]
        jittered = lengths[in_full_updates] * rng.uniform(1 - JITTER, 1 + JITTER, num_in_full_updates)
        updates = in_full_updates[np.argsort(-jittered, kind="stable")].reshape(-1, update_size)
        updates = updates[rng.permutation(len(updates))]
        last_update = in_last_update[np.argsort(-lengths[in_last_update], kind="stable")]
        return np.concatenate([updates.reshape(-1), last_update])

    return order


def shifted_order(order: Callable[[int], np.ndarray], epoch_length: int, offset: int) -> Callable[[int], np.ndarray]:
    """Epoch -> its piece of the run-long order (all epochs one after the other), starting `offset` examples later.

    >>> order = shifted_order(lambda epoch: np.arange(epoch * 4, epoch * 4 + 4), epoch_length=4, offset=6)
    >>> order(0).tolist(), order(1).tolist()
    ([6, 7, 8, 9], [10, 11, 12, 13])

    With a negative offset a run's later steps get the first examples; the positions before them hold arbitrary ones,
    which are skipped.
    """

    def shifted(epoch: int) -> np.ndarray:
        first, start = divmod(offset + epoch * epoch_length, epoch_length)
        both = _joined(order(max(0, first)), order(max(0, first + 1))) if start else order(max(0, first))
        return both[start : start + epoch_length]

    return shifted


def _joined(first, second):
    """One order after the other; consecutive ranges stay a `range`, whatever their length."""
    if isinstance(first, range) and isinstance(second, range) and first.stop == second.start:
        return range(first.start, second.stop)
    return np.concatenate([first, second])


# ---------------------------------------------------------------------------------------------------------------------
# Batches for a trainer: rows -> collator -> the device, in the trainer's own process or in workers.
#
# Making a batch of `TokenArrays` takes about 60 microseconds; workers are for slower transforms.


class EpochDataLoader(DataLoader):
    """A DataLoader that passes the trainer's epoch on to its sampler, and whose workers ignore stop signals.

    Args:
      device: where batches are moved; to a GPU from pinned memory, asynchronously. None: batches stay where they are
        made.
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
# Slurm, torchrun and terminals signal all processes of a job at once. A worker that died from it would prevent the last
# step and the final checkpoint that `t5suite.training.processes.signals` lets a run finish with.


# How often a worker checks that the main process is still alive.
SECONDS_BETWEEN_LOOKS = 1.0


@contextlib.contextmanager
def shielding_workers():
    """Starts processes with the stop signals blocked; `ignore_in_worker` keeps them blocked.

    Otherwise a signal would end a worker that has started but not reached its `worker_init_fn`, and the server that
    forks 'forkserver' workers (which ends with the main process anyway). This process still gets its signals,
    through the thread that counts them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        resource_tracker.ensure_running()  # its start unblocks two of them, at least in Python 3.11 to 3.14
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_in_worker(worker_id: int = 0) -> None:
    """A DataLoader's `worker_init_fn`: stop signals are ignored, unless the parent sends them.

    `Process.terminate`, with which a DataLoader ends a stuck worker, still works, and a worker whose main process has
    died ends within seconds, stuck or not. (Signals are blocked rather than ignored, because only then is their sender
    known. macOS never tells it: there any SIGTERM ends a worker.)
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    if not hasattr(signal, "sigtimedwait"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    threading.Thread(target=_follow_parent, name="parent's signals", daemon=True).start()


def _follow_parent() -> None:
    """Waits for the parent's SIGTERM or its end; `starter` forked this process; it may be the forkserver."""
    parent = multiprocessing.parent_process()
    starter = os.getppid()
    boss = parent.pid if parent else starter
    while os.getppid() == starter and (parent is None or parent.is_alive()):
        if _is_terminated_by(boss):
            break
    os._exit(128 + signal.SIGTERM)


def _is_terminated_by(boss: int) -> bool:
    """Waits a moment for a stop signal, and returns whether it is this process's SIGTERM."""
    if not hasattr(signal, "sigtimedwait"):
        time.sleep(SECONDS_BETWEEN_LOOKS)
        return False
    sent = signal.sigtimedwait(STOP_SIGNALS, SECONDS_BETWEEN_LOOKS)
    return sent is not None and (sent.si_signo, sent.si_pid) == (signal.SIGTERM, boss)
