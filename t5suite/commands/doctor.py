"""`t5suite doctor`: what this machine and environment lack for the suite, and how to fix it.

    $ t5suite doctor
    ok    python             3.11.7 (/home/me/.venv/bin/python)
    warn  hub                https://huggingface.co does not answer (...) — export HF_HUB_OFFLINE=1 ...

Every line is `ok`, `warn` (something will not work, or not as asked) or `fail` (runs will fail); with a `fail` the
command exits 78. A new check is one entry of CHECKS: a function of a `Checkup` that returns a list of `Finding`s.
"""

import errno
import fcntl
import importlib.metadata
import importlib.util
import json
import netrc
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from t5suite.base.errors import ConfigError
from t5suite.base.hub import why_hub_unreachable, why_unreachable
from t5suite.base.libraries import states
from t5suite.base.provenance import PACKAGE, code_title
from t5suite.base.redaction import redacted
from t5suite.base.yaml_files import read_yaml
from t5suite.commands.shared import add_json_flag, print_json
from t5suite.training.sharding.deepspeed import compiled

OK, WARN, FAIL = "ok", "warn", "fail"
GIB = 2**30
LITTLE_MEMORY = 4 * GIB
# A checkpoint of t5-base with its optimizer is 3 GiB; two exist while one replaces the other.
LITTLE_DISK, TOO_LITTLE_DISK = 10 * GIB, GIB // 4
# Data loader workers pass batches through shared memory: docker gives 64 MiB by default.
LITTLE_SHARED_MEMORY = GIB // 2
# Where Linux has a container's memory limit: control groups of version 2 and 1.
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# What each group of optional packages is for; `dev` is for those who work on the suite itself.
EXTRAS = {
    "deepspeed": "ZeRO and the deepspeed launcher", "sweeps": "t5suite sweep", "tracking": "wandb and tensorboard",
    "peft": "LoRA and its like", "onnx": "export to ONNX",
    "ctranslate2": "export to CTranslate2", "sentences": "splitting text into sentences",
}  # fmt: skip
COLOURS = {OK: "32", WARN: "33", FAIL: "31"}
LAUNCHERS = {"accelerate": "accelerate", "torchrun": "torch", "deepspeed": "deepspeed"}
# What torchrun and similar launchers set for each process; `python script.py` then waits for ranks that never start.
RANK_VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "LOCAL_WORLD_SIZE")
PRECISIONS = ("no", "fp16", "bf16", "fp8")


class Finding(NamedTuple):
    """One line: its level (ok, warn, fail), what was checked, what was found, and the fix."""

    level: str
    name: str
    what: str
    fix: str = ""


@dataclass(frozen=True)
class Checkup:
    """What is checked: the environment's variables, and where runs will be written.

    Attributes:
      accelerate_config: the file for `accelerate launch --config_file`; None: accelerate's default one.
      timeout: seconds that a server has to answer.
    """

    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    output_dir: str = "runs"
    accelerate_config: str | None = None
    timeout: float = 3.0

    def which(self, program: str) -> str | None:
        """The program's path, looked up in PATH."""
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    def is_set(self, variable: str) -> bool:
        """Whether a variable is set to a value that libraries read as true."""
        return self.environ.get(variable, "").lower() in ("1", "true", "yes", "on")

    def output(self, *command: str, seconds: float = 10) -> str | None:
        """What a program prints; None if it fails, is missing or takes too long."""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=dict(self.environ))
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None


def doctor_flags(parser) -> None:
    """Flags of `t5suite doctor`."""
    add = parser.add_argument
    add("--accelerate_config", metavar="FILE", help="accelerate's file, if not its default one")
    add("--output_dir", default="runs", help="where runs are to be written (default: runs)")
    add_json_flag(parser)


def run_doctor(arguments) -> None:
    """Prints one line per finding.

    Raises:
      ConfigError: a finding is a `fail`.
    """
    checkup = Checkup(output_dir=arguments.output_dir, accelerate_config=arguments.accelerate_config)
    counts, failed = dict.fromkeys(COLOURS, 0), []
    for found in examine(checkup):
        finding = Finding(*map(redacted, found))
        counts[finding.level] += 1
        failed += [finding.name] if finding.level == FAIL else []
        if arguments.json:
            print_json(finding._asdict())
            continue
        level = f"{finding.level:<5}"
        if sys.stdout.isatty():
            level = f"\033[{COLOURS[finding.level]}m{level}\033[0m"
        print(f"{level} {finding.name:<18} {finding.what}{f' — {finding.fix}' if finding.fix else ''}", flush=True)
    if not arguments.json:
        print(", ".join(f"{count} {level}" for level, count in counts.items()))
    if failed:
        raise ConfigError(f"t5suite doctor: {len(failed)} checks fail: {', '.join(failed)}; each line has the fix")


