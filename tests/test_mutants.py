"""Faults that are drawn over the code (tools/mutants): what may be drawn, and what is said of the tests that run it."""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import libcst as cst
import pytest
from absl.testing import absltest, parameterized
from libcst.metadata import MetadataWrapper

from tools.mutants import coverage_map, faults, trials

CODE = textwrap.dedent('''\
    """What it does."""

    import logging

    LIMIT: int = 3
    logger = logging.getLogger("a")


    @staticmethod
    def largest(numbers: list, default=5):
        """Largest."""
        logger.warning("numbers: %s", 7 + 8)
        if not numbers:
            raise ValueError("none" + str(1 + 2))
        record(numbers)
        best = numbers[0]
        for number in numbers:
            if number > best:
                best = number
        return best
    ''')
# The statements of CODE that may hold a fault, by their lines.
PLACES = [5, 6, 13, 15, 16, 18, 19, 20]
MODULE = """\
import subprocess
import sys


def add(a, b):
    return a + b


def scale(a):
    return a * 2


def in_a_process():
    return int(subprocess.check_output([sys.executable, "-m", "t5suite.child"]))
"""
TESTS = """\
from t5suite import module


def test_add():
    assert module.add(2, 3) == 5


def test_scale_runs():
    module.scale(1)


def test_child():
    assert module.in_a_process() == 5
"""


class FaultTest(absltest.TestCase):
    def changes(self):
        return faults.changes_by_line(MetadataWrapper(cst.parse_module(CODE)))

    def test_every_statement_but_text_logging_and_errors_has_faults(self):
        self.assertEqual(sorted(self.changes()), PLACES)

    def test_a_fault_changes_its_own_statement_alone(self):
        module = MetadataWrapper(cst.parse_module(CODE))
        lines = CODE.splitlines()
        for line, changes in faults.changes_by_line(module).items():
            for change in changes:
                changed = module.module.deep_replace(change.node, change.replacement).code.splitlines()
                differing = [i for i, (a, b) in enumerate(zip(lines, changed, strict=True), start=1) if a != b]
                self.assertEqual(differing, [line], change)

    def test_a_condition_is_turned_round_and_a_call_is_left_out(self):
        kinds = {line: {change.kind for change in changes} for line, changes in self.changes().items()}
        self.assertIn("condition turned round", kinds[13])
        self.assertIn("condition turned round", kinds[18])
        self.assertIn("statement left out", kinds[15])
        self.assertIn("result is None", kinds[20])

    def test_a_seed_draws_the_same_faults_each_at_a_place_of_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            root = repository(Path(folder), CODE)
            drawn = faults.draw_faults(root, 5, "4dc07eb0")
            self.assertEqual(drawn, faults.draw_faults(root, 5, "4dc07eb0"))
            self.assertNotEqual(drawn, faults.draw_faults(root, 5, "5a53234c"))
            self.assertLen({fault.line for fault in drawn}, 5)
            every_place = faults.draw_faults(root, 100, "4dc07eb0")
        self.assertCountEqual([fault.line for fault in every_place], PLACES)

    def test_a_change_is_told_by_its_lines(self):
        self.assertEqual(faults.describe_change("a\n  b = 1\nc\n", "a\n  b = 2\nc\n"), "b = 1  ->  b = 2")
        self.assertEqual(faults.describe_change("a\nb\nc\n", "a\nc\n"), "b  ->  (left out)")


