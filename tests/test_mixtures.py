"""Mixing rates and draws, parts of splits, and which examples an update takes on any number of ranks."""

import collections
import itertools
import json
import math
import os
import tempfile
from unittest import mock

import numpy as np
from absl.testing import parameterized

from t5suite import load_task
from t5suite.data.batches.features import Ragged, TokenArrays
from t5suite.data.batches.samplers import GlobalBatchSampler, length_grouped_order, rank_share, shuffled_order
from t5suite.data.batches.training_data import Mixing, Schedule, Subset, load_training_sets, make_epoch_order
from t5suite.data.mixtures import MixtureDraws, mixing_rates
from t5suite.data.rows.sources import DataOptions
from t5suite.data.rows.subsets import few_shot_rows, select_rows, selection_share, split_for_selection
from t5suite.testing import exits_with

GLUE = {
    "cola": 8551, "sst2": 67349, "mrpc": 3668, "qqp": 363849, "stsb": 5749, "mnli": 392702, "qnli": 104743, "rte": 2490,
}  # fmt: skip
SUPER_GLUE = {
    "boolq": 9427, "cb": 250, "copa": 400, "multirc": 27243, "record": 138854, "rte": 2490, "wic": 5428, "wsc.fixed": 259, "dpr": 1322,
}  # fmt: skip


class RatesTest(parameterized.TestCase):
    def test_the_count_is_clipped_before_the_temperature(self):
        for examples, limit, temperature in itertools.product(
            [GLUE, SUPER_GLUE], [None, 1, 1000, 2.5e4, 2**19, 2**21], [1.0, 2.0, 0.5, 3.7, 100]
        ):
            found = mixing_rates(examples, limit=limit, temperature=temperature)
            self.assertEqual(list(found), list(examples))
            for name, count in examples.items():
                expected = math.exp(math.log(min(count, limit or math.inf)) / temperature)
                self.assertAlmostEqual(found[name] / expected, 1, delta=1e-12)

    def test_what_is_not_positive_is_refused_by_flag(self):
        for options, flag in (
            ({"limit": 0}, "--mixing_limit"), ({"limit": -3}, "--mixing_limit"),
            ({"temperature": 0}, "--mixing_temperature"), ({"temperature": -1.0}, "--mixing_temperature"),
        ):  # fmt: skip
            with exits_with(78, flag):
                mixing_rates(GLUE, **options)


class DrawTest(parameterized.TestCase):
    SIZES = [7, 50, 400]
    RATES = [1.0, 3.0, 6.0]

    def tasks_and_rows(self, draws, sizes):
        ends = np.cumsum(sizes)
        tasks = np.searchsorted(ends, draws, side="right")
        return tasks, draws - (ends - sizes)[tasks]

    def test_tasks_come_in_proportion_to_their_rates(self):
        for seed in range(5):
            draws = MixtureDraws(self.SIZES, self.RATES, 20000, seed)[:]
            tasks, _ = self.tasks_and_rows(draws, np.array(self.SIZES))
            shares = np.bincount(tasks, minlength=3) / len(draws)
            # five standard deviations of the largest share
            np.testing.assert_allclose(shares, [0.1, 0.3, 0.6], atol=5 * math.sqrt(0.24 / len(draws)))
            # early and late alike
            for half in np.split(tasks, 2):
                np.testing.assert_allclose(np.bincount(half, minlength=3) / len(half), [0.1, 0.3, 0.6], atol=0.03)

    def test_a_task_of_rate_zero_is_never_drawn(self):
        draws = MixtureDraws([3, 0, 5], [1.0, 0.0, 1.0], 100, 0)[:]
        self.assertEqual(set(draws.tolist()), set(range(8)))
        self.assertTrue(np.all(MixtureDraws([3, 5], [1.0, 0.0], 100, 0)[:] < 3))

    def test_no_example_comes_again_before_its_tasks_pass_ends(self):
        for seed in range(5):
            draws = MixtureDraws(self.SIZES, self.RATES, 3000, seed)[:]
            tasks, rows = self.tasks_and_rows(draws, np.array(self.SIZES))
            for task, size in enumerate(self.SIZES):
                of_task = rows[tasks == task]
                self.assertTrue(np.all((of_task >= 0) & (of_task < size)))
                passes = [of_task[i : i + size].tolist() for i in range(0, len(of_task), size)]
                for one in passes[:-1]:
                    self.assertCountEqual(one, range(size))
                self.assertLen(set(passes[-1]), len(passes[-1]))
                whole = [tuple(one) for one in passes if len(one) == size]
                if size > 7:
                    self.assertLen(set(whole), len(whole), "every pass has its own order")

    @parameterized.parameters((0, 10), (60, 70), (64, 128), (500, 1000), (2990, 9999), (5, 5))
    def test_a_piece_is_what_the_whole_has_there(self, start, stop):
        whole = MixtureDraws(self.SIZES, self.RATES, 3000, 7)[:]
        with mock.patch.object(MixtureDraws, "CHUNK", 64):
            found = MixtureDraws(self.SIZES, self.RATES, 3000, 7)[start:stop]
        np.testing.assert_array_equal(found, whole[start:stop])
        self.assertFalse(np.array_equal(whole, MixtureDraws(self.SIZES, self.RATES, 3000, 8)[:]))


