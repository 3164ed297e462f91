"""The laws of every sequence-to-sequence objective: randomness, lengths, text kept, settings used, statistics."""

import collections
import itertools
import re
from types import SimpleNamespace

import numpy as np
import pytest
from absl.testing import parameterized
from scipy import stats

from t5suite.data.objectives import (
    OBJECTIVES,
    UL2_DENOISERS,
    DatumRngs,
    datum_rng,
    marked_word_flags,
    sentence_end_flags,
)
from t5suite.testing import tiny_tokenizer

SENTINELS = list(range(32099, 31999, -1))
EOS, MODES = 1, {"R": 32100, "S": 32101, "X": 32102}
NEEDED = {
    "sentinel_ids": SENTINELS,
    "eos_id": EOS,
    "mode_token_ids": MODES,
    "targets_length": None,
    "word_start_V": np.arange(40_000) % 3 != 2,  # every third id continues a word
    "sentence_end_V": np.arange(40_000) % 7 == 0,
}


class Decades:
    """Collocations of three tokens each: 100 101 102, 110 111 112, ..."""

    def longest_matches(self, tokens_BL):
        tokens_BL = np.asarray(tokens_BL)
        starts_BL = (tokens_BL[:, :-2] % 10 == 0) & (tokens_BL[:, 2:] == tokens_BL[:, :-2] + 2)
        lengths_BL = np.ones(tokens_BL.shape, dtype=np.int64)
        lengths_BL[:, :-2][starts_BL] = 3
        return lengths_BL


# Another value for each setting that an objective may use.
OTHER = {
    "noise_density": 0.4, "mean_span_length": 6.0, "mode_token_ids": None, "mask_units": "token",
    "collocations": Decades(),
}  # fmt: skip
# Settings that have an effect for some units only.
COMES_WITH = {
    ("unit_denoising", "collocations"): {"mask_units": "pmi"},
    ("unit_denoising", "mean_span_length"): {"mask_units": "span"},
}
DRAWS = 10_000


def cases():
    """Every seq2seq objective, each of its denoisers: `(label, name, settings)`."""
    for name, objective in OBJECTIVES.items():
        if objective.family != "seq2seq":
            continue
        settings = {key: NEEDED[key] for key in (*objective.needs, *objective.uses) if key in NEEDED}
        for denoiser in range(len(objective.weights)):
            several = {"denoiser": denoiser} if len(objective.weights) > 1 else {}
            yield f"{name} {denoiser}", name, {**settings, **several}


def draw(name, num_rows, length, seed=0, **settings):
    """Rows of the tokens 100, 101, ...: `(tokens_BL, inputs, targets)`."""
    tokens_BL = np.tile(np.arange(100, 100 + length), (num_rows, 1))
    return tokens_BL, *OBJECTIVES[name].batch(tokens_BL, DatumRngs(seed, range(num_rows)), **settings)


def restored(name, inputs, targets):
    """The tokens that a datum came from."""
    text = [[t for t in side.tolist() if t not in (EOS, *MODES.values())] for side in (inputs, targets)]
    if name in ("sentence_deshuffling", "full_lm"):
        return text[1]
    if name == "prefix_lm":
        return text[0] + text[1]
    return merged(*text)


def merged(inputs, targets):
    """Clean runs of the inputs and noise runs of the targets, taking turns."""
    sides = []
    for side in (inputs, targets):
        pieces = [[]]
        for token in side:
            if token in SENTINELS:
                pieces.append([])
            else:
                pieces[-1].append(token)
        sides.append(pieces)
    starts_with_noise = sides[0][0] == []
    first, second = (sides[1], sides[0]) if starts_with_noise else sides
    turns = itertools.zip_longest(first, second[1:], fillvalue=[])
    return list(itertools.chain.from_iterable(itertools.chain.from_iterable(turns)))


