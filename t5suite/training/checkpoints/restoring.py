"""What a run takes up from the checkpoint that it begins with: the one way back for every kind of resume.

    >>> trainer.train(start=choose_start("runs/new", resume="runs/old/checkpoint-400", reset="optimizer,schedule"))

`SuiteTrainer` restores these parts, in this order:

1. the position in the training data (`data_positions`);
2. the trainer's state: `state_at_start`, `restore_attributes`;
3. the weights, before the model is wrapped, or after it is sharded (`models.weights.load_weights`);
4. optimizer, schedule and loss scaler: `restore_optimization`;
5. the sums of losses, the state of callbacks and what is pending: `saved_progress`, which is read as soon as training
   is asked for, and which `resuming.RunProgress` takes;
6. random numbers, right before the first update: `restore_random_numbers`.

The same run with the same flags gets everything bit for bit. Any other run (`Start.restart`: another run's checkpoint,
a reset, changed settings) follows the flags in betas, weight decay and intervals, and in rates, too, if its schedule is
a function of the step. A schedule that watches evaluations goes on from the rate that it had reached.

`saving` writes what is read here.
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

from t5suite.base.errors import CheckpointError, ConfigError, LackOfMemoryError, first_line
from t5suite.base.files import read_json
from t5suite.base.memory_errors import is_out_of_memory
from t5suite.models.adapters import is_adapted
from t5suite.optim.schedulers import set_rates
from t5suite.training.checkpoints.folders import STATE_FILE
from t5suite.training.checkpoints.saving import OPTIMIZER, PROGRESS_FILE, RANK_FILE, SCALER, SCHEDULER
from t5suite.training.checkpoints.starts import Start, check_kind
from t5suite.training.processes.ranks import Ranks

logger = logging.getLogger(__name__)

# The state of a schedule of steps that a restart restores; the rates and the shape follow the flags. The last three are
# those of our schedule that lowers its rates after evaluations (`optim.schedulers`).
SCHEDULE_MEMORY = ("last_epoch", "_step_count", "reduction", "best", "num_bad")
# The same of Hugging Face's schedules that watch evaluations.
WATCHER_MEMORY = (
    *("last_epoch", "best", "num_bad_epochs", "num_good_epochs", "cooldown_counter", "warmup_counter", "reset_start"),
    *("_last_lr", "_streaming_avg"),
)
# A group's rate before the schedule: a scheduler that is a function of the step writes it there, others do not.
INITIAL_RATE = "initial_lr"
# {a setting of torch's RMSprop: the moment that it keeps}
MOMENTS_OF_SETTINGS = {"momentum": "momentum_buffer", "centered": "grad_avg"}
# The way out that every kind of training has.
WEIGHTS_ALONE = "start from the checkpoint's weights alone with --model_name_or_path and a new --output_dir"
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
    is_reset_now = bool(start.reset) and not start.resets_again
    # A run that has made all its steps may be started again: it was stopped before its last evaluation, say.
    has_only_to_end = start.of_this_run and total_steps == start.step and not is_reset_now
    if 0 < total_steps <= start.step and not has_only_to_end:
        raise ConfigError(
            f"nothing is left to train: {start.step} steps are done, and --max_steps or --num_train_epochs makes "
            f"{total_steps}; raise it, or add step to --reset"
        )
    if start.reset and (deepspeed or fsdp):
        raise ConfigError(
            f"--reset {','.join(sorted(start.reset))} does not work in sharded training; start from the checkpoint's "
            "weights alone with --model_name_or_path"
        )


def total_steps(args, epoch_length: int, update_size: int) -> int:
    """The run's number of steps according to the flags; 0 if unknown.

    Args:
      epoch_length: examples of an epoch; 0 if unknown.
      update_size: examples of an update.
    """
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
      parts: the trainer's callbacks.
      saved_states: `TrainerState.stateful_callbacks`: by the name of a class its state, or a list if there were several
        of the class. Of a list it is not known whose state is whose: those begin anew.
    """
    for part in parts:
        saved = saved_states.get(type(part).__name__)
        if isinstance(part, ExportableState) and isinstance(saved, dict):
            for name, value in saved.get("attributes", {}).items():
                setattr(part, name, value)


