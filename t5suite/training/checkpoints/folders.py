"""The checkpoints in a run directory: their names, which one a run goes on from, which ones go.

    >>> checkpoints("runs/x")                                  # ascending by step
    [PosixPath('runs/x/checkpoint-200'), PosixPath('runs/x/checkpoint-400')]
    >>> find_checkpoint("runs/x", resume="auto", ranks=ranks)
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
from t5suite.training.processes.ranks import Ranks

logger = logging.getLogger(__name__)

STATE_FILE = "trainer_state.json"
SAVING, REPLACED, DELETING, DAMAGED = ".saving-", ".replaced-", ".deleting-", "damaged-"


def checkpoints(output_dir) -> list[Path]:
    """The directory's checkpoints, ascending by step, verified or not."""
    return sorted(filter(is_numbered, Path(output_dir).glob("checkpoint-*")), key=checkpoint_step)


def is_numbered(path: Path) -> bool:
    """Whether a folder's name tells the step of a checkpoint."""
    return re.fullmatch(r"checkpoint-[0-9]+", path.name) is not None


def checkpoint_step(path) -> int:
    """The step in a checkpoint's name.

    >>> checkpoint_step("runs/x/checkpoint-400")
    400
    """
    return int(Path(path).name.removeprefix("checkpoint-"))


def checkpoint_folder(output_dir, step: int, prefix: str = "") -> Path:
    """Where the checkpoint of a step lies, or with a prefix the folder that becomes it or was it.

    >>> checkpoint_folder("runs/x", 400, SAVING)
    PosixPath('runs/x/.saving-checkpoint-400')
    """
    return Path(output_dir) / f"{prefix}checkpoint-{step}"


def leftovers(output_dir, prefix: str) -> list[Path]:
    """Folders of a kind that should be gone by now, ascending by name."""
    found = Path(output_dir).glob(f"{prefix}checkpoint-*")
    return sorted(path for path in found if re.fullmatch(r"checkpoint-[0-9]+", path.name.removeprefix(prefix)))


def damaged_checkpoints(output_dir) -> list[Path]:
    """What was set aside, ascending by name."""
    return sorted(Path(output_dir).glob(f"{DAMAGED}checkpoint-*"))


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
            _check_format(path)
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
    found = Manifest.read(path).run_id
    return f"of run {found}, not of {run_id}" if run_id is not None and found != run_id else None


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
        _check_format(path)
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


def rotate(output_dir, limit: int | None, keep_every: int | None = None, best=None) -> list[Path]:
    """Deletes the oldest checkpoints beyond `limit` (see `checkpoints_to_delete`); returns what it deleted.

    Nothing is deleted while the newest one does not have its files in full: it may be the only one that is whole.
    One process calls it, after the commit.
    """
    chosen = checkpoints_to_delete(output_dir, limit, keep_every, best)
    if not chosen:
        return []
    newest = checkpoints(output_dir)[-1]
    problem = damage(newest, hashed=False)
    if problem:
        logger.warning("%s is damaged (%s); older checkpoints are kept", newest, problem)
        return []
    for path in chosen:
        delete(path)
    return chosen


def delete(checkpoint: Path) -> None:
    """Deletes a checkpoint, or warns if it cannot: a run does not end for that."""
    doomed = checkpoint.with_name(DELETING + checkpoint.name)
    try:
        _remove(doomed)
        os.rename(checkpoint, doomed)
        _remove(doomed)
    except OSError as error:
        logger.warning("%s could not be deleted: %s", checkpoint, error)


def clean_leftovers(output_dir) -> list[str]:
    """Finishes what a killed process had begun; returns the names of what is gone or back.

    Saves that were cut short and what was being deleted go; a checkpoint that was to be replaced gets its name back if
    the new one did not come. The caller holds the run's lock.
    """
    names = []
    for path in leftovers(output_dir, REPLACED):
        final = checkpoint_folder(output_dir, checkpoint_step(path.name.removeprefix(REPLACED)))
        if final.exists():
            _remove(path)
        else:
            os.rename(path, final)
        names.append(path.name)
    for path in [*leftovers(output_dir, SAVING), *leftovers(output_dir, DELETING)]:
        _remove(path)
        names.append(path.name)
    if names:
        logger.warning("%s: cleared up after a process that was killed: %s", output_dir, ", ".join(names))
    return names


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def checkpoints_to_delete(output_dir, limit: int | None, keep_every: int | None = None, best=None) -> list[Path]:
    """The oldest checkpoints beyond `limit`; never the newest, the best, or those at multiples of `keep_every` steps.

    >>> checkpoints_to_delete("runs/x", limit=1, keep_every=100)      # of 100, 150, 200, 250 and 300
    [PosixPath('runs/x/checkpoint-150')]

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
