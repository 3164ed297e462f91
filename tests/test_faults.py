"""The fault suite itself: every check is there once, the harness tells good from bad, and one check of each kind."""

import ast
import contextlib
import json
import os
import pkgutil
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from absl.testing import absltest, parameterized

import t5suite
from faults import report, saves, traces
from faults.fork_server import ForkServer
from faults.harness import Check, outcome
from faults.leftovers import value_difference
from faults.suite import NUMBERS, Result, Runner, all_checks

FAULTS = Path(report.__file__).parent
# A function that a check replaces in a process of its own.
TARGET = re.compile(r'"((?:t5suite|transformers|torch|pathlib|os)[\w.]*:[\w.]+)"')
# One of each kind; `make faults` runs them all.
QUICK = ("R7", "C6", "S1", "N4", "D2", "T1", "X6")


class TableTest(parameterized.TestCase):
    def test_every_check_is_there_and_says_what_it_does(self):
        for number in NUMBERS:
            check = all_checks()[number]
            self.assertTrue(callable(check.function) and check.injected and check.expected, number)

        self.assertLen(set(NUMBERS), 44)
        self.assertContainsSubset(all_checks(), NUMBERS)
        self.assertSameElements(report.STOCK, NUMBERS)

    def test_what_it_imports_of_the_suite_later_is_there(self):
        """In a process of its own a missing name would be a fault of the check."""
        names = set()
        for path in FAULTS.glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("t5suite"):
                    names.update(f"{node.module}:{alias.name}" for alias in node.names)
        self.assertGreater(len(names), 20)
        for name in sorted(names):
            with self.subTest(name):
                self.assertIsNotNone(pkgutil.resolve_name(name))

    def test_what_it_replaces_is_there_and_is_called_through_its_module(self):
        """Who imports a function by its name before it is replaced calls the old one, and the fault never comes."""
        imported = set()
        modules = {*Path(t5suite.__file__).parent.rglob("*.py")}
        modules -= {*Path(t5suite.__file__).parent.glob("fine_tuner*.py")}  # the checks run the scripts
        for path in modules:
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ImportFrom):
                    imported.update(f"{node.module}:{alias.name}" for alias in node.names)
        targets = set()
        for path in FAULTS.glob("*.py"):
            text = path.read_text(encoding="utf-8").replace("{PACKAGE}", saves.PACKAGE)
            targets.update(TARGET.findall(text))
        self.assertGreater(len(targets), 15)
        for target in sorted(targets):
            with self.subTest(target):
                self.assertIsNotNone(pkgutil.resolve_name(target))
                self.assertFalse(target in imported)


def passes(context):
    return outcome(True, f"quick {context.quick}, {context.rng.random()}")


def raises(context):
    raise OSError("the disk is gone")


def hangs(context):
    child = subprocess.Popen(["sleep", "600"])
    (context.directory / "child").write_text(str(child.pid))
    time.sleep(600)


def dies(context):
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
class RunnerTest(absltest.TestCase):
    def test_what_does_not_hold_fails_says_so_and_takes_its_processes_along(self):
        from tests import test_faults as examples  # a name by which processes of the suite find them

        checks = {name: Check(getattr(examples, name), "a", "b") for name in ("passes", "raises", "dies")}
        checks["hangs"] = Check(examples.hangs, "a", "b", limit=2)
        folder = Path(self.enter_context(tempfile.TemporaryDirectory())).resolve()
        server = self.enter_context(ForkServer(folder))
        runner = Runner(checks, folder, server, quick=True, seed=1, report=lambda result: None)
        results = {result.check: result for result in runner.run([*checks, "Z9"], jobs=3)}
        self.assertEqual({name for name, result in results.items() if result.passed}, {"passes"})
        (folder / "passes").rename(folder / "before")
        self.assertEqual(runner.run(["passes"])[0].observed, results["passes"].observed)  # drawn by the seed
        for name, observed in (
            ("passes", "quick True"), ("raises", "OSError: the disk is gone"), ("hangs", "hangs: no end after"),
            ("dies", "its process died"), ("Z9", "there is no such check"),
        ):  # fmt: skip
            self.assertIn(observed, results[name].observed)
        state = Path(f"/proc/{(folder / 'hangs' / 'child').read_text()}/stat")
        for _ in range(100):
            if not state.exists() or state.read_text().split()[2] == "Z":
                return
            time.sleep(0.05)
        self.fail(f"{state} is still there")


