"""Configurations, families, presets, output layers, first weights and vocabularies."""

import json
import logging
import math
import os
import tempfile
from pathlib import Path
from unittest import mock

import huggingface_hub
import pytest
import shared_data
import torch
import transformers
from absl.testing import parameterized
from model_types import configured
from safetensors.torch import load_file
from support import folder, later_wins
from tokenizers import Tokenizer
from tokenizers.models import Unigram

import pre_train_t5
from t5suite.data.objectives import sentinel_ids
from t5suite.testing import (
    bundled_model,
    cli_output,
    exits_with,
    new_config,
    run_cli,
    save_model,
    tiny_model,
    tiny_tokenizer,
    tiny_tuner,
)

TINY = "d_model=32,d_kv=8,d_ff=48,num_layers=2,num_heads=2"
TINY_UNTIED = f"{TINY},tie_word_embeddings=False,feed_forward_proj=gated-gelu"
SMALL_ENCODER = "num_hidden_layers=2,hidden_size=64,num_attention_heads=2,intermediate_size=128"
# Every model type that is tried from scratch -> its family and a small size.
MODEL_TYPES = {
    "t5": ("seq2seq", TINY),
    "bart": ("seq2seq",
        "d_model=32,encoder_layers=1,decoder_layers=1,encoder_attention_heads=2,decoder_attention_heads=2"),
    "bert": ("masked", SMALL_ENCODER),
    "gpt2": ("causal", "n_layer=2,n_embd=64,n_head=2"),
    "albert": ("masked", SMALL_ENCODER),
    "distilbert": ("masked", "n_layers=2,dim=64,n_heads=2,hidden_dim=128"),
    "modernbert": ("masked", SMALL_ENCODER),
    "roberta": ("masked", SMALL_ENCODER),
    "roformer": ("masked", SMALL_ENCODER),
    "big_bird": ("masked", f"{SMALL_ENCODER},block_size=8,num_random_blocks=1"),
    "electra": ("masked", SMALL_ENCODER),
    "llama": ("causal", f"{SMALL_ENCODER},num_key_value_heads=2"),
    "gpt_neox": ("causal", SMALL_ENCODER),
    "mt5": ("seq2seq", TINY),
    "umt5": ("seq2seq", TINY),
}  # fmt: skip


# The quick tests have these, of each family and with settings of their own; the slow ones the others.
TELLING_TYPES = ("t5", "bart", "bert", "gpt2", "albert", "distilbert", "modernbert")
OTHER_TYPES = tuple(name for name in MODEL_TYPES if name not in TELLING_TYPES)
# Sizes apart, a family's presets are one.
TELLING_PRESETS = ("t5-small", "t5-v1_1-small", "mt5-small", "mini")
AUTO_CLASSES = {
    "seq2seq": transformers.AutoModelForSeq2SeqLM, "causal": transformers.AutoModelForCausalLM,
    "masked": transformers.AutoModelForMaskedLM,
}  # fmt: skip
BERT_CLASSES = {"masked": transformers.BertForMaskedLM, "causal": transformers.BertLMHeadModel}
T5_TYPES = ("t5", "mt5", "umt5")


def tiny(overrides=TINY, name=None, seed=0, family=None):
    """A small model of random weights over the bundled vocabulary."""
    return tiny_model(name, overrides, seed=seed, scale=1.0, family=family).eval()


def loaded_from(place, **flags):
    """The model of a folder as a run loads it, with the bundled tokenizer."""
    return tiny_tuner(str(place), tokenizer=tiny_tokenizer(), **flags).model.eval()


def tokens(model, batch=4, length=96, seed=0):
    return torch.randint(3, 500, (batch, length), generator=torch.Generator().manual_seed(seed))


def mean_loss(logits_BLV, labels_BL):
    return torch.nn.functional.cross_entropy(logits_BLV.transpose(1, 2).float(), labels_BL).item()


def first_loss(model, family):
    inputs, labels = tokens(model), tokens(model, seed=1)
    batch = {"input_ids": inputs, **({"decoder_input_ids": tokens(model, seed=2)} if family == "seq2seq" else {})}
    with torch.no_grad():
        return mean_loss(model(**batch).logits, labels)


