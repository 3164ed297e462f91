"""What a run takes up from the checkpoint that it begins with: the one way back for every kind of resume.

    >>> trainer.train(start=choose_start("runs/new", resume="runs/old/checkpoint-400", reset="optimizer,schedule"))

`SuiteTrainer` restores the parts in this order, and every one reads the checkpoint itself:

1. the position in the training data (`data_positions`);
2. the trainer's state: `state_at_start`, `restore_attributes`;
3. the weights, before the model is wrapped, or after it is sharded (`models.weights.load_weights`);
4. optimizer, schedule and loss scaler: `restore_optimization`;
5. the sums of losses, the state of callbacks and what is pending: `saved_progress`, which is read as soon as training
   is asked for, and which `resuming.RunProgress` takes;
6. random numbers, right before the first update: `restore_random_numbers`.

The same run with the same flags gets everything bit for bit. In any other run (`Start.restart`: another run's
checkpoint, a reset, changed settings) the flags decide rates, weight decay and intervals. `saving` is the way out.
"""

import logging
import math
import pickle
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from transformers import TrainerState
from transformers.integrations.deepspeed import deepspeed_load_checkpoint
from transformers.optimization import GreedyLR
from transformers.trainer_callback import ExportableState

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.base.files import read_json
from t5suite.models.adapters import is_adapted
from t5suite.optim.schedulers import set_rates
from t5suite.training.checkpoints.folders import STATE_FILE
from t5suite.training.checkpoints.saving import OPTIMIZER, PROGRESS_FILE, RANK_FILE, SCALER, SCHEDULER
from t5suite.training.checkpoints.starts import Start, check_kind
from t5suite.training.processes.ranks import Ranks

logger = logging.getLogger(__name__)

# The scheduler state that a restart restores; the rates and the shape follow the flags.
SCHEDULE_MEMORY = ("last_epoch", "_step_count", "reduction", "best", "num_bad")
# The same of Hugging Face's schedules that watch evaluations.
WATCHER_MEMORY = (
    *("last_epoch", "best", "num_bad_epochs", "num_good_epochs", "cooldown_counter", "warmup_counter", "reset_start"),
    *("_last_lr", "_streaming_avg"),
)
# A group's rate before the schedule: a scheduler that is a function of the step writes it there, others do not.
INITIAL_RATE = "initial_lr"
# What `torch.load` raises for a file that is incomplete or contains more than tensors.
UNREADABLE = (
    OSError, pickle.UnpicklingError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, EOFError,
)  # fmt: skip


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
    is_reset = bool(start.reset) and not start.resets_again
    only_ends = total_steps == start.step and start.of_this_run and not is_reset
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


def restore_optimization(start: Start, optimizer, lr_scheduler, scaler, *, fsdp: bool) -> None:
    """Restores optimizer, schedule and loss scaler; after a restart, only what is kept, under this run's flags.

    Args:
      scaler: fp16's; None without. A run changed from --fp16 to --bf16 has none, one changed to --fp16 no saved state.
      fsdp: whether FSDP shards the optimizer: each rank takes its shards of the full tensors.

    Raises:
      CheckpointError: a file is missing or unreadable.
      ConfigError: the state belongs to a different optimizer.
    """
    folder = start.checkpoint
    if not start.restart:
        restore_optimizer(optimizer, optimizer_state(folder, optimizer, fsdp))
        lr_scheduler.load_state_dict(load_state(folder, SCHEDULER))
    else:
        if "optimizer" not in start.reset:
            load_moments(optimizer, optimizer_state(folder, optimizer, fsdp), folder)
        if "schedule" not in start.reset:
            load_schedule(lr_scheduler, optimizer, load_state(folder, SCHEDULER), start.schedule_steps)
        follow_flags(lr_scheduler)
    if scaler is not None and (folder / f"{SCALER}.pt").is_file():
        scaler.load_state_dict(load_state(folder, SCALER))


def optimizer_state(checkpoint: Path, optimizer, fsdp: bool) -> dict:
    """The optimizer's state in a checkpoint, ours or one of Hugging Face's trainer; under FSDP this rank's shards.

    Raises:
      CheckpointError: the file is missing or unreadable.
    """
    state = load_state(checkpoint, OPTIMIZER)
    return state_in_pieces(state, optimizer) if fsdp else state


