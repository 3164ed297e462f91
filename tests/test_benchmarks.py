"""The harness of the measurements: turns, ratios, verdicts; and that every module of `make bench` has works with goals."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import absltest, parameterized

from benchmarks import __main__ as bench
from benchmarks import harness, jobs, page
from benchmarks.harness import Goal, Work


def ticking(seconds_of: dict) -> tuple[dict, list, mock.MagicMock]:
    """Contenders that move a clock by so many seconds, in the order in which they were called."""
    now, called = [0.0], []

    def contender(name):
        def call():
            called.append(name)
            now[0] += seconds_of[name]

        return call

    return {name: contender(name) for name in seconds_of}, called, lambda: now[0]


def found_with(goals: dict) -> dict:
    """What is found where ours takes a second for ten works, and two peers take four and two."""
    calls, _, clock = ticking({"ours": 1.0, "slow": 4.0, "other": 2.0})
    with mock.patch.dict(harness.CLOCKS, {"cpu": clock}):
        return harness.measure("X1", Work("work", calls, goals, "equal", calls=10), 7)


class HarnessTest(parameterized.TestCase):
    def test_a_ratio_is_judged_by_what_is_wanted_and_by_what_passes(self):
        for ratio, verdict in ((0.04, "met"), (0.05, "met"), (0.055, "passes"), (0.06, "passes"), (0.061, "missed")):
            self.assertEqual(Goal(0.05, 0.06).verdict(ratio), verdict)
            self.assertEqual(Goal(0.05).verdict(ratio), "met" if ratio <= 0.05 else "missed")

    def test_times_are_of_one_work_and_ratios_of_ours_to_each_peer(self):
        found = found_with({"slow": Goal(0.2, 0.3)})
        self.assertEqual(found["milliseconds"]["median"], 100)
        ratios = {name: peer["ratio"]["median"] for name, peer in found["peers"].items()}
        self.assertEqual(ratios, {"slow": 0.25, "other": 0.5})
        self.assertEqual(found["peers"]["slow"]["verdict"], "passes")
        self.assertNotIn("verdict", found["peers"]["other"])
        slow, other = harness.rows_of(found)
        self.assertIn("passes", slow)
        self.assertIn(" 0.250 ", slow)
        self.assertNotIn("passes", other)

    def test_a_command_writes_what_it_found_with_its_environment(self):
        calls, _, clock = ticking({"ours": 1.0, "slow": 4.0})
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(harness.CLOCKS, {"cpu": clock}):
            file = Path(folder, "found.json")
            works = {"X1": lambda device: Work(f"on {device}", calls, {}, "equal"), "X2": lambda device: None}
            report = harness.run("", works, ["--json", str(file)])
            self.assertEqual(json.loads(file.read_text(encoding="utf-8")), report)
        self.assertEqual([result["work"] for result in report["results"]], ["on cpu"])
        self.assertEqual(set(report["environment"]), {"hardware", "versions", "commit", "threads"})

    def test_a_module_that_fails_is_named_and_the_others_are_still_told(self):
        def run_module(module, *_):
            return None if module == "collator" else {"environment": {}, "results": [found_with({"slow": Goal(0.2)})]}

        with tempfile.TemporaryDirectory() as folder, mock.patch.object(bench, "run_module", run_module):
            file = Path(folder, "all.json")
            self.assertEqual(bench.main(["--only", "collator", "optimizers", "--json", str(file)]), 1)
            self.assertLen(json.loads(file.read_text(encoding="utf-8"))["results"], 1)


class PageTest(absltest.TestCase):
    def test_the_table_replaces_the_last_one_and_nothing_else(self):
        environment = {"hardware": {"processor": "EPYC", "cores": 2}, "commit": {"commit": "0" * 40, "changed": True}}
        environment["versions"] = dict.fromkeys(("python", "torch", "transformers", "tokenizers", "numpy"), "1.0")
        file = Path(tempfile.mkdtemp(), "page.md")
        file.write_text(
            "before\n<!-- cpu: what make bench found -->\nold\n<!-- cpu: end -->\nafter\n", encoding="utf-8"
        )
        for _ in range(2):
            page.write(file, {"environment": environment, "results": [found_with({"slow": Goal(0.2, 0.3)})]})
        text = file.read_text(encoding="utf-8")
        self.assertStartsWith(text, "before\n<!-- cpu")
        self.assertEndsWith(text, "<!-- cpu: end -->\nafter\n")
        self.assertNotIn("old", text)
        row = "| X1 | work | 100.00 ms | slow | 400.00 ms | **0.250** (0.250 to 0.250) | ≤ 0.2 | passes |"
        self.assertEqual(text.splitlines().count(row), 1)
        self.assertIn("EPYC, 2 cores, one thread used; python 1.0, ", text)
        self.assertIn("commit 0000000 with changes; 7 turns or more.", text)


class ModulesTest(parameterized.TestCase):
    def test_every_module_of_make_bench_has_works(self):
        for module in bench.MODULES:
            works = importlib.import_module(f"benchmarks.{module}").WORKS
            self.assertNotEmpty(works, module)
            for name in works:
                self.assertRegex(name, "^[A-Z][A-Z0-9]*[a-z]?$")

    @pytest.mark.slow
    def test_ours_and_the_peer_of_a_whole_job_come_to_their_end(self):
        for name in ("J5", "J6", "J7c"):
            for call in jobs.WORKS[name]("cpu").contenders.values():
                call()

    @pytest.mark.slow
    def test_the_gpu_script_runs_at_toy_size(self):
        root = Path(harness.__file__).parents[1]
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "DEVICE": "cpu", "OUT": folder, "PYTHON": sys.executable}
            for part, cases in (("runs", 4), ("paths", 4), ("profile", 1)):
                run = subprocess.run(["benchmarks/gpu.sh", part], cwd=root, env=env, capture_output=True, text=True)
                self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
                lines = [line for line in run.stdout.splitlines() if line.startswith("{")]
                self.assertLen(lines, cases)
                self.assertEqual({json.loads(line)["exit"] for line in lines}, {0})
            self.assertLen(json.loads(Path(folder, "paths-P3-fast_paths.json").read_text())["results"], 1)


if __name__ == "__main__":
    absltest.main()
