"""Gradient checkpointing: the same loss and the same gradients, in every family, packed and with frozen embeddings."""

import tempfile

import torch
from absl.testing import absltest, parameterized
from safetensors.torch import load_file
from test_freezing import model_of, run

from t5suite.models.freezing import freeze
from t5suite.training.losses import token_loss
from t5suite.training.memory_summary import checkpoint_layers


def batch_of(model, packed: bool = False) -> dict:
    ids = torch.arange(24).reshape(2, 12) % 9 + 3
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    batch["attention_mask"][1, 8:] = 0
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = ids[:, :6]
    if packed:
        del batch["attention_mask"]
        batch["encoder_segment_ids"] = torch.tensor([[1] * 7 + [2] * 5] * 2)
        batch["decoder_segment_ids"] = torch.tensor([[1] * 4 + [2] * 2] * 2)
    return batch


def gradients(model, packed: bool = False):
    """The loss and `{name: gradient}` of one batch, dropout drawn from the same numbers."""
    torch.manual_seed(7)
    labels = batch_of(model).get("decoder_input_ids", batch_of(model)["input_ids"])
    loss = token_loss(model.train()(**batch_of(model, packed)).logits, labels, labels.numel())
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


class GradientCheckpointingTest(parameterized.TestCase):
    @parameterized.product(name=["t5", "t5_v1_1", "bart", "gpt2", "bert"], parts=[None, "embeddings"])
    def test_loss_and_gradients_are_the_same(self, name, parts):
        plain, again = model_of(name), model_of(name)
        for model in (plain, again):
            freeze(model, parts)
        checkpoint_layers(again)
        self.assert_same(gradients(plain), gradients(again))

    def test_packed_rows_too(self):
        plain, again = model_of("t5"), model_of("t5")
        checkpoint_layers(again)
        self.assert_same(gradients(plain, packed=True), gradients(again, packed=True))

    def test_a_run_with_it_ends_with_the_same_weights(self):
        flags = ["--dropout_rate", "0.1", "--gradient_accumulation_steps", "2", "--max_steps", "2"]
        plain, again = run(*flags, out=tempfile.mkdtemp()), run(*flags, "--gradient_checkpointing")
        one, other = (load_file(out / "model.safetensors") for out in (plain, again))
        for name, tensor in one.items():
            torch.testing.assert_close(tensor, other[name], rtol=1e-6, atol=1e-7)

    def assert_same(self, one, other):
        torch.testing.assert_close(one[0], other[0], rtol=1e-6, atol=0)
        self.assertEqual(one[1].keys(), other[1].keys())
        for name, gradient in one[1].items():
            torch.testing.assert_close(gradient, other[1][name], rtol=1e-5, atol=1e-7, msg=name)


if __name__ == "__main__":
    absltest.main()
