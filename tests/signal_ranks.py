"""One rank of two that train until one of them is asked to stop: `signal_ranks.py RANK PORT`, for tests/test_signals.py.

Each line of standard input begins a trial; the step at which it stopped goes to standard output.
"""

import os
import sys
import time

import torch.distributed as dist

from t5suite.training.processes.ranks import Ranks
from t5suite.training.processes.signals import agree_to_stop, catching_signals


def trial(ranks, step=0):
    with catching_signals() as stop, stop.phase("training"):
        print("ready", flush=True)
        while not agree_to_stop(ranks, stop):
            step += 1
            time.sleep(0.01 * (1 + ranks.rank))
        print(step, stop.signal_name, flush=True)
        sys.stdin.readline()  # a late signal changes nothing


def main(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=rank, WORLD_SIZE="2")
    dist.init_process_group("gloo")
    ranks = Ranks.of_process()
    for _ in sys.stdin:
        trial(ranks)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