class EpochOrderTest(parameterized.TestCase):
    """Tasks of 100 and 400 examples; under a limit of 144 an epoch has 244 draws, 8 updates of 32."""

    def order(self, mixing, **schedule):
        one = lambda size: TokenArrays(Ragged.from_rows([[5, 1]] * size), Ragged.from_rows([[9, 1]] * size))
        schedule = Schedule(**{"num_epochs": 1, "update_size": 32, "sampling": "random", **schedule})
        return make_epoch_order([one(100), one(400)], ["a", "b"], mixing, schedule, seed=0)

    @parameterized.parameters(
        (Mixing(limit=144, temperature=2.0), {"a": 10.0, "b": 12.0}, 244),
        (Mixing(temperature=2.0), {"a": 10.0, "b": 20.0}, 500),
        (Mixing(), {"a": 100.0, "b": 400.0}, 500),
        (Mixing(strategy="equal"), {"a": 1.0, "b": 1.0}, 500),
    )
    def test_tasks_are_drawn_at_the_rates_that_were_asked_for(self, mixing, rates, epoch_length):
        order, found = self.order(mixing, num_epochs=40)
        self.assertEqual(found, rates)
        self.assertLen(order(0), epoch_length)
        share = np.mean(np.concatenate([order(epoch) for epoch in range(40)]) < 100)
        self.assertAlmostEqual(share, rates["a"] / sum(rates.values()), delta=0.02)

    @parameterized.parameters(({"num_epochs": 2.5}, 3), ({"max_steps": 32}, 4), ({"max_steps": 33}, 5))
    def test_there_are_draws_for_the_whole_run(self, schedule, epochs):
        order, _ = self.order(Mixing(limit=144), **schedule)
        self.assertEqual([len(order(epoch)) for epoch in range(epochs + 1)], [244] * epochs + [0])


class TrainingSetTest(parameterized.TestCase):
    def load(self, task=("mini", "entailment"), **subset):
        file = os.path.join(tempfile.mkdtemp(), "train.jsonl")
        with open(file, "w") as lines:
            for i in range(80):
                row = {"premise": "It rains.", "hypothesis": "It is wet.", "label": i % 3, "idx": i}
                print(json.dumps(row), file=lines)
        options = DataOptions(train_file=file)
        (found,), _ = load_training_sets([load_task(*task)], options, Subset(**subset), seed=0)
        return found

    def test_a_part_of_a_published_split_is_named_as_one(self):
        with self.assertLogs("t5suite", "INFO") as logs:
            found = self.load(("glue", "mnli"))
        self.assertIn("glue/mnli train: 80 of 392,702 official rows", logs.output[0])
        self.assertEqual((found.is_subset, found.describe()["official"]), (True, 392702))

    def test_parts_of_parts_stay_parts(self):
        """Of 80 rows a tenth is kept aside, a half of the others is drawn, and of those 3 of each class."""
        aside = self.load(selection_share=0.1)
        half = self.load(selection_share=0.1, fraction=0.5)
        shots = self.load(selection_share=0.1, fraction=0.5, few_shot=3)
        self.assertEqual([len(part.rows) for part in (aside, half, shots)], [72, 36, 9])
        self.assertEqual(sorted(shots.rows["label"]), [0, 0, 0, 1, 1, 1, 2, 2, 2])
        rows = [set(part.rows["idx"]) for part in (shots, half, aside)]
        self.assertTrue(rows[0] < rows[1] < rows[2])
        for part in (aside, half, shots):
            self.assertEqual(set(part.selection_rows["idx"]), set(range(80)) - rows[2])


