"""The process around a `t5suite.FineTuner`: its state, Ctrl-C, a model in memory that stays as it was.

>>> process = TunerProcess()
>>> with process.entered(), interruptible():
...     train()

Several `FineTuner`s may share one process, such as a notebook's kernel. transformers and accelerate keep device and
precision per process, from the latest training arguments: each tuner restores its own while it works.
"""

import contextlib
import functools
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator

import datasets
import torch
from transformers.utils import logging as transformers_logging

from t5suite.base.errors import Preempted, UserError
from t5suite.base.hub_commits import HubReads, reading_as
from t5suite.base.script_flags import flags_of
from t5suite.training.checkpoints.restoring import restore_random_state
from t5suite.training.checkpoints.saving import random_state
from t5suite.training.monitoring.library_noise import NOISY_LOGGERS, is_shown
from t5suite.training.monitoring.terminal import somebody_watches
from t5suite.training.process_setup import (
    Float32Formats,
    float32_formats,
    leave_out_cudnn_attention,
    restore_float32_formats,
)
from t5suite.training.processes.signals import SET_UP, stop_requests
from t5suite.training.sharding.process_state import keeping_process_state, load_shared_states, shared_states

# Prefixes of the environment variables that transformers and accelerate set for later code.
PREFIXES = ("ACCELERATE_", "FSDP_")


class TunerProcess:
    """One tuner's process state, as if it were alone: random numbers, shared states, kernels of attention, TF32, log
    filters, progress bars.

    Args:
      bars: whether `datasets` draws progress bars; None: on a terminal and in a notebook. Those of transformers
        (weights read and written) are always off.
    """

    def __init__(self, bars: bool | None = None):
        self._saved_states: list[dict] | None = None
        self._float32_formats: Float32Formats | None = None
        self._bars = bars
        self._hub_reads = HubReads()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Restores this tuner's process state; at the end, that of all other code.

        Raises:
          UserError: with a note that spells the flags of its message as keywords.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(keeping_process_state())
            stack.callback(_restore_environment, dict(os.environ))
            stack.callback(restore_random_state, random_state())
            stack.callback(torch.backends.cuda.enable_cudnn_sdp, torch.backends.cuda.cudnn_sdp_enabled())
            leave_out_cudnn_attention()
            stack.callback(restore_float32_formats, float32_formats())
            stack.enter_context(reading_as(self._hub_reads))
            self._filter_noise(stack)
            self._choose_bars(stack)
            self._load_states()
            formats_before = float32_formats()
            try:
                yield
            except UserError as error:
                keywords = ", ".join(_keywords_of_flags(str(error)))
                if keywords:
                    error.add_note(f"In Python the flags are keywords: {keywords}")
                raise
            finally:
                self._saved_states = shared_states()
                if float32_formats() != formats_before:  # else the process's own, which other code may change
                    self._float32_formats = float32_formats()

    def _filter_noise(self, stack: contextlib.ExitStack) -> None:
        """Hides lines of libraries that say nothing to the user."""
        noise_filter = functools.partial(is_shown)  # an entry script's own filter is another object, and stays
        for noisy_logger in map(logging.getLogger, NOISY_LOGGERS):
            noisy_logger.addFilter(noise_filter)
            stack.callback(noisy_logger.removeFilter, noise_filter)

    def _choose_bars(self, stack: contextlib.ExitStack) -> None:
        """Switches off progress bars that nobody sees."""
        if transformers_logging.is_progress_bar_enabled():
            stack.callback(transformers_logging.enable_progress_bar)
        transformers_logging.disable_progress_bar()
        shows_bars = somebody_watches() if self._bars is None else self._bars
        if shows_bars:
            return
        if not datasets.are_progress_bars_disabled():
            stack.callback(datasets.enable_progress_bars)
        datasets.disable_progress_bars()

    def _load_states(self) -> None:
        """Puts this tuner's shared states, and the float32 format that its flags set, in place of the process's."""
        if self._saved_states is not None:
            load_shared_states(self._saved_states)
        if self._float32_formats is not None:
            restore_float32_formats(self._float32_formats)


def _keywords_of_flags(message: str) -> list[str]:
    """The flags that a message names, as keywords of `FineTuner`.

    >>> _keywords_of_flags("give --resume none, another --output_dir or --overwrite_output_dir")
    ['resume="none"', 'output_dir=...', 'overwrite_output_dir=True']
    """
    entries = flags_of("fine_tune_t5")
    keywords = []
    for name, next_word in re.findall(r"--(\w+)(?: (\w+))?", message):
        if name not in entries or "python" in entries[name]:
            continue
        value = "..."
        if entries[name]["type"] == "bool":
            value = str(next_word != "False")
        elif next_word in (entries[name]["choices"] or ["none"]):
            value = f'"{next_word}"'
        keywords.append(f"{name}={value}")
    return list(dict.fromkeys(keywords))


def _restore_environment(earlier: dict[str, str]) -> None:
    for name in list(os.environ):
        if name.startswith(PREFIXES):
            del os.environ[name]
    os.environ.update({name: value for name, value in earlier.items() if name.startswith(PREFIXES)})


@contextlib.contextmanager
def restoring_model(model) -> Iterator[None]:
    """Puts back what training and evaluation change of a model besides its weights: classes, modes, `use_cache`.

    >>> with restoring_model(model):
    ...     trainer.train()                       # quick dropout in place of torch's, a configuration without a cache
    """
    modules = list(model.modules())
    classes = [type(module) for module in modules]
    modes = [module.training for module in modules]
    configs = [module.config for module in modules if hasattr(getattr(module, "config", None), "use_cache")]
    caches = [config.use_cache for config in configs]
    try:
        yield
    finally:
        for module, module_class, mode in zip(modules, classes, modes, strict=True):
            module.__class__ = module_class
            module.training = mode
        for config, use_cache in zip(configs, caches, strict=True):
            config.use_cache = use_cache


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C (a notebook's stop button) ends training after the current step, with a checkpoint; a second one at once.

    Raises:
      KeyboardInterrupt: when everything is saved. If signals are caught already (by an entry script), and in
        threads, which cannot catch them, nothing is changed.
    """
    stop = stop_requests()
    if stop.installed is not None or threading.current_thread() is not threading.main_thread():
        yield
        return
    stop.restore()  # forgets an earlier run's stop request
    earlier_handler = signal.getsignal(signal.SIGINT)

    def handle(number, frame):
        signal.signal(signal.SIGINT, earlier_handler)
        if stop.current_phase == SET_UP:
            raise KeyboardInterrupt
        stop.request("SIGINT")
        print("interrupted: finishing and saving the current step; press again to end at once", file=sys.stderr)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    except Preempted as error:
        raise KeyboardInterrupt(str(error)) from None
    finally:
        signal.signal(signal.SIGINT, earlier_handler)
        stop.restore()
