"""Where a run begins: from which checkpoint, and what is reset.

    >>> start = choose_start("runs/new", resume="runs/old/checkpoint-400", reset="optimizer,schedule")
    >>> trainer.train(start=start)                                            # checkpoints.restoring

A run resumes from the newest checkpoint that verifies. Newer ones that fail are logged with the file and the reason,
and set aside. If none verifies, nothing is changed and the run stops (exit code 74): it never starts over by itself
if there was a checkpoint.

`--reset` takes any of these; everything else is kept:

* `optimizer`: drops the moments; they begin at zero.
* `schedule`: restarts it, warm-up included, over the remaining steps. If kept, it continues from where it was, with
  the shape and rate that the flags give.
* `step`: counts from 0 again, so that `--max_steps` more are trained. Needs a new `--output_dir`.
* `data`: starts over with the first example of the first epoch. If kept, the example after the last one seen is next.

A reset is done once: if the same command resumes from its own checkpoints (a requeued job), it resets nothing again.
In the same way a run begins once from an older checkpoint of its own, which `--resume` names.
`position.json` says how many examples were seen and when the schedule began, so a run in a new directory, with another
batch size or number of ranks, also continues with the next example; the begun epoch keeps its order. One process, DDP
and FSDP2 write the same files; DeepSpeed's are tied to the number of ranks (`check_kind`).
"""

import json
import logging
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.base.files import read_json
from t5suite.base.lookup import suggestion
from t5suite.training.checkpoints.folders import (
    DAMAGED,
    LEFT,
    NUMBERED,
    STATE_FILE,
    checkpoint_step,
    checkpoints,
    set_aside,
)
from t5suite.training.checkpoints.manifests import FORMAT, FORMATS, MANIFEST_FILE, Manifest, damage

logger = logging.getLogger(__name__)

RESETS = ("optimizer", "schedule", "step", "data")
# What a checkpoint of `--save_only_model` lacks.
NOT_SAVED = frozenset({"optimizer", "schedule"})
POSITION_FILE = "position.json"
ANOTHER = "use another checkpoint, or --resume auto, which finds the newest complete one"
# One of them holds the weights of a checkpoint that Hugging Face's trainer wrote.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")


@dataclass(frozen=True)
class Position:
    """A checkpoint's position in data and schedule, besides its step.

    Attributes:
      examples: training examples seen, in the run-long order.
      schedule_start: the step at which the schedule began; negative: that many steps before step 0.
      reset: the parts that were reset when the run, or this part of it, began.
      update_size: examples of an update, by which the order of the begun epoch is grouped; None: not known.
    """

    examples: int
    schedule_start: int = 0
    reset: str = ""
    update_size: int | None = None


