"""Configurations, families, presets, output layers, first weights and vocabularies."""

import json
import logging
import math
import os
import tempfile
from pathlib import Path
from unittest import mock

import huggingface_hub
import shared_data
import torch
import transformers
from absl.testing import parameterized
from safetensors.torch import load_file
from support import command_flags, folder

from t5suite.data.objectives import sentinel_ids
from t5suite.export.sources import load_source
from t5suite.inference.running import load_parts
from t5suite.models import configs
from t5suite.models.configs import check_length, load_config
from t5suite.models.families import FAMILIES, T5_TYPES, family_of, model_class_for, random_model
from t5suite.models.loading import load_model, load_tokenizer
from t5suite.models.presets import PRESETS
from t5suite.models.vocabulary import MODE_TOKENS, add_sentinels, add_tokens, rows_for
from t5suite.testing import bundled_model, exits_with, tiny_tokenizer
from t5suite.training.flags.fine_tuning import ModelArguments
from t5suite.training.run import tokenizer_and_model

TINY = "d_model=32,d_kv=8,d_ff=48,num_layers=2,num_heads=2"
TINY_UNTIED = f"{TINY},tie_word_embeddings=False,feed_forward_proj=gated-gelu"
SMALL_ENCODER = "num_hidden_layers=2,hidden_size=64,num_attention_heads=2,intermediate_size=128"
# Every model type that is tried from scratch -> its family and a small size.
MODEL_TYPES = {
    "bert": ("masked", SMALL_ENCODER),
    "roberta": ("masked", SMALL_ENCODER),
    "roformer": ("masked", SMALL_ENCODER),
    "modernbert": ("masked", SMALL_ENCODER),
    "big_bird": ("masked", f"{SMALL_ENCODER},block_size=8,num_random_blocks=1"),
    "albert": ("masked", SMALL_ENCODER),
    "electra": ("masked", SMALL_ENCODER),
    "distilbert": ("masked", "n_layers=2,dim=64,n_heads=2,hidden_dim=128"),
    "gpt2": ("causal", "n_layer=2,n_embd=64,n_head=2"),
    "llama": ("causal", f"{SMALL_ENCODER},num_key_value_heads=2"),
    "gpt_neox": ("causal", SMALL_ENCODER),
    "bart": ("seq2seq",
        "d_model=32,encoder_layers=1,decoder_layers=1,encoder_attention_heads=2,decoder_attention_heads=2"),
    "t5": ("seq2seq", TINY),
    "mt5": ("seq2seq", TINY),
    "umt5": ("seq2seq", TINY),
}  # fmt: skip


def tiny(overrides=TINY, name=None, seed=0, **settings):
    """A small model of random weights over the bundled vocabulary."""
    transformers.set_seed(seed)
    return load_model(config_name=name, config_overrides=overrides, tokenizer=tiny_tokenizer(), **settings).eval()


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


class PresetTest(parameterized.TestCase):
    @parameterized.parameters(*PRESETS)
    def test_a_preset_is_the_published_model(self, name):
        config = load_config(name, from_scratch=True)
        self.assertEqual(config.num_decoder_layers, config.num_layers)
        self.assertEqual(config.is_gated_act, name.startswith(("t5-v1_1", "mt5", "mini")))
        self.assertEqual(config.tie_word_embeddings, not name.startswith(("t5-v1_1", "mt5")))
        self.assertEqual(getattr(config, "scale_decoder_outputs", False), config.tie_word_embeddings)
        self.assertEqual(config.dropout_rate, 0.1)
        if name != "mini":
            with torch.device("meta"):
                model = random_model(transformers.AutoModelForSeq2SeqLM, config)
            self.assertEqual(sum(p.numel() for p in model.parameters()), NUM_PARAMETERS[name])


