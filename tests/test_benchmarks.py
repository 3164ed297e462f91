"""The harness of the measurements: turns, ratios, verdicts; that every module of `make bench` has works with goals; and
the commands that a person with a GPU runs, as far as a CPU can tell."""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import parameterized
from support import later_wins

from benchmarks import __main__ as bench
from benchmarks import harness, jobs, precisions, pretrain_and_compare
from benchmarks.harness import Goal, Work
from t5suite.testing import parse_flags


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
            contenders = jobs.WORKS[name]("cpu").contenders
            self.assertGreaterEqual(len(contenders), 2, name)
            for call in contenders.values():
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


def options(**given):
    base = {"device": "cuda", "steps": 60, "text": None, "tokenizer": None}
    return argparse.Namespace(**{**base, **given})


class PrecisionsTest(parameterized.TestCase):
    @parameterized.parameters(*precisions.CASES)
    def test_every_case_is_a_run_that_the_script_takes(self, case):
        words = precisions.command(case, options(device="cpu"), Path(tempfile.mkdtemp()) / "run")
        settings = parse_flags("pre_train_t5", words[2:])
        self.assertEqual((settings["bf16"], settings["torch_compile"]), ("bf16" in case, "compiled" in case))
        self.assertEqual(settings["max_steps"] // settings["logging_steps"], 6)
        # A GPU's words differ by precision and sizes alone.
        words = precisions.command(case, options(tokenizer="t5-small", text=["a.txt", "b.txt"]), Path("run"))
        self.assertIn("t5-v1_1-base", words)
        self.assertEqual(words[words.index("--tf32") + 1], str(not case.startswith("float32")))
        self.assertEqual(words[words.index("--train_file") + 1 :][:2], ["a.txt", "b.txt"])
        self.assertNoCommonElements(words, ("--use_cpu", "--config_overrides"))


class PretrainAndCompareTest(parameterized.TestCase):
    @parameterized.parameters(*pretrain_and_compare.DEVICES)
    def test_flags_of_both_scripts_are_taken(self, device):
        settings, trial = pretrain_and_compare.DEVICES[device], pretrain_and_compare.TRIAL.split()
        on_cpu = lambda words: [word for word in words.split() if word not in ("--bf16", "--use_cpu")]
        with tempfile.TemporaryDirectory() as folder:
            shared = ["--config_overrides", settings["model"], "--output_dir", folder, "--use_cpu"]
            for script, words in (
                ("pre_train_t5", settings["pre_training"]),
                ("pre_train_t5", " ".join(later_wins(settings["pre_training"].split(), trial))),
                ("fine_tune_t5", settings["fine_tuning"]),
            ):
                parse_flags(script, [*on_cpu(words), *shared])