# Of the published checkpoints.
NUM_PARAMETERS = {
    "t5-small": 60_506_624, "t5-base": 222_903_552, "t5-large": 737_668_096, "t5-3b": 2_851_598_336,
    "t5-11b": 11_307_321_344, "t5-v1_1-small": 76_961_152, "t5-v1_1-base": 247_577_856,
    "t5-v1_1-large": 783_150_080, "t5-v1_1-xl": 2_849_757_184, "t5-v1_1-xxl": 11_135_332_352,
    "mt5-small": 300_176_768, "mt5-base": 582_401_280, "mt5-large": 1_229_581_312, "mt5-xl": 3_742_619_648,
    "mt5-xxl": 12_921_057_280,
}  # fmt: skip


# Of two layers, in which a preset's other settings are seen.
SMALL_SIZES = "d_model=32,d_kv=8,d_ff=48,num_layers=2,num_heads=2"


class OfflineTest(parameterized.TestCase):
    """Presets and model types ask no hub."""

    def setUp(self):
        super().setUp()
        self.enter_context(mock.patch("socket.getaddrinfo", side_effect=AssertionError("the network was asked")))


class PresetTest(OfflineTest):
    @parameterized.parameters(*TELLING_PRESETS)
    def test_a_preset_is_the_published_model(self, name):
        self.check_settings(name)

    @parameterized.parameters(*(name for name in NUM_PARAMETERS if name not in TELLING_PRESETS))
    @pytest.mark.slow
    def test_so_is_one_of_another_size(self, name):
        self.check_settings(name)

    def check_settings(self, name):
        config = new_config(name, SMALL_SIZES)
        self.assertEqual(config.num_decoder_layers, config.num_layers)
        self.assertEqual(config.is_gated_act, name.startswith(("t5-v1_1", "mt5", "mini")))
        self.assertEqual(config.tie_word_embeddings, not name.startswith(("t5-v1_1", "mt5")))
        self.assertEqual(getattr(config, "scale_decoder_outputs", False), config.tie_word_embeddings)
        self.assertEqual(config.dropout_rate, 0.1)

    @parameterized.parameters(*NUM_PARAMETERS)
    @pytest.mark.slow  # quick, of t5-v1_1-small: test_memory.py
    def test_a_preset_has_as_many_parameters(self, name):
        with mock.patch.dict(os.environ, {"HF_HUB_OFFLINE": "1"}):
            flags = ("--config_name", name, "--freeze", "embeddings", "--batch_size", "1", "--source_length", "2")
            table = json.loads(cli_output("summary", "--json", "--target_length", "2", *flags))
        self.assertEqual(table["parameters"], NUM_PARAMETERS[name])


