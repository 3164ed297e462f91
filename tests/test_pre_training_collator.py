"""Collators of pre-training: shapes, what may change a datum, every objective, several denoisers, packed rows."""

import numpy as np
import pytest
import torch
import transformers
from absl.testing import parameterized
from masked_texts import CLS, PAD, SEP, TABLE, VOCABULARY, V, example_text
from torch.utils.data import DataLoader

from benchmarks import collator as collator_benchmark
from t5suite.data.batches.pre_training_collator import CausalLMCollator, MaskedLMCollator, T5DataCollator, pack_examples
from t5suite.data.objectives import MASK_UNITS, OBJECTIVES, datum_rng, span_lengths
from t5suite.testing import exits_with
from t5suite.training.pre_training_collators import seq2seq_collator

SENTINELS = list(range(32099, 31999, -1))
EOS, START = 1, 7
MODES = {"R": 32100, "S": 32101, "X": 32102}
SEQ2SEQ = [name for name, objective in OBJECTIVES.items() if objective.family == "seq2seq"]


def collator_of(inputs_length, targets_length=None, **settings):
    return T5DataCollator(
        sentinel_ids=SENTINELS, eos_token_id=EOS, inputs_length=inputs_length, targets_length=targets_length, **settings
    )


def any_collator(name, inputs_length=64, **settings):
    """A collator of any objective, with all that one may need."""
    defaults = {
        "word_start_V": np.arange(40_000) % 3 != 2,
        "sentence_end_V": np.arange(40_000) % 7 == 0,
        "mode_token_ids": MODES,
        "decoder_start_token_id": START,
    }
    return collator_of(inputs_length, objective=name, **{**defaults, **settings})


def some_examples(collator, num_examples, first_index=0):
    """Blocks of random text as long as they may be, the denoisers taking turns."""
    examples = []
    for index in range(first_index, first_index + num_examples):
        denoiser = index % len(collator.weights)
        tokens = np.random.default_rng(index).integers(100, 20_000, collator.tokens_lengths[denoiser])
        examples.append({"input_ids": tokens, "index": index, "denoiser": denoiser})
    return examples


def sides(batch):
    """`[(inputs, targets)]` of a padded batch, without the padding."""
    lengths = batch["attention_mask"].sum(1).tolist()
    inputs = [row[:length].tolist() for row, length in zip(batch["input_ids"], lengths)]
    return [(ids, row[row != -100].tolist()) for ids, row in zip(inputs, batch["labels"], strict=True)]


def packed_sides(batch):
    """`[(inputs, targets, decoder inputs)]` of every segment of a packed batch, row by row."""
    segments = []
    for row in range(len(batch["input_ids"])):
        encoder, decoder = batch["encoder_segment_ids"][row], batch["decoder_segment_ids"][row]
        assert set(encoder[encoder > 0].tolist()) == set(decoder[decoder > 0].tolist())
        for segment in range(1, int(encoder.max()) + 1):
            ids = batch["input_ids"][row][encoder == segment]
            labels, starts = (batch[name][row][decoder == segment] for name in ("labels", "decoder_input_ids"))
            segments.append((ids.tolist(), labels.tolist(), starts.tolist()))
    return segments


