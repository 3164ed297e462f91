"""Span corruption: lengths, masks, corruption, sentinels."""

import collections
import hashlib
import itertools
import pathlib
from types import SimpleNamespace

import numpy as np
import torch
import transformers
from absl.testing import parameterized
from scipy import stats

from t5suite.data import objectives

ROOT = pathlib.Path(__file__).resolve().parents[1]
T5_TOKENIZER = ROOT.parent / "shared" / "data" / "tokenizer" / "t5"
SENTINELS = list(range(32099, 31999, -1))
EOS = 1


def tokenizer_of(*tokens):
    """The one method of a tokenizer that `sentinel_ids` needs."""
    return SimpleNamespace(get_vocab=lambda: {token: i for i, token in enumerate(tokens)})


def reference_corrupt(tokens, mask, sentinels, eos_id=None):
    """`corrupt`, token by token."""
    sides = []
    for hidden in (True, False):
        out, used, before = [], 0, not hidden
        for token, noise in zip(tokens, mask):
            if bool(noise) != hidden:
                out.append(token)
            elif before != hidden:
                out.append(sentinels[used])
                used += 1
            before = bool(noise)
        sides.append(out + ([] if eos_id is None else [eos_id]))
    return tuple(sides)


def runs(mask):
    """Lengths of the maximal runs, as (clean, noise)."""
    groups = [(noise, len(list(group))) for noise, group in itertools.groupby(np.asarray(mask).tolist())]
    return [n for noise, n in groups if not noise], [n for noise, n in groups if noise]


def compositions(total, parts):
    return [np.diff((0, *cuts, total)) for cuts in itertools.combinations(range(1, total), parts - 1)]


def masks_with(length, num_noise, num_spans):
    """Every mask of `length` with these counts, as bytes."""
    masks = []
    both = compositions(length - num_noise, num_spans), compositions(num_noise, num_spans)
    for clean, noise in itertools.product(*both):
        masks.append(np.repeat([False, True] * num_spans, np.stack([clean, noise], 1).reshape(-1)).tobytes())
    return masks


class LengthsTest(parameterized.TestCase):
    @parameterized.parameters(
        (512, 0.15, 3, 568, 114),
        (1024, 0.15, 3, 1137, 229),
        (512, 0.5, 3, 766, 512),
        (64, 0.2, 1, 63, 27),
        (512, 0.0, 3, 511, 1),
        (11, 0.5, 3, 14, 11),  # targets would be longer than the inputs: one token less
    )
    def test_span_lengths_equal_t5(self, inputs_length, density, mean_span, tokens_length, targets_length):
        self.assertEqual(objectives.span_lengths(inputs_length, density, mean_span), (tokens_length, targets_length))

    @parameterized.parameters(
        (568, 0.15, 3, 85, 28),
        (512, 0.15, 64, 77, 1),
        (190, 0.15, 3, 29, 10),  # float64 would give 28
        (10, 0.25, 1, 2, 2),  # 2.5 rounds to even
        (14, 0.25, 1, 4, 4),  # 3.5 rounds to even
        (10, 0.5, 2, 5, 2),  # 2.5 spans round to even
        (4, 0.1, 3, 1, 1),  # at least one token and one span
        (2, 0.9, 1, 1, 1),
        (0, 0.15, 3, 0, 0),
        (100, 0.0, 3, 0, 0),
        (10, 0.9, 1, 9, 1),  # no more spans than clean tokens
    )
    def test_noise_counts_round_half_even_in_float32(self, length, density, mean_span, num_noise, num_spans):
        self.assertEqual(objectives.noise_counts(length, density, mean_span), (num_noise, num_spans))
        _, noise = runs(objectives.noise_mask(length, density, mean_span, np.random.default_rng(0)))
        self.assertEqual((sum(noise), len(noise)), (num_noise, num_spans))

    @parameterized.product(length=(0, 1, 2, 3, 14, 190, 568), density=(0.0, 0.15, 0.5), mean_span=(1, 3, 64))
    def test_corrupted_lengths_are_those_of_corrupt(self, length, density, mean_span):
        mask = objectives.noise_mask(length, density, mean_span, np.random.default_rng(1))
        inputs, targets = objectives.corrupt(np.arange(length), mask, range(40000, 41000), EOS)
        self.assertEqual(objectives.corrupted_lengths(length, density, mean_span), (len(inputs), len(targets)))


