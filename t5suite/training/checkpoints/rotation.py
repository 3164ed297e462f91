"""Which checkpoints go when there are too many, and what a killed process left.

    >>> rotate("runs/x", limit=1, keep_every=100)              # of 100, 150, 200, 250 and 300
    [PosixPath('runs/x/checkpoint-150')]

A checkpoint is renamed before it is deleted, so that what is half deleted is never taken for one.
"""

import logging
import os
import shutil
from pathlib import Path

from t5suite.training.checkpoints.manifests import damage
from t5suite.training.checkpoints.naming import (
    DELETING,
    REPLACED,
    SAVING,
    checkpoint_folder,
    checkpoint_step,
    checkpoints,
    leftovers,
)

logger = logging.getLogger(__name__)


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