class CollatorTest(parameterized.TestCase):
    def examples(self, collator, num_examples):
        tokens_NL = np.random.default_rng(0).integers(2, 32000, (5, collator.tokens_length)).astype(np.uint16)
        return [{"input_ids": tokens_NL[index % 5], "index": index} for index in range(num_examples)]

    def test_t5_lengths_without_padding(self):
        collator = collator_of(512, 114, noise_density=0.15, mean_span_length=3.0)
        self.assertEqual(collator.tokens_length, 568)
        batch = collator(self.examples(collator, 6))
        shapes = {name: tuple(tensor.shape) for name, tensor in batch.items()}
        self.assertEqual(
            shapes,
            {"input_ids": (6, 512), "attention_mask": (6, 512), "labels": (6, 114), "decoder_input_ids": (6, 114)},
        )
        self.assertEqual({tensor.dtype for tensor in batch.values()}, {torch.long})
        self.assertTrue(batch["attention_mask"].eq(1).all())
        self.assertFalse(batch["input_ids"].eq(0).any() or batch["labels"].lt(0).any())
        self.assertTrue(batch["input_ids"][:, -1].eq(EOS).all() and batch["labels"][:, -1].eq(EOS).all())
        self.assertTrue(batch["labels"][:, 0].eq(32099).all())

    @parameterized.parameters((1, 0), (3, 0), (8, 0), (3, 2), (4, 2))
    @pytest.mark.quick_cases(2)
    def test_workers_and_batch_size_do_not_change_the_data(self, batch_size, num_workers):
        collator = collator_of(64, seed=5)
        dataset = self.examples(collator, 12)
        whole = collator(dataset)
        torch.manual_seed(batch_size)
        np.random.seed(batch_size)
        batches = list(DataLoader(dataset, batch_size, num_workers=num_workers, collate_fn=collator))
        for name, tensor in whole.items():
            self.assertTrue(torch.cat([batch[name] for batch in batches]).equal(tensor), name)

    def test_room_left_by_the_lengths_is_padded_and_ignored(self):
        """Density 0.5 can leave both sides one short of what `span_lengths` says."""
        collator = collator_of(11, span_lengths(11, 0.5, 3)[1], noise_density=0.5, pad_token_id=9)
        batch = collator([{"input_ids": np.arange(100, 114), "index": 0}])
        self.assertEqual(batch["input_ids"][0, -2:].tolist(), [EOS, 9])
        self.assertEqual(batch["attention_mask"][0].tolist(), [1] * 10 + [0])
        self.assertEqual(batch["labels"][0, -2:].tolist(), [EOS, -100])
        self.assertEqual(batch["decoder_input_ids"][0, -1].item(), EOS)

    def test_blocks_of_another_length_and_unnumbered_examples_are_refused(self):
        collator = collator_of(64)
        with self.assertRaisesRegex(ValueError, "example 3 has 64 tokens: .* needs blocks of 70"):
            collator([{"input_ids": np.arange(64), "index": 3}])
        with self.assertRaisesRegex(ValueError, "remove_unused_columns"):
            collator([{"input_ids": np.arange(collator.tokens_length)}])


