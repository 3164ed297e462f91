"""Golden traces tell any difference between two runs, and none between two that did the same."""

import copy
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from absl.testing import parameterized
from safetensors.numpy import save_file

from tools.golden.observing import differences, effect_lines, log_lines, trace_of

ROOT = Path(__file__).resolve().parent.parent
LOG = "step 3/20 · loss 5.402 · 0.0383 s/step · 6.4k tokens/s · waiting for data 5% · 0.59 GB · 12s left\n"
EFFECTS = "write .vm.4950.manifest.json\nrename .vm.4950.manifest.json to manifest.json\nwrite metrics.jsonl\n"


def run_directory(loss=5.402, weight=1.0, seconds=1.0) -> Path:
    """What a run of one step leaves."""
    directory = Path(tempfile.mkdtemp()) / "run"
    (directory / "checkpoint-1").mkdir(parents=True)
    line = {"step": 1, "train/loss": loss, "seconds": seconds, "train/data_wait": seconds}
    (directory / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    (directory / "results.json").write_text('{"tasks": {}}')
    save_file({"w": np.full(3, weight, np.float32)}, directory / "checkpoint-1/model.safetensors")
    return directory


class TraceTest(parameterized.TestCase):
    def trace(self, log=LOG, effects=EFFECTS, **changes):
        return trace_of(run_directory(**changes), [log], effects)

    def test_clocks_process_ids_and_speeds_make_no_difference(self):
        other_log = LOG.replace("0.0383", "0.2").replace("6.4k", "900").replace(" · waiting for data 5%", "")
        other_effects = EFFECTS.replace("4950", "17")
        self.assertEqual(differences(self.trace(), self.trace(other_log, other_effects, seconds=2.0)), [])

    @parameterized.parameters(
        ({"loss": 5.402000000000001}, "/metrics[0]/train/loss: 5.402 -> 5.402000000000001"),
        ({"weight": np.nextafter(np.float32(1), np.float32(2))}, "/weights/checkpoint-1: "),
        ({"log": LOG.replace("5.402", "5.403")}, "/log[0]: "),
        ({"effects": "".join(reversed(EFFECTS.splitlines(keepends=True)))}, "/effects[0]: "),
    )
    def test_a_last_bit_a_word_or_an_order_makes_one(self, change, place):
        lines = differences(self.trace(), self.trace(**change))
        self.assertTrue(lines[0].startswith(place), lines)

    def test_what_one_side_alone_has_is_told(self):
        before = self.trace()
        after = copy.deepcopy(before)
        after["metrics"].append({"step": 2})
        del after["weights"]["checkpoint-1"]
        places = [line.partition(":")[0] for line in differences(before, after)]
        self.assertEqual(places, ["/metrics", "/weights/checkpoint-1"])

    def test_lines_that_a_terminal_overwrites_are_no_log(self):
        self.assertEqual(log_lines("a\rb\n 10%|# | 1/10 [00:00<00:01, 3.2it/s]\nloss 1\n"), ["loss 1"])

    def test_the_same_change_twice_in_a_row_counts_once(self):
        self.assertEqual(effect_lines("write a\nwrite a\nwrite b\nwrite a\n"), ["write a", "write b", "write a"])


@pytest.mark.slow
class RecordTest(parameterized.TestCase):
    def test_a_recorded_run_equals_itself_and_not_one_of_another_seed(self):
        place = Path(tempfile.mkdtemp())
        for name in ("before", "after"):
            self.call("record", place / name, "--only", "plain")
        self.assertEqual(self.call("compare", place / "before", place / "after"), "plain.json: equal\n")
        (trace_file,) = (place / "before").glob("*.json")
        trace = json.loads(trace_file.read_text())
        self.assertEqual([line["step"] for line in trace["metrics"] if "train/loss" in line], [*range(1, 21)])
        self.assertIn("rename .temporary.manifest.json to manifest.json", trace["effects"])
        self.assertContainsSubset({"checkpoint-10", "checkpoint-20"}, trace["weights"])

    def call(self, *words) -> str:
        command = [sys.executable, "-m", "tools.golden", *map(str, words)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True).stdout
