"""Flags that bound training as it goes on: elements of gradients, learning rates at a plateau, minutes.

>>> for callback in limit_callbacks(args, progress):            # --clip_grad_value 1.0 --max_minutes 90
...     trainer.add_callback(callback)
"""

import logging

import torch

from t5suite.base.errors import ConfigError
from t5suite.optim.schedulers import PlateauLR
from t5suite.training.callback import Callback
from t5suite.training.checkpoints.resuming import RunProgress

logger = logging.getLogger(__name__)

# Steps between two checks of rank 0's clock when several ranks train: each check makes them wait for one another.
STEPS_BETWEEN_VOTES = 10


def limit_callbacks(args, progress: RunProgress) -> list[Callback]:
    """The callbacks that the flags ask for."""
    callbacks: list[Callback] = [PlateauCallback()]
    if args.clip_grad_value is not None:
        callbacks.append(ClipGradValueCallback(args.clip_grad_value))
    if args.max_minutes is not None:
        callbacks.append(MaxMinutesCallback(progress))
    return callbacks


class ClipGradValueCallback(Callback):
    """Clips every element of the complete gradient to [-value, value] before the update (`--clip_grad_value`)."""

    def __init__(self, value: float):
        self.value = value

    def on_train_begin(self, args, state, control, **kwargs):
        """Refuses DeepSpeed, which does not expose its gradients."""
        if args.deepspeed:
            raise ConfigError("--clip_grad_value cannot clip DeepSpeed's gradients; use --max_grad_norm")

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        """Clips the gradients of the model."""
        torch.nn.utils.clip_grad_value_(model.parameters(), self.value)


class PlateauCallback(Callback):
    """Passes each evaluation's result to a `PlateauLR`: the number that selects checkpoints, higher is better."""

    def on_evaluate(self, args, state, control, metrics=None, lr_scheduler=None, **kwargs):
        """Ignores an evaluation before the first step (`--eval_on_start`)."""
        if isinstance(lr_scheduler, PlateauLR) and metrics and state.global_step > 0:
            lr_scheduler.observe(metrics["eval_selection"])


class MaxMinutesCallback(Callback):
    """Ends training after `--max_minutes`, at the end of a step, with an evaluation and a checkpoint.

    Training and its evaluations count, summed over all starts of this run, with and without the flag; the time of
    another run, from whose checkpoint this one began, does not. With several ranks, rank 0's clock decides for all,
    every `STEPS_BETWEEN_VOTES` steps. Schedules count steps: for a schedule to end with the time budget, set
    `--max_steps` to what the budget allows.
    """

    def __init__(self, progress: RunProgress):
        self.progress = progress

    def on_step_end(self, args, state, control, **kwargs):
        """Ends training as `--max_steps` would, when the time is up."""
        is_over = self.progress.seconds_of_this_run >= 60 * args.max_minutes
        if args.world_size > 1:
            if state.global_step % STEPS_BETWEEN_VOTES:
                return
            vote = torch.tensor([float(is_over)], device=args.device)
            torch.distributed.broadcast(vote, src=0)
            is_over = bool(vote.item())
        if is_over:
            logger.info("--max_minutes %s: the time is up after step %d", args.max_minutes, state.global_step)
            control.should_training_stop = True
            control.should_log = True
            # By epochs, the end of the epoch comes next, and evaluates and saves.
            control.should_evaluate = args.eval_strategy.value == "steps"
            control.should_save = args.save_strategy.value == "steps"
