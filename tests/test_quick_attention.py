"""T5's bias and mask, put together once a stack, give transformers' own numbers."""

import copy

import pytest
import torch
from absl.testing import parameterized
from transformers import MT5Config, MT5ForConditionalGeneration, T5Config, T5ForConditionalGeneration, UMT5Config
from transformers.models.t5 import modeling_t5
from transformers.models.umt5.modeling_umt5 import UMT5ForConditionalGeneration

from t5suite.models.attention import quick
from t5suite.models.attention.quick import QuickT5Attention, merged, quicken_attention, slow_attention, stock_class
from t5suite.models.block_sparse import BlockSparseT5Attention
from t5suite.models.fast_masks import note_padding, ready_masks
from t5suite.models.packed_t5 import accept_packed_batches
from t5suite.models.t5_decoder import takes_apart
from tests.test_fast_masks import batch_of, trained

MODELS = {"t5": (T5Config, T5ForConditionalGeneration), "mt5": (MT5Config, MT5ForConditionalGeneration)}


def pair(implementation="sdpa", kind="t5", num_layers=3, **settings):
    """A model as transformers makes it, and its quick twin; without dropout."""
    torch.manual_seed(0)
    config_class, model_class = MODELS[kind]
    settings = {"dropout_rate": 0.0, "use_cache": False, **settings}
    config = config_class(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_heads=2, num_layers=num_layers, decoder_start_token_id=0,
        attn_implementation=implementation, **settings,
    )  # fmt: skip
    model = model_class(config).train()
    twin = copy.deepcopy(model)
    assert quicken_attention(twin) == 3 * num_layers
    return model, twin


def packed_batch():
    """Two rows of two examples each, the second with padding."""
    encoder = torch.tensor([[1, 1, 1, 2, 2, 2], [1, 1, 2, 2, 0, 0]])
    decoder = torch.tensor([[1, 1, 2, 2], [1, 2, 2, 0]])
    torch.manual_seed(1)
    return {
        "input_ids": torch.randint(3, 50, encoder.shape),
        "decoder_input_ids": torch.randint(3, 50, decoder.shape),
        "encoder_segment_ids": encoder,
        "decoder_segment_ids": decoder,
    }