def restore_optimization(start: Start, optimizer, lr_scheduler, scaler, *, fsdp: bool) -> None:
    """Restores optimizer, schedule and loss scaler; after a restart, only what is kept, under this run's flags.

    Args:
      scaler: of the losses of fp16, whatever is reset; None without --fp16. A run that has changed to --fp16 has one,
        and a checkpoint without a state for it.
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
      ConfigError: sharded, and it has another number of parameters.
    """
    state = load_state(checkpoint, OPTIMIZER)
    if not fsdp:
        return state
    num_saved = sum(len(group["params"]) for group in state["param_groups"])
    num_trained = sum(len(group["params"]) for group in optimizer.param_groups)
    if num_saved != num_trained:
        raise ConfigError(
            f"{checkpoint}: its optimizer has {num_saved} parameters, and this run trains {num_trained}; "
            f"freeze what it froze, or {WEIGHTS_ALONE}"
        )
    return state_in_pieces(state, optimizer)


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
    if is_deepspeeds_schedule:
        # DeepSpeed restores its schedule and the rate at its step, but sets no rate before the next update is over: the
        # rate that it has restored must stay.
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
    """Sets the rates of a schedule's present step, if the schedule is a function of the step."""
    if isinstance(lr_scheduler, LambdaLR):
        set_rates(lr_scheduler)


def load_schedule(lr_scheduler, optimizer, saved: dict, num_steps: int) -> None:
    """Loads where a schedule was; its settings follow the flags.

    A schedule is a function of the step, or it watches evaluations. After a change from the first kind to the second,
    it begins with the flags' rates; after a change from the second to the first, it begins at the run's step.

    Args:
      num_steps: how many steps of the schedule are over.
    """
    was_of_steps = "lr_lambdas" in saved
    if not isinstance(lr_scheduler, LambdaLR):
        if not was_of_steps:
            _load_watched_rates(lr_scheduler, optimizer, saved)
        return
    memory = saved
    if not was_of_steps:
        memory = {"last_epoch": num_steps}
    for key in SCHEDULE_MEMORY:
        if key in memory and hasattr(lr_scheduler, key):
            setattr(lr_scheduler, key, memory[key])


def _load_watched_rates(lr_scheduler, optimizer, saved: dict) -> None:
    """Loads what a schedule has seen of evaluations, and the rates that it had reached.

    Of a schedule that Hugging Face does not have, and so of which it is not known what is a setting, all is loaded.
    """
    rates = saved.get("_last_lr", [])
    rates_by_flags = [group["lr"] for group in optimizer.param_groups]
    if isinstance(lr_scheduler, (ReduceLROnPlateau, GreedyLR)):
        memory = {key: saved[key] for key in WATCHER_MEMORY if key in saved}
        saved = {**lr_scheduler.state_dict(), **memory}
    lr_scheduler.load_state_dict(saved)
    if not rates:  # of a class that saves none
        return
    if len(rates) != len(rates_by_flags):
        raise ConfigError(
            f"the checkpoint's schedule has {len(rates)} groups of parameters, and this run has {len(rates_by_flags)}; "
            "add schedule to --reset"
        )
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    if list(rates) != rates_by_flags:
        logger.warning(
            "the learning rate goes on at %s, where the checkpoint's schedule was; to begin with --learning_rate, %s, "
            "add schedule to --reset",
            _rates_text(rates),
            _rates_text(rates_by_flags),
        )


def _rates_text(rates: Iterable[float]) -> str:
    """The rates of all groups, equal ones once."""
    return " and ".join(f"{rate:g}" for rate in dict.fromkeys(rates))


def load_moments(optimizer, saved: dict, checkpoint) -> None:
    """Loads the saved state into the optimizer; its groups keep their own rates, betas and weight decay.

    torch takes the state of any optimizer with as many parameters. Which one it was is told by the names of its
    settings, which loading puts in place of this run's: AdamW has betas and Adafactor a clip_threshold.

    Raises:
      ConfigError: the saved state belongs to a different optimizer.
    """
    settings_before = settings_of_groups(optimizer)
    try:
        restore_optimizer(optimizer, saved)
        if _names_of_settings(settings_of_groups(optimizer)) != _names_of_settings(settings_before):
            names_of_moments = {name for moments in saved["state"].values() for name in moments}
            raise ValueError(f"its groups have other settings; its state holds {', '.join(sorted(names_of_moments))}")
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"{checkpoint}: its optimizer differs from this run's ({error}); add optimizer to --reset"
        ) from None
    set_groups(optimizer, settings_before)
    begin_moments(optimizer)