class EveryObjectiveTest(parameterized.TestCase):
    @parameterized.parameters(*SEQ2SEQ)
    def test_rows_are_what_the_objective_makes_of_one_datum(self, name):
        collator, objective = any_collator(name, seed=9), OBJECTIVES[name]
        every_setting = {"sentinel_ids": SENTINELS, "eos_id": EOS, "targets_length": collator.targets_length}
        every_setting |= {
            "word_start_V": collator.word_start_V,
            "sentence_end_V": collator.sentence_end_V,
            "mode_token_ids": MODES,
        }
        examples = some_examples(collator, 7)
        for example, side in zip(examples, sides(collator(examples)), strict=True):
            settings = {key: every_setting[key] for key in (*objective.needs, *objective.uses) if key in every_setting}
            if name == "ul2":
                settings["denoiser"] = example["denoiser"]
            inputs, targets = objective(example["input_ids"], datum_rng(9, example["index"]), **settings)
            self.assertEqual(side, (inputs.tolist(), targets.tolist()))

    @parameterized.parameters(*SEQ2SEQ)
    def test_shapes_never_change(self, name):
        collator = any_collator(name)
        width = 1 if name == "full_lm" else 64
        for examples in (some_examples(collator, 1), some_examples(collator, 9), []):
            batch = collator(examples)
            num_rows = max(len(examples), 1)
            for key, tensor in batch.items():
                expected = collator.targets_length if key in ("labels", "decoder_input_ids") else width
                self.assertEqual((tensor.shape, tensor.dtype), ((num_rows, expected), torch.long), key)

    def test_shorter_blocks_are_taken_and_longer_ones_refused(self):
        collator = any_collator("iid_denoising")
        block = np.arange(100, 101 + collator.tokens_length)
        self.assertLen(sides(collator([{"input_ids": block[:length], "index": length} for length in (5, 1, 9, 5)])), 4)
        for length in (len(block), 0):
            with self.assertRaisesRegex(ValueError, f"has {length} tokens: .* needs 1 to {collator.tokens_length}"):
                collator([{"input_ids": block[:length], "index": 0}])

    def test_what_cannot_work_is_refused_when_made(self):
        for settings, message in (
            ({"objective": "span_coruption"}, "--objective: unknown .*did you mean span_corruption"),
            ({"objective": "prefix_lm", "targets_length": 100}, "127 targets, more than --targets_length 100"),
            ({"noise_density": 0.5, "inputs_length": 512}, "128 spans, but the tokenizer has 100 sentinels"),
            ({"pack": True, "row_targets_length": 8}, "row_targets_length 8: examples have up to 29 targets"),
            ({"row_inputs_length": 256}, "row_inputs_length 256 has no effect without pack"),
            (
                {"objective": "unit_denoising", "mask_units": "pmi"},
                "--mask_units pmi needs a table .*--collocations.*t5suite corpus collocations",
            ),
        ):
            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                T5DataCollator(**{"sentinel_ids": SENTINELS, "inputs_length": 128, **settings})

    def test_denoisers(self):
        collator = any_collator("ul2", 384)
        self.assertLen(collator.tokens_lengths, 7)
        self.assertAlmostEqual(sum(collator.weights), 1)
        with self.assertRaisesRegex(ValueError, "ul2 has blocks of .* use `tokens_lengths`"):
            _ = collator.tokens_length
        tokens = np.arange(100, 100 + collator.tokens_lengths[0])
        with self.assertRaisesRegex(ValueError, "denoiser 7: ul2 has 7"):
            collator([{"input_ids": tokens, "index": 0, "denoiser": 7}])
        inputs = [ids for ids, _ in sides(collator(some_examples(collator, 14)))]
        self.assertEqual([ids[0] for ids in inputs], [MODES[mode] for mode in "RRSXXXX"] * 2)


class PlainAlgorithmTest(parameterized.TestCase):
    @parameterized.parameters(568, 64)
    @pytest.mark.slow
    def test_masks_obey_the_law_of_the_plain_algorithm(self, length):
        """The benchmark's peer: equal counts, tokens from equal masks, span lengths and positions."""
        self.assertLen(collator_benchmark.check_same_law(length, 2000), 7)


