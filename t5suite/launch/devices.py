"""Which GPUs each of a sweep's workers gives its trials.

>>> devices_of_workers(2, ["0", "1", "2", "3"])
[['0', '1'], ['2', '3']]
>>> devices_of_workers(3, [])
[None, None, None]
"""

import os
import re

from t5suite.base.errors import ConfigError


def visible_devices() -> list[str]:
    """The GPUs that may be used: CUDA_VISIBLE_DEVICES, else as many as there are `/dev/nvidia0`, ...

    CUDA counts them from 0, whatever the number of a container's only `/dev/nvidia3`.
    """
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is not None:
        return [name.strip() for name in listed.split(",") if name.strip() and name.strip() != "-1"]
    found = [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)]
    return [str(i) for i in range(len(found))]


def devices_of_workers(workers: int, devices: list[str], gpus_per_trial: int | None = None) -> list[list[str] | None]:
    """The devices of each worker's trials; None: whatever is visible, for there is nothing to share out.

    Without `gpus_per_trial` they are shared out evenly; workers beyond the number of devices share one with others.

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
    each = len(devices) // workers if gpus_per_trial is None else gpus_per_trial
    if each == 0 and gpus_per_trial is None:
        return [[devices[i % len(devices)]] for i in range(workers)]
    return [devices[i * each : (i + 1) * each] for i in range(workers)]
