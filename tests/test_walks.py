"""The count of files that a reader opens to follow a value: what is counted at a milestone, and one walk of a real run."""

import subprocess
import sys
from pathlib import Path

import pytest
from absl.testing import parameterized

from tools.walks import Walk, functions_of_ours

ROOT = Path(__file__).resolve().parent.parent


class CountTest(parameterized.TestCase):
    def test_files_and_calls_between_files_count_once(self):
        walk = Walk()
        walk.add([("a.py", "main"), ("a.py", "helper"), ("b.py", "read"), ("c.py", "parse")])
        walk.add([("a.py", "main"), ("b.py", "read"), ("b.py", "open"), ("a.py", "helper"), ("b.py", "read")])
        self.assertEqual(list(walk.files), ["a.py", "b.py", "c.py"])
        hops = [
            ("a.py:helper", "b.py:read"),
            ("b.py:read", "c.py:parse"),
            ("a.py:main", "b.py:read"),
            ("b.py:open", "a.py:helper"),
        ]
        self.assertEqual(list(walk.hops), hops)

    def test_only_frames_of_the_package_and_the_scripts_are_ours(self):
        calls = []
        code = compile("def lead(call):\n    call()\n", str(ROOT / "t5suite" / "imagined.py"), "exec")
        names = {}
        exec(code, names)
        names["lead"](lambda: calls.extend(functions_of_ours(sys._getframe())))
        self.assertEqual(calls, [("t5suite/imagined.py", "lead")])  # neither this file's frames nor pytest's


class RunsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("row", ["fine_tune_t5.py", "t5suite/tasks/tokens.py", "t5suite/training/trainer.py"]),
        ("checkpoint_written", ["fine_tune_t5.py", "t5suite/training/trainer.py"]),
        ("checkpoint_resumed", ["fine_tune_t5.py", "t5suite/training/trainer.py"]),
        ("flag", ["fine_tune_t5.py", "t5suite/training/trainer.py"]),
        ("block", ["pre_train_t5.py", "t5suite/training/trainer.py"]),
        ("sweep_parameter", ["t5suite/cli.py"]),
        ("stop", ["fine_tune_t5.py", "t5suite/base/programs.py", "t5suite/training/trainer.py"]),
    )
    @pytest.mark.slow
    def test_a_walk_of_a_real_run_passes_the_files_that_it_must(self, name, files):
        command = [sys.executable, "-m", "tools.walks", name, "--files"]
        process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
        self.assertEqual(process.returncode, 0, process.stderr[-2000:])
        title, *lines = process.stdout.splitlines()
        self.assertContainsSubset(files, lines)
        hops = [line for line in lines if " -> " in line]
        self.assertRegex(title, rf"{name} +{len(lines) - len(hops)} files +{len(hops)} hops")
