"""Checks of `t5suite doctor`: Python, packages, processors, disks, caches and the hub.

>>> check_hub(Checkup(environ={"HF_HUB_OFFLINE": "1"}))
[Finding(level='ok', name='hub', what='HF_HUB_OFFLINE is set: local models and data alone', fix='')]
"""

import errno
import fcntl
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from t5suite.base.hub import why_unreachable

OK, WARN, FAIL = "ok", "warn", "fail"
GIB = 2**30
OLDEST_PYTHON = (3, 11)
LITTLE_MEMORY = 4 * GIB
# A checkpoint of t5-base with its optimizer is 3 GiB; two stand side by side while one replaces the other.
LITTLE_DISK, TOO_LITTLE_DISK = 10 * GIB, GIB // 4
# What workers of the data loader pass batches through: docker gives 64 MiB unless asked.
LITTLE_SHARED_MEMORY = GIB // 2
# Where Linux says how much memory a container may take, by control groups of version 2 and 1.
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# What each group of optional packages is for; `dev` is for those who work on the suite itself.
EXTRAS = {
    "deepspeed": "ZeRO and the deepspeed launcher",
    "sweeps": "t5suite sweep",
    "tracking": "wandb and tensorboard",
    "peft": "LoRA and its like",
    "onnx": "export to ONNX",
    "sentences": "splitting text into sentences",
}


class Finding(NamedTuple):
    """One line: how bad it is (ok, warn, fail), what was checked, what was found, and the fix."""

    level: str
    name: str
    what: str
    fix: str = ""


@dataclass(frozen=True)
class Checkup:
    """What is checked: the environment's variables, and where runs are to be written.

    Attributes:
      accelerate_config: the file for `accelerate launch --config_file`; None: accelerate's default one.
      build: compile DeepSpeed's operations.
      timeout: seconds that a server has to answer.
    """

    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    output_dir: str = "runs"
    accelerate_config: str | None = None
    build: bool = False
    timeout: float = 3.0

    def which(self, program: str) -> str | None:
        """Where PATH has the program."""
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    def is_set(self, variable: str) -> bool:
        """Whether a variable is set to what libraries take for yes."""
        return self.environ.get(variable, "").lower() in ("1", "true", "yes", "on")

    def output(self, *command: str, seconds: float = 10) -> str | None:
        """What a program prints; None where it fails, is not there, or takes too long."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=dict(self.environ))
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None


def writable_folder(path) -> tuple[Path, bool]:
    """The folder itself, or the nearest one above it that is there already; and whether it can be written."""
    folder = Path(path).expanduser().absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder, os.access(folder, os.W_OK)


def size(num_bytes: float) -> str:
    """`3.0 GiB`, `4.8 MiB`."""
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.1f} MiB"


def check_python(checkup: Checkup) -> list[Finding]:
    """Python is not older than the suite needs."""
    what = f"{platform.python_version()} ({sys.executable})"
    if sys.version_info[:2] < OLDEST_PYTHON:
        return [Finding(FAIL, "python", what, f"make an environment with Python {'.'.join(map(str, OLDEST_PYTHON))}")]
    return [Finding(OK, "python", what)]


def check_packages(checkup: Checkup) -> list[Finding]:
    """Every package that the suite requires, and the optional ones by what they are for."""
    try:
        requirements = importlib.metadata.requires("t5suite") or []
    except importlib.metadata.PackageNotFoundError:
        return [Finding(FAIL, "t5suite", "is not installed in this Python", "python -m pip install -e .")]
    found = [Finding(OK, "t5suite", importlib.metadata.version("t5suite"))]
    return found + [line for text in requirements for line in package_findings(text)]


def package_findings(requirement: str) -> list[Finding]:
    """What there is of one requirement, as the package's metadata states it.

    >>> package_findings('optuna>=99; extra == "sweeps"')
    [Finding(level='warn', name='optuna', what='5.0.0, but >=99 is needed (t5suite sweep)', fix="pip install ...")]
    """
    from packaging.requirements import Requirement

    parsed = Requirement(requirement)
    extra = next((name for name in EXTRAS if parsed.marker and f'"{name}"' in str(parsed.marker)), None)
    if parsed.marker and extra is None:
        return []
    purpose, level = (f" ({EXTRAS[extra]})", WARN) if extra else ("", FAIL)
    fix = f"python -m pip install 't5suite[{extra}]'" if extra else f"python -m pip install '{requirement}'"
    try:
        version = importlib.metadata.version(parsed.name)
    except importlib.metadata.PackageNotFoundError:
        return [Finding(level, parsed.name, f"is not installed{purpose}", fix)]
    if not parsed.specifier.contains(version, prereleases=True):
        return [Finding(level, parsed.name, f"{version}, but {parsed.specifier} is needed{purpose}", fix)]
    return [Finding(OK, parsed.name, version + purpose)]


def check_cpu(checkup: Checkup) -> list[Finding]:
    """Cores that this process may use, threads that it will start, and memory, at most a container's limit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads, fix = checkup.environ.get("OMP_NUM_THREADS", ""), ""
    if threads.isdigit() and int(threads) > cores:
        fix = f"threads wait for one another: export OMP_NUM_THREADS={cores}"
    elif threads and not threads.replace(",", "").isdigit():
        fix = "OMP_NUM_THREADS must be a whole number"
    what = f"{cores} cores, OMP_NUM_THREADS={threads}" if threads else f"{cores} cores"
    memory = memory_bytes()
    little = memory < LITTLE_MEMORY
    more = "a small model and --dataloader_num_workers 0; ask the scheduler or container for more" if little else ""
    memory = Finding(WARN if little else OK, "memory", f"{size(memory)} for this process", more)
    return [Finding(WARN if fix else OK, "cpu", what, fix), memory]