LINE = {
    "step": 1, "time": 1.0, "rank": 0, "world_size": 1, "batch": "b", "rows": ["r"], "loss": "0x1p+0",
    "learning_rate": "0x1p-3", "weights": "w", "optimizer": "o",
}  # fmt: skip


class TracesTest(parameterized.TestCase):
    def trace(self, *lines):
        directory = Path(tempfile.mkdtemp()) / "run"
        folder = Path(f"{directory}.trace")
        folder.mkdir()
        for number, line in enumerate(lines):
            line = {**LINE, "time": float(number), **line}
            traces.append_line(folder / traces.file_name(line["rank"]), line)
        return traces.read(directory)

    @parameterized.parameters(*traces.EXACT)
    def test_one_bit_of_anything_is_found(self, key):
        expected, other = self.trace({}, {"step": 2}), self.trace({}, {"step": 2, key: LINE[key] + "1"})
        self.assertIsNone(traces.compare(expected, self.trace({}, {"step": 2})))
        self.assertStartsWith(traces.compare(other, expected), f"step 2 rank 0: {key}")

    def test_a_step_done_again_must_come_out_the_same(self):
        self.assertIsNone(traces.compare(self.trace({}, {}), self.trace({})))
        again = self.trace({"loss": "0x1p+1"}, {})
        self.assertIn("done again", traces.compare(again, self.trace({})))
        self.assertEqual((again.order, again.redone), ([1, 1], 1))

    def test_two_ranks_give_way_to_one(self):
        two = [{"world_size": 2, "rank": rank, "rows": [str(rank)]} for rank in (1, 0)]
        trace = self.trace(*two, {"rows": ["0", "1"]})
        self.assertEqual((list(trace.steps[1]), trace.rows(1), trace.conflict), ([0], ["0", "1"], None))

    def test_a_hash_sees_type_shape_and_every_byte(self):
        import torch

        zeros = torch.zeros(2, 3)
        others = [zeros.T, zeros.double(), zeros.clone().index_fill_(0, torch.tensor([1]), 1e-45), zeros.bfloat16()]
        hashes = {traces.tensors_hash({"a": [tensor, 1]}) for tensor in [zeros, *others]}
        self.assertLen(hashes, 5)
        self.assertEqual(traces.tensors_hash({"a": zeros}), traces.tensors_hash({"a": zeros.clone()}))


class LeftoversTest(absltest.TestCase):
    def test_the_first_difference_is_named_by_its_path(self):
        self.assertEqual(value_difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}), "a.1.b: 3 there, 2 here")
        self.assertIsNone(value_difference({"a": [1]}, {"a": [1]}))
        self.assertIn("a: None there, 1 here", value_difference({"a": 1}, {}))


class ReportTest(absltest.TestCase):
    RESULTS = [
        Result("R1", "kill", "exact", "3 of 3 exact", True, seconds=1.0),
        Result("C1", "kill | save", "exact", "a long observation " * 20, False, seconds=2.0),
        Result("S5", "dry run", "requeued", "not run", False, "no launcher yet"),
    ]

    def test_the_json_becomes_markdown_beside_the_stock_trainer(self):
        path = Path(tempfile.mkdtemp()) / "faults.json"
        report.write_json(path, self.RESULTS, seconds=3.0, settings={"seed": 1})
        found = json.loads(path.read_text())
        self.assertEqual((found["passed"], found["total"], found["seed"]), (1, 3, 1))
        rows = report.markdown(found).splitlines()
        self.assertIn(f"| R1 | kill | exact | {report.STOCK['R1']} | 3 of 3 exact | yes |", rows)
        self.assertTrue(any("kill \\| save" in row for row in rows))


@pytest.mark.slow
@pytest.mark.resume
class QuickTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))).resolve()
            server = stack.enter_context(ForkServer(folder))
            cls.runner = Runner(all_checks(), folder, server, quick=True)
            cls.addClassCleanup(stack.pop_all().close)

    @parameterized.parameters(*QUICK)
    def test_one_check_of_each_kind(self, number):
        result = self.runner.run([number])[0]
        self.assertTrue(result.passed, report.line(result))
