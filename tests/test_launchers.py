"""Launchers: equal bytes with and without one, over nodes too; a signal to one alone, or its death, leaves one checkpoint and no process."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from absl.testing import parameterized
from process_trees import started, wait_for, wait_until_gone
from slurm_cluster import free_ports
from support import later_wins

ROOT = Path(__file__).parent.parent
FLAGS = [
    "--dataset_name", "sentiment,similarity", "--max_train_samples", "128", "--max_eval_samples", "40", "--max_steps", "12",
    "--per_device_train_batch_size", "8", "--disable_tqdm", "True", "--use_cpu",
]  # fmt: skip


def run(*launcher, flags=FLAGS):
    directory = Path(tempfile.mkdtemp()) / "run"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, *launcher, ROOT / "fine_tune_t5.py", *later_wins(flags), "--output_dir", directory]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, cwd=directory.parent)
    assert done.returncode == 0, done.stderr[-3000:]
    return directory


class LaunchersTest(parameterized.TestCase):
    @pytest.mark.slow
    @pytest.mark.launcher
    def test_accelerate_launch_gives_the_bytes_of_python(self):
        alone = run()
        launched = run("-m", "accelerate.commands.launch", "--num_processes", "1", "--cpu")
        for name in ("results.json", "predictions/sentiment.validation.jsonl", "model.safetensors"):
            self.assertEqual((alone / name).read_bytes(), (launched / name).read_bytes(), name)

    @pytest.mark.slow
    @pytest.mark.launcher
    def test_two_processes_on_one_node_or_two_write_every_row_once(self):
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
        flags = later_wins(FLAGS, ["--per_device_train_batch_size", "4", "--max_eval_samples", "17"])
        alone, two = run(flags=[*flags, "--per_device_train_batch_size", "8"]), run(*torchrun, flags=flags)
        for name in ("results.json", *(f"predictions/{task}.validation.jsonl" for task in ("sentiment", "similarity"))):
            self.assertEqual((alone / name).read_bytes(), (two / name).read_bytes(), name)
        folder = Path(tempfile.mkdtemp())
        path = f"{SCRIPTS}:{os.environ['PATH']}"
        nodes = [
            subprocess.Popen(
                [ROOT / "clusters/torchrun_node.sh", ROOT / "fine_tune_t5.py", *flags, "--output_dir", folder / "nodes"],
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": path, "NNODES": "2",
                     "MASTER": f"127.0.0.1:{port}", "PROCESSES": "1", "NODE_RANK": str(rank)}, cwd=folder,
            )
            for port in free_ports(1) for rank in range(2)
        ]  # fmt: skip
        self.assertEqual([node.wait(400) for node in nodes], [0, 0])
        for name in ("results.json", "model.safetensors"):
            self.assertEqual((folder / "nodes" / name).read_bytes(), (two / name).read_bytes(), name)


PYTHON = sys.executable
SCRIPTS = Path(PYTHON).parent
LAUNCHERS = {
    "python": [PYTHON],
    "accelerate": [PYTHON, str(SCRIPTS / "accelerate"), "launch"],
    "accelerate_2": [PYTHON, "-m", "accelerate.commands.launch", "--num_processes", "2", "--multi_gpu"],
    "torchrun_2": [PYTHON, str(SCRIPTS / "torchrun"), "--standalone", "--nproc_per_node", "2"],
    "deepspeed_2": [PYTHON, str(SCRIPTS / "deepspeed"), "--num_gpus", "2"],
}


@pytest.mark.slow
@pytest.mark.launcher
class StoppedLaunchersTest(parameterized.TestCase):
    """The bare lines of both scripts, stopped by a signal to the process that was started, and to no other."""

    def stop(self, launcher, script, number):
        """The run's manifest, its checkpoints, the launcher's exit code and the output, after the signal."""
        directory = Path(tempfile.mkdtemp())
        with started([*LAUNCHERS[launcher], str(ROOT / script)], directory) as (process, environment, log):
            wait_for(lambda: [p for p in directory.glob("runs/*/metrics.jsonl") if p.stat().st_size], process)
            self.assertIsNone(process.poll(), log.read_text()[-3000:])
            process.send_signal(number)
            code = process.wait(90)
            self.assertEqual(wait_until_gone(environment, 60), [], log.read_text()[-3000:])
            said = log.read_text()
        (run,) = directory.glob("runs/*")
        newest = max(int(path.name.partition("-")[2]) for path in run.glob("checkpoint-*"))
        self.assertFalse([path for path in run.iterdir() if path.name.startswith(".") and "checkpoint" in path.name])
        self.assertEqual(json.loads((run / "manifest.json").read_text())["status"], "preempted", said[-3000:])
        ranks = 2 if launcher.endswith("_2") else 1
        self.assertEqual(said.count(f"the same command goes on from checkpoint-{newest}"), ranks, said[-3000:])
        return code

    @parameterized.parameters(
        ("python", "fine_tune_t5.py", [75]),
        ("accelerate", "pre_train_t5.py", [-15]),  # it dies of the signal itself
        ("accelerate_2", "fine_tune_t5.py", [1]),
        ("torchrun_2", "pre_train_t5.py", [1]),
        ("deepspeed_2", "fine_tune_t5.py", [-15]),
    )
    def test_sigterm_to_the_launcher_alone(self, launcher, script, codes):
        self.assertIn(self.stop(launcher, script, signal.SIGTERM), codes)

    @parameterized.parameters("accelerate", "torchrun_2", "deepspeed_2")
    def test_a_launcher_that_is_killed(self, launcher):
        self.assertEqual(self.stop(launcher, "fine_tune_t5.py", signal.SIGKILL), -signal.SIGKILL)
