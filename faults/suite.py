"""Runs checks, several at once, each in a process of its own.

>>> results = run_checks(["R9", "C1"], quick=True, jobs=2)
>>> results[0].passed, results[0].observed
(True, 'fresh start, 8 steps')
"""

import contextlib
import importlib
import json
import os
import random
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from faults.fork_server import SLACK, ForkServer, call
from faults.harness import Check, Context

MODULES = {
    "R": ("faults.resume", "RESUME"),
    "C": ("faults.checkpoints", "CHECKPOINTS"),
    "S": ("faults.signals", "SIGNALS"),
    "N": ("faults.numerics", "NUMERICS"),
    "D": ("faults.data", "DATA"),
    "T": ("faults.trackers", "TRACKERS"),
    "X": ("faults.security", "SECURITY"),
}
COUNTS = {"R": 12, "C": 7, "S": 6, "N": 7, "D": 3, "T": 3, "X": 6}
NUMBERS = tuple(f"{letter}{i}" for letter, count in COUNTS.items() for i in range(1, count + 1))
POLL_SECONDS = 0.02


@dataclass
class Result:
    """A line of the table."""

    check: str
    injected: str
    expected: str
    observed: str
    passed: bool
    pending: str = ""
    seconds: float = 0.0


def all_checks(problems: dict[str, str] | None = None) -> dict[str, Check]:
    """Every check by its number, in the order of `NUMBERS`.

    Args:
      problems: takes the error of a module that cannot be loaded, under its letter; without it, that is raised.

    Raises:
      ValueError: a number stands in two tables, or is none of the suite's.
    """
    found = {}
    for letter, (module, table) in MODULES.items():
        try:
            checks = getattr(importlib.import_module(module), table)
        except Exception as error:
            if problems is None:
                raise
            problems[letter] = f"{module} cannot be loaded: {type(error).__name__}: {error}"
            continue
        for number, check in checks.items():
            if number in found or number not in NUMBERS:
                raise ValueError(f"{module}.{table}: {number} is {'there twice' if number in found else 'no check'}")
            found[number] = check
    return {number: found[number] for number in NUMBERS if number in found}


def run_checks(
    numbers=NUMBERS, *, quick=False, jobs=2, seed=0, folder=None, report: Callable[[Result], None] = lambda result: None
) -> list[Result]:
    """Runs checks and returns their results in the order of `numbers`.

    Args:
      folder: where everything is kept; a temporary one that is removed, if none is given.
      report: called with each result as it comes.
    """
    problems = {}
    checks = all_checks(problems)
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True)
        folder = Path(folder or stack.enter_context(temporary))
        folder.mkdir(parents=True, exist_ok=True)
        server = stack.enter_context(ForkServer(folder.resolve()))
        return Runner(checks, folder.resolve(), server, quick, seed, report, problems).run(numbers, jobs)


@dataclass
class Runner:
    """Keeps so many checks going.

    Attributes:
      folder: where everything is kept.
      problems: why the checks of a letter are not there.
    """

    checks: dict[str, Check]
    folder: Path
    server: ForkServer
    quick: bool = False
    seed: int = 0
    report: Callable[[Result], None] = lambda result: None
    problems: dict[str, str] = field(default_factory=dict)

    def run(self, numbers, jobs: int = 1) -> list[Result]:
        """All of them; those that may take longest first, so that none of these is left alone at the end."""
        limits = {number: self.checks[number].limit if number in self.checks else 0 for number in numbers}
        waiting, running, results = sorted(numbers, key=lambda number: -limits[number]), {}, {}
        while waiting or running:
            while waiting and len(running) < jobs:
                number = waiting.pop(0)
                if self.can_run(number):
                    running[number] = (self.start(number), time.monotonic())
                else:
                    results[number] = self.not_run(number)
            for number, (process, started) in list(running.items()):
                seconds = time.monotonic() - started
                if process.poll() is not None or seconds > limits[number] * SLACK:
                    # Whatever a check has left behind ends with it.
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    results[number] = self.result(number, seconds)
                    del running[number]
            time.sleep(POLL_SECONDS)
        return [results[number] for number in numbers]

    def can_run(self, number: str) -> bool:
        """Whether there is such a check, and it waits for nothing."""
        return number in self.checks and not self.checks[number].pending

    def start(self, number: str):
        """A process for a check."""
        directory = self.folder / number
        directory.mkdir()
        function = self.checks[number].function
        settings = {
            "target": f"{function.__module__}:{function.__qualname__}",
            "directory": str(directory),
            "server": self.server.address,
            "quick": self.quick,
            "seed": self.seed,
        }
        return self.server.start("faults.suite:run_check", settings, self.folder / f"{number}.log")

    def not_run(self, number: str) -> Result:
        """The line of a check that is not there or waits."""
        check = self.checks.get(number)
        if check is None:
            result = Result(number, "", "", self.problems.get(number[0], "there is no such check"), False)
        else:
            result = Result(number, check.injected, check.expected, "not run", False, check.pending)
        self.report(result)
        return result

    def result(self, number: str, seconds: float) -> Result:
        """What became of a check."""
        check = self.checks[number]
        line = Result(number, check.injected, check.expected, "", False, seconds=round(seconds, 2))
        path = self.folder / f"{number}.json"
        if path.is_file():
            found = json.loads(path.read_text())
            line.passed, line.observed, line.pending = found["passed"], found["observed"], found["pending"]
        elif seconds > check.limit * SLACK:
            line.observed = f"hangs: no end after {seconds:.0f} s"
        else:
            line.observed = f"its process died: {(self.folder / f'{number}.log').read_text()[-300:]}"
        self.report(line)
        return line


def run_check(settings: dict) -> int:
    """One check, in its own process: its outcome, or the error that it raised, goes into a file beside its folder."""
    directory = Path(settings["directory"])
    shared = directory.parent
    draws = random.Random(f"{settings['seed']} {directory.name}")
    server = ForkServer(shared, settings["server"])
    context = Context(directory, shared, server, settings["quick"], settings["seed"], draws)
    os.chdir(directory)
    try:
        found = asdict(call(settings["target"], context))
    except Exception as error:
        traceback.print_exc()
        found = {"passed": False, "observed": f"{type(error).__name__}: {error}", "pending": ""}
    temporary = shared / f"{directory.name}.json.new"
    temporary.write_text(json.dumps(found))
    temporary.rename(shared / f"{directory.name}.json")
    return 0
