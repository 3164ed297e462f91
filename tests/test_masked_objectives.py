"""Masked language modelling: units, masks, replacements, and what tokenizers tell of words."""

import collections
import itertools
import json
import math
import pathlib
import tempfile

import numpy as np
import transformers
from absl.testing import parameterized
from scipy import stats

from t5suite.data.corpora import collocations
from t5suite.data.objectives import OBJECTIVES, datum_rng
from t5suite.data.objectives.masked import MASK_UNITS, choose_units, masked_lm_batch, unit_masks, unit_starts
from t5suite.data.objectives.random_numbers import DatumRngs, random_keys
from t5suite.data.objectives.vocabulary import MaskVocabulary, mask_vocabulary, word_start_flags
from t5suite.testing import exits_with
from t5suite.training.flags.pre_training import ObjectiveArguments
from t5suite.training.pre_training import pre_training_collators

ROOT = pathlib.Path(__file__).resolve().parents[1]
MINI_TOKENIZER = ROOT / "t5suite" / "data" / "mini" / "model"
PAD, CLS, SEP, MASK = 0, 1, 2, 3
NUM_SPECIAL, V = 5, 40
# Ids 5..39; those divisible by 3 continue a word. Collocations of 2 to 5 tokens, overlapping and containing each other.
VOCABULARY = MaskVocabulary(MASK, np.arange(V) < NUM_SPECIAL, (np.arange(V) % 3 != 0) | (np.arange(V) < NUM_SPECIAL))
TABLE = collocations.Collocations(
    [[7, 8, -1, -1, -1], [8, 10, -1, -1, -1], [7, 8, 10, -1, -1], [10, 7, 8, 10, 11], [13, 14, -1, -1, -1]],
    np.ones(5, dtype=int),
    np.ones(5),
)
UNITS = {"word_start_V": VOCABULARY.word_start_V, "collocations": TABLE}


def example_text(*shape, seed=0):
    """Tokens of which half are likely to make collocations."""
    rng = np.random.default_rng(seed)
    common = rng.choice([7, 8, 10, 11, 13, 14], size=shape)
    return np.where(rng.random(shape) < 0.5, common, rng.integers(NUM_SPECIAL, V, size=shape))


def words_of(tokens):
    words = []
    for place, token in enumerate(tokens):
        if place and not VOCABULARY.word_start_V[token]:
            words[-1].append(place)
        else:
            words.append([place])
    return words


def collocations_of(tokens):
    """Collocations from left to right, the longest first; what is between them in words. As lists of places."""
    table = {tuple(token for token in row if token >= 0) for row in TABLE.ngrams_KN.tolist()}
    units, place = [], 0
    in_words = {place: word for word in words_of(tokens) for place in word}
    while place < len(tokens):
        longest = min(5, len(tokens) - place)
        length = next((n for n in range(longest, 1, -1) if tuple(tokens[place : place + n]) in table), 0)
        if length:
            units.append(list(range(place, place + length)))
        elif units and in_words[place] is in_words[place - 1] and tuple(tokens[units[-1][0] : place]) not in table:
            units[-1].append(place)
        else:
            units.append([place])
        place += max(length, 1)
    return units


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
        starts = unit_starts(tokens, random_keys(400, 500, np.random.default_rng(0)), mask_units)
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
        with exits_with(65, "token id 40, but the tokenizer has 40"):
            unit_masks(np.array([[V]]), 0.15, datum_rng(0, 0), "word", **UNITS)


class ChoiceTest(parameterized.TestCase):
    @parameterized.product(density=(0.05, 0.15, 0.5), length=(1, 9, 40))
    def test_choice_equals_one_unit_after_the_other(self, density, length):
        rng = np.random.default_rng(length)
        starts, choosable = rng.random((60, length)) < 0.4, rng.random((60, length)) < 0.8
        keys = random_keys(60, length, rng) >> np.uint32(28)  # with ties
        chosen = choose_units(starts, choosable, density, keys)
        for row in range(60):
            expected = greedy(starts[row], choosable[row], density, keys[row])
            np.testing.assert_array_equal(chosen[row], expected)

    @parameterized.product(mask_units=tuple(MASK_UNITS), exact_count=(True, False))
    def test_units_are_hidden_whole_or_not_at_all(self, mask_units, exact_count):
        tokens = example_text(200, 150)
        keys = random_keys(200, 300, DatumRngs(3, range(200))).reshape(200, 2, 150)[:, 0]
        starts = unit_starts(tokens, keys, mask_units, **UNITS)
        mask = unit_masks(tokens, 0.25, DatumRngs(3, range(200)), mask_units, exact_count=exact_count, **UNITS)
        inside = ~starts[:, 1:]
        np.testing.assert_array_equal(mask[:, 1:][inside], mask[:, :-1][inside])
        self.assertTrue(mask.any() and not mask.all())

    @parameterized.parameters(*MASK_UNITS)
    def test_the_share_is_met_but_for_what_a_unit_is_too_long_for(self, mask_units):
        mask = unit_masks(example_text(200, 200), 0.15, np.random.default_rng(0), mask_units, **UNITS)
        counts = mask.sum(axis=1)
        self.assertLessEqual(counts.max(), 30)
        self.assertGreaterEqual(counts.min(), 30 - 10)
        self.assertAlmostEqual(counts.mean(), 30, delta=0.5)
        if mask_units == "token":
            self.assertEqual(set(counts), {30})


