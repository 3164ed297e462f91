"""Slurm batch scripts, from a template of `slurm/`, a job's options and the words of a command.

    >>> job = BatchJob("fine_tune", {"account": "lab", "gpus_per_node": "4"}, ["python", "fine_tune_t5.py"])
    >>> print(render_job(job))
    #!/bin/bash
    ...

A template is a working batch script with three marked lines: `#SBATCH` lines go to `options`, exports to `settings`,
the command to `command`. Everything that goes to the shell is quoted; sbatch has its own quoting rules, so values that
would need quotes there are rejected.
"""

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.files import shipped_folder
from t5suite.base.lookup import find
from t5suite.base.script_flags import script_command

MARKER = "# [t5suite: {}]"
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


@dataclass(frozen=True)
class BatchJob:
    """What a batch script is to run, and how.

    Attributes:
      kind: one of KINDS.
      options: values by name, of OPTIONS.
      words: the command; none: the template's own, if it has one.
      setup: a shell file that is sourced first (modules, an environment to activate).
      environment: variables to export, as `NAME=VALUE`.
      offline: no requests go to the hub or to W&B.
      signal_seconds: how long before the time limit the run is asked to stop; None: the template's.
      max_requeues: how often a job that was stopped is requeued; None: `slurm_jobs.MAX_REQUEUES`.
      log_dir: where the logs go; None: where the job was submitted.
    """

    kind: str
    options: dict[str, str]
    words: list[str]
    setup: str | None = None
    environment: Iterable[str] = ()
    offline: bool = False
    signal_seconds: int | None = None
    max_requeues: int | None = None
    log_dir: str | None = None


def render_job(job: BatchJob) -> str:
    """The batch script.

    Raises:
      ConfigError: a value that does not have its option's form, or a command that the template cannot run.
    """
    find(job.kind, KINDS, "kind of job", where="t5suite slurm")
    _check_command(job)
    directives = [*_options_of(job), *_signal_option(job), *_log_option(job)]
    settings = [*_exports(job), *_setup_lines(job.setup)]
    command = []
    if job.words:
        command = [f"set -- {shlex.join(job.words)}"]
    options = [f"#SBATCH --{directive}" for directive in directives]
    script = _template_without(job.kind, directives)
    # From the bottom up: filled-in text may look like a marker, and the first marker is the one that counts.
    script = _fill_in(script, "command", command)
    script = _fill_in(script, "settings", settings)
    return _fill_in(script, "options", options)


def _check_command(job: BatchJob) -> None:
    """Refuses a command that the template cannot run."""
    words = job.words
    if not words and job.kind in ARRAYS:
        raise ConfigError(f"t5suite slurm {job.kind}: the command is missing; give it after `--`")
    if not words:
        return
    if not words[0] or any("\0" in word for word in words):
        raise ConfigError("t5suite slurm: the command begins with an empty word, or holds a NUL character")
    nodes = job.options.get("nodes") or _nodes_of_template(job.kind)
    is_for_torchrun = nodes != "1" and job.kind not in ARRAYS
    if is_for_torchrun and not _is_for_each_gpu(words):
        raise ConfigError(
            f"t5suite slurm {job.kind} --nodes {nodes}: the command begins with {words[0]!r}, but on several "
            "nodes torchrun starts it; let it begin with python, or with t5suite fine_tune, pre_train or evaluate, "
            "such as: -- python pre_train_t5.py; or give --nodes 1"
        )


def _is_for_each_gpu(words: list[str]) -> bool:
    """Whether torchrun starts the command: the same ones as by `for_each_gpu` in slurm/*.sbatch."""
    program = Path(words[0]).name
    is_entry_script = program == "t5suite" and len(words) > 1 and script_command(words[1]) is not None
    return is_entry_script or program.startswith("python")


def _options_of(job: BatchJob) -> list[str]:
    """`gpus-per-node=4` of every option that is given."""
    directives = []
    for name, value in job.options.items():
        if not _is_allowed(name, value):
            example, meaning = OPTIONS[name]
            raise ConfigError(f"--{name} {value!r}: must be such as {example} ({meaning.replace('%%', '%')})")
        directives.append(f"{name.replace('_', '-')}={value}")
    return directives


def _is_allowed(name: str, value: str) -> bool:
    """Whether sbatch can be given this value of an option, without quotes."""
    if not re.fullmatch(PLAIN, value, re.ASCII):
        return False
    return name != "time" or _is_time_limit(value)


def _is_time_limit(text: str) -> bool:
    """Whether it is a time in Slurm's notation, and not zero."""
    return re.fullmatch(TIME, text, re.ASCII) is not None and seconds_of(text) > 0


