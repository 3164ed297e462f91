"""Span corruption by numba: the same bits as NumPy's, from any thread and process; without numba, NumPy alone."""

import ctypes
import importlib.util
import mmap
import multiprocessing
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
import pytest
import torch
from absl.testing import parameterized

from t5suite.base.errors import ConfigError
from t5suite.data.blocks import Blocks
from t5suite.data.objectives import DatumRngs, compiled_spans, denoisers, noise_counts
from t5suite.data.pre_training_collator import T5DataCollator
from t5suite.training.pre_training.collators import unheeded_settings

SENTINELS = list(range(32099, 31999, -1))
HAS_NUMBA = importlib.util.find_spec("numba") is not None
needs_numba = unittest.skipUnless(HAS_NUMBA, "numba is not installed: pip install 't5suite[speed]'")


def blocks_of(batch, length, dtype=np.uint16):
    return np.random.default_rng(length).integers(2, 32000, (batch, length)).astype(dtype)


def sides_of(tokens_BL, seed, indices, eos_id=1, compiled=False, **noise):
    rngs = DatumRngs(seed, indices, compiled)
    return denoisers.span_corruption(tokens_BL, rngs, SENTINELS, eos_id, **noise)


def in_a_child(queue, seed):
    queue.put([side.values for side in sides_of(blocks_of(4, 90), seed, range(4), compiled=True)])


def at_the_end_of_memory(tokens_BL):
    """A copy behind which there is a page that nobody may read."""
    size = -(-tokens_BL.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    room = mmap.mmap(-1, size + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(room))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + size), mmap.PAGESIZE, 0) == 0
    copy_BL = np.ndarray(tokens_BL.shape, tokens_BL.dtype, room, size - tokens_BL.nbytes)
    copy_BL[:] = tokens_BL
    return copy_BL


def in_a_child_without_room(length):
    for batch in (1, 2, 3, 40):
        sides_of(at_the_end_of_memory(blocks_of(batch, length)), 0, range(batch), compiled=True, noise_density=0.3)


@needs_numba
class SameBitsTest(parameterized.TestCase):
    def assert_same(self, tokens_BL, indices, seed=3, eos_id=1, **noise):
        wanted = sides_of(tokens_BL, seed, indices, eos_id, **noise)
        found = sides_of(tokens_BL, seed, indices, eos_id, compiled=True, **noise)
        for one, other in zip(wanted, found, strict=True):
            np.testing.assert_array_equal(one.values, other.values)
            np.testing.assert_array_equal(one.lengths, other.lengths)

    @parameterized.product(
        length=(2, 3, 4, 7, 20, 64, 65, 66, 129, 190),
        noise=((0.15, 3.0), (0.5, 1.0), (0.9, 1.0), (0.3, 2.0), (0.15, 64.0)),
    )
    def test_any_lengths_and_noise(self, length, noise):
        density, mean_span = noise
        if noise_counts(length, density, mean_span)[1] <= len(SENTINELS):
            self.assert_same(
                blocks_of(5, length), [0, 9, 3, 2**40, 2**64 - 1], noise_density=density, mean_span_length=mean_span
            )

    @parameterized.parameters(np.uint16, np.uint32, np.int32, np.int64)
    def test_any_kind_of_ids_and_strides(self, dtype):
        self.assert_same(blocks_of(6, 120, dtype), range(6))
        self.assert_same(blocks_of(6, 240, dtype)[:, ::2], range(6))

    @parameterized.parameters(1, None)
    def test_with_and_without_an_end(self, eos_id):
        self.assert_same(blocks_of(3, 568), range(3), eos_id=eos_id)

    def test_thousands_of_rows(self):
        self.assert_same(blocks_of(3000, 40), range(3000), noise_density=0.4, mean_span_length=2.0)

    def test_any_seed(self):
        for seed in (0, 1, 2**63, 2**64 - 1):
            self.assert_same(blocks_of(2, 568), [5, 6], seed=seed)

    def test_draws_that_do_not_do_are_left_to_numpy(self):
        tokens_BL = blocks_of(50, 60)
        wanted = sides_of(tokens_BL, 0, range(50))
        with mock.patch.object(compiled_spans, "num_draws", lambda gaps, cuts: cuts):
            self.assertIsNone(compiled_spans.corrupt(tokens_BL, 0, range(50), noise_counts(60), SENTINELS, 1))
            found = sides_of(tokens_BL, 0, range(50), compiled=True)
        np.testing.assert_array_equal(found[0].values, wanted[0].values)

    def test_nothing_is_written_outside_the_rows(self):
        """Pieces that are copied too much would be seen in the neighbours; the last row has none."""
        tokens_BL = blocks_of(7, 11)
        self.assert_same(tokens_BL, range(7), noise_density=0.3)
        self.assert_same(tokens_BL[:1], [0], noise_density=0.3)

    @unittest.skipUnless(sys.platform == "linux", "mprotect as Linux has it")
    @parameterized.parameters(2, 3, 11, 31, 32, 33, 568)
    def test_nothing_is_read_behind_the_tokens(self, length):
        """Pieces are longer than what is left of the last rows: reading on would end the child by a signal."""
        sides_of(blocks_of(2, length), 0, range(2), compiled=True, noise_density=0.3)  # compiled before
        child = multiprocessing.get_context("fork").Process(target=in_a_child_without_room, args=(length,))
        child.start()
        child.join()
        self.assertEqual(child.exitcode, 0)

    def test_threads_do_not_disturb_each_other(self):
        tokens_BL = blocks_of(64, 568)
        wanted = [sides_of(tokens_BL, seed, range(64))[0].values for seed in range(12)]
        with ThreadPoolExecutor(4) as pool:
            found = list(
                pool.map(lambda seed: sides_of(tokens_BL, seed, range(64), compiled=True)[0].values, range(12))
            )
        np.testing.assert_array_equal(found, wanted)

    @pytest.mark.slow
    def test_a_forked_child_makes_the_same(self):
        """As a DataLoader's workers on Linux do, once the parent has compiled and used it."""
        wanted = sides_of(blocks_of(4, 90), 8, range(4), compiled=True)
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=in_a_child, args=(queue, 8))
        child.start()
        found = queue.get()
        child.join()
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other.values)

    @parameterized.parameters("span_corruption", "ul2")
    def test_batches_of_a_collator(self, objective):
        settings = {"sentinel_ids": SENTINELS, "objective": objective, "inputs_length": 60}
        made = {engine: T5DataCollator(noise_engine=engine, **settings) for engine in ("numpy", "numba")}
        lengths = made["numpy"].tokens_lengths
        examples = [
            {"input_ids": np.arange(5, 5 + lengths[j % len(lengths)]), "index": j, "denoiser": j % len(lengths)}
            for j in range(14)
        ]
        batches = [collate(examples) for collate in made.values()]
        for name, tensor in batches[0].items():
            torch.testing.assert_close(tensor, batches[1][name], rtol=0, atol=0)


