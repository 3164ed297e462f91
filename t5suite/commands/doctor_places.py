"""Checks of `t5suite doctor`: where runs are written, shared memory and the hub.

>>> check_output_files(Checkup(output_dir="runs"))
[Finding(level='ok', name='files', what='/home/me/runs: fsync, rename and flock work', mend='')]
"""

import errno
import fcntl
import os
import shutil
import tempfile
import threading
from pathlib import Path

from t5suite.commands.doctor_findings import FAIL, GIB, OK, WARN, Checkup, Finding, nearest_folder, size
from t5suite.training.compile_cache import compile_cache_folder, folder_bytes

# A checkpoint of t5-base with its optimizer is 3 GiB; two stand side by side while one replaces the other.
LITTLE_DISK, TOO_LITTLE_DISK = 10 * GIB, GIB // 4
FEW_INODES = 1000
# What workers of the data loader pass batches through: docker gives 64 MiB unless asked.
LITTLE_SHARED_MEMORY = GIB // 2
SHARED_MEMORY = "/dev/shm"
HUB = "https://huggingface.co"


def check_disk(checkup: Checkup) -> list[Finding]:
    """Space where runs are written."""
    folder = nearest_folder(checkup.output_dir)
    return [space_finding("disk", folder, "give --output_dir on a larger disk, or --save_total_limit 1")]


def space_finding(name: str, folder: Path, mend: str) -> Finding:
    """Free bytes and inodes of a file system."""
    free, found = shutil.disk_usage(folder).free, os.statvfs(folder)
    what = f"{size(free)} free at {folder}"
    if found.f_files and found.f_favail < FEW_INODES:
        return Finding(FAIL, name, f"{what}, but only {found.f_favail} more files may be made", mend)
    level = FAIL if free < TOO_LITTLE_DISK else WARN if free < LITTLE_DISK else OK
    return Finding(level, name, what, mend if level != OK else "")


def check_output_files(checkup: Checkup) -> list[Finding]:
    """What checkpoints and locks need of the file system: fsync, rename over a file, flock between two openings."""
    folder = nearest_folder(checkup.output_dir)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".t5suite-doctor-") as place:
            lacks = file_system_lacks(Path(place))
    except OSError as error:
        return [
            Finding(FAIL, "files", f"{folder}: {error.strerror or error}", "give an --output_dir that can be written")
        ]
    if lacks:
        what = f"{folder} lacks {', '.join(lacks)}"
        return [
            Finding(FAIL, "files", what, "give an --output_dir on another file system (local, NFSv4, Lustre -o flock)")
        ]
    return [Finding(OK, "files", f"{folder}: fsync, rename and flock work")]


def file_system_lacks(place: Path) -> list[str]:
    """Which of fsync, rename and flock do not work in an empty folder."""
    trials = {"fsync": _try_fsync, "rename": _try_rename, "flock": _try_flock}
    lacks = []
    for name, trial in trials.items():
        try:
            works = trial(place)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
                raise
            works = False
        if not works:
            lacks.append(name)
    return lacks


def _try_fsync(place: Path) -> bool:
    for path, flags in ((place / "data", os.O_CREAT | os.O_WRONLY), (place, os.O_RDONLY)):
        opened = os.open(path, flags)
        try:
            if path != place:
                os.write(opened, b"x" * 4096)
            os.fsync(opened)
        finally:
            os.close(opened)
    return True


def _try_rename(place: Path) -> bool:
    (place / "old").write_bytes(b"old")
    (place / "new").write_bytes(b"new")
    os.replace(place / "new", place / "old")
    return (place / "old").read_bytes() == b"new" and not (place / "new").exists()


def _try_flock(place: Path) -> bool:
    """The second opening must not get what the first one holds."""
    with (place / "lock").open("w") as first, (place / "lock").open("w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def check_shared_memory(checkup: Checkup, folder: str = SHARED_MEMORY) -> list[Finding]:
    """Room for what the workers of the data loader hand over."""
    mend = "docker run --shm-size=8g (or --ipc=host), or --dataloader_num_workers 0"
    if not Path(folder).is_dir():
        return [Finding(WARN, "shared memory", f"there is no {folder}", mend)]
    usage = shutil.disk_usage(folder)
    what = f"{size(usage.free)} of {size(usage.total)} free at {folder}"
    if not os.access(folder, os.W_OK):
        return [Finding(WARN, "shared memory", f"{folder} cannot be written", mend)]
    little = usage.free < LITTLE_SHARED_MEMORY
    return [Finding(WARN if little else OK, "shared memory", what, mend if little else "")]


def check_hub_cache(checkup: Checkup) -> list[Finding]:
    """Where models and data of the hub are kept."""
    caches = checkup.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = checkup.environ.get("HF_HUB_CACHE") or checkup.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    folder = nearest_folder(home)
    if not os.access(folder, os.W_OK):
        what = f"{home} cannot be written"
        return [Finding(WARN, "hub cache", what, "export HF_HOME=DIR that can, on a disk that all nodes see")]
    return [space_finding("hub cache", folder, "export HF_HOME=DIR on a larger disk")]


def check_compile_cache(checkup: Checkup) -> list[Finding]:
    """Where `--torch_compile` keeps its code, and how much of it there is."""
    folder, name = compile_cache_folder(checkup.environ), "compile cache"
    if not os.access(nearest_folder(folder), os.W_OK):
        mend = "--compile_cache DIR on a disk that all nodes see, or export TORCHINDUCTOR_CACHE_DIR=DIR"
        return [Finding(WARN, name, f"{folder} cannot be written: every --torch_compile run compiles anew", mend)]
    kept = f"{size(folder_bytes(folder))} kept" if folder.is_dir() else "nothing kept yet"
    return [Finding(OK, name, f"{folder}: {kept}")]


def check_hub(checkup: Checkup) -> list[Finding]:
    """Whether the hub answers; offline, how to work without it."""
    if checkup.says("HF_HUB_OFFLINE"):
        return [Finding(OK, "hub", "HF_HUB_OFFLINE is set: local models and data alone")]
    server = checkup.environ.get("HF_ENDPOINT") or HUB
    trouble = reach(server, checkup.timeout)
    if trouble is None:
        return [Finding(OK, "hub", f"{server} answers")]
    mend = "export HF_HUB_OFFLINE=1 (no 20 s of retries); t5suite mirror where there is a network, then --data_dir DIR"
    return [Finding(WARN, "hub", f"{server} does not answer ({trouble})", mend)]


def reach(server: str, seconds: float) -> str | None:
    """Why a server cannot be reached within so many seconds; None where it answers, whatever it says.

    In a thread of its own: looking a name up has no time limit, and must not hold anybody up.
    """
    import urllib.error
    import urllib.request

    said: list[str | None] = []

    def ask():
        try:
            urllib.request.urlopen(urllib.request.Request(server, method="HEAD"), timeout=seconds).close()
            said.append(None)
        except urllib.error.HTTPError:
            said.append(None)
        except urllib.error.URLError as error:
            said.append(str(error.reason))
        except (OSError, ValueError) as error:
            said.append(str(error) or type(error).__name__)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return said[0] if said else f"nothing within {seconds:g} s"
