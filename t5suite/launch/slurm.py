"""Slurm batch scripts, from a template of `slurm/`, a job's options and the words of a command.

    >>> script = render("fine_tune", {"account": "lab", "gpus_per_node": "4"}, ["python", "fine_tune_t5.py"])
    >>> submit(script)
    '4711'

A template is a working batch script with three marked lines: `#SBATCH` lines go to `options`, exports to `settings`,
the command to `command`. Everything that goes to the shell is quoted; sbatch has its own quoting rules, so values that
would need quotes there are rejected.
"""

import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import EXIT_FINISHED, EXIT_PREEMPTED, VARIABLE, ConfigError, noted_codes
from t5suite.base.files import shipped_folder
from t5suite.base.lookup import find

MARKER = "# [t5suite: {}]"
SLURM_SECONDS = 60


# Options of a job (sbatch's, with underscores): an example, and help.
OPTIONS = {
    "account": ("lab", "whom the job is charged to"), "partition": ("gpu", "where it may run"),
    "qos": ("normal", "quality of service"),
    "time": ("4:00:00", "limit: MINUTES, M:S, H:M:S, DAYS-H, DAYS-H:M or DAYS-H:M:S"), "nodes": ("2", "machines"),
    "gpus_per_node": ("4 or a100:4", "GPUs on each"), "cpus_per_task": ("16", "cores on each"),
    "mem": ("64G", "memory on each"), "gres": ("gpu:a100:2", "generic resources on each, where GPUs go by that"),
    "constraint": ("a100|h100", "features that nodes must have"),
    "nodelist": ("node[01-04]", "the nodes to run on"), "exclude": ("node[05-06]", "nodes not to run on"),
    "reservation": ("workshop", "the reservation to run in"), "dependency": ("afterok:4711", "jobs before it"),
    "array": ("1-12%4", "tasks of an array, at most %%N at once"),
    "job_name": ("rte-base", "the job's name, and its log's"),
}  # fmt: skip
# Values that need no quotes, for which sbatch has its own rules; sbatch itself checks whether they make sense.
PLAIN = r"[\w(\[][\w&|*!,.:@+=?%()\[\]-]*"
TIME = r"\d+(:\d\d(:\d\d)?)?|\d+-\d\d?(:\d\d(:\d\d)?)?"
# In a #SBATCH line, where quotes and spaces would have a meaning.
PLAIN_PATH = r"[\w/.~@+=-]+"
# For each template, in seconds: how long before the time limit the run is asked to stop, and that limit.
KINDS = {
    "fine_tune": (120, 4 * 3600), "pre_train": (300, 24 * 3600), "sweep_agent": (120, 12 * 3600),
    "corpus": (60, 4 * 3600),
}  # fmt: skip
ARRAYS = ("sweep_agent", "corpus")


