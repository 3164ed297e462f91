"""Checks of `t5suite doctor`: Python and its packages, processors and memory, and the numbers that they multiply.

>>> check_precision(Checkup())
[Finding(level='ok', name='precision', what='cpu: float32 and bfloat16 multiply rightly', mend='')]
"""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path

from t5suite.commands.doctor_findings import FAIL, GIB, OK, WARN, Checkup, Finding, size

OLDEST_PYTHON = (3, 11)
LITTLE_MEMORY = 4 * GIB
# What each group of optional packages is for; `dev` is for those who work on the suite itself.
EXTRAS = {
    "deepspeed": "ZeRO and the deepspeed launcher",
    "sweeps": "t5suite sweep",
    "tracking": "wandb and tensorboard",
    "peft": "LoRA and its like",
    "onnx": "export to ONNX",
    "sentences": "splitting text into sentences",
    "energy": "GPUs' energy, in results",
}
# Where Linux says how much memory and processor a container may take, by control groups of version 2 and 1.
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# Rows and columns of the matrices that are multiplied; values are whole numbers, so that the product is exact.
MULTIPLIED = 64


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
    [Finding(level='warn', name='optuna', what='5.0.0, but >=99 is needed (t5suite sweep)', mend="pip install ...")]
    """
    from packaging.requirements import Requirement

    parsed = Requirement(requirement)
    extra = next((name for name in EXTRAS if parsed.marker and f'"{name}"' in str(parsed.marker)), None)
    if parsed.marker and extra is None:
        return []
    purpose, level = (f" ({EXTRAS[extra]})", WARN) if extra else ("", FAIL)
    mend = f"python -m pip install 't5suite[{extra}]'" if extra else f"python -m pip install '{requirement}'"
    try:
        version = importlib.metadata.version(parsed.name)
    except importlib.metadata.PackageNotFoundError:
        return [Finding(level, parsed.name, f"is not installed{purpose}", mend)]
    if not parsed.specifier.contains(version, prereleases=True):
        return [Finding(level, parsed.name, f"{version}, but {parsed.specifier} is needed{purpose}", mend)]
    return [Finding(OK, parsed.name, version + purpose)]


def check_cpu(checkup: Checkup) -> list[Finding]:
    """Cores that this process may use, threads that it will start, and memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = checkup.environ.get("OMP_NUM_THREADS", "")
    what = f"{cores} cores, OMP_NUM_THREADS={threads}" if threads else f"{cores} cores"
    if threads.isdigit() and int(threads) > cores:
        findings = [Finding(WARN, "cpu", what, f"threads wait for one another: export OMP_NUM_THREADS={cores}")]
    elif threads and not threads.replace(",", "").isdigit():
        findings = [Finding(WARN, "cpu", what, "OMP_NUM_THREADS must be a whole number")]
    else:
        findings = [Finding(OK, "cpu", what)]
    memory = memory_bytes()
    little = memory < LITTLE_MEMORY
    mend = "a small model and --dataloader_num_workers 0; ask the scheduler or container for more" if little else ""
    return [*findings, Finding(WARN if little else OK, "memory", f"{size(memory)} for this process", mend)]


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

    driver = checkup.output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    driver = driver.splitlines()[0] if driver else None
    if not torch.accelerator.is_available():
        return [_no_devices(checkup, driver, torch.__version__)]
    findings = []
    kind = torch.accelerator.current_accelerator().type
    for index in range(torch.accelerator.device_count()):
        what = f"{kind}:{index}"
        if kind == "cuda":
            free, total = torch.cuda.mem_get_info(index)
            what += f" {torch.cuda.get_device_name(index)}, {size(free)} of {size(total)} free"
            what += f", driver {driver or 'unknown'}, CUDA {torch.version.cuda}"
            if free < total / 10:
                findings.append(Finding(WARN, "gpu", what, "another process fills it: nvidia-smi shows which"))
                continue
        findings.append(Finding(OK, "gpu", what))
    return findings


def _no_devices(checkup: Checkup, driver: str | None, version: str) -> Finding:
    hidden = checkup.environ.get("CUDA_VISIBLE_DEVICES")
    if driver is None and not Path("/dev/nvidiactl").exists():
        return Finding(OK, "gpu", "none: runs use the processor")
    if hidden is not None:
        what = f"hidden by CUDA_VISIBLE_DEVICES={hidden!r}"
        return Finding(WARN, "gpu", what, "unset CUDA_VISIBLE_DEVICES, or name GPUs that are there")
    what = f"the driver ({driver or 'unknown'}) has GPUs, but torch {version} sees none"
    return Finding(FAIL, "gpu", what, "install the torch that fits the driver: https://pytorch.org/get-started/locally")


def check_precision(checkup: Checkup) -> list[Finding]:
    """Matrices of each kind of number are multiplied on the device, and the products looked at."""
    import torch

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    right = [name for name, dtype in kinds.items() if multiplies(device, dtype)]
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0):
        right.append("tf32")
    what = f"{device.type}: {', '.join(right)} multiply rightly"
    wanted = {"bf16": "bfloat16", "fp16": "float16", "tf32": "tf32"}
    for flag, name in wanted.items():
        if checkup.settings.get(flag) is True and name not in right:
            return [Finding(FAIL, "precision", f"{what}, but {checkup.config} asks for {flag}", f"{flag}: false")]
    if "float32" not in right:
        return [Finding(FAIL, "precision", what, "the installation of torch is broken: install it again")]
    if "bfloat16" not in right:
        return [Finding(WARN, "precision", what, "train in float32; T5 overflows float16")]
    if checkup.settings.get("fp16") is True:
        return [Finding(WARN, "precision", f"{checkup.config} asks for fp16, which T5 overflows", "bf16: true")]
    return [Finding(OK, "precision", what)]


def multiplies(device, dtype) -> bool:
    """Whether the product of two matrices of whole numbers is what it must be."""
    import torch

    numbers = torch.arange(MULTIPLIED * MULTIPLIED).reshape(MULTIPLIED, MULTIPLIED) % 3
    expected = numbers @ numbers.T
    try:
        product = (numbers.to(device, dtype) @ numbers.T.to(device, dtype)).to("cpu", torch.int64)
    except RuntimeError:  # this device has no such product
        return False
    return torch.equal(product, expected)