class LawsTest(parameterized.TestCase):
    @parameterized.named_parameters(*cases())
    def test_a_datum_is_a_function_of_seed_and_index(self, name, settings):
        """One by one, all at once, in another order, from generators or from one Philox: the same inputs and targets."""
        tokens_BL = np.random.default_rng(0).integers(100, 20_000, (9, 120)).astype(np.uint16)
        singles = [OBJECTIVES[name](tokens, datum_rng(5, j), **settings) for j, tokens in enumerate(tokens_BL)]
        order = [4, 0, 8, 2]
        batches = [
            (range(9), OBJECTIVES[name].batch(tokens_BL, DatumRngs(5, range(9)), **settings)),
            (range(9), OBJECTIVES[name].batch(tokens_BL, [datum_rng(5, j) for j in range(9)], **settings)),
            (order, OBJECTIVES[name].batch(tokens_BL[order], DatumRngs(5, order), **settings)),
        ]
        for numbers, sides in batches:
            for side, rows in enumerate(sides):
                for number, row in zip(numbers, rows.rows(), strict=True):
                    np.testing.assert_array_equal(row, singles[number][side])
                    self.assertEqual(row.dtype, np.int64)

    @parameterized.named_parameters(*cases())
    @pytest.mark.quick_cases(5)
    def test_the_text_can_be_restored_from_both_sides(self, name, settings):
        kind = "prefix_lm" if settings.get("denoiser") == 2 else name
        for j in range(40):
            tokens = np.random.default_rng(j).permutation(np.arange(100, 300))
            got = restored(kind, *OBJECTIVES[name](tokens, datum_rng(3, j), **settings))
            self.assertEqual(got, tokens.tolist())

    @parameterized.named_parameters(*cases())
    def test_both_sides_end_in_eos_and_have_it_nowhere_else(self, name, settings):
        inputs, targets = OBJECTIVES[name](np.arange(100, 300), datum_rng(0, 1), **settings)
        self.assertEqual(np.flatnonzero(inputs == EOS).tolist(), [len(inputs) - 1])
        ends = [] if name == "full_lm" else [len(targets) - 1]
        self.assertEqual(np.flatnonzero(targets == EOS).tolist(), ends)

    @parameterized.named_parameters(*cases())
    def test_blocks_come_out_as_long_as_promised(self, name, settings):
        """Span corruption and whole texts exactly; the longest of 2,000 others within what there is room for."""
        inputs_length = 130
        block = OBJECTIVES[name].block(inputs_length, **settings)
        if "targets_length" in settings:
            settings = {**settings, "targets_length": block.targets_length}
        tokens_BL = np.tile(np.arange(100, 100 + block.tokens_length), (2000, 1))
        inputs, targets = OBJECTIVES[name].batch(tokens_BL, DatumRngs(0, range(2000)), **settings)
        longest = inputs.lengths.max(), targets.lengths.max()
        self.assertLessEqual(longest[0], block.inputs_length)
        self.assertLessEqual(longest[1], block.targets_length)
        self.assertLessEqual(block.inputs_length, inputs_length)
        self.assertGreaterEqual(longest[1], block.targets_length - 20)
        if block.exact:
            self.assertEqual({*inputs.lengths}, {block.inputs_length})
            self.assertEqual({*targets.lengths}, {block.targets_length})

    @parameterized.named_parameters(*cases())
    def test_every_heeded_setting_changes_what_is_made(self, name, settings):
        tokens = np.arange(100, 400)
        before = [side.tolist() for side in OBJECTIVES[name](tokens, datum_rng(0, 0), **settings)]
        for setting in OBJECTIVES[name].uses:
            other = {setting: OTHER[setting], **COMES_WITH.get((name, setting), {})}
            after = OBJECTIVES[name](tokens, datum_rng(0, 0), **{**settings, **other})
            self.assertNotEqual([side.tolist() for side in after], before, setting)


