"""The checkpoints in a run directory: their names, which one a run resumes from, which ones are deleted.

    >>> checkpoints("runs/x")                                  # ascending by step
    [PosixPath('runs/x/checkpoint-200'), PosixPath('runs/x/checkpoint-400')]
    >>> find_checkpoint("runs/x", resume="auto")
    PosixPath('runs/x/checkpoint-400')
    >>> rotate("runs/x", limit=1)
    [PosixPath('runs/x/checkpoint-200')]

| name                          | contains                                                                           |
|-------------------------------|------------------------------------------------------------------------------------|
| `checkpoint-400`              | a complete checkpoint: only a rename creates this name                             |
| `.saving-checkpoint-400`      | a checkpoint that is being written; if left over, the save was interrupted         |
| `.replaced-checkpoint-400`    | the previous checkpoint of the same step, until the new one has its name           |
| `.deleting-checkpoint-400`    | one that rotation is deleting, so that a half-deleted folder is never loaded       |
| `damaged-checkpoint-400[-2]`  | one that failed verification, set aside for inspection; never deleted here         |

A run resumes from the newest checkpoint that verifies. Newer ones that fail are logged with the file and the reason,
and set aside. If none verifies, nothing is changed and the run stops (exit code 74): it never starts over by itself
if there was a checkpoint.
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
ANOTHER = "use another checkpoint, or --resume auto, which finds the newest complete one"
NUMBERED = re.compile(r"checkpoint-[0-9]+")
# Prefixes of names, see the table.
SAVING = ".saving-"
REPLACED = ".replaced-"
DELETING = ".deleting-"
DAMAGED = "damaged-"
# One of them holds the weights of a checkpoint that Hugging Face's trainer wrote.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")


def checkpoints(output_dir) -> list[Path]:
    """The directory's checkpoints, ascending by step, verified or not."""
    return sorted(_named(output_dir, ""), key=checkpoint_step)


def _named(output_dir, prefix: str) -> list[Path]:
    paths = sorted(Path(output_dir).glob(f"{prefix}checkpoint-*"))
    return [path for path in paths if NUMBERED.fullmatch(path.name.removeprefix(prefix))]


def checkpoint_step(path) -> int:
    """The step in a checkpoint's name.

    >>> checkpoint_step("runs/x/checkpoint-400")
    400
    """
    return int(Path(path).name.removeprefix("checkpoint-"))


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
    reasons += [f"{path.name} (set aside before)" for path in sorted(Path(output_dir).glob(f"{DAMAGED}checkpoint-*"))]
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
    is_deepspeeds = any(path.glob("global_step*"))
    required = [] if is_deepspeeds else ["optimizer.pt", "scheduler.pt"]
    if not is_deepspeeds and not any((path / name).is_file() for name in WEIGHTS):
        required.insert(0, WEIGHTS[0])
    missing = [name for name in required if not (path / name).is_file()]
    try:  # the trainer's state is written last: it is missing if the save was interrupted
        json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        missing.append(STATE_FILE)
    if missing:
        raise CheckpointError(f"--resume {resume}: not complete: {', '.join(missing)} is missing or broken; {ANOTHER}")
    if is_deepspeeds and not trust:
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


def rotate(output_dir, limit: int | None, keep_every: int | None = None, best=None) -> list[Path]:
    """Deletes the oldest checkpoints beyond `limit`; never the newest, the best, or multiples of `keep_every` steps.

    >>> rotate("runs/x", limit=1, keep_every=100)                     # of 100, 150, 200, 250 and 300
    [PosixPath('runs/x/checkpoint-150')]

    Nothing is deleted if the newest one is incomplete: only an older one may be good. One process calls it, after the
    commit.

    Args:
      limit: how many to keep besides those of `keep_every`; None or 0 keeps all.
      best: the best checkpoint's folder.
    """
    present = checkpoints(output_dir)
    rotated = [path for path in present if keep_every is None or checkpoint_step(path) % keep_every]
    names_kept = {present[-1].name} if present else set()
    if best is not None:
        names_kept.add(Path(best).name)
    deletable = [path for path in rotated if path.name not in names_kept]
    oldest = deletable[: max(0, len(rotated) - limit)] if limit else []
    if not oldest:
        return []
    problem = damage(present[-1], hashed=False)
    if problem:
        logger.warning("%s is damaged (%s); older checkpoints are kept", present[-1], problem)
        return []
    for path in oldest:
        try:
            _delete(path)
        except OSError as error:  # this must not end the run
            logger.warning("%s could not be deleted: %s", path, error)
    return oldest


def _delete(checkpoint: Path) -> None:
    """Renames a checkpoint, then deletes it: a half-deleted folder is never loaded."""
    doomed = checkpoint.with_name(DELETING + checkpoint.name)
    remove(doomed)
    os.rename(checkpoint, doomed)
    remove(doomed)


def clean_leftovers(output_dir) -> list[str]:
    """Cleans up after a killed process; returns the names of the folders it deleted or restored.

    It deletes interrupted saves and half-deleted checkpoints. A replaced checkpoint gets its name back if the new one
    was not committed. The caller holds the run's lock.
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
    """Deletes a file, a link or a whole folder, if it exists."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def set_aside(checkpoint: Path, reason: str) -> Path:
    """Renames a checkpoint to `damaged-checkpoint-N` (with `-2`, `-3`, ... if that exists) and logs a warning."""
    new_path = checkpoint.with_name(DAMAGED + checkpoint.name)
    number = 1
    while os.path.lexists(new_path):
        number += 1
        new_path = checkpoint.with_name(f"{DAMAGED}{checkpoint.name}-{number}")
    os.rename(checkpoint, new_path)
    logger.warning("%s is damaged (%s); it is set aside as %s", checkpoint, reason, new_path.name)
    return new_path
