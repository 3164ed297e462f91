"""T5's attention: quick in evaluation with transformers' own numbers, masks of the host, and cuDNN left out."""

import copy

import torch
from absl.testing import parameterized
from transformers import MT5Config, MT5ForConditionalGeneration, T5Config, T5ForConditionalGeneration, UMT5Config
from transformers.models.t5 import modeling_t5
from transformers.models.umt5.modeling_umt5 import UMT5ForConditionalGeneration

from t5suite.models import attention
from t5suite.models.attention import (
    QuickT5Attention,
    accept_packed_batches,
    merged,
    note_padding,
    quicken_attention,
    ready_masks,
    slow_attention,
    stock_class,
    takes_ready_masks,
)
from t5suite.models.block_sparse import BlockSparseT5Attention
from t5suite.models.t5_decoder import takes_apart
from t5suite.training.run import leave_out_cudnn_attention

MODELS = {"t5": (T5Config, T5ForConditionalGeneration), "mt5": (MT5Config, MT5ForConditionalGeneration)}
PACKED = {
    "encoder_segment_ids": torch.tensor([[1, 1, 1, 2, 2, 2], [1, 1, 2, 2, 0, 0]]),
    "decoder_segment_ids": torch.tensor([[1, 1, 2, 2], [1, 2, 2, 0]]),
}


def tiny(implementation="sdpa", kind="t5", **settings):
    """A random T5 of two layers, in training mode without dropout."""
    torch.manual_seed(0)
    config_class, model_class = MODELS[kind]
    settings = {"dropout_rate": 0.0, "use_cache": False, **settings}
    config = config_class(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_heads=2, num_layers=2, decoder_start_token_id=0,
        attn_implementation=implementation, **settings,
    )  # fmt: skip
    return model_class(config).train()


def pair(implementation="sdpa", kind="t5", **settings):
    """A model as transformers makes it, and its quick twin."""
    model = tiny(implementation, kind, **settings)
    twin = copy.deepcopy(model)
    assert quicken_attention(twin) == 6
    return model, twin


def batch_of(lengths, width=6):
    """Random ids, padded behind their ends."""
    torch.manual_seed(1)
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    ids = torch.randint(3, 50, mask.shape) * mask
    return {
        "input_ids": ids,
        "attention_mask": mask.long(),
        "decoder_input_ids": torch.randint(3, 50, (len(lengths), 4)),
    }


def trained(model, batch):
    """Logits and gradients."""
    model.zero_grad()
    logits = model(**batch).logits
    logits.square().mean().backward()
    return [logits.detach(), *[p.grad.clone() for p in model.parameters()]]