class MaskedLMTest(parameterized.TestCase):
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
        for j, (row_inputs, row_labels) in enumerate(zip(inputs.rows(), labels.rows())):
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
        for tokenizer, given, expected in ((mini, text, words), (bert_tokenizer(), "unbelievable the.", wordpiece)):
            flags = word_start_flags(tokenizer)
            self.assertEqual(flags[tokenizer(given, add_special_tokens=False)["input_ids"]].tolist(), expected)
            self.assertTrue(flags[tokenizer.all_special_ids].all())

    def test_mask_vocabulary_of_a_tokenizer(self):
        found = mask_vocabulary(bert_tokenizer())
        self.assertEqual((found.mask_token_id, found.replacement_ids().tolist()), (4, list(range(5, 11))))
        self.assertFalse(found.word_start_V[6])
        with exits_with(78, "has no mask token.*add_special_tokens"):
            mask_vocabulary(transformers.AutoTokenizer.from_pretrained(MINI_TOKENIZER))


class FlagsTest(parameterized.TestCase):
    """Sixteen times "unbelievable the", of the pieces un ##believ ##able the; a quarter of the tokens is hidden."""

    def labels(self, **flags):
        tokenizer = bert_tokenizer()
        size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
        model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=len(tokenizer), **size))
        flags = ObjectiveArguments(objective="masked_lm", inputs_length=66, noise_density=0.25, **flags)
        found = []
        for collate in pre_training_collators(flags, tokenizer, model, seed=0):
            batch = collate([{"input_ids": [5, 6, 7, 8] * 16, "index": j} for j in range(8)])
            found.append(batch["labels"][:, 1:-1].numpy().reshape(8, 16, 4))
        return found

    def test_words_are_hidden_whole_where_the_flags_say_so(self):
        for labels in self.labels(mask_units="word"):
            self.assertEqual({tuple(word) for word in labels[..., :3].reshape(-1, 3)}, {(5, 6, 7), (-100, -100, -100)})
            self.assertEqual({int(count) for count in (labels != -100).sum(axis=(1, 2))}, {16})


SEPARATOR = 0


