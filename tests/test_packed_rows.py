"""`--pack_rows`: rows that fine-tuning examples share give the updates that padded rows give."""

import functools
import json
import tempfile
from pathlib import Path
from unittest import mock

import law_worker
import numpy as np
import packed_rows_worker
import pytest
import torch
from absl.testing import parameterized
from plug_in_modules import Pooled
from test_exact_resume import SHAPE, stop_in_evaluation, stop_in_step, untimed
from transformers import BartConfig, BartForConditionalGeneration

import fine_tune_t5
from t5suite.base.errors import ConfigError, Preempted
from t5suite.data.batches.collators import IGNORED, Seq2SeqCollator, shift_right
from t5suite.data.batches.features import Ragged, TokenArrays
from t5suite.data.batches.packed_rows import PackedRowsCollator, choose_counts, choose_row_lengths, with_packed_rows
from t5suite.data.batches.samplers import GlobalBatchSampler, shuffled_order
from t5suite.fine_tuner_support import accept_packed_batches
from t5suite.models.adapters import adapted
from t5suite.models.loading import load_tokenizer
from t5suite.models.own_models import hold_module
from t5suite.training.checks import check_packable, sampling_for
from t5suite.training.flags.fine_tuning import DataArguments, SuiteTrainingArguments
from t5suite.training.losses import token_loss
from t5suite.training.plug_ins import NO_PLUG_INS, PlugIns
from t5suite.training.processes.signals import StopRequests
from t5suite.training.trainer import SuiteTrainer

PAD, START = 0, 0
RELATIVE = 2e-6


def examples(count=300, seed=0, longest=40) -> TokenArrays:
    """Ragged rows; inputs of 1 to `longest` tokens, targets of 1 to 7."""
    rng = np.random.default_rng(seed)
    draw = lambda most: [rng.integers(2, 90, n).tolist() for n in rng.integers(1, most + 1, count)]
    return TokenArrays(Ragged.from_rows(draw(longest)), Ragged.from_rows(draw(7)))


def segments(batch, row) -> list[tuple]:
    """`(inputs, labels, what the decoder reads)` of each example of a row."""
    found = []
    for number in range(1, int(batch["encoder_segment_ids"][row].max()) + 1):
        here, there = (batch[f"{side}_segment_ids"][row] == number for side in ("encoder", "decoder"))
        parts = batch["input_ids"][row][here], batch["labels"][row][there], batch["decoder_input_ids"][row][there]
        found.append(tuple(part.tolist() for part in parts))
    return found


class CollatorTest(parameterized.TestCase):
    @parameterized.parameters(0, 1, 2)
    def test_every_example_stands_whole_in_one_row_and_nothing_else_does(self, seed):
        arrays = examples(64, seed)
        batch = PackedRowsCollator(PAD, START, row_lengths=(64, 12))(arrays.__getitems__(np.arange(64)))
        found = [part for row in range(len(batch["input_ids"])) for part in segments(batch, row)]
        labels = [arrays[i]["labels"] for i in range(64)]
        read = [shift_right(torch.from_numpy(row[None]).long(), PAD, START)[0].tolist() for row in labels]
        wanted = [(arrays[i]["input_ids"].tolist(), labels[i].tolist(), read[i]) for i in range(64)]
        self.assertCountEqual(found, wanted)
        self.assertTrue(batch["input_ids"][batch["encoder_segment_ids"] == 0].eq(PAD).all())
        self.assertTrue(batch["labels"][batch["decoder_segment_ids"] == 0].eq(IGNORED).all())
        self.assertTrue(torch.equal(batch["attention_mask"], batch["encoder_segment_ids"].gt(0).long()))
        self.assertLess(len(batch["input_ids"]), 40)

    def test_no_examples_are_a_row_that_counts_for_nothing(self):
        batch = PackedRowsCollator(PAD, START, row_lengths=(16, 8), row_counts=(2, 4))([])
        self.assertEqual(batch["input_ids"].shape, (2, 16))
        self.assertTrue(batch["labels"].eq(IGNORED).all())

    def test_full_rows_beside_empty_ones_have_a_finite_loss_and_gradient(self):
        """A row without padding in its inputs, whose padded targets see nothing; and rows of padding alone."""
        model = law_worker.tiny_model(load_tokenizer(None))
        accept_packed_batches(model)
        rows = [{"input_ids": [5] * 16, "labels": [7, 1]}, {"input_ids": [6] * 3, "labels": [1] * 8}]
        padded = Seq2SeqCollator(PAD, START)(rows)
        packed = PackedRowsCollator(PAD, START, row_lengths=(16, 8), row_counts=(4,))(rows)
        found = []
        for batch in (padded, packed):
            labels = batch.pop("labels")
            model.zero_grad()
            loss = token_loss(model(**batch).logits, labels, labels.ne(IGNORED).sum())
            loss.backward()
            found.append((loss.item(), torch.cat([p.grad.reshape(-1) for p in model.parameters()])))
        self.assertAlmostEqual(found[0][0], found[1][0], delta=1e-6 * found[0][0])
        difference = torch.linalg.vector_norm(found[0][1] - found[1][1]) / torch.linalg.vector_norm(found[0][1])
        self.assertLess(difference.item(), 5e-6)


