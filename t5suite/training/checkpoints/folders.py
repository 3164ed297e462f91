"""The checkpoints in a run directory: their names, which one a run goes on from, which ones go.

    >>> checkpoints("runs/x")                                  # ascending by step
    [PosixPath('runs/x/checkpoint-200'), PosixPath('runs/x/checkpoint-400')]
    >>> find_checkpoint("runs/x", resume="auto")
    PosixPath('runs/x/checkpoint-400')
    >>> rotate("runs/x", limit=1)
    [PosixPath('runs/x/checkpoint-200')]

| name                          | holds                                                                              |
|-------------------------------|------------------------------------------------------------------------------------|
| `checkpoint-400`              | a whole checkpoint: only a rename makes this name                                  |
| `.saving-checkpoint-400`      | one that is being written; left over: the save was cut short                       |
| `.replaced-checkpoint-400`    | the former one of the same step, until the new one has its name                    |
| `.deleting-checkpoint-400`    | one that rotation has given up: what is half deleted is never taken for one        |
| `damaged-checkpoint-400[-2]`  | one that did not verify, set aside for a person to look at; nothing here deletes it |

A run goes on from the newest checkpoint that verifies. Newer ones that do not are named, with the file and the reason,
and set aside. If none verifies, nothing is touched and the run stops (exit 74): it never starts anew by itself where
there was a checkpoint.
"""

import json
import logging
import os
import re
import shutil
from pathlib import Path

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.training.checkpoints.manifests import FORMAT, FORMATS, MANIFEST_FILE, Manifest, damage

logger = logging.getLogger(__name__)

STATE_FILE = "trainer_state.json"
ANOTHER = "take another checkpoint, or --resume auto, which finds the newest whole one"
NUMBERED = re.compile(r"checkpoint-[0-9]+")
SAVING, REPLACED, DELETING, DAMAGED = ".saving-", ".replaced-", ".deleting-", "damaged-"


def checkpoints(output_dir) -> list[Path]:
    """The directory's checkpoints, ascending by step, verified or not."""
    return sorted(_named(output_dir, ""), key=checkpoint_step)


def _named(output_dir, prefix: str) -> list[Path]:
    found = sorted(Path(output_dir).glob(f"{prefix}checkpoint-*"))
    return [path for path in found if NUMBERED.fullmatch(path.name.removeprefix(prefix))]


def checkpoint_step(path) -> int:
    """The step in a checkpoint's name.

    >>> checkpoint_step("runs/x/checkpoint-400")
    400
    """
    return int(Path(path).name.removeprefix("checkpoint-"))


def find_checkpoint(output_dir, resume: str, run_id: str | None = None, trust: bool = False) -> Path | None:
    """`--resume`: 'auto', 'none' or a checkpoint's path -> a checkpoint to go on from, or None for a fresh start.

    Args:
      run_id: with 'auto', checkpoints of other runs do not count.
      trust: take a DeepSpeed checkpoint of unknown origin, whose files can run code when they are read.

    Raises:
      CheckpointError: there are checkpoints, but none verifies; the named one does not; or it is not trusted.
      ConfigError: no such folder.
    """
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
        reason = damage(path)
        if reason is None and run_id is not None and Manifest.read(path).run_id != run_id:
            reason = f"of run {Manifest.read(path).run_id}, not of {run_id}"
        if reason is None:
            _check_format(path)
            for other, why in damaged.items():
                set_aside(other, why)
            if damaged:
                logger.warning("going on from %s, the newest checkpoint that verifies", path)
            return path
        damaged[path] = reason
    reasons = [f"{path.name} ({why})" for path, why in damaged.items()]
    reasons += [f"{path.name} (set aside before)" for path in sorted(Path(output_dir).glob(f"{DAMAGED}checkpoint-*"))]
    if reasons:
        raise CheckpointError(
            f"{output_dir}: no checkpoint verifies: {'; '.join(reasons)}. Nothing was changed. Bring back a good copy, "
            "name a checkpoint with --resume, or start anew with another --output_dir"
        )
    return None


def _check_format(path: Path) -> None:
    found = Manifest.read(path).format
    if found != FORMAT:
        raise ConfigError(
            f"{path} was written by t5suite {FORMATS[found]}, which can go on from it; this version reads others. "
            f"Finish the run with that version, or start a new one with its weights: --model_name_or_path {path}"
        )


