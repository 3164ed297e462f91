"""Blocks of a long row of tokens: every token once an epoch, in an order that (seed, index) alone decide."""

import os
import pickle
import tempfile
import tracemalloc
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from absl.testing import parameterized

from t5suite.data.corpora import block_layout, block_order
from t5suite.data.corpora.block_layout import PIECE, BlockLayout, apportion
from t5suite.data.corpora.block_order import Permutation
from t5suite.data.corpora.blocks import BlockDataset, BlocksInOrder, MixedBlocks
from t5suite.data.corpora.corpus_mixture import CorpusMixture
from t5suite.data.corpora.sharded_array import OPEN_FILES, FilePart, RunsPart, ShardedArray, TokenSequence
from t5suite.data.corpora.store import token_dtype
from t5suite.testing import exits_with


def dataset(num_tokens, lengths, num_examples=None, seed=0, weights=()):
    return BlockDataset(np.arange(num_tokens), BlockLayout(num_tokens, lengths, weights), seed, num_examples)


class ShardedArrayTest(parameterized.TestCase):
    @parameterized.product(
        counts=((3, 2), (0, 3, 0, 2, 4), (0, 0, 1), (5, 0), (2, 0, 0, 3), (0, 0)),
        dtype=("<u2", "<u4"),
        adds=(True, False),
    )
    def test_files_read_as_one_row_whatever_they_hold(self, counts, dtype, adds):
        """Against numpy: a file's numbers, each more by the start of its file."""
        place, random = Path(tempfile.mkdtemp()), np.random.default_rng(1)
        parts, expected = [], []
        starts = [100 * number for number in range(len(counts))] if adds else None
        for number, count in enumerate(counts):
            numbers = random.integers(0, 90, count).astype(dtype)
            numbers.tofile(place / f"{number}.bin")
            parts.append(FilePart(str(place / f"{number}.bin"), count))
            expected.append(numbers.astype(np.int64) + (100 * number if adds else 0))
        array, whole = ShardedArray(parts, dtype, starts, out_dtype="int64"), np.concatenate(expected)
        self.assertLen(array, len(whole))
        np.testing.assert_array_equal(np.asarray(array), whole)
        for begin in range(len(whole)):
            for end in range(begin, len(whole) + 1):
                np.testing.assert_array_equal(array[begin:end], whole[begin:end])
            self.assertEqual(array[begin], whole[begin])

    def written(self, numbers, dtype="<u2") -> FilePart:
        path = Path(tempfile.mkdtemp()) / "numbers.bin"
        np.asarray(numbers, dtype).tofile(path)
        return FilePart(str(path), len(numbers))

    def test_indices_and_steps_are_a_list_s_and_what_is_outside_is_refused(self):
        array = ShardedArray([self.written([5, 6, 7]), self.written([8, 9])], "<u2")
        numbers = [5, 6, 7, 8, 9]
        self.assertEqual([array[i] for i in range(-5, 5)], [*numbers, *numbers])
        for cut in (slice(None, None, 2), slice(-3, None), slice(1, 99, 3), slice(4, 1)):
            self.assertEqual(array[cut].tolist(), numbers[cut])
        for index in (5, -6):
            with self.assertRaises(IndexError):
                array[index]
        with self.assertRaises(ValueError):
            array[::-1]

    def test_a_file_of_another_length_is_named(self):
        part = self.written([1, 2, 3])
        for length in (2, 4):
            with exits_with(65, f"{part.path}: holds 3 numbers, but the corpus says {length}"):
                ShardedArray([part._replace(length=length)], "<u2")[0]

    def test_documents_end_where_the_next_one_begins(self):
        starts = ShardedArray([self.written([0, 2, 2], "<i8")], "<i8")
        tokens = TokenSequence([self.written([5, 6, 7, 8])], "<u2", starts)
        self.assertEqual([tokens.document(number).tolist() for number in (0, 1, 2, -1)], [[5, 6], [], [7, 8], [7, 8]])
        with exits_with(78, "no sentences: build it with --split_sentences"):
            tokens.sentences  # noqa: B018
        self.assertIs(TokenSequence([], "<u2", starts, starts).sentences, starts)

    @parameterized.parameters(1, 2, 3)
    @pytest.mark.quick_cases(2)
    def test_runs_of_files_read_as_one_row(self, seed):
        """Against numpy, for every slice; the runs of a part lie anywhere in its file."""
        place, random = Path(tempfile.mkdtemp()), np.random.default_rng(seed)
        parts, expected = [], []
        for number in range(3):
            numbers = random.integers(0, 2**16, 40).astype("<u2")
            numbers.tofile(place / f"{number}.bin")
            borders = np.sort(random.choice(41, 8, replace=False)).reshape(4, 2)
            runs = [numbers[start:end] for start, end in borders]
            starts = np.cumsum([0, *map(len, runs)])
            np.save(place / f"{number}.npy", np.stack([starts[:-1], borders[:, 0]]))
            parts.append(RunsPart(str(place / f"{number}.bin"), int(starts[-1]), 40, str(place / f"{number}.npy"), 4))
            expected += runs
        array, whole = ShardedArray(parts, "<u2", out_dtype="int32"), np.concatenate(expected)
        self.assertLen(array, len(whole))
        for begin in range(len(whole)):
            for end in range(begin, len(whole) + 1):
                np.testing.assert_array_equal(array[begin:end], whole[begin:end])

    def test_files_beyond_the_bound_are_read_with_no_more_of_them_open(self):
        place, count = Path(tempfile.mkdtemp()), 3 * OPEN_FILES
        for number in range(count):
            np.array([number, number + 1], "<u2").tofile(place / f"{number}.bin")
        array = ShardedArray([FilePart(str(place / f"{number}.bin"), 2) for number in range(count)], "<u2")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(2):
            whole = np.asarray(array)
        np.testing.assert_array_equal(whole, np.stack([np.arange(count), np.arange(count) + 1], axis=1).ravel())
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), before + OPEN_FILES)
        self.assertLess(len(pickle.dumps(array)), 200 * count)
        np.testing.assert_array_equal(np.asarray(pickle.loads(pickle.dumps(array))), whole)

    def test_a_file_that_was_written_anew_under_its_name_is_read_anew_by_a_new_row(self):
        path = Path(tempfile.mkdtemp()) / "a.bin"
        for numbers in ([1, 2, 3], [4, 5]):
            path.unlink(missing_ok=True)
            np.array(numbers, "<u2").tofile(path)
            array = ShardedArray([FilePart(str(path), len(numbers))], "<u2")
            np.testing.assert_array_equal(np.asarray(array), numbers)


