"""Linear layers of one input are one product in a compiled graph, and nothing else is."""

import guarded_trainer
import pytest
import torch
from absl.testing import absltest, parameterized
from torch import nn
from torch._inductor import config
from torch._inductor.utils import fresh_cache
from transformers import T5Config, T5ForConditionalGeneration

from t5suite.models.joined_products import LINEAR, JoinProducts, join_products

RELATIVE = 2e-6


class Traced:
    """A backend that joins, counts products and computes with autograd as it is."""

    def __init__(self, joins=True):
        self.joins, self.products = joins, 0

    def __call__(self, module, inputs):
        if self.joins:
            JoinProducts()(module.graph)
            module.graph.lint()
            module.recompile()
        self.products += sum(node.target in LINEAR for node in module.graph.nodes)
        return module


def tiny_t5(layers=2):
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=64, d_model=16, d_kv=4, d_ff=24, num_heads=4, num_layers=layers, dropout_rate=0.0,
        feed_forward_proj="gated-gelu", decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


class Watched(JoinProducts):
    """Notes how many products are left."""

    def __init__(self, seen):
        self.seen = seen

    def __call__(self, graph):
        super().__call__(graph)
        self.seen.append(sum(node.target in LINEAR for node in graph.nodes))


class Layers(nn.Module):
    """Two linear layers of one input, and something done between them."""

    def __init__(self, between=lambda x, y: x, bias=True, after=lambda y: y):
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(4, 3, bias=bias), nn.Linear(4, 5, bias=bias)
        self.between, self.after = between, after

    def forward(self, x):
        x = x * 1
        y = self.after(self.one(x))
        return y.sum() + self.two(self.between(x, y)).square().sum()


def results(module, joins, *args, **kwargs):
    """`(loss, gradients, products)`, compiled."""
    torch._dynamo.reset()
    traced = Traced(joins)
    module.zero_grad()
    loss = torch.compile(module, backend=traced)(*args, **kwargs)
    loss = loss if torch.is_tensor(loss) else loss.logits.square().mean()
    if loss.requires_grad:
        loss.backward()
    return loss.detach(), [p.grad.clone() for p in module.parameters() if p.grad is not None], traced.products


class JoinedProductsTest(parameterized.TestCase):
    def assert_same(self, one, other):
        for a, b in zip([one[0], *one[1]], [other[0], *other[1]], strict=True):
            self.assertLess(float((a - b).norm() / a.norm().clamp(min=1e-12)), RELATIVE)

    def test_a_t5_computes_the_same_with_fewer_products(self):
        batch = {"input_ids": torch.arange(3, 19).view(2, 8), "decoder_input_ids": torch.arange(6).view(2, 3)}
        model = tiny_t5()
        plain, joined = results(model, False, **batch), results(model, True, **batch)
        self.assert_same(plain, joined)
        # An encoder layer: 7 -> 4. A decoder layer: 11 -> 6, and the keys and values of all of them in one; the head.
        self.assertEqual((plain[2], joined[2]), (2 * 7 + 2 * 11 + 1, 2 * 4 + 2 * 6 + 1 + 1))

    @parameterized.parameters(True, False)
    def test_layers_are_joined_with_their_biases(self, bias):
        module, x = Layers(bias=bias), torch.randn(2, 4)
        plain, joined = results(module, False, x), results(module, True, x)
        self.assert_same(plain, joined)
        self.assertEqual(joined[2], 1)

    @parameterized.named_parameters(
        ("another_input", lambda x, y: x + 1, lambda y: y),
        ("an_input_that_is_written_into", lambda x, y: x.add_(1), lambda y: y),
        ("a_part_of_it", lambda x, y: (x.view(-1).mul_(2), x)[1], lambda y: y),
        ("a_result_that_is_written_into", lambda x, y: x, lambda y: y.mul_(2)),
    )
    def test_what_may_differ_is_not_joined(self, between, after):
        # Frozen: autograd itself refuses to have what it keeps for gradients written into.
        module, x = Layers(between, after=after).requires_grad_(False), torch.randn(2, 4)
        plain, joined = results(module, False, x), results(module, True, x)
        self.assert_same(plain, joined)
        self.assertEqual(joined[2], 2)

    def test_frozen_weights_are_joined_with_frozen_ones_alone(self):
        module = Layers()
        module.one.weight.requires_grad_(False)
        self.assertEqual(results(module, True, torch.randn(2, 4))[2], 2)

    def test_two_kinds_of_autocast_are_two_products(self):
        def between(x, y):
            return x

        class Mixed(Layers):
            def forward(self, x):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    y = self.one(x)
                return y.float().sum() + self.two(x).sum()

        self.assertEqual(results(Mixed(between), True, torch.randn(2, 4))[2], 2)

    def test_passes_of_others_stay(self):
        before = config.pre_grad_custom_pass
        try:
            other = lambda graph: None
            config.pre_grad_custom_pass = other
            join_products()
            join_products()
            self.assertLen(config.pre_grad_custom_pass, 2)
            join_products(False)
            self.assertEqual(config.pre_grad_custom_pass, [other])
            config.pre_grad_custom_pass = None
            join_products(False)
            self.assertIsNone(config.pre_grad_custom_pass)
        finally:
            config.pre_grad_custom_pass = before

    @parameterized.parameters(
        ({"bf16": True}, True), ({}, False), ({"bf16": True, "join_products": False}, False),
    )  # fmt: skip
    def test_the_trainer_joins_under_autocast_alone(self, settings, joins):
        before = config.pre_grad_custom_pass
        try:
            guarded_trainer.make(torch_compile=True, **settings)
            self.assertEqual(any(isinstance(p, JoinProducts) for p in config.pre_grad_custom_pass or ()), joins)
        finally:
            config.pre_grad_custom_pass = before

    @pytest.mark.slow
    def test_inductor_computes_the_same_from_a_joined_graph(self):
        module, x = Layers(), torch.randn(2, 4)
        plain = results(module, False, x)
        module.zero_grad()
        seen = []
        options = {"pre_grad_custom_pass": Watched(seen)}
        torch._dynamo.reset()
        with fresh_cache():
            loss = torch.compile(module, options=options)(x)
            loss.backward()
        self.assert_same(plain, (loss.detach(), [p.grad for p in module.parameters()]))
        self.assertEqual(seen, [1])


if __name__ == "__main__":
    absltest.main()
