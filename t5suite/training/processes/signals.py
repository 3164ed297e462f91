"""Requests to stop: after SIGTERM, SIGUSR1 or SIGINT a run ends where nothing is lost.

    >>> stop = catch_signals()
    >>> with stop.phase("training"):
    ...     for step, batch in enumerate(batches, 1):
    ...         update(batch)
    ...         if agree_to_stop(ranks, stop):
    ...             save(f"checkpoint-{step}")
    ...             raise stop.preempted(step, f"checkpoint-{step}")
    t5suite.base.errors.Preempted: SIGTERM: stopped after step 7; the same command goes on from checkpoint-7

The first signal sets a flag, the second changes nothing, the third ends the process at once with 128 + its number. In
the phase `set-up`, where there is nothing to keep, the first one raises `Preempted` on the spot, and 20 s later the
process ends with 75 if its main thread still waits (for a download, a collective). In any other phase the trainer asks
at the end of each step, the evaluation between batches.

Python runs handlers in the main thread and between bytecodes only, so a thread counts the signals: the third must work
while the main thread waits for another rank. Scripts call `catch_signals` before they import torch; so this module
does not.
"""

import atexit
import contextlib
import functools
import itertools
import os
import signal
import socket
import sys
import threading
import time
from types import SimpleNamespace

from t5suite.base.errors import EXIT_PREEMPTED, STOP_SIGNALS, Preempted, note_exit_code

# The third signal is that of somebody who cannot wait.
FATAL_COUNT = 3
SET_UP = "set-up"
PHASES = (SET_UP, "training", "saving", "evaluation", "finishing")
# Slurm's default KillWait is 30 s: the process must be gone by then.
SET_UP_SECONDS = 20.0
# A rank may see that another has left before its own signal comes: launchers signal one process after the other.
SKEW_SECONDS = 3.0


class StopRequests:
    """Whether this process was asked to stop, and what it is doing.

    Attributes:
      requested: a signal has come, or another rank was sent one (`agree_to_stop`).
      current_phase: one of PHASES.
      signal_name: 'SIGTERM', ...; None where only another rank was sent one.
    """

    def __init__(self):
        self.installed = None  # what `restore` puts back, and what the watcher listens to
        self._forget()

    def _forget(self) -> None:
        self.requested, self.signal_name = False, None
        self.current_phase = SET_UP
        self._num_phases = 0
        self._handled = itertools.count(1)
        self._waited_for = None

    @contextlib.contextmanager
    def phase(self, name: str):
        """What the process does inside: one of PHASES. Phases nest: a save within training is `saving`.

        Set-up ends with the first phase; what comes after all of them is `finishing`.
        """
        assert name in PHASES, name
        before = self.current_phase
        self._enter(name)
        try:
            yield self
        finally:
            self._enter("finishing" if before == SET_UP != name else before)

    def _enter(self, name):
        self.current_phase = name
        self._num_phases += 1

    def request(self, signal_name: str | None = None) -> None:
        """Sets the flag, as a signal does."""
        self.requested, self.signal_name = True, self.signal_name or signal_name

    def preempted(self, step: int | None = None, checkpoint: str | None = None) -> Preempted:
        """The error to raise once everything is kept.

        >>> stop.preempted(40, "checkpoint-40")
        Preempted('SIGTERM: stopped after step 40; the same command goes on from checkpoint-40')
        """
        cause = self.signal_name or "another rank was asked to stop"
        where = f"stopped after step {step}" if step is not None else f"stopped during {self.current_phase}"
        onward = f"goes on from {checkpoint}" if checkpoint else "starts again"
        return Preempted(f"{cause}: {where}; the same command {onward}")

    def explains(self, error: BaseException) -> bool:
        """Whether an error comes of the stop: `Preempted` in other clothes, or a rank that has left before this one.

        In set-up every error does: compiled code may swallow what the signal raised while it imported NumPy, say, and
        leave a module half made, so that something else fails later.
        """
        if not self.requested:
            return False
        if self.current_phase == SET_UP:
            return True
        while error is not None:
            if isinstance(error, Preempted) or _is_lost_rank(error):
                return True
            error = error.__cause__ or error.__context__
        return False

    @contextlib.contextmanager
    def excusing_lost_ranks(self, step: int | None = None, checkpoint: str | None = None):
        """A collective that fails because another rank has left on the same signal counts as preempted.

        Raises:
          Preempted: instead of such an error, if this process was asked to stop too, or is within SKEW_SECONDS.
        """
        try:
            yield self
        except Exception as error:
            if error is not self._waited_for and _is_lost_rank(error):
                self._waited_for, deadline = error, time.monotonic() + SKEW_SECONDS
                while not self.requested and time.monotonic() < deadline:  # in set-up, the signal itself raises here
                    time.sleep(0.02)
            if self.explains(error):
                raise self.preempted(step, checkpoint) from error
            raise

    def install(self) -> None:
        """Handlers, the watcher, and a hook for what no one catches (a signal while modules are imported)."""
        sender, receiver = socket.socketpair()
        sender.setblocking(False)
        self._forget()
        wakeup_fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        handlers = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}
        watcher = threading.Thread(target=self._watch, args=(receiver, wakeup_fd), name="stop requests", daemon=True)
        self.installed = SimpleNamespace(
            handlers=handlers, wakeup_fd=wakeup_fd, excepthook=sys.excepthook, sender=sender, receiver=receiver,
            watcher=watcher,
        )  # fmt: skip
        sys.excepthook = self._end_uncaught
        watcher.start()
        atexit.register(self._ignore_at_exit)

    def restore(self) -> None:
        """Gives the handlers back to whoever had them before, and forgets what was asked."""
        was, self.installed = self.installed, None
        self._forget()
        if was is None:
            return
        signal.set_wakeup_fd(was.wakeup_fd)
        for number, handler in was.handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if sys.excepthook == self._end_uncaught:
            sys.excepthook = was.excepthook
        was.sender.close()  # which ends the watcher
        was.watcher.join()
        atexit.unregister(self._ignore_at_exit)

    def _handle(self, number: int, frame) -> None:
        """Runs in the main thread, between bytecodes."""
        count = next(self._handled)  # in one bytecode, for a second signal may be handled before the next
        if count >= FATAL_COUNT:  # the watcher is quicker, unless somebody else took its wake-up calls
            _exit_at_once(number)
        self.request(signal.Signals(number).name)
        if count == 1 and self.current_phase == SET_UP:
            raise self.preempted()

    def _watch(self, receiver: socket.socket, forward_to: int) -> None:
        """The thread that counts; it ends with `restore`."""
        count, deadline, phase = 0, None, None
        while True:
            try:
                receiver.settimeout(None if deadline is None else max(0.001, deadline - time.monotonic()))
                numbers = receiver.recv(64)
            except TimeoutError:
                if self._num_phases == phase:
                    _say(f"stopped: set-up did not answer for {SET_UP_SECONDS:g} s; the same command starts again")
                    os._exit(note_exit_code(EXIT_PREEMPTED))
                deadline = None
                continue
            if not numbers:
                receiver.close()
                return
            for number in numbers:
                if forward_to >= 0:
                    with contextlib.suppress(OSError):
                        os.write(forward_to, bytes([number]))
                if number not in STOP_SIGNALS:
                    continue
                count += 1
                if count == 1 and self.current_phase == SET_UP:
                    deadline, phase = time.monotonic() + SET_UP_SECONDS, self._num_phases
                elif count == 1:
                    name = signal.Signals(number).name
                    _say(f"{name}: the run stops as soon as it can go on from there; two more signals end it at once")
                if count >= FATAL_COUNT:
                    _exit_at_once(number)

    def _end_uncaught(self, kind, error, traceback) -> None:
        """`sys.excepthook`: for what `run_command` does not catch, as while modules are imported."""
        if isinstance(error, Preempted) or (self.current_phase == SET_UP and self.requested):
            _say(f"stopped: {error if isinstance(error, Preempted) else self.preempted()}")
            raise SystemExit(note_exit_code(EXIT_PREEMPTED))
        (self.installed.excepthook if self.installed else sys.__excepthook__)(kind, error, traceback)

    def _ignore_at_exit(self) -> None:
        """An ending interpreter sets handlers to the default: a late signal would replace the exit code by its own."""
        if self.installed is not None:
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)


