"""Workers and what starts them: stop when the launcher dies, ranks from `srun`.

    >>> stop_with_launchers()               # in a worker of `accelerate launch fine_tune_t5.py`, at its start
    >>> ranks_of_srun({"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", ...})
    {'RANK': '1', 'WORLD_SIZE': '2', 'LOCAL_RANK': '1', 'LOCAL_WORLD_SIZE': '2', 'MASTER_ADDR': 'node03', ...}

On SIGTERM, `accelerate launch` with one process (1.15) and the `deepspeed` runner (0.19) exit without stopping their
workers; on SIGKILL every launcher does. So a worker checks once a second whether its parent launchers are still
alive, and sends itself SIGTERM when one is not.

PyTorch and accelerate read RANK and WORLD_SIZE, which srun does not set. If several tasks of one step start a script,
we set them from Slurm's own variables (see srun(1)). We do not if a launcher has already set WORLD_SIZE,
in a trial of a sweep (`srun -n 4 wandb agent ...` is four agents), in a job without srun, or with
T5SUITE_SLURM_RANKS=0 in the environment. Scripts call both functions before importing torch; this module must not.
"""

import contextlib
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from t5suite.base.errors import EXIT_BAD_CONFIGURATION, ConfigError
from t5suite.training.processes.signals import stop_requests

CHECK_SECONDS = 1.0
# Each launcher's names: its script, or its module after `-m`.
LAUNCHERS = {
    "accelerate": ("accelerate", "accelerate.commands.launch", "accelerate.commands.accelerate_cli"),
    "torchrun": ("torchrun", "torch.distributed.run", "torch.distributed.launch"),
    "deepspeed": ("deepspeed", "ds", "deepspeed.launcher.runner", "deepspeed.launcher.launch"),
}


def stop_with_launchers() -> None:
    """Starts watching the launchers among this process's ancestors, if there are any."""
    import psutil

    launchers = []
    for process in psutil.Process().parents():
        with contextlib.suppress(psutil.Error):
            if name := launcher_name(process.cmdline()):
                launchers.append((name, process))
    if launchers:
        threading.Thread(target=_watch, args=(launchers,), name="launchers", daemon=True).start()


def launcher_name(command: list[str]) -> str | None:
    """The launcher that a command line starts; None for another program.

    >>> launcher_name(["/opt/bin/python", "/opt/bin/accelerate", "launch", "fine_tune_t5.py"])
    'accelerate'
    >>> launcher_name(["python", "fine_tune_t5.py", "accelerate"]) is None
    True
    """
    words = command[1:] if command and Path(command[0]).name.startswith("python") else command
    while words and words[0].startswith("-") and words[0] != "-m":
        words = words[1:]
    program = "".join(words[1:2]) if words[:1] == ["-m"] else Path("".join(words[:1])).name
    return next((name for name, programs in LAUNCHERS.items() if program in programs), None)


def _watch(launchers: list) -> None:
    import psutil

    while True:
        time.sleep(CHECK_SECONDS)
        for name, process in launchers:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    continue
            # If the launcher already forwarded a signal, add none: the third one ends the process at once.
            if not stop_requests().requested:
                text = f"the launcher ({name}, process {process.pid}) has ended: this process stops, too\n"
                with contextlib.suppress(OSError):  # stderr may have been the launcher's pipe
                    os.write(2, text.encode())
                os.kill(os.getpid(), signal.SIGTERM)
            return


SWITCH = "T5SUITE_SLURM_RANKS"
# Variables that sweep agents and launchers set for the processes they start.
OF_TRIALS = ("WANDB_SWEEP_ID", "WANDB_RUN_ID", "T5SUITE_RUN_DIR")
OF_LAUNCHERS = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "ACCELERATE_DYNAMO_BACKEND")
# Below the ephemeral ports (Linux: from 32768).
FIRST_PORT, NUM_PORTS = 12000, 20000


def join_srun() -> None:
    """Sets this rank's environment variables if it is a task of `srun`. For programs: exits on an error."""
    try:
        os.environ.update(ranks_of_srun(os.environ))
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(EXIT_BAD_CONFIGURATION)
    if os.environ.get("SLURM_STEP_ID") and os.environ.get(SWITCH) != "0":
        # `srun --mpi=pmi2` sets these; accelerate would treat them as a launcher's, even in a trial.
        os.environ.pop("PMI_SIZE", None)
        os.environ.pop("PMI_RANK", None)


