"""S5: the batch scripts of `slurm/` over stand-ins for `srun` and `scontrol`: what is requeued, how often, what never.

    >>> job = BatchJob(context, "fine_tune", ["python", "fine_tune_t5.py", "--max_steps", "40"])
    >>> job.start()
    >>> job.signal_when_training()          # as --signal=TERM@120 does: to the step, not to the script
    >>> job.wait(), job.requeues
    (75, ['4711'])

A job that asked to be requeued is started again with SLURM_RESTART_COUNT raised, as Slurm would. Real Slurm is the
affair of tests/test_slurm_cluster.py.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from faults.fork_server import ROOT, SLACK, environment
from faults.harness import Check, Context, Outcome, all_hold
from faults.leftovers import results_difference

JOB_ID = "4711"
TEMPLATES = ROOT / "slurm"
SECONDS = 100.0
# The step is the process that srun becomes.
SRUN = """#!/bin/bash
while [[ "${1:-}" == --* ]]; do shift; done
echo $$ > "$FAKE_SLURM/step"
exec "$@"
"""
SCONTROL = """#!/bin/bash
echo "$*" >> "$FAKE_SLURM/calls"
case "$1 ${2:-}" in
    "show hostnames") echo localhost ;;
    show*) echo "JobId=4711 JobState=${FAKE_STATE:-RUNNING} Reason=None Restarts=${SLURM_RESTART_COUNT:-0}" ;;
    requeue*) echo "$2" >> "$FAKE_SLURM/requeues" ;;
esac
"""
DIRECTIVES = {"--signal": r"TERM@\d+", "--requeue": None, "--open-mode": "append"}


class BatchJob:
    """A job, run as Slurm would, attempt by attempt.

    Args:
      template: the name of a file in `slurm/`, without its ending.
      command: what stands behind the script.
    """

    def __init__(self, context: Context, template: str, command: list[str], **changes: str):
        self.folder = context.folder("job")
        self.folder.mkdir()
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        self.command = ["bash", str(TEMPLATES / f"{template}.sbatch"), *map(str, command)]
        path = os.pathsep.join([str(self.folder), str(Path(sys.executable).parent), os.environ["PATH"]])
        job = {"SLURM_JOB_ID": JOB_ID, "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "localhost"}
        own = {"PATH": path, "FAKE_SLURM": str(self.folder), "T5SUITE_PROCESSES_PER_NODE": "1"}
        self.environment = environment(self.folder, **job, **own, **changes)
        self.log = self.folder / "log"
        self._process = None

    def start(self, restarts: int = 0) -> None:
        """One attempt."""
        (self.folder / "step").unlink(missing_ok=True)
        surroundings = {**self.environment, "SLURM_RESTART_COUNT": str(restarts)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.command, cwd=self.folder, env=surroundings, stdout=log, stderr=log)

    def signal_when_training(self, metrics: Path) -> None:
        """SIGTERM to the step once the run has logged a step.

        Raises:
          TimeoutError: it never did.
        """
        deadline = time.monotonic() + SECONDS * SLACK
        while not (metrics.is_file() and metrics.stat().st_size):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"no step was logged: {self.tail()}")
            time.sleep(0.005)
        os.kill(int((self.folder / "step").read_text()), signal.SIGTERM)

    def wait(self) -> int:
        """The script's exit code."""
        return self._process.wait(SECONDS * SLACK)

    def run(self, restarts: int = 0) -> int:
        """One attempt to its end."""
        self.start(restarts)
        return self.wait()

    @property
    def requeues(self) -> list[str]:
        """The jobs that scontrol was told to requeue."""
        path = self.folder / "requeues"
        return path.read_text().split() if path.exists() else []

    def tail(self) -> str:
        """The last lines of the job's log."""
        return " | ".join(self.log.read_text(errors="replace").split("\n")[-4:])[-500:]