class SplitMix:
    """Words of 64 bits, one state a generator (Steele et al. 2014, doi:10.1145/2660193.2660195)."""

    GAMMA = 0x9E3779B97F4A7C15

    def __init__(self, state):
        self.state = state

    def word(self):
        self.state = (self.state + self.GAMMA) % 2**64
        return self.mixed(self.state)

    @staticmethod
    def mixed(value):
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
        return value ^ (value >> 31)


class RandomNumbersTest(parameterized.TestCase):
    INDICES = (0, 5, 2**63, 2**64 - 1)

    @parameterized.parameters((0, 1), (1, 3), (2, 8), (5, 5), (7, 0), (64, 283))
    def test_a_batch_draws_what_each_datum_draws(self, first, second):
        """In every later draw, too, whatever was left of a word."""
        together = DatumRngs(2**64 - 1, self.INDICES)
        apart = [datum_rng(2**64 - 1, index) for index in self.INDICES]
        for num_keys in (first, second, first, 11):
            expected = [rng.keys(num_keys) for rng in apart]
            np.testing.assert_array_equal(together.keys(num_keys), expected)

    def test_the_reference_gives_the_authors_words(self):
        generator = SplitMix(1234567)
        words = [generator.word() for _ in range(3)]
        self.assertEqual(words, [6457827717110365317, 3203168211198807973, 9817491932198370423])

    @parameterized.parameters(0, 2026, 2**64 - 1)
    def test_keys_are_the_halves_of_the_words_of_split_mix(self, seed):
        for index in self.INDICES:
            start = SplitMix(seed).word() + index * SplitMix.GAMMA
            generator = SplitMix(SplitMix.mixed(start % 2**64))
            words = [generator.word() for _ in range(4)]
            expected = [half for word in words for half in (word % 2**32, word >> 32)]
            self.assertEqual(datum_rng(seed, index).keys(8).tolist(), expected)
            rngs = DatumRngs(seed, [index])  # draw after draw, whatever is left of a word
            keys = [key for num_keys in (1, 2, 3, 0, 2) for key in rngs.keys(num_keys)[0].tolist()]
            self.assertEqual(keys, expected)


