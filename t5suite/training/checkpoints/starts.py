"""Where a run begins: from which checkpoint, what is reset, and what a new or extended run keeps.

    >>> start = choose_start("runs/new", resume="runs/old/checkpoint-400", reset="optimizer,schedule")
    >>> with going_on(trainer, start) as folder:
    ...     trainer.train(resume_from_checkpoint=folder)

`--reset` takes any of these; everything else is kept:

* `optimizer`: drops the moments; they begin at zero.
* `schedule`: restarts it, warm-up included, over the remaining steps. If kept, it continues from where it was, with
  the shape and rate that the flags give.
* `step`: counts from 0 again, so that `--max_steps` more are trained. Needs a new `--output_dir`.
* `data`: starts over with the first example of the first epoch. If kept, the example after the last one seen is next.

A reset is done once: if the same command resumes from its own checkpoints (a requeued job), it resets nothing again.
`position.json` says how many examples were seen and when the schedule began, so a run in a new directory, with another
batch size or number of ranks, also continues with the next example. One process, DDP and FSDP2 write the same files;
DeepSpeed's are tied to the number of ranks (`check_kind`).
"""

import contextlib
import logging
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerState
from transformers.trainer_callback import ExportableState

from t5suite.base.errors import ConfigError, UserError
from t5suite.base.lookup import suggestion
from t5suite.optim.optimizers import set_rates
from t5suite.runs.directory import read_json, write_json
from t5suite.training.callback import Callback
from t5suite.training.checkpoints.folders import STATE_FILE, checkpoint_step, find_checkpoint, newest_verified
from t5suite.training.checkpoints.manifests import MANIFEST_FILE, Manifest
from t5suite.training.checkpoints.resuming import PROGRESS_FILE, RANK_FILE
from t5suite.training.checkpoints.states import load_state, restore_optimizer

logger = logging.getLogger(__name__)

RESETS = ("optimizer", "schedule", "step", "data")
POSITION_FILE = "position.json"
STAGING = ".going-on"
OPTIMIZER, SCHEDULER = "optimizer", "scheduler"
# The scheduler state that is restored; its rates and shape follow the flags instead.
SCHEDULE_MEMORY = ("last_epoch", "_step_count", "reduction", "best", "num_bad")


@dataclass(frozen=True)
class Position:
    """A checkpoint's position in data and schedule, besides its step.

    Attributes:
      examples: training examples seen, in the run-long order.
      schedule_start: the step at which the schedule began; negative: that many steps before step 0.
      reset: the parts that were reset when the run, or this part of it, began.
    """

    examples: int
    schedule_start: int = 0
    reset: str = ""


@dataclass(frozen=True)
class Start:
    """Where training begins.

    Attributes:
      checkpoint: None for a fresh run.
      of_this_run: whether the checkpoint is one of this run's own.
      reset: what to reset now.
      restart: the flags may differ from the checkpoint's (another run's checkpoint, a reset, or changed settings).
      position: the checkpoint's, if it has one.
    """

    checkpoint: Path | None = None
    reset: frozenset[str] = frozenset()
    restart: bool = False
    position: Position | None = None
    of_this_run: bool = field(default=False, compare=False)


def parse_reset(reset: str | None) -> frozenset[str]:
    """`--reset` as a set.

    >>> sorted(parse_reset("schedule, optimizer"))
    ['optimizer', 'schedule']

    Raises:
      ConfigError: a part that cannot be reset.
    """
    parts = frozenset(part.strip() for part in (reset or "").split(",") if part.strip())
    for part in parts.difference(RESETS):
        raise ConfigError(f"--reset {reset}: unknown part {part!r}; {suggestion(part, RESETS)}")
    return parts