class QuickAttentionTest(parameterized.TestCase):
    def test_evaluation_gives_transformers_own_numbers(self):
        packed = {**batch_of([6, 6]), **PACKED}
        del packed["attention_mask"]
        for kind in MODELS:
            model, twin = (each.double().eval() for each in pair(kind=kind))
            for each in (model, twin):
                accept_packed_batches(each)
            batches = [*map(batch_of, ([6, 6], [6, 3], [1, 2])), packed]
            for batch in [*batches, *(ready_masks(note_padding(batch)) for batch in batches)]:
                for stock, ours in zip(trained(model, batch), trained(twin, batch), strict=True):
                    torch.testing.assert_close(ours, stock, rtol=1e-9, atol=1e-12)

    def test_training_is_transformers_own_to_the_bit(self):
        model, twin = pair(dropout_rate=0.3)
        found = []
        for each in (model, twin):
            torch.manual_seed(3)
            found.append(trained(each, batch_of([6, 3])))
        self.assertTrue(all(map(torch.equal, *found)))

    def test_bias_and_mask_meet_once_a_stack(self):
        _, twin = pair()
        calls, plain = [], attention.merged
        attention.merged = lambda *args: calls.append(args) or plain(*args)
        try:
            twin.eval()(**batch_of([6, 3]))
        finally:
            attention.merged = plain
        # A stack's own attention, and the decoder's to the encoder, whose mask is made once, too.
        self.assertLen([args for args in calls if args[0] is not None], 2)
        self.assertLen([args for args in calls if args[0] is None], 1)

    def test_generation_writes_the_same(self):
        model, twin = (each.eval() for each in pair())
        batch = batch_of([6, 3])
        del batch["decoder_input_ids"]
        self.assertEqual(*(each.generate(**batch, max_new_tokens=8, num_beams=2).tolist() for each in (model, twin)))

    def test_eager_tells_attention_weights(self):
        model, twin = pair("eager")
        told = [each.eval()(**batch_of([6, 3]), output_attentions=True) for each in (model, twin)]
        for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
            for stock, ours in zip(told[0][name], told[1][name], strict=True):
                torch.testing.assert_close(ours, stock)

    def test_stacks_with_attention_of_the_user_s_stay_whole(self):
        model, _ = pair()
        attention = model.encoder.block[1].layer[0].SelfAttention
        model.encoder.block[1].layer[0].SelfAttention = BlockSparseT5Attention(attention, block_size=2)
        self.assertEqual(quicken_attention(model), 4)  # the decoder's
        self.assertIs(type(model.encoder.block[0].layer[0].SelfAttention), modeling_t5.T5Attention)

    def test_umt5_s_layers_keep_a_bias_each(self):
        config = UMT5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_heads=2, num_layers=2)
        self.assertEqual(quicken_attention(UMT5ForConditionalGeneration(config)), 0)

    def test_slow_again_is_transformers_own(self):
        _, twin = pair()
        self.assertTrue(takes_apart(twin))
        self.assertIs(stock_class(twin.encoder.block[0].layer[0].SelfAttention), modeling_t5.T5Attention)
        self.assertEqual(slow_attention(twin), 6)
        self.assertFalse(any(isinstance(module, QuickT5Attention) for module in twin.modules()))

    def test_a_causal_bias_hides_what_is_behind(self):
        bias = torch.arange(9.0).view(1, 1, 3, 3)
        seen = merged(bias, None, is_causal=True, dtype=torch.float32)[0, 0] > torch.finfo(torch.float32).min
        self.assertTrue(torch.equal(seen, torch.ones(3, 3).tril().bool()))


class FastMasksTest(parameterized.TestCase):
    def test_numbers_stay_the_same_to_the_bit(self):
        model = tiny()
        for lengths in ([6, 6], [6, 3], [1, 2]):
            batch = batch_of(lengths)
            noted = note_padding(batch)
            self.assertEqual(noted["is_unpadded"], min(lengths) == 6)
            for drops in (True, False):
                for plain, ready in zip(trained(model, batch), trained(model, ready_masks(noted, drops)), strict=True):
                    self.assertTrue(torch.equal(plain, ready))

    def test_nobody_looks_at_the_mask(self):
        model, noted = tiny(), [note_padding(batch_of(lengths)) for lengths in ([6, 6], [6, 3])]
        plain = torch.Tensor.__bool__
        try:
            torch.Tensor.__bool__ = lambda tensor: self.fail("a value was asked of a tensor")
            for batch in noted:
                model(**ready_masks(batch))
        finally:
            torch.Tensor.__bool__ = plain

    def test_other_batches_stay_as_they_are(self):
        for batch in ({"input_ids": torch.ones(2, 3)}, {**batch_of([6, 3]), "encoder_segment_ids": torch.ones(2, 6)}):
            self.assertEqual(ready_masks(note_padding(batch)).keys(), batch.keys())
        self.assertTrue(takes_ready_masks(tiny()))
        self.assertFalse(takes_ready_masks(tiny("eager")))


class CudnnTest(parameterized.TestCase):
    @parameterized.parameters(("cuda", False), ("cpu", True))
    def test_cudnn_s_attention_is_left_out_on_gpus(self, device, enabled):
        before = torch.backends.cuda.cudnn_sdp_enabled()
        try:
            torch.backends.cuda.enable_cudnn_sdp(True)
            leave_out_cudnn_attention(torch.device(device))
            self.assertEqual(torch.backends.cuda.cudnn_sdp_enabled(), enabled)
        finally:
            torch.backends.cuda.enable_cudnn_sdp(before)