class ConfigTest(parameterized.TestCase):
    @parameterized.parameters(
        ("t5-v1_1-small", "num_layers=3", dict(num_layers=3, num_decoder_layers=3)),
        ("t5-v1_1-small", "num_layers=3,num_decoder_layers=1", dict(num_layers=3, num_decoder_layers=1)),
        ("t5-v1_1-small", "num_hidden_layers=3", dict(num_layers=3, num_decoder_layers=3)),
        ("t5-small", "feed_forward_proj=gated-gelu", dict(is_gated_act=True, dense_act_fn="gelu_new")),
        ("t5-small", "tie_word_embeddings=False", dict(tie_word_embeddings=False, scale_decoder_outputs=False)),
        ("t5-v1_1-small", "tie_word_embeddings=True", dict(tie_word_embeddings=True, scale_decoder_outputs=True)),
        (bundled_model(), "feed_forward_proj=gated-gelu", dict(is_gated_act=True, dense_act_fn="gelu_new")),
        (bundled_model(), "num_layers=2", dict(num_layers=2, num_decoder_layers=1)),
        (bundled_model(), "d_model=128", dict(hidden_size=128, d_ff=256)),
        ("llama", "hidden_size=64,num_attention_heads=4", dict(head_dim=16)),
        ("gpt2", "n_layer=2", dict(num_hidden_layers=2)),
    )
    def test_what_follows_from_a_setting_follows_from_a_changed_one(self, name, overrides, expected):
        config = load_config(name, overrides, from_scratch=True)
        self.assertEqual({key: getattr(config, key) for key in expected}, expected)

    def test_a_symmetric_model_of_a_file_stays_symmetric(self):
        place = folder()
        transformers.T5Config(num_layers=6, num_decoder_layers=6).save_pretrained(place)
        self.assertEqual(load_config(str(place), "num_layers=4").num_decoder_layers, 4)
        self.assertEqual(load_config(str(place), "num_decoder_layers=2").num_layers, 6)

    @parameterized.parameters(
        ("t5-small", "d_modle=3", "no setting 'd_modle'; did you mean d_model"),
        ("t5-small", "d_model", "'d_model' is not of the form name=value"),
        ("t5-small", "d_model=wide", "--config_overrides d_model=wide: d_model is 'wide'; give a whole number"),
        ("t5-small", "feed_forward_proj=a-b-c", "--config_overrides feed_forward_proj=a-b-c: .*feed_forward_proj"),
        ("/nowhere/t5", None, "--config_name: no file or folder '/nowhere/t5'"),
        ("t5-v1_1-basse", None, "t5-v1_1-basse.* of nearly that name: t5-v1_1-base"),
    )
    def test_bad_configurations_are_named(self, name, overrides, message):
        with exits_with(78, message):
            load_config(name, overrides, from_scratch=True)

    def test_presets_and_model_types_ask_no_hub(self):
        with mock.patch.object(configs, "prepare_hub", side_effect=AssertionError), mock.patch.dict(os.environ):
            for name in [*PRESETS, *MODEL_TYPES]:
                load_config(name, from_scratch=True)

    @parameterized.parameters(*MODEL_TYPES)
    def test_dropout_reaches_the_model_and_a_rate_of_0_switches_every_dropout_off(self, model_type):
        overrides = MODEL_TYPES[model_type][1]
        overrides += ",activation_dropout=0.3,attention_dropout=0.3" if model_type == "bart" else ""
        for rate in (0.0, 0.25):
            model = tiny(overrides, model_type, dropout_rate=rate).train()
            batch = {"input_ids": tokens(model, length=24)}
            batch |= {"decoder_input_ids": batch["input_ids"]} if model.config.is_encoder_decoder else {}
            with torch.no_grad():
                self.assertEqual(torch.equal(model(**batch).logits, model(**batch).logits), rate == 0)

    def test_a_dropout_that_was_off_stays_off(self):
        config = load_config("bart", dropout_rate=0.2, from_scratch=True)
        self.assertEqual((config.dropout, config.attention_dropout, config.activation_dropout), (0.2, 0.0, 0.0))
        config = load_config("bart", "attention_dropout=0.1", dropout_rate=0.2, from_scratch=True)
        self.assertEqual((config.dropout, config.attention_dropout), (0.2, 0.2))
        with exits_with(78, "--dropout_rate 1.0: must be at least 0 and below 1"):
            load_config("t5", dropout_rate=1.0, from_scratch=True)

    @parameterized.parameters(("bert", 512), ("roberta", 510), ("gpt2", 1024), ("llama", 2048))
    def test_sequences_longer_than_the_positions_are_refused(self, model_type, longest):
        overrides = "max_position_embeddings=512" if model_type == "roberta" else None
        config = load_config(model_type, overrides, from_scratch=True)
        if model_type == "roberta":
            config.pad_token_id = 1
        check_length(config, longest, "--inputs_length")
        with exits_with(78, f"--inputs_length {longest + 1}: .* for {longest} tokens"):
            check_length(config, longest + 1, "--inputs_length")
        check_length(transformers.T5Config(), 10**6, "--inputs_length")


