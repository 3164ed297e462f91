"""`t5suite predict` under every launcher writes the bytes of one process; weights on the disk answer as in memory."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import parameterized
from slurm_cluster import free_ports
from support import command_flags
from test_predict_command import command, output_path
from tiny_predictor import rows_file

from t5suite import cli
from t5suite.inference.running import check_accelerate_settings, join_processes
from t5suite.testing import exits_with, read_rows, run_cli
from t5suite.training.processes.launchers import without_launcher_flags

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(sys.executable).parent
FLAGS = "--window 4 --batch_size 2 --num_beams 2 --scores --max_new_tokens 12"
# What stands before `t5suite predict ...`, for two processes on this machine; PORT is a free one.
LAUNCHERS = {
    "accelerate": "accelerate launch --cpu --num_processes 2 --main_process_port PORT -m",
    "torchrun": "torchrun --standalone --nproc_per_node 2 -m",
    "deepspeed": "deepspeed --num_gpus 2 --master_port PORT --module",
}


def environment(**given):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "ACCELERATE_"))}
    path = f"{SCRIPTS}:{kept.get('PATH', '')}"
    return {**kept, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", **given}


def run(argv, **given):
    return subprocess.Popen(argv, env=environment(**given), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.slow
@pytest.mark.launcher
class LaunchersTest(parameterized.TestCase):
    def expected(self, rows, family="seq2seq"):
        path, flags = output_path(), FLAGS if family != "masked" else "--window 4 --batch_size 2"
        run_cli(*command(flags, output=path, rows=rows, family=family))
        return path.read_bytes(), flags

    def answer(self, launcher, *flags, **settings):
        script, *words = LAUNCHERS[launcher].replace("PORT", str(free_ports(1)[0])).split()
        process = run([str(SCRIPTS / script), *words, "t5suite", *command(*flags, **settings)])
        said, _ = process.communicate(timeout=500)
        self.assertEqual(process.returncode, 0, said[-2000:])

    @parameterized.parameters(*LAUNCHERS)
    def test_two_processes_write_the_bytes_of_one(self, launcher):
        rows, path = rows_file(count=10), output_path()
        whole, flags = self.expected(rows)
        self.answer(launcher, flags, output=path, rows=rows)
        self.assertEqual(path.read_bytes(), whole)

    def test_two_tasks_of_srun_write_the_bytes_of_one(self):
        rows, path = rows_file(count=10), output_path()
        whole, flags = self.expected(rows)
        argv = [sys.executable, "-m", "t5suite", *command(flags, output=path, rows=rows)]
        slurm = dict(SLURM_JOB_ID="7", SLURM_STEP_ID="0", SLURM_STEP_NUM_TASKS="2", SLURM_STEP_TASKS_PER_NODE="2")
        slurm |= dict(SLURM_NODEID="0", SLURM_STEP_NODELIST="localhost", MASTER_PORT=str(free_ports(1)[0]))
        tasks = [run(argv, **slurm, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)) for rank in (0, 1)]
        said = [task.communicate(timeout=500)[0] for task in tasks]
        self.assertEqual([task.returncode for task in tasks], [0, 0], said[0][-2000:])
        self.assertEqual(path.read_bytes(), whole)


class LaunchedTest(parameterized.TestCase):
    def test_the_launchers_word_is_left_out(self):
        self.enter_context(mock.patch.dict(os.environ, {"WORLD_SIZE": "4"}))
        for argv, kept in (
            ("--local_rank=1 predict --seed 7", "predict --seed 7"),
            ("--local_rank 1 predict", "predict"),
            ("predict --local-rank=0", "predict"),
            ("predict --input local_rank", "predict --input local_rank"),
        ):
            self.assertEqual(without_launcher_flags(argv.split()), kept.split())
        # Behind dashes they are another program's.
        own = "--local_rank=0 sweep --grid a=1 -- python x.py --local_rank=3"
        self.assertEqual(cli.parse_arguments(own.split()).words, ["python", "x.py", "--local_rank=3"])

    @parameterized.parameters(
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "float32", "--device_map balanced"),
        ({"ACCELERATE_USE_FSDP": "true"}, "float32", "ACCELERATE_USE_FSDP=true"),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, "float32", "bf16.*given: float32"),
        ({"ACCELERATE_MIXED_PRECISION": "fp16"}, "bfloat16", "fp16.*given: bfloat16"),
    )
    def test_what_accelerate_was_told_for_training_is_refused_by_name(self, variables, dtype, message):
        source = command_flags("predict", model_name_or_path="m", dtype=dtype)
        with mock.patch.dict(os.environ, variables), exits_with(78, message):
            check_accelerate_settings(source)
        with mock.patch.dict(os.environ, {"ACCELERATE_MIXED_PRECISION": "bf16"}):
            check_accelerate_settings(command_flags("predict", model_name_or_path="m", dtype="bfloat16"))

    def test_ranks_that_would_meet_at_no_port_are_refused(self):
        variables = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
        with mock.patch.dict(os.environ, variables), exits_with(78, "--standalone"):
            join_processes()


class OffloadTest(parameterized.TestCase):
    """`--device_map` with room for a part of the model, or for nothing: the rest is read from the disk."""

    @parameterized.parameters(("seq2seq", "0KiB"), ("causal", "175KiB"), ("masked", "0KiB"))
    def test_a_model_on_the_disk_answers_as_one_in_memory(self, family, room):
        rows, path, whole = rows_file(count=6), output_path(), output_path()
        run_cli(*command("--labels", output=whole, rows=rows, family=family))
        flags = f"--labels --device_map sequential --max_memory cpu={room}"
        run_cli(*command(flags, output=path, rows=rows, family=family))
        for mine, other in zip(read_rows(path), read_rows(whole), strict=True):
            # Weights in a mapped file are aligned otherwise, and some CPUs then add up in another order.
            found, expected = mine.pop("probabilities"), other.pop("probabilities")
            self.assertEqual((mine, found.keys()), (other, expected.keys()))
            self.assertSequenceAlmostEqual(found.values(), expected.values(), delta=2e-6)