class StatisticsTest(parameterized.TestCase):
    """10,000 draws of each objective's chance, against its law."""

    def test_sentences_come_whole_and_in_every_order_equally_often(self):
        """Three sentences, the second with a stop that no word follows; the block's end cuts the third."""
        tokens = [11, 12, 4, 21, 4, 29, 22, 4, 31, 32]
        ends, starts = np.arange(40) == 4, np.arange(40) != 29
        rows = np.tile(tokens, (DRAWS, 1))
        rngs = DatumRngs(0, range(DRAWS))
        inputs, targets = OBJECTIVES["sentence_deshuffling"].batch(rows, rngs, EOS, ends, starts)
        self.assertTrue((targets.values.reshape(DRAWS, -1) == [*tokens, EOS]).all())
        counts = collections.Counter(map(tuple, inputs.values.reshape(DRAWS, -1).tolist()))
        sentences = [[11, 12, 4], [21, 4, 29, 22, 4], [31, 32]]
        orders = {(*itertools.chain(*order), EOS) for order in itertools.permutations(sentences)}
        self.assertEqual(set(counts), orders)
        self.assertGreater(stats.chisquare(list(counts.values())).pvalue, 1e-4)

    def test_stops_alone_end_sentences_where_there_is_no_end_token(self):
        pieces = SimpleNamespace(eos_token_id=None, get_vocab=lambda: {"a": 0, ".": 1})
        self.assertEqual(sentence_end_flags(pieces).tolist(), [False, True])

    def test_sentences_end_behind_stops_that_spaces_follow(self):
        tokenizer = tiny_tokenizer()
        ids = tokenizer("The cats, dogs etc., sleep. Is it late? (The dogs run!), and")["input_ids"]
        ids += tokenizer("The dogs run.", add_special_tokens=False)["input_ids"]
        ends, starts = sentence_end_flags(tokenizer), marked_word_flags(tokenizer, "")
        cuts = [i + 1 for i in range(len(ids) - 1) if ends[ids[i]] and starts[ids[i + 1]]]
        pieces = [tokenizer.decode(ids[a:b]) for a, b in itertools.pairwise([0, *cuts, len(ids)])]
        sentences = ["The cats, dogs etc., sleep.", "Is it late?", "(The dogs run!), and</s>", "The dogs run."]
        self.assertEqual(pieces, sentences)

    @parameterized.parameters(
        ("\u0120", ".", "\u010a", "\u0109"),  # byte-level BPE
        ("\u2581", ".", "\n", "\t"),  # Gemma's
        ("\u2581", ".", "<0x0A>", "<0x09>"),  # Llama's
    )
    def test_sentences_end_at_the_end_of_a_line(self, mark, stop, newline, tab):
        """Pieces of "The cat.\\nIt. He.\\tThen.\\n": the white space begins what follows a stop."""
        words = ["The", f"{mark}cat", stop, newline, "It", stop, f"{mark}He", stop, tab, "Then", stop, newline]
        vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(words))}
        pieces = SimpleNamespace(eos_token_id=None, get_vocab=lambda: vocabulary)
        ids = [vocabulary[piece] for piece in words]
        flags = {"sentence_end_V": sentence_end_flags(pieces), "word_start_V": marked_word_flags(pieces, "")}
        inputs, _ = OBJECTIVES["sentence_deshuffling"].batch(np.tile(ids, (400, 1)), DatumRngs(0, range(400)), **flags)
        sentences = [ids[:3], ids[3:6], ids[6:8], ids[8:11], ids[11:]]
        orders = {tuple(itertools.chain(*order)) for order in itertools.permutations(sentences)}
        self.assertContainsSubset({tuple(row.tolist()) for row in inputs.rows()}, orders)
        firsts = {tuple(row[:2].tolist()) for row in inputs.rows()}
        self.assertEqual(firsts, {order[:2] for order in orders})

    @parameterized.parameters((0.5, 1, 19), (0.25, 10, 19), (0.1, 15, 19), (0.75, 1, 10))
    def test_prefixes_are_uniform_between_their_bounds(self, density, shortest, longest):
        """20 tokens: the prefix of density 0.25 has at least round(0.5 * 19) = 10 (half to even)."""
        _, inputs, targets = draw("prefix_lm", DRAWS, 20, eos_id=None, noise_density=density)
        counts = np.bincount(inputs.lengths, minlength=21)
        self.assertEqual(np.flatnonzero(counts).tolist(), list(range(shortest, longest + 1)))
        self.assertGreater(stats.chisquare(counts[shortest : longest + 1]).pvalue, 1e-4)
        self.assertAlmostEqual(targets.lengths.mean() / 20, density, delta=0.06)

    @pytest.mark.slow
    def test_iid_noise_stops_where_sentinels_or_targets_run_out(self):
        """No text is lost, no row outgrows its room, and rows that fit are as they would be."""
        free = draw("iid_denoising", 200, 60, sentinel_ids=SENTINELS, eos_id=EOS, noise_density=0.3)
        for sentinels, room in ((SENTINELS[:12], None), (SENTINELS, 34), (SENTINELS[:13], 30)):
            settings = {"sentinel_ids": sentinels, "targets_length": room}
            _, inputs, targets = draw("iid_denoising", 200, 60, eos_id=EOS, noise_density=0.3, **settings)
            self.assertLessEqual(targets.lengths.max(), room or 120)
            unchanged = 0
            for row, text in enumerate(zip(inputs.rows(), targets.rows(), strict=True)):
                self.assertEqual(restored("iid_denoising", *text), list(range(100, 160)))
                unchanged += text[0].tolist() == free[1].rows()[row].tolist()
            self.assertBetween(unchanged, 20, 192)

    def test_noise_that_fits_remains_of_a_unit_longer_than_all_noise(self):
        """Such a unit is split into tokens: those beyond the room alone lose their noise."""
        settings = {"sentinel_ids": SENTINELS, "eos_id": EOS, "word_start_V": np.zeros(40_000, dtype=bool)}
        _, _, targets = draw("unit_denoising", 200, 511, targets_length=144, **settings)
        self.assertBetween(targets.lengths.min(), 120, 144)

    def test_the_least_targets_have_noise(self):
        settings = {"sentinel_ids": SENTINELS, "eos_id": EOS, "word_start_V": np.ones(40_000, dtype=bool)}
        tokens, inputs, targets = draw("unit_denoising", 200, 60, targets_length=4, noise_density=0.3, **settings)
        self.assertLessEqual(targets.lengths.max(), 4)
        hidden = [not {*row}.issubset(text.tolist()) for row, text in zip(tokens.tolist(), inputs.rows(), strict=True)]
        self.assertIn(True, hidden)

    @parameterized.parameters(("word", 27), ("word", 23), ("pmi", 25))
    def test_unit_noise_stops_after_a_whole_unit(self, mask_units, room):
        """No text is lost, and rows that fit are as they would be; units are two or three tokens."""
        settings = {"sentinel_ids": SENTINELS, "eos_id": EOS, "noise_density": 0.3, "mask_units": mask_units}
        settings |= {"word_start_V": np.arange(40_000) % 3 != 2, "collocations": Decades()}
        _, _, free = draw("unit_denoising", 100, 60, **settings)
        _, inputs, targets = draw("unit_denoising", 100, 60, targets_length=room, **settings)
        cut = 0
        for row, text in enumerate(zip(inputs.rows(), targets.rows(), strict=True)):
            self.assertEqual(restored("unit_denoising", *text), list(range(100, 160)))
            self.assertLessEqual(len(text[1]), room)
            hidden = {*text[1].tolist()}
            uncut_hidden = {*free.rows()[row].tolist()}
            for token in range(100, 160):
                if token % 3 == 2 and mask_units == "word":
                    self.assertEqual(token in hidden, token - 1 in hidden)
                if token % 10 < 3 and mask_units == "pmi":
                    self.assertEqual(token in hidden, token - token % 10 in hidden)
            if hidden != uncut_hidden:
                cut += 1
                self.assertGreaterEqual(len(free.rows()[row]), room)
        self.assertGreater(cut, 5)