def named_checkpoint(resume: str, trust: bool = False) -> Path:
    """The checkpoint that `--resume PATH` names; one without a manifest (Hugging Face's own) is taken with a warning.

    Raises:
      CheckpointError: it does not verify, is not complete, or is DeepSpeed's, without a manifest and not trusted.
      ConfigError: no such folder, or its name has no step.
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
        deepspeed = any(path.glob("global_step*"))
        weights = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
        needed = [] if deepspeed else ["optimizer.pt", "scheduler.pt"]
        if not deepspeed and not any((path / name).is_file() for name in weights):
            needed.insert(0, weights[0])
        missing = [name for name in needed if not (path / name).is_file()]
        try:  # the trainer's state is written last, so a save that was cut short lacks it
            json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            missing.append(STATE_FILE)
        if missing:
            raise CheckpointError(
                f"--resume {resume}: not complete: {', '.join(missing)} is missing or broken; {ANOTHER}"
            )
        if deepspeed and not trust:
            raise CheckpointError(
                f"--resume {resume}: a DeepSpeed checkpoint without {MANIFEST_FILE}: to read one is to run code that "
                "may be in it. If you know where it comes from, add --trust_checkpoint"
            )
        logger.warning("%s has no %s: its files are taken as they are, unverified", path, MANIFEST_FILE)
    for found in (path, path.resolve()):
        if NUMBERED.fullmatch(found.name):
            return found
    raise ConfigError(
        f'--resume {path}: a checkpoint\'s folder is called checkpoint-N after its step ("global_step" in its '
        f"{STATE_FILE}); give it that name again"
    )


def resume_choice(resume: str, resume_from_checkpoint: str | None) -> str:
    """`--resume`, or Hugging Face's `--resume_from_checkpoint` where that was given instead.

    >>> resume_choice("auto", "True"), resume_choice("auto", "False"), resume_choice("auto", "runs/x/checkpoint-4")
    ('auto', 'none', 'runs/x/checkpoint-4')
    """
    if resume_from_checkpoint is None:
        return resume
    return {"true": "auto", "false": "none"}.get(str(resume_from_checkpoint).lower(), str(resume_from_checkpoint))


def rotate(output_dir, limit: int | None, keep_every: int | None = None, best=None) -> list[Path]:
    """Deletes the oldest checkpoints beyond `limit`; never the newest, the best, or multiples of `keep_every` steps.

    >>> rotate("runs/x", limit=1, keep_every=100)                     # of 100, 150, 200, 250 and 300
    [PosixPath('runs/x/checkpoint-150')]

    Nothing is deleted while the newest one does not have its files in full: it may be the only one that is whole.
    One process calls it, after the commit.

    Args:
      limit: how many stay beside those of `keep_every`; None for all.
      best: the best checkpoint's folder.
    """
    found = checkpoints(output_dir)
    rotated = [path for path in found if keep_every is None or checkpoint_step(path) % keep_every]
    deletable = [path for path in rotated if path != found[-1] and (best is None or path.name != Path(best).name)]
    chosen = deletable[: max(0, len(rotated) - limit)] if limit else []
    problem = damage(found[-1], hashed=False) if chosen else None
    if problem:
        logger.warning("%s is damaged (%s); older checkpoints are kept", found[-1], problem)
        return []
    for path in chosen:
        doomed = path.with_name(DELETING + path.name)
        try:
            remove(doomed)
            os.rename(path, doomed)
            remove(doomed)
        except OSError as error:  # a run does not end for that
            logger.warning("%s could not be deleted: %s", path, error)
    return chosen


def clean_leftovers(output_dir) -> list[str]:
    """Finishes what a killed process had begun; returns the names of what is gone or back.

    Saves that were cut short and what was being deleted go; a checkpoint that was to be replaced gets its name back if
    the new one did not come. The caller holds the run's lock.
    """
    replaced = _named(output_dir, REPLACED)
    leftovers = [*replaced, *_named(output_dir, SAVING), *_named(output_dir, DELETING)]
    for path in leftovers:
        final = path.with_name(path.name.removeprefix(REPLACED))
        if path in replaced and not final.exists():
            os.rename(path, final)
        else:
            remove(path)
    names = [path.name for path in leftovers]
    if names:
        logger.warning("%s: cleared up after a process that was killed: %s", output_dir, ", ".join(names))
    return names


def remove(path: Path) -> None:
    """Deletes a file, a link or a whole folder, if it is there."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def set_aside(checkpoint: Path, reason: str) -> Path:
    """Renames a checkpoint to `damaged-checkpoint-N`, or `-2`, `-3` behind it, and says so in a warning."""
    place = checkpoint.with_name(DAMAGED + checkpoint.name)
    number = 1
    while os.path.lexists(place):
        number += 1
        place = checkpoint.with_name(f"{DAMAGED}{checkpoint.name}-{number}")
    os.rename(checkpoint, place)
    logger.warning("%s is damaged (%s); it is set aside as %s", checkpoint, reason, place.name)
    return place