class SubsetTest(parameterized.TestCase):
    def test_as_many_rows_are_kept_as_asked_for(self):
        for num_rows, limit, fraction, kept in (
            (10, None, None, 10), (10, 3, None, 3), (10, 10, None, 10), (10, 99, None, 10), (10, None, 0.3, 3),
            (10, None, 1.0, 10), (10, None, 0.001, 1), (10, 2, 0.5, 2), (10, 8, 0.5, 5), (1, 1, 1.0, 1),
            (1000, None, 0.25, 250),
        ):  # fmt: skip
            rows = select_rows(num_rows, limit=limit, fraction=fraction, seed=0)
            self.assertLen(rows, kept)
            self.assertEqual(rows.tolist(), sorted(set(rows.tolist())))
            self.assertTrue(all(0 <= row < num_rows for row in rows))

    def test_the_subset_is_a_function_of_seed_and_role(self):
        def select(**options):
            return select_rows(100, limit=20, **options).tolist()

        self.assertEqual(select(seed=1), select(seed=1, role="train"))
        self.assertNotEqual(select(seed=1), select(seed=2))
        self.assertNotEqual(select(seed=1), select(seed=1, role="validation"))
        self.assertNotEqual(select(seed=1, role="test"), select(seed=1, role="validation"))

    def test_what_keeps_no_row_is_refused_by_flag(self):
        for options, flag in (
            ({"fraction": 0}, "--train_fraction 0"), ({"fraction": 1.5}, "--train_fraction 1.5"),
            ({"fraction": -0.1}, "--train_fraction"), ({"limit": 0}, "--max_train_samples 0"),
            ({"limit": -1}, "--max_train_samples"), ({"limit": 0, "role": "validation"}, "--max_eval_samples 0"),
        ):  # fmt: skip
            with exits_with(78, flag):
                select_rows(10, seed=0, **options)

    def test_few_shots_are_so_many_rows_of_each_class(self):
        for shots, seed in itertools.product([1, 2, 5], [0, 1, 2]):
            classes = np.random.default_rng(9).integers(0, 3, 60).tolist()
            rows = few_shot_rows(classes, shots, seed)
            self.assertEqual(collections.Counter(classes[row] for row in rows), {0: shots, 1: shots, 2: shots})
            self.assertEqual(rows.tolist(), sorted(set(rows.tolist())))
            np.testing.assert_array_equal(rows, few_shot_rows(classes, shots, seed))
            self.assertFalse(np.array_equal(rows, few_shot_rows(classes, shots, seed + 1)))
            self.assertContainsSubset(few_shot_rows(classes, 1, seed).tolist(), rows.tolist())

    def test_few_shots_need_enough_rows_and_a_positive_number(self):
        with exits_with(65, "--few_shot 2: class 1 has only 1 rows"):
            few_shot_rows([0, 0, 1], 2, 0)
        with exits_with(78, "--few_shot 0"):
            few_shot_rows([0, 1], 0, 0)

    def test_a_selection_split_is_read(self):
        for text, share in (
            ("validation", None), ("train[5%]", 0.05), ("train[10%]", 0.1), ("train[0.5%]", 0.005),
            ("train[99%]", 0.99), ("train[12.5%]", 0.125),
        ):  # fmt: skip
            found = selection_share(text)
            self.assertIsNone(found) if share is None else self.assertAlmostEqual(found, share)

    def test_another_selection_split_is_refused_with_its_text(self):
        for text in (
            "", "train", "test", "train[5]", "train[:5%]", "train[-5%]", "train[0%]", "train[100%]", "train[250%]",
            "train[5%] ", "validation[5%]", "train[five%]", "Validation", "train[5%]x", "train[.5%]",
        ):  # fmt: skip
            with exits_with(78, "--selection_split.*train\\[5%\\]") as caught:
                selection_share(text)
            self.assertIn(repr(text), str(caught.exception))

    def test_selection_rows_and_training_rows_have_none_in_common_and_miss_none(self):
        for num_rows, share in itertools.product([2, 3, 10, 101, 5000], [0.01, 0.05, 0.5]):
            train, held_out = split_for_selection(num_rows, share, seed=4)
            self.assertLen(held_out, max(1, round(num_rows * share)))
            self.assertEqual(sorted([*train.tolist(), *held_out.tolist()]), list(range(num_rows)))
            for part in (train, held_out):
                self.assertEqual(part.tolist(), sorted(part.tolist()))
            again = split_for_selection(num_rows, share, seed=4)
            np.testing.assert_array_equal(train, again[0])
            np.testing.assert_array_equal(held_out, again[1])

    def test_too_few_rows_to_split_are_refused(self):
        for num_rows, share in ((1, 0.5), (2, 0.9), (0, 0.1)):
            with exits_with(65, "--selection_split"):
                split_for_selection(num_rows, share, seed=0)


