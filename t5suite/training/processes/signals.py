"""Stop requests: after SIGTERM, SIGUSR1 or SIGINT a run ends once its state is saved.

    >>> stop = catch_signals()
    >>> with stop.phase("training"):
    ...     for step, batch in enumerate(batches, 1):
    ...         update(batch)
    ...         if agree_to_stop(ranks, stop):
    ...             save(f"checkpoint-{step}")
    ...             raise stop.preempted(step, f"checkpoint-{step}")
    t5suite.base.errors.Preempted: SIGTERM: stopped after step 7; the same command goes on from checkpoint-7

The first signal sets a flag, the second changes nothing, the third ends the process at once with 128 + its number. In
the phase `set-up`, which has no state to save, the first one raises `Preempted` immediately; if the main thread is
still blocked 20 s later (in a download, a collective), the process exits with code 75. In any other phase the trainer
checks the flag at the end of each step, the evaluation between batches.

SIGTERMs within REPEAT_SECONDS are one signal. At a job's time limit a rank gets one by Slurm, one by torchrun, and
another one by torchrun (2.13) if a sweep or W&B's agent signals that again while it waits for its ranks.

Python runs signal handlers only in the main thread and between bytecodes, so a thread counts the signals: the third
must work while the main thread waits for another rank. Scripts call `catch_signals` before they import torch, so this
module must not import it.
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

from t5suite.base.errors import EXIT_PREEMPTED, STOP_SIGNALS, Preempted
from t5suite.base.programs import note_exit_code

# The signal that ends the process at once.
FATAL_COUNT = 3
# A job's launchers send all their signals within 0.1 s.
REPEAT_SECONDS = 2.0
SET_UP = "set-up"
PHASES = (SET_UP, "training", "saving", "evaluation", "finishing")
# Slurm's default KillWait is 30 s: the process must have exited by then.
SET_UP_SECONDS = 20.0
# A rank may lose another before it gets the signal itself: launchers signal processes one after the other.
SKEW_SECONDS = 3.0
SAME_COMMAND = "the same command"


class Sigterms:
    """The SIGTERMs of one process, some of which repeat another.

    >>> sigterms = Sigterms()
    >>> [sigterms.is_repeat(number) for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT)]
    [False, True, False]
    """

    def __init__(self):
        self._counted_at: float | None = None

    def is_repeat(self, number: int) -> bool:
        """Whether this signal is a SIGTERM less than REPEAT_SECONDS after the last one that was counted."""
        if number != signal.SIGTERM:
            return False
        now = time.monotonic()
        if self._counted_at is not None and now - self._counted_at < REPEAT_SECONDS:
            return True
        self._counted_at = now
        return False


class StopRequests:
    """Whether this process was asked to stop, and what it is doing.

    Attributes:
      requested: this process or another rank (`agree_to_stop`) has received a signal.
      current_phase: one of PHASES.
      signal_name: 'SIGTERM', ...; None if only another rank received one.
      next_command: what resumes the run, in words.
    """

    def __init__(self):
        self.installed = None  # what `restore` needs, and the watcher's sockets
        self._forget()

    def _forget(self) -> None:
        self.requested, self.signal_name = False, None
        self.next_command = SAME_COMMAND
        self.current_phase = SET_UP
        self._num_phases = 0
        self._handled = itertools.count(1)
        self._handled_sigterms = Sigterms()
        self._waited_for = None

    @contextlib.contextmanager
    def phase(self, name: str):
        """Sets the phase inside the block: one of PHASES. Phases nest: a save within training is `saving`.

        The first phase ends set-up; after the outermost phase, the phase is `finishing`.
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
        self.signal_name = self.signal_name or signal_name
        self.requested = True

    def preempted(self, step: int | None = None, checkpoint: str | None = None) -> Preempted:
        """The error to raise once everything is saved.

        >>> stop.preempted(40, "checkpoint-40")
        Preempted('SIGTERM: stopped after step 40; the same command goes on from checkpoint-40')
        """
        cause = self.signal_name or "another rank was asked to stop"
        where = f"stopped after step {step}" if step is not None else f"stopped during {self.current_phase}"
        next_start = f"goes on from {checkpoint}" if checkpoint else "starts again"
        return Preempted(f"{cause}: {where}; {self.next_command} {next_start}")

    @contextlib.contextmanager
    def resumed_by(self, command: str):
        """What resumes the run inside the block, in words: in place of "the same command"."""
        self.next_command = command
        try:
            yield
        finally:
            self.next_command = SAME_COMMAND

    def explains(self, error: BaseException) -> bool:
        """Whether the stop caused an error: it wraps `Preempted`, or comes from a rank that has left before this one.

        In set-up every error counts: compiled code (an import of NumPy, say) may swallow the handler's exception and
        leave a module partially initialized, so that something else fails later.
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
    def excusing_lost_ranks(self):
        """Treats a collective that fails because another rank has left on the same signal as preemption.

        Raises:
          Preempted: instead of that error, if this process is asked to stop too, at most SKEW_SECONDS later.
        """
        try:
            yield self
        except Exception as error:
            if error is not self._waited_for and _is_lost_rank(error):
                self._waited_for = error
                deadline = time.monotonic() + SKEW_SECONDS
                while not self.requested and time.monotonic() < deadline:  # in set-up, the signal itself raises here
                    time.sleep(0.02)
            if self.explains(error):
                raise self.preempted() from error
            raise

    def install(self) -> None:
        """Installs signal handlers, the watcher thread, and an excepthook (for a signal while modules are imported)."""
        sender, receiver = socket.socketpair()
        sender.setblocking(False)
        self._forget()
        wakeup_fd = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        handlers = {number: signal.signal(number, self._handle) for number in STOP_SIGNALS}
        watcher = threading.Thread(target=self._watch, args=(receiver, wakeup_fd), name="stop requests", daemon=True)
        self.installed = SimpleNamespace(
            handlers=handlers,
            wakeup_fd=wakeup_fd,
            excepthook=sys.excepthook,
            sender=sender,
            receiver=receiver,
            watcher=watcher,
        )
        sys.excepthook = self._end_uncaught
        watcher.start()
        atexit.register(self._ignore_at_exit)

    def restore(self) -> None:
        """Restores the previous handlers, and clears the stop request."""
        installed = self.installed
        self.installed = None
        self._forget()
        if installed is None:
            return
        signal.set_wakeup_fd(installed.wakeup_fd)
        for number, handler in installed.handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if sys.excepthook == self._end_uncaught:
            sys.excepthook = installed.excepthook
        installed.sender.close()  # ends the watcher
        installed.watcher.join()
        atexit.unregister(self._ignore_at_exit)

    def _handle(self, number: int, frame) -> None:
        """Runs in the main thread, between bytecodes."""
        if self._handled_sigterms.is_repeat(number):
            return
        count = next(self._handled)  # atomic: a second signal may interrupt this handler
        if count >= FATAL_COUNT:  # the watcher is quicker, unless other code replaced the wakeup fd
            _exit_at_once(number)
        self.request(signal.Signals(number).name)
        if count == 1 and self.current_phase == SET_UP:
            raise self.preempted()

    def _watch(self, receiver: socket.socket, forward_to: int) -> None:
        """The thread that counts signals; `restore` ends it."""
        count, deadline, phase = 0, None, None
        sigterms = Sigterms()
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
                if number not in STOP_SIGNALS or sigterms.is_repeat(number):
                    continue
                count += 1
                if count == 1 and self.current_phase == SET_UP:
                    deadline = time.monotonic() + SET_UP_SECONDS
                    phase = self._num_phases
                elif count == 1:
                    name = signal.Signals(number).name
                    _say(f"{name}: the run stops at the next point it can resume from; two more signals end it at once")
                if count >= FATAL_COUNT:
                    _exit_at_once(number)

    def _end_uncaught(self, kind, error, traceback) -> None:
        """`sys.excepthook`: handles what `run_command` does not catch, such as errors while modules are imported."""
        if isinstance(error, Preempted) or (self.current_phase == SET_UP and self.requested):
            _say(f"stopped: {error if isinstance(error, Preempted) else self.preempted()}")
            raise SystemExit(note_exit_code(EXIT_PREEMPTED))
        (self.installed.excepthook if self.installed else sys.__excepthook__)(kind, error, traceback)

    def _ignore_at_exit(self) -> None:
        """Ignores signals at exit: the interpreter resets handlers, and a late signal would replace the exit code."""
        if self.installed is not None:
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)


_STOP = StopRequests()


def stop_requests() -> StopRequests:
    """This process's `StopRequests`. Without `catch_signals`, no signal requests a stop."""
    return _STOP