class ConfigTest(OfflineTest):
    @parameterized.parameters(
        ("t5-v1_1-small", "num_layers=3", dict(num_layers=3, num_decoder_layers=3)),
        ("t5-v1_1-small", "num_layers=3,num_decoder_layers=1", dict(num_layers=3, num_decoder_layers=1)),
        ("t5-v1_1-small", "num_hidden_layers=3", dict(num_layers=3, num_decoder_layers=3)),
        ("t5-small", "feed_forward_proj=gated-gelu", dict(is_gated_act=True, dense_act_fn="gelu_new")),
        ("t5-small", "tie_word_embeddings=False", dict(tie_word_embeddings=False, scale_decoder_outputs=False)),
        ("t5-v1_1-small", "tie_word_embeddings=True", dict(tie_word_embeddings=True, scale_decoder_outputs=True)),
    )
    def test_what_follows_from_a_setting_of_a_preset(self, name, overrides, expected):
        config = new_config(name, f"d_model=32,d_kv=8,d_ff=48,num_heads=2,{overrides}")
        self.assertEqual({key: getattr(config, key) for key in expected}, expected)

    @parameterized.parameters(
        (bundled_model(), "feed_forward_proj=gated-gelu", dict(is_gated_act=True, dense_act_fn="gelu_new")),
        (bundled_model(), "num_layers=2", dict(num_layers=2, num_decoder_layers=1)),
        (bundled_model(), "d_model=128", dict(hidden_size=128, d_ff=256)),
        (
            "llama",
            "hidden_size=64,num_attention_heads=4,num_hidden_layers=1,intermediate_size=64",
            dict(head_dim=16, num_key_value_heads=4),
        ),
        ("gpt2", "n_layer=2,n_embd=64,n_head=2", dict(num_hidden_layers=2)),
    )
    def test_what_follows_from_a_setting_follows_from_a_changed_one(self, name, overrides, expected):
        config = new_config(name, overrides)
        self.assertEqual({key: getattr(config, key) for key in expected}, expected)

    def test_a_symmetric_model_of_a_file_stays_symmetric(self):
        place = folder()
        sizes = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_heads": 2}
        transformers.T5Config(num_layers=3, num_decoder_layers=3, **sizes).save_pretrained(place)
        self.assertEqual(new_config(place, "num_layers=2").num_decoder_layers, 2)
        self.assertEqual(new_config(place, "num_decoder_layers=1").num_layers, 3)

    @parameterized.parameters(
        ("t5-small", "d_modle=3", "no setting 'd_modle'; did you mean d_model"),
        ("t5-small", "d_model", "'d_model' is not of the form name=value"),
        ("t5-small", "d_model=wide", "--config_overrides d_model=wide: d_model is 'wide'; give a whole number"),
        ("t5-small", "feed_forward_proj=a-b-c", "--config_overrides feed_forward_proj=a-b-c: .*feed_forward_proj"),
        ("/nowhere/t5", None, "--config_name: no file or folder '/nowhere/t5'"),
    )
    def test_bad_configurations_are_named(self, name, overrides, message):
        with exits_with(78, message):
            new_config(name, overrides)

    @parameterized.parameters(*TELLING_TYPES)
    @pytest.mark.quick_cases(1)
    def test_dropout_reaches_the_model_and_a_rate_of_0_switches_every_dropout_off(self, model_type):
        self.check_dropout(model_type)

    @parameterized.parameters(*OTHER_TYPES)
    @pytest.mark.slow
    def test_so_it_does_in_other_models(self, model_type):
        self.check_dropout(model_type)

    def check_dropout(self, model_type):
        overrides = MODEL_TYPES[model_type][1]
        # A head for classes keeps its own dropout.
        overrides += {
            "bart": ",activation_dropout=0.3,attention_dropout=0.3", "albert": ",classifier_dropout_prob=0.0",
            "distilbert": ",seq_classif_dropout=0.0",
        }.get(model_type, "")  # fmt: skip
        for rate in (0.0, 0.25):
            flags = {"config_name": model_type, "config_overrides": overrides, "dropout_rate": rate}
            model = tiny_tuner(**flags, from_scratch=True).model.train()
            batch = {"input_ids": tokens(model, length=24)}
            batch |= {"decoder_input_ids": batch["input_ids"]} if model.config.is_encoder_decoder else {}
            with torch.no_grad():
                self.assertEqual(torch.equal(model(**batch).logits, model(**batch).logits), rate == 0)

    def test_dropout_reaches_configurations_at_every_depth(self):
        config = new_config("t5gemma2", dropout_rate=0.25)
        self.assertEqual((config.encoder.text_config.dropout_rate, config.decoder.dropout_rate), (0.25, 0.25))

    def test_a_dropout_that_was_off_stays_off(self):
        bart = MODEL_TYPES["bart"][1]
        config = new_config("bart", bart, dropout_rate=0.2)
        self.assertEqual((config.dropout, config.attention_dropout, config.activation_dropout), (0.2, 0.0, 0.0))
        config = new_config("bart", f"{bart},attention_dropout=0.1", dropout_rate=0.2)
        self.assertEqual((config.dropout, config.attention_dropout), (0.2, 0.2))
        with exits_with(78, "--dropout_rate 1: must be at least 0 and below 1"):
            tiny_tuner(config_name="t5", config_overrides=TINY, dropout_rate=1.0)


def pre_train(model_type, objective, *flags) -> dict:
    """One update of a small model of a type, over a text of many sentences."""
    text = folder() / "text.txt"
    text.write_text("\n\n".join(f"Story {i} is about number {i}. It ends well. So it goes on." for i in range(300)))
    tokenizer = tiny_tokenizer()
    if objective == "masked_lm":
        tokenizer.add_special_tokens({"mask_token": "[MASK]", "cls_token": "[CLS]", "sep_token": "[SEP]"})
    place = folder()
    tokenizer.save_pretrained(place)
    words = later_wins(
        [
            f"--config_name={model_type}", f"--config_overrides={MODEL_TYPES[model_type][1]}",
            f"--tokenizer_name={place}", f"--objective={objective}", f"--train_file={text}", "--max_steps=1",
            "--per_device_train_batch_size=2", "--use_cpu", "--disable_tqdm=True", f"--output_dir={folder() / 'run'}",
            *flags,
        ]
    )  # fmt: skip
    return pre_train_t5.main(words)


