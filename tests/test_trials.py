"""What a trial of a sweep runs in: devices and environment variables."""

import contextlib
import io
import itertools
import json
import os
import sys
import tempfile
from pathlib import Path
from unittest import mock

from absl.testing import parameterized

from t5suite.launch.trial_environments import devices_of_workers, trial_environment, visible_devices
from t5suite.testing import exits_with, run_cli


class DevicesTest(parameterized.TestCase):
    @parameterized.parameters(
        (2, "0123", None, [["0", "1"], ["2", "3"]]), (2, "012", None, [["0"], ["1"]]), (1, "01", 1, [["0"]]),
        (3, "01", None, [["0"], ["1"], ["0"]]), (2, "0123", 1, [["0"], ["1"]]), (2, "01", 0, [[], []]),
        (2, "", None, [None, None]), (1, "01", None, [None]),
    )  # fmt: skip
    def test_devices_are_shared_out(self, workers, devices, each, expected):
        self.assertEqual(devices_of_workers(workers, list(devices), each), expected)

    def test_visible_devices_are_those_of_the_environment(self):
        with mock.patch.dict(os.environ, {"CUDA_VISIBLE_DEVICES": "3, GPU-ab,"}):
            self.assertEqual(visible_devices(), ["3", "GPU-ab"])
        listed = mock.patch.object(os, "listdir", lambda path: ["nvidia3", "nvidiactl", "tty"])
        with mock.patch.dict(os.environ), listed:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            self.assertEqual(visible_devices(), ["0"])


# It notes when it ran, and on which device: the first trial runs until two others have ended.
NOTING_TRIAL = """#!/bin/sh
mkdir -p "$T5SUITE_RUN_DIR" && cd "$T5SUITE_RUN_DIR" || exit 1
begin=$(date +%s%N)
echo '{"step": 1, "seconds": 1.0, "eval/accuracy": 50.0}' > metrics.jsonl
[ "$1" != --seed=0 ] || while [ ! -e ../0002/results.json ]; do sleep 0.02; done
echo "$begin $(date +%s%N) $CUDA_VISIBLE_DEVICES" > noted
echo '{}' > results.json
"""


class WorkersTest(parameterized.TestCase):
    def test_trials_that_run_at_once_share_no_device_however_they_end(self):
        place = Path(tempfile.mkdtemp())
        (place / "trial").write_text(NOTING_TRIAL)
        (place / "trial").chmod(0o755)
        config = {
            "method": "grid",
            "metric": {"name": "eval/accuracy", "goal": "maximize"},
            "parameters": {"seed": {"values": list(range(5))}},
            "command": [str(place / "trial"), "${args}"],
        }
        (place / "sweep.yaml").write_text(json.dumps(config))
        devices = mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="0,1")
        with devices, contextlib.redirect_stdout(io.StringIO()):
            run_cli("sweep", place / "sweep.yaml", "--sweep_dir", place / "out", "--workers", 2)
        notes = [path.read_text().split() for path in place.glob("out/trials/*/noted")]
        self.assertLen(notes, 5)
        for (begin, end, device), (other_begin, other_end, other_device) in itertools.combinations(notes, 2):
            if int(begin) < int(other_end) and int(other_begin) < int(end):
                self.assertNotEqual(device, other_device)


class EnvironmentTest(parameterized.TestCase):
    def test_a_trials_surroundings(self):
        """Its run directory, its ids, and its share of threads; nothing of a server's sweep."""
        with mock.patch.dict(os.environ, {"WANDB_SWEEP_ID": "of-a-server", "PATH": "/bin"}):
            os.environ.pop("OMP_NUM_THREADS", None)
            environment = trial_environment("trials/0000", "abc-0000", "my sweep", 10**6, ["1", "2"])
        expected = {"T5SUITE_RUN_DIR": str(Path("trials/0000").absolute()), "WANDB_RUN_ID": "abc-0000",
                    "WANDB_RUN_GROUP": "my sweep", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "1,2",
                    "PATH": f"{Path(sys.executable).parent}{os.pathsep}/bin"}  # fmt: skip
        self.assertEqual({name: environment.get(name) for name in expected}, expected)
        self.assertNotIn("WANDB_SWEEP_ID", environment)


class CommandTest(parameterized.TestCase):
    @parameterized.parameters(
        (["python", "x y"], "ours", "python 'x y'"),
        (["python", "x y"], "theirs", "PATH={}:$PATH python 'x y'"),
        (["/usr/bin/env", "python", "x"], "theirs", "PATH={}:$PATH /usr/bin/env python x"),
        (["/opt/python", "x"], "theirs", "/opt/python x"),
        (["bash", "x"], "theirs", "bash x"),
    )
    def test_a_command_is_shown_with_our_programs_before_those_that_a_shell_would_find(self, words, first, expected):
        """As the record of a sweep has it; its only trial fails at once."""
        place = Path(tempfile.mkdtemp())
        for path in (place / "ours/python", place / "theirs/python", place / "theirs/bash"):
            path.parent.mkdir(exist_ok=True)
            path.write_text("#!/bin/sh\nexit 78\n")
            path.chmod(0o755)
        (place / "ours" / "python3").symlink_to(sys.executable)
        metric = {"name": "eval/accuracy", "goal": "maximize"}
        config = {
            "method": "grid",
            "metric": metric,
            "parameters": {"seed": {"values": [1]}},
            "command": [*words, "${args}"],
        }
        (place / "sweep.yaml").write_text(json.dumps(config))
        interpreter = mock.patch.object(sys, "executable", str(place / "ours" / "python3"))
        output = contextlib.redirect_stdout(io.StringIO())
        with interpreter, output, mock.patch.dict(os.environ, PATH=str(place / first)), exits_with(78):
            run_cli("sweep", place / "sweep.yaml", "--sweep_dir", place / "out")
        (trial,) = json.loads((place / "out" / "sweep.json").read_text())["trials"]
        self.assertEqual(trial["command"], expected.format(place / "ours") + " --seed=1")