@dataclass(frozen=True)
class Start:
    """Where training begins.

    Attributes:
      checkpoint: None for a fresh run.
      of_this_run: whether the checkpoint is one of this run's own.
      selected_by: what the best score so far was chosen by; None of a checkpoint that does not say it.
      reset: what to reset now.
      resets_again: all that was asked for was reset before; `reset` names what the checkpoint lacks.
      restart: the flags may differ from the checkpoint's (another run's checkpoint, a reset, or changed settings).
      position: the checkpoint's, if it has one.
    """

    checkpoint: Path | None = None
    reset: frozenset[str] = frozenset()
    restart: bool = False
    position: Position | None = None
    resets_again: bool = False
    of_this_run: bool = field(default=False, compare=False)
    selected_by: dict | None = field(default=None, compare=False)

    @classmethod
    def of_this_checkpoint(cls, resume_from_checkpoint, output_dir) -> "Start":
        """Resumes the run that wrote the checkpoint, with the same settings; True: the newest one of the directory.

        Raises:
          CheckpointError: it does not verify; ConfigError: there is none.
        """
        if resume_from_checkpoint is True:
            checkpoint = newest_verified(output_dir)
            if checkpoint is None:
                raise ConfigError(f"resume_from_checkpoint=True: no checkpoint in {output_dir}")
        else:
            checkpoint = named_checkpoint(str(resume_from_checkpoint))
        selected_by = _details_of(checkpoint).get("selects_by")
        return cls(checkpoint, position=read_position(checkpoint), of_this_run=True, selected_by=selected_by)

    @property
    def keeps_steps(self) -> bool:
        """Whether steps count on from a checkpoint's."""
        return self.checkpoint is not None and "step" not in self.reset

    @property
    def step(self) -> int:
        """The step at which the run begins."""
        return checkpoint_step(self.checkpoint) if self.keeps_steps else 0

    @property
    def schedule_start(self) -> int:
        """The step at which the schedule began, as steps count now."""
        if self.checkpoint is None:
            return 0
        if "schedule" in self.reset:
            return self.step
        saved_start = self.position.schedule_start if self.position else 0
        return saved_start + self.step - checkpoint_step(self.checkpoint)

    @property
    def parts_reset(self) -> str:
        """What was reset when the run, or this part of it, began; a run that is resumed resets nothing again."""
        if self.reset and not self.resets_again:
            return ",".join(sorted(self.reset))
        return self.position.reset if self.position and self.of_this_run else ""

    @property
    def schedule_steps(self) -> int:
        """How many steps of the schedule are over."""
        return self.step - self.schedule_start

    def examples_seen(self, epoch_length: int, update_size: int) -> int:
        """The number of training examples that the run has seen where it begins."""
        if self.checkpoint is None or "data" in self.reset:
            return 0
        if self.position is not None:
            return self.position.examples
        return examples_before(checkpoint_step(self.checkpoint), epoch_length, update_size)

    @property
    def update_size_of_order(self) -> int | None:
        """The update size of the order in the epoch that goes on; None: that of this run, or not known."""
        if self.position is None or "data" in self.reset:
            return None
        return self.position.update_size


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
    restarts: Iterable[dict] = (),
) -> Start:
    """Chooses the checkpoint that a run resumes from, and what is reset; one rank calls it.

    A run may begin from another run's checkpoint. Once it has checkpoints of its own, it resumes from those. It may go
    on from an older one of its own, too. Once it has, the same command resumes from the newest.

    Args:
      run_id: the run's own; another run's checkpoints in its directory count as damaged.
      fingerprint: of the run's settings. If the checkpoint's differs, the flags override what the checkpoint contains.
      trust: accept a DeepSpeed checkpoint of unknown origin (`--trust_checkpoint`).
      restarts: where the run has begun before, as its manifest says it.

    Raises:
      CheckpointError: see `find_checkpoint`.
      ConfigError: no such checkpoint, no optimizer state in it, or a reset that needs a new directory.
    """
    parts_to_reset = parse_reset(reset)
    checkpoint = None
    if _has_begun_from(resume, output_dir, parts_to_reset, restarts):
        checkpoint = _newest_with_settings(output_dir, resume, run_id, fingerprint)
    checkpoint = checkpoint or _checkpoint_to_begin_from(output_dir, resume, run_id, trust)
    if checkpoint is None:
        if parts_to_reset:
            logger.warning("--reset %s has no effect: there is no checkpoint to go on from (see --resume)", reset)
        return Start()
    of_this_run = _is_in(checkpoint, output_dir)
    position = read_position(checkpoint)
    details = _details_of(checkpoint)
    has_other_settings = fingerprint is not None and details.get("settings", fingerprint) != fingerprint
    # A reset of another run's checkpoint was over when this run began; one of its own is asked for with these settings.
    is_same_command = not has_other_settings or not _names_own(resume, output_dir)
    was_reset = of_this_run and is_same_command and _was_done(parts_to_reset, position)
    if was_reset:
        logger.info("%s was made after --reset %s, which is not done again", checkpoint, reset)
        parts_to_reset = _not_in_checkpoint(checkpoint, parts_to_reset)
    resets_again = was_reset and bool(parts_to_reset)
    if "step" in parts_to_reset and of_this_run:
        raise ConfigError(
            f"--reset {reset}: {output_dir} has checkpoints already, and steps that count from 0 again would mix with "
            f"them; give a new --output_dir and --resume {checkpoint}"
        )
    if "optimizer" not in parts_to_reset:
        _check_has_optimizer(checkpoint)
    restart = not of_this_run or bool(parts_to_reset) or has_other_settings
    return Start(checkpoint, parts_to_reset, restart, position, resets_again, of_this_run, details.get("selects_by"))


def _has_begun_from(resume: str, output_dir, parts_to_reset: frozenset[str], restarts: Iterable[dict]) -> bool:
    """Whether the run has begun before from the checkpoint of its own that `--resume` names, with the same reset."""
    if resume in ("auto", "none") or not _is_in(Path(resume), output_dir):
        return False
    for restart in restarts:
        is_of_this_name = restart.get("named") and Path(restart["from"]).name == Path(resume).name
        if is_of_this_name and parts_to_reset == frozenset(restart["reset"]):
            return True
    return False


def _newest_with_settings(output_dir, resume: str, run_id: str | None, fingerprint: str | None) -> Path | None:
    """The run's newest checkpoint if it has these settings: a command with others begins anew."""
    newest = newest_verified(output_dir, run_id)
    if newest is None or _details_of(newest).get("settings") != fingerprint:
        return None
    if newest.name != Path(resume).name:
        logger.warning(
            "--resume %s: the run has gone on from there, and resumes from its newest checkpoint, %s; to begin there "
            "again, move later checkpoints away",
            resume,
            newest.name,
        )
    return newest