class UL2Test(parameterized.TestCase):
    def test_the_table_is_the_papers(self):
        """arXiv:2205.05131 table 1: mean spans and rates of R and X; S is a prefix LM of a quarter."""
        denoisers = [(d.mode, d.mean_span_length, d.noise_density) for d in UL2_DENOISERS]
        expected = [("R", 3, 0.15), ("R", 8, 0.15), ("S", None, 0.25)]
        expected += [("X", 3, 0.5), ("X", 8, 0.5), ("X", 64, 0.15), ("X", 64, 0.5)]
        self.assertCountEqual(denoisers, expected)
        self.assertLen({d.weight for d in UL2_DENOISERS}, 1)

    def test_mode_tokens_stand_in_front_of_the_inputs_alone(self):
        for number, denoiser in enumerate(UL2_DENOISERS):
            settings = {"sentinel_ids": SENTINELS, "eos_id": EOS, "denoiser": number}
            _, inputs, targets = draw("ul2", 3, 200, mode_token_ids=MODES, **settings)
            _, bare_inputs, bare_targets = draw("ul2", 3, 200, **settings)
            for row, bare in zip(inputs.rows(), bare_inputs.rows(), strict=True):
                self.assertEqual(row.tolist(), [MODES[denoiser.mode], *bare.tolist()])
            np.testing.assert_array_equal(targets.values, bare_targets.values)