def begin_moments(optimizer) -> None:
    """Adds the averages that this run's settings need and the loaded state lacks, as zeros.

    torch's RMSprop creates them only together with its other state, and would end in a KeyError.
    """
    for group in optimizer.param_groups:
        names = [name for setting, name in MOMENTS_OF_SETTINGS.items() if group.get(setting)]
        for parameter in group["params"]:
            state = optimizer.state.get(parameter)
            if state:
                for name in names:
                    state.setdefault(name, torch.zeros_like(parameter))


def _names_of_settings(settings_by_group: list[dict]) -> list[set[str]]:
    """The names of each group's settings, without the one that tells of the schedule alone."""
    return [settings.keys() - {INITIAL_RATE} for settings in settings_by_group]


def settings_of_groups(optimizer) -> list[dict]:
    """Each group's rate, betas, weight decay, ...: all but its parameters."""
    return [{key: setting for key, setting in group.items() if key != "params"} for group in optimizer.param_groups]


def set_groups(optimizer, settings_by_group: list[dict]) -> None:
    """Gives each group these settings, and no other rate before the schedule than theirs."""
    for group, settings in zip(optimizer.param_groups, settings_by_group, strict=True):
        group.pop(INITIAL_RATE, None)
        group.update(settings)


def load_state(folder, name: str):
    """Loads a state that `save_state` or Hugging Face's trainer wrote, with its tensors on the CPU.

    Raises:
      CheckpointError: the file is missing or incomplete, or contains Python objects besides tensors.
      LackOfMemoryError: its tensors do not fit into memory.
    """
    path = Path(folder) / f"{name}.pt"
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except PermissionError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None
    except (*UNREADABLE, MemoryError) as error:
        if is_out_of_memory(error):
            raise LackOfMemoryError(
                f"{path} does not fit into memory ({first_line(error)}); use more memory, or a smaller model"
            ) from None
        way_out = WEIGHTS_ALONE
        if name in (OPTIMIZER, SCHEDULER):
            way_out = "start with a new optimizer: --reset optimizer,schedule"
        # Hide torch's message, which advises disabling `weights_only`.
        raise CheckpointError(
            f"{path} is truncated, or contains Python objects besides tensors, which could run code when loaded; "
            f"{way_out}"
        ) from None


def restore_optimizer(optimizer, state: dict) -> None:
    """Like `optimizer.load_state_dict`, but bit for bit.

    torch casts moments to the dtype of their parameter: those of Adafactor, which are float32, to bfloat16 for a model
    in bfloat16.
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
        # Early stopping went by the former flags.
        progress |= {"stopped": False, "pending": _still_pending(start, progress["pending"])}
    # The losses since the last line of the log: this rank's own sum, or the mean over the saved ranks if the number of
    # ranks has changed.
    files = sorted(start.checkpoint.glob(RANK_FILE.format(rank="*")))
    if len(files) == ranks.world_size:
        files = [start.checkpoint / RANK_FILE.format(rank=ranks.rank)]
    sums = [read_json(path)["loss_since_log"] for path in files]
    return {**progress, "loss_since_log": sum(sums) / max(len(sums), 1)}


def _still_pending(start: Start, pending: dict) -> dict:
    """What a run with other flags still does at its own checkpoint: an evaluation that was due, an epoch's end.

    An epoch that ended with the run's last step, before its rows did, goes on.
    """
    if not (pending and start.of_this_run):
        return {}
    epoch = read_json(start.checkpoint / STATE_FILE)["epoch"]
    epoch_ends = pending["epoch_end"] and float(epoch).is_integer()
    if not (pending["evaluate"] or epoch_ends):
        return {}
    return {**pending, "epoch_end": epoch_ends}


def restore_random_numbers(checkpoint: Path, ranks: Ranks, seed: int, step: int) -> None:
    """Restores this rank's random state.

    A rank that the checkpoint does not have gets a seed of its own for torch, from which dropout is drawn. Checkpoints
    of Hugging Face's trainer have no such files: the run's seed stays.
    """
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
