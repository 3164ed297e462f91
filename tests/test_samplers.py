"""Orders of an epoch, and which examples an update takes on any number of ranks."""

import itertools
import math

import numpy as np
import torch
from absl.testing import parameterized

from t5suite.data.batches.features import TokenArrays
from t5suite.data.batches.samplers import (
    EpochDataLoader,
    GlobalBatchSampler,
    length_grouped_order,
    rank_share,
    shifted_order,
    shuffled_order,
)
from t5suite.data.batches.training_data import Mixing, make_epoch_order
from t5suite.data.mixtures import MixtureDraws, grouped_in_updates, proportional_order
from t5suite.data.rows.subsets import held_out_rows


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

    def test_every_epoch_forms_its_updates_of_other_neighbours_within_four_percent(self):
        lengths = np.arange(1000, 1805)
        orders = [length_grouped_order(lengths, 8, seed=0)(epoch) for epoch in range(2)]
        formed = [{tuple(sorted(order[i : i + 8])) for i in range(0, 800, 8)} for order in orders]
        self.assertLess(len(formed[0] & formed[1]), 10)
        for order in orders:
            for update in order[:800].reshape(-1, 8):
                row = lengths[update]
                self.assertTrue(np.all(row[1:] * 0.98 < row[:-1] * 1.02))
                self.assertLess(row.max() - row.min(), 90)
            last = order[800:]
            self.assertEqual(last.tolist(), sorted(last, reverse=True), "the longest first")
        self.assertNotEqual(*(set(order[800:]) for order in orders))

    def test_a_shifted_order_goes_on_where_another_run_stopped(self):
        epochs = [np.random.default_rng(epoch).permutation(7) + 10 * epoch for epoch in range(9)]
        run = np.concatenate(epochs)
        for offset in (0, 1, 6, 7, 8, 20, -1, -7, -9):
            shifted = shifted_order(epochs.__getitem__, 7, offset)
            positions = np.arange(28) + offset
            examples = np.concatenate([shifted(epoch) for epoch in range(4)])
            self.assertLen(examples, 28)
            np.testing.assert_array_equal(examples[positions >= 0], run[positions[positions >= 0]])

    def test_a_shifted_order_of_consecutive_examples_takes_no_memory(self):
        length = 10**12
        shifted = shifted_order(lambda epoch: range(epoch * length, (epoch + 1) * length), length, offset=3)
        self.assertEqual(shifted(2), range(2 * length + 3, 3 * length + 3))


def features_of(lengths) -> TokenArrays:
    """Examples of these numbers of tokens."""
    return TokenArrays.from_columns({"input_ids": [[7] * n for n in lengths], "labels": [[1]] * len(lengths)})


class HeldOutRowsTest(parameterized.TestCase):
    def test_many_rows_are_drawn_in_the_time_of_a_quick_test(self):
        """One that grows with the square of their number takes longer."""
        self.assertEqual(held_out_rows(range(200_000), share=0.05, seed=0).sum(), 10_000)


