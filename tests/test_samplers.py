"""Orders of an epoch, and which examples an update takes on any number of ranks."""

import itertools
import math

import numpy as np
from absl.testing import parameterized

from t5suite.data.batches.samplers import GlobalBatchSampler, length_grouped_order, rank_share, shuffled_order


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
            self.assertEqual(updates(*cut, n, epoch), expected)


class PassedOverTest(parameterized.TestCase):
    @parameterized.product(passed=(0, 1, 4, 6), world_size=(1, 2))
    def test_the_batches_that_follow_are_those_of_a_whole_pass(self, passed, world_size):
        sampler = GlobalBatchSampler(shuffled_order(25, 0), 2, 2, rank=world_size - 1, world_size=world_size)
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

        sampler = GlobalBatchSampler(lambda epoch: UnreadOrder(), 8, 1)
        sampler.pass_over(1000)
        self.assertEqual(list(itertools.islice(sampler, 1000)), [None] * 1000)
