"""Masked language modelling: units, masks, replacements, and what tokenizers tell of words."""

import json
import pathlib

import numpy as np
import pytest
import torch
import transformers
from absl.testing import parameterized
from masked_texts import CLS, MASK, NUM_SPECIAL, SEP, TABLE, VOCABULARY, V, collocations_of, example_text
from recorded_batches import pre_training_batches
from scipy import stats
from support import folder

from t5suite.data.objectives import MASK_UNITS, OBJECTIVES, DatumRngs, datum_rng, mask_vocabulary, word_start_flags
from t5suite.data.objectives.masked import choose_units, unit_masks, unit_starts
from t5suite.testing import exits_with, write_rows

ROOT = pathlib.Path(__file__).resolve().parents[1]
MINI_TOKENIZER = ROOT / "t5suite" / "data" / "mini" / "model"
UNITS = {"word_start_V": VOCABULARY.word_start_V, "collocations": TABLE}
masked_lm_batch = OBJECTIVES["masked_lm"].batch


def random_keys(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, size=shape, dtype=np.uint32)


def greedy(starts, choosable, density, keys):
    """`choose_units` one unit after the other."""
    length, units = len(starts), []
    for place in range(length):
        cut = place == 0 or starts[place] or not choosable[place] or not choosable[place - 1]
        units.append([place]) if cut else units[-1].append(place)
    allowance = max(1, round(length * density))
    units = [part for unit in units for part in ([unit] if len(unit) <= allowance else [[place] for place in unit])]
    mask = np.zeros(length, dtype=bool)
    for unit in sorted(units, key=lambda unit: (keys[unit[0]], unit[0])):
        if choosable[unit[0]] and mask.sum() + len(unit) <= allowance:
            mask[unit] = True
    return mask


class UnitsTest(parameterized.TestCase):
    def test_collocations_are_found_from_left_to_right_longest_first(self):
        for row in example_text(200, 30):
            starts = unit_starts(row[None], None, "pmi", **UNITS)[0]
            self.assertEqual(np.flatnonzero(starts).tolist(), [unit[0] for unit in collocations_of(row.tolist())])

    @parameterized.parameters(("ngram", 1 / np.arange(1, 4)), ("span", 0.8 ** np.arange(10)))
    def test_runs_of_words_follow_the_published_law(self, mask_units, weights):
        tokens = np.full((400, 500), 7)
        starts = unit_starts(tokens, random_keys(400, 500), mask_units)
        lengths = np.concatenate([np.diff(np.flatnonzero(row)) for row in starts])
        counts = np.bincount(lengths, minlength=len(weights) + 1)[1:]
        self.assertLen(counts, len(weights))
        self.assertGreater(stats.chisquare(counts, counts.sum() * weights / weights.sum()).pvalue, 1e-4)

    def test_units_that_need_what_is_not_there_are_refused(self):
        for unit, settings, message in (
            ("word", {}, "--mask_units word needs .*--mask_units token"),
            ("pmi", {}, "needs a table of collocations"),
            ("words", {}, "--mask_units: unknown unit 'words'; did you mean word"),
            ("span", {"mean_span_length": 0.5}, "--mean_span_length 0.5"),
        ):
            with exits_with(78, message):
                unit_masks(example_text(1, 8), 0.15, datum_rng(0, 0), unit, **settings)
        with exits_with(65, "token id -1: ids begin at 0"):
            unit_starts(np.array([[5, -1]]), None, "word", **UNITS)
        with exits_with(65, "token id 40, but the tokenizer has 40"):
            unit_masks(np.array([[V]]), 0.15, datum_rng(0, 0), "word", **UNITS)


class ChoiceTest(parameterized.TestCase):
    @parameterized.product(density=(0.05, 0.15, 0.5), length=(1, 9, 40))
    def test_choice_equals_one_unit_after_the_other(self, density, length):
        rng = np.random.default_rng(length)
        starts, choosable = rng.random((60, length)) < 0.4, rng.random((60, length)) < 0.8
        keys = random_keys(60, length) >> np.uint32(28)  # with ties
        chosen, _ = choose_units(starts, choosable, density, keys)
        for row in range(60):
            expected = greedy(starts[row], choosable[row], density, keys[row])
            np.testing.assert_array_equal(chosen[row], expected)

    @parameterized.product(mask_units=tuple(MASK_UNITS), exact_count=(True, False))
    @pytest.mark.quick_cases(4)
    def test_units_are_hidden_whole_or_not_at_all(self, mask_units, exact_count):
        tokens = example_text(200, 150)
        keys = DatumRngs(3, range(200)).keys(300).reshape(200, 2, 150)[:, 0]
        starts = unit_starts(tokens, keys, mask_units, **UNITS)
        mask, _ = unit_masks(tokens, 0.25, DatumRngs(3, range(200)), mask_units, exact_count=exact_count, **UNITS)
        inside = ~starts[:, 1:]
        np.testing.assert_array_equal(mask[:, 1:][inside], mask[:, :-1][inside])
        self.assertTrue(mask.any() and not mask.all())

    @parameterized.parameters(*MASK_UNITS)
    def test_the_share_is_met_but_for_what_a_unit_is_too_long_for(self, mask_units):
        mask, _ = unit_masks(example_text(200, 200), 0.15, np.random.default_rng(0), mask_units, **UNITS)
        counts = mask.sum(axis=1)
        self.assertLessEqual(counts.max(), 30)
        self.assertGreaterEqual(counts.min(), 30 - 10)
        self.assertAlmostEqual(counts.mean(), 30, delta=0.5)
        if mask_units == "token":
            self.assertEqual(set(counts), {30})


