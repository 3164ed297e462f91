"""Checks of file systems: space for runs and batches, and what checkpoints and locks need."""

import errno
import fcntl
import os
import shutil
import sys
import tempfile
from pathlib import Path

from t5suite.commands.checks.checkup import FAIL, OK, WARN, CheckResult, Checkup
from t5suite.commands.checks.machine import GIB, size_text

# A checkpoint of t5-base with its optimizer is 3 GiB; two exist while one replaces the other, beside the model.
LITTLE_DISK = 10 * GIB
# Not even a checkpoint of the smallest models.
TOO_LITTLE_DISK = GIB // 4
# Data loader workers pass batches through shared memory: docker gives 64 MiB by default.
LITTLE_SHARED_MEMORY = GIB // 2
# Errors of a disk that is full or cannot be written, which say nothing of what its file system can do.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


def existing_folder(path) -> Path:
    """The folder itself, or the nearest existing one above it, where it would be made."""
    folder = Path(path).expanduser().absolute()
    while not os.path.isdir(folder):  # also False without permission, where Path.is_dir raises
        folder = folder.parent
    return folder


def check_disk(checkup: Checkup) -> list[CheckResult]:
    """Space where runs are written."""
    return [check_space("disk", checkup.output_dir, "give --output_dir on a larger disk, or --save_total_limit 1")]


def check_space(name: str, path, fix: str) -> CheckResult:
    """Whether the file system of a path has room for a run.

    Args:
      name: of the check.
      fix: what to do if it has not.
    """
    folder = existing_folder(path)
    free = shutil.disk_usage(folder).free
    what = f"{size_text(free)} free at {folder}"
    if free < TOO_LITTLE_DISK:
        return CheckResult(FAIL, name, what, fix)
    if free < LITTLE_DISK:
        return CheckResult(WARN, name, what, fix)
    return CheckResult(OK, name, what)


def check_output_files(checkup: Checkup) -> list[CheckResult]:
    """What the file system must be able to do: fsync and rename for checkpoints, flock for the lock of a run."""
    folder = existing_folder(checkup.output_dir)
    path = Path(checkup.output_dir).expanduser().absolute()
    for file in (path, *path.parents):
        if os.path.isfile(file):
            fix = "give another --output_dir"
            return [CheckResult(FAIL, "files", f"{file} is a file, and a folder is needed there", fix)]
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".t5suite-doctor-") as trial_folder:
            missing = missing_file_operations(Path(trial_folder))
    except OSError as error:
        fix = "give an --output_dir that can be written, on a disk with room"
        return [CheckResult(FAIL, "files", f"{folder}: {error.strerror or error}", fix)]
    if missing:
        fix = "give an --output_dir on another file system (local, NFSv4, Lustre -o flock)"
        return [CheckResult(FAIL, "files", f"{folder} lacks {', '.join(missing)}", fix)]
    return [CheckResult(OK, "files", f"{folder}: fsync, rename and flock work")]


def missing_file_operations(folder: Path) -> list[str]:
    """Which of fsync, rename and flock do not work in an empty folder.

    Raises:
      OSError: the disk is full or cannot be written.
    """
    trials = {"fsync": fsync_works, "rename": rename_works, "flock": flock_works}
    missing = []
    for name, trial in trials.items():
        try:
            works = trial(folder)
        except OSError as error:
            if error.errno in DISK_ERRORS:
                raise
            works = False
        if not works:
            missing.append(name)
    return missing


def fsync_works(folder: Path) -> bool:
    """Syncs a file and its folder; raises OSError if it does not work."""
    (folder / "data").write_bytes(b"x" * 4096)
    for path in (folder / "data", folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    return True


def rename_works(folder: Path) -> bool:
    """Renames a file over another one."""
    (folder / "old").write_bytes(b"old")
    (folder / "new").write_bytes(b"new")
    os.replace(folder / "new", folder / "old")
    return (folder / "old").read_bytes() == b"new" and not (folder / "new").exists()


def flock_works(folder: Path) -> bool:
    """Opens a file twice: the second one must not get the lock that the first one holds."""
    path = folder / "lock"
    with path.open("w") as first_file, path.open("w") as second_file:
        fcntl.flock(first_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True  # it was refused, as it must be
        return False


def check_shared_memory(checkup: Checkup, folder: str = "/dev/shm") -> list[CheckResult]:
    """Space for the batches that data loader workers pass on."""
    if sys.platform == "darwin":
        return [CheckResult(OK, "shared memory", "macOS has it without a folder")]
    fix = "docker run --shm-size=8g (or --ipc=host), or --dataloader_num_workers 0"
    if not os.access(folder, os.W_OK):
        return [CheckResult(WARN, "shared memory", f"{folder} is not there, or cannot be written", fix)]
    usage = shutil.disk_usage(folder)
    what = f"{size_text(usage.free)} of {size_text(usage.total)} free at {folder}"
    if usage.free < LITTLE_SHARED_MEMORY:
        return [CheckResult(WARN, "shared memory", what, fix)]
    return [CheckResult(OK, "shared memory", what)]


def check_hub_cache(checkup: Checkup) -> list[CheckResult]:
    """Where the files of the hub are kept, as huggingface_hub chooses the folder."""
    variables_of_cache = [name for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE") if checkup.environ.get(name)]
    if variables_of_cache:
        variable_to_set = variables_of_cache[0]
        cache = checkup.environ[variable_to_set]
    else:
        user_caches = checkup.environ.get("XDG_CACHE_HOME") or "~/.cache"
        home = checkup.environ.get("HF_HOME") or os.path.join(user_caches, "huggingface")
        cache = os.path.join(home, "hub")
        variable_to_set = "HF_HOME"
    if not os.access(existing_folder(cache), os.W_OK):
        fix = f"export {variable_to_set}=DIR, a writable one on a disk that all nodes see"
        return [CheckResult(WARN, "hub cache", f"{cache} cannot be written", fix)]
    return [check_space("hub cache", cache, f"export {variable_to_set}=DIR on a larger disk")]