class SpecialTokensTest(parameterized.TestCase):
    @parameterized.parameters(
        # As in BART's own configuration, the decoder starts with the end token, which is forced at the end.
        ("bart", "", {"decoder_start_token_id": 1, "forced_eos_token_id": 1}),
        ("bart", ",decoder_start_token_id=7", {"decoder_start_token_id": 0, "forced_eos_token_id": 1}),
        ("t5", "", {"decoder_start_token_id": 0, "eos_token_id": 1}),
        ("gpt2", "", {"decoder_start_token_id": None, "eos_token_id": 1}),
    )
    @pytest.mark.quick_cases(1)
    def test_a_new_model_s_special_tokens_are_the_tokenizer_s(self, name, more, expected):
        model = tiny(MODEL_TYPES[name][1] + more, name)
        for settings in (model.config, model.generation_config):
            tokens_of_settings = {key: getattr(settings, key, None) for key in expected}
            self.assertEqual(
                {"pad_token_id": settings.pad_token_id, **tokens_of_settings}, {"pad_token_id": 0, **expected}
            )

    @parameterized.parameters("T5Gemma", "T5Gemma 2")
    @pytest.mark.quick_cases(1)
    def test_a_new_t5gemma_s_stacks_have_the_tokenizer_s_ids_too(self, name):
        tokenizer = tiny_tokenizer()
        tokenizer.add_special_tokens({"eos_token": "<extra_id_0>", "bos_token": "<extra_id_1>"})
        ids = (0, tokenizer.eos_token_id, tokenizer.bos_token_id)
        self.assertLen({*ids, 1, 2}, 5)
        model = tiny_model(configured(name), "", tokenizer=tokenizer)
        encoder = getattr(model.config.encoder, "text_config", model.config.encoder)
        for settings in (model.config, encoder, model.config.decoder, model.generation_config):
            self.assertEqual((settings.pad_token_id, settings.eos_token_id, settings.bos_token_id), ids)
        self.assertEqual(model.generation_config.decoder_start_token_id, tokenizer.bos_token_id)

    def test_a_new_t5gemma_does_not_start_with_padding(self):
        """It starts with <bos>, which T5's vocabulary lacks; transformers hides padding from its decoder in training."""
        config = new_config("t5gemma")
        self.assertIsNone(config.bos_token_id)
        self.assertNotIn(config.decoder_start_token_id, (None, config.pad_token_id))
        self.assertEqual(config.decoder.bos_token_id, config.decoder_start_token_id)  # what transformers starts with


class PreTrainingTest(parameterized.TestCase):
    @parameterized.parameters(("roberta", "masked_lm", 511), ("gpt2", "causal_lm", 1024), ("bert", "masked_lm", 512))
    @pytest.mark.quick_cases(1)
    def test_sequences_longer_than_the_positions_are_refused(self, model_type, objective, longest):
        """RoBERTa's positions begin behind its padding id."""
        with exits_with(78, f"--inputs_length {longest + 1}: .* for {longest} tokens"):
            pre_train(model_type, objective, f"--inputs_length={longest + 1}")
        pre_train(model_type, objective, f"--inputs_length={longest}", "--dry_run")

    def test_a_dry_run_of_pairs_counts_their_longest_input(self):
        figures = pre_train("bert", "masked_lm", "--inputs_length=64", "--sentence_pairs=next", "--dry_run")
        (block,) = figures["blocks"]
        self.assertEqual((block["tokens"], block["inputs"]), (61, 64))  # without [CLS], [SEP], [SEP]; with them
        self.assertEqual(figures["tokens_an_update"], 2 * 61)

    @parameterized.parameters(("bert", "next"), ("big_bird", "next"), ("albert", "order"))
    @pytest.mark.slow
    def test_head_for_pairs_of_sentences(self, model_type, pairs):
        pre_train(model_type, "masked_lm", "--inputs_length=64", f"--sentence_pairs={pairs}")

    @parameterized.parameters("roformer", "modernbert", "electra")
    @pytest.mark.quick_cases(1)
    def test_models_without_a_head_for_pairs_are_refused(self, model_type):
        with exits_with(78, f"'{model_type}' have no head for pairs"):
            pre_train(model_type, "masked_lm", "--inputs_length=64", "--sentence_pairs=next")