class CoverageMapTest(parameterized.TestCase):
    @parameterized.parameters(
        ("import|tests/test_a.py::A::test_b", "tests/test_a.py::A::test_b"),
        ("tests/test_a.py::A::test_b[1 (x)] (call)", "tests/test_a.py::A::test_b[1 (x)]"),
        ("tests/test_a.py::test_b (setup)", "tests/test_a.py::test_b"),
        ("import", None),
        ("", None),
    )
    def test_a_context_names_its_test(self, context, test):
        self.assertEqual(coverage_map.test_of_context(context), test)

    def test_the_tests_of_a_line_quick_ones_first(self):
        tests = self.mapped()
        self.assertEqual(tests.tests_of("p/a.py", 5, 6), ["quick", "slow"])
        self.assertEqual(tests.tests_of("p/a.py", 6, 6), ["slow"])
        self.assertEqual(tests.tests_of("p/a.py", 2, 3), [], "nothing executes them")
        self.assertEqual(tests.tests_of("p/none.py", 1, 1), [])

    def test_what_an_import_executes_acts_in_its_file_then_in_those_that_import_it(self):
        tests = self.mapped()
        nearest_first = ["quick", "imports a", "slow", "uses b", "uses c"]
        self.assertEqual(tests.tests_of("p/a.py", 1, 1), nearest_first)
        self.assertEqual(tests.tests_of("p/a.py", 4, 4), nearest_first, "a default of a parameter")
        self.assertEqual(tests.tests_of("p/__init__.py", 1, 1), ["uses c"], "a name of the package")

    def mapped(self):
        """`b` and `c` import `a`, `c` the package and `b`, `d` nothing."""
        root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        texts = {
            "p/a.py": "LIMIT = 1\n\n\ndef f(limit=LIMIT):\n    x = 1\n    return x\n",
            "p/b.py": "from p.a import LIMIT\n",
            "p/c.py": "def g():\n    import p\n    from p import b\n",
            "p/d.py": "",
            "p/__init__.py": "NAME = 1\n",
        }
        for path, text in texts.items():
            (root / path).parent.mkdir(exist_ok=True)
            (root / path).write_text(text)
        lines = {
            "p/a.py": {1: {"imports a"}, 4: {"imports a"}, 5: {"slow", "quick"}, 6: {"slow"}},
            "p/b.py": {1: {"uses b"}},
            "p/c.py": {2: {"uses c"}},
            "p/d.py": {1: {"uses d"}},
            "p/__init__.py": {1: set()},
        }
        return coverage_map.CoverageMap(root, lines, {"slow": 2.0, "quick": 0.1, "imports a": 1.0})

    def test_tests_that_may_look_at_what_another_has_made_come_last(self):
        root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        (root / "a.py").write_text("def f():\n    return 1\n")
        makes, looks, other = "t/a.py::A::makes", "t/a.py::B::looks", "t/b.py::B::other"
        tests = coverage_map.CoverageMap(root, {"a.py": {2: {makes}}}, {makes: 3.0, looks: 0.1, other: 0.1})
        self.assertEqual(tests.tests_of("a.py", 2, 2), [makes, looks])


@pytest.mark.slow
class TrialTest(absltest.TestCase):
    """A repository of ten lines, its map and its faults."""

    def test_a_fault_is_caught_by_the_test_that_would_fail_or_survives(self):
        folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        root = repository(folder / "root", MODULE)
        coverage_map.make_map(root, folder / "quick", "not slow", 1, [])
        mapped = coverage_map.read_map(root, folder / "quick")
        prefix = "tests/test_module.py::"
        self.assertEqual(mapped.tests_of("t5suite/module.py", 6, 6)[0], prefix + "test_add")
        self.assertEqual(mapped.tests_of("t5suite/child.py", 1, 1), [prefix + "test_child"])
        written = [
            faults.Fault("t5suite/module.py", 6, 6, "", MODULE.replace("a + b", "a - b")),
            faults.Fault("t5suite/module.py", 10, 10, "", MODULE.replace("a * 2", "a * 3")),
            faults.Fault("t5suite/child.py", 1, 1, "", "print(6)\n"),
        ]
        trees = trials.Trees(root, folder / "trees", 1)
        outcomes = list(trees.try_all(written, mapped))
        self.assertEqual(
            [outcome.caught_by for outcome in outcomes], [prefix + "test_add", None, prefix + "test_child"]
        )
        self.assertEqual([outcome.num_tests for outcome in outcomes], [3, 3, 1])


def repository(root: Path, code: str) -> Path:
    """A checkout that holds `code` as the suite's only module, and its tests."""
    files = {"t5suite/module.py": code, "t5suite/child.py": "print(5)\n", "tests/test_module.py": TESTS}
    files |= {"fine_tune_t5.py": "", "pre_train_t5.py": "", "t5suite/__init__.py": ""}
    files["pytest.ini"] = "[pytest]\nmarkers = slow\npythonpath = .\n"
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "all"]):
        subprocess.run([*git, *command], check=True, env=environment, stdout=sys.stderr)
    return root


if __name__ == "__main__":
    absltest.main()
