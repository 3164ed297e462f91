"""What a trial's process finds: GPUs, cores, programs and environment variables.

>>> devices_of_workers(2, ["0", "1", "2", "3"])
[['0', '1'], ['2', '3']]
"""

import os
import re
import sys
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.programs import EXIT_CODES_VARIABLE

# A W&B sweep that started this one must not count these trials as its own runs.
VARIABLES_OF_A_SERVER = ("WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH")


def visible_devices() -> list[str]:
    """The GPUs that may be used: CUDA_VISIBLE_DEVICES, else as many as there are `/dev/nvidia0`, ...

    CUDA counts them from 0, whatever the number of a container's only `/dev/nvidia3`.
    """
    variable = os.environ.get("CUDA_VISIBLE_DEVICES")
    if variable is not None:
        names = [name.strip() for name in variable.split(",")]
        return [name for name in names if name not in ("", "-1")]
    device_files = [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)]
    return [str(i) for i in range(len(device_files))]


def usable_cores() -> int:
    """The processor cores that this process may use; on macOS, which has no `sched_getaffinity`, all."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def devices_of_workers(workers: int, devices: list[str], gpus_per_trial: int | None = None) -> list[list[str] | None]:
    """The devices of each worker's trials; None: all that are visible, because nothing needs dividing.

    Without `gpus_per_trial` they are divided evenly; if there are more workers than devices, workers share devices.

    Raises:
      ConfigError: fewer devices than the workers need.
    """
    if gpus_per_trial is not None and workers * gpus_per_trial > len(devices):
        raise ConfigError(
            f"--workers {workers} --gpus_per_trial {gpus_per_trial}: {workers * gpus_per_trial} GPUs are needed, and "
            f"{len(devices)} are visible; take fewer workers"
        )
    if not devices or (workers == 1 and gpus_per_trial is None):
        return [None] * workers
    if gpus_per_trial is not None:
        return _consecutive(devices, gpus_per_trial, workers)
    if len(devices) < workers:
        return [[devices[i % len(devices)]] for i in range(workers)]
    return _consecutive(devices, len(devices) // workers, workers)


def _consecutive(devices: list[str], count: int, workers: int) -> list[list[str]]:
    """`count` devices for each worker, one worker after the other."""
    return [devices[i * count : (i + 1) * count] for i in range(workers)]


def trial_environment(
    run_dir, exit_codes, run_id: str, group: str, workers: int, devices: list[str] | None
) -> dict[str, str]:
    """The environment variables of a trial's process.

    The programs installed with this Python (`python`, `accelerate`) come first in PATH, so that a sweep runs in the
    suite's environment even if it is not activated. Threads are divided among the workers unless OMP_NUM_THREADS is
    set.

    Args:
      exit_codes: the file to which the trial's workers add their exit codes; that of a Slurm job is for its own.
      devices: the GPUs for CUDA_VISIBLE_DEVICES; None: all that are visible.
    """
    variables = {name: text for name, text in os.environ.items() if name not in VARIABLES_OF_A_SERVER}
    variables["PATH"] = os.pathsep.join([own_programs(), variables.get("PATH", os.defpath)])
    threads = max(1, usable_cores() // workers)
    variables.setdefault("OMP_NUM_THREADS", str(threads))
    variables["T5SUITE_RUN_DIR"] = str(Path(run_dir).absolute())
    variables[EXIT_CODES_VARIABLE] = str(exit_codes)
    variables["WANDB_RUN_ID"] = run_id
    variables["WANDB_RUN_GROUP"] = group
    if devices is not None:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    return variables


def own_programs() -> str:
    """The folder of this Python and the programs installed with it."""
    return str(Path(sys.executable).parent)
