"""Laws of attention that a configuration names: where it is put, what it computes, that it is saved and loaded."""

import json
import tempfile
from pathlib import Path

import torch
from absl.testing import absltest, parameterized
from transformers import T5ForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5Attention

import fine_tune_t5
from t5suite.base.errors import ConfigError
from t5suite.models.block_sparse import BlockSparseT5Attention, block_pattern
from t5suite.models.loading import BUNDLED_MODEL, load_model, load_tokenizer

CLASS = "t5suite.models.block_sparse:BlockSparseT5Attention"


class ScaledAttention(T5Attention):
    """With a parameter of its own, to be saved and loaded."""

    def __init__(self, attention, start: float = 1.0):
        torch.nn.Module.__init__(self)
        self.__dict__.update(attention.__dict__)
        self.scale = torch.nn.Parameter(torch.full((), start))

    def forward(self, hidden_states, **kwargs):
        output, *rest = super().forward(hidden_states, **kwargs)
        return (output * self.scale, *rest)


def config_file(**setting) -> str:
    """The bundled model's configuration with a custom attention."""
    settings = json.loads((Path(BUNDLED_MODEL) / "config.json").read_text())
    path = Path(tempfile.mkdtemp()) / "config.json"
    path.write_text(json.dumps({**settings, "dropout_rate": 0.0, "custom_attention": setting}))
    return str(path)


def make(path: str, **settings):
    torch.manual_seed(0)
    return load_model(config_name=path, tokenizer=load_tokenizer(None), **settings).eval()


def batch(length: int = 24):
    ids = torch.randint(5, 200, (2, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": ids[:, :4]}


class CustomAttentionTest(parameterized.TestCase):
    @parameterized.parameters("sdpa", "eager")
    def test_blocks_that_hold_the_whole_text_are_plain_attention(self, kernels):
        plain, sparse = make(config_file_plain()), make(config_file(**{"class": CLASS}), attn_implementation=kernels)
        self.assertIsInstance(sparse.encoder.block[0].layer[0].SelfAttention, BlockSparseT5Attention)
        self.assertNotIsInstance(sparse.decoder.block[0].layer[0].SelfAttention, BlockSparseT5Attention)
        self.assertEqual(plain.state_dict().keys(), sparse.state_dict().keys())
        sparse.load_state_dict(plain.state_dict())
        with torch.no_grad():
            torch.testing.assert_close(sparse(**batch()).logits, plain(**batch()).logits, rtol=1e-5, atol=1e-5)

    @parameterized.parameters("sdpa", "eager")
    def test_what_is_outside_the_pattern_has_no_influence(self, kernels):
        parameters = {"block_size": 4, "num_window_blocks": 0, "num_global_blocks": 0}
        model = make(config_file(**{"class": CLASS, "parameters": parameters}), attn_implementation=kernels)
        given = batch()
        with torch.no_grad():
            before = model.encoder(given["input_ids"], given["attention_mask"]).last_hidden_state
            given["input_ids"][:, 4:8] = 7
            after = model.encoder(given["input_ids"], given["attention_mask"]).last_hidden_state
        changed = (before != after).any(dim=-1)[0].tolist()
        self.assertEqual([i for i, differs in enumerate(changed) if differs], [4, 5, 6, 7])
        self.assertTrue(bool(after.isfinite().all()))

    def test_the_pattern_is_window_and_global_blocks(self):
        seen = block_pattern(10, 2, 1, 1)
        by_hand = [[abs(i // 2 - j // 2) <= 1 or i < 2 or j < 2 for j in range(10)] for i in range(10)]
        self.assertEqual(seen.tolist(), by_hand)

    def test_it_is_trained_saved_and_loaded_with_parameters_of_its_own(self):
        path = config_file(**{"class": "test_custom_attention:ScaledAttention", "parameters": {"start": 0.5}})
        folder = tempfile.mkdtemp() + "/run"
        fine_tune_t5.main([
            "--config_name", path, "--trust_remote_code", "--tokenizer_name", BUNDLED_MODEL, "--max_train_samples", "32",
            "--max_eval_samples", "4", "--max_steps", "2", "--per_device_train_batch_size", "8", "--optimizer", "adamw",
            "--learning_rate", "1e-2", "--output_dir", folder, "--use_cpu", "--disable_tqdm", "True",
        ])  # fmt: skip
        tokenizer = load_tokenizer(folder)
        loaded = load_model(folder, tokenizer=tokenizer, trust_remote_code=True)
        scales = [m.scale.item() for m in loaded.modules() if type(m).__name__ == "ScaledAttention"]
        self.assertLen(scales, loaded.config.num_layers)
        self.assertTrue(all(0.4 < scale < 0.6 and scale != 0.5 for scale in scales), scales)
        with self.assertRaisesRegex(ConfigError, "trust_remote_code"):
            load_model(folder, tokenizer=tokenizer)

    def test_transformers_is_as_it_was_afterwards(self):
        make(config_file(**{"class": CLASS}))
        plain = T5ForConditionalGeneration(make(config_file_plain()).config)
        self.assertIs(type(plain.encoder.block[0].layer[0].SelfAttention), T5Attention)

    @parameterized.parameters(
        (
            {"class": "t5suite.models.block_sparse:BlockSparse"},
            "has no 'BlockSparse'; did you mean BlockSparseT5Attention",
        ),
        ({"class": "subprocess:Popen", "parameters": {"args": "true"}}, "trust_remote_code"),
        ({"class": "t5suite.models.block_sparse:block_pattern"}, "no torch.nn.Module"),
        ({"class": CLASS, "parameters": {"block_sise": 4}}, "did you mean block_size"),
        ({"class": CLASS, "parameters": {"block_size": 0}}, "from 1 on"),
        ({"class": CLASS, "modules": r"encoder\.layers\..*"}, "there are .*encoder.block.0.layer.0.SelfAttention"),
        ({"class": CLASS, "modules": r"decoder\.block\.\d+\.layer\.0\.SelfAttention"}, "encoder alone"),
        ({"class": CLASS, "modules": "("}, "no regular expression"),
        ({"klass": CLASS}, "must be a table"),
        ({"class": CLASS, "module": "x"}, "did you mean modules"),
    )
    def test_a_wrong_setting_says_what_is_right(self, setting, message):
        with self.assertRaisesRegex(ConfigError, message):
            make(config_file(**setting))


def config_file_plain() -> str:
    settings = json.loads((Path(BUNDLED_MODEL) / "config.json").read_text())
    path = Path(tempfile.mkdtemp()) / "config.json"
    path.write_text(json.dumps({**settings, "dropout_rate": 0.0}))
    return str(path)


if __name__ == "__main__":
    absltest.main()