class PackingTest(parameterized.TestCase):
    def lengths(self, seed, num_examples=60):
        rng = np.random.default_rng(seed)
        return np.stack([rng.integers(1, 65, num_examples), rng.integers(0, 33, num_examples)], axis=1)

    @parameterized.parameters(*range(3))
    def test_every_example_stands_in_one_row_that_has_room(self, seed):
        lengths_B2, row_lengths = self.lengths(seed), np.array([64, 32])
        rows_B = pack_examples(lengths_B2, row_lengths)
        self.assertEqual(sorted(set(rows_B.tolist())), list(range(rows_B.max() + 1)))
        used_R2 = np.stack([np.bincount(rows_B, weights=side) for side in lengths_B2.T], axis=1)
        self.assertTrue((used_R2 <= row_lengths).all())
        np.testing.assert_array_equal(rows_B, pack_examples(lengths_B2, row_lengths))

    def test_an_example_that_is_longer_than_a_row_is_named(self):
        self.assertEqual(pack_examples([[8, 5]], (8, 5)).tolist(), [0])
        for lengths in ([9, 1], [1, 6]):
            with self.assertRaisesRegex(ValueError, rf"example 1 has \[{lengths[0]}, {lengths[1]}\] .* row's \[8, 5\]"):
                pack_examples([[8, 5], lengths], (8, 5))

    def test_rows_that_can_be_filled_are(self):
        self.assertEqual(pack_examples([[5, 1], [3, 1], [6, 1], [2, 1]], (8, 4)).tolist(), [0, 0, 1, 1])
        self.assertEqual(pack_examples(np.zeros((0, 2)), (8, 4)).tolist(), [])

    @parameterized.parameters(*SEQ2SEQ)
    def test_packed_examples_are_those_of_padded_rows_each_once(self, name):
        rows = {"row_inputs_length": 150, "row_targets_length": 200}
        padded, packed = any_collator(name, seed=2), any_collator(name, seed=2, pack=True, **rows)
        examples = some_examples(padded, 21)
        batch, examples_in_rows = packed(examples), packed_sides(packed(examples))
        self.assertCountEqual([(inputs, targets) for inputs, targets, _ in examples_in_rows], sides(padded(examples)))
        for _, targets, decoder_inputs in examples_in_rows:
            self.assertEqual(decoder_inputs, [START, *targets[:-1]])
        self.assertLess(len(batch["input_ids"]), len(examples))
        self.assertEqual(batch["input_ids"].shape, batch["encoder_segment_ids"].shape)
        self.assertEqual(batch["labels"].shape, (len(batch["input_ids"]), 200))
        self.assertTrue(batch["attention_mask"].equal((batch["encoder_segment_ids"] > 0).long()))
        for name_of_side, fill, segments in (("input_ids", PAD, "encoder"), ("labels", -100, "decoder")):
            free = batch[f"{segments}_segment_ids"] == 0
            self.assertTrue(batch[name_of_side][free].eq(fill).all())


class MaskedCollatorTest(parameterized.TestCase):
    def collator(self, **settings):
        settings = {"inputs_length": 32, "cls_token_id": CLS, "sep_token_id": SEP, "collocations": TABLE, **settings}
        return MaskedLMCollator(VOCABULARY, **settings)

    def examples(self, count, length=30):
        return [{"input_ids": row.astype(np.uint16), "index": j} for j, row in enumerate(example_text(count, length))]

    def test_one_token_has_room_between_the_special_ones(self):
        examples = self.examples(1, length=1)
        batch = self.collator(inputs_length=3)(examples)
        self.assertEqual(batch["labels"].tolist(), [[-100, examples[0]["input_ids"].item(), -100]])
        with exits_with(78, "--inputs_length 2 leaves no room"):
            self.collator(inputs_length=2)

    def pairs(self, count):
        rows = []
        for j, row in enumerate(example_text(count, 32)):
            length = 10 + j % 20
            ids, types = row[:length].copy(), (np.arange(length) > 4).astype(int)
            ids[0], ids[4], ids[-1] = CLS, SEP, SEP
            rows.append({"input_ids": ids, "token_type_ids": types, "next_sentence_label": j % 2, "index": j})
        return rows

    @parameterized.parameters(*MASK_UNITS)
    def test_shapes_and_special_tokens(self, mask_units):
        collate = self.collator(mask_units=mask_units)
        self.assertEqual((collate.tokens_length, collate.tokens_lengths, tuple(collate.weights)), (30, [30], (1.0,)))
        batch = collate(self.examples(6))
        self.assertEqual(
            {name: (tuple(t.shape), t.dtype) for name, t in batch.items()},
            {name: ((6, 32), torch.long) for name in ("input_ids", "attention_mask", "labels")},
        )
        self.assertTrue(batch["input_ids"][:, 0].eq(CLS).all() and batch["input_ids"][:, -1].eq(SEP).all())
        self.assertTrue(batch["labels"][:, [0, -1]].eq(-100).all())
        whole = torch.where(batch["labels"].eq(-100), batch["input_ids"], batch["labels"])[:, 1:-1]
        self.assertEqual(whole.tolist(), [example["input_ids"].tolist() for example in self.examples(6)])

    @parameterized.product(mask_units=tuple(MASK_UNITS), sentence_pairs=(None, "next"))
    def test_a_row_depends_on_seed_and_index_alone(self, mask_units, sentence_pairs):
        collate = self.collator(mask_units=mask_units, sentence_pairs=sentence_pairs, seed=3)
        examples = self.pairs(9) if sentence_pairs else self.examples(9)
        whole = collate(examples)
        for j in (8, 2, 5):
            alone = collate([examples[j]])
            for name, tensor in alone.items():
                self.assertTrue(tensor[0].equal(whole[name][j]), name)
        other = self.collator(mask_units=mask_units, sentence_pairs=sentence_pairs, seed=4)(examples)
        self.assertFalse(other["labels"].equal(whole["labels"]))

    def test_pairs_are_padded_and_padding_counts_for_nothing(self):
        batch = self.collator(sentence_pairs="next")(self.pairs(8))
        for row, pair in enumerate(self.pairs(8)):
            length = len(pair["input_ids"])
            self.assertEqual(batch["attention_mask"][row].tolist(), [1] * length + [0] * (32 - length))
            self.assertTrue(batch["input_ids"][row, length:].eq(PAD).all())
            self.assertEqual(batch["labels"][row].ne(-100).sum(), round(length * 0.15))
            self.assertEqual(batch["token_type_ids"][row, :length].tolist(), pair["token_type_ids"].tolist())
        self.assertEqual(batch["next_sentence_label"].tolist(), [0, 1] * 4)

    def test_settings_that_cannot_work_are_refused_when_made(self):
        for settings, message in (
            ({"mask_units": "wrod"}, "did you mean word"),
            ({"mask_units": "pmi", "collocations": None}, "needs a table of collocations"),
            ({"inputs_length": 2}, "--inputs_length 2"),
            ({"cls_token_id": 9}, "special tokens"),
        ):
            with self.subTest(message), exits_with(78, message):
                self.collator(**settings)


