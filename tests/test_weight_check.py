"""One number for all weights: what changes it, and what ranks say of it."""

import random

import torch
from absl.testing import absltest, parameterized

from t5suite.base.errors import NumericsError
from t5suite.training.processes import weight_check
from t5suite.training.processes.ranks import Ranks
from t5suite.training.processes.weight_check import (
    check_agreement,
    check_weights,
    digest_tensors,
    disagreement,
    non_finite_weights,
    weights_digest,
)

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8)


def tensors(dtype=torch.float32):
    torch.manual_seed(0)
    return [(torch.randn(*shape) * 20).to(dtype) for shape in ((7, 5), (3,), (1,), (2, 3, 4))]


def reference_digest(values):
    """By the definition, with Python's integers."""
    total = 0
    for tensor in values:
        bits = tensor.contiguous().view(-1).view(weight_check.BITS[tensor.element_size()]).tolist()
        for start in range(0, len(bits), weight_check.CPU_CHUNK):
            part = sum(b * (2 * i + 1) for i, b in enumerate(bits[start : start + weight_check.CPU_CHUNK]))
            total = (total * weight_check.FACTOR + part) % (1 << 64)
    return total - (1 << 64) if total >= 1 << 63 else total


class FixedRanks(Ranks):
    """Ranks of which the others have said already what they will say."""

    def gather(self, value):
        return [value, *self.others.pop(0)]


class DigestTest(parameterized.TestCase):
    @parameterized.parameters(*TYPES)
    def test_it_is_what_its_definition_says(self, dtype):
        self.assertEqual(digest_tensors(tensors(dtype)), reference_digest(tensors(dtype)))

    def test_tensors_longer_than_a_chunk(self):
        long = [torch.randn(weight_check.CPU_CHUNK + 5)]
        self.assertEqual(digest_tensors(long), reference_digest(long))

    @parameterized.parameters(*TYPES)
    def test_any_flipped_bit_changes_it(self, dtype):
        rng, before = random.Random(0), digest_tensors(tensors(dtype))
        for _ in range(100):
            values = tensors(dtype)
            value = rng.choice(values)
            bits = value.view(-1).view(torch.uint8)
            bits[rng.randrange(len(bits))] ^= 1 << rng.randrange(8)
            self.assertNotEqual(digest_tensors(values), before)

    def test_swapped_values_and_swapped_tensors_change_it(self):
        values = tensors()
        before = digest_tensors(values)
        swapped = [value.clone() for value in values]
        swapped[0].view(-1)[[3, 17]] = values[0].view(-1)[[17, 3]]
        self.assertNotEqual(digest_tensors(swapped), before)
        self.assertNotEqual(digest_tensors(values[::-1]), before)

    def test_the_sign_of_zero_and_empty_models(self):
        self.assertNotEqual(digest_tensors([torch.tensor([0.0])]), digest_tensors([torch.tensor([-0.0])]))
        self.assertEqual(weights_digest(torch.nn.ReLU()), 0)

    def test_strides_do_not_count(self):
        value = torch.randn(4, 6)
        self.assertEqual(digest_tensors([value.t().contiguous().t()]), digest_tensors([value]))


class AgreementTest(parameterized.TestCase):
    def test_a_lone_process_agrees(self):
        check_agreement(torch.nn.Linear(2, 2), Ranks(), 1)

    def test_the_rank_that_differs_is_named_with_its_weights(self):
        model = torch.nn.Linear(2, 2)
        good = weights_digest(model)
        ranks = FixedRanks(0, 3)
        parts = [digest_tensors([p.detach()]) for p in model.parameters()]
        ranks.others = [[good, good + 1], [parts, [parts[0], parts[1] + 1]]]
        with self.assertRaisesRegex(
            NumericsError, r"step 7: the weights of rank 2 differ from those of ranks 0 and 1 \(bias\)"
        ):
            check_agreement(model, ranks, 7)

    def test_without_a_majority_all_are_named(self):
        self.assertIn(
            "the weights of ranks 0 and 1 differ, and no value has a majority", disagreement([1, 2], ["w"], 3)
        )

    def test_equal_digests_are_agreement(self):
        model = torch.nn.Linear(2, 2)
        ranks = FixedRanks(0, 2)
        ranks.others = [[weights_digest(model)]]
        check_agreement(model, ranks, 1)


class CheckWeightsTest(parameterized.TestCase):
    @parameterized.parameters(float("nan"), float("inf"), float("-inf"))
    def test_a_weight_that_is_not_finite_is_named(self, value):
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
        check_weights(model, 5)
        with torch.no_grad():
            model[1].weight[1, 2] = value
        self.assertEqual(non_finite_weights(model), [("1.weight", 1, 6)])
        with self.assertRaisesRegex(
            NumericsError, r"step 5: weights are not finite: 1.weight \(1 of 6\); they are not saved"
        ):
            check_weights(model, 5)

    def test_a_large_weight_is_finite(self):
        model = torch.nn.Linear(2, 2)
        with torch.no_grad():
            model.weight.fill_(3e38)
        check_weights(model, 1)

    def test_all_ranks_learn_what_one_found(self):
        ranks = FixedRanks(0, 2)
        ranks.others = [[["bias (1 of 2)"]]]
        with self.assertRaisesRegex(NumericsError, "on rank 1: bias"):
            check_weights(torch.nn.Linear(2, 2), 5, ranks)


if __name__ == "__main__":
    absltest.main()
