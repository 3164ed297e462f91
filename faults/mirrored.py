"""Runs of the real scripts with W&B on a loopback server, and what the server, or `wandb sync`, makes of them.

>>> with loopback() as server:
...     watched = Watched.start(context, "fine_tune_t5", server)
...     watched.victim.wait()
...     watched.problem(server)                # None, or what is wrong
"""

import contextlib
import importlib
import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from faults import patches
from faults.fork_server import ROOT, environment
from faults.harness import Context, difference
from faults.leftovers import history_difference
from faults.victims import Victim
from t5suite.runs.directory import METRICS
from t5suite.tracking.metric_lines import MetricLines, rows_by_step

SCRIPTS = ("fine_tune_t5", "pre_train_t5")
STEPS = list(range(1, 9))
# wandb takes about 2 s to start beside a run on one core.
STEP_SECONDS = 0.5


def loopback():
    """A W&B server; the tests' own, which lies outside any package."""
    sys.path.append(str(ROOT / "tests"))
    return importlib.import_module("wandb_server").WandbServer()


@dataclass
class Watched:
    """A run whose metrics W&B is to mirror.

    Attributes:
      variables: the environment that leads to W&B, with no key of this machine's user.
    """

    context: Context
    script: str
    argv: list[str]
    variables: dict[str, str]
    victim: Victim

    @classmethod
    def start(cls, context: Context, script: str, server, *, seconds=STEP_SECONDS, patch=(), **variables) -> "Watched":
        """Starts a run.

        Args:
          seconds: what every step takes longer.
          patch: further patches (`patches.kill_at_step`).
          variables: of the environment, over the server's; None takes one away.
        """
        ours = {**server.environment(), "NETRC": os.devnull, **variables}
        ours = {name: value for name, value in ours.items() if value is not None}
        argv = context.flags(script, report_to="wandb")
        watched = cls(context, script, argv, ours, None)
        watched.go(context.folder(script), partial(patches.slow_steps, seconds), *patch)
        return watched

    def go(self, directory, *patch) -> None:
        """Starts the run, or starts it again."""
        self.victim = self.context.victim(
            self.script, self.argv, directory=directory, env=self.variables, patch=list(patch)
        )

    @property
    def directory(self) -> Path:
        """The run's."""
        return self.victim.directory

    @property
    def warnings(self) -> list[str]:
        """What the run warned of W&B."""
        return [line for line in self.victim.output.splitlines() if line.startswith("WARNING") and "W&B" in line]

    def damage(self, warnings: int) -> str | None:
        """What W&B's failure did to the run beside so many warnings, or None."""
        reference = self.context.reference(self.script, self.context.flags(self.script))
        if self.victim.code != 0:
            return f"exit {self.victim.code}: {self.victim.tail()}"
        if len(self.warnings) != warnings:
            return f"{len(self.warnings)} warnings: {self.warnings}"
        return difference(self.directory, reference) or history_difference(self.directory, reference)

    def loss(self, server) -> str | None:
        """What the server shows that is not `metrics.jsonl`, each step once, in one run; None if nothing."""
        run_id = json.loads((self.directory / "manifest.json").read_text())["run_id"]
        runs = [
            run for run in server.runs.values() if run.config.get("output_dir", {}).get("value") == str(self.directory)
        ]
        if [run.name for run in runs] != [run_id]:
            return f"the server has runs {[run.name for run in runs]}, the run is {run_id}"
        sent = [json.loads(line)["_step"] for line in runs[0].sent]
        if sent != STEPS or runs[0].steps() != STEPS:
            return f"steps {sent} were sent and {runs[0].steps()} are there"
        rows = rows_by_step(MetricLines(self.directory / METRICS).new_lines())
        for (step, row), there in zip(rows, runs[0].rows(), strict=True):
            missing = [name for name, value in row.items() if not same(there.get(name), value)]
            if missing:
                return f"step {step}: {missing[0]} is {there.get(missing[0])} there, {row[missing[0]]} here"
        return None

    def sync(self, server) -> str | None:
        """Sends offline segments with wandb's own command; None, or what it said."""
        segments = sorted(map(str, self.directory.glob("wandb/offline-run-*")))
        command = [str(Path(sys.executable).with_name("wandb")), "sync", *segments]
        return self._command(command, server) if segments else "no offline segment"

    def mirror(self, server) -> str | None:
        """Sends what W&B lacks with the command that the warning names; None, or what it said."""
        return self._command([sys.executable, "-m", "t5suite.tracking.mirror", str(self.directory), "wandb"], server)

    def _command(self, command, server) -> str | None:
        surroundings = environment(self.context.directory, **server.environment(), NETRC=os.devnull)
        done = subprocess.run(command, capture_output=True, text=True, timeout=40, env=surroundings, cwd=self.directory)
        return f"{' '.join(command[:3])} exits {done.returncode}: {done.stderr[-300:]}" if done.returncode else None

    def wait_until_mirrored(self, server) -> None:
        """Waits for the run to be known to W&B."""
        self.victim.wait_until(
            lambda: any(
                run.config.get("output_dir", {}).get("value") == str(self.directory) for run in server.runs.values()
            ),
            "run at the W&B server",
        )

    def processes(self) -> dict[str, int]:
        """W&B's processes: `mirror`, ours, and `service`, wandb's."""
        found = {}
        for process in psutil.Process(self.victim.processes[0].pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = " ".join(process.cmdline())
                names = {"mirror": "tracking.mirror", "service": "wandb-core"}
                found |= {name: process.pid for name, word in names.items() if word in words and name not in found}
        return found

    def signal(self, name: str, number: int = signal.SIGKILL) -> None:
        """Sends a signal to `mirror` or `service`."""
        os.kill(self.processes()[name], number)


def same(there, here) -> bool:
    """Whether two values of a metric are equal; one that is not a number equals another one.

    >>> same(math.nan, math.nan), same(None, 1.0)
    (True, False)
    """
    return there == here or (there is not None and math.isnan(there) and math.isnan(here))