def by_training(revision):
    return tokenizer_and_model(ModelArguments(model_name_or_path="lab/tiny", model_revision=revision))


def by_predicting(revision):
    return load_parts(command_flags("predict", model_name_or_path="lab/tiny", model_revision=revision))


def by_exporting(revision):
    wanted = command_flags("export", model_name_or_path="lab/tiny", output_dir="exported", model_revision=revision)
    source = load_source(wanted, tempfile.mkdtemp())
    return source.tokenizer, source.model


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
            folder, tokenizer = repository / "snapshots" / (str(number) * 40), tiny_tokenizer()
            tokenizer.add_tokens([f"of-{revision}"])
            transformers.set_seed(number)
            load_model(tokenizer=tokenizer, config_overrides=TINY, dropout_rate=dropout_rate).save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            if revision == "v1":
                settings = json.loads((folder / "config.json").read_text())
                (folder / "config.json").write_text(json.dumps({**settings, "model_type": "mt5"}))

    @parameterized.product(
        load=[by_training, by_predicting, by_exporting],
        told=[(None, "0", ("t5", 0.1), "main"), ("v1", "1", ("mt5", 0.3), "v1")],
    )
    def test_weights_configuration_and_tokenizer_are_of_the_revision_that_is_asked_for(self, load, told):
        revision, commit, settings, name = told
        constants = huggingface_hub.constants
        with mock.patch.multiple(constants, HF_HUB_CACHE=str(self.cache), HF_HUB_OFFLINE=True):
            tokenizer, model = load(revision)
        weights = load_file(self.cache / "models--lab--tiny" / "snapshots" / (commit * 40) / "model.safetensors")
        self.assertTrue(weights["shared.weight"].equal(model.shared.weight))
        self.assertEqual((model.config.model_type, model.config.dropout_rate), settings)
        self.assertEqual({"of-main", "of-v1"} & set(tokenizer.get_vocab()), {f"of-{name}"})


