"""Reads batches while the whole process group is signalled: `signal_workers.py CONTEXT`, for tests/test_signals.py."""

import contextlib
import multiprocessing
import sys
import time

from torch.utils.data import DataLoader, Dataset

from t5suite.data.batches.worker_signals import ignore_in_worker, shielding_workers
from t5suite.training.processes.signals import catch_signals


class Rows(Dataset):
    """Rows that take a while; those of a stuck set never come."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 32

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return index


def start_workers(seconds, context):
    with shielding_workers():
        return iter(
            DataLoader(
                Rows(seconds), 2, num_workers=2, worker_init_fn=ignore_in_worker, multiprocessing_context=context
            )
        )


def main(name):
    context = multiprocessing.get_context(name)
    context.set_forkserver_preload(["torch.utils.data"])
    stop = catch_signals()
    with stop.phase("training"):
        batches = start_workers(0.02, context)
        print("started", flush=True)  # workers may not have come to their init function
        received = [next(batches)]
        print("reading", flush=True)
        received += list(batches)
        print(len(received), "batches", flush=True)
        stuck = start_workers(1000, context)
        print(*[worker.pid for worker in stuck._workers], flush=True)
        time.sleep(0.5)
        first = stuck._workers[0]
        with contextlib.suppress(RuntimeError):  # by which torch tells that a worker has ended
            first.terminate()
            first.join(30)
        print("terminated:", not first.is_alive(), flush=True)
        time.sleep(60)


if __name__ == "__main__":
    main(sys.argv[1])