def render(
    kind: str,
    options: dict[str, str],
    words: list[str],
    setup: str | None = None,
    environment: Iterable[str] = (),
    offline: bool = False,
    signal_seconds: int | None = None,
    max_requeues: int | None = None,
    log_dir: str | None = None,
) -> str:
    """The batch script.

    Args:
      kind: one of KINDS.
      options: values by name, of OPTIONS.
      words: the command; none: the template's own, if it has one.
      setup: a shell file that is sourced first (modules, an environment to activate).
      environment: variables to export, as `NAME=VALUE`.
      offline: no requests go to the hub or to W&B.
      signal_seconds: how long before the time limit the run is asked to stop; None: the template's.
      max_requeues: how often a job that was stopped is requeued; None: MAX_REQUEUES.
      log_dir: where the logs go; None: where the job was submitted.

    Raises:
      ConfigError: a value that does not have its option's form, or a command that the template cannot run.
    """
    find(kind, KINDS, "kind of job", where="t5suite slurm")
    if not words and kind in ARRAYS:
        raise ConfigError(f"t5suite slurm {kind}: the command is missing; give it after `--`")
    if words and (not words[0] or any("\0" in word for word in words)):
        raise ConfigError("t5suite slurm: the command begins with an empty word, or holds a NUL character")
    is_python = bool(words) and Path(words[0]).name.startswith("python")
    if words and not is_python and kind not in ARRAYS and options.get("nodes", "1") != "1":
        raise ConfigError(
            f"t5suite slurm {kind} --nodes {options['nodes']}: the command begins with {words[0]!r}, but on several "
            "nodes torchrun starts it; let it begin with python, such as: -- python pre_train_t5.py"
        )
    lines = []
    for name, value in options.items():
        has_form = name != "time" or (re.fullmatch(TIME, value, re.ASCII) and seconds_of(value))
        if not has_form or not re.fullmatch(PLAIN, value, re.ASCII):
            example, meaning = OPTIONS[name]
            raise ConfigError(f"--{name} {value!r}: must be such as {example} ({meaning.replace('%%', '%')})")
        lines.append(f"{name.replace('_', '-')}={value}")
    lead, limit = KINDS[kind]
    lead = lead if signal_seconds is None else signal_seconds
    limit = seconds_of(options["time"]) if "time" in options else limit
    if lead < 1 or lead >= limit:
        said = f"must be at least 1 and less than the time limit, {limit} s (--time {options.get('time', 'not given')})"
        raise ConfigError(f"--signal_seconds {lead}: {said}")
    lines += [f"signal=TERM@{lead}"] if signal_seconds is not None else []
    if log_dir is not None:
        if not re.fullmatch(PLAIN_PATH, log_dir, re.ASCII):
            raise ConfigError(f"--log_dir {log_dir!r}: an #SBATCH line takes letters, digits and /._~@+=- only")
        lines.append(f"output={log_dir}/{'%x-%A_%a.log' if kind in ARRAYS else '%x-%j.log'}")
    shell = _exports(environment, offline, max_requeues, options.get("array") if kind == "corpus" else None)
    if setup is not None:
        if "\0" in setup or not Path(setup).is_file():
            raise ConfigError(f"--setup {setup!r}: no such file")
        # Activation scripts read variables that are not set.
        shell.append(f"set +u; source {shlex.quote(str(Path(setup).absolute()))} || exit 78; set -u")
    script = (shipped_folder("slurm") / f"{kind}.sbatch").read_text(encoding="utf-8")
    for line in lines:
        script = re.sub(rf"^#SBATCH --{re.escape(line.partition('=')[0])}=.*\n", "", script, flags=re.MULTILINE)
    places = {
        # From the bottom up: filled-in text may look like a marker, and the first marker is the one that counts.
        "command": [f"set -- {shlex.join(words)}"] if words else [],
        "settings": shell,
        "options": [f"#SBATCH --{line}" for line in lines],
    }
    for place, filled in places.items():
        before, mark, after = script.partition(MARKER.format(place) + "\n")
        assert mark, f"the template has no place for {place}"
        script = before + "".join(f"{line}\n" for line in filled) + after
    return script


def seconds_of(time: str) -> int:
    """A time limit in Slurm's notation, in seconds.

    >>> [seconds_of(time) for time in ("90", "1:30", "4:00:00", "2-12", "1-0:30")]
    [5400, 90, 14400, 216000, 88200]
    """
    days, dash, rest = time.rpartition("-")
    numbers = [int(number) for number in rest.split(":")]
    if dash:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(numbers) == 1:
        return numbers[0] * 60
    hours, minutes, seconds = [0, *numbers][-3:]
    return (hours * 60 + minutes) * 60 + seconds


def _exports(environment: Iterable[str], offline: bool, max_requeues: int | None, shards: str | None) -> list[str]:
    """Lines of shell, every value quoted; `shards`: the array of a corpus job."""
    lines = []
    for pair in environment:
        name, equals, value = pair.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or "\0" in value:
            raise ConfigError(f"--env {pair!r}: must be NAME=VALUE, such as T5SUITE_DATA_DIR=/scratch/data")
        lines.append(f"export {name}={shlex.quote(value)}")
    lines += ["export T5SUITE_OFFLINE=1"] if offline else []
    lines += [f"export T5SUITE_MAX_REQUEUES={max_requeues}"] if max_requeues is not None else []
    if shards is not None:
        match = re.fullmatch(r"0(?:-(\d+)(?::1)?)?(?:%\d+)?", shards)
        if not match:
            raise ConfigError(f"--array {shards!r}: shards count from 0 without gaps, such as 0-63 or 0-63%8")
        lines.append(f"export T5SUITE_SHARDS={int(match[1] or 0) + 1}")
    return lines


