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
from dataclasses import asdict, dataclass
from pathlib import Path

from faults.fork_server import ForkServer
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
    with contextlib.ExitStack() as stack:
        folder = Path(folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-")))
        folder.mkdir(parents=True, exist_ok=True)
        server = stack.enter_context(ForkServer(folder))
        return Runner(folder.resolve(), server, quick, seed, report).run(numbers, jobs)


@dataclass
class Runner:
    """Keeps so many checks going."""

    folder: Path
    server: ForkServer
    quick: bool
    seed: int
    report: Callable[[Result], None]

    def run(self, numbers, jobs: int) -> list[Result]:
        """All of them; the longest first, so that the last one does not keep the others' cores idle."""
        problems, results, running = {}, {}, {}
        checks = all_checks(problems)
        waiting = sorted(numbers, key=lambda number: -checks[number].limit if number in checks else 0)
        while waiting or running:
            while waiting and len(running) < jobs:
                number = waiting.pop(0)
                result = _not_run(number, checks.get(number), problems)
                if result is None:
                    running[number] = (self.start(number), time.monotonic())
                else:
                    results[number] = result
                    self.report(result)
            for number, (process, started) in list(running.items()):
                seconds = time.monotonic() - started
                late = seconds > checks[number].limit
                if process.poll() is None and not late:
                    continue
                # Whatever a check has left behind ends with it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                result = self.result(number, checks[number], seconds, late)
                del running[number]
                results[number] = result
                self.report(result)
            time.sleep(POLL_SECONDS)
        return [results[number] for number in numbers]

    def start(self, number: str):
        """A process for a check."""
        directory = self.folder / number
        directory.mkdir()
        settings = {
            "number": number,
            "directory": str(directory),
            "shared": str(self.folder),
            "server": self.server.address,
            "quick": self.quick,
            "seed": self.seed,
        }
        return self.server.start("faults.suite:run_check", settings, self.folder / f"{number}.log")

    def result(self, number: str, check: Check, seconds: float, late: bool) -> Result:
        """What became of a check."""
        line = Result(number, check.injected, check.expected, "", False, seconds=round(seconds, 2))
        path = self.folder / f"{number}.json"
        if path.is_file():
            found = json.loads(path.read_text())
            line.passed, line.observed, line.pending = found["passed"], found["observed"], found["pending"]
        elif late:
            line.observed = f"hangs: no end after {check.limit:g} s"
        else:
            line.observed = f"its process died: {(self.folder / f'{number}.log').read_text()[-300:]}"
        return line


def _not_run(number: str, check: Check | None, problems: dict[str, str]) -> Result | None:
    if check is None:
        return Result(number, "", "", problems.get(number[0], "there is no such check"), False)
    if check.pending:
        return Result(number, check.injected, check.expected, "not run", False, check.pending)
    return None


def run_check(settings: dict) -> int:
    """One check, in its own process: its outcome, or the error that it raised, goes into a file."""
    number, directory = settings["number"], Path(settings["directory"])
    shared = Path(settings["shared"])
    draws = random.Random(f"{settings['seed']} {number}")
    server = ForkServer(shared, settings["server"])
    context = Context(directory, shared, server, settings["quick"], settings["seed"], draws)
    os.chdir(directory)
    try:
        found = asdict(all_checks({})[number].function(context))
    except Exception as error:
        traceback.print_exc()
        found = {"passed": False, "observed": f"{type(error).__name__}: {error}", "pending": ""}
    temporary = shared / f"{number}.json.new"
    temporary.write_text(json.dumps(found))
    temporary.rename(shared / f"{number}.json")
    return 0
