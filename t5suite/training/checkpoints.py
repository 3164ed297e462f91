"""Which checkpoint a run goes on from.

>>> newest_checkpoint("runs/glue-rte-t5-small")
PosixPath('runs/glue-rte-t5-small/checkpoint-400')
"""

import json
import logging
import re
import shutil
from pathlib import Path

from transformers import TrainerCallback

from t5suite.errors import ConfigError

logger = logging.getLogger(__name__)

STATE_FILE = "trainer_state.json"


def checkpoints(output_dir) -> list[Path]:
    """The directory's checkpoints, ascending by step, complete or not."""
    found = [path for path in Path(output_dir).glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=checkpoint_step)


def checkpoint_step(path) -> int:
    """The step in a checkpoint's name.

    >>> checkpoint_step("runs/x/checkpoint-400")
    400
    """
    return int(Path(path).name.removeprefix("checkpoint-"))


def missing_part(path: Path) -> str | None:
    """What a checkpoint lacks to be resumed from; None if it is complete.

    The trainer's state is written last, so a save that was cut short lacks it.
    """
    try:
        json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return STATE_FILE
    sharded_by_deepspeed = any(path.glob("global_step*"))
    if sharded_by_deepspeed:
        return None
    if not any((path / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json")):
        return "model.safetensors"
    return next((name for name in ("optimizer.pt", "scheduler.pt") if not (path / name).is_file()), None)


def newest_checkpoint(output_dir) -> Path | None:
    """The newest complete checkpoint; incomplete ones that are passed over are named in a warning."""
    for path in reversed(checkpoints(output_dir)):
        missing = missing_part(path)
        if missing is None:
            return path
        logger.warning("%s is not complete (%s is missing or broken); an earlier one is used", path, missing)
    return None


def resume_choice(resume: str, resume_from_checkpoint: str | None) -> str:
    """`--resume`, or Hugging Face's `--resume_from_checkpoint` where that was given instead.

    >>> resume_choice("auto", "True"), resume_choice("auto", "False"), resume_choice("auto", "runs/x/checkpoint-4")
    ('auto', 'none', 'runs/x/checkpoint-4')
    """
    if resume_from_checkpoint is None:
        return resume
    return {"true": "auto", "false": "none"}.get(str(resume_from_checkpoint).lower(), str(resume_from_checkpoint))


def checkpoint_to_resume(output_dir, resume: str) -> Path | None:
    """`--resume`: 'auto', 'none' or a checkpoint's path -> the checkpoint, or None for a fresh start.

    Raises:
      ConfigError: the path is no complete checkpoint.
    """
    if resume == "none":
        return None
    if resume == "auto":
        return newest_checkpoint(output_dir)
    path = Path(resume)
    if not path.is_dir():
        raise ConfigError(
            f"--resume {resume!r}: choose auto, none or the path of a checkpoint; there is no such folder"
        )
    missing = missing_part(path)
    if missing:
        raise ConfigError(f"--resume {resume}: not a complete checkpoint ({missing} is missing or broken)")
    return path


def checkpoints_to_delete(output_dir, limit: int | None, keep_every: int | None = None, best=None) -> list[Path]:
    """The oldest checkpoints beyond `limit`; never the newest, the best, or those at multiples of `keep_every` steps.

    >>> checkpoints_to_delete("runs/x", limit=1, keep_every=100)      # of 100, 150, 200, 250 and 300
    [PosixPath('runs/x/checkpoint-150'), PosixPath('runs/x/checkpoint-250')]

    Args:
      limit: how many stay beside those of `keep_every`; None for all.
      best: the best checkpoint's folder.
    """
    if limit is None or limit < 1:
        return []
    found = checkpoints(output_dir)
    rotated = [path for path in found if keep_every is None or checkpoint_step(path) % keep_every]
    deletable = [path for path in rotated if path != found[-1] and (best is None or path.name != Path(best).name)]
    return deletable[: max(0, len(rotated) - limit)]


class KeepEveryCallback(TrainerCallback):
    """Rotates checkpoints in place of the trainer, which would delete those at multiples of `keep_every`, too."""

    def __init__(self, limit: int | None, keep_every: int):
        self.limit = limit
        self.keep_every = keep_every

    def on_save(self, args, state, control, **kwargs):
        """Deletes what is too old, once the new checkpoint is there."""
        if not state.is_world_process_zero:
            return
        best = state.best_model_checkpoint
        for path in checkpoints_to_delete(args.output_dir, self.limit, self.keep_every, best):
            shutil.rmtree(path, ignore_errors=True)
