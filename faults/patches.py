"""What is done to a victim from inside, before its script starts.

    >>> context.victim("fine_tune_t5", argv, patch=partial(patches.kill_at_step, 5))

Arguments are plain values, for they travel to another process as JSON.
"""

import importlib
import os
import signal
import time


def on_event(event: str, action) -> None:
    """Calls `action(trainer, state)` at an event of every `SuiteTrainer` ("on_step_end"), after its own callbacks."""
    from transformers import TrainerCallback

    from t5suite.training.trainer import SuiteTrainer

    make = SuiteTrainer.__init__

    def init(self, *arguments, **keywords):
        make(self, *arguments, **keywords)

        def respond(callback, args, state, control, **kwargs):
            action(self, state)

        self.add_callback(type("Injected", (TrainerCallback,), {event: respond}))

    SuiteTrainer.__init__ = init


def kill_at_step(step: int, event: str = "on_step_begin", rank: int | None = None) -> None:
    """SIGKILL to itself when `step` updates have been done: before the next one, with all that belongs to it saved.

    Args:
      event: "on_step_end": before its evaluation and its checkpoint; "on_evaluate", "on_save": after that.
      rank: this rank alone.
    """

    def kill(trainer, state):
        if state.global_step == step and rank in (None, trainer.args.process_index):
            os.kill(os.getpid(), signal.SIGKILL)

    on_event(event, kill)


def signal_at_step(step: int, name: str = "SIGTERM", event: str = "on_step_begin", rank: int | None = None) -> None:
    """Any signal ("SIGUSR1") to itself, as `kill_at_step`."""

    def send(trainer, state):
        if state.global_step == step and rank in (None, trainer.args.process_index):
            os.kill(os.getpid(), getattr(signal, name))

    on_event(event, send)


def slow_steps(seconds: float) -> None:
    """Sleeps in every step, so that a fault from outside hits it."""
    on_event("on_step_begin", lambda trainer, state: time.sleep(seconds))


def kill_at_call(target: str, number: int = 1, after: bool = False) -> None:
    """SIGKILL to itself at the n-th call of a function ("os:rename"), before it or after it.

    The function is replaced where it is defined: one that was imported by name elsewhere is not met.
    """
    wrap_call(target, lambda: os.kill(os.getpid(), signal.SIGKILL), number, after)


def skip_calls(target: str) -> None:
    """Makes a function do nothing: what a check that must notice it is tried with."""
    owner, name = _find(target)
    setattr(owner, name, lambda *arguments, **keywords: None)


def wrap_call(target: str, action, number: int = 1, after: bool = False) -> None:
    """Does something at the n-th call of "module:function" or "module:Class.method"."""
    owner, name = _find(target)
    original, calls = getattr(owner, name), [0]

    def wrapped(*arguments, **keywords):
        calls[0] += 1
        due = calls[0] == number
        if due and not after:
            action()
        result = original(*arguments, **keywords)
        if due and after:
            action()
        return result

    setattr(owner, name, wrapped)


def _find(target: str) -> tuple:
    """What holds a function, and its name there."""
    module, _, path = target.partition(":")
    *owners, name = path.split(".")
    owner = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    return owner, name
