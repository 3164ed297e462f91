"""Signals that a victim sends to itself at a certain moment, and what a stop must leave behind.

>>> patch = partial(send_at_call, "t5suite.training.trainer:SuiteTrainer.training_step", "SIGTERM", 5)
>>> stopped(victim, step=5) is None                # all ranks ended with 75 and a whole checkpoint of step 5
>>> goes_on(context, script, flags, directory, reference) is None
"""

import contextlib
import os
import signal
import time
from pathlib import Path

from faults import patches, traces
from faults.harness import Context, difference
from faults.leftovers import history_difference, results_difference
from faults.victims import Victim

PREEMPTED = 75


def send_at_call(target: str, names="SIGTERM", number: int = 1, after: bool = False) -> None:
    """Signals ("SIGTERM,SIGUSR1") to itself at the n-th call of a function."""

    def send():
        for name in names.split(","):
            os.kill(os.getpid(), getattr(signal, name))

    patches.wrap_call(target, send, number, after)


def block_at_call(target: str, seconds: float = 60.0) -> None:
    """Waits in C at a function's call, deaf to signals, as in a collective or a download."""

    def block():
        import ctypes

        print("blocked", flush=True)
        mutex, lock = ctypes.create_string_buffer(64), ctypes.CDLL(None).pthread_mutex_lock
        lock(mutex)
        lock(mutex)

    patches.wrap_call(target, block)


def sleep_at_call(target: str, seconds: float) -> None:
    """Says that a function was called, and waits a while before it is."""

    def sleep():
        print(f"in {target}", flush=True)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(0.01)

    patches.wrap_call(target, sleep)


def kill_rank_at_call(target: str, rank: int, number: int = 1) -> None:
    """SIGKILL to one rank at the n-th call of a function."""
    if os.environ.get("RANK") == str(rank):
        patches.wrap_call(target, lambda: os.kill(os.getpid(), signal.SIGKILL), number)


def stopped(victim: Victim, step: int | None = None, only: bool = True) -> str | None:
    """Whether all ranks ended with 75, with whole checkpoints: the newest of the step at which they stopped.

    Args:
      step: where they must have; None: where they did.
      only: there is no other checkpoint.
    """
    from t5suite.training.checkpoints.folders import checkpoint_step, checkpoints

    if set(victim.codes) != {PREEMPTED}:
        ranks = range(len(victim.codes))
        return f"exit {victim.codes}: {' || '.join(victim.tail(rank) for rank in ranks)}"
    last = {traces.last_step(victim.trace / traces.file_name(rank)) for rank in range(len(victim.codes))}
    if len(last) > 1 or (step is not None and last != {step}):
        return f"the ranks stopped at the steps {sorted(last)}, not {step if step is not None else 'one'}"
    step = last.pop()
    found = [checkpoint_step(path) for path in checkpoints(victim.directory)]
    if found[-1:] != [step] or (only and len(found) > 1):
        return f"stopped after step {step}, with the checkpoints {found}"
    if f"stopped after step {step}; the same command goes on from checkpoint-{step}" not in victim.output:
        return f"does not say where it stopped: {victim.tail()}"
    return torn(victim.directory)


def torn(directory: Path) -> str | None:
    """What is no whole checkpoint."""
    from t5suite.training.checkpoints.folders import checkpoints
    from t5suite.training.checkpoints.manifests import damage

    problems = [f"{path.name}: {reason}" for path in checkpoints(directory) if (reason := damage(path))]
    left = [path.name for path in directory.glob(".*-checkpoint-*")]
    return "; ".join([*problems, *(f"left over: {name}" for name in left)]) or None


def goes_on(context: Context, script, flags, directory, reference, ranks: int = 1, steps: int = 8) -> str | None:
    """Whether the same command then ends as the run that was not stopped: every step once, all bits."""
    victim = context.run(script, flags, directory=directory, ranks=ranks)
    if any(victim.codes):
        return f"started again, exit {victim.codes}: {victim.tail()}"
    order = traces.read(directory).order
    if order != list(range(1, steps + 1)):
        return f"did the steps {order}"
    return (
        difference(directory, reference)
        or results_difference(directory, reference)
        or history_difference(directory, reference)
    )


def processes_of(victim: Victim) -> list[int]:
    """A victim's processes and those that they started, as a scheduler signals them."""
    found, waiting = [], [process.pid for process in victim.processes]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for path in Path(f"/proc/{pid}/task").glob("*/children"):
                waiting += map(int, path.read_text().split())
    return found


def catches(pid: int, number: int = signal.SIGTERM) -> bool:
    """Whether a process has a handler for a signal by now."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)