def choose_start(
    output_dir,
    resume: str,
    reset: str | None = None,
    *,
    run_id: str | None = None,
    fingerprint: str | None = None,
    trust: bool = False,
) -> Start:
    """Chooses the checkpoint that a run resumes from, and what is reset; one rank calls it.

    A run may begin from another run's checkpoint. Once it has checkpoints of its own, it resumes from those.

    Args:
      run_id: the run's own; another run's checkpoints in its directory count as damaged.
      fingerprint: of the run's settings. If the checkpoint's differs, the flags override what the checkpoint contains.
      trust: accept a DeepSpeed checkpoint of unknown origin (`--trust_checkpoint`).

    Raises:
      CheckpointError: see `find_checkpoint`.
      ConfigError: no such checkpoint, no optimizer state in it, or a reset that needs a new directory.
    """
    wanted = parse_reset(reset)
    if resume not in ("auto", "none") and not _is_in(Path(resume), output_dir):
        checkpoint = newest_verified(output_dir, run_id) or find_checkpoint(output_dir, resume, trust=trust)
    else:
        checkpoint = find_checkpoint(output_dir, resume, run_id=run_id, trust=trust)
    if checkpoint is None:
        if wanted:
            logger.warning("--reset %s has no effect: there is no checkpoint to go on from (see --resume)", reset)
        return Start()
    file, foreign = checkpoint / POSITION_FILE, not _is_in(checkpoint, output_dir)
    position = Position(**read_json(file)) if file.is_file() else None  # Hugging Face's own have none
    if wanted and not foreign and position and parse_reset(position.reset) == wanted:
        logger.info("%s was made after --reset %s; nothing is reset again", checkpoint, reset)
        wanted = frozenset()
    if "step" in wanted and not foreign:
        raise ConfigError(
            f"--reset {reset}: {output_dir} has checkpoints already, and steps that count from 0 again would mix with "
            f"them; give a new --output_dir and --resume {checkpoint}"
        )
    if "optimizer" not in wanted and not any(checkpoint.glob("optimizer*")) and not is_deepspeeds(checkpoint):
        raise ConfigError(
            f"{checkpoint} contains no optimizer state (--save_only_model), so a run cannot resume from it; start with "
            "a new optimizer: --reset optimizer,schedule, or start a new run with its weights: --model_name_or_path"
        )
    changed = False  # True if the run was extended or a change allowed
    if fingerprint is not None and (checkpoint / MANIFEST_FILE).is_file():
        changed = Manifest.read(checkpoint).details.get("settings", fingerprint) != fingerprint
    return Start(checkpoint, wanted, foreign or bool(wanted) or changed, position, not foreign)


def examples_before(step: int, epoch_length: int, update_size: int) -> int:
    """The number of examples in the first `step` updates; an epoch's last update may be smaller.

    >>> [examples_before(step, epoch_length=21, update_size=8) for step in (0, 2, 3, 4)]
    [0, 16, 21, 29]
    """
    epochs, steps = divmod(step, math.ceil(epoch_length / update_size))
    return epochs * epoch_length + min(steps * update_size, epoch_length)


@contextlib.contextmanager
def going_on(trainer, start: Start, run=None) -> Iterator[str | None]:
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
    _place(trainer, start, old_step, step)
    if not start.restart:
        yield str(start.checkpoint)
        return
    if run is not None:
        note = {"from": str(start.checkpoint), "reset": sorted(start.reset), "step": old_step}
        run.update(restarts=[*run.manifest.get("restarts", []), note])
    total = _total_steps(trainer)
    only_ends = total == step and start.of_this_run and not start.reset
    if 0 < total <= step and not only_ends:
        raise ConfigError(
            f"nothing is left to train: {step} steps are done, and --max_steps or --num_train_epochs makes {total}; "
            "raise it, or add step to --reset"
        )
    sharded = kind in ("DEEPSPEED", "FSDP")
    if sharded and start.reset:
        raise ConfigError(
            f"--reset {','.join(sorted(start.reset))} does not work with a sharded checkpoint; start from its weights "
            "alone with --model_name_or_path"
        )
    trainer.add_callback(RestartCallback(start, loads=not sharded))
    if sharded:
        yield str(start.checkpoint)
        return
    folder = Path(trainer.args.output_dir) / STAGING
    if trainer.is_world_process_zero():
        _stage(trainer, start, folder)
    trainer.accelerator.wait_for_everyone()
    try:
        yield str(folder)
    except UserError as error:
        # The copy is ours; the user knows the checkpoint that it was made of.
        raise type(error)(str(error).replace(str(folder), str(start.checkpoint))) from None
    finally:
        trainer.accelerator.wait_for_everyone()
        if trainer.is_world_process_zero():
            shutil.rmtree(folder, ignore_errors=True)


class RestartCallback(Callback):
    """Restores the kept state of optimizer and schedule once both exist; rates and other settings follow the flags.

    Args:
      loads: False if the trainer has loaded the state itself and only the rates must follow the flags.
    """

    def __init__(self, start: Start, loads: bool = True):
        self.start, self.loads = start, loads

    def on_train_begin(self, args, state, control, optimizer=None, lr_scheduler=None, **kwargs):
        """Loads the state, and sets every group's rate for the current step."""
        if self.loads and "optimizer" not in self.start.reset:
            load_moments(optimizer, load_state(self.start.checkpoint, OPTIMIZER), self.start.checkpoint)
        if self.loads and "schedule" not in self.start.reset:
            saved = load_state(self.start.checkpoint, SCHEDULER)
            if isinstance(lr_scheduler, LambdaLR):  # its rates and shape follow the flags
                for key in [key for key in SCHEDULE_MEMORY if key in saved and hasattr(lr_scheduler, key)]:
                    setattr(lr_scheduler, key, saved[key])
            else:
                lr_scheduler.load_state_dict(saved)
                for group, rate in zip(optimizer.param_groups, saved.get("_last_lr", [])):
                    group["lr"] = rate
        if isinstance(lr_scheduler, LambdaLR):
            set_rates(lr_scheduler)
        state.compute_steps(args, state.max_steps)