class BlockLengthsTest(parameterized.TestCase):
    def test_too_few_sentinels_name_flags_that_the_objective_has(self):
        for name, objective in OBJECTIVES.items():
            if "sentinel_ids" not in objective.needs:
                continue
            with (
                self.subTest(name),
                self.assertRaisesRegex(ValueError, "has 4 sentinels: lower --inputs_length") as refusal,
            ):
                objective.block(inputs_length=512, sentinel_ids=range(4))
            flags = re.findall(r"--(\w+)", str(refusal.exception))
            self.assertContainsSubset(flags, ("inputs_length", "num_sentinels", *objective.uses))
            self.assertIn("num_sentinels", flags)

    def test_what_cannot_work_is_refused(self):
        for name, settings, message in (
            ("iid_denoising", {"noise_density": 0.3}, "spans, but the tokenizer has 100 .*--num_sentinels"),
            ("iid_denoising", {"targets_length": 100}, "--targets_length 100: .* 144 targets on average and up to 202"),
            ("prefix_lm", {"noise_density": 1.5}, "noise_density is 1.5"),
            ("sentence_deshuffling", {"inputs_length": 1}, "--inputs_length 1"),
            (
                "span_corruption",
                {"noise_density": 0.5},
                "0.5 of them noise.* 128 spans.*--inputs_length.*--num_sentinels",
            ),
            # ByT5's sentinels: no flag gives it more.
            (
                "span_corruption",
                {"noise_density": 0.5, "sentinel_ids": range(258, 158, -1)},
                r"or --noise_density, or raise --mean_span_length\Z",
            ),
        ):
            with self.subTest(message), self.assertRaisesRegex(ValueError, message):
                OBJECTIVES[name].block(**{"inputs_length": 512, "sentinel_ids": SENTINELS, **settings})

    def test_targets_that_half_of_the_rows_with_iid_noise_fit_into_are_accepted(self):
        """By brute force: noise tokens and their sentinels of all rows of four tokens, with one sentinel more, and EOS."""
        rows = list(itertools.product((False, True), repeat=4))
        lengths = [sum(row) + sum(now and not before for before, now in zip((False, *row), row)) for row in rows]
        mean = sum(lengths) / len(rows)  # half the tokens are noise: each row is as likely as another
        typical = int(np.ceil(mean)) + 2
        block = OBJECTIVES["iid_denoising"].block
        settings = {"inputs_length": 5, "sentinel_ids": SENTINELS, "noise_density": 0.5}
        self.assertEqual(block(targets_length=typical, **settings).targets_length, typical)
        with self.assertRaisesRegex(ValueError, f"become {typical} targets on average"):
            block(targets_length=typical - 1, **settings)

    @parameterized.parameters(("token", 3), ("word", 4), ("ngram", 5), ("span", 6))
    def test_targets_that_half_of_the_rows_with_noise_in_units_fit_into_need_no_warning(self, mask_units, missing):
        """Others are warned of once a process."""
        settings = {"sentinel_ids": SENTINELS, "mask_units": mask_units}
        words = {"word_start_V": np.ones(1000, dtype=bool)}
        _, _, targets = draw("unit_denoising", 400, 511, seed=1, eos_id=EOS, **settings, **words)
        middle = int(np.median(targets.lengths))
        block = OBJECTIVES["unit_denoising"].block
        with self.assertNoLogs("t5suite", "WARNING"):
            self.assertEqual(block(512, middle + 3, **settings).targets_length, middle + 3)
        with self.assertLogs("t5suite", "WARNING") as logs:
            for _ in ("training", "evaluation"):
                self.assertEqual(block(512, middle - missing, **settings).targets_length, middle - missing)
        self.assertLen(logs.output, 1)
        with self.assertRaisesRegex(ValueError, "--targets_length 3: no noise fits"):
            block(512, 3, **settings)