class ShapesTest(parameterized.TestCase):
    @parameterized.product(most=[1, 2, 4, 8], world_size=[1, 3])
    def test_batches_have_few_shapes_in_every_epoch(self, most, world_size):
        arrays, order = examples(), shuffled_order(300, 0)
        with self.assertLogs("t5suite.data.batches.packed_rows", "INFO") as logs:
            packed = with_packed_rows(Seq2SeqCollator(PAD, START), arrays, order, 8, most)
        shapes = set()
        for epoch in range(4):
            for rank in range(world_size):
                sampler = GlobalBatchSampler(order, 8, 1, rank, world_size)
                sampler.set_epoch(epoch)
                for indices in sampler:
                    batch = packed(arrays.__getitems__(indices))
                    shapes.add(tuple(batch["input_ids"].shape + batch["labels"].shape))
        self.assertLessEqual(len(shapes), packed.num_shapes)
        self.assertLessEqual(packed.num_shapes, most)
        self.assertIn(f"{packed.num_shapes} shape", "\n".join(logs.output))

    def test_the_log_tells_how_much_is_no_padding(self):
        arrays, order = examples(), shuffled_order(300, 0)
        with self.assertLogs("t5suite.data.batches.packed_rows", "INFO") as logs:
            packed = with_packed_rows(Seq2SeqCollator(PAD, START), arrays, order, 8, 4)
        batches = [packed(arrays.__getitems__(order(0)[i : i + 8])) for i in range(0, 300, 8)]
        used = [sum(int(batch[name].gt(0).sum()) for batch in batches) for name in
                ("encoder_segment_ids", "decoder_segment_ids")]  # fmt: skip
        places = [sum(batch[name].numel() for batch in batches) for name in ("input_ids", "labels")]
        told = "{:.0f}% of their input tokens and {:.0f}% of their target tokens"
        self.assertIn(told.format(*(100 * u / p for u, p in zip(used, places, strict=True))), logs.output[0])

    def test_chosen_lengths_cost_no_more_than_the_longest_example_s(self):
        lengths = np.stack([examples().input_ids.lengths, examples().labels.lengths], axis=1)
        chosen = choose_row_lengths(lengths, np.arange(300), 8, (None, None))
        self.assertGreater(chosen[0], 40)
        self.assertEqual(choose_row_lengths(lengths, np.arange(300), 8, (48, 16)), (48, 16))
        self.assertEqual(choose_row_lengths(lengths, np.arange(300), 8, (96, None))[0], 96)

    @parameterized.parameters(*range(20))
    def test_no_other_numbers_of_rows_pad_less(self, seed):
        rng = np.random.default_rng(seed)
        needed, most = rng.integers(3, 9, 50), int(rng.integers(2, 5))
        counts = choose_counts(needed, 32, most)
        self.assertLessEqual(len(counts), most)
        self.assertEqual(counts[-1], 32)
        padded = sum(next(count for count in counts if count >= n) for n in needed)
        others = sum(np.minimum(*(np.where(needed <= c, c, 32) for c in (counts[0], needed.max()))))
        self.assertLessEqual(padded, others)

    @parameterized.parameters((1, True), (2, False))
    def test_one_shape_is_warned_of(self, most, warns):
        with self.assertLogs("t5suite.data.batches.packed_rows", "INFO") as logs:
            with_packed_rows(Seq2SeqCollator(PAD, START), examples(), shuffled_order(300, 0), 8, most)
        self.assertEqual(any("choose 2 or more" in line for line in logs.output), warns)

    @parameterized.parameters(("inputs", (39, None)), ("targets", (None, 6)))
    def test_rows_shorter_than_an_example_are_refused(self, side, row_lengths):
        with self.assertRaisesRegex(ConfigError, f"--row_{side}_length .*the longest example has"):
            with_packed_rows(Seq2SeqCollator(PAD, START), examples(), shuffled_order(300, 0), 8, 0, row_lengths)


class LawTest(parameterized.TestCase):
    def assert_same_course(self, found, expected):
        self.assertLen(found["loss"], len(expected["loss"]))
        for key in ("loss", "grad_norm"):
            for a, b in zip(found[key], expected[key], strict=True):
                self.assertLess(abs(a - b) / abs(b), RELATIVE, f"{key}: {found[key]} {expected[key]}")

    @parameterized.parameters((8, 1, 0), (8, 1, 1), (4, 2, 2), (2, 4, 0), (1, 8, 8))
    def test_packed_updates_equal_padded_ones(self, batch_size, accumulation, most):
        found = packed_rows_worker.history(batch_size, accumulation, most=most)
        self.assert_same_course(found, law_worker.train_history(8, 1))

    @pytest.mark.slow
    @pytest.mark.law
    def test_two_ranks_equal_one(self):
        found = law_worker.reported_by_two_ranks(packed_rows_worker.__file__)
        for key in ("plain", "accumulated"):
            self.assertEqual(found[key]["world_size"], 2)
            self.assert_same_course(found[key], law_worker.train_history(8, 1))

    def test_a_micro_batch_that_does_not_fit_is_computed_in_pieces(self):
        """What runs out of memory is cut by rows; the update stays the same."""
        trainer = packed_rows_worker.packing_trainer(8, 1, row_lengths=(64, 16))
        forward, sizes = trainer.model.forward, []

        def limited(*args, **kwargs):
            sizes.append(len(kwargs["input_ids"]))
            if sizes[-1] > 2:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 bytes")
            return forward(*args, **kwargs)

        trainer.model.forward = limited
        trainer.train()
        losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
        self.assertGreater(max(sizes), 2)
        for a, b in zip(losses, law_worker.train_history(8, 1)["loss"], strict=True):
            self.assertLess(abs(a - b) / abs(b), RELATIVE)


class RefusalTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.tokenizer = load_tokenizer(None)
        self.args = SuiteTrainingArguments(use_cpu=True)

    def refused(self, model, says, plug_ins=NO_PLUG_INS, **settings):
        for name, value in settings.items():
            setattr(self.args, name, value)
        with self.assertRaisesRegex(ConfigError, f"^--pack_rows .*{says}"):
            check_packable(model, self.args, plug_ins)

    def test_other_models(self):
        bart = BartForConditionalGeneration(BartConfig(vocab_size=9, d_model=8, encoder_layers=1, decoder_layers=1,
                                                       encoder_attention_heads=1, decoder_attention_heads=1,
                                                       encoder_ffn_dim=8, decoder_ffn_dim=8))  # fmt: skip
        self.refused(bart, "not 'bart': examples would see one another")
        own = hold_module(Pooled(len(self.tokenizer)), tokenizer=self.tokenizer, family="auto", tasks=())
        self.refused(own, "not a module of your own")

    def test_learned_prompts_and_attention_of_one_s_own(self):
        model = law_worker.tiny_model(self.tokenizer)
        prompted = adapted(model, self.tokenizer, "prompt_tuning", {"num_virtual_tokens": 3}, base_name="tiny")
        self.refused(prompted, "learned prompts")
        plain = law_worker.tiny_model(self.tokenizer)
        plain.config.custom_attention = {"class": "module:Class"}
        self.refused(plain, "custom_attention")

    def test_what_takes_a_row_for_an_example(self):
        model = law_worker.tiny_model(self.tokenizer)
        self.refused(model, "--batch_transform", PlugIns(batch_transform=dict))
        self.refused(model, "--batch_metrics", PlugIns(batch_metrics=dict))
        self.refused(model, "--neftune_noise_alpha", neftune_noise_alpha=5.0)

    @parameterized.parameters("row_inputs_length", "row_targets_length")
    def test_lengths_without_packing(self, name):
        with self.assertRaisesRegex(ConfigError, f"--{name} 64: it belongs to --pack_rows"):
            DataArguments(**{name: 64})

    def test_examples_are_shuffled_unless_grouping_is_asked_for(self):
        self.assertEqual(sampling_for(self.args, packs=True), "random")
        self.assertEqual(sampling_for(self.args, packs=False), "group_by_length")
        self.args.flags_given = frozenset({"train_sampling_strategy"})
        with self.assertLogs("t5suite.training.checks", "WARNING"):
            self.assertEqual(sampling_for(self.args, packs=True), "group_by_length")


FLAGS = [
    *"--pack_rows --dataset_name entailment --max_train_samples 60 --max_eval_samples 8 --eval_method score".split(),
    *"--per_device_train_batch_size 8 --gradient_accumulation_steps 2 --num_train_epochs 2 --logging_steps 3".split(),
    *f"--config_overrides {SHAPE} --dropout_rate 0.1 --disable_tqdm True --use_cpu --length_buckets 2".split(),
]


def run(directory, **patches):
    with mock.patch.multiple(SuiteTrainer, **patches) if patches else mock.patch.dict({}):
        return fine_tune_t5.main([*FLAGS, "--output_dir", str(directory)])


@functools.cache
def whole():
    """`(results, directory)` of an uninterrupted run."""
    directory = Path(tempfile.mkdtemp()) / "run"
    return run(directory), directory


class ResumeTest(parameterized.TestCase):
    @parameterized.parameters(3, 4, 5)
    def test_stopped_and_resumed_equals_uninterrupted(self, step):
        """4 updates an epoch, the last of them ragged, with dropout."""
        patched = mock.patch("t5suite.training.checkpoints.saving.stop_requests", StopRequests)
        patched.start()
        self.addCleanup(patched.stop)
        expected, reference = whole()
        directory = Path(tempfile.mkdtemp()) / "run"
        with self.assertRaises(Preempted):
            run(directory, **(stop_in_evaluation(step) if step == 4 else stop_in_step(step)))
        self.assertEqual(run(directory), expected)
        self.assertEqual(untimed(directory), untimed(reference))
        self.assertEqual(*[(path / "model.safetensors").read_bytes() for path in (directory, reference)])
        self.assertEqual(json.loads((directory / "manifest.json").read_text())["training"]["steps"], 8)
