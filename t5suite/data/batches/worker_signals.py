"""Worker processes and signals: a request to stop is the main process's affair, which needs its batches to the end.

    >>> with shielding_workers():
    ...     batches = iter(DataLoader(rows, num_workers=2, worker_init_fn=ignore_in_worker))

Slurm, torchrun and terminals signal all processes of a job at once. A worker that died of it would take with it the
last step and the checkpoint that `t5suite.training.processes.signals` makes a run end with.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from multiprocessing import resource_tracker

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
# Between two looks at whether the main process is still there.
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
    threading.Thread(target=_heed_parent, name="parent's signals", daemon=True).start()


def _heed_parent() -> None:
    """Waits for the parent's SIGTERM or its end; `starter` is the process that forked this one, the server perhaps."""
    parent, starter = multiprocessing.parent_process(), os.getppid()
    boss = parent.pid if parent else starter
    while os.getppid() == starter and (parent is None or parent.is_alive()):
        sent = signal.sigtimedwait(STOP_SIGNALS, SECONDS_BETWEEN_LOOKS)
        if sent is not None and (sent.si_signo, sent.si_pid) == (signal.SIGTERM, boss):
            break
    os._exit(128 + signal.SIGTERM)