class LayoutTest(parameterized.TestCase):
    @parameterized.product(num_tokens=(997, 5000, 123457), weights=((1, 1, 1), (5, 1, 2), (1, 0.3, 0)))
    def test_no_more_blocks_would_fit_and_the_weights_are_kept(self, num_tokens, weights):
        layout = BlockLayout(num_tokens, (61, 117, 200), weights)
        self.assertLessEqual(np.dot(layout.counts, layout.lengths), num_tokens)
        one_more = np.dot(apportion(layout.num_blocks + 1, weights), layout.lengths)
        self.assertGreater(one_more, num_tokens)
        shares = np.array(weights) / sum(weights) * layout.num_blocks
        np.testing.assert_array_less(np.abs(np.array(layout.counts) - shares), 1)

    @parameterized.parameters(
        (65, 5, [6], (), "5 tokens, less than one block of 6"),
        (78, 5, [0], (), "blocks of .0,. tokens"),
        (78, 50, [5, 6], (1,), "one positive number for each"),
        (78, 50, [5, 6], (0, 0), "one positive number for each"),
    )
    def test_what_cannot_be_is_refused(self, exit_code, num_tokens, lengths, weights, message):
        with exits_with(exit_code, message):
            BlockLayout(num_tokens, lengths, weights)

    def test_ids_have_16_bits_where_the_vocabulary_fits(self):
        self.assertEqual([token_dtype(size).name for size in (2**16, 2**16 + 1)], ["uint16", "uint32"])


