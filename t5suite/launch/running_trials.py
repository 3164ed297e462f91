"""A trial that a worker runs: its files, the wait for the process that ran it before, and how long it has run.

>>> trial = RunningTrial(claim, TrialFiles(Path("runs/sweeps/rte"), 7), TrialProcess(words, log, environment))
>>> if not trial.waits_for_former_process(grace=60):
...     trial.begin()
>>> trial.ask_to_end("pruned", grace=60)
"""

import math
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

from t5suite.base.errors import EXIT_BUG, EXIT_FINISHED, EXIT_PREEMPTED, ConfigError
from t5suite.base.programs import Notes, clear_notes
from t5suite.launch.process_groups import leftovers, signal_group
from t5suite.launch.sweep_store import Claim
from t5suite.launch.sweep_tables import say
from t5suite.launch.trials import TrialProcess
from t5suite.runs.directory import METRICS
from t5suite.runs.lock import RunLock

# For processes whose driver has died, before they are signalled again: launchers forward signals, and a script takes
# the third one as a request to stop at once.
SECONDS_TO_END = 5.0
MAX_STARTS = 20
# Exit codes of a trial that something else ended: minus the signal, or 128 and the signal where a launcher reports it.
LOST = [
    -signal.SIGKILL, -signal.SIGTERM, -signal.SIGHUP,
    128 + signal.SIGKILL, 128 + signal.SIGTERM, 128 + signal.SIGHUP,
]  # fmt: skip
# What launchers exit with when the kernel kills a worker: torchrun 1, DeepSpeed minus the signal as an unsigned byte.
LAUNCHERS_CODES_OF_LOSS = (EXIT_BUG, 256 - signal.SIGKILL)


def was_killed(exit_code: int, notes: Notes) -> bool:
    """Whether something else ended a trial's processes, or a worker of its launcher."""
    was_worker_lost = exit_code in LAUNCHERS_CODES_OF_LOSS and notes.lost_count > 0 and notes.first_failure() is None
    return exit_code in LOST or was_worker_lost


@dataclass(frozen=True)
class TrialFiles:
    """The files of a sweep's trial: its run directory, and those next to it."""

    sweep_dir: Path
    number: int

    @property
    def run_dir(self) -> Path:
        """`trials/0007`."""
        return self.sweep_dir / "trials" / f"{self.number:04d}"

    @property
    def metrics(self) -> Path:
        """The run's metrics."""
        return self.run_dir / METRICS

    @property
    def log(self) -> Path:
        """What its processes print."""
        return self.run_dir.with_suffix(".log").absolute()

    @property
    def exit_codes(self) -> Path:
        """The exit codes of its last start's workers, of which a launcher says nothing (`base.programs`)."""
        return self.run_dir.with_suffix(".codes").absolute()

    @property
    def parameters(self) -> Path:
        """The file of `${args_json_file}`."""
        return self.run_dir.with_suffix(".json").absolute()


@dataclass
class RunningTrial:
    """A trial that a worker of this process has.

    Attributes:
      began: when its process was started; None: it was not yet.
      rung: how many comparisons it has passed.
      stopped: why it was asked to end: "pruned", "preempted", or "" if it was not.
      signalled: whether its former process was asked to end, or the wait for it was reported.
    """

    claim: Claim
    files: TrialFiles
    process: TrialProcess
    began: float | None = None
    rung: int = 0
    stopped: str = ""
    waiting_since: float = field(default_factory=time.monotonic)
    signalled: bool = False

    def seconds(self) -> float:
        """How long it has run, earlier starts included."""
        seconds = self.claim.status.get("seconds", 0.0)
        if self.began is not None:
            seconds += time.monotonic() - self.began
        return round(seconds, 1)

    def seconds_before(self) -> float:
        """How long its earlier starts have run."""
        status = self.claim.status
        seconds = status.get("seconds", 0.0)
        if self.claim.former and self.files.metrics.is_file():
            # The former process's end was not recorded: count until the last line that it logged.
            seconds += max(0.0, self.files.metrics.stat().st_mtime - status.get("since", math.inf))
        return round(seconds, 1)

    def begin(self) -> None:
        """Lets the process become the trial's command."""
        clear_notes(self.files.exit_codes)
        self.process.start()
        self.began = time.monotonic()

    def ask_to_end(self, reason: str, grace: float) -> None:
        """Asks its processes to end, and to write a checkpoint within `grace` seconds; the first reason counts."""
        self.stopped = self.stopped or reason
        if self.began is not None:
            self.process.stop(grace)

    def may_restart(self) -> bool:
        """Whether it has been started less often than a trial is."""
        return self.claim.status["starts"] < MAX_STARTS

    def cause_of_end(self, exit_code: int, notes: Notes) -> str:
        """Why its processes have ended: "finished", "pruned", "preempted", "killed" or "failed".

        Args:
          exit_code: of its workers (`base.programs.code_of_workers`).
        """
        if exit_code == EXIT_FINISHED:
            return "finished"
        if self.stopped:
            return self.stopped
        if not self.may_restart():
            return "failed"
        if exit_code == EXIT_PREEMPTED:
            return "preempted"
        if was_killed(exit_code, notes):
            return "killed"
        return "failed"

    def pass_rung(self) -> None:
        """Counts a comparison with other trials."""
        self.rung += 1

    def waits_for_former_process(self, grace: float) -> bool:
        """Whether the process that ran the trial before has not ended; asks it to end, in time by force."""
        if leftovers(self.claim.former):
            self._signal_former_process(grace)
            return True
        if self.claim.former and self.files.run_dir.is_dir():
            return self._waits_for_other_machine()
        return False

    def _signal_former_process(self, grace: float) -> None:
        """Signals the former process, which ends by itself at first: its driver's death has sent it a signal."""
        waited = time.monotonic() - self.waiting_since
        group = self.claim.former["pid"]
        if waited > SECONDS_TO_END + grace:
            signal_group(group, signal.SIGKILL)
            self.signalled = True
        elif waited > SECONDS_TO_END and not self.signalled:
            signal_group(group, signal.SIGTERM)
            self.signalled = True

    def _waits_for_other_machine(self) -> bool:
        """Whether a process of another machine holds the lock of the run directory."""
        try:
            RunLock(self.files.run_dir).acquire().release()
        except ConfigError:
            if not self.signalled:
                say(f"trial {self.claim.number}: waiting for its former process, which runs on another machine")
                self.signalled = True
            return True
        return False