class QuickAttentionTest(parameterized.TestCase):
    def check_equal(self, model, twin, batch, ready=lambda batch: batch):
        for stock, ours in zip(trained(model.double(), batch), trained(twin.double(), ready(batch)), strict=True):
            torch.testing.assert_close(ours, stock, rtol=1e-9, atol=1e-12)

    @parameterized.product(implementation=["sdpa", "eager"], kind=["t5", "mt5"], lengths=[(6, 6), (6, 3), (1, 2)])
    def test_logits_and_gradients_are_transformers_own(self, implementation, kind, lengths):
        self.check_equal(*pair(implementation, kind), batch_of(list(lengths)))

    @parameterized.parameters(((6, 6),), ((6, 3),))
    def test_masks_of_the_host_give_the_same(self, lengths):
        self.check_equal(*pair(), batch_of(list(lengths)), lambda batch: ready_masks(note_padding(batch)))

    @parameterized.parameters("sdpa", "eager")
    def test_packed_rows_give_the_same(self, implementation):
        model, twin = pair(implementation)
        for each in (model, twin):
            accept_packed_batches(each)
        self.check_equal(model, twin, packed_batch())

    @parameterized.parameters(True, False)
    def test_recomputed_layers_give_the_same(self, reentrant):
        model, twin = pair()
        twin.gradient_checkpointing_enable({"use_reentrant": reentrant})
        self.check_equal(model, twin, batch_of([6, 3]))

    def test_bias_and_mask_meet_once_a_stack(self):
        _, twin = pair()
        calls, plain = [], quick.merged
        quick.merged = lambda *args: calls.append(args) or plain(*args)
        try:
            twin(**batch_of([6, 3]))
        finally:
            quick.merged = plain
        # A stack's own attention, and the decoder's to the encoder, whose mask is made once, too.
        self.assertLen([args for args in calls if args[0] is not None], 2)
        self.assertLen([args for args in calls if args[0] is None], 1)

    def test_cross_attention_without_padding_has_no_mask(self):
        _, twin = pair()
        given, plain = [], torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = lambda *args, **kwargs: (
            given.append(args[3]) or plain(*args, **kwargs)
        )
        try:
            twin(**ready_masks(note_padding(batch_of([6, 6]))))
        finally:
            torch.nn.functional.scaled_dot_product_attention = plain
        self.assertEqual([mask is None for mask in given], [False] * 3 + [False, True] * 3)

    @parameterized.parameters("sdpa", "eager")
    def test_generation_writes_the_same(self, implementation):
        model, twin = pair(implementation)
        batch = batch_of([6, 3])
        del batch["decoder_input_ids"]
        texts = [each.eval().generate(**batch, max_new_tokens=8, num_beams=2).tolist() for each in (model, twin)]
        self.assertEqual(*texts)

    def test_attention_weights_are_still_told(self):
        model, twin = pair("eager")
        told = [each.eval()(**batch_of([6, 3]), output_attentions=True) for each in (model, twin)]
        for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
            for stock, ours in zip(told[0][name], told[1][name], strict=True):
                torch.testing.assert_close(ours, stock)

    def test_dropout_draws_what_it_drew(self):
        model, twin = pair(dropout_rate=0.3)
        found = []
        for each in (model, twin):
            torch.manual_seed(3)
            found.append(each(**batch_of([6, 3])).logits)
        torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)

    def test_half_precision_gives_the_bias_its_gradient(self):
        """Merged in bfloat16, the bias's gradient stays within that precision of transformers'."""
        model, twin = pair()
        found = []
        for each in (model, twin):
            with torch.autocast("cpu", torch.bfloat16):
                each(**batch_of([6, 3])).logits.float().square().mean().backward()
            found.append(each.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight.grad)
        self.assertEqual(found[1].dtype, torch.float32)
        self.assertLess(float((found[1] - found[0]).norm() / found[0].norm()), 0.02)

    def test_stacks_with_attention_of_the_user_s_stay_whole(self):
        model, _ = pair()
        attention = model.encoder.block[1].layer[0].SelfAttention
        model.encoder.block[1].layer[0].SelfAttention = BlockSparseT5Attention(attention, block_size=2)
        self.assertEqual(quicken_attention(model), 6)  # the decoder's
        self.assertIs(type(model.encoder.block[0].layer[0].SelfAttention), modeling_t5.T5Attention)

    def test_umt5_s_layers_keep_a_bias_each(self):
        config = UMT5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_heads=2, num_layers=2)
        self.assertEqual(quicken_attention(UMT5ForConditionalGeneration(config)), 0)

    def test_slow_again_is_transformers_own(self):
        _, twin = pair()
        self.assertTrue(takes_apart(twin))
        self.assertIs(stock_class(twin.encoder.block[0].layer[0].SelfAttention), modeling_t5.T5Attention)
        self.assertEqual(slow_attention(twin), 9)
        self.assertFalse(any(isinstance(module, QuickT5Attention) for module in twin.modules()))

    def test_a_causal_bias_hides_what_is_behind(self):
        bias = torch.arange(9.0).view(1, 1, 3, 3)
        seen = merged(bias, None, is_causal=True, dtype=torch.float32)[0, 0] > torch.finfo(torch.float32).min
        self.assertTrue(torch.equal(seen, torch.ones(3, 3).tril().bool()))

    @pytest.mark.slow
    def test_compiled_in_one_piece(self):
        """A graph for padded batches and one for unpadded, nothing broken."""
        _, twin = pair()
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph.forward

        compiled = torch.compile(twin, backend=backend, fullgraph=True)
        for lengths in ([6, 6], [6, 3], [6, 4]):
            batch = ready_masks(note_padding(batch_of(lengths)))
            torch.testing.assert_close(compiled(**batch).logits, twin(**batch).logits)
        self.assertLen(graphs, 2)