class BlockDatasetTest(parameterized.TestCase):
    @parameterized.parameters(([7], ()), ([7, 3], ()), ([7, 3, 12], (5, 1, 2)))
    def test_each_epoch_has_every_token_once_but_the_last_few(self, lengths, weights):
        blocks = dataset(1000, lengths, num_examples=10**6, weights=weights)
        num_blocks = blocks.layout.num_blocks
        for epoch in (0, 1, 5):
            examples = [blocks[j] for j in range(epoch * num_blocks, (epoch + 1) * num_blocks)]
            tokens = np.sort(np.concatenate([example["input_ids"] for example in examples]))
            np.testing.assert_array_equal(tokens, np.arange(np.dot(blocks.layout.counts, lengths)))
            self.assertEqual([e["index"] for e in examples], list(range(epoch * num_blocks, (epoch + 1) * num_blocks)))
            if len(lengths) > 1:
                used = np.bincount([example["denoiser"] for example in examples], minlength=len(lengths))
                self.assertEqual(tuple(used), blocks.layout.counts)
                self.assertTrue(all(len(e["input_ids"]) == lengths[e["denoiser"]] for e in examples))

    @parameterized.parameters(((5, 1, 2), 512), ((1, 1, 1), 4), ((400, 1, 90), 8), ((1, 0, 3), 4))
    @pytest.mark.quick_cases(3)
    def test_blocks_are_cut_piece_by_piece(self, weights, size):
        """No token twice and none left out at the borders of pieces; each has its share of each denoiser, to within one."""
        with mock.patch.object(block_layout, "PIECE", size):
            layout = BlockLayout(100_003, (7, 3, 12), weights)
        cuts = np.array([layout.cut_of(block, 1, 2) for block in range(layout.num_blocks)])
        lengths = np.array(layout.lengths)[cuts[:, 1]]
        np.testing.assert_array_equal(cuts[:, 0], np.cumsum(lengths) - lengths)
        self.assertEqual(tuple(np.bincount(cuts[:, 1], minlength=3)), layout.counts)
        for end in range(layout.piece_size, layout.num_blocks - 2 * layout.piece_size, layout.piece_size):
            shares = np.array(layout.counts) * end / layout.num_blocks
            counts = np.bincount(cuts[:end, 1], minlength=3)
            np.testing.assert_array_less(np.abs(counts - shares), 1)

    def test_indices_that_it_does_not_have_are_refused(self):
        blocks = dataset(100, [7], num_examples=30)
        self.assertEqual(blocks[29]["index"], 29)
        for index in (-1, 30):
            with self.assertRaisesRegex(IndexError, f"example {index} of a dataset of 30"):
                blocks[index]


class HeldOutTest(parameterized.TestCase):
    TEXTS = np.arange(50), np.arange(100, 121), np.arange(200, 290)

    def test_the_blocks_of_all_texts_stand_one_after_the_other(self):
        blocks = BlocksInOrder(self.TEXTS, lengths=(4,))
        expected = [text[start : start + 4] for text in self.TEXTS for start in range(0, len(text) - 3, 4)]
        self.assertLen(blocks, len(expected))
        self.assertEqual([block["index"] for block in blocks], list(range(len(expected))))
        np.testing.assert_array_equal([block["input_ids"] for block in blocks], expected)
        self.assertEqual([block["index"] for block in blocks[2:20:7]], [2, 9, 16])
        self.assertEqual([block["index"] for block in blocks[-2:]], [len(expected) - 2, len(expected) - 1])

    def test_some_of_them_are_spread_evenly_and_keep_their_numbers(self):
        every, some = (BlocksInOrder(self.TEXTS, (4, 3), (1, 2), limit) for limit in (None, 5))
        self.assertEqual([block["index"] for block in some], np.linspace(0, len(every) - 1, 5).astype(int).tolist())
        for block in some:
            np.testing.assert_array_equal(block["input_ids"], every[block["index"]]["input_ids"])
            self.assertEqual(block["denoiser"], every[block["index"]]["denoiser"])