def ranks_of_srun(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables to set; empty if the process is not a rank of a step.

    Raises:
      ConfigError: one of Slurm's variables is malformed.
    """

    def number(name: str, default: str = "") -> int:
        return int(_matching(environment, name, r"\d+", default)[0])

    if environment.get(SWITCH) == "0" or not environment.get("SLURM_STEP_ID"):
        return {}
    if any(environment.get(name) for name in (*OF_TRIALS, *OF_LAUNCHERS)):
        return {}
    world_size = number("SLURM_STEP_NUM_TASKS", "1")
    if world_size == 1:
        return {}
    ranks_by_node = _ranks_by_node(environment, world_size)
    node = number("SLURM_NODEID", "0")
    # Every task must compute the same port without communication.
    port = FIRST_PORT + (31 * number("SLURM_JOB_ID") + number("SLURM_STEP_ID")) % NUM_PORTS
    hosts = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or "localhost"
    return {
        "RANK": str(number("SLURM_PROCID")),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(number("SLURM_LOCALID")),
        "LOCAL_WORLD_SIZE": ranks_by_node[node] if node < len(ranks_by_node) else "1",
        "MASTER_PORT": environment.get("MASTER_PORT") or str(port),
        "MASTER_ADDR": environment.get("MASTER_ADDR") or first_host(hosts),
    }


def _ranks_by_node(environment: Mapping[str, str], world_size: int) -> list[str]:
    """The number of tasks of a step on each of its nodes; Slurm's short form 2(x3),1 means 2, 2, 2, 1."""
    form = r"\d+(\(x\d+\))?(,\d+(\(x\d+\))?)*"
    text = _matching(environment, "SLURM_STEP_TASKS_PER_NODE", form, str(world_size))[0]
    counts = []
    for count, num_nodes in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [count] * int(num_nodes or 1)
    return counts


# A process's rank, as launchers and MPI name it.
RANK_NAMES = ("RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK")
WHOLE_NUMBERS = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")


def check_launched_ranks(environment: Mapping[str, str]) -> None:
    """Checks the variables that launchers set, before a process waits for ranks that never come.

    Raises:
      ConfigError: one is no whole number, the rank is missing, or there are not so many.
    """
    numbers = {name: environment[name] for name in WHOLE_NUMBERS if name in environment}
    if numbers.get("MASTER_PORT") == "":  # read only by several ranks; accelerate reads the other numbers always
        del numbers["MASTER_PORT"]
    for name, text in numbers.items():
        if not re.fullmatch(r"-?\d+", text):
            raise ConfigError(f"{name}={text!r} in the environment: a launcher sets a whole number; unset {name}")
    size = int(numbers.get("WORLD_SIZE", 1))
    if size > 1 and not any(environment.get(name) for name in RANK_NAMES):
        raise ConfigError(
            f"WORLD_SIZE={size} is set in the environment, but no RANK: no launcher started this process; unset "
            f"WORLD_SIZE, or start it by torchrun --nproc_per_node {size}"
        )
    rank = int(numbers.get("RANK", 0))
    if "WORLD_SIZE" in numbers and rank >= size:
        raise ConfigError(f"RANK={rank} with WORLD_SIZE={size} in the environment: ranks are 0 to {size - 1}")


def first_host(hosts: str) -> str:
    """The first node in Slurm's list, which runs rank 0.

    >>> first_host("gpu[003-005,9],login1")
    'gpu003'
    """
    pattern = r"(?P<stem>[^\[,]+)(\[(?P<first_number>\w+)[^\]]*\](?P<ending>[^,\[]*))?.*"
    match = _matching({"SLURM_STEP_NODELIST": hosts}, "SLURM_STEP_NODELIST", pattern)
    return "".join(match[part] or "" for part in ("stem", "first_number", "ending"))


def _matching(environment: Mapping[str, str], name: str, pattern: str, default: str = "") -> re.Match:
    text = environment.get(name) or default
    match = re.fullmatch(pattern, text)
    if not match:
        raise ConfigError(f"{name}={text!r} is not what srun sets; {SWITCH}=0 ignores Slurm's variables")
    return match
