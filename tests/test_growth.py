"""What must not grow with the corpus and the run: orders, samplers, and files of lines that are gone on with."""

import itertools
import json
import shutil
import tracemalloc
from pathlib import Path
from unittest import mock

import numpy as np
from absl.testing import parameterized
from support import folder

from t5suite.data.batches.samplers import GlobalBatchSampler, shuffled_order
from t5suite.data.corpora.blocks import PIECE, BlockDataset, BlockLayout, Permutation
from t5suite.testing import TINY_T5, tiny_tuner
from t5suite.tracking.metric_lines import MetricLines, thinned_lines
from t5suite.training.pre_training import epoch_blocks

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

    def test_seeds_have_orders_of_their_own(self):
        places = np.arange(1000)
        orders = [Permutation(HUGE, seed)[places].tolist() for seed in [(0, 0), (0, 1), (1, 0), (0, 0)]]
        self.assertEqual(orders[0], orders[3])
        self.assertLen({tuple(order) for order in orders}, 3)


class CorpusTest(parameterized.TestCase):
    def test_a_corpus_of_any_size_takes_the_same_memory(self):
        tracemalloc.start()
        layout = BlockLayout(HUGE, (512,))
        dataset = BlockDataset(EndlessTokens(), layout, seed=0, num_examples=2**62)
        sampler = GlobalBatchSampler(epoch_blocks(layout.num_blocks), batch_size=16, accumulation=1)
        sampler.set_epoch(3)
        for batch in itertools.islice(sampler, 3):
            examples = [dataset[j] for j in batch]
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self.assertLen(examples, 16)
        self.assertLess(peak, 4e6)


class PassedOverTest(parameterized.TestCase):
    @parameterized.product(passed=(0, 1, 4, 6), world_size=(1, 2))
    def test_the_batches_that_follow_are_those_of_a_whole_pass(self, passed, world_size):
        sampler = GlobalBatchSampler(shuffled_order(25, 0), 2, 2, rank=world_size - 1, world_size=world_size)
        whole = list(sampler)
        sampler.pass_over(passed)
        self.assertEqual(list(sampler), [None] * passed + whole[passed:])
        self.assertEqual(list(sampler), whole, "the next pass is whole")

    def test_a_million_million_are_passed_over_without_making_them(self):
        sampler = GlobalBatchSampler(epoch_blocks(HUGE), 8, 1)
        sampler.pass_over(1000)
        with mock.patch("t5suite.data.batches.samplers.rank_share", side_effect=AssertionError):
            self.assertEqual(list(itertools.islice(sampler, 1000)), [None] * 1000)


class TrimTest(parameterized.TestCase):
    """A resumed run goes on with the lines that its checkpoint counted, whatever has become of the file."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.finished = folder() / "run"
        cls.run_to(2, cls.finished)
        lines = (cls.finished / "metrics.jsonl").read_bytes().splitlines(keepends=True)
        cls.content = b"".join(line for line in lines if b"train/loss" in line)

    @staticmethod
    def run_to(max_steps, directory):
        tuner = tiny_tuner(
            config_overrides=TINY_T5, data="mini/sentiment", output_dir=str(directory), max_train_samples=16,
            per_device_train_batch_size=8, logging_steps=1, save_strategy="steps", save_steps=2,
        )  # fmt: skip
        tuner.train(valid=False, max_steps=max_steps)

    @parameterized.parameters(b'{"step": 5, "tr', b"\xff\xfe", b"\x00" * 5000, b'{"step": 7, "train/loss": 1.0}\n')
    def test_what_was_written_after_the_checkpoint_goes(self, rest):
        self.assertEqual(self.resumed_with(self.content + rest), self.course(self.content))

    @parameterized.parameters((7, "of steps 2 to 2"), (None, "of steps 1 to 2"))
    def test_lines_that_the_checkpoint_counted_but_the_file_has_lost_come_from_the_checkpoint(self, cut, warning):
        with self.assertLogs("t5suite", "WARNING") as logs:
            lines = self.resumed_with(self.content[:-cut] if cut else b"")
        self.assertRegex("\n".join(logs.output), warning)
        self.assertEqual(lines, self.course(self.content))

    def resumed_with(self, content: bytes) -> list[tuple]:
        """The lines of the first two steps after a third one, in a run whose file held this before."""
        directory = folder() / "run"
        shutil.copytree(self.finished, directory)
        (directory / "metrics.jsonl").write_bytes(content)
        self.run_to(3, directory)
        lines = self.course((directory / "metrics.jsonl").read_bytes())
        self.assertEqual([step for step, _, _ in lines], [1, 2, 3])
        return lines[:2]

    def course(self, content: bytes) -> list[tuple]:
        lines = [json.loads(line) for line in content.splitlines()]
        return [(line["step"], line["train/loss"], line["train/grad_norm"]) for line in lines if "train/loss" in line]


def lines_file(steps, broken=()) -> Path:
    """A file of metrics with one line for each of the steps, some of them broken."""
    path = folder() / "metrics.jsonl"
    texts = [json.dumps({"step": step, "seconds": 1.0, "train/loss": 0.1 * i}) for i, step in enumerate(steps)]
    texts = [text[:9] if i in broken else text for i, text in enumerate(texts)]
    path.write_text("".join(text + "\n" for text in texts))
    return path


class GoingOnTest(parameterized.TestCase):
    """Those who follow a file begin where they left off, however long it is."""

    @parameterized.parameters(1, 30, 1000, 10**6)
    def test_in_pieces_every_line_comes_once_and_half_a_line_waits(self, most_bytes):
        path = lines_file(range(100))
        expected = MetricLines(path).new_lines()
        with path.open("a") as file:
            file.write('{"step": 100')
        lines, read_lines = MetricLines(path), []
        while lines.behind or not read_lines:
            read_lines += lines.new_lines(most_bytes)
        self.assertEqual(read_lines, expected)
        with path.open("a") as file:
            file.write("}\n")
        self.assertEqual(lines.new_lines(most_bytes), [{"step": 100}])
        self.assertFalse(lines.behind)

    def test_thinned_lines_keep_evaluations_and_the_last(self):
        path = lines_file(range(1000))
        with path.open("a") as file:
            file.write('{"step": 999, "eval/nll": 2.0}\n{"step": 1000, "train/loss": 3.0}\n')
        thinned = list(thinned_lines(path, most=50))
        self.assertBetween(len(thinned), 45, 55)
        self.assertEqual(thinned[-2:], [{"step": 999, "eval/nll": 2.0}, {"step": 1000, "train/loss": 3.0}])
        self.assertEqual(list(thinned_lines(path)), MetricLines(path).new_lines())
        self.assertEmpty(list(thinned_lines(path.with_name("none"))))
