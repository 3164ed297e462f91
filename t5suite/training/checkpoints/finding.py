"""Which checkpoint a run goes on from: the newest that verifies.

    >>> find_checkpoint("runs/glue-rte-t5-small", resume="auto", ranks=ranks)
    PosixPath('runs/glue-rte-t5-small/checkpoint-400')

Newer ones that do not verify are named, with the file and the reason, and set aside (`damaged-checkpoint-N`). If none
verifies, nothing is touched and the run stops (exit 74): it never starts anew by itself where there was a checkpoint.
"""

import json
import logging
from pathlib import Path

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.training.checkpoints.manifests import MANIFEST_FILE, damage, read_manifest
from t5suite.training.checkpoints.naming import STATE_FILE, checkpoints, damaged_checkpoints, is_numbered
from t5suite.training.checkpoints.quarantine import set_aside
from t5suite.training.processes.ranks import Ranks

logger = logging.getLogger(__name__)
# The way out where the checkpoint that was named is not whole.
ANOTHER = "take another checkpoint, or --resume auto, which finds the newest whole one"


def find_checkpoint(
    output_dir, resume: str, ranks: Ranks | None = None, run_id: str | None = None, trust: bool = False
) -> Path | None:
    """`--resume`: 'auto', 'none' or a checkpoint's path -> a checkpoint to go on from, or None for a fresh start.

    Rank 0 looks; every rank calls it and gets the same.

    Args:
      run_id: with 'auto', checkpoints of other runs do not count.
      trust: take a DeepSpeed checkpoint of unknown origin, whose files can run code when they are read.

    Raises:
      CheckpointError: there are checkpoints, but none verifies; the named one does not; or it is not trusted.
      ConfigError: no such folder.
    """
    return (ranks or Ranks()).together(_find, output_dir, resume, run_id, trust)


def _find(output_dir, resume: str, run_id, trust: bool) -> Path | None:
    if resume == "none":
        return None
    return newest_verified(output_dir, run_id) if resume == "auto" else named_checkpoint(resume, trust)


def newest_verified(output_dir, run_id: str | None = None) -> Path | None:
    """The newest checkpoint that verifies, None if there never was one; damaged newer ones are set aside.

    Raises:
      CheckpointError: there are checkpoints and none verifies; each is listed.
    """
    damaged: dict[Path, str] = {}
    for path in reversed(checkpoints(output_dir)):
        reason = damage(path) or _foreign(path, run_id)
        if reason is None:
            for other, why in damaged.items():
                set_aside(other, why)
            if damaged:
                logger.warning("going on from %s, the newest checkpoint that verifies", path)
            return path
        damaged[path] = reason
    aside = damaged_checkpoints(output_dir)
    if damaged or aside:
        reasons = [f"{path.name} ({why})" for path, why in damaged.items()]
        reasons += [f"{path.name} (set aside before)" for path in aside]
        raise CheckpointError(
            f"{output_dir}: no checkpoint verifies: {'; '.join(reasons)}. Nothing was changed. Bring back a good copy, "
            "name a checkpoint with --resume, or start anew with another --output_dir"
        )
    return None


def _foreign(path: Path, run_id: str | None) -> str | None:
    found = read_manifest(path).run_id
    return f"of run {found}, not of {run_id}" if run_id is not None and found != run_id else None


def named_checkpoint(resume: str, trust: bool = False) -> Path:
    """The checkpoint that `--resume PATH` names; one without a manifest (Hugging Face's own) is taken with a warning.

    Raises:
      CheckpointError: it does not verify, is not complete, or is DeepSpeed's, without a manifest and not trusted.
      ConfigError: no such folder.
    """
    path = Path(resume)
    if not path.is_dir():
        raise ConfigError(
            f"--resume {resume!r}: choose auto, none or the path of a checkpoint; there is no such folder"
        )
    if (path / MANIFEST_FILE).exists():
        reason = damage(path)
        if reason:
            raise CheckpointError(f"--resume {resume}: {reason}; {ANOTHER}")
        return numbered(path)
    missing = missing_part(path)
    if missing:
        raise CheckpointError(
            f"--resume {resume}: not a complete checkpoint ({missing} is missing or broken); {ANOTHER}"
        )
    if any(path.glob("global_step*")) and not trust:
        raise CheckpointError(
            f"--resume {resume}: a DeepSpeed checkpoint without {MANIFEST_FILE}: to read one is to run code that may "
            "be in it. If you know where it comes from, add --trust_checkpoint"
        )
    logger.warning("%s has no %s: its files are taken as they are, unverified", path, MANIFEST_FILE)
    return numbered(path)


def numbered(path: Path) -> Path:
    """A checkpoint's folder by the name that tells its step; a link of another name is followed.

    >>> numbered(Path("runs/x/checkpoint-400"))
    PosixPath('runs/x/checkpoint-400')

    Raises:
      ConfigError: it has another name.
    """
    for found in (path, path.resolve()):
        if is_numbered(found):
            return found
    raise ConfigError(
        f'--resume {path}: a checkpoint\'s folder is called checkpoint-N after its step ("global_step" in its '
        f"{STATE_FILE}); give it that name again"
    )


def missing_part(path: Path) -> str | None:
    """What a checkpoint of Hugging Face's trainer lacks to be resumed from; None if it is complete.

    The trainer's state is written last, so a save that was cut short lacks it.
    """
    try:
        json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return STATE_FILE
    sharded_by_deepspeed = any(path.glob("global_step*"))
    if sharded_by_deepspeed:
        return None
    weights = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
    if not any((path / name).is_file() for name in weights):
        return "model.safetensors"
    return next((name for name in ("optimizer.pt", "scheduler.pt") if not (path / name).is_file()), None)


def resume_choice(resume: str, resume_from_checkpoint: str | None) -> str:
    """`--resume`, or Hugging Face's `--resume_from_checkpoint` where that was given instead.

    >>> resume_choice("auto", "True"), resume_choice("auto", "False"), resume_choice("auto", "runs/x/checkpoint-4")
    ('auto', 'none', 'runs/x/checkpoint-4')
    """
    if resume_from_checkpoint is None:
        return resume
    return {"true": "auto", "false": "none"}.get(str(resume_from_checkpoint).lower(), str(resume_from_checkpoint))