def ngram_text(length=4000, seed=0):
    """Few words, so that long n-grams recur; a separator now and then."""
    rng = np.random.default_rng(seed)
    text = rng.choice(7, p=[0.02, 0.3, 0.2, 0.18, 0.1, 0.1, 0.1], size=length)
    for place in rng.integers(0, length - 5, size=length // 25):
        text[place : place + 5] = [4, 5, 6, 4, 1]
    return text


def ngrams_of(text, n):
    """Every n-gram without a separator, repetitions too."""
    windows = (tuple(text[place : place + n]) for place in range(len(text) - n + 1))
    return [window for window in windows if SEPARATOR not in window]


def segmentations(ngram):
    """All ways to cut an n-gram into two or more parts."""
    for cuts in itertools.chain.from_iterable(
        itertools.combinations(range(1, len(ngram)), count) for count in range(1, len(ngram))
    ):
        yield [ngram[start:stop] for start, stop in itertools.pairwise((0, *cuts, len(ngram)))]


class StatisticsTest(parameterized.TestCase):
    @parameterized.parameters(1, 2, 10, 60)
    def test_counts_equal_counting_by_hand(self, min_count):
        text = ngram_text().tolist()
        for n, level in enumerate(collocations.count_ngrams(text, 5, min_count, [SEPARATOR]), start=1):
            windows = ngrams_of(text, n)
            expected = {ngram: count for ngram, count in collections.Counter(windows).items() if count >= min_count}
            ngrams = [tuple(text[place : place + n]) for place in level.examples_K]
            self.assertEqual(dict(zip(ngrams, level.counts_K.tolist())), expected)
            self.assertLen(ngrams, len(expected))
            self.assertEqual(level.num_windows, len(windows))
            for place, number in enumerate(level.ids_P):
                if number >= 0:
                    self.assertEqual(tuple(text[place : place + n]), ngrams[number])

    def test_pmi_is_the_minimum_over_all_segmentations(self):
        text = ngram_text().tolist()
        tallies = {n: collections.Counter(ngrams_of(text, n)) for n in range(1, 6)}

        def log_p(ngram):
            tally = tallies[len(ngram)]
            return math.log(tally[ngram] / tally.total())

        levels = collocations.count_ngrams(text, 5, 5, [SEPARATOR])
        compared = 0
        for n, pmi_K in enumerate(collocations.pointwise_mutual_information(levels), start=2):
            for place, pmi in zip(levels[n - 1].examples_K, pmi_K):
                ngram = tuple(text[place : place + n])
                expected = min(log_p(ngram) - sum(map(log_p, parts)) for parts in segmentations(ngram))
                self.assertAlmostEqual(pmi, expected, places=9)
                compared += 1
        self.assertGreater(compared, 500)

    def test_the_table_holds_the_best_of_each_length_in_the_papers_shares(self):
        text = ngram_text()
        table = collocations.find_collocations(text, 16, 5, 5, [SEPARATOR])
        levels = collocations.count_ngrams(text, 5, 5, [SEPARATOR])
        lengths = (table.ngrams_KN >= 0).sum(axis=1)
        self.assertEqual(np.bincount(lengths).tolist(), [0, 0, 8, 4, 2, 2])
        for n, pmi_K in enumerate(collocations.pointwise_mutual_information(levels), start=2):
            best = np.sort(pmi_K)[::-1][: (lengths == n).sum()]
            np.testing.assert_allclose(table.pmi_K[lengths == n], best)
        self.assertNotIn(SEPARATOR, table.ngrams_KN)


class MatchingTest(parameterized.TestCase):
    @parameterized.parameters(np.uint16, np.int32, np.int64)
    def test_longest_matches_equal_looking_up_every_ngram(self, dtype):
        table = collocations.find_collocations(ngram_text(), 60, 5, 5)
        ngrams = {tuple(token for token in row if token >= 0) for row in table.ngrams_KN.tolist()}
        rows = np.concatenate([ngram_text(600, seed=2).reshape(20, 30), np.full((1, 30), 60_000)]).astype(dtype)
        found = table.longest_matches(rows)
        self.assertGreater((found > 1).sum(), 50)
        for row, lengths in zip(rows.tolist(), found.tolist()):
            for place, length in enumerate(lengths):
                fitting = [n for n in range(2, min(5, len(row) - place) + 1) if tuple(row[place : place + n]) in ngrams]
                self.assertEqual(length, max(fitting, default=1))


class FileTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.path = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "collocations.jsonl"
        self.table = collocations.find_collocations(ngram_text(), 20, 5, 5, tokenizer="abc")

    def test_a_table_comes_back_as_it_was_saved_and_with_its_tokenizer_alone(self):
        collocations.save_collocations(self.path, self.table)
        loaded = collocations.load_collocations(self.path, tokenizer="abc")
        for name in ("ngrams_KN", "counts_K", "pmi_K"):
            np.testing.assert_array_equal(getattr(loaded, name), getattr(self.table, name))
        with exits_with(65, "another tokenizer .abc. than this run's .xyz."):
            collocations.load_collocations(self.path, tokenizer="xyz")

    def test_a_wrong_line_and_missing_ones_are_named(self):
        collocations.save_collocations(self.path, self.table)
        lines = self.path.read_text().splitlines()
        for row in ({"ids": [5], "count": 1, "pmi": 1.0}, {"ids": [5, -6], "count": 1, "pmi": 1.0}, {"ids": [5, 6]}):
            self.path.write_text("\n".join([*lines[:2], json.dumps(row), *lines[3:]]))
            with exits_with(65, r"collocations.jsonl:3: expected .*found"):
                collocations.load_collocations(self.path)
        self.path.write_text("\n".join(lines[:-1]))
        with exits_with(65, f"{len(lines) - 2} collocations, but its header says {len(lines) - 1}"):
            collocations.load_collocations(self.path)
        self.path.write_text("\n".join(lines[1:]))
        with exits_with(65, "collocations.jsonl:1: not a header"):
            collocations.load_collocations(self.path)
