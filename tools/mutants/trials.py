"""Runs the tests of a fault's line in a copy of the repository that holds the fault."""

import itertools
import os
import queue
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.mutants.coverage_map import CoverageMap
from tools.mutants.faults import Fault

# A test that takes a minute and this many times as long as the longest of the map hangs.
PATIENCE = 10
FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/\S+)", re.MULTILINE)
# Files get times of their own: Python takes a compiled file for current that has the source's size and second.
_times = itertools.count(1_000_000_000)


@dataclass(frozen=True)
class Outcome:
    """What the tests said of a fault.

    Attributes:
      caught_by: the first test that failed, None if all pass.
      num_tests: how many tests execute the line.
      unsound_tests: tests that failed with the fault, and without it, too; they decide nothing.
    """

    fault: Fault
    caught_by: str | None
    num_tests: int
    unsound_tests: tuple[str, ...] = ()


class Trees:
    """Copies of a repository's commit, one a process, in each of which one fault at a time is tried."""

    def __init__(self, root: Path, folder: Path, count: int):
        self.folder = folder
        self._free: queue.Queue[Path] = queue.Queue()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        data = root.parent / "shared"
        if data.is_dir():
            (folder / "shared").symlink_to(data.resolve())
        for number in range(count):
            tree = folder / f"tree-{number}"
            subprocess.run(["git", "clone", "--quiet", str(root), str(tree)], check=True)
            self._free.put(tree)

    def try_all(self, faults: list[Fault], coverage_map: CoverageMap):
        """The outcomes, in the order of the faults."""
        with ThreadPoolExecutor(self._free.qsize()) as pool:
            yield from pool.map(lambda fault: self.try_fault(fault, coverage_map), faults)

    def try_fault(self, fault: Fault, coverage_map: CoverageMap) -> Outcome:
        """Runs the tests that execute the fault's line until one fails that passes without the fault."""
        tests = coverage_map.tests_of(fault.path, fault.line, fault.last_line)
        tree = self._free.get()
        try:
            return self._try_in(tree, fault, tests, coverage_map)
        finally:
            self._free.put(tree)

    def _try_in(self, tree: Path, fault: Fault, tests: list[str], coverage_map: CoverageMap) -> Outcome:
        remaining, unsound = list(tests), []
        original = (tree / fault.path).read_text(encoding="utf-8")
        while remaining:
            try:
                write_source(tree / fault.path, fault.code)
                failed_test = first_failure(tree, remaining, coverage_map)
            finally:
                write_source(tree / fault.path, original)
            if failed_test is None:
                break
            if first_failure(tree, [failed_test], coverage_map) is None:
                return Outcome(fault, failed_test, len(tests), tuple(unsound))
            unsound.append(failed_test)
            remaining = remaining[remaining.index(failed_test) + 1 :]
        return Outcome(fault, None, len(tests), tuple(unsound))


def write_source(path: Path, code: str) -> None:
    """Writes a file of Python so that no compiled form of its last content is taken for it."""
    path.write_text(code, encoding="utf-8")
    time = next(_times)
    os.utime(path, (time, time))


def first_failure(tree: Path, tests: list[str], coverage_map: CoverageMap) -> str | None:
    """The first of the tests that fails in a tree, or hangs; None if all pass."""
    list_file = tree.parent / f"{tree.name}.tests"
    list_file.write_text("\n".join(tests) + "\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tree), "T5SUITE_QUICK_SECONDS": "1000"}
    longest = max(coverage_map.seconds.get(test, 1.0) for test in tests)
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb", "no", "-m", "slow or not slow"]
    timeout = ["--timeout", str(60 + round(PATIENCE * longest))]
    command = [sys.executable, "-m", "pytest", *options, *timeout, f"@{list_file}"]
    run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if run.returncode == 0:
        return None
    failure = FAILED.search(run.stdout)
    if failure and failure[1] in tests:
        return failure[1]
    return tests[0]  # the fault keeps pytest from starting, or a whole file from being imported
