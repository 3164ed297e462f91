"""One process owns a run directory; two that write checkpoints into it would damage both.

    >>> with RunLock("runs/rte").acquire(run_id="3fa94c10"):
    ...     train()
    >>> RunLock("runs/rte").acquire()      # meanwhile, in another process
    ConfigError: --output_dir runs/rte is in use by run 3fa94c10 (node7, process 4242, since ...) ...

The lock is the kernel's (`fcntl.lockf` on `<directory>/.lock`): it ends with its owner, however that process dies, is
not shared with forked workers, and works over NFS. The file says who the owner is. It is not deleted, because deleting
a file that others may be about to lock is a race. The file of a rejected run is deleted with its directory, so an owner
checks whether the file that it has locked still exists.

A trap of such locks: when the owner closes *any* descriptor of the file, the lock is gone. So nothing else in the
process may open `.lock`.
"""

import contextlib
import datetime
import errno
import fcntl
import json
import logging
import os
import socket
import time
from pathlib import Path

from t5suite.base.errors import ConfigError

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
# Errors of file systems without locks (some Lustre and NFS mounts).
WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
HELD = (errno.EACCES, errno.EAGAIN)
# When a node dies, an NFS server keeps its locks for some time (90 s by default); Slurm restarts the job sooner.
REQUEUE_SECONDS = 150.0
# A record is one block of a file system at most, so that it is written and read as a whole.
RECORD_BYTES = 1024

# The directories that this process owns, by device and inode: the kernel would let a process lock a file twice.
_owned: dict[tuple[int, int], int] = {}


class RunLock:
    """The owner's lock of a run directory. Only rank 0 takes it.

    Args:
      directory: created if missing.
    """

    def __init__(self, directory):
        self.directory = Path(directory)
        self.path = self.directory / LOCK_FILE
        self.record: dict | None = None
        self._descriptor: int | None = None
        self._key: tuple[int, int] | None = None

    def acquire(self, run_id: str | None = None) -> "RunLock":
        """Takes the lock, even that of a dead owner.

        Raises:
          ConfigError: a living process owns the directory, this one included.
          OSError: the file cannot be created or written.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        key = _identity(self.directory)
        if _owned.get(key) == os.getpid():
            raise ConfigError(f"--output_dir {self.directory} is in use by this process already; close that run first")
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            former = self._take()
            if not self._is_in_directory():
                self._close()
                return self.acquire(run_id)
            if former:
                logger.info("%s: the former owner, %s, has ended", self.directory, describe_owner(former))
            self.record = owner_record(run_id)
            self._write(self.record)
        except BaseException:
            self._close()
            raise
        self._key = key
        _owned[key] = os.getpid()
        return self

    @property
    def held(self) -> bool:
        """Whether this object has the lock."""
        return self._key is not None

    def release(self) -> None:
        """Releases the lock; does nothing the second time, or in a forked child."""
        if self._key is None or _owned.get(self._key) != os.getpid():
            return
        del _owned[self._key]
        self._key = None
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        self._close()

    def __enter__(self) -> "RunLock":
        return self

    def __exit__(self, *error) -> None:
        self.release()

    def _take(self) -> dict | None:
        """Locks the file and returns the record of an owner that has died."""
        deadline = time.monotonic() + REQUEUE_SECONDS
        while True:
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self._read()
            except OSError as error:
                if error.errno in WITHOUT_LOCKS:
                    return self._take_without_locks(error)
                if error.errno not in HELD:
                    raise
            owner = self._read_patiently()
            if not is_former_self(owner) or time.monotonic() > deadline:
                raise ConfigError(_in_use(self.directory, owner))
            logger.info("waiting for the lock that this job took before it was requeued: %s", describe_owner(owner))
            time.sleep(2.0)

    def _is_in_directory(self) -> bool:
        """Whether the locked file is still the directory's: a rejected run deletes its file with the directory."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self.path))
        except FileNotFoundError:
            return False

    def _take_without_locks(self, error: OSError) -> dict | None:
        """Relies on the record alone: it cannot stop two processes that start at the same moment."""
        logger.warning("%s: no file locks here (%s); its owner's record is trusted instead", self.path, error.strerror)
        owner = self._read()
        if owner and is_alive(owner):
            cure = "" if _is_on_this_machine(owner) else f". If that process has ended, delete {self.path}"
            raise ConfigError(_in_use(self.directory, owner) + cure)
        return owner

    def _read(self) -> dict | None:
        """The record; None if it is missing or cannot be read."""
        return _record_of(os.pread(self._descriptor, RECORD_BYTES, 0))

    def _read_patiently(self) -> dict | None:
        """Reads again for a while: an owner writes its record a moment after it takes the lock."""
        for _ in range(10):
            record = self._read()
            if record:
                return record
            time.sleep(0.05)
        return None

    def _write(self, record: dict) -> None:
        """Writes in one call and always the same number of bytes, so that no process reads half of it."""
        text = json.dumps(record).encode()
        try:
            os.pwrite(self._descriptor, text.ljust(RECORD_BYTES - 1) + b"\n", 0)
            os.ftruncate(self._descriptor, max(RECORD_BYTES, len(text) + 1))
            os.fsync(self._descriptor)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from None

    def _close(self) -> None:
        descriptor = self._descriptor
        self._descriptor = None
        if descriptor is not None:
            os.close(descriptor)


