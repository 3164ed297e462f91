"""The checks of `t5suite doctor`, in the order of its lines.

>>> [finding.level for finding in examine(Checkup(), {"python": check_python})]
['ok']

A new check is one entry of CHECKS: a function of a `Checkup` that returns a list of `Finding`s.
"""

from t5suite.commands.doctor_findings import FAIL, Checkup, Finding
from t5suite.commands.doctor_launchers import (
    check_accelerate_config,
    check_accelerate_variables,
    check_config,
    check_deepspeed,
    check_launchers,
    check_ranks,
    check_slurm,
)
from t5suite.commands.doctor_machine import check_cpu, check_devices, check_packages, check_precision, check_python
from t5suite.commands.doctor_places import (
    check_compile_cache,
    check_disk,
    check_hub,
    check_hub_cache,
    check_output_files,
    check_shared_memory,
)
from t5suite.commands.doctor_trackers import (
    check_aim,
    check_other_trackers,
    check_trackio,
    check_unsent,
    check_wandb,
    check_wandb_folders,
)


def examine(checkup: Checkup, checks=None):
    """The findings of every check, one after the other; a check that breaks is itself one that fails."""
    for name, check in (CHECKS if checks is None else checks).items():
        try:
            yield from check(checkup)
        except (ImportError, OSError, RuntimeError, ValueError, AttributeError) as error:
            what = f"could not be looked at ({type(error).__name__}: {str(error).strip()[:300]})"
            yield Finding(
                FAIL, name, what, "install the package anew" if isinstance(error, ImportError) else "see the error"
            )


CHECKS = {
    "python": check_python,
    "packages": check_packages,
    "cpu": check_cpu,
    "gpu": check_devices,
    "precision": check_precision,
    "config": check_config,
    "launchers": check_launchers,
    "ranks": check_ranks,
    "ACCELERATE_*": check_accelerate_variables,
    "accelerate config": check_accelerate_config,
    "deepspeed ops": check_deepspeed,
    "slurm": check_slurm,
    "disk": check_disk,
    "files": check_output_files,
    "shared memory": check_shared_memory,
    "hub cache": check_hub_cache,
    "compile cache": check_compile_cache,
    "hub": check_hub,
    "wandb": check_wandb,
    "wandb folders": check_wandb_folders,
    "wandb offline": check_unsent,
    "aim": check_aim,
    "trackio": check_trackio,
    "other trackers": check_other_trackers,
}