class RevisionTest(parameterized.TestCase):
    """A hub's cache with two revisions of one model, whose weights, configurations, types and tokenizers differ."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cache = Path(tempfile.mkdtemp())
        repository = cls.cache / "models--lab--tiny"
        (repository / "refs").mkdir(parents=True)
        for number, (revision, dropout_rate) in enumerate((("main", 0.1), ("v1", 0.3))):
            (repository / "refs" / revision).write_text(str(number) * 40)
            tokenizer = tiny_tokenizer()
            tokenizer.add_tokens([f"of-{revision}"])
            model = tiny_model(config_overrides=f"{TINY},dropout_rate={dropout_rate}", seed=number, tokenizer=tokenizer)
            snapshot = save_model(cls.snapshot(number), model, tokenizer)
            if revision == "v1":
                settings = json.loads((snapshot / "config.json").read_text())
                (snapshot / "config.json").write_text(json.dumps({**settings, "model_type": "mt5"}))

    @classmethod
    def snapshot(cls, number) -> Path:
        return cls.cache / "models--lab--tiny" / "snapshots" / (str(number) * 40)

    def setUp(self):
        super().setUp()
        constants = huggingface_hub.constants
        self.enter_context(mock.patch.multiple(constants, HF_HUB_CACHE=str(self.cache), HF_HUB_OFFLINE=True))

    def check(self, model, tokenizer, revision):
        number, settings = (1, ("mt5", 0.3)) if revision else (0, ("t5", 0.1))
        weights = load_file(self.snapshot(number) / "model.safetensors")
        self.assertTrue(weights["shared.weight"].equal(model.shared.weight))
        self.assertEqual((model.config.model_type, model.config.dropout_rate), settings)
        self.assertEqual({"of-main", "of-v1"} & set(tokenizer.get_vocab()), {f"of-{revision or 'main'}"})

    @parameterized.parameters(None, "v1")
    def test_a_run_begins_with_the_revision_that_is_asked_for(self, revision):
        tuner = tiny_tuner("lab/tiny", model_revision=revision)
        self.check(tuner.model, tuner.tokenizer, revision)

    @parameterized.parameters("v1", None)
    @pytest.mark.quick_cases(1)
    def test_that_revision_is_exported(self, revision):
        exported = folder() / "exported"
        flags = ("--model_revision", revision) if revision else ()
        run_cli("export", "--model_name_or_path", "lab/tiny", "--output_dir", exported, *flags)
        tuner = tiny_tuner(str(exported))
        self.check(tuner.model, tuner.tokenizer, revision)

    @pytest.mark.slow
    def test_that_revision_answers(self):
        texts = folder() / "texts.txt"
        texts.write_text("A fine stage.\nA bad bed of-v1.\n")

        def answers(name, *flags):
            settings = ("--input", texts, "--raw", "--use_cpu", "--max_new_tokens", "4", "--scores")
            return cli_output("predict", "--model_name_or_path", name, *settings, *flags)

        of_main, of_v1 = answers("lab/tiny"), answers("lab/tiny", "--model_revision", "v1")
        self.assertNotEqual(of_main, of_v1)
        self.assertEqual(of_v1, answers(self.snapshot(1)))


class FamilyTest(parameterized.TestCase):
    @parameterized.parameters(*TELLING_TYPES)
    @pytest.mark.quick_cases(1)
    def test_random_weights_of_any_model_type(self, model_type):
        self.check_random_weights(model_type)

    @parameterized.parameters(*OTHER_TYPES)
    @pytest.mark.slow
    def test_random_weights_of_other_model_types(self, model_type):
        self.check_random_weights(model_type)

    def check_random_weights(self, model_type):
        """Family, class, special tokens, rows, and a first loss near ln V."""
        family, overrides = MODEL_TYPES[model_type]
        model, tokenizer = tiny(overrides, model_type), tiny_tokenizer()
        self.assertIs(type(model), AUTO_CLASSES[family]._model_mapping[type(model.config)])
        self.assertEqual(model.config.vocab_size, 640)  # 621 pieces
        self.assertEqual(model.get_input_embeddings().weight.shape[0], 640)
        self.assertEqual(model.config.pad_token_id, tokenizer.pad_token_id)
        self.assertEqual(model.config.eos_token_id, tokenizer.eos_token_id)
        self.assertEqual(model.dtype, torch.float32)
        delta = 0.65 if model_type in T5_TYPES else 0.1
        self.assertAlmostEqual(first_loss(model, family), math.log(model.config.vocab_size), delta=delta)

    @parameterized.parameters(
        (dict(), "masked"),
        (dict(is_decoder=True), "causal"),
        (dict(architectures=["BertLMHeadModel"]), "causal"),
        (dict(architectures=["BertForMaskedLM"], is_decoder=True), "masked"),
        (dict(architectures=["BertForPreTraining"]), "masked"),
    )
    @pytest.mark.quick_cases(1)
    def test_family_of_a_bert(self, settings, family):
        place = folder()
        transformers.BertConfig(**settings).save_pretrained(place)
        for asked_for, expected in ((None, family), ("causal", "causal")):
            model = tiny(SMALL_ENCODER, str(place), family=asked_for)
            self.assertIsInstance(model, BERT_CLASSES[expected])

    @parameterized.parameters(
        ("t5", "masked", "--model_family masked: .* type 't5'; it has seq2seq"),
        ("t5", "mask", "--model_family: unknown family 'mask'; did you mean masked"),
        ("vit", None, "type 'vit' is none of seq2seq, causal, masked"),
    )
    def test_a_family_that_a_type_does_not_have_is_refused(self, model_type, family, message):
        with exits_with(78, message):
            tiny("", model_type, family=family)

    @parameterized.parameters(("", 640), ("vocab_size=700", 700))
    def test_both_stacks_of_a_new_model_have_the_tokenizer_s_rows(self, overrides, rows):
        place = folder()
        stack = "hidden_size=32,intermediate_size=48,num_hidden_layers=1,num_attention_heads=2,num_key_value_heads=1"
        sizes = {name: int(number) for name, _, number in (part.partition("=") for part in stack.split(","))}
        transformers.T5GemmaConfig(encoder=sizes, decoder=sizes).save_pretrained(place)  # of 256000 pieces
        config = new_config(place, overrides)
        self.assertEqual((config.vocab_size, config.encoder.vocab_size, config.decoder.vocab_size), (rows, rows, rows))

    def test_a_name_that_is_nearly_a_preset_s_is_named(self):
        with exits_with(78, "t5-v1_1-basse.* of nearly that name: t5-v1_1-base"):
            new_config("t5-v1_1-basse")

    def test_attention_is_chosen(self):
        def attention_of(name=None, overrides=TINY, **flags):
            return new_config(name or "mini", overrides, **flags)._attn_implementation

        self.assertEqual(attention_of(), "sdpa")
        self.assertEqual(attention_of(attn_implementation="eager"), "eager")
        for name in ("flash_attention_2", "flex_attention"):
            with exits_with(78, f"--attn_implementation {name}: T5's position bias"):
                attention_of(attn_implementation=name)
        with exits_with(78, "type 'roformer': .*scaled_dot_product_attention"):
            attention_of("roformer", SMALL_ENCODER, attn_implementation="sdpa")


class HeadTest(parameterized.TestCase):
    @parameterized.parameters(transformers.T5Config, transformers.MT5Config, transformers.UMT5Config)
    def test_transformers_still_ties_every_t5(self, config_class):
        """Fails when transformers keeps its word: our own making of untied models may then go."""
        config = config_class(tie_word_embeddings=False)
        self.assertTrue(config.tie_word_embeddings)
        with torch.device("meta"):
            model = transformers.AutoModelForSeq2SeqLM.from_config(config)
        self.assertIs(model.lm_head.weight, model.shared.weight)

    def check_untied(self, model):
        self.assertIsNot(model.lm_head.weight, model.shared.weight)
        self.assertFalse(torch.equal(model.lm_head.weight, model.shared.weight))
        for stack in (model.encoder, model.decoder):
            self.assertIs(stack.embed_tokens.weight, model.shared.weight)
        self.assertFalse(model.config.tie_word_embeddings)

    @parameterized.parameters(*T5_TYPES)
    @pytest.mark.quick_cases(1)
    def test_untied_survives_tying_resizing_saving_and_loading(self, model_type):
        model, place = tiny(TINY_UNTIED, model_type), folder()
        self.check_untied(model)
        model.tie_weights()
        model.tie_weights(recompute_mapping=False)
        self.check_untied(model)
        model.resize_token_embeddings(768)
        self.check_untied(model)
        model.save_pretrained(place)
        self.assertFalse(json.loads((place / "config.json").read_text())["tie_word_embeddings"])
        with self.assertNoLogs("transformers", logging.WARNING):
            loaded = loaded_from(place)
        self.check_untied(loaded)
        batch = {"input_ids": tokens(model), "decoder_input_ids": tokens(model, seed=1)}
        with torch.no_grad():
            self.assertTrue(torch.equal(loaded(**batch).logits, model(**batch).logits))
        again = folder()
        loaded.save_pretrained(again)
        self.assertEqual((again / "model.safetensors").read_bytes(), (place / "model.safetensors").read_bytes())

    @parameterized.parameters(*T5_TYPES)
    def test_an_untied_output_layer_sees_unscaled_states(self, model_type):
        model = tiny(TINY_UNTIED, model_type)
        batch = {"input_ids": tokens(model), "decoder_input_ids": tokens(model, seed=1)}
        states = []
        model.decoder.register_forward_hook(lambda *call: states.append(call[-1].last_hidden_state))
        with torch.no_grad():
            logits = model(**batch).logits
            torch.testing.assert_close(logits, states[0] @ model.lm_head.weight.T)

    def test_a_checkpoint_whose_configuration_is_wrong_is_loaded_as_it_is(self):
        """Two matrices under a configuration that says one (transformers 5 writes such), and the other way round."""
        two, place = tiny(TINY_UNTIED), folder()
        two.save_pretrained(place)
        settings = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps({**settings, "tie_word_embeddings": True}))
        loaded = loaded_from(place)
        self.check_untied(loaded)
        self.assertFalse(loaded.config.scale_decoder_outputs)
        one, place = tiny(TINY), folder()
        one.save_pretrained(place)
        settings = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps({**settings, "tie_word_embeddings": False}))
        with self.assertLogs("t5suite", logging.WARNING) as logs:
            loaded = loaded_from(place)
        self.assertIn("holds none: it is tied", "\n".join(logs.output))
        self.assertIs(loaded.lm_head.weight, loaded.shared.weight)
        loaded.tie_weights()
        self.assertTrue(torch.equal(loaded.lm_head.weight, one.shared.weight))


class InitializationTest(parameterized.TestCase):
    @parameterized.parameters(*T5_TYPES)
    @pytest.mark.quick_cases(1)
    def test_first_loss_of_an_untied_t5(self, model_type):
        """Standard normal logits: ln V + 1/2. With transformers' own output layer it is above 30."""
        model, d_model = tiny(f"{TINY_UNTIED},d_model=64", model_type), 64
        self.assertAlmostEqual(first_loss(model, "seq2seq"), math.log(model.config.vocab_size) + 0.5, delta=0.1)
        self.assertAlmostEqual(model.lm_head.weight.std().item(), d_model**-0.5, delta=0.02 * d_model**-0.5)
        stock = transformers.AutoModelForSeq2SeqLM.from_config(model.config).eval()
        self.assertGreater(first_loss(stock, "seq2seq"), 15)

    @parameterized.parameters(TINY, TINY_UNTIED)
    def test_standard_deviations_are_t5s(self, overrides):
        model = tiny(f"{overrides},d_model=64,d_ff=256,num_heads=4")
        expected = {"shared": 1, ".q.": (64 * 8) ** -0.5, ".k.": 64**-0.5, ".v.": 64**-0.5, ".o.": 32**-0.5}
        expected |= {".wi": 64**-0.5, ".wo.": 256**-0.5, "relative": 64**-0.5, "lm_head": 64**-0.5}
        for name, parameter in model.named_parameters():
            if "norm" in name:
                self.assertTrue(parameter.eq(1).all(), name)
                continue
            deviation = next(value for key, value in expected.items() if key in name)
            tolerance = 0.25 if "relative" in name else 0.06
            self.assertAlmostEqual(parameter.std().item() / deviation, 1, delta=tolerance, msg=name)


