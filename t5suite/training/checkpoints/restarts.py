"""Prepares a trainer for where a run begins: offsets, what is reset, and what a new or extended run keeps.

    >>> start = choose_start("runs/new", resume="runs/old/checkpoint-400", reset="optimizer,schedule")
    >>> with prepared_start(trainer, start) as folder:
    ...     trainer.train(resume_from_checkpoint=folder)

A checkpoint of the same run with the same flags is resumed from as it is. Of any other, the trainer gets a staged copy:
a folder of links, with a state that follows this run's flags; `RestartCallback` restores what is kept of optimizer and
schedule.
"""

import contextlib
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerState
from transformers.trainer_callback import ExportableState

from t5suite.base.errors import ConfigError, UserError
from t5suite.optim.schedulers import set_rates
from t5suite.runs.directory import read_json, write_json
from t5suite.training.callback import Callback
from t5suite.training.checkpoints.folders import STATE_FILE, checkpoint_step
from t5suite.training.checkpoints.resuming import PROGRESS_FILE, RANK_FILE
from t5suite.training.checkpoints.starts import POSITION_FILE, Position, Start, check_kind, examples_before
from t5suite.training.checkpoints.states import load_state, restore_optimizer

STAGING = ".going-on"
OPTIMIZER = "optimizer"
SCHEDULER = "scheduler"
# The scheduler state that is restored; its rates and shape follow the flags instead.
SCHEDULE_MEMORY = ("last_epoch", "_step_count", "reduction", "best", "num_bad")
# Files that a staged checkpoint does not link: the callback restores them, or they follow this run's flags.
NOT_LINKED = (f"{OPTIMIZER}.pt", f"{SCHEDULER}.pt", POSITION_FILE, STATE_FILE, PROGRESS_FILE)


@contextlib.contextmanager
def prepared_start(trainer, start: Start, run=None) -> Iterator[str | None]:
    """Yields the folder to resume from (None for a fresh run), with the trainer prepared for what is reset.

    Args:
      run: a `runs.Run` whose manifest records the restart.

    Raises:
      ConfigError: nothing is left to train, a reset that sharded training cannot do, or see `check_kind`.
    """
    if start.checkpoint is None:
        yield None
        return
    kind = trainer.accelerator.distributed_type.value
    check_kind(start.checkpoint, kind == "DEEPSPEED", trainer.accelerator.num_processes)
    old_step = checkpoint_step(start.checkpoint)
    step = 0 if "step" in start.reset else old_step
    _set_offsets(trainer, start, old_step, step)
    if not start.restart:
        yield str(start.checkpoint)
        return
    if run is not None:
        entry = {"from": str(start.checkpoint), "reset": sorted(start.reset), "step": old_step}
        run.update(restarts=[*run.manifest.get("restarts", []), entry])
    _check_steps_are_left(trainer, start, step)
    is_sharded = kind in ("DEEPSPEED", "FSDP")
    if is_sharded and start.reset:
        raise ConfigError(
            f"--reset {','.join(sorted(start.reset))} does not work with a sharded checkpoint; start from its weights "
            "alone with --model_name_or_path"
        )
    trainer.add_callback(RestartCallback(start, loads=not is_sharded))
    if is_sharded:
        yield str(start.checkpoint)
        return
    with _staged_checkpoint(trainer, start) as folder:
        yield str(folder)


def _check_steps_are_left(trainer, start: Start, step: int) -> None:
    """Refuses a run that has trained all its steps, unless it only has to end."""
    total = _total_steps(trainer)
    only_ends = total == step and start.of_this_run and not start.reset
    if 0 < total <= step and not only_ends:
        raise ConfigError(
            f"nothing is left to train: {step} steps are done, and --max_steps or --num_train_epochs makes {total}; "
            "raise it, or add step to --reset"
        )


def _set_offsets(trainer, start: Start, old_step: int, step: int) -> None:
    """Sets the trainer's offsets: how far its examples and its schedule are from what its step implies."""
    length = trainer.data.length
    update_size = trainer.update_size()
    position = start.position or Position(examples_before(old_step, length, update_size) if length else 0)
    if length:
        examples_seen = 0 if "data" in start.reset else position.examples
        trainer.data.offset = examples_seen - examples_before(step, length, update_size)
        if hasattr(trainer.train_dataset, "num_examples"):
            # This data set is as long as the run: extend it by the examples that another run saw.
            trainer.train_dataset.num_examples += max(0, trainer.data.offset)
    trainer.data_reset = "data" in start.reset
    trainer.schedule_start = step if "schedule" in start.reset else position.schedule_start + step - old_step
    trainer.reset_done = ",".join(sorted(start.reset)) or position.reset