def _checkpoint_to_begin_from(output_dir, resume: str, run_id: str | None, trust: bool) -> Path | None:
    """The run's own newest checkpoint, or else what `--resume` names."""
    if _names_own(resume, output_dir):
        return find_checkpoint(output_dir, resume, run_id=run_id, trust=trust)
    return newest_verified(output_dir, run_id) or find_checkpoint(output_dir, resume, trust=trust)


def _names_own(resume: str, output_dir) -> bool:
    """Whether `--resume` names no other run's checkpoint."""
    return resume in ("auto", "none") or _is_in(Path(resume), output_dir)


def _was_done(parts_to_reset: frozenset[str], position: Position | None) -> bool:
    """Whether a checkpoint was made after this very reset."""
    return bool(parts_to_reset) and position is not None and parse_reset(position.reset) == parts_to_reset


def _not_in_checkpoint(checkpoint: Path, parts: frozenset[str]) -> frozenset[str]:
    """The parts that a checkpoint does not hold, so that they begin anew at every start."""
    if _has_optimizer(checkpoint):
        return frozenset()
    logger.warning("%s contains no optimizer state: optimizer and schedule begin anew once more", checkpoint)
    return parts & NOT_SAVED


def find_checkpoint(output_dir, resume: str, run_id: str | None = None, trust: bool = False) -> Path | None:
    """`--resume`: 'auto', 'none' or a checkpoint's path -> the checkpoint to resume from, or None for a fresh start.

    Args:
      run_id: with 'auto', checkpoints of other runs count as damaged.
      trust: accept a DeepSpeed checkpoint of unknown origin, whose files can run code when they are read.

    Raises:
      CheckpointError: there are checkpoints, but none verifies; the named one does not; or it is not trusted.
      ConfigError: no such folder, a name without a step, or another version's format.
    """
    if resume == "none":
        return None
    return newest_verified(output_dir, run_id) if resume == "auto" else named_checkpoint(resume, trust)


def newest_verified(output_dir, run_id: str | None = None) -> Path | None:
    """The newest checkpoint that verifies, None if there never was one; newer ones that fail are set aside.

    Raises:
      CheckpointError: there are checkpoints, but none verifies; the message lists each.
    """
    damaged: dict[Path, str] = {}
    for path in reversed(checkpoints(output_dir)):
        reason = damage(path)
        if reason is None and run_id is not None and Manifest.read(path).run_id != run_id:
            reason = f"of run {Manifest.read(path).run_id}, not of {run_id}"
        if reason is None:
            _check_format(path)
            for damaged_path, damage_reason in damaged.items():
                set_aside(damaged_path, damage_reason)
            if damaged:
                logger.warning("resuming from %s, the newest checkpoint that verifies", path)
            return path
        damaged[path] = reason
    reasons = [f"{path.name} ({damage_reason})" for path, damage_reason in damaged.items()]
    for prefix in (DAMAGED, LEFT):
        paths = sorted(Path(output_dir).glob(f"{prefix}checkpoint-*"))
        reasons += [f"{path.name} (set aside before)" for path in paths]
    if reasons:
        raise CheckpointError(
            f"{output_dir}: no checkpoint verifies: {'; '.join(reasons)}. Nothing was changed. Bring back a good copy, "
            "name a checkpoint with --resume, or start anew with another --output_dir"
        )
    return None


def _check_format(path: Path) -> None:
    number = Manifest.read(path).format
    if number != FORMAT:
        raise ConfigError(
            f"{path} was written by t5suite {FORMATS[number]}, which can resume from it; this version cannot. "
            f"Finish the run with that version, or start a new one with its weights: --model_name_or_path {path}"
        )


def named_checkpoint(resume: str, trust: bool = False) -> Path:
    """The checkpoint that `--resume PATH` names; one without a manifest (Hugging Face's own) is used with a warning.

    Raises:
      CheckpointError: it does not verify, is incomplete, or is an untrusted DeepSpeed checkpoint without a manifest.
      ConfigError: no such folder, a name without a step, or another version's format.
    """
    path = Path(resume)
    if not path.is_dir():
        raise ConfigError(f"--resume {resume!r}: choose auto, none or the path; there is no such folder")
    if (path / MANIFEST_FILE).exists():
        reason = damage(path)
        if reason:
            raise CheckpointError(f"--resume {resume}: {reason}; {ANOTHER}")
        _check_format(path)
    else:
        _check_without_manifest(path, resume, trust)
        logger.warning("%s has no %s: its files are taken as they are, unverified", path, MANIFEST_FILE)
    for candidate in (path, path.resolve()):
        if NUMBERED.fullmatch(candidate.name):
            return candidate
    raise ConfigError(
        f'--resume {path}: a checkpoint\'s folder is called checkpoint-N after its step ("global_step" in its '
        f"{STATE_FILE}); give it that name again"
    )


