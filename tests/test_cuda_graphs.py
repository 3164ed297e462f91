"""CUDA graphs on a CPU: what is decided, which shapes are run first, and that what outlives a pass is copied."""

import math
import os
import tempfile
from unittest import mock

import guarded_trainer
import numpy as np
import torch
from absl.testing import parameterized
from transformers import Seq2SeqTrainer

import fine_tune_t5
import pre_train_t5
from t5suite.base.errors import ConfigError
from t5suite.data.family_collators import COLLATORS
from t5suite.data.features import Ragged, TokenArrays
from t5suite.data.packed_rows import with_packed_rows
from t5suite.data.samplers import shuffled_order
from t5suite.data.shapes import with_few_shapes
from t5suite.models.packed_t5 import accept_packed_batches
from t5suite.training.cuda_graphs import MOST_GRAPHS, PASSES, batches_of_all_shapes, records_graphs

ON_GPU = torch.device("cuda")


class Settings:
    """Training arguments of a run on a GPU."""

    torch_compile, torch_compile_mode, torch_compile_backend = True, "reduce-overhead", "inductor"
    deepspeed = fsdp = None
    device = ON_GPU

    def __init__(self, **changes):
        vars(self).update(changes)


class DecisionTest(parameterized.TestCase):
    @parameterized.parameters("reduce-overhead", "max-autotune")
    def test_few_shapes_are_recorded(self, mode):
        self.assertTrue(records_graphs(Settings(torch_compile_mode=mode), 1))
        self.assertTrue(records_graphs(Settings(torch_compile_mode=mode), MOST_GRAPHS))

    @parameterized.parameters(
        {"torch_compile_mode": None}, {"torch_compile_mode": "default"}, {"torch_compile": False},
        {"torch_compile_mode": "max-autotune-no-cudagraphs"},
    )  # fmt: skip
    def test_nothing_is_recorded_unless_asked_for(self, **changes):
        self.assertFalse(records_graphs(Settings(**changes), 0))

    @parameterized.parameters((0, "any number of shapes"), (9, "9 shapes"))
    def test_many_shapes_are_refused(self, number, says):
        with self.assertRaisesRegex(ConfigError, f"{says}: choose --length_buckets 1 to 8"):
            records_graphs(Settings(), number)

    @parameterized.parameters(
        ({"deepspeed": "zero1"}, "--deepspeed moves weights"),
        ({"fsdp": "full_shard"}, "--fsdp moves weights"),
        ({"torch_compile_backend": "eager"}, "leave out --torch_compile_backend eager"),
    )
    def test_what_graphs_cannot_go_with_is_refused(self, changes, says):
        with self.assertRaisesRegex(ConfigError, says):
            records_graphs(Settings(**changes), 4)

    def test_a_cpu_is_told_that_it_has_none(self):
        with self.assertLogs("t5suite.training.cuda_graphs", "WARNING") as logs:
            self.assertFalse(records_graphs(Settings(device=torch.device("cpu")), 4))
        self.assertIn("this is a cpu", logs.output[0])

    @parameterized.parameters(
        (fine_tune_t5, ["--length_buckets", "0"]), (pre_train_t5, ["--objective", "prefix_lm", "--pack"]),
    )  # fmt: skip
    def test_scripts_refuse_any_number_of_shapes_before_they_train(self, script, flags):
        folder = f"{tempfile.mkdtemp()}/run"
        flags = [*flags, "--torch_compile_mode", "reduce-overhead", "--use_cpu", "--output_dir", folder]
        with mock.patch.dict(os.environ), self.assertRaisesRegex(ConfigError, "have any number of shapes"):
            script.main(["--max_steps", "1", *flags])


def arrays_of(family) -> TokenArrays:
    rng = np.random.default_rng(0)
    draw = lambda most: [rng.integers(2, 90, n).tolist() for n in rng.integers(1, most, 200)]
    inputs = Ragged.from_rows(draw(50))
    labels = Ragged.from_rows([[1]] * 200 if family == "masked" else draw(40))
    return TokenArrays(inputs, labels, inputs if family == "masked" else None)


class ShapesTest(parameterized.TestCase):
    @parameterized.product(family=[*COLLATORS, "packed"], most=[1, 8])
    def test_every_shape_of_a_run_comes_once_the_largest_first(self, family, most):
        packs = family == "packed"
        family = "seq2seq" if packs else family
        arrays, order, collate = arrays_of(family), shuffled_order(200, 0), COLLATORS[family](0, 0)
        few = with_packed_rows if packs else with_few_shapes
        shaped = few(collate, arrays, order, 8, most)
        shape = lambda batch: {name: (tensor.shape, tensor.dtype) for name, tensor in batch.items()}
        warm = [shape(batch) for batch in batches_of_all_shapes(shaped, arrays)]
        self.assertLen(warm, shaped.num_shapes - 1 if packs and most > 1 else shaped.num_shapes)
        places = [math.prod(found["input_ids"][0]) for found in warm]
        self.assertEqual(max(places), places[0])
        for epoch in range(3):
            for start in range(0, 200, 8):
                self.assertIn(shape(shaped(arrays.__getitems__(order(epoch)[start : start + 8]))), warm)