def _total_steps(trainer) -> int:
    """The run's total number of steps according to the flags; 0 if unknown."""
    args = trainer.args
    length = trainer.data.length
    if args.max_steps > 0 or not length:
        return max(0, args.max_steps)
    return math.ceil(args.num_train_epochs * math.ceil(length / trainer.update_size()))


@contextlib.contextmanager
def _staged_checkpoint(trainer, start: Start) -> Iterator[Path]:
    """A folder of links to the checkpoint, which rank 0 makes and deletes; every rank calls it."""
    folder = Path(trainer.args.output_dir) / STAGING
    if trainer.is_world_process_zero():
        _stage(trainer, start, folder)
    trainer.accelerator.wait_for_everyone()
    try:
        yield folder
    except UserError as error:
        # The copy is ours; the user knows the checkpoint that it was made of.
        raise type(error)(str(error).replace(str(folder), str(start.checkpoint))) from None
    finally:
        trainer.accelerator.wait_for_everyone()
        if trainer.is_world_process_zero():
            shutil.rmtree(folder, ignore_errors=True)


def _stage(trainer, start: Start, folder: Path) -> None:
    """Makes a folder of links to the checkpoint's files except NOT_LINKED; its state follows this run's flags."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begins_anew = "step" in start.reset
    for path in start.checkpoint.iterdir():
        is_of_a_rank = path.match(RANK_FILE.format(rank="*"))
        if path.name not in NOT_LINKED and not (begins_anew and is_of_a_rank):
            os.symlink(path.resolve(), folder / path.name)
    parts = [*trainer.callback_handler.callbacks, trainer.control]
    exportable_parts = [part for part in parts if isinstance(part, ExportableState)]
    if begins_anew:
        state = TrainerState(stateful_callbacks=exportable_parts)
    else:
        state = _state_under_new_flags(start.checkpoint, exportable_parts)
        _stage_progress(start.checkpoint, folder)
    state.train_batch_size = trainer.args.train_batch_size
    state.compute_steps(trainer.args, _total_steps(trainer))
    state.save_to_json(str(folder / STATE_FILE))


def _state_under_new_flags(checkpoint: Path, exportable_parts: list[ExportableState]) -> TrainerState:
    """The checkpoint's state with its counters (of early stopping), but with this run's settings (patience)."""
    state = TrainerState.load_from_json(str(checkpoint / STATE_FILE))
    for part in exportable_parts:
        saved = state.stateful_callbacks.get(type(part).__name__)
        if isinstance(saved, dict):
            saved["args"] = part.state()["args"]
    return state


def _stage_progress(checkpoint: Path, folder: Path) -> None:
    """Keeps sums and counts; drops `stopped` and `pending`, which held only under the old flags."""
    if (checkpoint / PROGRESS_FILE).is_file():
        progress = read_json(checkpoint / PROGRESS_FILE)
        write_json(folder / PROGRESS_FILE, {**progress, "stopped": False, "pending": {}})


class RestartCallback(Callback):
    """Restores the kept state of optimizer and schedule once both exist; rates and other settings follow the flags.

    Args:
      loads: False if the trainer has loaded the state itself and only the rates must follow the flags.
    """

    def __init__(self, start: Start, loads: bool = True):
        self.start = start
        self.loads = loads

    def on_train_begin(self, args, state, control, optimizer=None, lr_scheduler=None, **kwargs):
        """Loads the state, and sets every group's rate for the current step."""
        if self.loads and "optimizer" not in self.start.reset:
            load_moments(optimizer, load_state(self.start.checkpoint, OPTIMIZER), self.start.checkpoint)
        if self.loads and "schedule" not in self.start.reset:
            load_schedule(lr_scheduler, optimizer, load_state(self.start.checkpoint, SCHEDULER))
        if isinstance(lr_scheduler, LambdaLR):
            set_rates(lr_scheduler)
        state.compute_steps(args, state.max_steps)


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
