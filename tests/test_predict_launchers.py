"""`t5suite predict` under every launcher writes the bytes of one process; weights on the disk answer as in memory."""

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from absl.testing import parameterized
from slurm_cluster import free_ports
from tiny_predictor import output_path, predict_words, rows_file

from t5suite.testing import cli_output, exits_with, read_rows, run_cli

ROOT = Path(__file__).parent.parent
SCRIPTS = Path(sys.executable).parent
FLAGS = "--window 4 --batch_size 2 --num_beams 2 --scores --max_new_tokens 12"
# What stands before `t5suite predict ...`, for two processes on this machine; PORT is a free one.
LAUNCHERS = {
    "accelerate": "accelerate launch --cpu --num_processes 2 --main_process_port PORT -m",
    "torchrun": "torchrun --standalone --nproc_per_node 2 -m",
    "deepspeed": "deepspeed --num_gpus 2 --master_port PORT --module",
}


def environment(**settings):
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "ACCELERATE_"))}
    variables |= {"PATH": f"{SCRIPTS}:{variables.get('PATH', '')}", "PYTHONPATH": str(ROOT)}
    return {**variables, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", **settings}


def run(argv, **settings):
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(argv, env=environment(**settings), **streams)


@pytest.mark.slow
@pytest.mark.launcher
class LaunchersTest(parameterized.TestCase):
    def expected(self, rows, family="seq2seq"):
        path, flags = output_path(), FLAGS if family != "masked" else "--window 4 --batch_size 2"
        run_cli(*predict_words(flags, output=path, rows=rows, family=family))
        return path.read_bytes(), flags

    def answer(self, launcher, *flags, **settings):
        script, *words = LAUNCHERS[launcher].replace("PORT", str(free_ports(1)[0])).split()
        process = run([str(SCRIPTS / script), *words, "t5suite", *predict_words(*flags, **settings)])
        output, _ = process.communicate(timeout=500)
        self.assertEqual(process.returncode, 0, output[-2000:])

    @parameterized.parameters(*LAUNCHERS)
    def test_two_processes_write_the_bytes_of_one(self, launcher):
        rows, path = rows_file(count=10), output_path()
        whole, flags = self.expected(rows)
        self.answer(launcher, flags, output=path, rows=rows)
        self.assertEqual(path.read_bytes(), whole)

    def test_two_tasks_of_srun_write_the_bytes_of_one(self):
        rows, path = rows_file(count=10), output_path()
        whole, flags = self.expected(rows)
        argv = [sys.executable, "-m", "t5suite", *predict_words(flags, output=path, rows=rows)]
        slurm = dict(SLURM_JOB_ID="7", SLURM_STEP_ID="0", SLURM_STEP_NUM_TASKS="2", SLURM_STEP_TASKS_PER_NODE="2")
        slurm |= dict(SLURM_NODEID="0", SLURM_STEP_NODELIST="localhost", MASTER_PORT=str(free_ports(1)[0]))
        tasks = [run(argv, **slurm, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)) for rank in (0, 1)]
        outputs = [task.communicate(timeout=500)[0] for task in tasks]
        self.assertEqual([task.returncode for task in tasks], [0, 0], outputs[0][-2000:])
        self.assertEqual(path.read_bytes(), whole)


class LaunchedTest(parameterized.TestCase):
    @parameterized.parameters(
        (["--local_rank=1"], []), (["--local_rank", "1"], []), ([], ["--local-rank=0"]), ([], ["--local_rank", "0"]),
    )  # fmt: skip
    def test_the_launchers_word_is_left_out(self, before, after):
        words = ["tasks", "--benchmark", "mini", "--json"]
        self.enter_context(mock.patch.dict(os.environ, {"WORLD_SIZE": "4"}))
        self.assertEqual(cli_output(*before, *words, *after), cli_output(*words))

    def test_behind_dashes_it_is_another_programs(self):
        with mock.patch.dict(os.environ, {"WORLD_SIZE": "4"}):
            script = cli_output(
                "--local_rank=0", "slurm", "render", "fine_tune", "--", "python", "x.py", "--local_rank=3"
            )
        self.assertRegex(script, r"python x\.py\s+(\\\s+)?--local_rank=3")
        self.assertNotIn("--local_rank=0", script)

    def test_a_rank_that_no_launcher_gave_is_refused(self):
        self.enter_context(mock.patch.dict(os.environ))
        os.environ.pop("WORLD_SIZE", None)
        os.environ.pop("LOCAL_RANK", None)
        with exits_with(78, "--local_rank 1"):
            run_cli("tasks", "--local_rank=1")

    @parameterized.parameters(
        ({"ACCELERATE_USE_DEEPSPEED": "true"}, "float32", "--device_map balanced"),
        ({"ACCELERATE_USE_FSDP": "true"}, "float32", "ACCELERATE_USE_FSDP=true"),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, "float32", "bf16.*given: float32"),
        ({"ACCELERATE_MIXED_PRECISION": "fp16"}, "bfloat16", "fp16.*given: bfloat16"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}, "float32", "--standalone"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "float32", "WORLD_SIZE=2 .* without MASTER_ADDR and MASTER_PORT"),
        (
            {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"},
            "float32",
            "WORLD_SIZE=2 .* no RANK",
        ),
    )
    def test_what_does_not_fit_predicting_is_refused_by_name(self, variables, dtype, message):
        path = output_path()
        with mock.patch.dict(os.environ, variables), exits_with(78, message):
            run_cli(*predict_words(f"--dtype {dtype}", rows=rows_file(count=1), output=path))
        self.assertFalse(path.exists())

    def test_accelerates_precision_may_be_that_of_the_flag(self):
        path = output_path()
        with mock.patch.dict(os.environ, {"ACCELERATE_MIXED_PRECISION": "bf16"}):
            run_cli(*predict_words("--dtype bfloat16", rows=rows_file(count=1), output=path))
        self.assertLen(read_rows(path), 1)


class OffloadTest(parameterized.TestCase):
    """`--device_map` with room for a part of the model, or for nothing: the rest is read from the disk."""

    @parameterized.parameters(("seq2seq", "0KiB"), ("causal", "175KiB"), ("masked", "0KiB"))
    @pytest.mark.quick_cases(1)
    def test_a_model_on_the_disk_answers_as_one_in_memory(self, family, room):
        rows, path, whole = rows_file(count=6), output_path(), output_path()
        run_cli(*predict_words("--labels", output=whole, rows=rows, family=family))
        flags = f"--labels --device_map sequential --max_memory cpu={room}"
        run_cli(*predict_words(flags, output=path, rows=rows, family=family))
        for from_disk, from_memory in zip(read_rows(path), read_rows(whole), strict=True):
            # Weights in a mapped file are aligned otherwise, and some CPUs then add up in another order.
            shares, expected = from_disk.pop("probabilities"), from_memory.pop("probabilities")
            self.assertEqual((from_disk, shares.keys()), (from_memory, expected.keys()))
            self.assertSequenceAlmostEqual(shares.values(), expected.values(), delta=2e-6)