def tokenizer_with(tokenizer=None, **flags):
    """The tokenizer of a run that begins with this one and random weights."""
    tokenizer = tiny_tokenizer() if tokenizer is None else tokenizer
    return tiny_tuner(config_name="mini", config_overrides=TINY, tokenizer=tokenizer, **flags).tokenizer


class VocabularyTest(parameterized.TestCase):
    def tokenizers(self):
        yield tiny_tokenizer()
        if shared_data.has("tokenizer/t5/spiece.model"):
            yield tokenizer_with(str(shared_data.SHARED_DATA / "tokenizer" / "t5"))

    @pytest.mark.slow
    def test_more_sentinels(self):
        for tokenizer in self.tokenizers():
            before, ids = len(tokenizer), sentinel_ids(tokenizer)
            text_ids = tokenizer("a good film <extra_id_5>.").input_ids
            enlarged = tokenizer_with(tokenizer, num_sentinels=128)
            self.assertEqual(sentinel_ids(enlarged), ids + list(range(before, before + 28)))
            self.assertEqual(enlarged("a good film <extra_id_5>.").input_ids, text_ids)
            self.assertEqual(enlarged("<extra_id_127>").input_ids, [before + 27, enlarged.eos_token_id])
            self.assertEqual(enlarged.decode([before + 27], skip_special_tokens=True), "")
            place = folder()
            enlarged.save_pretrained(place)
            loaded = tokenizer_with(str(place), num_sentinels=128)
            self.assertEqual(sentinel_ids(loaded), sentinel_ids(enlarged))
            self.assertLen(loaded, before + 28)

    def test_byt5s_sentinels_are_its_last_bytes(self):
        self.assertEqual(sentinel_ids(transformers.ByT5Tokenizer()), list(range(258, 158, -1)))  # arXiv:2105.13626, 3.1

    def test_mt5s_sentinels_are_sentinels(self):
        def tokenizer_of_mt5():
            pieces = ["<pad>", "</s>", "<unk>", *"abcdefgh", *(f"\u2581<extra_id_{n}>" for n in range(100))]
            backend = Tokenizer(Unigram([(piece, -1.0) for piece in pieces], unk_id=2))
            names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
            return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names)

        before = tokenizer_of_mt5().get_vocab().keys()
        self.assertEqual(tokenizer_with(tokenizer_of_mt5(), num_sentinels=100).get_vocab().keys(), before)
        more = tokenizer_with(tokenizer_of_mt5(), num_sentinels=103).get_vocab().keys()
        self.assertEqual(more - before, {f"<extra_id_{n}>" for n in (100, 101, 102)})

    @parameterized.parameters(99, 1)
    def test_sentinels_are_not_taken_away(self, number):
        with exits_with(78, f"--num_sentinels {number}: the tokenizer has 100, .* give 100 or more"):
            tokenizer_with(num_sentinels=number)

    @pytest.mark.slow
    def test_mode_tokens_of_ul2_are_whole(self):
        place = folder() / "run"
        pre_train("t5", "ul2", "--inputs_length=64", f"--output_dir={place}")
        self.assertLen(tokenizer_with(str(place))("[R][X]").input_ids, 3)

    @parameterized.parameters(TINY, TINY_UNTIED)
    @pytest.mark.quick_cases(1)
    def test_trained_weights_grow_and_mean_the_same(self, overrides):
        old = tiny(f"{overrides},vocab_size=640")
        tuner = tiny_tuner(str(save_model(folder(), old)), num_sentinels=128, add_tokens="[R],[S],[X]")
        model = tuner.model.eval()
        self.assertLen(tuner.tokenizer, 621 + 28 + 3)
        self.assertEqual(
            (model.config.vocab_size, model.shared.weight.shape[0], model.lm_head.weight.shape[0]), (768, 768, 768)
        )
        self.assertEqual(model.lm_head.weight is model.shared.weight, overrides == TINY)
        batch = {"input_ids": tokens(old), "decoder_input_ids": tokens(old, seed=1)}
        with torch.no_grad():
            torch.testing.assert_close(model(**batch).logits[..., :640], old(**batch).logits)
        spread = model.shared.weight[640:].std(0).mean() / old.shared.weight.std(0).mean()
        self.assertLess(spread, 0.1)

    def test_a_tokenizer_of_another_model_is_told_from_an_enlarged_one(self):
        place, tokenizer = save_model(folder(), tiny(f"{TINY},vocab_size=640")), tiny_tokenizer()
        tokenizer.add_tokens([f"<other_{n}>" for n in range(100)])
        with exits_with(78, "640 embeddings, but the tokenizer has 721 pieces"):
            tiny_tuner(str(place), tokenizer=tokenizer)
        with exits_with(78, "640 embeddings, but the tokenizer has 721 pieces"):
            tiny_tuner(str(place), tokenizer=tokenizer, num_sentinels=128)