def submit(script: str) -> str:
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
        raise ConfigError(f"sbatch refused the job: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout.strip().partition(";")[0]


MAX_REQUEUES = 50
# 128 + SIGTERM: a program that does not handle the signal.
EXIT_TERMINATED = 143
# In other states the job must not be requeued: its owner cancelled it, or Slurm requeues it already.
REQUEUEABLE = ("RUNNING", "TIMEOUT")


class Decision(NamedTuple):
    """Whether the job starts again, what its script exits with, and why."""

    requeue: bool
    exit_code: int
    reason: str


def decide(exit_code: int, noted: list[int], state: str, restarts: int, max_requeues: int = MAX_REQUEUES) -> Decision:
    """Whether a job is requeued, and its exit code.

    Args:
      exit_code: of its step.
      noted: the codes that workers noted; they take precedence, because launchers have their own codes.
      state: the job's, as Slurm reports it.
      restarts: how often it has been requeued.
    """
    failures = [code for code in noted if code not in (EXIT_FINISHED, EXIT_PREEMPTED)]
    if failures:
        return Decision(False, failures[0], f"a worker failed with {failures[0]}, and would fail again")
    if EXIT_PREEMPTED in noted or exit_code in (EXIT_PREEMPTED, EXIT_TERMINATED):
        reason = "the run was stopped, or the hub failed for now; it goes on from its last checkpoint"
    elif exit_code and not noted and state == "TIMEOUT":
        reason = "the run was killed at its time limit and resumes from its last checkpoint"
    else:
        return Decision(False, exit_code, "finished" if exit_code == EXIT_FINISHED else f"failed with {exit_code}")
    if state not in REQUEUEABLE:
        return Decision(False, EXIT_PREEMPTED, f"stopped; not requeued, because its Slurm state is {state}")
    if restarts >= max_requeues:
        reason = f"stopped; not requeued: it already was, {restarts} times (T5SUITE_MAX_REQUEUES={max_requeues})"
        return Decision(False, EXIT_PREEMPTED, f"{reason}; submit it again to resume")
    return Decision(True, EXIT_PREEMPTED, reason)


def settle(exit_code: int, environment: Mapping[str, str]) -> Decision:
    """Decides about the job of this environment, and requeues it if that is the decision.

    Raises:
      ConfigError: the environment is not a job's, or its T5SUITE_MAX_REQUEUES is not a number.
    """
    # A task of an array is `ARRAY_TASK`, because the plain id of one of them names the whole array.
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    job_id = f"{array}_{task}" if array and task else environment.get("SLURM_JOB_ID", "")
    if not re.fullmatch(r"\d+(_\d+)?", job_id):
        raise ConfigError("t5suite slurm settle is for the end of a batch script: there is no SLURM_JOB_ID")
    counts = {}
    for name, default in (("T5SUITE_MAX_REQUEUES", MAX_REQUEUES), ("SLURM_RESTART_COUNT", 0)):
        found = environment.get(name) or str(default)
        if not found.isdecimal():
            raise ConfigError(f"{name}={found!r}: must be a number")
        counts[name] = int(found)
    job = read_job(_scontrol("show", "job", "--oneliner", job_id), counts["SLURM_RESTART_COUNT"])
    decision = decide(exit_code, noted_codes(environment.get(VARIABLE)), *job, counts["T5SUITE_MAX_REQUEUES"])
    if decision.requeue and _scontrol("requeue", job_id) is None:
        return Decision(False, EXIT_PREEMPTED, f"stopped; scontrol cannot requeue {job_id}: submit it again to resume")
    return decision


def read_job(shown: str | None, restarts: int) -> tuple[str, int]:
    """A job's state and restarts by `scontrol show job --oneliner`; None: no answer; the job counts as running.

    While the last processes of a job that Slurm ends are exiting, its state is COMPLETING and the reason says why.
    """
    said = dict(re.findall(r"\b(JobState|Reason|Restarts)=(\w+)", shown or ""))
    state = said.get("JobState", "RUNNING")
    if state == "COMPLETING" and said.get("Reason") == "TimeLimit":
        state = "TIMEOUT"
    return state, max(restarts, int(said.get("Restarts", 0)))


def _scontrol(*words: str) -> str | None:
    """What scontrol prints; None where it fails."""
    try:
        done = subprocess.run(["scontrol", *words], capture_output=True, text=True, timeout=SLURM_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
