"""Checks of the machine: cores and threads, memory, GPUs."""

import os
import re
from pathlib import Path

from t5suite.commands.checks.checkup import FAIL, OK, WARN, CheckResult, Checkup
from t5suite.launch.trial_environments import usable_cores

GIB = 2**30
LITTLE_MEMORY = 4 * GIB
# Where Linux has a container's memory limit: control groups of version 2 and 1.
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def size_text(num_bytes: float) -> str:
    """`3.0 GiB`, `4.8 MiB`."""
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:.1f} MiB"


def check_cpu(checkup: Checkup) -> list[CheckResult]:
    """Cores that this process may use, threads that it will start, and memory, at most a container's limit."""
    return [_check_threads(checkup), _check_memory()]


def _check_threads(checkup: Checkup) -> CheckResult:
    cores = usable_cores()
    threads = checkup.environ.get("OMP_NUM_THREADS", "")
    if not threads:
        return CheckResult(OK, "cpu", f"{cores} cores")
    what = f"{cores} cores, OMP_NUM_THREADS={threads}"
    if threads.isdigit() and int(threads) > cores:
        return CheckResult(WARN, "cpu", what, f"threads wait for one another: export OMP_NUM_THREADS={cores}")
    if not threads.replace(",", "").isdigit():
        return CheckResult(WARN, "cpu", what, "OMP_NUM_THREADS must be a whole number")
    return CheckResult(OK, "cpu", what)


def _check_memory() -> CheckResult:
    memory = memory_bytes()
    what = f"{size_text(memory)} for this process"
    if memory >= LITTLE_MEMORY:
        return CheckResult(OK, "memory", what)
    fix = "a small model and --dataloader_num_workers 0; ask the scheduler or container for more"
    return CheckResult(WARN, "memory", what, fix)


def memory_bytes() -> int:
    """The machine's memory, or a container's limit below it."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in map(Path, MEMORY_LIMITS):
        limit = path.read_text().strip() if path.is_file() else "max"
        if limit.isdigit():
            memory = min(memory, int(limit))
    return memory


def check_devices(checkup: Checkup) -> list[CheckResult]:
    """GPUs with their memory and the driver; GPUs that torch cannot see are a failure."""
    import torch

    from t5suite.models.placement import APPLE_GPU_IS_IDLE

    if torch.backends.mps.is_available():
        return [CheckResult(OK, "gpu", APPLE_GPU_IS_IDLE)]
    drivers = checkup.output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    driver = drivers.splitlines()[0] if drivers else "unknown"
    if not torch.accelerator.is_available():
        has_gpus = bool(drivers) or Path("/dev/nvidiactl").exists()
        if not has_gpus:
            return [CheckResult(OK, "gpu", "none: runs use the CPU")]
        return [_check_hidden_devices(checkup, driver)]
    kind = torch.accelerator.current_accelerator().type
    return [_check_device(kind, index, driver) for index in range(torch.accelerator.device_count())]


def _check_hidden_devices(checkup: Checkup, driver: str) -> CheckResult:
    """Why torch sees none of the driver's GPUs."""
    import torch

    visible_devices = checkup.environ.get("CUDA_VISIBLE_DEVICES")
    if visible_devices is not None:
        fix = "unset CUDA_VISIBLE_DEVICES, or name GPUs that are there"
        return CheckResult(WARN, "gpu", f"hidden by CUDA_VISIBLE_DEVICES={visible_devices!r}", fix)
    what = f"the driver ({driver}) has GPUs, but torch {torch.__version__} sees none"
    fix = "install the torch that fits the driver: https://pytorch.org/get-started/locally"
    return CheckResult(FAIL, "gpu", what, fix)


def _check_device(kind: str, index: int, driver: str) -> CheckResult:
    """A device's memory, and whether torch runs on it and T5 can be trained on it in bfloat16."""
    import torch

    if kind != "cuda":
        return CheckResult(OK, "gpu", f"{kind}:{index}, for training; t5suite predict and serve use the CPU")
    free, total = torch.cuda.mem_get_info(index)
    what = (
        f"{kind}:{index} {torch.cuda.get_device_name(index)}, {size_text(free)} of {size_text(total)} free, "
        f"driver {driver}, CUDA {torch.version.cuda}"
    )
    capability = torch.cuda.get_device_capability(index)
    is_of_nvidia = torch.version.hip is None
    if is_of_nvidia and not has_kernels(capability, torch.cuda.get_arch_list()):
        fix = (
            f"torch {torch.__version__} has no kernels for sm_{capability[0]}{capability[1]}: install a build that has "
            "them, such as one for an older CUDA (https://pytorch.org/get-started/previous-versions), or give --use_cpu"
        )
        return CheckResult(FAIL, "gpu", what, fix)
    if capability < (8, 0):
        return CheckResult(WARN, "gpu", what, "no bfloat16: train in float32; T5 overflows float16")
    if free < total / 10:
        return CheckResult(WARN, "gpu", what, "another process fills it: nvidia-smi shows which")
    return CheckResult(OK, "gpu", what)


def has_kernels(capability: tuple[int, int], architectures: list[str]) -> bool:
    """Whether a build of torch runs on a GPU: with code for its generation (sm_), or for an older one, which the driver
    compiles (compute_).

    >>> has_kernels((8, 6), ["sm_80", "sm_90", "compute_90"]), has_kernels((7, 0), ["sm_80", "sm_90", "compute_90"])
    (True, False)

    Args:
      capability: the GPU's, major and minor.
      architectures: those that torch was built for; none are taken for unknown.
    """
    if not architectures:
        return True
    for architecture in architectures:
        parts = re.fullmatch(r"(sm|compute)_(\d+)(\d)[af]?", architecture)
        if parts is None:
            continue
        built_for = (int(parts[2]), int(parts[3]))
        is_of_generation = built_for[0] == capability[0]
        if built_for <= capability and (is_of_generation or parts[1] == "compute"):
            return True
    return False
