"""Masks that the host makes ready change no number of a T5."""

import torch
from absl.testing import parameterized
from transformers import T5Config, T5ForConditionalGeneration

from t5suite.models.fast_masks import note_padding, ready_masks, takes_ready_masks
from t5suite.training.steps import leave_out_cudnn_attention


def tiny(implementation="sdpa"):
    """A random T5 of two layers, in training mode without dropout."""
    torch.manual_seed(0)
    config = T5Config(
        vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_heads=2, num_layers=2, dropout_rate=0.0,
        attn_implementation=implementation, decoder_start_token_id=0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config).train()


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


class FastMasksTest(parameterized.TestCase):
    @parameterized.parameters(([6, 6],), ([6, 3],), ([1, 2],))
    def test_numbers_stay_the_same_to_the_bit(self, lengths):
        model, batch = tiny(), batch_of(lengths)
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

    def test_a_mask_that_hides_nothing_is_left_out(self):
        full, padded = note_padding(batch_of([6, 6])), note_padding(batch_of([6, 3]))
        self.assertIsNone(ready_masks(full)["attention_mask"])
        self.assertEqual(ready_masks(full, drops_full=False)["attention_mask"].shape, (2, 1, 1, 6))
        self.assertEqual(ready_masks(padded)["attention_mask"].shape, (2, 1, 1, 6))

    def test_other_batches_stay_as_they_are(self):
        for batch in ({"input_ids": torch.ones(2, 3)}, {**batch_of([6, 3]), "encoder_segment_ids": torch.ones(2, 6)}):
            self.assertEqual(ready_masks(note_padding(batch)).keys(), batch.keys())

    @parameterized.parameters(("sdpa", True), ("eager", False))
    def test_only_sdpa_takes_booleans(self, implementation, takes):
        self.assertEqual(takes_ready_masks(tiny(implementation)), takes)


class AttentionKernelsTest(parameterized.TestCase):
    @parameterized.parameters(("cuda", False), ("cpu", True))
    def test_cudnn_s_attention_is_left_out_on_gpus(self, device, enabled):
        before = torch.backends.cuda.cudnn_sdp_enabled()
        try:
            torch.backends.cuda.enable_cudnn_sdp(True)
            leave_out_cudnn_attention(torch.device(device))
            self.assertEqual(torch.backends.cuda.cudnn_sdp_enabled(), enabled)
        finally:
            torch.backends.cuda.enable_cudnn_sdp(before)