class MixedBlocksTest(parameterized.TestCase):
    @parameterized.parameters((None,), ((1.0, 1.0),), ((0.9, 0.1),))
    def test_every_corpus_comes_up_by_its_weight_and_runs_through_its_own_epochs(self, weights):
        corpora = [np.arange(400), np.arange(10_000, 10_100)]
        layouts = [BlockLayout(len(tokens), [10]) for tokens in corpora]
        mixture = MixedBlocks(corpora, layouts, weights, seed=1)
        self.assertEqual(mixture.num_blocks, 50)
        examples = [mixture[j] for j in range(8192)]
        self.assertEqual([example["index"] for example in examples], list(range(8192)))
        of_second = [e["input_ids"][0] for e in examples if e["input_ids"][0] >= 10_000]
        share = (weights or (0.8, 0.2))[1] / sum(weights or (0.8, 0.2))
        self.assertAlmostEqual(len(of_second), share * 8192, delta=1)
        orders = set()
        for epoch in range(len(of_second) // 10):
            blocks_seen = of_second[10 * epoch : 10 * (epoch + 1)]
            self.assertCountEqual(blocks_seen, range(10_000, 10_100, 10))
            orders.add(tuple(blocks_seen))
        self.assertGreater(len(orders), 50)

    def test_corpora_of_equal_size_have_orders_of_their_own(self):
        corpora = [np.arange(300), np.arange(10_000, 10_300)]
        mixture = MixedBlocks(corpora, [BlockLayout(300, [10])] * 2, seed=1)
        firsts = [int(mixture[j]["input_ids"][0]) for j in range(100)]
        first_epochs = [
            [first % 10_000 for first in firsts if (first >= 10_000) == is_second][:30] for is_second in (0, 1)
        ]
        self.assertNotEqual(*first_epochs)
        self.assertEqual(*map(sorted, first_epochs))

    def test_an_order_is_drawn_once_however_many_corpora_take_turns(self):
        """A loader that prefetches is in two epochs at once."""
        layouts = [BlockLayout(1000, [10])] * 5
        mixture = MixedBlocks([np.arange(1000)] * 5, layouts, seed=1)
        with mock.patch.object(block_order, "block_order", side_effect=block_order.block_order) as draws:
            for index in range(400):
                mixture[index], mixture[index + 500]
        self.assertEqual(draws.call_count, 10)

    def test_as_many_weights_as_corpora(self):
        corpora = [np.arange(300), np.arange(10_000, 10_300)]
        with self.assertRaises(ValueError):
            MixedBlocks(corpora, [BlockLayout(300, [10])])


class MixtureTest(parameterized.TestCase):
    @parameterized.parameters(((),), ((1, 0),), ((1, -2),), ((1, float("inf")),), ((float("nan"),),))
    def test_weights_that_are_not_positive_are_refused(self, weights):
        with exits_with(78, "give one positive number for each corpus"):
            CorpusMixture(weights)

    @parameterized.parameters(((1,),), ((3, 1),), ((2, 1),), ((0.7, 0.2, 0.1),), ((1, 1e-4, 5e-4),), ((1 / 3, 0.1, 7),))
    def test_counts_are_within_one_of_the_weights_at_every_border(self, weights):
        mixture = CorpusMixture(weights, seed=1, chunk_size=100)
        shares = np.asarray(weights) / sum(weights)
        corpora, indices = np.array([mixture.corpus_of(j) for j in range(5 * mixture.chunk_size)]).T
        for chunk in range(1, 6):
            end = chunk * mixture.chunk_size
            counts = np.bincount(corpora[:end], minlength=len(weights))
            self.assertLess(np.abs(counts - shares * end).max(), 1 + 1e-6)
        for corpus in range(len(weights)):
            self.assertEqual(indices[corpora == corpus].tolist(), list(range((corpora == corpus).sum())))


HUGE = 10**13


class EndlessTokens:
    """A corpus of 20 TB: token i is i modulo 30,000."""

    def __len__(self):
        return HUGE

    def __getitem__(self, part):
        return np.arange(part.start, part.stop) % 30_000


class PermutationTest(parameterized.TestCase):
    @parameterized.parameters(1, 2, 3, 4, 5, 7, 64, 1000, 1023, 1025, PIECE, PIECE + 1, 3 * PIECE + 17, 2**17 + 1)
    def test_every_number_comes_once(self, size):
        np.testing.assert_array_equal(np.sort(Permutation(size, (3, 1))[np.arange(size)]), np.arange(size))

    @parameterized.parameters(5, 1000, 3 * PIECE + 17, HUGE)
    def test_one_by_one_in_neighbours_and_far_apart_give_the_same(self, size):
        order = Permutation(size, 7)
        places = [0, size // 3, size // 2, size - 1]
        near = np.arange(max(0, size // 2 - 3), min(size, size // 2 + 3))
        one_by_one = [order[place] for place in places]
        self.assertEqual(order[np.array(places)].tolist(), one_by_one)
        self.assertEqual(order[near].tolist(), [Permutation(size, 7)[int(place)] for place in near])
        self.assertEqual([order[place] for place in reversed(places)], one_by_one[::-1])

    def test_what_it_does_not_have_is_refused(self):
        order = Permutation(5, 7)
        for place in (-1, 5, np.array([0, 5]), np.array([4, -1])):
            with self.assertRaisesRegex(IndexError, "of 5"):
                order[place]
        self.assertEqual(order[np.array([], dtype=int)].tolist(), [])
        for size in (0, 2**62 + 1):
            with exits_with(78, f"a permutation of {size} numbers"):
                Permutation(size, 0)
        self.assertBetween(Permutation(2**62, 0)[2**62 - 1], 0, 2**62 - 1)

    def test_seeds_have_orders_of_their_own(self):
        places = np.arange(1000)
        orders = [Permutation(HUGE, seed)[places].tolist() for seed in [(0, 0), (0, 1), (1, 0), (0, 0)]]
        self.assertEqual(orders[0], orders[3])
        self.assertLen({tuple(order) for order in orders}, 3)

    def test_the_order_of_a_large_corpus_is_that_of_earlier_versions(self):
        """A run that is resumed after an update reads the blocks that are left, and none twice."""
        for num_blocks, seed, epoch, blocks in (
            (3_000_000, 0, 0, [1544743, 1450948, 1468691, 1160309]),
            (3_000_000, 42, 3, [714424, 1322872, 922729, 547380]),
            (2**20 + 1, 0, 0, [772647, 725956, 1036364, 695422]),
            (2**20 + 1, 42, 3, [553599, 241522, 612828, 618032]),
        ):
            order = block_order.block_order(seed, epoch, num_blocks)
            self.assertEqual([order[place] for place in (0, 1, 2, num_blocks - 1)], blocks)


class EndlessCorpusTest(parameterized.TestCase):
    def test_a_corpus_of_any_size_takes_the_same_memory(self):
        tracemalloc.start()
        layout = BlockLayout(HUGE, (512,))
        endless = BlockDataset(EndlessTokens(), layout, seed=0, num_examples=2**62)
        examples = [endless[j] for j in range(3 * layout.num_blocks, 3 * layout.num_blocks + 48)]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self.assertLen(examples, 48)
        self.assertLess(peak, 4e6)