def catch_signals() -> StopRequests:
    """Installs the handlers, if they are not installed yet, and returns this process's `StopRequests`.

    For programs that own the process; `catching_signals` restores the handlers afterwards. Only the main thread can
    install handlers: in another thread this installs none.
    """
    if _STOP.installed is None and threading.current_thread() is threading.main_thread():
        _STOP.install()
        _register_at_fork()
    return _STOP


@contextlib.contextmanager
def catching_signals():
    """`catch_signals` inside a block, for Python callers: notebooks and tests get their handlers back.

    >>> with catching_signals() as stop:
    ...     train(stop)

    In a program that has already called `catch_signals`, it changes nothing.
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
    """Whether any rank was asked to stop. A collective call; all ranks get the same answer.

    >>> agree_to_stop(Ranks(), stop)
    False

    Args:
      ranks: a `t5suite.training.processes.ranks.Ranks`.
    """
    agreed = ranks.any(stop.requested)
    if agreed:
        stop.request()
    return agreed


# Forked children get the previous handlers back. For DataLoader workers, see `t5suite.data.batches.samplers`.
_forks = threading.local()


@functools.cache
def _register_at_fork() -> None:
    """Once per process, because it cannot be undone."""
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def _before_fork() -> None:
    """Blocks signals until the child has its own handlers: the inherited ones would notify the parent's watcher."""
    _forks.mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forks.mask)


def _in_child() -> None:
    """Restores the previous handlers in the child, so that its signals are not counted in the parent."""
    installed = _STOP.installed
    if installed is not None:
        installed.wakeup_fd = -1
        _STOP.restore()
        installed.receiver.close()
    _after_fork()


def _is_lost_rank(error: BaseException) -> bool:
    """Whether a collective failed because a rank is gone: by message for gloo, by exception type for NCCL and store."""
    if any(kind.__name__ == "DistError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "by peer", "Broken pipe"))


def _exit_at_once(number: int) -> None:
    _say(f"{signal.Signals(number).name}: the {FATAL_COUNT}rd signal, the process ends at once")
    os._exit(128 + number)


def _say(text: str) -> None:
    """Writes directly to the descriptor: the main thread may be in the middle of writing to `sys.stderr`."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())
