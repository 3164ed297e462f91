"""`python` and `accelerate launch` give equal bytes for one process; two processes score the same rows."""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from absl.testing import absltest, parameterized
from later_flags import later_wins

from t5suite.base.errors import ConfigError
from t5suite.training.processes.ranks import check_meeting_place

ROOT = Path(__file__).parent.parent
FLAGS = [
    "--dataset_name", "sentiment,similarity", "--max_train_samples", "128", "--max_eval_samples", "40", "--max_steps", "12",
    "--per_device_train_batch_size", "8", "--disable_tqdm", "True", "--use_cpu",
]  # fmt: skip


def run(*launcher, flags=FLAGS):
    directory = Path(tempfile.mkdtemp()) / "run"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [
        sys.executable,
        *launcher,
        str(ROOT / "fine_tune_t5.py"),
        *later_wins(flags),
        "--output_dir",
        str(directory),
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, cwd=directory.parent)
    assert done.returncode == 0, done.stderr[-3000:]
    return directory


class LaunchersTest(parameterized.TestCase):
    def test_accelerate_launch_gives_the_bytes_of_python(self):
        alone = run()
        launched = run("-m", "accelerate.commands.launch", "--num_processes", "1", "--cpu")
        for name in ("results.json", "predictions/sentiment.validation.jsonl", "model.safetensors"):
            self.assertEqual((alone / name).read_bytes(), (launched / name).read_bytes(), name)

    @parameterized.parameters(("2", "0", True), ("2", "29500", False), ("1", "0", False))
    def test_ranks_that_would_meet_at_no_port_are_refused(self, world_size, port, refused):
        environ = {"WORLD_SIZE": world_size, "MASTER_PORT": port}
        with self.assertRaisesRegex(ConfigError, "--standalone") if refused else contextlib.nullcontext():
            check_meeting_place(environ)

    @pytest.mark.slow
    @pytest.mark.launcher
    def test_two_processes_write_every_row_once(self):
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
        flags = later_wins(FLAGS, ["--per_device_train_batch_size", "4", "--max_eval_samples", "17"])
        alone, two = run(flags=[*flags, "--per_device_train_batch_size", "8"]), run(*torchrun, flags=flags)
        for name in (
            "results.json",
            "predictions/sentiment.validation.jsonl",
            "predictions/similarity.validation.jsonl",
        ):
            self.assertEqual((alone / name).read_bytes(), (two / name).read_bytes(), name)


if __name__ == "__main__":
    absltest.main()
