"""Compiled code is kept where the next run finds it, or a warning says why not.

A compiled step of T5 is one graph.

`--torch_compile` makes a graph of each of a few shapes, and no more, over epochs with ragged ends.

A pre-training step as the trainer runs it (bf16, loss in chunks, guesses): one graph.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import guarded_trainer
import pytest
import torch
from absl.testing import parameterized
from accelerate.state import AcceleratorState
from later_flags import later_wins
from test_attention import batch_of, tiny
from torch._dynamo.utils import counters

import fine_tune_t5
import pre_train_t5
from t5suite.training.losses import TokenLoss
from t5suite.training.startup import VARIABLE, compile_cache_folder, keep_compiled

TWICE = """
import torch, t5suite.training.startup as cache
cache.keep_compiled({folder!r})
torch.compile(lambda x: (x * 2).cos())(torch.ones(8))
from torch._dynamo.utils import counters
print(counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
"""


class CompileCacheTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp())
        environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
        patched = mock.patch.dict(os.environ, {**environ, "XDG_CACHE_HOME": str(self.folder)}, clear=True)
        patched.start()
        self.addCleanup(patched.stop)

    def test_the_variable_goes_before_the_user_s_cache(self):
        self.assertEqual(compile_cache_folder({VARIABLE: "/a", "XDG_CACHE_HOME": "/b"}), Path("/a"))
        self.assertEqual(compile_cache_folder({"XDG_CACHE_HOME": "/b"}), Path("/b/t5suite/compiled"))
        self.assertEqual(compile_cache_folder({}), Path.home() / ".cache/t5suite/compiled")

    def test_the_flag_goes_before_the_variable(self):
        place = self.folder / "given"
        with mock.patch.dict(os.environ, {VARIABLE: str(self.folder)}):
            self.assertEqual(keep_compiled(str(place)), place)
            self.assertEqual(os.environ[VARIABLE], str(place))
        self.assertTrue(place.is_dir())

    def test_a_place_that_cannot_be_written_costs_a_warning(self):
        (self.folder / "file").write_text("")
        with self.assertLogs("t5suite.training.startup", "WARNING"):
            self.assertIsNone(keep_compiled(str(self.folder / "file" / "below")))
        self.assertNotIn(VARIABLE, os.environ)

    def test_a_trainer_that_compiles_keeps_it_and_another_does_not(self):
        guarded_trainer.make()
        self.assertNotIn(VARIABLE, os.environ)
        self.addCleanup(AcceleratorState._reset_state)  # else later trainers of this process would compile, too
        with mock.patch.dict(os.environ):
            guarded_trainer.make(
                torch_compile=True, torch_compile_backend="eager", compile_cache=str(self.folder / "x")
            )
            self.assertEqual(os.environ[VARIABLE], str(self.folder / "x"))

    @pytest.mark.slow
    def test_a_second_process_finds_what_the_first_has_made(self):
        command = [sys.executable, "-c", TWICE.format(folder=str(self.folder))]
        told = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)]
        self.assertEqual(told, [["0", "1"], ["1", "0"]])


class CompiledStepTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()

    @parameterized.parameters(([6, 6],), ([6, 3],))
    @pytest.mark.slow
    def test_forward_and_loss_are_one_graph(self, lengths):
        model, loss_of = tiny(), TokenLoss(z_loss=1e-4)
        model.decoder.config.use_cache = False
        batch = batch_of(lengths)
        labels = torch.randint(3, 50, (2, 4))

        def step(batch):
            with torch.autocast("cpu", torch.bfloat16):
                outputs = model(**batch)
            return loss_of(outputs, labels, labels.numel())

        explained = torch._dynamo.explain(step)(batch)
        self.assertEqual(explained.graph_break_count, 0, explained.break_reasons)
        self.assertEqual(explained.graph_count, 1)


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