def restore_deepspeed(start: Start, engine, lr_scheduler) -> None:
    """Has DeepSpeed restore its weights and its optimizer, and restores the schedule if that is not DeepSpeed's own.

    DeepSpeed restores the settings of the groups and the norm to clip at, too; after a restart, they follow the flags.

    Raises:
      CheckpointError: `scheduler.pt` is missing or unreadable.
    """
    from accelerate.utils import DeepSpeedSchedulerWrapper  # is there only where DeepSpeed is installed

    folder = start.checkpoint
    optimizer = engine.optimizer
    is_deepspeeds_schedule = isinstance(lr_scheduler, DeepSpeedSchedulerWrapper)
    settings_before = settings_of_groups(optimizer)
    if is_deepspeeds_schedule:  # it sets the rates after the next update
        for settings in settings_before:
            settings.pop("lr")
    clip_grad = getattr(optimizer, "clip_grad", None)
    deepspeed_load_checkpoint(engine, str(folder), load_module_strict=not is_adapted(engine.module))
    if start.restart:
        set_groups(optimizer, settings_before)
        if clip_grad is not None:
            optimizer.clip_grad = clip_grad
    if is_deepspeeds_schedule:
        return
    schedule = load_state(folder, SCHEDULER)
    if start.restart:
        load_schedule(lr_scheduler, optimizer, schedule, start.schedule_steps)
        follow_flags(lr_scheduler)
    else:
        lr_scheduler.load_state_dict(schedule)


def follow_flags(lr_scheduler) -> None:
    """Sets the rates that a schedule, if it is a function of the step, has at its step."""
    if isinstance(lr_scheduler, LambdaLR):
        set_rates(lr_scheduler)


def load_schedule(lr_scheduler, optimizer, saved: dict, num_steps: int) -> None:
    """Loads where a schedule was; its settings follow the flags, and its rates if it is a function of the step.

    Between the two kinds nothing but the step is taken over: the other kind counts evaluations, not steps.

    Args:
      num_steps: how many steps of the schedule are over.
    """
    is_of_steps = "lr_lambdas" in saved
    if isinstance(lr_scheduler, LambdaLR):
        memory = saved if is_of_steps else {"last_epoch": num_steps}
        for key in SCHEDULE_MEMORY:
            if key in memory and hasattr(lr_scheduler, key):
                setattr(lr_scheduler, key, memory[key])
    elif not is_of_steps:
        _load_watched_rates(lr_scheduler, optimizer, saved)


def _load_watched_rates(lr_scheduler, optimizer, saved: dict) -> None:
    """Loads what a schedule has seen, and the rates that it had reached."""
    rates = saved.get("_last_lr", [])
    rates_by_flags = [group["lr"] for group in optimizer.param_groups]
    if isinstance(lr_scheduler, (ReduceLROnPlateau, GreedyLR)):
        memory = {key: saved[key] for key in WATCHER_MEMORY if key in saved}
        saved = {**lr_scheduler.state_dict(), **memory}
    lr_scheduler.load_state_dict(saved)
    for group, rate in zip(optimizer.param_groups, rates):
        group["lr"] = rate
    if rates and list(rates) != rates_by_flags:
        logger.warning(
            "the learning rate goes on at %g, where the checkpoint's schedule was; to begin with --learning_rate, %g, "
            "add schedule to --reset",
            rates[0],
            rates_by_flags[0],
        )


def load_moments(optimizer, saved: dict, checkpoint) -> None:
    """Loads the saved state into the optimizer; its groups keep their own rates, betas and weight decay.

    Raises:
      ConfigError: the saved state belongs to a different optimizer.
    """
    settings_before = settings_of_groups(optimizer)
    try:
        kinds = {frozenset(state) for state in saved["state"].values()}
        restore_optimizer(optimizer, saved)
        names_of_settings = [settings.keys() - {INITIAL_RATE} for settings in settings_of_groups(optimizer)]
        if names_of_settings != [settings.keys() - {INITIAL_RATE} for settings in settings_before]:
            raise ValueError(f"its groups have other settings, its state holds {sorted(map(sorted, kinds))}")
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"{checkpoint}: its optimizer differs from this run's ({error}); add optimizer to --reset"
        ) from None
    set_groups(optimizer, settings_before)


def settings_of_groups(optimizer) -> list[dict]:
    """Each group's rate, betas, weight decay, ...: all but its parameters."""
    return [{key: setting for key, setting in group.items() if key != "params"} for group in optimizer.param_groups]


