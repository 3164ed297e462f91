"""Tasks of one `srun` as ranks of one run: `srun -n 2 python fine_tune_t5.py ...`, with no launcher between.

    >>> ranks_of_srun({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", ...})
    {'RANK': '1', 'WORLD_SIZE': '2', 'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2', 'MASTER_ADDR': 'node03', ...}

PyTorch and accelerate read RANK, WORLD_SIZE and so on, which torchrun sets and srun does not. They are set from Slurm's
own where a script is started by several tasks of one step, and left alone

* where a launcher has set WORLD_SIZE already,
* in a trial of a sweep: `srun -n 4 wandb agent ...` is four agents, whose trials are runs of their own,
* in a batch script or an interactive job without srun, however many tasks the job was given,
* with T5SUITE_SLURM_RANKS=0 in the environment.

Slurm's variables: srun(1), "OUTPUT ENVIRONMENT VARIABLES". Entry scripts call `join_srun` before they import torch.
"""

import os
import re
import sys
from collections.abc import Mapping

from t5suite.base.errors import EXIT_BAD_CONFIGURATION, ConfigError

SWITCH = "T5SUITE_SLURM_RANKS"
# What agents, sweeps and launchers set for what they start.
TRIAL_VARIABLES = ("WANDB_SWEEP_ID", "WANDB_RUN_ID", "T5SUITE_RUN_DIR")
LAUNCHER_VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "ACCELERATE_DYNAMO_BACKEND")
# Set by `srun --mpi=pmi2` (on some clusters the default); accelerate takes them for a launcher's, even in a trial.
MPI_VARIABLES = ("PMI_SIZE", "PMI_RANK")
# Below the ports that systems give away by themselves (Linux: from 32768).
FIRST_PORT, NUM_PORTS = 12000, 20000


def join_srun() -> None:
    """Sets this process's environment to that of its rank, if it is one; a program's affair, so it ends on an error."""
    try:
        os.environ.update(ranks_of_srun(os.environ))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_CONFIGURATION)
    if os.environ.get("SLURM_STEP_ID") and os.environ.get(SWITCH) != "0":
        for name in MPI_VARIABLES:
            os.environ.pop(name, None)


def ranks_of_srun(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to set; none where the process is no rank of a step.

    Raises:
      ConfigError: Slurm's variables are not as they should be.
    """
    if environment.get(SWITCH) == "0" or not environment.get("SLURM_STEP_ID"):
        return {}
    if any(environment.get(name) for name in (*TRIAL_VARIABLES, *LAUNCHER_VARIABLES)):
        return {}
    world_size = _number(environment, "SLURM_STEP_NUM_TASKS", 1)
    if world_size == 1:
        return {}
    tasks = tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", str(world_size)))
    node = _number(environment, "SLURM_NODEID", 0)
    found = {
        "RANK": str(_number(environment, "SLURM_PROCID")),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(_number(environment, "SLURM_LOCALID")),
        "LOCAL_WORLD_SIZE": str(tasks[node] if node < len(tasks) else 1),
    }
    job, step = _number(environment, "SLURM_JOB_ID"), _number(environment, "SLURM_STEP_ID")
    # Every task must come to the same port without asking another.
    found["MASTER_PORT"] = environment.get("MASTER_PORT") or str(FIRST_PORT + (31 * job + step) % NUM_PORTS)
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "localhost"
    found["MASTER_ADDR"] = environment.get("MASTER_ADDR") or first_host(hosts)
    return found


def first_host(hosts: str) -> str:
    """The first of Slurm's list of nodes, which is where rank 0 is.

    >>> first_host("gpu[003-005,9],login1")
    'gpu003'
    """
    match = re.match(r"([^\[,]+)(?:\[(\w+)[^\]]*\]([^,\[]*))?", hosts)
    if not match:
        raise ConfigError(f"SLURM_STEP_NODELIST={hosts!r}: no list of nodes; set MASTER_ADDR yourself")
    return "".join(part or "" for part in match.groups())


def tasks_per_node(text: str) -> list[int]:
    """Slurm's short form, one number a node.

    >>> tasks_per_node("2(x3),1")
    [2, 2, 2, 1]
    """
    counts = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if not match:
            raise ConfigError(f"SLURM_STEP_TASKS_PER_NODE={text!r}: no list of numbers of tasks")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    found = environment.get(name) or ("" if default is None else str(default))
    if not found.isdecimal():
        raise ConfigError(
            f"{name}={found!r}: must be a number in a step of srun; {SWITCH}=0 leaves Slurm's tasks alone"
        )
    return int(found)
