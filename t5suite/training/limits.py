"""Callbacks around the update: gradients clipped by value, rates lowered at a plateau, an end after so many minutes.

>>> trainer.add_callback(ClipGradValueCallback(0.5))
"""

import logging
import time

import torch
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from t5suite.base.errors import ConfigError
from t5suite.optim.learning_rates import PlateauLR

logger = logging.getLogger(__name__)

# Steps between two looks at rank 0's clock where several ranks train: each look makes them wait for one another.
STEPS_BETWEEN_VOTES = 10


class ClipGradValueCallback(TrainerCallback):
    """Every element of a gradient into [-value, value] just before the update.

    The trainer's hook for this comes when gradients are complete: accumulated, averaged over ranks, unscaled (fp16) and
    clipped by norm. The gradient norm that is logged is the one before any clipping.
    """

    def __init__(self, value: float):
        self.value = value

    def on_train_begin(self, args, state, control, **kwargs):
        """DeepSpeed keeps gradients to itself, so there is nothing to clip here."""
        if getattr(args, "deepspeed", None):
            raise ConfigError("--clip_grad_value has no hold on DeepSpeed's gradients; use --max_grad_norm")

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        """Clips in place."""
        torch.nn.utils.clip_grad_value_(model.parameters(), self.value)


class PlateauCallback(TrainerCallback):
    """Tells a `PlateauLR` what every evaluation came to: the number that selects checkpoints, more being better."""

    def on_evaluate(self, args, state, control, metrics=None, lr_scheduler=None, **kwargs):
        """An evaluation before the first step (`--eval_on_start`) says nothing about the rate."""
        if isinstance(lr_scheduler, PlateauLR) and metrics and state.global_step > 0:
            lr_scheduler.observe(metrics["eval_selection"])


class MaxMinutesCallback(TrainerCallback, ExportableState):
    """Ends training after `--max_minutes`, at the end of a step, with an evaluation and a checkpoint.

    Minutes are those of training with its evaluations, summed over restarts (the checkpoint remembers them). With
    several ranks, rank 0's clock decides for all, every `STEPS_BETWEEN_VOTES` steps. Schedules go by steps: one that
    is meant to end with the budget needs `--max_steps` to be what the budget allows.
    """

    def __init__(self):
        self.seconds_before = 0.0
        self.started = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds so far, those before a restart included."""
        return self.seconds_before + time.perf_counter() - self.started

    def state(self) -> dict:
        """What a checkpoint remembers."""
        return {"args": {}, "attributes": {"seconds_before": self.seconds}}

    def on_train_begin(self, args, state, control, **kwargs):
        """Starts the clock; a checkpoint from before there was a budget gets a place to remember it."""
        self.started = time.perf_counter()
        state.stateful_callbacks.setdefault(type(self).__name__, self.state())

    def on_step_end(self, args, state, control, **kwargs):
        """Looks at the clock, and asks for an end as `--max_steps` would bring it."""
        if not self._over(args, state.global_step):
            return
        logger.info("--max_minutes %s are over after step %d", args.max_minutes, state.global_step)
        control.should_training_stop = True
        control.should_log = True
        control.should_evaluate = args.eval_strategy.value != "no"
        control.should_save = args.save_strategy.value != "no"

    def _over(self, args, step: int) -> bool:
        over = self.seconds >= 60 * args.max_minutes
        if args.world_size <= 1:
            return over
        if step % STEPS_BETWEEN_VOTES:
            return False
        vote = torch.tensor([float(over)], device=args.device)
        torch.distributed.broadcast(vote, src=0)
        return bool(vote.item())


def limit_callbacks(args) -> list[TrainerCallback]:
    """The callbacks that the flags ask for."""
    callbacks = [PlateauCallback()]
    if args.clip_grad_value is not None:
        callbacks.append(ClipGradValueCallback(args.clip_grad_value))
    if args.max_minutes is not None:
        callbacks.append(MaxMinutesCallback())
    return callbacks
