"""A pre-training step as the trainer runs it (bf16, loss in chunks, guesses): one graph."""

import json
import tempfile
from pathlib import Path

import pytest
import torch
from absl.testing import parameterized
from later_flags import later_wins
from torch._dynamo.utils import counters

import pre_train_t5

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
