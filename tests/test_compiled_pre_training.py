"""A pre-training step as the trainer runs it (bf16, loss in chunks, guesses): one graph, and no wait for the device."""

import json
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from absl.testing import parameterized
from device_reads import reading
from later_flags import later_wins
from torch._dynamo.utils import counters

import pre_train_t5
from t5suite.training.pre_training.steps import PreTrainer

ARGV = (
    "--max_steps 5 --logging_steps 2 --eval_strategy no --save_strategy no --max_eval_samples 8 --use_cpu "
    "--disable_tqdm True --dropout_rate 0 --per_device_train_batch_size 8 --bf16 --z_loss 1e-4 --optimizer adamw_rms"
).split()


class CompiledPreTrainingTest(parameterized.TestCase):
    def logged(self, *flags):
        torch._dynamo.reset()
        counters.clear()
        folder = Path(tempfile.mkdtemp())
        pre_train_t5.main(later_wins([*ARGV, *flags, "--output_dir", str(folder / "run")]))
        lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
        return [line for line in lines if "train/loss" in line]

    @parameterized.parameters("50", "0", None)
    @pytest.mark.slow
    def test_a_step_is_one_graph(self, chunk):
        flags = [] if chunk is None else ["--loss_chunk_tokens", chunk]
        found = self.logged(*flags, "--torch_compile", "True", "--torch_compile_backend", "aot_eager")
        self.assertEqual(dict(counters["graph_break"]), {})
        self.assertEqual(counters["stats"]["unique_graphs"], 1)
        wanted = self.logged(*flags)
        self.assertEqual([line["step"] for line in found], [line["step"] for line in wanted])
        for one, other in zip(found, wanted, strict=True):
            self.assertAlmostEqual(one["train/loss"], other["train/loss"], delta=2e-3 * other["train/loss"])
            self.assertAlmostEqual(one["train/accuracy"], other["train/accuracy"], delta=2.0)


class WaitsTest(parameterized.TestCase):
    """On a CPU, where what would wait can be seen."""

    def reads(self, *flags) -> list[tuple[int, str]]:
        """`(step, what)` of everything that was asked of a tensor in the first four steps of five."""
        found, at = [], [0]
        step = PreTrainer.training_step

        def noticing(trainer, *args, **kwargs):
            at[0] = trainer.state.global_step + 1
            return step(trainer, *args, **kwargs)

        folder = Path(tempfile.mkdtemp())
        settings = [*ARGV, "--logging_steps", "5", "--update_checks", "late", "--output_dir", str(folder / "run")]
        with (
            mock.patch.object(PreTrainer, "training_step", noticing),
            reading(lambda name: found.append((at[0], name)) if 1 <= at[0] <= 4 else None),
        ):
            pre_train_t5.main(later_wins([*settings, *flags]))
        return found

    @parameterized.parameters("50", "0")
    def test_nothing_is_asked_of_the_device_between_two_logs(self, chunk):
        self.assertEmpty(self.reads("--loss_chunk_tokens", chunk))

    def test_asking_is_noticed(self):
        self.assertNotEmpty(self.reads("--update_checks", "now"))
