"""Matrices in 8 or 4 bits under an adapter: what is kept so, what is trained, and what is refused."""

import functools
import importlib.util
import tempfile
from unittest import mock

import torch
from absl.testing import absltest, parameterized
from later_flags import later_wins

import fine_tune_t5
from t5suite.base.errors import ConfigError
from t5suite.models.adapter_files import is_adapter
from t5suite.models.loading import load_adapter, load_model, load_tokenizer
from t5suite.models.placement import KINDS, is_quantized, quantization_of

HAS_LIBRARY = importlib.util.find_spec("bitsandbytes") is not None
FAST = ["--max_train_samples", "32", "--max_eval_samples", "8", "--max_steps", "3", "--per_device_train_batch_size",
        "8", "--use_cpu", "--disable_tqdm", "True", "--eval_method", "score"]  # fmt: skip


@functools.cache
def base() -> str:
    folder, tokenizer = tempfile.mkdtemp(), load_tokenizer(None)
    torch.manual_seed(0)
    overrides = "d_model=64,d_kv=32,d_ff=128,num_layers=1,num_heads=2"
    load_model(tokenizer=tokenizer, config_overrides=overrides).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class QuantizationTest(parameterized.TestCase):
    @parameterized.parameters(*KINDS)
    def test_matrices_between_the_layers_shrink_and_answers_stay_near(self, kind):
        if not HAS_LIBRARY:
            self.skipTest("bitsandbytes is not installed")
        tokenizer = load_tokenizer(base())
        plain = load_model(base(), tokenizer=tokenizer).eval()
        model = load_model(base(), tokenizer=tokenizer, quantization=kind).eval()
        self.assertTrue(is_quantized(model))
        matrix = model.decoder.block[0].layer[0].SelfAttention.q.weight
        self.assertFalse(matrix.dtype.is_floating_point)
        self.assertEqual(model.shared.weight.dtype, torch.float32)
        ids = torch.tensor([[5, 6, 7, 1]])
        with torch.no_grad():
            one, other = (m(input_ids=ids, decoder_input_ids=ids).logits.flatten() for m in (plain, model))
        self.assertGreater(float(torch.corrcoef(torch.stack([one, other]))[0, 1]), 0.98)

    @parameterized.parameters(*KINDS)
    def test_lora_over_them_trains_and_its_adapter_loads_over_the_whole_model(self, kind):
        if not HAS_LIBRARY:
            self.skipTest("bitsandbytes is not installed")
        out = tempfile.mkdtemp()
        argv = ["--model_name_or_path", base(), f"--load_in_{kind}", "--adapter", "lora", "--output_dir", out]
        fine_tune_t5.main(later_wins([*FAST, *argv]))
        self.assertTrue(is_adapter(out))
        model = load_adapter(out, tokenizer=load_tokenizer(base()))
        trained = [p for name, p in model.named_parameters() if "lora_B" in name]
        self.assertTrue(any(p.abs().max() > 0 for p in trained))

    def test_without_an_adapter_they_are_refused(self):
        if not HAS_LIBRARY:
            self.skipTest("bitsandbytes is not installed")
        with self.assertRaisesRegex(ConfigError, "cannot be trained; add --adapter lora"):
            fine_tune_t5.main([*FAST, "--model_name_or_path", base(), "--load_in_4bit",
                               "--output_dir", tempfile.mkdtemp()])  # fmt: skip

    def test_what_cannot_be_is_refused_by_name(self):
        with self.assertRaisesRegex(ConfigError, "give one of them"):
            quantization_of(True, True)
        with (
            mock.patch("importlib.util.find_spec", return_value=None),
            self.assertRaisesRegex(ConfigError, r"--load_in_4bit .* pip install 't5suite\[quantization\]'"),
        ):
            quantization_of(False, True)
        with self.assertRaisesRegex(ConfigError, "these would be random"):
            load_model(None, tokenizer=load_tokenizer(None), quantization="4bit")
        self.assertIsNone(quantization_of(False, False))


if __name__ == "__main__":
    absltest.main()