def load_moments(optimizer, saved: dict, checkpoint) -> None:
    """Loads the saved state into the optimizer; its groups keep their own rates, betas and weight decay.

    Raises:
      ConfigError: the saved state belongs to a different optimizer.
    """
    own = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    try:
        kinds = {frozenset(state) for state in saved["state"].values()}
        restore_optimizer(optimizer, saved)
        if [set(group) for group in optimizer.param_groups] != [{*group, "params"} for group in own]:
            raise ValueError(f"its groups have other settings, its state holds {sorted(map(sorted, kinds))}")
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"{checkpoint}: its optimizer differs from this run's ({error}); add optimizer to --reset"
        ) from None
    for group, settings in zip(optimizer.param_groups, own, strict=True):
        group.update(settings)


def _place(trainer, start: Start, old_step: int, step: int) -> None:
    """Sets the trainer's offsets: how far its examples and its schedule are from what its step implies."""
    length, size = trainer.data.length, trainer.update_size()
    position = start.position or Position(examples_before(old_step, length, size) if length else 0)
    if length:
        seen = 0 if "data" in start.reset else position.examples
        trainer.data.offset = seen - examples_before(step, length, size)
        if hasattr(trainer.train_dataset, "num_examples"):
            # This data set is as long as the run: extend it by the examples that another run saw.
            trainer.train_dataset.num_examples += max(0, trainer.data.offset)
    trainer.data_reset = "data" in start.reset
    trainer.schedule_start = step if "schedule" in start.reset else position.schedule_start + step - old_step
    trainer.reset_done = ",".join(sorted(start.reset)) or position.reset


def _total_steps(trainer) -> int:
    """The run's total number of steps according to the flags; 0 if unknown."""
    args, length = trainer.args, trainer.data.length
    if args.max_steps > 0 or not length:
        return max(0, args.max_steps)
    return math.ceil(args.num_train_epochs * math.ceil(length / trainer.update_size()))


# Files that a staged checkpoint does not link: the callback restores them, or they follow this run's flags.
NOT_LINKED = (f"{OPTIMIZER}.pt", f"{SCHEDULER}.pt", POSITION_FILE, STATE_FILE, PROGRESS_FILE)


def _stage(trainer, start: Start, folder: Path) -> None:
    """Makes a folder of links to the checkpoint's files except NOT_LINKED; its state follows this run's flags."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begins_anew = "step" in start.reset
    for path in start.checkpoint.iterdir():
        of_a_rank = path.match(RANK_FILE.format(rank="*"))
        if path.name not in NOT_LINKED and not (begins_anew and of_a_rank):
            os.symlink(path.resolve(), folder / path.name)
    parts = [*trainer.callback_handler.callbacks, trainer.control]
    parts = [part for part in parts if isinstance(part, ExportableState)]
    if begins_anew:
        state = TrainerState(stateful_callbacks=parts)
    else:
        state = TrainerState.load_from_json(str(start.checkpoint / STATE_FILE))
        for part in parts:  # keep saved counters (of early stopping), but this run's settings (patience)
            saved = state.stateful_callbacks.get(type(part).__name__)
            if isinstance(saved, dict):
                saved["args"] = part.state()["args"]
        if (start.checkpoint / PROGRESS_FILE).is_file():
            # Keep sums and counts; drop `stopped` and `pending`, which held only under the old flags.
            progress = read_json(start.checkpoint / PROGRESS_FILE)
            write_json(folder / PROGRESS_FILE, {**progress, "stopped": False, "pending": {}})
    state.train_batch_size = trainer.args.train_batch_size
    state.compute_steps(trainer.args, _total_steps(trainer))
    state.save_to_json(str(folder / STATE_FILE))


def _is_in(checkpoint: Path, output_dir) -> bool:
    return checkpoint.resolve().parent == Path(output_dir).resolve()


def is_deepspeeds(folder) -> bool:
    """Whether DeepSpeed wrote a checkpoint's optimizer state."""
    return any(Path(folder).glob("global_step*"))


def check_kind(folder, deepspeed: bool, world_size: int) -> None:
    """Refuses a checkpoint if this run could load only its weights.

    Raises:
      ConfigError: the checkpoint does not fit; the message says what to do.
    """
    fresh = f"or start a new run with its weights: --model_name_or_path {folder}"
    if is_deepspeeds(folder) != deepspeed:
        was, now = ("under", "without") if is_deepspeeds(folder) else ("without", "under")
        raise ConfigError(f"{folder} was written {was} DeepSpeed, and this run is {now} it; run as before, {fresh}")
    if deepspeed and (Path(folder) / MANIFEST_FILE).exists():
        written_by = Manifest.read(folder).world_size
        if written_by != world_size:
            raise ConfigError(
                f"{folder}: DeepSpeed wrote it on {written_by} ranks, and only as many can resume from it, not "
                f"{world_size}; start {written_by} processes, {fresh}"
            )