def graphed(trainer):
    """The trainer as one that records graphs: for the shapes of its first batches."""
    collate, features = trainer.data_collator, trainer.train_dataset
    trainer.record_graphs([collate(features.__getitems__(range(3))), collate(features.__getitems__(range(8)))])
    return trainer


class GraphMemory:
    """Does to tensors what a graph does when it runs again: overwrites what its last run has left in its memory."""

    def __init__(self):
        self.left: list[torch.Tensor] = []
        self.passes = 0

    def mark(self):
        """In place of `torch.compiler.cudagraph_mark_step_begin`."""
        for tensor in self.left:
            tensor.detach().fill_(math.nan)
        self.left = []

    def step(self, plain, trainer, model, inputs, num_items=None):
        """In place of a pass: its loss, and gradients that there were none of before, lie in the graph's memory."""
        self.passes += 1
        before = {parameter for parameter in model.parameters() if parameter.grad is not None}
        loss = plain(trainer, model, inputs, num_items)
        self.left += [p.grad for p in model.parameters() if p.grad is not None and p not in before]
        self.left.append(loss)
        return loss


class CopiesTest(parameterized.TestCase):
    def trained(self, graphs, memory=None, **settings):
        trainer = guarded_trainer.make(**settings)
        graphed(trainer) if graphs else None
        memory = memory or GraphMemory()
        plain = Seq2SeqTrainer.training_step
        step = lambda trainer, *args: memory.step(plain, trainer, *args)
        with (
            mock.patch("torch.compiler.cudagraph_mark_step_begin", memory.mark),
            mock.patch.object(Seq2SeqTrainer, "training_step", step),
        ):
            trainer.train()
        return trainer

    def assert_same(self, found, expected):
        self.assertEqual(guarded_trainer.losses(found), guarded_trainer.losses(expected))
        for step, (weights, moments, _) in expected.recorder.at.items():
            self.assertTrue(guarded_trainer.equal(weights, found.recorder.at[step][0]), f"weights of step {step}")
            self.assertTrue(guarded_trainer.equal(moments, found.recorder.at[step][1]), f"moments of step {step}")

    @parameterized.parameters((1, "now", 4), (1, "late", 1), (2, "now", 1), (4, "late", 4))
    def test_what_outlives_a_pass_is_copied(self, accumulation, checks, logging_steps):
        settings = {"batch_size": 8 // accumulation, "accumulation": accumulation, "update_checks": checks}
        settings |= {"logging_steps": logging_steps, "optimizer": "adamw"}
        self.assert_same(self.trained(True, **settings), self.trained(False, **settings))

    def test_without_copies_this_memory_spoils_a_run(self):
        """Guards the test above."""
        with mock.patch("t5suite.training.cuda_graphs.GraphedSteps._keep_gradients", lambda self, model: None):
            broken = self.trained(True, batch_size=4, accumulation=2, max_skipped_updates=9)
        self.assertEqual(broken.skipped_updates, 6)

    def test_shapes_are_run_first_and_leave_no_trace(self):
        """Dropout's random numbers are those of a run without graphs."""
        memory, plain_memory = GraphMemory(), GraphMemory()
        with self.assertLogs("t5suite.training.cuda_graphs", "INFO") as logs:
            found = self.trained(True, memory)
        expected = self.trained(False, plain_memory)
        self.assert_same(found, expected)
        self.assertEqual(memory.passes, plain_memory.passes + 2 * PASSES)
        self.assertIn("2 CUDA graphs", logs.output[0])

    def test_pieces_of_a_micro_batch_are_passes_of_their_own(self):
        """Of the shapes that are run first, the one of 8 rows does not fit either."""
        trainers = []
        for graphs in (True, False):
            trainer = guarded_trainer.make()
            graphed(trainer) if graphs else None
            guarded_trainer.limit_rows(trainer, 4)
            memory, plain = GraphMemory(), Seq2SeqTrainer.training_step
            step = lambda trainer, *args, memory=memory, plain=plain: memory.step(plain, trainer, *args)
            with (
                mock.patch("torch.compiler.cudagraph_mark_step_begin", memory.mark),
                mock.patch.object(Seq2SeqTrainer, "training_step", step),
            ):
                trainer.train()
            self.assertEqual(trainer.micro_batches.pieces, 2)
            trainers.append(trainer)
        self.assert_same(*trainers)

    def test_weights_in_several_places_are_refused(self):
        trainer = guarded_trainer.make()
        trainer.args.torch_compile_mode = "reduce-overhead"
        trainer.model.shared.to("meta")
        with self.assertRaisesRegex(ConfigError, "reduce-overhead: .* these lie on cpu, meta"):
            trainer.record_graphs([])
        trainer = guarded_trainer.make()
        trainer.is_fsdp_enabled = True
        with self.assertRaisesRegex(ConfigError, "these are in pieces"):
            trainer.record_graphs([])

    def test_packed_batches_are_run_first_too(self):
        trainer = guarded_trainer.make()
        accept_packed_batches(trainer.model)
        features, order = trainer.train_dataset.rows, trainer.epoch_order
        trainer.data_collator = with_packed_rows(trainer.data_collator, features, order, 8, 2)
        trainer.record_graphs(batches_of_all_shapes(trainer.data_collator, features))
        trainer.train()
        self.assertTrue(all(math.isfinite(loss) for loss, _ in guarded_trainer.losses(trainer)))