def examine(checkup: Checkup):
    """The findings of every check, one after the other; a check that raises an error counts as failed."""
    for name, check in CHECKS.items():
        try:
            yield from check(checkup)
        except (ImportError, OSError, RuntimeError, ValueError, AttributeError) as error:
            what = f"could not be checked ({type(error).__name__}: {str(error).strip()[:300]})"
            fix = "reinstall the package" if isinstance(error, ImportError) else "see the error"
            yield Finding(FAIL, name, what, fix)


# ---------------------------------------------------------------------------------------------------------------------
# The machine


def writable_folder(path) -> tuple[Path, bool]:
    """The folder itself, or the nearest existing one above it; and whether it can be written."""
    folder = Path(path).expanduser().absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder, os.access(folder, os.W_OK)


def size(num_bytes: float) -> str:
    """`3.0 GiB`, `4.8 MiB`."""
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.1f} MiB"


def check_python(checkup: Checkup) -> list[Finding]:
    """Which Python this is; one too old for the suite could not run this."""
    return [Finding(OK, "python", f"{platform.python_version()} ({sys.executable})")]


def check_packages(checkup: Checkup) -> list[Finding]:
    """Every package that the suite requires, and the optional ones by what they are for."""
    try:
        requirements = importlib.metadata.requires("t5suite") or []
    except importlib.metadata.PackageNotFoundError:
        return [Finding(FAIL, "t5suite", "is not installed in this Python", "python -m pip install -e .")]
    findings = [Finding(OK, "t5suite", f"{code_title().removeprefix('t5suite ')} in {PACKAGE}")]
    return findings + [line for text in requirements for line in package_findings(text)]


