"""What starts a worker: a launcher that dies takes it along, tasks of one `srun` are ranks, launchers' own flags go.

    >>> stop_with_launchers()               # in a worker of `accelerate launch fine_tune_t5.py`, where it begins
    >>> ranks_of_srun({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", ...})
    {'RANK': '1', 'WORLD_SIZE': '2', 'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2', 'MASTER_ADDR': 'node03', ...}

`accelerate launch` with one process (1.15) and the `deepspeed` runner (0.19) die of SIGTERM and leave their workers
behind, and of SIGKILL every launcher does. So a worker checks once a second whether the launchers above it are still
there (Linux only: `/proc`), and asks itself to stop, as SIGTERM would, when one is not.

PyTorch and accelerate read RANK and WORLD_SIZE, which srun does not set. They are set from Slurm's own (srun(1)
variables) where several tasks of one step start a script; not where a launcher has set WORLD_SIZE already,
not in a trial of a sweep (`srun -n 4 wandb agent ...` is four agents), not in a job without srun, and not with
T5SUITE_SLURM_RANKS=0 in the environment. Scripts call both before they import torch, so this module imports none.
"""

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import EXIT_BAD_CONFIGURATION, ConfigError
from t5suite.training.processes.signals import stop_requests

SECONDS_BETWEEN_LOOKS = 1.0
# The programs, by the name of their script or of the module behind `-m`.
LAUNCHER_SCRIPTS = {"accelerate": "accelerate", "torchrun": "torchrun", "deepspeed": "deepspeed", "ds": "deepspeed"}
LAUNCHER_MODULES = {
    "accelerate.commands.launch": "accelerate",
    "accelerate.commands.accelerate_cli": "accelerate",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed.launcher.launch": "deepspeed",
}
# Zombies and processes that are just going have ended, though their entry stands until they are waited for.
ENDED_STATES = ("Z", "X", "x")


class Launcher(NamedTuple):
    """A process that started this one, directly or not; its start time tells it from a later one of the same number."""

    name: str
    pid: int
    start_time: int


def stop_with_launchers() -> threading.Thread | None:
    """Watches the launchers above this process from now on; returns the thread, or None where there are none."""
    launchers = launchers_above(os.getpid())
    if not launchers:
        return None
    watcher = threading.Thread(target=_watch, args=(launchers,), name="launchers", daemon=True)
    watcher.start()
    return watcher


def launchers_above(pid: int) -> list[Launcher]:
    """The launchers among a process's ancestors, the closest first.

    >>> launchers_above(os.getpid())      # a worker of `accelerate launch`
    [Launcher(name='accelerate', pid=4711, start_time=8812345)]
    """
    found, pid = [], _parent(pid)
    while pid > 1:
        name, start_time = launcher_name(_command(pid)), _start_time(pid)
        if name and start_time is not None:
            found.append(Launcher(name, pid, start_time))
        pid = _parent(pid)
    return found


def launcher_name(command: list[str]) -> str | None:
    """Which launcher a command line is, if it is one.

    >>> launcher_name(["/opt/bin/python", "/opt/bin/accelerate", "launch", "fine_tune_t5.py"])
    'accelerate'
    >>> launcher_name(["python", "fine_tune_t5.py", "accelerate"]) is None
    True
    """
    if not command:
        return None
    words = command[1:] if Path(command[0]).name.startswith("python") else command
    while words and words[0].startswith("-") and words[0] != "-m":
        words = words[1:]
    if words[:1] == ["-m"]:
        return LAUNCHER_MODULES.get(words[1]) if len(words) > 1 else None
    return LAUNCHER_SCRIPTS.get(Path(words[0]).name) if words else None


def _watch(launchers: list[Launcher]) -> None:
    while True:
        time.sleep(SECONDS_BETWEEN_LOOKS)
        for launcher in launchers:
            if _start_time(launcher.pid) != launcher.start_time:
                _stop(launcher)
                return


def _stop(launcher: Launcher) -> None:
    """A launcher that has passed the signal on before it died has said it all: a third one would be the last."""
    if stop_requests().requested:
        return
    text = f"the launcher ({launcher.name}, process {launcher.pid}) has ended: this process stops, too\n"
    try:
        os.write(2, text.encode())  # which may have been the launcher's, too
    except OSError:
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _status(pid: int) -> list[str]:
    """The fields of `/proc/<pid>/stat` from the state on; the name before it, in brackets, may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _parent(pid: int) -> int:
    fields = _status(pid)
    return int(fields[1]) if fields else 0


def _start_time(pid: int) -> int | None:
    """In clock ticks since the machine's start; None for a process that has ended."""
    fields = _status(pid)
    return int(fields[19]) if fields and fields[0] not in ENDED_STATES else None


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return []


LAUNCHER_FLAGS = ("--local_rank", "--local-rank", "--_wandb")


def without_launcher_flags(argv) -> list[str]:
    """The command line without what launchers add to it.

    >>> without_launcher_flags(["--local_rank", "0", "--seed", "7"])
    ['--seed', '7']
    """
    kept, skip = [], False
    for i, token in enumerate(argv):
        if skip:
            skip = False
        elif token in LAUNCHER_FLAGS:
            skip = i + 1 < len(argv) and not argv[i + 1].startswith("--")
        elif not token.startswith(tuple(f"{flag}=" for flag in LAUNCHER_FLAGS)):
            kept.append(token)
    return kept


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