def s5_slurm(context: Context) -> Outcome:
    """Stopped jobs come back and end as one that was not stopped; the others never, and none for ever."""
    found = {
        "the templates ask for the signal and for requeueing": _directives(),
        "fine-tuning, stopped once": _stopped_once(context, "fine_tune", "fine_tune_t5"),
        "bad configuration": _never_requeued(context, 78, ["--no_such_flag", "1"]),
    }
    if not context.quick:
        bad = context.directory / "bad.jsonl"
        bad.write_text('{"sentence": "a", "label": 7}\n')
        found |= {
            "pre-training, stopped once": _stopped_once(context, "pre_train", "pre_train_t5"),
            "stopped too often": _bounded(context),
            "bad data": _never_requeued(context, 65, ["--train_file", str(bad), "--validation_file", str(bad)]),
            "finished": _never_requeued(context, 0, context.flags("fine_tune_t5")),
        }
    return all_hold(found, "as Slurm is to see it")


def _directives() -> str | None:
    """The lines that Slurm itself acts on; an array of corpus shards has no run to stop."""
    for name in ("fine_tune", "pre_train", "sweep_agent"):
        text = (TEMPLATES / f"{name}.sbatch").read_text()
        said = dict(re.findall(r"^#SBATCH (--[\w-]+)(?:=(\S+))?", text, re.MULTILINE))
        for flag, value in DIRECTIVES.items():
            if flag not in said or (value and not re.search(value, said[flag])):
                return f"{name}.sbatch: {flag} {said.get(flag, 'is missing')}"
    return None


def _command(script: str, flags, directory) -> list[str]:
    return ["python", str(ROOT / f"{script}.py"), *flags, "--output_dir", str(directory)]


def _start_long(context, template, script, **changes) -> tuple[BatchJob, Path, list[str]]:
    """A run long enough to be signalled in the middle, with no checkpoint but that of the stop and the last."""
    flags = context.flags(script, max_steps=150, save_steps=1000)
    directory = context.folder("run")
    return BatchJob(context, template, _command(script, flags, directory), **changes), directory, flags


def _stopped_once(context, template, script) -> str | None:
    """75 and one requeue; then 0, no other requeue, and what an uninterrupted run has."""
    job, directory, flags = _start_long(context, template, script)
    job.start()
    job.signal_when_training(directory / "metrics.jsonl")
    code = job.wait()
    if (code, job.requeues, _status(directory)) != (75, [JOB_ID], "preempted"):
        return f"exit {code}, requeues {job.requeues}, {_status(directory)}: {job.tail()}"
    code = job.run(restarts=1)
    if (code, job.requeues, _status(directory)) != (0, [JOB_ID], "finished"):
        return f"started again: exit {code}, requeues {job.requeues}, {_status(directory)}: {job.tail()}"
    return results_difference(directory, context.reference(script, flags))


def _bounded(context) -> str | None:
    """T5SUITE_MAX_REQUEUES stops a job that is stopped for ever; its log says what to do."""
    job, directory, _ = _start_long(context, "fine_tune", "fine_tune_t5", T5SUITE_MAX_REQUEUES="2")
    job.start(restarts=2)
    job.signal_when_training(directory / "metrics.jsonl")
    code = job.wait()
    if (code, job.requeues) != (75, []):
        return f"exit {code}, requeues {job.requeues}: {job.tail()}"
    return None if "T5SUITE_MAX_REQUEUES=2" in job.log.read_text() else f"does not say why: {job.tail()}"


def _never_requeued(context, code: int, flags) -> str | None:
    job = BatchJob(context, "fine_tune", _command("fine_tune_t5", flags, context.folder("run")))
    found = job.run()
    return None if (found, job.requeues) == (code, []) else f"exit {found}, requeues {job.requeues}: {job.tail()}"


def _status(directory: Path) -> str:
    path = directory / "manifest.json"
    return json.loads(path.read_text())["status"] if path.exists() else "no run"


BATCH_JOBS = {
    "S5": Check(
        s5_slurm,
        "Slurm dry run, fake scontrol",
        "--signal, --requeue; 75 requeues once, bounded; 65/78 never",
        limit=600.0,
    )
}