class RankShareTest(parameterized.TestCase):
    def test_shares_cover_all_once_in_order_and_differ_by_one_at_most(self):
        for n, world_size in itertools.product(list(range(0, 12)), [1, 2, 3, 4]):
            indices = list(range(100, 100 + n))
            shares = [rank_share(indices, rank, world_size) for rank in range(world_size)]
            self.assertEqual(list(itertools.chain(*shares)), indices)
            sizes = [len(share) for share in shares]
            self.assertLessEqual(max(sizes) - min(sizes), 1)
            for index in itertools.chain(*shares):
                self.assertIs(type(index), int)


class OrderTest(parameterized.TestCase):
    def test_every_order_is_a_permutation(self):
        for n, update_size, epoch in itertools.product([0, 1, 2, 7, 64, 1000], [1, 8, 24], [0, 3]):
            lengths = np.random.default_rng(0).integers(1, 512, n)
            for order in (shuffled_order(n, 5), length_grouped_order(lengths, update_size, 5)):
                self.assertEqual(sorted(order(epoch).tolist()), list(range(n)))

    @parameterized.parameters("shuffled", "grouped")
    def test_an_order_is_keyed_by_seed_and_epoch(self, kind):
        lengths = np.random.default_rng(0).integers(1, 50, 200)

        def order(seed, epoch):
            make = shuffled_order(200, seed) if kind == "shuffled" else length_grouped_order(lengths, 8, seed)
            return tuple(make(epoch).tolist())

        self.assertEqual(order(1, 2), order(1, 2))
        orders = {order(seed, epoch) for seed in range(4) for epoch in range(4)}
        self.assertLen(orders, 16)

    def test_the_examples_of_an_update_have_about_one_length(self):
        for epoch in range(4):
            lengths = np.random.default_rng(1).integers(1, 512, 8 * 100 + 5)
            order = length_grouped_order(lengths, 8, seed=0)(epoch)
            updates = [lengths[order[i : i + 8]] for i in range(0, 800, 8)]
            spread = np.mean([update.max() - update.min() for update in updates])
            self.assertLess(spread, 25)  # 8 random examples: about 400
            self.assertLen(order[800:], 5)
            # updates of any length come at any time
            means = np.array([update.mean() for update in updates])
            self.assertLess(abs(np.corrcoef(means, np.arange(100))[0, 1]), 0.4)


def updates(batch_size, accumulation, world_size, n, epoch=0, order=None):
    """The rows of every update, as all ranks together take them."""
    order = order or shuffled_order(n, 3)
    ranks = []
    for rank in range(world_size):
        sampler = GlobalBatchSampler(order, batch_size, accumulation, rank, world_size)
        sampler.set_epoch(epoch)
        ranks.append(list(sampler))
        assert len(ranks[-1]) == len(sampler) == math.ceil(n / (batch_size * world_size))
    assert len({len(batches) for batches in ranks}) == 1, "every rank takes as many micro-batches"
    micro = [list(itertools.chain(*batches)) for batches in zip(*ranks)]
    return [list(itertools.chain(*micro[i : i + accumulation])) for i in range(0, len(micro), accumulation)]


# (batch size a rank, accumulation, ranks): updates of eight examples each
CUTS = [(8, 1, 1), (4, 2, 1), (2, 4, 1), (1, 8, 1), (4, 1, 2), (2, 2, 2), (1, 4, 2), (2, 1, 4), (1, 2, 4)]


class GlobalBatchSamplerTest(parameterized.TestCase):
    def test_an_update_takes_the_same_rows_however_it_is_cut(self):
        for cut, n, epoch in itertools.product(CUTS, [1, 5, 7, 8, 9, 16, 21, 40], [0, 1]):
            order = shuffled_order(n, 3)(epoch).tolist()
            expected = [order[i : i + 8] for i in range(0, n, 8)]
            found = updates(*cut, n, epoch)
            self.assertEqual(found, expected)
