"""How a process knows its launcher and ends with it, and which tasks of srun are ranks of one run."""

import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from unittest import mock

from absl.testing import parameterized
from process_trees import started, wait_for, wait_until_gone, with_mark

from t5suite.training.processes.launchers import first_host, join_srun, launcher_name, ranks_of_srun

PYTHON = sys.executable
STEP = {
    "SLURM_JOB_ID": "70", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "gpu[003-005,9]", "SLURM_NODEID": "1", "SLURM_PROCID": "3", "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "7",
}  # fmt: skip
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


class SlurmRanksTest(parameterized.TestCase):
    def test_tasks_of_a_step_are_ranks_that_agree_on_a_port_and_steps_do_not(self):
        port = str(12000 + 31 * 70 + 2)
        expected = {"RANK": "3", "WORLD_SIZE": "7", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "gpu003"}
        self.assertEqual(ranks_of_srun(STEP), {**expected, "MASTER_PORT": port})
        self.assertEqual(ranks_of_srun({**STEP, "SLURM_PROCID": "0"})["MASTER_PORT"], port)
        self.assertNotEqual(ranks_of_srun({**STEP, "SLURM_STEP_ID": "3"})["MASTER_PORT"], port)
        self.assertLess(int(ranks_of_srun({**STEP, "SLURM_JOB_ID": "67043328"})["MASTER_PORT"]), 32768)

    @parameterized.parameters(
        {"WORLD_SIZE": "2"}, {"RANK": "0"}, {"WANDB_SWEEP_ID": "x"}, {"WANDB_RUN_ID": "x"}, {"T5SUITE_RUN_DIR": "x"},
        {"T5SUITE_SLURM_RANKS": "0"}, {"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_ID": ""},
        {"ACCELERATE_DYNAMO_BACKEND": "NO"},
    )  # fmt: skip
    def test_trials_workers_and_lone_tasks_are_left_alone(self, **change):
        self.assertEqual(ranks_of_srun({**STEP, **change}), {})

    @parameterized.parameters(
        ({}, "2", False),
        ({"SLURM_STEP_NUM_TASKS": "1"}, None, False),
        ({"WANDB_SWEEP_ID": "x"}, None, False),
        ({"T5SUITE_SLURM_RANKS": "0"}, None, True),
    )
    def test_what_sruns_mpi_says_is_not_taken_for_ranks(self, change, world_size, kept):
        step = {**STEP, "SLURM_STEP_NUM_TASKS": "2", "PMI_SIZE": "2", "PMI_RANK": "1", **change}
        with mock.patch.dict(os.environ, step):
            join_srun()
            self.assertEqual((os.environ.get("WORLD_SIZE"), "PMI_SIZE" in os.environ), (world_size, kept))

    @parameterized.parameters(
        ("gpu1", "gpu1"), ("gpu[003-005,9],login1", "gpu003"), ("a,b", "a"), ("n[1-2]-ib", "n1-ib"), ("n[7]", "n7"),
    )  # fmt: skip
    def test_the_first_host_is_read_from_slurms_list(self, hosts, first):
        self.assertEqual(first_host(hosts), first)