class MaskTest(parameterized.TestCase):
    @parameterized.parameters((12, 0.25, 1.5, 16), (12, 0.5, 2, 100), (20, 0.3, 2, 780))
    def test_every_composition_is_equally_likely(self, length, density, mean_span, num_masks):
        expected = masks_with(length, *objectives.noise_counts(length, density, mean_span))
        self.assertLen(set(expected), num_masks)
        masks = objectives.noise_masks(20_000, length, density, mean_span, np.random.default_rng(3))
        counts = collections.Counter(mask.tobytes() for mask in masks)
        self.assertContainsSubset(counts, expected)
        self.assertGreater(stats.chisquare([counts[mask] for mask in expected]).pvalue, 1e-4)

    @parameterized.parameters((568, 0.15, 3), (20, 0.3, 2), (2, 0.15, 3), (1, 0.15, 3), (9, 0.0, 3))
    def test_batched_masks_equal_single_masks(self, length, density, mean_span):
        one, many = np.random.default_rng(7), np.random.default_rng(7)
        singles = np.stack([objectives.noise_mask(length, density, mean_span, one) for _ in range(20)])
        np.testing.assert_array_equal(objectives.noise_masks(20, length, density, mean_span, many), singles)
        singles = np.stack(
            [objectives.noise_mask(length, density, mean_span, objectives.datum_rng(7, j)) for j in range(20)]
        )
        rngs = [objectives.datum_rng(7, j) for j in range(20)]
        np.testing.assert_array_equal(objectives.noise_masks(20, length, density, mean_span, rngs), singles)

    def test_noise_stream_is_pinned(self):
        """A library that changed these bits would change the data of resumed runs."""
        masks = objectives.noise_masks(64, 568, 0.15, 3, [objectives.datum_rng(2026, j) for j in range(64)])
        self.assertEqual(hashlib.sha256(np.packbits(masks).tobytes()).hexdigest()[:16], "dc8ec134d8ade5c6")

    def test_datum_rng_is_a_function_of_seed_and_index(self):
        pairs = itertools.product(range(20), range(20))
        draws = {pair: tuple(objectives.datum_rng(*pair).integers(2**32, size=4)) for pair in pairs}
        self.assertLen(set(draws.values()), 400)
        self.assertEqual(draws[3, 4], tuple(objectives.datum_rng(np.int64(3), torch.tensor(4)).integers(2**32, size=4)))
        for pair in ((-1, 0), (0, -1), (2**64, 0)):
            with self.assertRaises(ValueError):
                objectives.datum_rng(*pair)