def owner_record(run_id: str | None) -> dict:
    """What identifies this process.

    >>> owner_record("3fa94c10")
    {'run_id': '3fa94c10', 'host': 'node7', 'boot': '9f0c...', 'pid': 4242, 'process_started': 81233, 'since': ...}
    """
    record = {
        "run_id": run_id,
        "host": socket.gethostname(),
        "boot": _boot_id(),
        "pid": os.getpid(),
        "process_started": process_start(os.getpid()),
        "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    return record | slurm_record()


def slurm_record() -> dict:
    """What identifies this Slurm job and its start, for `is_former_self`; {} outside of one."""
    if "SLURM_JOB_ID" not in os.environ:
        return {}
    return {"slurm_job": os.environ["SLURM_JOB_ID"], "slurm_restarts": _slurm_restarts()}


def _record_of(content: bytes) -> dict | None:
    """The record in a lock's file; None if it is missing or cannot be read."""
    try:
        record = json.loads(content)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("pid"), int) else None


def describe_owner(record: dict | None) -> str:
    """An owner, for messages.

    >>> describe_owner(record)
    'run 3fa94c10 (node7, process 4242, since 2026-01-31T09:00:00+00:00, Slurm job 99)'
    """
    if record is None:
        return "an unknown process"
    job = f", Slurm job {record['slurm_job']}" if record.get("slurm_job") else ""
    process = f"{record.get('host')}, process {record['pid']}, since {record.get('since')}{job}"
    return f"run {record['run_id']} ({process})" if record.get("run_id") else f"a run ({process})"


def is_alive(record: dict) -> bool:
    """Whether an owner lives, by its record; one on another host is assumed to, unless Slurm has requeued its job."""
    if is_former_self(record):
        return False
    return not _is_on_this_machine(record) or process_start(record["pid"]) == record.get("process_started")


def living_owner(directory) -> dict | None:
    """The record of the other process that owns a directory; None if there is none.

    >>> living_owner("runs/rte")["run_id"]
    '3fa94c10'
    """
    directory = Path(directory)
    if not (directory / LOCK_FILE).is_file() or _owned.get(_identity(directory)) == os.getpid():
        return None  # this process may not open its own lock's file
    record = _record_of((directory / LOCK_FILE).read_bytes())
    return record if record is not None and is_alive(record) else None


def is_former_self(record: dict | None) -> bool:
    """Whether a record is of this Slurm job before it was requeued, which Slurm does once its processes have ended."""
    job = os.environ.get("SLURM_JOB_ID")
    if record is None or job is None or record.get("slurm_job") != job:
        return False
    restarts = record.get("slurm_restarts")
    return isinstance(restarts, int) and restarts < _slurm_restarts()


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is no such process.

    It distinguishes a dead process from a later one with the same process id.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(status.rpartition(")")[2].split()[19])  # field 22 of proc(5); the name before it may hold spaces


def _in_use(directory, owner: dict | None) -> str:
    return (
        f"--output_dir {directory} is in use by {describe_owner(owner)}: two runs in one directory would spoil each "
        "other's checkpoints. Wait for it, stop it, or give another --output_dir"
    )


def _is_on_this_machine(record: dict) -> bool:
    return (record.get("host"), record.get("boot")) == (socket.gethostname(), _boot_id())


def _boot_id() -> str | None:
    """Differs between machines of one name, and after a restart."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None


def _slurm_restarts() -> int:
    count = os.environ.get("SLURM_RESTART_COUNT", "0")
    return int(count) if count.isdigit() else 0


def _identity(directory: Path) -> tuple[int, int]:
    status = directory.stat()
    return status.st_dev, status.st_ino
