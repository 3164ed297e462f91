"""How a script knows its launcher and ends with it, and which tasks of srun are ranks of one run.

A script that runs is the real one; a stand-in for torch, the first large library that it imports, shows how far it has
come.
"""

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
from unittest import mock

import pytest
from absl.testing import parameterized
from process_trees import started, wait_for, wait_until_gone, with_mark

from t5suite.training.processes.launchers import join_srun

PYTHON = sys.executable
ROOT = Path(__file__).parent.parent
SCRIPT = [PYTHON, str(ROOT / "fine_tune_t5.py")]
# While this torch is imported, the run is set up.
SLOW_TORCH = "import os, time\nprint('importing torch in process', os.getpid(), flush=True)\ntime.sleep(60)\n"
# Says what the script has made of its environment, and ends it.
TORCH_THAT_SHOWS_THE_ENVIRONMENT = "import json, os\nprint(json.dumps(dict(os.environ)), flush=True)\nos._exit(0)\n"
# A program that starts the first of the commands in its environment, which may start the next, and passes no signal on.
PARENT = """
import json, os, subprocess
command, *next_commands = json.loads(os.environ["COMMANDS"])
environment = {**os.environ, "COMMANDS": json.dumps(next_commands)}
if not next_commands:
    environment["PYTHONPATH"] = os.pathsep.join([os.environ["SLOW_TORCH"], os.environ["PYTHONPATH"]])
subprocess.Popen(command, env=environment).wait()
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class LauncherTest(parameterized.TestCase):
    """The script below processes that have the command lines of launchers, and of other programs."""

    def start_below(self, *commands: list[str]):
        """The first command starts the second, and so on; the last one starts the script."""
        directory = Path(tempfile.mkdtemp())
        for program in ("accelerate", "torchrun", "deepspeed", "wandb", "own_script.py"):
            write(directory / "bin" / program, PARENT)
        for package, module in (
            ("accelerate/commands", "launch"), ("torch/distributed", "run"), ("deepspeed/launcher", "launch"),
        ):  # fmt: skip
            write(directory / Path(package).parent / "__init__.py", "")
            write(directory / package / "__init__.py", "")
            write(directory / package / f"{module}.py", PARENT)
        write(directory / "slow" / "torch.py", SLOW_TORCH)
        first, *others = commands
        variables = {"COMMANDS": json.dumps([*others, SCRIPT]), "SLOW_TORCH": str(directory / "slow")}
        return started(first, directory, **variables)

    @parameterized.parameters(
        ("bin/accelerate launch --cpu fine_tune_t5.py", "accelerate", signal.SIGTERM),
        ("-u -m torch.distributed.run fine_tune_t5.py", "torchrun", signal.SIGKILL),
        ("bin/deepspeed fine_tune_t5.py", "deepspeed", signal.SIGTERM),
        ("-m accelerate.commands.launch fine_tune_t5.py", "accelerate", signal.SIGKILL),
        ("bin/accelerate launch --cpu fine_tune_t5.py", "accelerate", signal.SIGKILL),
        ("bin/torchrun fine_tune_t5.py", "torchrun", signal.SIGTERM),
        ("-u -m deepspeed.launcher.launch --world_info=x fine_tune_t5.py", "deepspeed", signal.SIGKILL),
    )
    @pytest.mark.quick_cases(4)
    def test_a_script_stops_with_a_launcher_that_dies(self, launcher, name, number):
        commands = [PYTHON, *launcher.split()], ["/bin/sh", "-c", f"{PYTHON} bin/own_script.py; true"]
        with self.start_below(*commands) as (process, environment, log):
            wait_for(lambda: "importing torch" in log.read_text(), process, 30)
            process.send_signal(number)
            process.wait(30)
            self.assertEqual(wait_until_gone(environment, 15), [])
            output = log.read_text()
        self.assertIn(f"the launcher ({name}, process {process.pid}) has ended: this process stops, too", output)
        self.assertIn("stopped: SIGTERM: stopped during set-up; the same command starts again", output)

    def test_a_script_goes_on_without_parents_that_are_no_launchers(self):
        """`wandb agent` ends its trials itself, or lets them go on."""
        commands = (
            [PYTHON, "bin/own_script.py", "torchrun"],
            [PYTHON, "bin/wandb", "agent", "deepspeed"],
            ["/bin/sh", "-c", f"{PYTHON} bin/own_script.py; : torchrun"],
        )
        with self.start_below(*commands) as (process, environment, log):
            wait_for(lambda: "importing torch" in log.read_text(), process, 30)
            script = int(re.search(r"importing torch in process (\d+)", log.read_text())[1])
            for parent in set(with_mark(environment)) - {script}:
                with contextlib.suppress(ProcessLookupError):  # it ended with the parent killed before it
                    os.kill(parent, signal.SIGKILL)
            process.wait(30)
            time.sleep(2.5)
            self.assertEqual(with_mark(environment), [script])
            self.assertNotIn("the launcher", log.read_text())


# What srun sets for the fourth of seven tasks.
STEP = {
    "SLURM_JOB_ID": "70", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "gpu[003-005,9]", "SLURM_NODEID": "1", "SLURM_PROCID": "3", "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "7",
}  # fmt: skip
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
PORT = str(12000 + 31 * 70 + 2)
RANK = {"RANK": "3", "WORLD_SIZE": "7", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "gpu003"}
RANK |= {"MASTER_PORT": PORT}


def variables_without_launchers(**variables: str) -> dict[str, str]:
    """The variables of this process but those of launchers, and these."""
    of_launchers = (*RANK_VARIABLES, "PMI_SIZE", "PMI_RANK")
    return {name: value for name, value in os.environ.items() if name not in of_launchers} | variables


def environment_of_script(**variables: str) -> dict[str, str]:
    """The environment in which the script, started with these variables, imports torch."""
    directory = Path(tempfile.mkdtemp())
    write(directory / "torch.py", TORCH_THAT_SHOWS_THE_ENVIRONMENT)
    environment = variables_without_launchers(**variables)
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (directory, ROOT)))
    ended = subprocess.run(SCRIPT, env=environment, cwd=directory, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def environment_of_task(**variables: str) -> dict[str, str]:
    """What a script makes of an environment with these variables."""
    with mock.patch.dict(os.environ, variables_without_launchers(**variables), clear=True):
        join_srun()
        return dict(os.environ)


def rank_in(environment: dict[str, str]) -> dict[str, str]:
    return {name: environment[name] for name in RANK_VARIABLES if name in environment}


def rank_of_task(**variables: str) -> dict[str, str]:
    return rank_in(environment_of_task(**variables))


class SlurmRanksTest(parameterized.TestCase):
    def test_a_script_is_a_rank_before_it_imports_torch(self):
        environment = environment_of_script(**STEP, PMI_SIZE="7", PMI_RANK="3")
        self.assertEqual(rank_in(environment), RANK)
        self.assertNoCommonElements(environment, ("PMI_SIZE", "PMI_RANK"))

    @parameterized.parameters(({}, {}), ({"SLURM_PROCID": "0"}, {"RANK": "0"}))
    def test_tasks_of_a_step_are_ranks_that_agree_on_a_port(self, change, expected_change):
        self.assertEqual(rank_of_task(**STEP | change), RANK | expected_change)

    def test_another_step_has_another_port(self):
        self.assertNotEqual(rank_of_task(**STEP | {"SLURM_STEP_ID": "3"})["MASTER_PORT"], PORT)

    def test_ports_of_late_jobs_are_below_those_that_linux_gives_away(self):
        self.assertLess(int(rank_of_task(**STEP | {"SLURM_JOB_ID": "67043328"})["MASTER_PORT"]), 32768)

    @parameterized.parameters(
        {"WORLD_SIZE": "2", "RANK": "0"}, {"RANK": "0"}, {"WANDB_SWEEP_ID": "x"}, {"WANDB_RUN_ID": "x"},
        {"T5SUITE_RUN_DIR": "x"}, {"T5SUITE_SLURM_RANKS": "0"}, {"SLURM_STEP_NUM_TASKS": "1"}, {"SLURM_STEP_ID": ""},
        {"ACCELERATE_DYNAMO_BACKEND": "NO"},
    )  # fmt: skip
    def test_trials_workers_and_lone_tasks_are_left_alone(self, **change):
        set_before = {name: value for name, value in change.items() if name in RANK_VARIABLES}
        self.assertEqual(rank_of_task(**STEP | change), set_before)

    @parameterized.parameters(
        ({}, "2", False),
        ({"SLURM_STEP_NUM_TASKS": "1"}, None, False),
        ({"WANDB_SWEEP_ID": "x"}, None, False),
        ({"T5SUITE_SLURM_RANKS": "0"}, None, True),
    )
    def test_what_sruns_mpi_says_is_not_taken_for_ranks(self, change, world_size, keeps_pmi):
        step = {**STEP, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "PMI_SIZE": "2", "PMI_RANK": "1"}
        environment = environment_of_task(**step | change)
        self.assertEqual((environment.get("WORLD_SIZE"), "PMI_SIZE" in environment), (world_size, keeps_pmi))

    @parameterized.parameters(
        ("gpu1", "gpu1"), ("gpu[003-005,9],login1", "gpu003"), ("a,b", "a"), ("n[1-2]-ib", "n1-ib"), ("n[7]", "n7"),
    )  # fmt: skip
    def test_the_first_host_is_read_from_slurms_list(self, hosts, first):
        self.assertEqual(rank_of_task(**STEP | {"SLURM_STEP_NODELIST": hosts})["MASTER_ADDR"], first)