_STOP = StopRequests()


def stop_requests() -> StopRequests:
    """This process's `StopRequests`, whether its signals are caught or not (then nobody asks to stop)."""
    return _STOP


def catch_signals() -> StopRequests:
    """Installs the handlers, if they are not, and returns this process's `StopRequests`.

    For programs, whose end is the process's end; `catching_signals` gives the handlers back. Only the main thread can
    install handlers: elsewhere nobody asks to stop.
    """
    if _STOP.installed is None and threading.current_thread() is threading.main_thread():
        _STOP.install()
        _register_at_fork()
    return _STOP


@contextlib.contextmanager
def catching_signals():
    """`catch_signals` for a while, for those who call from Python: notebooks and tests get their handlers back.

    >>> with catching_signals() as stop:
    ...     train(stop)

    Within a program that has called `catch_signals` already it changes nothing.
    """
    is_ours = _STOP.installed is None
    if is_ours:
        _STOP._forget()
    try:
        yield catch_signals()
    finally:
        if is_ours:
            _STOP.restore()


def agree_to_stop(ranks, stop: StopRequests) -> bool:
    """Whether any rank was asked to stop; all ranks call it at the same place, and all get the same answer.

    >>> agree_to_stop(Ranks(), stop)
    False

    Args:
      ranks: a `t5suite.training.processes.ranks.Ranks`.
    """
    agreed = ranks.any(stop.requested)
    if agreed:
        stop.request()
    return agreed


# Forked children have the handlers that were there before; those of a DataLoader: `t5suite.data.batches.samplers`.
_forks = threading.local()


@functools.cache
def _register_at_fork() -> None:
    """Once a process, for it cannot be taken back."""
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def _before_fork() -> None:
    """A signal to the child must not come before its handlers are its own: they would tell the parent's watcher."""
    _forks.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forks.mask)


def _in_child() -> None:
    """Signals are the child's own affair, and none is counted in the parent."""
    if (was := _STOP.installed) is not None:
        was.wakeup_fd = -1
        _STOP.restore()
        was.receiver.close()
    _after_fork()


def _is_lost_rank(error: BaseException) -> bool:
    """Whether a collective failed for want of another process: gloo says it in words, NCCL and the store by type."""
    if any(kind.__name__ == "DistError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "by peer", "Broken pipe"))


def _exit_at_once(number: int) -> None:
    _say(f"{signal.Signals(number).name}: the {FATAL_COUNT}rd signal, the process ends at once")
    os._exit(128 + number)


def _say(text: str) -> None:
    """Straight to the descriptor: the main thread may be in the middle of writing to `sys.stderr`."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())
