"""Atomic file writes, JSON files, hashes of files, errors that name the file, and the files shipped with the suite.

>>> with whole_file("runs/x/README.md") as temporary:
...     temporary.write_text(card, encoding="utf-8")
>>> shipped_file("recipes", "mini.yaml")
PosixPath('/home/me/t5suite/recipes/mini.yaml')
"""

import contextlib
import errno
import glob
import hashlib
import json
import logging
import os
import secrets
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import suggestion

logger = logging.getLogger(__name__)

# What stands for standard input where a flag takes a file.
STANDARD_INPUT = "-"
# Errors of a disk or a quota that is full.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
HARDLY_ANY_SPACE = 64 << 20
# In a checkout they are at its root; in the wheel, inside the package.
FOLDERS = ("accelerate_configs", "clusters", "deepspeed_configs", "recipes", "slurm", "sweeps")


@contextlib.contextmanager
def whole_file(path) -> Iterator[Path]:
    """A temporary sibling to write, which is flushed to disk (fsync) and renamed at the end of the block.

    If the block fails, the file is unchanged and the sibling is deleted.

    Raises:
      OSError: see `named_errors`.
    """
    path = Path(path)
    temporary = path.with_name(f".{os.uname().nodename}.{os.getpid()}.{path.name}")
    try:
        with named_errors(path, temporary):
            yield temporary
            sync_file(temporary)
            os.replace(temporary, path)
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path):
    """A JSON file's content.

    Raises:
      DataError: it is not JSON; the message names the file.
    """
    content = Path(path).read_bytes()
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        problem = f"not JSON ({error})" if content else "the file is empty"
        raise DataError(f"{path}: {problem}") from None


def write_json(path, value, indent: int | None = 2) -> None:
    """Writes JSON atomically (`whole_file`); NaN is rejected. `indent=None`: one line, for long lists of numbers."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n"
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def file_sha256(path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def named_errors(path, temporary=None) -> Iterator[None]:
    """Makes an OSError of the block name the file; for a full disk it also gives the bytes written and free.

    >>> with named_errors("runs/x/metrics.jsonl"):
    ...     file.write(line)
    OSError: [Errno 28] No space left on device (8,192 bytes written, 0 bytes free): 'runs/x/metrics.jsonl'
    """
    path = Path(path)
    written = Path(temporary or path)
    try:
        yield
    except OSError as error:
        if not _may_be_of(error, written):
            raise
        cause = error.strerror
        if error.errno in FULL:
            cause = f"{cause} ({_size_of(written):,} bytes written, {space_left(path.parent)})"
        # A new one: pickle, which brings an error to other processes, takes what an error was made of.
        raise OSError(error.errno, cause, str(path)) from error


def _may_be_of(error: OSError, path: Path) -> bool:
    """Whether an error names this file, or none."""
    if error.errno is None:  # as clients of the network raise them: it would show nothing but the file
        return False
    return error.filename is None or Path(error.filename) == path


def _size_of(path: Path) -> int:
    """The bytes in a file; 0 if there is none."""
    if not path.is_file():
        return 0
    return path.stat().st_size


def space_left(folder) -> str:
    """The free bytes of a file system, or that it has no inodes left: no new file fits then, whatever is free.

    >>> space_left("runs/x")
    '56,012,345,344 bytes free'
    """
    disk = os.statvfs(folder)
    free = f"{disk.f_bavail * disk.f_frsize:,} bytes free"
    if _has_inodes(disk):
        return free
    return f"{free}, but none of its {disk.f_files:,} inodes: delete files"


def is_full(folder) -> bool:
    """Whether a file system has hardly any space left, or no inodes."""
    disk = os.statvfs(folder)
    free_bytes = disk.f_bavail * disk.f_frsize
    return free_bytes < HARDLY_ANY_SPACE or not _has_inodes(disk)


def _has_inodes(disk: os.statvfs_result) -> bool:
    """Whether a new file fits; file systems without a limit say 0 of 0."""
    return disk.f_files == 0 or disk.f_favail > 0


def follow_umask(paths) -> None:
    """Gives new files the umask's permissions: those that safetensors 0.8 writes only their owner can read."""
    mask = os.umask(0)
    os.umask(mask)
    for path in paths:
        if not Path(path).is_symlink():
            os.chmod(path, 0o666 & ~mask)


