"""`--dropout_rate 0` leaves nothing to chance: two forward passes in training agree, whatever the model's family."""

import torch
from absl.testing import absltest, parameterized
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from t5suite.models.configs import load_config, set_dropout

BART = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 64, "max_position_embeddings": 32}  # fmt: skip
BERT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 64}
# `{type: (class, shape and every dropout on)}`
MODELS = {
    "t5": (AutoModelForSeq2SeqLM, {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2,
                                   "vocab_size": 64}),
    "bart": (AutoModelForSeq2SeqLM, {**BART, "attention_dropout": 0.3, "activation_dropout": 0.3, "dropout": 0.3}),
    "pegasus": (AutoModelForSeq2SeqLM, {**BART, "attention_dropout": 0.3, "activation_dropout": 0.3}),
    "gpt2": (AutoModelForCausalLM, {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 64}),
    "gpt_neo": (AutoModelForCausalLM, {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "vocab_size": 64,
                                       "attention_types": [[["global"], 1]], "resid_dropout": 0.3,
                                       "embed_dropout": 0.3, "attention_dropout": 0.3}),
    "opt": (AutoModelForCausalLM, {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16,
                                   "vocab_size": 64, "word_embed_proj_dim": 16, "attention_dropout": 0.3}),
    "bert": (AutoModelForMaskedLM, BERT),
    "distilbert": (AutoModelForMaskedLM, {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16, "vocab_size": 64,
                                          "attention_dropout": 0.3}),
}  # fmt: skip


class DropoutOverrideTest(parameterized.TestCase):
    @parameterized.parameters(*MODELS)
    def test_a_rate_of_0_switches_every_dropout_off(self, kind):
        auto_class, settings = MODELS[kind]
        config = AutoConfig.for_model(kind, **settings)
        set_dropout(config, 0.0)
        torch.manual_seed(0)
        model = auto_class.from_config(config).train()
        ids = torch.arange(2, 26).reshape(2, 12)
        batch = {"input_ids": ids, **({"decoder_input_ids": ids} if config.is_encoder_decoder else {})}
        with torch.no_grad():
            self.assertTrue(torch.equal(model(**batch).logits, model(**batch).logits))

    def test_what_was_off_stays_off(self):
        config = load_config("bart", dropout_rate=0.2, from_scratch=True)
        self.assertEqual((config.dropout, config.attention_dropout, config.activation_dropout), (0.2, 0.0, 0.0))
        config = load_config("bart", "attention_dropout=0.1", dropout_rate=0.2, from_scratch=True)
        self.assertEqual((config.dropout, config.attention_dropout), (0.2, 0.2))


if __name__ == "__main__":
    absltest.main()