def set_groups(optimizer, settings_by_group: list[dict]) -> None:
    """Gives each group these settings."""
    for group, settings in zip(optimizer.param_groups, settings_by_group, strict=True):
        group.pop(INITIAL_RATE, None)
        group.update(settings)


def load_state(folder, name: str):
    """Loads a state that `save_state` or Hugging Face's trainer wrote, with its tensors on the CPU.

    Raises:
      CheckpointError: the file is missing or incomplete, or contains Python objects besides tensors.
    """
    path = Path(folder) / f"{name}.pt"
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except UNREADABLE:
        # Hide torch's message, which advises disabling `weights_only`.
        raise CheckpointError(
            f"{path} is truncated, or contains Python objects besides tensors, which could run code when loaded; "
            "start with a new optimizer: --reset optimizer,schedule"
        ) from None


def restore_optimizer(optimizer, state: dict) -> None:
    """Like `optimizer.load_state_dict`, but bit for bit.

    torch casts float32 moments to the dtype of a bfloat16 parameter (Adafactor keeps float32 ones).
    """
    optimizer.load_state_dict(state)
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for key, saved in state["state"].get(number, {}).items():
            present = optimizer.state[parameter].get(key)
            if torch.is_tensor(saved) and torch.is_tensor(present) and present.dtype != saved.dtype:
                optimizer.state[parameter][key] = saved.to(present.device)


def state_in_pieces(state: dict, optimizer) -> dict:
    """An optimizer's whole state, with tensors of a parameter's shape sharded like that parameter."""
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def cut(value, parameter):
        if not (isinstance(parameter, DTensor) and torch.is_tensor(value) and value.shape == parameter.shape):
            return value
        # Without a source rank nothing is sent: each rank has the whole tensor and takes its shard.
        piece = distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)
        return piece.to(parameter.to_local().device)

    moments = {
        number: {key: cut(value, parameter) for key, value in state["state"][number].items()}
        for number, parameter in zip(numbers, parameters, strict=True)
        if number in state["state"]
    }
    return {**state, "state": moments}


def saved_progress(start: Start, ranks: Ranks) -> dict | None:
    """A checkpoint's progress, with this rank's `loss_since_log`; None if there is none, or steps count from 0."""
    if not start.keeps_steps or not (start.checkpoint / PROGRESS_FILE).is_file():
        return None
    progress = read_json(start.checkpoint / PROGRESS_FILE)
    if start.restart:
        progress |= {"stopped": False, "pending": {}}  # they held under the flags of then
    # This rank's own sum, or the mean over the saved ranks if the number of ranks has changed.
    files = sorted(start.checkpoint.glob(RANK_FILE.format(rank="*")))
    if len(files) == ranks.world_size:
        files = [start.checkpoint / RANK_FILE.format(rank=ranks.rank)]
    sums = [read_json(path)["loss_since_log"] for path in files]
    return {**progress, "loss_since_log": sum(sums) / max(len(sums), 1)}


def restore_random_numbers(checkpoint: Path, ranks: Ranks, seed: int, step: int) -> None:
    """Restores this rank's random state; a rank that the checkpoint does not have gets its own torch seed."""
    path = checkpoint / RANK_FILE.format(rank=ranks.rank)
    if path.is_file():
        restore_random_state(read_json(path)["random_state"])
    elif any(checkpoint.glob(RANK_FILE.format(rank="*"))):
        torch.manual_seed(hash((seed, step, ranks.rank)))


def restore_random_state(state: dict) -> None:
    """Restores what `saving.random_state` returned.

    The state of the GPU that the process used is restored on the GPU that it uses now, even if the index differs.

    Raises:
      CheckpointError: the state is invalid.
    """
    try:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        name, keys, *position = state["numpy"]
        np.random.set_state((name, np.array(keys, np.uint32), *position))
        torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))
        if torch.cuda.is_available() and state.get("cuda"):
            devices = [torch.tensor(numbers, dtype=torch.uint8) for numbers in state["cuda"]]
            if len(devices) == torch.cuda.device_count():
                torch.cuda.set_rng_state_all(devices)
            torch.cuda.set_rng_state(devices[state["cuda_device"]])
    except (KeyError, ValueError, TypeError, IndexError, OverflowError, RuntimeError) as error:
        raise CheckpointError(f"the states of the random number generators cannot be restored: {error}") from None
