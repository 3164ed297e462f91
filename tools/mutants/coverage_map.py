"""Which tests execute a line: one run of the tests under coverage, their child processes included."""

import ast
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from coverage import CoverageData

from tools.mutants.contexts import DURATIONS_FILE

SETTINGS = Path(__file__).with_name("coverage.ini")
OWN_ROOT = Path(__file__).resolve().parent.parent.parent
# pytest's process notes "import|tests/test_a.py::A::test_b", the test's own "tests/test_a.py::A::test_b (call)".
TEST = re.compile(r"(?P<test>tests/[^|]*?)( \((setup|call|teardown)\))?$")


@dataclass(frozen=True)
class CoverageMap:
    """The tests that execute a line.

    Attributes:
      root: the checkout that the map was made of.
      tests: by file below the root, then by line: the tests that execute it.
      seconds: how long each test took.
    """

    root: Path
    tests: dict[str, dict[int, set[str]]]
    seconds: dict[str, float]

    def tests_of(self, path: str, first_line: int, last_line: int) -> list[str]:
        """The tests that execute one of these lines, quick ones first, then the others of their files.

        Those may look at what one of the first has made (`setUpClass`, `functools.cache`).
        What an import executes (a constant, a field, a signature) acts later, here or elsewhere: first come the tests
        that execute anything of the file, then those of the files that import it, then those of their importers.
        """
        lines = self.tests.get(path, {})
        executed_lines = [line for line in range(first_line, last_line + 1) if line in lines]
        if not executed_lines:
            return []
        if is_in_function(self.root / path, first_line):
            tests_of_lines = set().union(*(lines[line] for line in executed_lines))
            return self._quick_first(tests_of_lines) + self._quick_first(self._neighbours(tests_of_lines))
        tests: dict[str, None] = {}
        for paths in importers_by_distance(path, imported_modules(self.root, list(self.tests))):
            tests_of_files = set().union(*(lines for file in paths for lines in self.tests[file].values()))
            tests |= dict.fromkeys(self._quick_first(tests_of_files))
        return list(tests)

    def _neighbours(self, tests: set[str]) -> set[str]:
        """The other tests of the files of these."""
        files = {file_of_test(test) for test in tests}
        return {test for test in self.seconds if file_of_test(test) in files} - tests

    def _quick_first(self, tests: set[str]) -> list[str]:
        return sorted(tests, key=lambda test: (self.seconds.get(test, 0.0), test))


def file_of_test(test: str) -> str:
    """`tests/test_a.py::A::test_b` -> `tests/test_a.py`."""
    return test.partition("::")[0]


def imported_modules(root: Path, paths: list[str]) -> dict[str, set[str]]:
    """`{a file: the modules that it imports}`; `from a.b import c` counts as `a.b` and as `a.b.c`."""
    modules = {}
    for path in paths:
        tree = ast.parse((root / path).read_text(encoding="utf-8"))
        names = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        modules[path] = names
    return modules


def importers_by_distance(path: str, modules: dict[str, set[str]]) -> list[list[str]]:
    """`[[the file itself], [files that import it], [files that import those], ...]`, each file once."""
    rings = [[path]]
    remaining = sorted(set(modules) - {path})
    while rings[-1]:
        names = {module_name(file) for file in rings[-1]}
        rings.append([file for file in remaining if modules[file] & names])
        remaining = [file for file in remaining if file not in rings[-1]]
    return rings[:-1]


def module_name(path: str) -> str:
    """`t5suite/tasks/__init__.py` -> `t5suite.tasks`."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def is_in_function(path: Path, line: int) -> bool:
    """Whether a line stands in the body of a function, which imports do not execute."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return any(function.body[0].lineno <= line <= function.end_lineno for function in functions)


def make_map(root: Path, folder: Path, marks: str, processes: int, files: list[str]) -> None:
    """Runs the tests with these marks under coverage; `folder` then holds `coverage` and `durations.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    environment = {
        **os.environ,
        "T5SUITE_MAPPED": str(root),
        "T5SUITE_MAP": str(folder / "coverage"),
        "COVERAGE_PROCESS_START": str(SETTINGS),  # child processes read it, each with the variables of its test
        DURATIONS_FILE: str(folder / "durations.json"),
        "T5SUITE_QUICK_SECONDS": "1000",  # coverage makes Python slower
        "PYTHONPATH": os.pathsep.join([str(root), str(OWN_ROOT)]),
    }
    measured = [sys.executable, "-m", "coverage", "run", "--rcfile", str(SETTINGS), "-m", "pytest"]
    options = ["-q", "-p", "tools.mutants.contexts", "-n", str(processes), "--dist", "loadfile", "-m", marks]
    subprocess.run([*measured, *options, "--timeout", "3600", *files], cwd=root, env=environment, check=False)
    combine = [sys.executable, "-m", "coverage", "combine", "--quiet", "--rcfile", str(SETTINGS), str(folder)]
    subprocess.run(combine, cwd=root, env=environment, check=True)


def read_map(root: Path, folder: Path) -> CoverageMap:
    """The map that `make_map` left in a folder."""
    data = CoverageData(basename=str(folder / "coverage"))
    data.read()
    tests = {}
    for file in data.measured_files():
        path = Path(file)
        if path.suffix != ".py" or not path.is_file():  # a template, or what a test has written and run
            continue
        tests_by_line = {
            line: {test for test in map(test_of_context, contexts) if test}
            for line, contexts in data.contexts_by_lineno(file).items()
        }
        tests[str(Path(file).relative_to(root))] = tests_by_line
    seconds = json.loads((folder / "durations.json").read_text(encoding="utf-8"))
    return CoverageMap(root, tests, seconds)


def test_of_context(context: str) -> str | None:
    """`import|tests/test_a.py::A::test_b` -> `tests/test_a.py::A::test_b`; None for what no test runs."""
    match = TEST.search(context)
    return match["test"] if match else None