class MaskedLMTest(parameterized.TestCase):
    @parameterized.parameters(np.uint8, np.uint16, np.int32)
    def test_ids_of_a_corpus_of_any_type_of_numbers_have_the_same_labels(self, dtype):
        rows = example_text(4, 30)
        batches = [masked_lm_batch(ids, datum_rng(0, 0), VOCABULARY) for ids in (rows, rows.astype(dtype))]
        for expected, part in zip(*batches, strict=True):
            np.testing.assert_array_equal(part.values, expected.values)
            self.assertEqual(part.values.dtype, np.int64)

    def rows(self, batch, length=50):
        tokens = example_text(batch, length)
        tokens[:, 0], tokens[:, -1], tokens[:, length // 2], tokens[:, 3] = CLS, SEP, SEP, 4
        return tokens

    @parameterized.product(mask_units=tuple(MASK_UNITS), exact_count=(True, False))
    def test_special_tokens_are_never_chosen_and_never_put_in(self, mask_units, exact_count):
        tokens, units = self.rows(400), {"collocations": TABLE, "mask_units": mask_units, "exact_count": exact_count}
        inputs, labels = (side.padded(50, 0) for side in masked_lm_batch(tokens, datum_rng(0, 0), VOCABULARY, **units))
        special = tokens < NUM_SPECIAL
        self.assertTrue((labels[special] == -100).all())
        np.testing.assert_array_equal(inputs[special], tokens[special])
        new = inputs[(inputs != tokens) & (inputs != MASK)]
        self.assertGreater(len(new), 20)
        self.assertGreaterEqual(new.min(), NUM_SPECIAL)

    def test_labels_are_the_hidden_tokens_and_all_else_is_as_it_was(self):
        tokens = self.rows(100)
        inputs, labels = (side.padded(50, 0) for side in masked_lm_batch(tokens, datum_rng(0, 0), VOCABULARY))
        chosen = labels != -100
        np.testing.assert_array_equal(labels[chosen], tokens[chosen])
        np.testing.assert_array_equal(inputs[~chosen], tokens[~chosen])
        self.assertEqual(set(chosen.sum(axis=1)), {round(50 * 0.15)})

    @parameterized.parameters("token", "word", "pmi")
    @pytest.mark.quick_cases(1)
    def test_of_the_chosen_80_percent_are_masked_10_random_10_kept(self, mask_units):
        """One unit a row, 10,000 rows; a random token is the old one in 1 of 35 cases."""
        tokens = np.tile([CLS, 7, 8, 20, 22, 25, SEP], (10_000, 1))
        settings = {"mask_units": mask_units, "collocations": TABLE, "noise_density": 0.3}
        rngs = DatumRngs(1, range(10_000))
        inputs, labels = (side.padded(7, 0) for side in masked_lm_batch(tokens, rngs, VOCABULARY, **settings))
        first = np.argmax(labels != -100, axis=1)[:, None]
        old, new = (np.take_along_axis(ids, first, axis=1) for ids in (tokens, inputs))
        counts = np.array([(new == MASK).sum(), ((new != MASK) & (new != old)).sum(), (new == old).sum()])
        shares = np.array([0.8, 0.1 * 34 / 35, 0.1 + 0.1 / 35])
        self.assertEqual(counts.sum(), 10_000)
        self.assertGreater(stats.chisquare(counts, 10_000 * shares).pvalue, 1e-4)

    @parameterized.parameters(*MASK_UNITS)
    def test_batched_rows_equal_single_rows(self, mask_units):
        tokens, settings = self.rows(12), {"mask_units": mask_units, "collocations": TABLE}
        inputs, labels = masked_lm_batch(tokens, DatumRngs(5, range(12)), VOCABULARY, **settings)
        for j, (row_inputs, row_labels) in enumerate(zip(inputs.rows(), labels.rows(), strict=True)):
            one_inputs, one_labels = OBJECTIVES["masked_lm"](tokens[j], datum_rng(5, j), VOCABULARY, **settings)
            np.testing.assert_array_equal(row_inputs, one_inputs)
            np.testing.assert_array_equal(row_labels, one_labels)


def bert_tokenizer():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##believ", "##able", "the", ".", "##s"]
    return transformers.BertTokenizerFast(vocab={word: i for i, word in enumerate(words)})


class VocabularyTest(parameterized.TestCase):
    def test_pieces_tell_where_words_begin(self):
        mini = transformers.AutoTokenizer.from_pretrained(MINI_TOKENIZER)
        text = "The garden was not perfect, he said."
        words = [piece.startswith("\u2581") or piece in ",." for piece in mini.tokenize(text)]
        wordpiece = [True, False, False, True, True]  # un ##believ ##able the .
        for tokenizer, line, expected in ((mini, text, words), (bert_tokenizer(), "unbelievable the.", wordpiece)):
            flags = word_start_flags(tokenizer)
            self.assertEqual(flags[tokenizer(line, add_special_tokens=False)["input_ids"]].tolist(), expected)
            self.assertTrue(flags[tokenizer.all_special_ids].all())

    def test_mask_vocabulary_of_a_tokenizer(self):
        vocabulary = mask_vocabulary(bert_tokenizer())
        self.assertEqual((vocabulary.mask_token_id, vocabulary.replacement_ids().tolist()), (4, list(range(5, 11))))
        self.assertFalse(vocabulary.word_start_V[6])
        with exits_with(78, "has no mask token.*add_special_tokens"):
            mask_vocabulary(transformers.AutoTokenizer.from_pretrained(MINI_TOKENIZER))


class FlagsTest(parameterized.TestCase):
    """Texts of "unbelievable the", of the pieces un ##believ ##able the; a quarter of the tokens is hidden."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokenizer, cls.source = folder(), folder() / "a.jsonl"
        bert_tokenizer().save_pretrained(cls.tokenizer)
        write_rows(cls.source, [{"text": " ".join(["unbelievable the"] * 160)}] * 2)

    def run_with(self, **flags):
        """The labels of the batches that a run trains on, word by word, and its directory."""
        size = "hidden_size=8,num_hidden_layers=1,num_attention_heads=1,intermediate_size=8"
        words = ["--config_name", "bert", "--tokenizer_name", self.tokenizer, "--config_overrides", size, "--use_cpu"]
        words += ["--objective", "masked_lm", "--inputs_length", 66, "--noise_density", 0.25, "--max_steps", 2]
        words += ["--train_file", self.source, "--validation_file", self.source, "--per_device_train_batch_size", 8]
        directory = folder() / "run"
        words += ["--disable_tqdm", "True", "--output_dir", directory]
        for name, value in flags.items():
            words += [f"--{name}", value]
        batches = pre_training_batches(*words)
        self.assertLen(batches, 2)
        return [batch["labels"][:, 1:-1].numpy().reshape(-1, 16, 4) for batch in batches], directory

    def nll_of_held_out(self, directory, **settings) -> float:
        """The mean over the hidden tokens of all 20 blocks of 64 tokens, masked with evaluation's seed."""
        model = transformers.AutoModelForMaskedLM.from_pretrained(directory).eval()
        settings = {"noise_density": 0.25, "vocabulary": mask_vocabulary(bert_tokenizer()), **settings}
        total, count = 0.0, 0
        for index in range(20):
            sides = OBJECTIVES["masked_lm"]([2, *[5, 6, 7, 8] * 16, 3], datum_rng(2**63, index), **settings)
            inputs, labels = (torch.from_numpy(side)[None] for side in sides)
            with torch.no_grad():
                logits = model(input_ids=inputs).logits[0].double()
            total += torch.nn.functional.cross_entropy(logits, labels[0], reduction="sum").item()
            count += int(labels.ne(-100).sum())
        return total / count

    @pytest.mark.slow
    def test_words_are_hidden_whole_where_the_flags_say_so(self):
        batches, directory = self.run_with(mask_units="word")
        for labels in batches:
            self.assertEqual({tuple(word) for word in labels[..., :3].reshape(-1, 3)}, {(5, 6, 7), (-100, -100, -100)})
            self.assertEqual({int(count) for count in (labels != -100).sum(axis=(1, 2))}, {16})
        nll = json.loads((directory / "results.json").read_text())["tasks"]["pre_train"]["nll"]
        np.testing.assert_allclose(nll, self.nll_of_held_out(directory, mask_units="word"), rtol=1e-5)
        self.assertNotAlmostEqual(nll, self.nll_of_held_out(directory), places=4)

    @pytest.mark.slow
    def test_tokens_are_hidden_one_by_one_where_the_flags_say_nothing(self):
        batches, _ = self.run_with()
        parts = {tuple(word) for labels in batches for word in labels[..., :3].reshape(-1, 3)}
        self.assertGreater(len(parts), 2)