def package_findings(requirement: str) -> list[Finding]:
    """The findings for one requirement, as the package's metadata states it.

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


def check_libraries(checkup: Checkup) -> list[Finding]:
    """Parts of libraries that our code leans on: whether the installed ones are those that were tested."""
    rows = states()
    changed = [row for row in rows if row["state"] in ("stock", "refused")]
    count = sum(row["state"] == "proved" for row in rows)
    findings = [Finding(OK, "libraries", f"{count} of {count + len(changed)} parts in use are as they were tested")]
    for row in changed:
        effect = "the plain way is used" if row["state"] == "stock" else "runs that use it are refused"
        fix = "pip install the versions in constraints.txt"
        findings.append(Finding(WARN, row["entry"], f"{row['reason']}: {effect}", fix))
    return findings


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
    """GPUs with their memory and the driver; GPUs that torch cannot see are a failure."""
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
    """What checkpoints and locks need of the file system: fsync, rename over a file, flock between two open files."""
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
        """The second open file must not get the lock that the first one holds."""
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
    """Space for the batches that data loader workers pass on."""
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
        fix = "export HF_HOME=DIR, a writable one on a disk that all nodes see"
        return [Finding(WARN, "hub cache", f"{home} cannot be written", fix)]
    return [space_finding("hub cache", home, "export HF_HOME=DIR on a larger disk")]


def check_hub(checkup: Checkup) -> list[Finding]:
    """Whether the hub answers; offline, how to work without it."""
    if checkup.is_set("HF_HUB_OFFLINE"):
        return [Finding(OK, "hub", "HF_HUB_OFFLINE is set: only local models and data")]
    server = checkup.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    trouble = why_hub_unreachable(server, checkup.timeout)
    if trouble is None:
        return [Finding(OK, "hub", f"{server} answers")]
    fix = "export HF_HUB_OFFLINE=1 (no 20 s of retries); t5suite mirror where there is a network, then --data_dir DIR"
    return [Finding(WARN, "hub", f"{server} does not answer ({trouble})", fix)]


# ---------------------------------------------------------------------------------------------------------------------
# Launchers and their settings


def check_launchers(checkup: Checkup) -> list[Finding]:
    """`accelerate`, `torchrun` and `deepspeed` on PATH belong to this Python."""
    own, findings = Path(sys.executable).parent, []
    for program, package in LAUNCHERS.items():
        path = checkup.which(program)
        if path is None and (package != "deepspeed" or _is_installed("deepspeed")):
            fix = f"export PATH={own}:$PATH" if (own / program).is_file() else f"python -m pip install {package}"
            findings.append(Finding(WARN, program, "is not on PATH", fix))
        elif path and Path(path).parent.resolve() != own.resolve():
            fix = f"export PATH={own}:$PATH, or call {own / program}"
            findings.append(Finding(WARN, program, f"{path} belongs to another Python than {sys.executable}", fix))
        elif path:
            findings.append(Finding(OK, program, path))
    return findings


def check_ranks(checkup: Checkup) -> list[Finding]:
    """Variables of a launcher that are set although none is running."""
    found = {name: checkup.environ[name] for name in RANK_VARIABLES if checkup.environ.get(name)}
    if not found:
        return [Finding(OK, "ranks", "no launcher's variables are set")]
    shown, fix = " ".join(f"{name}={value}" for name, value in found.items()), f"unset {' '.join(found)}"
    world_size = found.get("WORLD_SIZE", "1")
    if world_size == "1":
        return [Finding(WARN, "ranks", f"{shown}: left over from a launcher", fix)]
    others = f"{int(world_size) - 1} others" if world_size.isdigit() else "others"
    what = f"{shown} outside a launcher: a script started by python waits forever for {others}"
    return [Finding(FAIL, "ranks", what, fix)]


def check_accelerate_variables(checkup: Checkup) -> list[Finding]:
    """`ACCELERATE_*`, which silently become defaults of the flags."""
    findings = []
    for name, value in sorted(checkup.environ.items()):
        level, what = WARN, f"{value!r} becomes the default of a flag"
        if name == "ACCELERATE_MIXED_PRECISION" and value.lower() not in PRECISIONS:
            level, what = FAIL, f"{value!r} is not one of {', '.join(PRECISIONS)}"
        elif name == "ACCELERATE_MIXED_PRECISION" and value.lower() == "fp16":
            what = "fp16 becomes the default of --fp16, which T5 overflows"
        if name.startswith("ACCELERATE_"):
            findings.append(Finding(level, name, what, f"unset {name} to let the flags decide"))
    return findings or [Finding(OK, "ACCELERATE_*", "none is set")]


def check_accelerate_config(checkup: Checkup) -> list[Finding]:
    """The file that `accelerate launch` reads: its number of processes, precision and DeepSpeed file."""
    caches = checkup.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = Path(checkup.environ.get("HF_HOME", os.path.join(caches, "huggingface"))).expanduser()
    path = Path(checkup.accelerate_config or home / "accelerate" / "default_config.yaml")
    name, rewrite = "accelerate config", f"accelerate config --config_file {path}"
    if not path.is_file():
        if checkup.accelerate_config:
            return [Finding(FAIL, name, f"there is no {path}", f"{rewrite} writes one")]
        return [Finding(OK, name, f"none ({path}): accelerate launch uses every GPU it finds")]
    try:
        content = json.loads(path.read_text()) if path.suffix == ".json" else read_yaml(path).content
    except (ConfigError, ValueError) as error:
        return [Finding(FAIL, name, f"cannot be read: {error}", rewrite)]
    if not isinstance(content, dict):
        return [Finding(FAIL, name, f"{path} is not a table of settings", rewrite)]
    kind, processes = str(content.get("distributed_type", "NO")).upper(), content.get("num_processes", 1)
    if not isinstance(processes, int) or processes < 1:
        return [Finding(FAIL, name, f"{path}: num_processes is {processes!r}", "num_processes: 1 or more")]
    devices, here = _device_count(), processes // max(1, int(content.get("num_machines") or 1))
    mpirun = content.get("mpirun_config") or content.get("mpirun_hostfile")
    settings = content.get("deepspeed_config")
    file = settings.get("deepspeed_config_file") if isinstance(settings, dict) else None
    one = f"runs one process, not {processes}, without a warning"
    problems = (
        (
            kind == "MULTI_CPU" and processes > 1 and not mpirun,
            WARN,
            f"MULTI_CPU {one}",
            f"torchrun --nproc_per_node {processes} SCRIPT --use_cpu",
        ),
        (kind == "NO" and processes > 1, WARN, f"distributed_type NO {one}", "distributed_type: MULTI_GPU"),
        (
            kind == "MULTI_GPU" and here > devices,
            FAIL,
            f"{here} processes on this machine, which has {devices} GPUs",
            f"num_processes: {max(1, devices)}",
        ),
        (
            str(content.get("mixed_precision")) == "fp16",
            WARN,
            "mixed_precision fp16, which T5 overflows",
            "mixed_precision: bf16",
        ),
        (
            kind == "DEEPSPEED" and not _is_installed("deepspeed"),
            FAIL,
            "asks for DeepSpeed, which is not installed",
            "pip install 't5suite[deepspeed]'",
        ),
        (file and not Path(file).is_file(), FAIL, f"deepspeed_config_file {file} is not there", "give its full path"),
    )
    shown = f"{kind}, {processes} processes, precision {content.get('mixed_precision', 'no')} ({path})"
    found = [Finding(level, name, f"{path}: {what}", fix) for is_so, level, what, fix in problems if is_so]
    return found or [Finding(OK, name, shown)]


def _device_count() -> int:
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def check_deepspeed(checkup: Checkup) -> list[Finding]:
    """The tools that DeepSpeed compiles its operations with, and which operations are compiled already."""
    name = "deepspeed ops"
    if not _is_installed("deepspeed"):
        return [Finding(OK, name, "DeepSpeed is not installed")]
    own, compiler = Path(sys.executable).parent, checkup.environ.get("CXX", "g++")
    for program, fix in ((compiler, "apt install g++"), ("ninja", "python -m pip install ninja")):
        if checkup.which(program) is None and not (program == "ninja" and (own / "ninja").is_file()):
            return [Finding(WARN, name, f"{program} is not on PATH: ZeRO on a CPU fails", fix)]
    for lock in compiled(checkup.environ, "lock"):
        return [Finding(WARN, name, f"{lock}: every run waits until it is gone", f"if no run compiles now: rm {lock}")]
    if built := sorted({path.stem for path in compiled(checkup.environ, "*.so")}):
        return [Finding(OK, name, f"compiled: {', '.join(built)}")]
    return [Finding(WARN, name, "none is compiled yet; the first run does it", "start it a few minutes early")]


def check_wandb(checkup: Checkup) -> list[Finding]:
    """Whether runs can be logged to W&B, or are kept for later."""
    if not _is_installed("wandb"):
        return [Finding(OK, "wandb", "is not installed")]
    mode = checkup.environ.get("WANDB_MODE", "").lower()
    if mode in ("offline", "disabled", "dryrun") or checkup.is_set("WANDB_DISABLED"):
        what = f"WANDB_MODE={mode or 'disabled'}: no server is needed (wandb sync sends it later)"
        return [Finding(OK, "wandb", what)]
    server = checkup.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
    trouble = why_unreachable(server, checkup.timeout)
    if trouble is not None:
        fix = "export WANDB_MODE=offline; wandb sync later; t5suite sweep needs no server"
        return [Finding(WARN, "wandb", f"{server} does not answer ({trouble})", fix)]
    logins = Path(checkup.environ.get("NETRC") or Path(checkup.environ.get("HOME", "~"), ".netrc")).expanduser()
    try:
        has_login = netrc.netrc(logins).authenticators(urlsplit(server).hostname or "")
    except (OSError, netrc.NetrcParseError):
        has_login = None
    if not checkup.environ.get("WANDB_API_KEY") and not has_login:
        what = f"{server} answers, but there is no login"
        return [Finding(WARN, "wandb", what, "wandb login, or WANDB_MODE=offline")]
    return [Finding(OK, "wandb", f"{server} answers")]


CHECKS = {
    "python": check_python, "packages": check_packages, "libraries": check_libraries,
    "cpu": check_cpu, "gpu": check_devices,
    "launchers": check_launchers, "ranks": check_ranks, "ACCELERATE_*": check_accelerate_variables,
    "accelerate config": check_accelerate_config, "deepspeed ops": check_deepspeed,
    "disk": check_disk, "files": check_output_files, "shared memory": check_shared_memory,
    "hub cache": check_hub_cache, "hub": check_hub, "wandb": check_wandb,
}  # fmt: skip
