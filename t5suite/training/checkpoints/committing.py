"""Commits a checkpoint completely or not at all.

    >>> def write(folder):
    ...     save_state(folder, "optimizer", optimizer.state_dict())
    >>> commit_checkpoint("runs/x", 400, write, ranks, run_id="5f3a9c01")
    PosixPath('runs/x/checkpoint-400')

The protocol, which survives a kill at any point:

1. rank 0 creates `.saving-checkpoint-400`, and every rank writes its files into it;
2. rank 0 flushes files and folders to disk (fsync) and reads every file once to hash it;
3. it writes the manifest (name, size and SHA-256 of every file) and flushes it to disk;
4. it renames the folder to `checkpoint-400` and flushes the rename to disk.

So a folder called `checkpoint-N` is complete, or was damaged later. If any rank fails, all of them raise, the
temporary folder is deleted, and earlier checkpoints are unchanged.
"""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from t5suite.base.errors import CheckpointError, cure_of, first_line
from t5suite.base.files import FULL, follow_umask, is_full, space_left, sync_folder, sync_tree
from t5suite.training.checkpoints.folders import (
    REPLACED,
    SAVING,
    checkpoint_step,
    checkpoints,
    discard,
    remove,
    set_aside,
)
from t5suite.training.checkpoints.manifests import Manifest, damage, files_below, hash_files
from t5suite.training.processes.ranks import Ranks

# Parts of the messages of torch's zip writer when a write fails.
TORN_WRITES = ("unexpected pos", "inline_container", "PytorchStreamWriter", "file write failed")


def commit_checkpoint(
    output_dir,
    step: int,
    write: Callable[[Path], None],
    ranks: Ranks | None = None,
    run_id: str = "",
    details: dict | None = None,
) -> Path:
    """Writes and commits `checkpoint-<step>`; every rank calls it.

    Args:
      write: called with the temporary folder; each rank writes its own files.
      details: plain JSON for the manifest.

    Returns:
      the checkpoint's folder, on every rank, after the commit.

    Raises:
      CheckpointError: nothing was committed; the message says which write failed and how many bytes were free.
    """
    ranks = ranks or Ranks()
    output_dir = Path(output_dir)
    temporary = output_dir / f"{SAVING}checkpoint-{step}"
    try:
        ranks.together(lambda: (remove(temporary), temporary.mkdir(parents=True)))
        ranks.all_succeed(write, temporary)
        return ranks.together(_seal, temporary, Manifest(step, run_id, ranks.world_size, details=details or {}))
    except Exception as error:
        failure = _as_checkpoint_error(error, output_dir, step)
        if ranks.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
        raise failure from error


def commit_weights(folder: Path, step: int, write: Callable[[Path], None], ranks: Ranks, run_id: str = "") -> None:
    """Writes a model's folder with a manifest in place of an earlier step's, as a whole; every rank calls it.

    Args:
      write: called with the temporary folder; each rank writes its own files.
    """
    temporary = folder.with_name(SAVING + folder.name)
    ranks.together(lambda: (remove(temporary), temporary.mkdir(parents=True)))
    try:
        ranks.all_succeed(write, temporary)
        ranks.together(_replace_weights, temporary, folder, Manifest(step, run_id, ranks.world_size))
    except BaseException:
        if ranks.is_main:
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def _replace_weights(temporary: Path, folder: Path, manifest: Manifest) -> None:
    """Seals new weights and puts them in place of earlier ones; `clean_leftovers` restores those after a kill."""
    _write_manifest(temporary, manifest)
    earlier = folder.with_name(REPLACED + folder.name)
    if folder.exists():
        os.rename(folder, earlier)
    os.rename(temporary, folder)
    sync_folder(folder.parent)
    discard(earlier)


