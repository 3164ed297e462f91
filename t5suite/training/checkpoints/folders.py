"""The checkpoints in a run directory: their names, which ones are deleted, and what a killed process leaves.

    >>> checkpoints("runs/x")                                  # ascending by step
    [PosixPath('runs/x/checkpoint-200'), PosixPath('runs/x/checkpoint-400')]
    >>> rotate("runs/x", limit=1)
    [PosixPath('runs/x/checkpoint-200')]

| name                          | contains                                                                           |
|-------------------------------|------------------------------------------------------------------------------------|
| `checkpoint-400`              | a complete checkpoint: only a rename creates this name                             |
| `.saving-checkpoint-400`      | a checkpoint that is being written; if left over, the save was interrupted         |
| `.replaced-checkpoint-400`    | the previous checkpoint of the same step, until the new one has its name           |
| `.deleting-checkpoint-400`    | one that rotation is deleting, so that a half-deleted folder is never loaded       |
| `.deleting-5f3a9c01`          | one that could not be deleted yet (`discard`)                                      |
| `damaged-checkpoint-400[-2]`  | one that failed verification, set aside for inspection; never deleted here         |
| `left-checkpoint-400[-2]`     | one of a course that the run has left for an older checkpoint; never deleted here  |

The best weights of tasks, `best/rte`, have the first three prefixes, too.
"""

import contextlib
import logging
import os
import re
import secrets
import shutil
from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.base.files import read_json
from t5suite.runs.directory import BEST_FOLDER
from t5suite.training.checkpoints.manifests import damage

logger = logging.getLogger(__name__)

STATE_FILE = "trainer_state.json"
NUMBERED = re.compile(r"checkpoint-[0-9]+")
# Prefixes of names, see the table.
SAVING = ".saving-"
REPLACED = ".replaced-"
DELETING = ".deleting-"
DAMAGED = "damaged-"
LEFT = "left-"


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


def rotate(output_dir, limit: int | None, keep_every: int | None = None) -> list[Path]:
    """Deletes the oldest checkpoints beyond `limit`; never the newest, or multiples of `keep_every` steps.

    >>> rotate("runs/x", limit=1, keep_every=100)                     # of 100, 150, 200, 250 and 300
    [PosixPath('runs/x/checkpoint-150')]

    Nor does it delete the best one as of the newest, or of one that `limit` keeps: a run that goes on from there needs
    it. Those of `keep_every` keep no others. Nothing is deleted if the newest one is incomplete: only an older one may
    be good. One process calls it, after the commit.

    Args:
      limit: how many to keep besides those of `keep_every`; None or 0 keeps all.
    """
    present = checkpoints(output_dir)
    rotated = [path for path in present if keep_every is None or checkpoint_step(path) % keep_every]
    excess = len(rotated) - limit if limit else 0
    if excess <= 0:
        return []
    problem = damage(present[-1], hashed=False)
    if problem:
        logger.warning("%s is damaged (%s); older checkpoints are kept", present[-1], problem)
        return []
    doomed = _oldest_that_none_needs(rotated, present[-1], excess)
    for path in doomed:
        try:
            _delete(path)
        except OSError as error:  # this must not end the run
            logger.warning("%s could not be deleted: %s", path, error)
    return doomed


def _oldest_that_none_needs(rotated: list[Path], newest: Path, count: int) -> list[Path]:
    """At most `count` of the checkpoints that rotate: none is the newest, or the best one of one that stays."""
    best_steps = {path: _best_step(path) for path in (*rotated, newest)}
    doomed = []
    while len(doomed) < count:
        needed_steps = {step for path, step in best_steps.items() if step != checkpoint_step(path)}
        staying = [path for path in rotated if path in best_steps and path != newest]
        unneeded = [path for path in staying if checkpoint_step(path) not in needed_steps]
        if not unneeded:
            break
        doomed.append(unneeded[0])
        del best_steps[unneeded[0]]
    return doomed


def _best_step(checkpoint: Path) -> int | None:
    """The step of the best checkpoint when this one was written; None: none was, or its state cannot be read."""
    try:
        return read_json(checkpoint / STATE_FILE).get("best_global_step")
    except (OSError, DataError):
        return None


def _delete(checkpoint: Path) -> None:
    """Renames a checkpoint, then deletes it: a half-deleted folder is never loaded."""
    doomed = checkpoint.with_name(DELETING + checkpoint.name)
    remove(doomed)
    os.rename(checkpoint, doomed)
    remove(doomed)


def clean_leftovers(output_dir) -> list[str]:
    """Cleans up after a killed process; returns the names of the folders it deleted or restored.

    It deletes interrupted saves and half-deleted checkpoints. A replaced checkpoint gets its name back if the new one
    was not committed; so do a task's best weights. The caller holds the run's lock.
    """
    output_dir = Path(output_dir)
    best = output_dir / BEST_FOLDER
    replaced = [*_named(output_dir, REPLACED), *best.glob(f"{REPLACED}*")]
    unfinished = [*_named(output_dir, SAVING), *best.glob(f"{SAVING}*")]
    deleted = [*output_dir.glob(f"{DELETING}*"), *best.glob(f"{DELETING}*")]
    leftovers = [*replaced, *unfinished, *deleted]
    for path in leftovers:
        final = path.with_name(path.name.removeprefix(REPLACED))
        if path in replaced and not final.exists():
            os.rename(path, final)
        else:
            discard(path)
    names = [path.relative_to(output_dir).as_posix() for path in leftovers]
    if names:
        logger.warning("%s: cleared up what an earlier process left: %s", output_dir, ", ".join(names))
    return names


def discard(folder: Path) -> None:
    """Deletes a folder, if it exists and that is possible now; in any case its name is free.

    Over NFS a file that a process still reads stays until the process closes it.
    """
    doomed = folder.with_name(f"{DELETING}{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        os.rename(folder, doomed)
    with contextlib.suppress(OSError):
        remove(doomed)


def remove(path: Path) -> None:
    """Deletes a file, a link or a whole folder, if it exists."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def set_aside(checkpoint: Path, reason: str) -> Path:
    """Renames a checkpoint to `damaged-checkpoint-N` and logs a warning."""
    new_path = _rename_aside(checkpoint, DAMAGED)
    logger.warning("%s is damaged (%s); it is set aside as %s", checkpoint, reason, new_path.name)
    return new_path


def leave_later_ones(output_dir, step: int) -> list[Path]:
    """Renames the checkpoints after a step to `left-checkpoint-N`; returns their new paths.

    >>> leave_later_ones("runs/x", 300)                               # of 200, 300 and 400
    [PosixPath('runs/x/left-checkpoint-400')]

    A run that goes on from step 300 takes another course than they did: neither rotation nor `--resume auto` may take
    them for its newest.
    """
    later = [path for path in checkpoints(output_dir) if checkpoint_step(path) > step]
    left = [_rename_aside(path, LEFT) for path in later]
    if left:
        names = ", ".join(path.name for path in left)
        logger.warning("%s goes on from step %d: later checkpoints are set aside as %s", output_dir, step, names)
    return left


def _rename_aside(checkpoint: Path, prefix: str) -> Path:
    """Puts a prefix before a checkpoint's name, and `-2`, `-3`, ... after it if that exists."""
    new_path = checkpoint.with_name(prefix + checkpoint.name)
    number = 1
    while os.path.lexists(new_path):
        number += 1
        new_path = checkpoint.with_name(f"{prefix}{checkpoint.name}-{number}")
    os.rename(checkpoint, new_path)
    return new_path
