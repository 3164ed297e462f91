"""Slurm jobs: submitted with sbatch, and at the end of their batch script requeued if they were stopped.

>>> submit_job(script)
'4711'
>>> settle(75, os.environ)
Decision(requeue=True, exit_code=75, reason='the run was stopped, ...; it goes on from its last checkpoint')
"""

import re
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from t5suite.base.errors import EXIT_FINISHED, EXIT_PREEMPTED, ConfigError
from t5suite.base.programs import EXIT_CODES_VARIABLE, Notes, read_notes

SLURM_SECONDS = 60
MAX_REQUEUES = 50
# 128 + SIGTERM: a program that does not handle the signal.
EXIT_TERMINATED = 143
LOST_WORKER = "a worker died without a word: memory ran out, say, or DeepSpeed killed it 30 s after it was to stop"
# In other states the job must not be requeued: its owner cancelled it, or Slurm requeues it already.
REQUEUEABLE = ("RUNNING", "TIMEOUT")


def submit_job(script: str) -> str:
    """Hands the script to sbatch, without a shell, and returns the job's id.

    Raises:
      ConfigError: there is no sbatch, or it refuses the job.
    """
    try:
        done = subprocess.run(
            ["sbatch", "--parsable"], input=script, capture_output=True, text=True, timeout=SLURM_SECONDS
        )
    except FileNotFoundError:
        raise ConfigError(
            "sbatch is not on PATH: submit from a node of the cluster, or write the script with `t5suite slurm render`"
        ) from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"sbatch has not answered for {SLURM_SECONDS} s; see `squeue --me`") from None
    if done.returncode:
        reason = done.stderr.strip() or f"exit code {done.returncode}"
        raise ConfigError(f"sbatch refused the job: {reason}")
    return done.stdout.strip().partition(";")[0]


class Decision(NamedTuple):
    """Whether the job starts again, what its script exits with, and why."""

    requeue: bool
    exit_code: int
    reason: str


def decide(exit_code: int, notes: Notes, state: str, restarts: int, max_requeues: int = MAX_REQUEUES) -> Decision:
    """Whether a job is requeued, and its exit code.

    Args:
      exit_code: of its step; one that ended with 0 is done, whatever workers noted before a launcher restarted them.
      notes: of workers, whose codes take precedence over another one, because launchers have their own.
      state: the job's, as Slurm reports it.
      restarts: how often it has been requeued.
    """
    if exit_code == EXIT_FINISHED:
        return Decision(False, exit_code, "finished")
    failure = notes.first_failure()
    if failure is not None:
        return Decision(False, failure, f"a worker failed with {failure}, and would fail again")
    reason = _reason_to_continue(exit_code, notes, state)
    if reason is None and notes.lost_count:
        return Decision(False, exit_code, f"failed with {exit_code}: {LOST_WORKER}")
    if reason is None:
        return Decision(False, exit_code, f"failed with {exit_code}")
    if state not in REQUEUEABLE:
        return Decision(False, EXIT_PREEMPTED, f"stopped; not requeued, because its Slurm state is {state}")
    if restarts >= max_requeues:
        times = f"{restarts} times (T5SUITE_MAX_REQUEUES={max_requeues})"
        reason = f"stopped; not requeued: it already was, {times}; submit it again to resume"
        return Decision(False, EXIT_PREEMPTED, reason)
    return Decision(True, EXIT_PREEMPTED, reason)


def _reason_to_continue(exit_code: int, notes: Notes, state: str) -> str | None:
    """Why a job whose workers have not failed is not done yet; None if its step failed."""
    if notes.tell_of_stop() or exit_code in (EXIT_PREEMPTED, EXIT_TERMINATED):
        return "the run was stopped, or the hub failed for now; it goes on from its last checkpoint"
    if state == "TIMEOUT" and EXIT_FINISHED not in notes.codes:
        return "the run was killed at its time limit and resumes from its last checkpoint"
    return None


def settle(exit_code: int, environment: Mapping[str, str]) -> Decision:
    """Decides about the job of this environment, and requeues it if that is the decision.

    Raises:
      ConfigError: the environment is not a job's, or its T5SUITE_MAX_REQUEUES is not a number.
    """
    job_id = _job_id(environment)
    max_requeues = _count_in("T5SUITE_MAX_REQUEUES", MAX_REQUEUES, environment)
    restarts_in_environment = _count_in("SLURM_RESTART_COUNT", 0, environment)
    answer = _scontrol("show", "job", "--oneliner", job_id)
    state, restarts = read_job(answer, restarts_in_environment)
    notes = read_notes(environment.get(EXIT_CODES_VARIABLE))
    decision = decide(exit_code, notes, state, restarts, max_requeues)
    if decision.requeue and _scontrol("requeue", job_id) is None:
        return Decision(False, EXIT_PREEMPTED, f"stopped; scontrol cannot requeue {job_id}: submit it again to resume")
    return decision


def _job_id(environment: Mapping[str, str]) -> str:
    """The job of this environment; `ARRAY_TASK` for a task of an array, whose plain id may name the whole array."""
    array = environment.get("SLURM_ARRAY_JOB_ID")
    task = environment.get("SLURM_ARRAY_TASK_ID")
    job_id = environment.get("SLURM_JOB_ID", "")
    if array and task:
        job_id = f"{array}_{task}"
    if not re.fullmatch(r"\d+(_\d+)?", job_id):
        raise ConfigError("t5suite slurm settle is for the end of a batch script: there is no SLURM_JOB_ID")
    return job_id


def _count_in(name: str, default: int, environment: Mapping[str, str]) -> int:
    """A variable's whole number."""
    text = environment.get(name) or str(default)
    if not text.isdecimal():
        raise ConfigError(f"{name}={text!r}: must be a number")
    return int(text)


def read_job(answer: str | None, restarts: int) -> tuple[str, int]:
    """A job's state and restarts by `scontrol show job --oneliner`; None: no answer; the job counts as running.

    While the last processes of a job that Slurm ends are exiting, its state is COMPLETING and the reason says why.
    """
    fields = dict(re.findall(r"\b(JobState|Reason|Restarts)=(\w+)", answer or ""))
    state = fields.get("JobState", "RUNNING")
    if state == "COMPLETING" and fields.get("Reason") == "TimeLimit":
        state = "TIMEOUT"
    return state, max(restarts, int(fields.get("Restarts", 0)))


def _scontrol(*words: str) -> str | None:
    """What scontrol prints; None where it fails."""
    try:
        done = subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=SLURM_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return done.stdout