class CorruptTest(parameterized.TestCase):
    @parameterized.named_parameters(
        ("the standard shape", [0, 0, 1, 1, 0, 1], [11, 12, "A", 15, "B"], ["A", 13, 14, "B", 16]),
        ("starts with noise", [1, 1, 0, 0, 1, 0], ["A", 13, 14, "B", 16], [11, 12, "A", 15, "B"]),
        ("ends clean", [0, 1, 0, 0, 1, 0], [11, "A", 13, 14, "B", 16], ["A", 12, "B", 15, "C"]),
        ("all clean", [0, 0, 0, 0, 0, 0], [11, 12, 13, 14, 15, 16], ["A"]),
        ("all noise", [1, 1, 1, 1, 1, 1], ["A"], [11, 12, 13, 14, 15, 16]),
        ("one suffix", [0, 0, 0, 0, 1, 1], [11, 12, 13, 14, "A"], ["A", 15, 16]),
    )
    def test_hand_written(self, mask, inputs, targets):
        names = {"A": 32099, "B": 32098, "C": 32097}
        inputs, targets = ([names.get(t, t) for t in side] for side in (inputs, targets))
        tokens = [11, 12, 13, 14, 15, 16]
        got = objectives.corrupt(tokens, mask, SENTINELS)
        self.assertEqual((got[0].tolist(), got[1].tolist()), (inputs, targets))
        got = objectives.corrupt(np.array(tokens, dtype=np.uint16), np.array(mask, dtype=bool), SENTINELS, eos_id=EOS)
        self.assertEqual((got[0].tolist(), got[1].tolist()), (inputs + [EOS], targets + [EOS]))
        self.assertEqual((got[0].dtype, got[1].dtype), (np.int64, np.int64))

    @parameterized.parameters(0, 1, 2, 7, 60)
    def test_any_mask_equals_the_token_by_token_reference(self, length):
        rng = np.random.default_rng(length)
        for density in (0.1, 0.5, 0.9):
            tokens, mask = rng.integers(2, 32000, length), rng.random(length) < density
            inputs, targets = objectives.corrupt(tokens, mask, SENTINELS, EOS)
            expected = reference_corrupt(tokens.tolist(), mask, SENTINELS, EOS)
            self.assertEqual((inputs.tolist(), targets.tolist()), expected)

    @parameterized.parameters((568, 0.15, 3), (63, 0.2, 1), (9, 0.0, 3))
    def test_batch_equals_the_reference_on_the_same_masks(self, length, density, mean_span):
        rng = np.random.default_rng(0)
        tokens_BL = rng.integers(2, 32000, (16, length)).astype(np.uint16)
        mask_BL = objectives.noise_masks(16, length, density, mean_span, rng)
        inputs_BI, targets_BT = objectives.corrupt_batch(tokens_BL, mask_BL, SENTINELS, EOS)
        for row in range(16):
            expected = reference_corrupt(tokens_BL[row].tolist(), mask_BL[row], SENTINELS, EOS)
            self.assertEqual((inputs_BI[row].tolist(), targets_BT[row].tolist()), expected)

    def test_too_few_sentinels_on_either_side(self):
        tokens = range(11, 16)
        with self.assertRaisesRegex(ValueError, "inputs need 2 sentinels and the targets 3, but .* has 2"):
            objectives.corrupt(tokens, [0, 1, 0, 1, 0], SENTINELS[:2])
        with self.assertRaisesRegex(ValueError, "inputs need 3 .* targets 2, .* has 2.*mean_span_length"):
            objectives.corrupt(tokens, [1, 0, 1, 0, 1], SENTINELS[:2])
        objectives.corrupt(tokens, [0, 1, 0, 0, 1], SENTINELS[:2])


class SentinelIdsTest(parameterized.TestCase):
    def test_found_by_name_in_order(self):
        self.assertEqual(
            objectives.sentinel_ids(tokenizer_of("<pad>", "<extra_id_1>", "a", "<extra_id_0>", "<extra_id_x>")), [3, 1]
        )
        self.assertEqual(objectives.sentinel_ids(tokenizer_of("a", "\u2581<extra_id_1>", "\u2581<extra_id_0>")), [2, 1])
        self.assertEqual(objectives.sentinel_ids(tokenizer_of("<extra_id_0>", "\u2581<extra_id_0>")), [0])
        self.assertEqual(objectives.sentinel_ids(tokenizer_of("\u2581<extra_id_0>", "<extra_id_0>")), [1])

    def test_none_or_missing_ones_are_refused(self):
        with self.assertRaisesRegex(ValueError, "no sentinels"):
            objectives.sentinel_ids(tokenizer_of("<pad>", "a"))
        with self.assertRaisesRegex(ValueError, "lacks <extra_id_1>"):
            objectives.sentinel_ids(tokenizer_of("<extra_id_0>", "<extra_id_2>"))

    def test_real_t5_vocabulary(self):
        if not (T5_TOKENIZER / "spiece.model").exists():
            self.skipTest("T5's own spiece.model is not in ../shared/data/tokenizer/t5")
        tokenizer = transformers.T5Tokenizer.from_pretrained(T5_TOKENIZER)
        self.assertEqual(objectives.sentinel_ids(tokenizer), SENTINELS)
        self.assertEqual(tokenizer.eos_token_id, EOS)