class FamilyTest(parameterized.TestCase):
    @parameterized.parameters(*MODEL_TYPES)
    def test_random_weights_of_any_model_type(self, model_type):
        """Family, class, special tokens, rows, and a first loss near ln V."""
        family, overrides = MODEL_TYPES[model_type]
        model, tokenizer = tiny(overrides, model_type), tiny_tokenizer()
        self.assertEqual(family_of(model.config), family)
        self.assertTrue(FAMILIES[family].holds(model.config))
        self.assertEqual(model.config.vocab_size, rows_for(len(tokenizer)))
        self.assertEqual(model.get_input_embeddings().weight.shape[0], rows_for(len(tokenizer)))
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
    def test_family_of_a_bert(self, settings, expected):
        self.assertEqual(family_of(transformers.BertConfig(**settings)), expected)
        self.assertEqual(family_of(transformers.BertConfig(**settings), "causal"), "causal")

    @parameterized.parameters(
        ("t5", "masked", "--model_family masked: .* type 't5'; it has seq2seq"),
        ("t5", "mask", "--model_family: unknown family 'mask'; did you mean masked"),
        ("vit", None, "type 'vit' is none of seq2seq, causal, masked"),
    )
    def test_a_family_that_a_type_does_not_have_is_refused(self, model_type, family, message):
        with exits_with(78, message):
            family_of(transformers.AutoConfig.for_model(model_type), family)

    @parameterized.parameters(
        ("bert", "next_sentence_label"), ("big_bird", "next_sentence_label"), ("albert", "sentence_order_label")
    )
    def test_head_for_pairs_of_sentences(self, model_type, label):
        model = tiny(MODEL_TYPES[model_type][1], model_type, sentence_pairs=True)
        batch = {"input_ids": tokens(model), "labels": tokens(model), label: torch.tensor([0, 1, 0, 1])}
        self.assertTrue(model(**batch).loss.isfinite())

    @parameterized.parameters("roformer", "modernbert", "electra", "gpt2", "t5")
    def test_models_without_a_head_for_pairs_are_refused(self, model_type):
        config = load_config(model_type, from_scratch=True)
        with exits_with(78, f"'{model_type}' have no head for pairs"):
            model_class_for(config, family_of(config), sentence_pairs=True)

    def test_attention_is_chosen(self):
        self.assertEqual(tiny().config._attn_implementation, "sdpa")
        self.assertEqual(tiny(attn_implementation="eager").config._attn_implementation, "eager")
        for name in ("flash_attention_2", "flex_attention"):
            with exits_with(78, f"--attn_implementation {name}: T5's position bias"):
                tiny(attn_implementation=name)
        with exits_with(78, "type 'roformer': .*scaled_dot_product_attention"):
            tiny(SMALL_ENCODER, "roformer", attn_implementation="sdpa")


class HeadTest(parameterized.TestCase):
    @parameterized.parameters(transformers.T5Config, transformers.MT5Config, transformers.UMT5Config)
    def test_transformers_still_ties_every_t5(self, config_class):
        """Fails when transformers keeps its word: `families.random_model` may then go."""
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
    def test_untied_survives_tying_resizing_saving_and_loading(self, model_type):
        model, place, tokenizer = tiny(TINY_UNTIED, model_type), folder(), tiny_tokenizer()
        self.check_untied(model)
        model.tie_weights()
        model.tie_weights(recompute_mapping=False)
        self.check_untied(model)
        model.resize_token_embeddings(768)
        self.check_untied(model)
        model.save_pretrained(place)
        self.assertFalse(json.loads((place / "config.json").read_text())["tie_word_embeddings"])
        with self.assertNoLogs("transformers", logging.WARNING):
            loaded = load_model(str(place), tokenizer=tokenizer).eval()
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
        loaded = load_model(str(place), tokenizer=tiny_tokenizer())
        self.check_untied(loaded)
        self.assertFalse(loaded.config.scale_decoder_outputs)
        one, place = tiny(TINY), folder()
        one.save_pretrained(place)
        settings = json.loads((place / "config.json").read_text())
        (place / "config.json").write_text(json.dumps({**settings, "tie_word_embeddings": False}))
        with self.assertLogs("t5suite", logging.WARNING) as logs:
            loaded = load_model(str(place), tokenizer=tiny_tokenizer())
        self.assertIn("holds none: it is tied", logs.output[-1])
        self.assertIs(loaded.lm_head.weight, loaded.shared.weight)
        loaded.tie_weights()
        self.assertTrue(torch.equal(loaded.lm_head.weight, one.shared.weight))


class InitializationTest(parameterized.TestCase):
    @parameterized.parameters(*T5_TYPES)
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
            wanted = next(value for key, value in expected.items() if key in name)
            tolerance = 0.25 if "relative" in name else 0.06
            self.assertAlmostEqual(parameter.std().item() / wanted, 1, delta=tolerance, msg=name)


