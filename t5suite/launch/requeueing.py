"""How a job of Slurm ended, and whether it starts again: at the end of every batch script of `slurm/`.

    >>> decide(exit_code=1, noted=[75, 75], job=Job(state="RUNNING", restarts=0))
    Decision(requeue=True, exit_code=75, reason='the run was stopped and goes on from its checkpoint')

A run that was asked to stop ends with 75 and the job is requeued, a bounded number of times; bad data (65), numbers
that are none (70), a full disk (74) and a bad configuration (78) would come again, so such a job fails. Slurm's
`--requeue` alone brings back jobs whose node failed or which were preempted, but none that reached its time limit.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from t5suite.base.errors import EXIT_FINISHED, EXIT_PREEMPTED, VARIABLE, ConfigError, noted_codes

MAX_REQUEUES = 50
# 128 + SIGTERM: a program that knows no better way to stop.
EXIT_TERMINATED = 143
# In other states the job is not ours to bring back: its owner cancelled it, or Slurm requeues it already.
REQUEUEABLE = ("RUNNING", "TIMEOUT")
SCONTROL_SECONDS = 60


class Job(NamedTuple):
    """What Slurm says of a job: its state, and how often it has been requeued."""

    state: str = "RUNNING"
    restarts: int = 0


class Decision(NamedTuple):
    """Whether the job starts again, what its script exits with, and why."""

    requeue: bool
    exit_code: int
    reason: str


def decide(exit_code: int, noted: list[int], job: Job, max_requeues: int = MAX_REQUEUES) -> Decision:
    """What is to become of a job.

    Args:
      exit_code: of its step.
      noted: the codes that workers left; they count more, for launchers have codes of their own.
    """
    failures = [code for code in noted if code not in (EXIT_FINISHED, EXIT_PREEMPTED)]
    if failures:
        return Decision(False, failures[0], f"a worker failed with {failures[0]}, as it would again")
    if EXIT_PREEMPTED in noted or exit_code in (EXIT_PREEMPTED, EXIT_TERMINATED):
        reason = "the run was stopped and goes on from its checkpoint"
    elif exit_code and not noted and job.state == "TIMEOUT":
        reason = "the run was killed at its time limit and goes on from its last checkpoint"
    else:
        return Decision(False, exit_code, "finished" if exit_code == EXIT_FINISHED else f"failed with {exit_code}")
    if job.state not in REQUEUEABLE:
        return Decision(False, EXIT_PREEMPTED, f"stopped; not requeued, for Slurm has it as {job.state}")
    if job.restarts >= max_requeues:
        reason = f"stopped; not requeued, for it has been {job.restarts} times (T5SUITE_MAX_REQUEUES={max_requeues})"
        return Decision(False, EXIT_PREEMPTED, f"{reason}; submit it again to go on")
    return Decision(True, EXIT_PREEMPTED, reason)


def settle(exit_code: int, environment: Mapping[str, str], max_requeues: int | None = None) -> Decision:
    """Decides on the job that the environment is of, and requeues it if so.

    Raises:
      ConfigError: the environment is no job's, or its T5SUITE_MAX_REQUEUES no number.
    """
    job_id = job_id_of(environment)
    if max_requeues is None:
        max_requeues = _number(environment, "T5SUITE_MAX_REQUEUES", MAX_REQUEUES)
    job = read_job(_scontrol("show", "job", "--oneliner", job_id), _number(environment, "SLURM_RESTART_COUNT", 0))
    decision = decide(exit_code, noted_codes(environment.get(VARIABLE)), job, max_requeues)
    if decision.requeue and _scontrol("requeue", job_id) is None:
        return Decision(False, EXIT_PREEMPTED, f"stopped; scontrol cannot requeue {job_id}: submit it again to go on")
    return decision


def job_id_of(environment: Mapping[str, str]) -> str:
    """A job's id; of a task of an array `ARRAY_TASK`, for the plain id of one of them names the whole array.

    Raises:
      ConfigError: there is none.
    """
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    found = f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")
    if not re.fullmatch(r"\d+(_\d+)?", found):
        raise ConfigError("t5suite slurm settle stands at the end of a batch script: there is no SLURM_JOB_ID")
    return found


def read_job(shown: str | None, restarts: int = 0) -> Job:
    """What `scontrol show job --oneliner` says of a job; None: it did not answer, so nothing is known against it.

    While the last processes of a job that Slurm ends are going, its state is COMPLETING and the reason tells why.
    """
    if shown is None:
        return Job(restarts=restarts)
    said = dict(re.findall(r"\b(JobState|Reason|Restarts)=(\w+)", shown))
    state = said.get("JobState", "RUNNING")
    if state == "COMPLETING" and said.get("Reason") == "TimeLimit":
        state = "TIMEOUT"
    return Job(state, max(restarts, int(said.get("Restarts", 0))))


def _scontrol(*words: str) -> str | None:
    """What scontrol prints; None where it fails."""
    program = shutil.which("scontrol")
    if program is None:
        return None
    try:
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=SCONTROL_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    found = environment.get(name) or str(default)
    if not found.isdecimal():
        raise ConfigError(f"{name}={found!r}: must be a number")
    return int(found)
