"""Three ranks of which one ends somehow: prints `{mode: [[exit codes], seconds]}`, for tests/test_lost_ranks.py."""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from unittest import mock

import torch.distributed as dist

from t5suite.base.errors import Preempted
from t5suite.training.processes import lost_ranks
from t5suite.training.processes.ranks import Ranks
from t5suite.training.processes.signals import catch_signals

GRACE = 1.0


def waits():
    """In one C call, as in a collective."""
    import ctypes

    mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)


def is_killed(rank, number, stop):
    if rank == number:
        os.kill(os.getpid(), signal.SIGKILL)
    waits()


def is_killed_with_a_child(rank, number, stop):
    """A worker that outlives its process must not keep the connection open."""
    if rank == number and os.fork() == 0:
        time.sleep(25)
        os._exit(0)
    is_killed(rank, number, stop)


def is_killed_after_a_request(rank, number, stop):
    stop.request("SIGTERM")
    is_killed(rank, number, stop)


def fails(rank, number, stop):
    if rank == number:
        raise ValueError("a row")
    waits()


def leaves_set_up(rank, number, stop):
    if rank == number:
        raise stop.preempted()
    waits()


def is_done_first(rank, number, stop):
    if rank != number:
        time.sleep(2.5 * GRACE)


def stops_as_agreed(rank, number, stop):
    with stop.phase("training"):
        pass
    if rank != number:
        time.sleep(2.5 * GRACE)
    raise stop.preempted(3, "checkpoint-3")


def all_are_done(rank, number, stop):
    time.sleep(0.1)


def cannot_be_reached(rank, number, stop):
    time.sleep(0.1)


MODES = (is_killed, is_killed_with_a_child, is_killed_after_a_request, fails, leaves_set_up, is_done_first)
MODES = (*MODES, stops_as_agreed, all_are_done, cannot_be_reached)


def live(rank, port, mode, number):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="3")
    lost_ranks.GRACE_SECONDS = GRACE
    stop = catch_signals()
    dist.init_process_group("gloo")
    deaf = mock.patch.object(lost_ranks, "_call", side_effect=ConnectionRefusedError("refused"))
    lost_ranks.CONNECT_SECONDS = 1.0 if mode is cannot_be_reached else 20.0
    with contextlib.ExitStack() as stack:
        if mode is cannot_be_reached:
            stack.enter_context(deaf)
        stack.enter_context(lost_ranks.watching_ranks(Ranks.of_process(), stop))
        mode(rank, number, stop)


def life(*arguments):
    try:
        live(*arguments)
        code = 0
    except Preempted:
        code = 75
    except Exception:
        code = 1
    os._exit(code)


def three_ranks(mode, number):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(3):
        pids.append(os.fork())
        if pids[-1] == 0:
            life(rank, port, mode, number)
    started = time.monotonic()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    return [codes, time.monotonic() - started]


if __name__ == "__main__":
    number = int(sys.argv[1])
    print(json.dumps({mode.__name__: three_ranks(mode, number) for mode in MODES}))
