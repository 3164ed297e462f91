"""What a run tells of its steps against independent counts: useful tokens and operations over a whole epoch."""

import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from absl.testing import absltest, parameterized

sys.path.insert(0, str(Path(__file__).parent.parent))
import test_throughput
from later_flags import later_wins

import fine_tune_t5
from t5suite.data.rows.jsonl import write_jsonl
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.models.loading import load_model, load_tokenizer
from t5suite.tasks.registry import load_task

ROOT = Path(__file__).parent.parent
ROWS, PEAK_TFLOPS = 24, 0.5
ARGV = (
    "mini.yaml --dataset_name entailment --max_eval_samples 4 --num_train_epochs 1 --max_steps -1 --eval_strategy no "
    f"--logging_steps 1 --use_cpu --disable_tqdm True --peak_tflops {PEAK_TFLOPS} --token_cache none --dropout_rate 0"
).split()


@functools.cache
def rows() -> tuple[str, list[tuple[int, int]]]:
    """A file of rows, and the tokens of input and target of each, by the tokenizer alone."""
    tokenizer, task = load_tokenizer(None), load_task("mini", "entailment")
    chosen = load_split(task, "validation", "validation", DataOptions()).rows.select(range(ROWS))
    path = Path(tempfile.mkdtemp()) / "train.jsonl"
    write_jsonl(path, list(chosen))
    examples = [example for row in chosen for example in task.examples(row, "train")]
    return str(path), [(len(tokenizer(e.inputs).input_ids), len(tokenizer(e.targets).input_ids)) for e in examples]


def logged(*flags) -> list[dict]:
    """The lines of the steps of an epoch over these rows."""
    folder = Path(tempfile.mkdtemp()) / "run"
    fine_tune_t5.main(later_wins([*ARGV, "--train_file", rows()[0], *flags, "--output_dir", str(folder)]))
    return lines_of(folder)


def lines_of(folder: Path) -> list[dict]:
    """The logs of a run's steps."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if "train/seconds_per_step" in line]


def tokens_of(lines) -> float:
    """Useful tokens of all steps, as the rates tell them."""
    return sum(line["train/tokens_per_second"] * line["train/seconds_per_step"] for line in lines)


def operations_of(lines) -> float:
    """Floating-point operations of all steps, as MFU tells them."""
    return sum(line["train/mfu"] / 100 * PEAK_TFLOPS * 1e12 * line["train/seconds_per_step"] for line in lines)


class StepFiguresTest(parameterized.TestCase):
    """One epoch over all rows: each counts once, however it is computed."""

    @parameterized.named_parameters(
        ("padded", "--per_device_train_batch_size 8"),
    )
    def test_useful_tokens_are_those_of_the_rows(self, flags):
        self.check_tokens(logged(*flags.split()))

    @parameterized.named_parameters(
        ("buckets", "--per_device_train_batch_size 8 --length_buckets 2"),
        ("accumulated", "--per_device_train_batch_size 3 --gradient_accumulation_steps 4"),
        ("checkpointed", "--per_device_train_batch_size 8 --gradient_checkpointing True"),
        ("whole logits", "--per_device_train_batch_size 8 --loss_chunk_tokens 0"),
        ("in pieces of the loss", "--per_device_train_batch_size 8 --loss_chunk_tokens 5"),
    )
    @pytest.mark.slow
    @pytest.mark.law
    def test_so_they_are_however_they_are_computed(self, flags):
        self.check_tokens(logged(*flags.split()))

    @pytest.mark.slow
    @pytest.mark.law
    def test_so_they_are_on_two_ranks(self):
        folder = Path(tempfile.mkdtemp()) / "run"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        words = [*ARGV, "--train_file", rows()[0], "--per_device_train_batch_size", "3", "--output_dir", str(folder)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*launcher, str(ROOT / "fine_tune_t5.py"), *words], check=True, env=environment)
        self.check_tokens(lines_of(folder))

    def check_tokens(self, lines):
        self.assertAlmostEqual(tokens_of(lines), sum(inputs for inputs, _ in rows()[1]), places=3)

    @parameterized.named_parameters(
        ("accumulated", "--gradient_accumulation_steps 5"),
        ("checkpointed", "--gradient_checkpointing True"),
        ("in pieces of the loss", "--loss_chunk_tokens 2"),
    )
    @pytest.mark.slow
    @pytest.mark.law
    def test_so_they_are_however_a_row_is_computed(self, flags):
        self.check_operations(*flags.split())

    def test_operations_are_three_passes_over_each_row(self):
        self.check_operations()

    def check_operations(self, *flags):
        """A row at a time, nothing is padded."""
        config = load_model(tokenizer=load_tokenizer(None)).config
        wanted = sum(3 * test_throughput.t5_formula(config, *pair) for pair in rows()[1])
        found = operations_of(logged("--per_device_train_batch_size", "1", *flags))
        self.assertAlmostEqual(found / wanted, 1.0, places=6)

    def test_padding_costs_operations_and_counts_no_tokens(self):
        sorted_, random = (
            logged("--per_device_train_batch_size", "8", "--train_sampling_strategy", strategy)
            for strategy in ("group_by_length", "random")
        )
        self.assertAlmostEqual(tokens_of(sorted_), tokens_of(random), places=3)
        self.assertLess(operations_of(sorted_), operations_of(random))


if __name__ == "__main__":
    absltest.main()