class RunOrderTest(parameterized.TestCase):
    """The order of a run, by its flags."""

    LENGTHS = [[3, 9, 4, 1, 8, 2], [5, 2, 7, 7, 1, 6, 3, 2, 9, 4]]

    def order(self, mixing=None, num_sets=2, seed=5, sampling="random"):
        features = [features_of(lengths) for lengths in self.LENGTHS[:num_sets]]
        return make_epoch_order(features, ["a", "b"][:num_sets], mixing or Mixing(), sampling, seed, update_size=4)

    def assert_orders(self, order, expected, epochs=(0, 1)):
        for epoch in epochs:
            self.assertEqual(order(epoch).tolist(), list(expected(epoch)))

    def test_one_task_takes_each_example_once_as_sampling_says(self):
        for sampling, expected in (
            ("sequential", lambda epoch: range(6)),
            ("random", lambda epoch: shuffled_order(6, 5)(epoch).tolist()),
            ("group_by_length", lambda epoch: length_grouped_order(self.LENGTHS[0], 4, 5)(epoch).tolist()),
        ):
            order, rates = self.order(num_sets=1, sampling=sampling)
            self.assert_orders(order, expected)
            self.assertEqual(rates, {"a": 1.0})

    @parameterized.parameters(
        (Mixing(), {"a": 6.0, "b": 10.0}, 16),
        (Mixing(limit=8), {"a": 6.0, "b": 8.0}, 14),
        (Mixing(limit=8, temperature=3.0), {"a": 6 ** (1 / 3), "b": 2.0}, 14),
        (Mixing("equal", limit=8), {"a": 1.0, "b": 1.0}, 14),
    )
    def test_an_epoch_of_several_has_as_many_draws_as_examples_up_to_the_limit(self, mixing, rates, epoch_length):
        draws = MixtureDraws([6, 10], list(rates.values()), 2 * epoch_length, seed=5)[:]
        halves = draws[:epoch_length].tolist(), draws[epoch_length:].tolist()
        order, rates_of_tasks = self.order(mixing)
        self.assertEqual(rates_of_tasks, rates)
        self.assert_orders(order, halves.__getitem__)
        grouped, _ = self.order(mixing, sampling="group_by_length")
        lengths = [*self.LENGTHS[0], *self.LENGTHS[1]]
        self.assert_orders(grouped, grouped_in_updates(lambda epoch: np.array(halves[epoch]), lengths, 4))

    @parameterized.parameters("random", "group_by_length")
    def test_a_mixture_that_goes_on_at_another_place_of_its_order_has_no_end(self, sampling):
        order, _ = self.order(sampling=sampling)
        run = np.concatenate([order(epoch) for epoch in range(60)])
        self.assertLen(run, 60 * 16)
        shifted = shifted_order(order, 16, 19)
        for epoch in (0, 1, 2, 57):
            self.assertEqual(shifted(epoch).tolist(), run[19 + 16 * epoch :][:16].tolist())

    def test_proportions_come_before_rates(self):
        mixing = Mixing("equal", limit=3, proportions=(1.0, 7.0))
        order, rates = self.order(mixing)
        self.assertEqual(rates, {"a": 1.0, "b": 7.0})
        self.assert_orders(order, proportional_order([6, 10], [1, 7], 5), epochs=(0, 1, 4))
        self.assertEqual([int((order(epoch) < 6).sum()) for epoch in range(3)], [2, 2, 2])

    def test_a_data_set_that_is_never_drawn_gives_a_warning(self):
        with self.assertLogs("t5suite", "WARNING") as logs:
            order, _ = self.order(Mixing(proportions=(100.0, 1.0)))
        self.assertEqual([int((order(epoch) >= 6).sum()) for epoch in range(3)], [0, 0, 0])
        self.assertRegex("".join(logs.output), "--data_sampling_proportion 100 1: no example of b ")
        with self.assertNoLogs("t5suite", "WARNING"):
            order, _ = self.order(Mixing(proportions=(20.0, 1.0)))
        self.assertEqual([int((order(epoch) >= 6).sum()) for epoch in range(3)], [1, 1, 1])


class LoaderTest(parameterized.TestCase):
    def loader(self, **settings) -> EpochDataLoader:
        order = {0: np.array([2, 0, 1]), 4: np.array([1, 2, 0])}
        sampler = GlobalBatchSampler(order.__getitem__, 2)
        collate = lambda rows: {"ids": torch.tensor(rows), "names": [f"row {row}" for row in rows]}
        return EpochDataLoader([5, 6, 7], batch_sampler=sampler, collate_fn=collate, **settings)

    def test_batches_are_those_of_the_epoch_that_was_set(self):
        loader = self.loader()
        self.assertEqual([batch["ids"].tolist() for batch in loader], [[7, 5], [6]])
        loader.set_epoch(4)
        self.assertEqual([batch["ids"].tolist() for batch in loader], [[6, 7], [5]])

    def test_tensors_move_to_the_device_and_what_is_none_stays(self):
        for name in (None, "cpu", "meta"):
            device = None if name is None else torch.device(name)
            loader = self.loader(device=device, pin_memory=True)
            self.assertFalse(loader.pin_memory)  # only for a GPU
            batches = list(loader)
            self.assertEqual([batch["ids"].device.type for batch in batches], [name or "cpu"] * 2)
            self.assertEqual([batch["names"] for batch in batches], [["row 7", "row 5"], ["row 6"]])


def updates(batch_size, accumulation, world_size, n, epoch=0, order=None):
    """The rows of every update, as all ranks together take them."""
    order = order or shuffled_order(n, 3)
    ranks = []
    for rank in range(world_size):
        sampler = GlobalBatchSampler(order, batch_size, rank, world_size)
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
            self.assertEqual(updates(*cut, n, epoch), expected)


class PassedOverTest(parameterized.TestCase):
    @parameterized.product(passed=(0, 1, 4, 6), world_size=(1, 2))
    def test_the_batches_that_follow_are_those_of_a_whole_pass(self, passed, world_size):
        sampler = GlobalBatchSampler(shuffled_order(25, 0), 2, rank=world_size - 1, world_size=world_size)
        whole = list(sampler)
        sampler.pass_over(passed)
        self.assertEqual(list(sampler), [None] * passed + whole[passed:])
        self.assertEqual(list(sampler), whole, "the next pass is whole")

    def test_a_million_million_are_passed_over_without_making_them(self):
        class UnreadOrder:
            def __len__(self):
                return 10**13

            def __getitem__(self, places):
                raise AssertionError("an index was made")

        sampler = GlobalBatchSampler(lambda epoch: UnreadOrder(), 8)
        sampler.pass_over(1000)
        self.assertEqual(list(itertools.islice(sampler, 1000)), [None] * 1000)