def _seal(temporary: Path, manifest: Manifest) -> Path:
    """Steps 2 to 4. Renames the run's checkpoint of the same step first; `clean_leftovers` restores it after a kill."""
    _write_manifest(temporary, manifest)
    output_dir = temporary.parent
    final = output_dir / f"checkpoint-{manifest.step}"
    replaced = None
    if final.exists():
        if _is_of_run(final, manifest.run_id):
            replaced = output_dir / f"{REPLACED}{final.name}"
            discard(replaced)
            os.rename(final, replaced)
        else:
            set_aside(final, "it belongs to another run, and this one has reached the same step")
    try:
        os.rename(temporary, final)
    except OSError:
        if replaced is not None:
            os.rename(replaced, final)
        raise
    sync_folder(output_dir)
    if replaced is not None:
        discard(replaced)
    return final


def _is_of_run(checkpoint: Path, run_id: str) -> bool:
    try:
        return Manifest.read(checkpoint).run_id == run_id
    except CheckpointError:
        return False


def _write_manifest(temporary: Path, manifest: Manifest) -> None:
    """Flushes all files of a folder to disk, hashes them, and writes the manifest last."""
    names = files_below(temporary)
    follow_umask(temporary / name for name in names)
    sync_tree(temporary)
    manifest.files.update(hash_files(temporary, names))
    manifest.write(temporary)
    sync_folder(temporary)
    problem = damage(temporary, hashed=False)
    if problem:
        raise OSError(f"the written files do not match the manifest: {problem}")


def as_os_error(error: Exception, path) -> OSError | None:
    """The `OSError` behind an error, even if a library has reworded it; it names `path` if it named no file.

    Returns:
      None for any other error.
    """
    if isinstance(error, OSError):
        if error.errno and not error.filename:
            error.filename = str(path)
        return error
    match = re.search(r"\(os error (\d+)\)", str(error))  # how libraries in Rust report it
    if match:
        code = int(match[1])
        return OSError(code, os.strerror(code), str(path))
    if not any(words in str(error) for words in TORN_WRITES):
        return None
    # torch does not say why a write failed.
    code = errno.ENOSPC if is_full(Path(path).parent) else errno.EIO
    return OSError(code, first_line(error), str(path))


def _as_checkpoint_error(error: Exception, output_dir: Path, step: int) -> Exception:
    """A failed write as a `CheckpointError` with its cause and fix; any other error unchanged."""
    final = output_dir / f"checkpoint-{step}"
    failure = as_os_error(error, final)
    if failure is None:
        return error
    earlier = [path for path in checkpoints(output_dir) if checkpoint_step(path) != step]
    cause = failure.strerror or str(failure)
    code = errno.errorcode.get(failure.errno or 0)
    if code:
        cause = f"{cause} ({code})"
    parts = [
        f"{final} could not be written: {failure.filename or final}: {cause}",
        *_lack_of_space(failure, output_dir, earlier),
        f"{earlier[-1].name} is unchanged" if earlier else "there is no earlier checkpoint",
        _cure(failure) + ", and start the same command again",
    ]
    return CheckpointError("; ".join(parts))


def _lack_of_space(failure: OSError, output_dir: Path, earlier: list[Path]) -> list[str]:
    """What a full disk lacks; nothing for other failures, whose cause is not the space."""
    if failure.errno not in FULL:
        return []
    needed_bytes = "an unknown number of"
    free_space = "unknown bytes free"
    with contextlib.suppress(OSError):
        free_space = space_left(output_dir)
    with contextlib.suppress(OSError, IndexError, CheckpointError):
        last_files = Manifest.read(earlier[-1]).files.values()
        needed_bytes = f"about {sum(record.size for record in last_files):,}"
    return [f"{needed_bytes} bytes wanted, {free_space}"]


def _cure(failure: OSError) -> str:
    if failure.errno in FULL:
        return "make room (or set a lower --save_total_limit, another --output_dir)"
    return cure_of(failure) or "remove the cause, or write to another folder (--output_dir)"
