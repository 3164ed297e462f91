"""Compiled code is kept where the next run finds it. `--torch_compile` makes one graph of any shape;
a pre-training step as the trainer runs it (bf16, loss in chunks) is one graph."""

import json
import os
import tempfile
from pathlib import Path
from unittest import mock

import guarded_trainer
import pytest
import torch
from absl.testing import parameterized
from accelerate.state import AcceleratorState
from inner_sizes import loss_in_chunks
from support import later_wins
from torch._dynamo.utils import counters

import fine_tune_t5
import pre_train_t5

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


class CompileCacheTest(parameterized.TestCase):
    def test_a_trainer_that_compiles_keeps_it_unless_the_variable_says_where(self):
        self.addCleanup(AcceleratorState._reset_state)  # else later trainers of this process would compile, too
        compiles = {"torch_compile": True, "torch_compile_backend": "eager"}
        for given, expected in (({}, "/cache/t5suite/compiled"), ({VARIABLE: "/mine"}, "/mine")):
            environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
            with mock.patch.dict(os.environ, {**environ, "XDG_CACHE_HOME": "/cache", **given}, clear=True):
                guarded_trainer.make()
                self.assertEqual(os.environ.get(VARIABLE), given.get(VARIABLE))
                guarded_trainer.make(**compiles)
                self.assertEqual(os.environ[VARIABLE], expected)


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
    def test_batches_of_any_shape_have_three_graphs_and_none_is_broken(self):
        lines, graphs = self.losses()
        self.assertLen(lines, 24)
        self.assertBetween(graphs, 1, 3)
        self.assertEqual(dict(counters["graph_break"]), {})


PRE_TRAINING = (
    "--max_steps 5 --logging_steps 2 --eval_strategy no --save_strategy no --max_eval_samples 8 --use_cpu "
    "--disable_tqdm True --dropout_rate 0 --per_device_train_batch_size 8 --bf16 --z_loss 1e-4 --optimizer adamw_rms"
).split()


class CompiledPreTrainingTest(parameterized.TestCase):
    def logged(self, *flags):
        torch._dynamo.reset()
        counters.clear()
        folder = Path(tempfile.mkdtemp())
        pre_train_t5.main(later_wins([*PRE_TRAINING, *flags, "--output_dir", str(folder / "run")]))
        lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
        return [line for line in lines if "train/loss" in line]

    @parameterized.parameters(50, 0, None)
    @pytest.mark.slow
    def test_a_step_is_one_graph(self, chunk):
        flags = ["--reference_code", "loss_chunks"] if chunk == 0 else []
        self.enterContext(loss_in_chunks(chunk))
        found = self.logged(*flags, "--torch_compile", "True", "--torch_compile_backend", "aot_eager")
        self.assertEqual(dict(counters["graph_break"]), {})
        self.assertEqual(counters["stats"]["unique_graphs"], 1)
        wanted = self.logged(*flags)
        self.assertEqual([line["step"] for line in found], [line["step"] for line in wanted])
        for one, other in zip(found, wanted, strict=True):
            self.assertAlmostEqual(one["train/loss"], other["train/loss"], delta=2e-3 * other["train/loss"])
            self.assertAlmostEqual(one["train/accuracy"], other["train/accuracy"], delta=2.0)