class VocabularyTest(parameterized.TestCase):
    def tokenizers(self):
        yield tiny_tokenizer()
        if shared_data.has("tokenizer/t5/spiece.model"):
            yield load_tokenizer(str(shared_data.SHARED_DATA / "tokenizer" / "t5"))

    def test_more_sentinels(self):
        for tokenizer in self.tokenizers():
            before, ids = len(tokenizer), sentinel_ids(tokenizer)
            text_ids = tokenizer("a good film <extra_id_5>.").input_ids
            self.assertEqual(add_sentinels(tokenizer, 128), 28)
            self.assertEqual(add_sentinels(tokenizer, 128), 0)
            self.assertEqual(sentinel_ids(tokenizer), ids + list(range(before, before + 28)))
            self.assertEqual(tokenizer("a good film <extra_id_5>.").input_ids, text_ids)
            self.assertEqual(tokenizer("<extra_id_127>").input_ids, [before + 27, tokenizer.eos_token_id])
            self.assertEqual(tokenizer.decode([before + 27], skip_special_tokens=True), "")
            place = folder()
            tokenizer.save_pretrained(place)
            loaded = load_tokenizer(str(place))
            self.assertEqual(sentinel_ids(loaded), sentinel_ids(tokenizer))
            self.assertLen(loaded, before + 28)

    def test_byt5s_sentinels_are_its_last_bytes(self):
        self.assertEqual(sentinel_ids(transformers.ByT5Tokenizer()), list(range(258, 158, -1)))  # arXiv:2105.13626, 3.1

    def test_mt5s_sentinels_are_sentinels(self):
        vocabulary_of_mt5 = {f"\u2581<extra_id_{n}>": n for n in range(100)}
        tokenizer = mock.Mock(get_vocab=lambda: vocabulary_of_mt5)
        self.assertEqual(add_sentinels(tokenizer, 100), 0)
        self.assertEqual(add_sentinels(tokenizer, 103), 3)
        self.assertEqual(
            [str(t) for t in tokenizer.add_tokens.call_args.args[0]], [f"<extra_id_{n}>" for n in (100, 101, 102)]
        )

    @parameterized.parameters(0, 99, -1)
    def test_sentinels_are_not_taken_away(self, number):
        with exits_with(78, f"--num_sentinels {number}: the tokenizer has 100, .* give 100 or more"):
            add_sentinels(tiny_tokenizer(), number)

    def test_mode_tokens_are_whole(self):
        tokenizer = tiny_tokenizer()
        self.assertEqual(add_tokens(tokenizer, MODE_TOKENS), 3)
        self.assertEqual(add_tokens(tokenizer, MODE_TOKENS), 0)
        self.assertLen(tokenizer("[R][X]").input_ids, 3)

    @parameterized.parameters(TINY, TINY_UNTIED)
    def test_trained_weights_grow_and_mean_the_same(self, overrides):
        place = folder()
        old = tiny(f"{overrides},vocab_size=640")
        old.save_pretrained(place)
        tiny_tokenizer().save_pretrained(place)
        args = ModelArguments(model_name_or_path=str(place), num_sentinels=128)
        tokenizer, model = tokenizer_and_model(args, mode_tokens=MODE_TOKENS)
        self.assertLen(tokenizer, 621 + 28 + 3)
        self.assertEqual(
            (model.config.vocab_size, model.shared.weight.shape[0], model.lm_head.weight.shape[0]), (768, 768, 768)
        )
        self.assertEqual(model.lm_head.weight is model.shared.weight, overrides == TINY)
        batch = {"input_ids": tokens(old), "decoder_input_ids": tokens(old, seed=1)}
        with torch.no_grad():
            torch.testing.assert_close(model.eval()(**batch).logits[..., :640], old(**batch).logits)
        spread = model.shared.weight[640:].std(0).mean() / old.shared.weight.std(0).mean()
        self.assertLess(spread, 0.1)

    def test_a_tokenizer_of_another_model_is_told_from_an_enlarged_one(self):
        place = folder()
        tiny(f"{TINY},vocab_size=640").save_pretrained(place)
        tokenizer = tiny_tokenizer()
        add_tokens(tokenizer, [f"<other_{n}>" for n in range(100)])
        with exits_with(78, "640 embeddings, but the tokenizer has 721 pieces"):
            load_model(str(place), tokenizer=tokenizer)
        add_sentinels(tokenizer, 128)
        with exits_with(78, "640 embeddings, but the tokenizer has 721 pieces"):
            load_model(str(place), tokenizer=tokenizer, num_new_tokens=28)