class ChoiceTest(parameterized.TestCase):
    def test_numpy_is_numpy(self):
        self.assertFalse(compiled_spans.uses_numba("numpy"))

    def test_without_numba_auto_is_numpy_and_numba_is_refused(self):
        with mock.patch.object(importlib.util, "find_spec", lambda name: None):
            self.assertFalse(compiled_spans.uses_numba("auto"))
            with self.assertRaisesRegex(ConfigError, r"--noise_engine numba: numba is not installed; pip install"):
                compiled_spans.uses_numba("numba")

    def test_a_numba_that_does_not_fit_is_passed_over(self):
        fails = mock.Mock(side_effect=ImportError("Numba needs NumPy 2.3 or less"))
        found = mock.patch.object(importlib.util, "find_spec", lambda name: object())
        with found, mock.patch.object(compiled_spans, "_kernel", fails):
            with self.assertLogs("t5suite", "WARNING"):
                self.assertFalse(compiled_spans.uses_numba("auto"))
            with self.assertRaisesRegex(ConfigError, "NumPy 2.3 or less"):
                compiled_spans.uses_numba("numba")

    @needs_numba
    def test_auto_takes_numba_once_it_pays_and_changes_nothing(self):
        """The batch before, at and after the change are those of NumPy."""
        blocks = Blocks(blocks_of(3, 568), [0, 1, 2])
        by_numpy = T5DataCollator(sentinel_ids=SENTINELS, noise_engine="numpy")(blocks)
        with mock.patch("t5suite.data.pre_training_collator.BATCHES_BEFORE_NUMBA", 2):
            collate = T5DataCollator(sentinel_ids=SENTINELS)
            for expected in (False, True, True):
                batch = collate(blocks)
                self.assertEqual(collate._compiled, expected)
                np.testing.assert_array_equal(batch["input_ids"].numpy(), by_numpy["input_ids"].numpy())

    def test_an_engine_of_another_name_is_refused(self):
        with self.assertRaisesRegex(ConfigError, "--noise_engine.*did you mean numba"):
            T5DataCollator(sentinel_ids=SENTINELS, noise_engine="numbba")

    def test_objectives_without_spans_do_not_heed_it(self):
        self.assertEqual(unheeded_settings("prefix_lm", ["noise_engine"]), ["noise_engine"])
        self.assertEqual(unheeded_settings("span_corruption", ["noise_engine"]), [])


if __name__ == "__main__":
    unittest.main()