def _check_without_manifest(path: Path, resume: str, trust: bool) -> None:
    """Refuses a checkpoint that lacks files by which training resumes, or of DeepSpeed's that is not trusted."""
    of_deepspeed = is_deepspeeds(path)
    required = [] if of_deepspeed else ["optimizer.pt", "scheduler.pt"]
    if not of_deepspeed and not any((path / name).is_file() for name in WEIGHTS):
        required.insert(0, WEIGHTS[0])
    missing = [name for name in required if not (path / name).is_file()]
    try:  # the trainer's state is written last: it is missing if the save was interrupted
        json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        missing.append(STATE_FILE)
    if missing:
        raise CheckpointError(f"--resume {resume}: not complete: {', '.join(missing)} is missing or broken; {ANOTHER}")
    if of_deepspeed and not trust:
        raise CheckpointError(
            f"--resume {resume}: a DeepSpeed checkpoint without {MANIFEST_FILE}: loading it can run code "
            "in its files. If you know where it comes from, add --trust_checkpoint"
        )


def resume_choice(resume: str, resume_from_checkpoint: str | None) -> str:
    """`--resume`, or Hugging Face's `--resume_from_checkpoint` if that was given.

    >>> resume_choice("auto", "True"), resume_choice("auto", "False"), resume_choice("auto", "runs/x/checkpoint-4")
    ('auto', 'none', 'runs/x/checkpoint-4')
    """
    if resume_from_checkpoint is None:
        return resume
    return {"true": "auto", "false": "none"}.get(str(resume_from_checkpoint).lower(), str(resume_from_checkpoint))


def _is_in(checkpoint: Path, output_dir) -> bool:
    return checkpoint.resolve().parent == Path(output_dir).resolve()


def read_position(checkpoint: Path) -> Position | None:
    """A checkpoint's position; Hugging Face's own have none."""
    file = checkpoint / POSITION_FILE
    return Position(**read_json(file)) if file.is_file() else None


def _has_optimizer(checkpoint: Path) -> bool:
    return any(checkpoint.glob("optimizer*")) or is_deepspeeds(checkpoint)


def _check_has_optimizer(checkpoint: Path) -> None:
    if not _has_optimizer(checkpoint):
        raise ConfigError(
            f"{checkpoint} contains no optimizer state (--save_only_model), so a run cannot resume from it; start with "
            "a new optimizer: --reset optimizer,schedule, or start a new run with its weights: --model_name_or_path"
        )


def _details_of(checkpoint: Path) -> dict:
    """What a checkpoint's manifest says of its run; nothing of one that Hugging Face's trainer wrote."""
    return Manifest.read(checkpoint).details if (checkpoint / MANIFEST_FILE).is_file() else {}


def examples_before(step: int, epoch_length: int, update_size: int) -> int:
    """The number of examples in the first `step` updates; an epoch's last update may be smaller.

    >>> [examples_before(step, epoch_length=21, update_size=8) for step in (0, 2, 3, 4)]
    [0, 16, 21, 29]
    """
    epochs, steps = divmod(step, math.ceil(epoch_length / update_size))
    return epochs * epoch_length + min(steps * update_size, epoch_length)


def is_deepspeeds(folder) -> bool:
    """Whether DeepSpeed wrote a checkpoint's optimizer state."""
    return any(Path(folder).glob("global_step*"))


def check_kind(folder, deepspeed: bool, world_size: int) -> None:
    """Refuses a checkpoint if this run could load only its weights.

    Raises:
      ConfigError: the checkpoint does not fit; the message says what to do.
    """
    with_new_run = f"or start a new run with its weights: --model_name_or_path {folder}"
    if is_deepspeeds(folder) and not deepspeed:
        raise ConfigError(
            f"{folder} was written under DeepSpeed, and this run is without it; run as before, {with_new_run}"
        )
    if deepspeed and not is_deepspeeds(folder):
        raise ConfigError(
            f"{folder} was written without DeepSpeed, and this run is under it; run as before, {with_new_run}"
        )
    if deepspeed and (Path(folder) / MANIFEST_FILE).exists():
        ranks_before = Manifest.read(folder).world_size
        if ranks_before != world_size:
            raise ConfigError(
                f"{folder}: DeepSpeed wrote it on {ranks_before} ranks, and only as many can resume from it, not "
                f"{world_size}; start {ranks_before} processes, {with_new_run}"
            )
