"""Dropout by 16-bit numbers obeys dropout's law, and is torch's own wherever it must be."""

import copy

import torch
from absl.testing import parameterized
from torch.utils.checkpoint import checkpoint

from t5suite.models.quick_dropout import QuickDropout, dropped, quicken_dropout


class QuickDropoutTest(parameterized.TestCase):
    @parameterized.parameters(0.1, 0.5, 0.9, 1e-4)
    def test_as_many_elements_as_asked_for_are_dropped_and_the_mean_stays(self, p):
        torch.manual_seed(0)
        n = 400_000
        output = dropped(torch.ones(4, n // 4), p)
        zeros = output.eq(0).sum().item()
        deviation = (n * p * (1 - p)) ** 0.5
        self.assertAlmostEqual(zeros, n * p, delta=5 * deviation + n / 65536)
        scale = output.max().item()
        self.assertAlmostEqual(scale, 1 / (1 - p), delta=2e-5 / (1 - p) ** 2)
        self.assertTrue((output.eq(0) | output.eq(scale)).all())

    def test_elements_are_dropped_independently(self):
        torch.manual_seed(0)
        zeros = dropped(torch.ones(20_000, 8), 0.5).eq(0).double()
        correlation = torch.corrcoef(zeros.T) - torch.eye(8)  # neighbours come from one random number
        self.assertLess(correlation.abs().max(), 5 / 20_000**0.5)

    @parameterized.parameters((), (1,), (7,), (3, 5), (2, 3, 4))
    def test_shapes_and_kinds_of_numbers_stay(self, *shape):
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            output = dropped(torch.ones(shape, dtype=dtype), 0.25)
            self.assertEqual((output.shape, output.dtype), (torch.Size(shape), dtype))

    def test_a_rounded_type_drops_as_many(self):
        torch.manual_seed(0)
        share = dropped(torch.ones(400_000, dtype=torch.bfloat16), 0.001).eq(0).double().mean().item()
        self.assertAlmostEqual(share, 0.001, delta=5 * (0.001 / 400_000) ** 0.5)

    def test_gradients_are_those_of_the_mask(self):
        x = torch.ones(1000, requires_grad=True)
        output = dropped(x, 0.3)
        output.sum().backward()
        self.assertTrue(torch.equal(x.grad, output.detach()))

    def test_the_generator_decides_and_a_recomputed_layer_draws_the_same(self):
        layer = torch.nn.Sequential(torch.nn.Linear(16, 16), QuickDropout(0.5))
        x = torch.randn(8, 16)
        grads = []
        for recomputed in (False, True):
            torch.manual_seed(3)
            twin = copy.deepcopy(layer)
            output = checkpoint(twin, x, use_reentrant=False) if recomputed else twin(x)
            output.square().sum().backward()
            grads.append((twin[0].weight.grad, torch.rand(2)))
        self.assertTrue(torch.equal(grads[0][0], grads[1][0]))
        self.assertTrue(torch.equal(grads[0][1], grads[1][1]))

    def test_evaluation_nothing_and_everything_are_torchs(self):
        x = torch.randn(50)
        self.assertIs(QuickDropout(0.5).eval()(x), x)
        self.assertTrue(torch.equal(QuickDropout(0.0)(x), x))
        self.assertTrue(QuickDropout(1.0)(x).eq(0).all())

    def test_every_dropout_of_a_model_is_quickened_once(self):
        model = torch.nn.Sequential(
            torch.nn.Dropout(0.1), torch.nn.Sequential(torch.nn.Dropout(0.2)), torch.nn.Linear(1, 1)
        )
        self.assertEqual(quicken_dropout(model), 2)
        self.assertEqual(quicken_dropout(model), 0)
        self.assertEqual([model[0].p, model[1][0].p], [0.1, 0.2])
        self.assertIsInstance(model[1][0], QuickDropout)
