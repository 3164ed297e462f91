"""`--torch_compile` makes a graph of each of a few shapes, and no more, over epochs with ragged ends."""

import json
import tempfile
from pathlib import Path

import pytest
import torch
from absl.testing import parameterized
from later_flags import later_wins
from torch._dynamo.utils import counters

import fine_tune_t5

ARGV = (
    "mini.yaml --dataset_name entailment --max_train_samples 61 --num_train_epochs 3 --max_steps -1 --dropout_rate 0 "
    "--eval_strategy no --per_device_train_batch_size 8 --use_cpu --disable_tqdm True --logging_steps 1 "
    "--torch_compile True --torch_compile_backend eager"
).split()


class CompiledTest(parameterized.TestCase):
    def losses(self, *flags):
        torch._dynamo.reset()
        counters.clear()
        folder = Path(tempfile.mkdtemp())
        fine_tune_t5.main(later_wins([*ARGV, *flags, "--output_dir", str(folder / "run")]))
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        return [line for line in lines if "train/loss" in line], counters["stats"]["unique_graphs"]

    @pytest.mark.slow
    def test_graphs_are_no_more_than_shapes_and_none_is_broken(self):
        for shapes in (1, 3):
            lines, graphs = self.losses("--length_buckets", str(shapes))
            self.assertLen(lines, 24)
            self.assertBetween(graphs, 1, shapes)
            self.assertEqual(dict(counters["graph_break"]), {})

    @pytest.mark.slow
    def test_packed_rows_are_compiled_whole_and_train_the_same(self):
        packed, graphs = self.losses("--pack_rows", "--length_buckets", "3")
        self.assertBetween(graphs, 1, 3)
        self.assertEqual(dict(counters["graph_break"]), {})
        plain, _ = self.losses("--train_sampling_strategy", "random")
        for one, other in zip(packed, plain, strict=True):
            one, other = (json.loads(line)["train/loss"] for line in (one, other))
            self.assertLess(abs(one - other) / other, 1e-4)

    @pytest.mark.slow
    def test_default_is_a_few_shapes(self):
        _, graphs = self.losses()
        self.assertBetween(graphs, 1, 8)