def memory_bytes(limits=MEMORY_LIMITS) -> int:
    """The machine's memory, or a container's limit below it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in map(Path, limits):
        text = path.read_text().strip() if path.is_file() else "max"
        memory = min(memory, int(text)) if text.isdigit() else memory
    return memory


def check_devices(checkup: Checkup) -> list[Finding]:
    """GPUs with their memory and the driver; a machine that has them while torch cannot see them fails."""
    import torch

    drivers = checkup.output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    driver, hidden = drivers.splitlines()[0] if drivers else "unknown", checkup.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.accelerator.is_available():
        if not drivers and not Path("/dev/nvidiactl").exists():
            return [Finding(OK, "gpu", "none: runs use the processor")]
        if hidden is not None:
            fix = "unset CUDA_VISIBLE_DEVICES, or name GPUs that are there"
            return [Finding(WARN, "gpu", f"hidden by CUDA_VISIBLE_DEVICES={hidden!r}", fix)]
        what = f"the driver ({driver}) has GPUs, but torch {torch.__version__} sees none"
        fix = "install the torch that fits the driver: https://pytorch.org/get-started/locally"
        return [Finding(FAIL, "gpu", what, fix)]
    findings, kind = [], torch.accelerator.current_accelerator().type
    for index in range(torch.accelerator.device_count()):
        what, fix = f"{kind}:{index}", ""
        if kind == "cuda":
            free, total = torch.cuda.mem_get_info(index)
            what += f" {torch.cuda.get_device_name(index)}, {size(free)} of {size(total)} free"
            what += f", driver {driver}, CUDA {torch.version.cuda}"
            fix = "another process fills it: nvidia-smi shows which" if free < total / 10 else ""
            if torch.cuda.get_device_capability(index) < (8, 0):
                fix = "no bfloat16: train in float32; T5 overflows float16"
        findings.append(Finding(WARN if fix else OK, "gpu", what, fix))
    return findings


def check_disk(checkup: Checkup) -> list[Finding]:
    """Space where runs are written."""
    return [space_finding("disk", checkup.output_dir, "give --output_dir on a larger disk, or --save_total_limit 1")]


def space_finding(name: str, path, fix: str) -> Finding:
    """Free bytes of a file system."""
    folder, _ = writable_folder(path)
    free = shutil.disk_usage(folder).free
    level = FAIL if free < TOO_LITTLE_DISK else WARN if free < LITTLE_DISK else OK
    return Finding(level, name, f"{size(free)} free at {folder}", fix if level != OK else "")


def check_output_files(checkup: Checkup) -> list[Finding]:
    """What checkpoints and locks need of the file system: fsync, rename over a file, flock between two openings."""
    folder, _ = writable_folder(checkup.output_dir)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".t5suite-doctor-") as place:
            lacks = file_system_lacks(Path(place))
    except OSError as error:
        fix = "give an --output_dir that can be written"
        return [Finding(FAIL, "files", f"{folder}: {error.strerror or error}", fix)]
    if lacks:
        fix = "give an --output_dir on another file system (local, NFSv4, Lustre -o flock)"
        return [Finding(FAIL, "files", f"{folder} lacks {', '.join(lacks)}", fix)]
    return [Finding(OK, "files", f"{folder}: fsync, rename and flock work")]


def file_system_lacks(place: Path) -> list[str]:
    """Which of fsync, rename and flock do not work in an empty folder."""

    def fsync() -> bool:
        (place / "data").write_bytes(b"x" * 4096)
        for path in (place / "data", place):
            opened = os.open(path, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)
        return True

    def rename() -> bool:
        (place / "old").write_bytes(b"old")
        (place / "new").write_bytes(b"new")
        os.replace(place / "new", place / "old")
        return (place / "old").read_bytes() == b"new" and not (place / "new").exists()

    def flock() -> bool:
        """The second opening must not get what the first one holds."""
        with (place / "lock").open("w") as first, (place / "lock").open("w") as second:
            fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    lacks = []
    for trial in (fsync, rename, flock):
        try:
            works = trial()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
                raise
            works = False
        lacks += [] if works else [trial.__name__]
    return lacks


def check_shared_memory(checkup: Checkup, folder: str = "/dev/shm") -> list[Finding]:
    """Room for the batches that the workers of the data loader pass on."""
    fix = "docker run --shm-size=8g (or --ipc=host), or --dataloader_num_workers 0"
    if not os.access(folder, os.W_OK):
        return [Finding(WARN, "shared memory", f"{folder} is not there, or cannot be written", fix)]
    usage = shutil.disk_usage(folder)
    little = usage.free < LITTLE_SHARED_MEMORY
    what = f"{size(usage.free)} of {size(usage.total)} free at {folder}"
    return [Finding(WARN if little else OK, "shared memory", what, fix if little else "")]


def check_hub_cache(checkup: Checkup) -> list[Finding]:
    """Where models and data of the hub are kept."""
    caches = checkup.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = checkup.environ.get("HF_HUB_CACHE") or checkup.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    if not writable_folder(home)[1]:
        fix = "export HF_HOME=DIR that can, on a disk that all nodes see"
        return [Finding(WARN, "hub cache", f"{home} cannot be written", fix)]
    return [space_finding("hub cache", home, "export HF_HOME=DIR on a larger disk")]


def check_hub(checkup: Checkup) -> list[Finding]:
    """Whether the hub answers; offline, how to work without it."""
    if checkup.is_set("HF_HUB_OFFLINE"):
        return [Finding(OK, "hub", "HF_HUB_OFFLINE is set: local models and data alone")]
    server = checkup.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    trouble = why_unreachable(server, checkup.timeout)
    if trouble is None:
        return [Finding(OK, "hub", f"{server} answers")]
    fix = "export HF_HUB_OFFLINE=1 (no 20 s of retries); t5suite mirror where there is a network, then --data_dir DIR"
    return [Finding(WARN, "hub", f"{server} does not answer ({trouble})", fix)]