def sync_file(path) -> None:
    """Flushes a file to disk; an error names it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


def sync_folder(folder) -> None:
    """Flushes a folder's list of files to disk. Some network file systems cannot and need not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def sync_tree(folder) -> None:
    """Flushes to disk all files of a folder, and its lists of files and those of its subfolders."""
    for subfolder, _, names in os.walk(folder, topdown=False):
        for name in names:
            sync_file(Path(subfolder, name))
        sync_folder(subfolder)


def shipped_folder(folder: str) -> Path:
    """The folder inside the installed package, or else at the root of the checkout."""
    package = Path(__file__).parent.parent
    installed = package / folder
    if installed.is_dir():
        return installed
    return package.parent / folder


def shipped_file(folder: str, name: str) -> Path | None:
    """The file of that name, or None."""
    path = shipped_folder(folder) / name
    if path.is_file():
        return path
    return None


def own_or_shipped(name: str, folder: str, lacking: str) -> Path:
    """The YAML file itself, or a shipped one of that name.

    Raises:
      ConfigError: neither; `lacking` begins the message.
    """
    if os.path.isfile(name):  # unlike Path.is_file, it does not fail for a name that is too long
        return Path(name)
    shipped_files = sorted(shipped_folder(folder).glob("*.yaml"))
    files_by_name = {file.name: file for file in shipped_files}
    file_name = Path(name).name
    if file_name not in files_by_name:
        raise ConfigError(f"{lacking} {name!r:.200}; {suggestion(file_name, files_by_name)}")
    return files_by_name[file_name]


def check_new_folder(path) -> None:
    """Rejects a path where something exists.

    Raises:
      ConfigError: there is a file of that name, a folder that is not empty, or one that cannot be replaced: the current
        directory, a mount point.
    """
    path = Path(path)
    problem = _problem_of_new_folder(path)
    if problem:
        raise ConfigError(f"--output_dir {str(path)!r} {problem}; give a new folder, or an empty one")


def _problem_of_new_folder(path: Path) -> str | None:
    """What is at a path; None for nothing, or an empty folder."""
    if path.is_dir():
        if any(path.iterdir()):
            return "is not empty"
        if path.samefile(Path.cwd()):
            return "is the current directory, which would be replaced"
        if os.path.ismount(path.resolve()):
            return "is a mount point, which cannot be replaced"
        return None
    if path.exists() or path.is_symlink():
        return "is a file"
    return None


@contextlib.contextmanager
def new_folder(path) -> Iterator[Path]:
    """A temporary folder next to `path`; it becomes `path` at the end of the block, or is deleted if the block fails.

    SIGTERM is such a failure; a folder that another killed process has left is named in a warning.

    Of a link to an empty folder it becomes that folder: a link cannot be replaced by a folder.

    Raises:
      ConfigError: see `check_new_folder`.
    """
    check_new_folder(path)
    path = Path(path).resolve()
    _warn_of_leftovers(path)
    # Not the process id: in a container it is always 1, and a killed process leaves its folder.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir(parents=True)
    try:
        with _exit_on_sigterm():
            yield temporary
            put_folder_in_place(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _warn_of_leftovers(path: Path) -> None:
    """Names the temporary folders of killed processes, which may be as large as a model."""
    for folder in sorted(path.parent.glob(f".{glob.escape(path.name)}.????????.tmp")):
        logger.warning("%s: another process writes it, or was killed; if none does, delete it", folder)


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """SIGTERM raises SystemExit in the block, so that temporary files are deleted; its default is to end the process.

    A handler of the program itself stays; outside the main thread there can be none.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def put_folder_in_place(temporary: Path, path: Path) -> None:
    """Renames a folder once all of it is on disk (fsync); its files get the umask's permissions."""
    follow_umask(file for file in temporary.rglob("*") if file.is_file())
    sync_tree(temporary)
    os.replace(temporary, path)
    sync_folder(path.parent)


@contextlib.contextmanager
def without_new_folders(path) -> Iterator[None]:
    """Removes the folder `path` and its parents after the block, if the block has made them and they are empty."""
    new_folders = [folder for folder in (Path(path), *Path(path).parents) if not folder.exists()]
    try:
        yield
    finally:
        for folder in new_folders:
            with contextlib.suppress(OSError):  # the block has written files into it, or has not made it
                folder.rmdir()