def _signal_option(job: BatchJob) -> list[str]:
    """`signal=TERM@120` if the job has its own time for it; the template has another."""
    seconds_before, limit = KINDS[job.kind]
    if job.signal_seconds is not None:
        seconds_before = job.signal_seconds
    if "time" in job.options:
        limit = seconds_of(job.options["time"])
    if not 1 <= seconds_before < limit:
        time = job.options.get("time", "not given")
        raise ConfigError(
            f"--signal_seconds {seconds_before}: must be at least 1 and less than the time limit, {limit} s "
            f"(--time {time})"
        )
    if job.signal_seconds is None:
        return []
    return [f"signal=TERM@{seconds_before}"]


def _log_option(job: BatchJob) -> list[str]:
    """`output=logs/%x-%j.log` if the job has a folder of logs."""
    if job.log_dir is None:
        return []
    if not re.fullmatch(PLAIN_PATH, job.log_dir, re.ASCII):
        raise ConfigError(f"--log_dir {job.log_dir!r}: an #SBATCH line takes letters, digits and /._~@+=- only")
    name = "%x-%j.log"
    if job.kind in ARRAYS:
        name = "%x-%A_%a.log"
    return [f"output={job.log_dir}/{name}"]


def _exports(job: BatchJob) -> list[str]:
    """Lines of shell, every value quoted."""
    lines = []
    for pair in job.environment:
        name, equals, value = pair.partition("=")
        is_assignment = equals and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name)
        if not is_assignment or "\0" in value:
            raise ConfigError(f"--env {pair!r}: must be NAME=VALUE, such as T5SUITE_DATA_DIR=/scratch/data")
        lines.append(f"export {name}={shlex.quote(value)}")
    if job.offline:
        lines.append("export T5SUITE_OFFLINE=1")
    if job.max_requeues is not None:
        lines.append(f"export T5SUITE_MAX_REQUEUES={job.max_requeues}")
    if job.kind == "corpus" and "array" in job.options:
        lines.append(f"export T5SUITE_SHARDS={_shard_count(job.options['array'])}")
    return lines


def _shard_count(array: str) -> int:
    """How many shards an array makes.

    >>> _shard_count("0-63%8")
    64
    """
    match = re.fullmatch(r"0(?:-(\d+)(?::1)?)?(?:%\d+)?", array)
    if not match:
        raise ConfigError(f"--array {array!r}: shards count from 0 without gaps, such as 0-63 or 0-63%8")
    return int(match[1] or 0) + 1


def _setup_lines(setup: str | None) -> list[str]:
    """The line of shell that sources the user's file."""
    if setup is None:
        return []
    if "\0" in setup or not Path(setup).is_file():
        raise ConfigError(f"--setup {setup!r}: no such file")
    # Activation scripts read variables that are not set.
    return [f"set +u; source {shlex.quote(str(Path(setup).absolute()))} || exit 78; set -u"]


def _template(kind: str) -> str:
    return (shipped_folder("slurm") / f"{kind}.sbatch").read_text(encoding="utf-8")


def _nodes_of_template(kind: str) -> str:
    """The number of nodes that a kind's template asks for: `2` for `pre_train`."""
    return re.search(r"^#SBATCH --nodes=(.*)$", _template(kind), flags=re.MULTILINE)[1]


def _template_without(kind: str, directives: list[str]) -> str:
    """A kind's template, without its own lines of these options."""
    script = _template(kind)
    for directive in directives:
        name = re.escape(directive.partition("=")[0])
        script = re.sub(rf"^#SBATCH --{name}=.*\n", "", script, flags=re.MULTILINE)
    return script


def _fill_in(script: str, place: str, lines: list[str]) -> str:
    """The script with these lines at its first marker of the place."""
    before, marker, after = script.partition(MARKER.format(place) + "\n")
    assert marker, f"the template has no place for {place}"
    return before + "".join(f"{line}\n" for line in lines) + after


def seconds_of(time: str) -> int:
    """A time limit in Slurm's notation, in seconds.

    >>> [seconds_of(time) for time in ("90", "1:30", "4:00:00", "2-12", "1-0:30")]
    [5400, 90, 14400, 216000, 88200]
    """
    days, dash, clock = time.rpartition("-")
    numbers = [int(number) for number in clock.split(":")]
    if dash:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(numbers) == 1:
        return numbers[0] * 60
    hours, minutes, seconds = [0, *numbers][-3:]
    return (hours * 60 + minutes) * 60 + seconds
