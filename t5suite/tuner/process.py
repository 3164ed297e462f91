"""A run from Python leaves the process as it was: random numbers, shared states, signals, log filters.

    >>> process = OwnProcess()
    >>> with process.entered(), interruptible():
    ...     train()

Several `FineTuner`s may live in one process, a notebook's kernel say. transformers and accelerate keep device and
precision for the whole process, as the training arguments made last have them: each tuner has its own while it works.
"""

import contextlib
import functools
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator

import datasets
from accelerate.state import AcceleratorState, PartialState
from transformers.trainer_callback import ProgressCallback
from transformers.utils import logging as transformers_logging

from t5suite.base.errors import Preempted
from t5suite.training.checkpoints.states import random_state, restore_random_state
from t5suite.training.monitoring.chatter import LOGGERS, is_news
from t5suite.training.monitoring.progress import somebody_watches
from t5suite.training.processes.signals import SET_UP, stop_requests
from t5suite.training.sharding.process_state import keeping_process_state

# Variables that transformers and accelerate write for whoever comes after.
NOTED = ("ACCELERATE_", "FSDP_")


class OwnProcess:
    """What one tuner would find if it were alone in the process.

    Args:
      bars: whether `datasets` draws progress bars; None: on a terminal and in a notebook. Those of transformers
        (weights read and written) are always off.
    """

    def __init__(self, bars: bool | None = None):
        self._shared: list[dict] | None = None
        self._bars = bars

    def _draws_bars(self) -> bool:
        return somebody_watches() if self._bars is None else self._bars

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """The process as this tuner left it; at the end, as everybody else did."""
        kept = (keeping_process_state(), _keeping_environment(), _keeping_random_numbers())
        with contextlib.ExitStack() as stack:
            for part in (*kept, _without_old_news(), _with_bars(self._draws_bars())):
                stack.enter_context(part)
            for kind, state in zip((PartialState, AcceleratorState), self._shared or (), strict=False):
                kind._shared_state.clear()
                kind._shared_state.update(state)
            try:
                yield
            finally:
                self._shared = [dict(kind._shared_state) for kind in (PartialState, AcceleratorState)]


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C (a notebook's stop button) ends training after the step at hand, with a checkpoint; a second one at once.

    Raises:
      KeyboardInterrupt: when everything is kept. Where somebody catches signals already (an entry script), and in
        threads, which cannot, nothing is changed.
    """
    stop = stop_requests()
    if stop.installed is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    stop.restore()  # forgets what an earlier run was asked
    before = signal.getsignal(signal.SIGINT)

    def handle(number, frame):
        signal.signal(signal.SIGINT, before)
        if stop.current_phase == SET_UP:
            raise KeyboardInterrupt
        stop.request("SIGINT")
        print("interrupted: the step at hand is finished and saved; once more ends at once", file=sys.stderr)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    except Preempted as error:
        raise KeyboardInterrupt(str(error)) from None
    finally:
        signal.signal(signal.SIGINT, before)
        stop.restore()


@contextlib.contextmanager
def _keeping_environment() -> Iterator[None]:
    was = {name: value for name, value in os.environ.items() if name.startswith(NOTED)}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith(NOTED) and name not in was]:
            del os.environ[name]
        os.environ.update(was)


@contextlib.contextmanager
def _keeping_random_numbers() -> Iterator[None]:
    """A run has a seed of its own: whoever calls it draws on where he was."""
    state = random_state()
    try:
        yield
    finally:
        restore_random_state(state)


@contextlib.contextmanager
def _with_bars(of_data: bool) -> Iterator[None]:
    had_bars, had_none = transformers_logging.is_progress_bar_enabled(), datasets.are_progress_bars_disabled()
    transformers_logging.disable_progress_bar()
    if not of_data:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if had_bars:
            transformers_logging.enable_progress_bar()
        if not had_none:
            datasets.enable_progress_bars()


@contextlib.contextmanager
def _without_old_news() -> Iterator[None]:
    """Messages of the libraries that say nothing to the user are left out meanwhile."""
    only_news = functools.partial(is_news)  # an entry script's own filter is another object, and stays
    for name in LOGGERS:
        logging.getLogger(name).addFilter(only_news)
    try:
        yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(only_news)


def plain_progress(trainer) -> None:
    """A bar instead of transformers' table for notebooks, whose columns are made for its own names of metrics."""
    table = next(
        (c for c in trainer.callback_handler.callbacks if type(c).__name__ == "NotebookProgressCallback"), None
    )
    if table is not None:
        trainer.remove_callback(table)
        trainer.add_callback(ProgressCallback)
