"""A program that is sent signals: `python signal_victim.py MODE ...`, for tests/test_signals.py.

Of its modes only `workers` imports torch.
"""

import contextlib
import multiprocessing
import os
import sys
import time

from t5suite.base.programs import run_command
from t5suite.training.processes.signals import catch_signals, stop_requests

stop = catch_signals()


def say(text):
    print(text, flush=True)


def wait(seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.01)


def set_up(argv):
    say("ready")
    wait(30)


def training(argv):
    with stop.phase("training"):
        say("ready")
        while not stop.requested:
            wait(0.05)
        say("asked")
        wait(0.6)
        raise stop.preempted(7, "checkpoint-7")


def with_short_repeat_seconds(argv):
    import t5suite.training.processes.signals as signals

    signals.REPEAT_SECONDS = 0.03
    training(argv)


def swallowed(argv):
    import t5suite.training.processes.signals as signals

    signals.SET_UP_SECONDS = 1.0
    with contextlib.suppress(BaseException):
        set_up(argv)
    wait(30)


def deaf(argv):
    """The main thread is in one C call for ever: it comes to no bytecode."""
    import ctypes

    import t5suite.training.processes.signals as signals

    signals.SET_UP_SECONDS = 1.0
    mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
    lock(mutex)
    with stop.phase(argv[0]):
        say("ready")
        lock(mutex)  # a second time; a signal does not end this call, as it ends pause() and sleep()


@stop_requests().excusing_lost_ranks()
def half_made(argv):
    """As compiled code does that imports NumPy: it clears the error, and the half made module fails later."""
    with contextlib.suppress(BaseException):
        set_up(argv)
    raise RecursionError("maximum recursion depth exceeded")


@stop_requests().excusing_lost_ranks()
def lost_rank(argv):
    """The other rank has left set-up on its signal, and ours comes later."""
    say("ready")
    wait(0.0)
    raise RuntimeError("[../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4711")


def set_up_then_training(argv):
    """A stop that set-up has swallowed is honoured at the first boundary."""
    with contextlib.suppress(BaseException):
        set_up(argv)
    with stop.phase("training"):
        if stop.requested:
            raise stop.preempted(0)


def finished(argv):
    """Set-up does not come back after training: an end is not interrupted."""
    with stop.phase("training"):
        pass
    say("ready")
    wait(1.0)
    say("end")


def pool(argv):
    """`Pool.terminate` ends children by SIGTERM; a child's signal is not the parent's."""
    with stop.phase("training"):
        workers = multiprocessing.get_context("fork").Pool(2)
        list(workers.map(abs, range(4)))
        started = time.monotonic()
        workers.terminate()
        workers.join()
        say(f"ready {time.monotonic() - started < 5} {stop.requested}")


def child(argv):
    """A forked child has the default handlers, and what it is sent is not counted here."""
    with stop.phase("training"):
        pid = os.fork()
        if pid == 0:
            time.sleep(30)
            os._exit(0)
        for _ in range(2):
            os.kill(pid, 15)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        say(f"ready {status} {stop.requested}")


class Rows:
    """A data set whose rows take a while; those of a stuck set never come."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 32

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return index


def start_workers(seconds, context):
    from torch.utils.data import DataLoader

    from t5suite.data.batches.samplers import ignore_in_worker, shielding_workers

    settings = {"num_workers": 2, "worker_init_fn": ignore_in_worker, "multiprocessing_context": context}
    with shielding_workers():
        return iter(DataLoader(Rows(seconds), 2, **settings))


def workers(argv):
    """Reads batches while the whole process group is signalled: `workers CONTEXT`."""
    context = multiprocessing.get_context(argv[0])
    context.set_forkserver_preload(["torch.utils.data"])
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
    if sys.argv[1].startswith("importing"):
        globals()[{"importing": "set_up", "importing_half_made": "half_made"}[sys.argv[1]]](None)
    mode = globals()[sys.argv[1]]
    sys.exit(run_command(mode, sys.argv[2:]))
