"""What a run takes up from the checkpoint that it begins with: the one way back for every kind of resume.

    >>> trainer.train(start=choose_start("runs/new", resume="runs/old/checkpoint-400", reset="optimizer,schedule"))

`SuiteTrainer` restores the parts in this order, and every one reads the checkpoint itself:

1. the position in the training data (`data_positions`);
2. the trainer's state: `state_at_start`, `restore_attributes`;
3. the weights, before the model is wrapped, or after it is sharded (`Checkpoints.load_weights`);
4. optimizer, schedule and loss scaler: `restore_optimization`;
5. the sums of losses, the state of callbacks and what is pending (`resuming.RunProgress`);
6. random numbers, right before the first update (`Checkpoints.load_random_state`).

The same run with the same flags gets everything bit for bit. In any other run (`Start.restart`: another run's
checkpoint, a reset, changed settings) the flags decide rates, weight decay and intervals.
"""

import math
from collections.abc import Iterable

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerState
from transformers.integrations.deepspeed import deepspeed_load_checkpoint
from transformers.trainer_callback import ExportableState

from t5suite.base.errors import ConfigError
from t5suite.models.adapters import is_adapted
from t5suite.optim.schedulers import set_rates
from t5suite.training.checkpoints.folders import STATE_FILE
from t5suite.training.checkpoints.saving import SCHEDULER, Checkpoints
from t5suite.training.checkpoints.starts import Start, check_kind
from t5suite.training.checkpoints.states import load_state, restore_optimizer

# The scheduler state that a restart restores; the rates and the shape follow the flags.
SCHEDULE_MEMORY = ("last_epoch", "_step_count", "reduction", "best", "num_bad")


def check_start(start: Start, *, total_steps: int, deepspeed: bool, fsdp: bool, world_size: int) -> None:
    """Refuses a start that this run cannot make.

    Args:
      total_steps: the number of steps after which the run ends; 0 if unknown.

    Raises:
      ConfigError: nothing is left to train, a reset that sharded training cannot do, or see `check_kind`.
    """
    if start.checkpoint is None:
        return
    check_kind(start.checkpoint, deepspeed, world_size)
    if not start.restart:
        return
    only_ends = total_steps == start.step and start.of_this_run and not start.reset
    if 0 < total_steps <= start.step and not only_ends:
        raise ConfigError(
            f"nothing is left to train: {start.step} steps are done, and --max_steps or --num_train_epochs makes "
            f"{total_steps}; raise it, or add step to --reset"
        )
    if start.reset and (deepspeed or fsdp):
        raise ConfigError(
            f"--reset {','.join(sorted(start.reset))} does not work with a sharded checkpoint; start from its weights "
            "alone with --model_name_or_path"
        )


def total_steps(args, epoch_length: int, update_size: int) -> int:
    """The run's number of steps according to the flags; 0 if unknown."""
    if args.max_steps > 0 or not epoch_length:
        return max(0, args.max_steps)
    return math.ceil(args.num_train_epochs * math.ceil(epoch_length / update_size))


def state_at_start(start: Start, args, max_steps: int) -> TrainerState:
    """The trainer's state in the checkpoint, with this run's batch size and intervals."""
    state = TrainerState.load_from_json(str(start.checkpoint / STATE_FILE))
    state.train_batch_size = args.train_batch_size
    state.compute_steps(args, max_steps)
    return state


def restore_attributes(parts: Iterable, saved_states: dict) -> None:
    """Restores what transformers' callbacks count (early stopping's patience); their settings follow the flags.

    Args:
      saved_states: `TrainerState.stateful_callbacks`: by the name of a class, one state or a list of states.
    """
    for part in parts:
        saved = saved_states.get(type(part).__name__)
        if isinstance(part, ExportableState) and isinstance(saved, dict):
            for name, value in saved.get("attributes", {}).items():
                setattr(part, name, value)


def restore_optimization(start: Start, checkpoints: Checkpoints, optimizer, lr_scheduler) -> None:
    """Restores optimizer, schedule and loss scaler; after a restart, only what is kept, under this run's flags.

    Raises:
      CheckpointError: a file is missing or unreadable.
      ConfigError: the state belongs to a different optimizer.
    """
    folder = start.checkpoint
    if not start.restart:
        restore_optimizer(optimizer, checkpoints.optimizer_state(folder, optimizer))
        lr_scheduler.load_state_dict(load_state(folder, SCHEDULER))
    else:
        if "optimizer" not in start.reset:
            load_moments(optimizer, checkpoints.optimizer_state(folder, optimizer), folder)
        if "schedule" not in start.reset:
            load_schedule(lr_scheduler, optimizer, load_state(folder, SCHEDULER))
        follow_flags(lr_scheduler)
    checkpoints.load_scaler(folder)


def restore_deepspeed(start: Start, engine, lr_scheduler) -> None:
    """Has DeepSpeed restore its weights and its optimizer, and restores the schedule if that is not DeepSpeed's own.

    Raises:
      CheckpointError: `scheduler.pt` is missing or unreadable.
    """
    from accelerate.utils import DeepSpeedSchedulerWrapper  # is there only where DeepSpeed is installed

    folder = start.checkpoint
    deepspeed_load_checkpoint(engine, str(folder), load_module_strict=not is_adapted(engine.module))
    if not isinstance(lr_scheduler, DeepSpeedSchedulerWrapper):
        lr_scheduler.load_state_dict(load_state(folder, SCHEDULER))
    if start.restart:
        follow_flags(lr_scheduler)


def follow_flags(lr_scheduler) -> None:
    """Sets the rates that a schedule, if it is a function of the step, has at its step."""
    if isinstance(lr_scheduler, LambdaLR):
        set_rates(lr_scheduler)


def load_schedule(lr_scheduler, optimizer, saved: dict) -> None:
    """Loads where a schedule was; the rates and shape of one that is a function of the step follow the flags."""
    if isinstance(lr_scheduler, LambdaLR):
        for key in SCHEDULE_MEMORY:
            if key in saved and hasattr(lr_scheduler, key):
                setattr(lr_scheduler, key, saved[key])
        return
    lr_scheduler.load_state_dict(saved)
    for group, rate in zip(optimizer.param_groups, saved.get("_last_lr", [])):
        group["lr"] = rate


def load_moments(optimizer, saved: dict, checkpoint) -> None:
    """Loads the saved state into the optimizer; its groups keep their own rates, betas and weight decay.

    Raises:
      ConfigError: the saved state belongs to a different optimizer.
    """
    settings_of_groups = [
        {key: setting for key, setting in group.items() if key != "params"} for group in optimizer.param_groups
    ]
    try:
        kinds = {frozenset(state) for state in saved["state"].values()}
        restore_optimizer(optimizer, saved)
        keys_of_groups = [set(group) for group in optimizer.param_groups]
        if keys_of_groups != [{*settings, "params"} for settings in settings_of_groups]:
            raise ValueError(f"its groups have other settings, its state holds {sorted(map(sorted, kinds))}")
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"{checkpoint}: its optimizer differs from this run's ({error}); add optimizer to --reset"
        ) from None
    for group, settings in zip(optimizer.param_groups, settings_of_groups, strict=True):
        group.update(settings)
