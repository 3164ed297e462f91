"""Launchers: equal bytes with and without one, over nodes too; a signal to one alone, or its death, leaves one checkpoint and no process."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from absl.testing import parameterized
from process_trees import marked, wait_until_gone, with_mark
from slurm_cluster import free_ports
from support import later_wins

from t5suite.training.processes.launchers import launcher_name

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
# A worker of each launcher, in the launcher's own words, which takes half a second to start.
STAND_IN = """
import os, sys, time
from t5suite.base.errors import run_command
from t5suite.training.processes.launchers import stop_with_launchers
from t5suite.training.processes.signals import catch_signals

def main(argv=None):
    stop = catch_signals()
    stop_with_launchers()
    with stop.phase("training"):
        print("training", os.getpid(), flush=True)
        while not stop.requested:
            time.sleep(0.05)
    raise stop.preempted(7, "checkpoint-7")

sys.exit(run_command(main))
"""


@contextlib.contextmanager
def started(command, directory, **changes):
    """`(process, environment, log)`; what is left of it is killed."""
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo"}
    environment, log = marked("launcher", **own, **changes), directory / "log"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, cwd=directory, stdout=output, stderr=output)
        try:
            yield process, environment, log
        finally:
            for pid in with_mark(environment):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def wait_for(condition, process, seconds=400):
    deadline = time.monotonic() + seconds
    while not condition() and not (process and process.poll() is not None) and time.monotonic() < deadline:
        time.sleep(0.1)


class NamesTest(parameterized.TestCase):
    def test_launchers_are_known_by_their_command_lines(self):
        for command, name in (
            ("/opt/bin/python3.11 /opt/bin/accelerate launch --cpu fine_tune_t5.py", "accelerate"),
            ("python -u -m torch.distributed.run fine_tune_t5.py", "torchrun"),
            ("python -u -m deepspeed.launcher.launch --world_info=x fine_tune_t5.py", "deepspeed"),
            ("torchrun fine_tune_t5.py", "torchrun"), ("python fine_tune_t5.py torchrun", None), ("python -m", None),
            ("python", None), ("/bin/bash -c torchrun", None), ("slurmstepd: [4711.0]", None), ("", None),
            ("/opt/bin/python /opt/bin/wandb agent e/p/s", None),  # it ends its trials itself, or lets them go on
        ):  # fmt: skip
            self.assertEqual(launcher_name(command.split()), name, command)


class StandInTest(parameterized.TestCase):
    """Processes that look as launchers do, around a worker without torch."""

    def start_below(self, name, directory, waits=True):
        """A launcher by name that starts a shell that starts the worker, and does not pass signals on."""
        launcher, worker = directory / name, directory / "worker.py"
        worker.write_text(STAND_IN)
        shell = f"{PYTHON} {worker}; true"
        wait = "child.wait()" if waits else "pass"
        launcher.write_text(f"import subprocess\nchild = subprocess.Popen(['/bin/sh', '-c', {shell!r}])\n{wait}\n")
        return started([PYTHON, str(launcher)], directory)

    @parameterized.product(name=["accelerate", "torchrun", "deepspeed"], number=[signal.SIGTERM, signal.SIGKILL])
    def test_a_worker_stops_with_a_launcher_that_dies(self, name, number):
        directory = Path(tempfile.mkdtemp())
        with self.start_below(name, directory) as (process, environment, log):
            wait_for(lambda: "training" in log.read_text(), process, 30)
            process.send_signal(number)
            self.assertEqual(wait_until_gone(environment, 15), [])
            said = log.read_text()
        self.assertIn(f"the launcher ({name}, process {process.pid}) has ended: this process stops, too", said)
        self.assertIn("stopped: SIGTERM: stopped after step 7; the same command goes on from checkpoint-7", said)

    def test_a_worker_goes_on_without_a_parent_that_is_no_launcher(self):
        directory = Path(tempfile.mkdtemp())
        with self.start_below("nohup_of_ours", directory, waits=False) as (process, environment, log):
            process.wait(30)
            wait_for(lambda: "training" in log.read_text(), None, 30)
            time.sleep(2.5)
            self.assertNotEmpty(with_mark(environment))
            os.kill(int(re.search(r"training (\d+)", log.read_text())[1]), signal.SIGTERM)
            self.assertEqual(wait_until_gone(environment, 15), [])
            self.assertNotIn("the launcher", log.read_text())


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