class CausalTest(parameterized.TestCase):
    def test_our_loss_on_shifted_labels_is_hugging_faces_on_unshifted_ones(self):
        config = transformers.GPT2Config(vocab_size=V, n_positions=32, n_embd=16, n_layer=1, n_head=2)
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config).eval()
        batch = CausalLMCollator(16)([{"input_ids": row, "index": j} for j, row in enumerate(example_text(3, 16))])
        labels = batch.pop("labels")
        theirs = model(**batch, labels=batch["input_ids"])
        ours = torch.nn.functional.cross_entropy(theirs.logits.flatten(0, 1), labels.flatten())
        torch.testing.assert_close(ours, theirs.loss)

    def test_a_row_has_two_tokens_or_more(self):
        self.assertEqual(CausalLMCollator(2).tokens_length, 2)
        with exits_with(78, "--inputs_length 1: .* 2 tokens or more"):
            CausalLMCollator(1)

    def test_an_empty_batch_counts_for_nothing(self):
        self.assertTrue(CausalLMCollator(8)([])["labels"].eq(-100).all())


class BytesTest(parameterized.TestCase):
    """Bytes do not show where a word begins."""

    @parameterized.parameters("token", "span")
    def test_units_that_need_no_words_are_hidden(self, mask_units):
        collator = seq2seq_collator("unit_denoising", transformers.ByT5Tokenizer(), 32, mask_units=mask_units)
        self.assertIsNone(collator.word_start_V)

    @parameterized.parameters(
        ("unit_denoising", {}, "use --mask_units token"),
        ("unit_denoising", {"mask_units": "word"}, "use --mask_units token"),
        ("sentence_deshuffling", {}, "--objective sentence_deshuffling needs it; choose another"),
    )
    def test_what_needs_words_is_refused_with_a_remedy(self, objective, settings, remedy):
        with exits_with(78, f"do not show where a word begins .*: {remedy}"):
            seq2seq_collator(objective, transformers.ByT5Tokenizer(), 32, **settings)
