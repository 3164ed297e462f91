"""Freezing: what each part names in every family, what stays as it was in training, and what is refused."""

import copy
import re

import pytest
import torch
from absl.testing import parameterized
from model_types import SETTINGS, configured

from t5suite import load_task
from t5suite.testing import exits_with, tiny_model, tiny_tokenizer, tiny_tuner

SMALL_T5 = "d_model=32,d_kv=8,d_ff=48,num_layers=2,num_heads=2"
SMALL_BART = (
    "d_model=16,encoder_layers=2,decoder_layers=3,encoder_ffn_dim=24,decoder_ffn_dim=24,vocab_size=4000,"
    "encoder_attention_heads=2,decoder_attention_heads=2"
)
MODELS = {
    "t5": {"config_name": "mini", "config_overrides": SMALL_T5},
    "t5_v1_1": {"config_name": "mini", "config_overrides": SMALL_T5 + ",tie_word_embeddings=False"},
    "bart": {"config_name": "bart", "config_overrides": SMALL_BART},
    "gpt2": {"config_name": "gpt2", "config_overrides": "n_embd=16,n_layer=2,n_head=2"}, "bert": {
    "config_name": "bert", "tasks": [load_task("mini", "sentiment")],
    "config_overrides": "hidden_size=16,num_hidden_layers=2,num_attention_heads=2,intermediate_size=24", },
}  # fmt: skip
LAYER = {"t5": "block", "t5_v1_1": "block", "bart": "layers", "gpt2": "h", "bert": "layer"}
# Every part of a model, by the first of its stacks.
PARTS = {"gpt2": ("decoder", "embeddings", "head"), "bert": ("encoder", "embeddings", "head")}
WHOLE = ("encoder", "decoder", "embeddings", "head")


def frozen_by(name, **flags) -> list[str]:
    """The names of the parameters that a tuner with these flags does not train."""
    return untrained(tuner_of(name, **flags).model)


def tuner_of(name, **flags):
    return tiny_tuner(tiny_model(**MODELS[name]), tokenizer=tiny_tokenizer(), **flags)


def untrained(model) -> list[str]:
    return [name for name, parameter in model.named_parameters() if not parameter.requires_grad]


class PartsTest(parameterized.TestCase):
    @parameterized.parameters(*MODELS)
    @pytest.mark.quick_cases(1)
    def test_the_parts_are_the_whole_model(self, name):
        names_of_parts = {key for part in PARTS.get(name, WHOLE) for key in frozen_by(name, freeze=part)}
        self.assertEqual(names_of_parts, {name for name, _ in tiny_model(**MODELS[name]).named_parameters()})

    @parameterized.parameters(*MODELS)
    @pytest.mark.quick_cases(1)
    def test_embeddings_are_no_part_of_a_stack_and_position_tables_belong_to_them(self, name):
        embeddings = frozen_by(name, freeze="embeddings")
        for stack in PARTS.get(name, WHOLE)[:-2]:
            self.assertNoCommonElements(frozen_by(name, freeze=stack), embeddings)
        model = tiny_model(**MODELS[name])
        table = next(key for key, weight in model.named_parameters() if weight is model.get_input_embeddings().weight)
        self.assertIn(table, embeddings)
        self.assertFalse([key for key in embeddings if "relative_attention_bias" in key])
        if name in ("bart", "gpt2", "bert"):
            self.assertTrue([key for key in embeddings if "position" in key or "wpe" in key])

    @parameterized.parameters(*MODELS)
    @pytest.mark.quick_cases(1)
    def test_layers_are_counted_in_each_stack(self, name):
        model = tuner_of(name, freeze="layers:1").model
        frozen = untrained(model)
        of_first_layers = [key for key, _ in model.named_parameters() if f"{LAYER[name]}.0." in key]
        self.assertNotEmpty(frozen)
        self.assertEqual(frozen, of_first_layers)
        if name == "bart":
            self.assertEqual({key.split(".layers")[0] for key in frozen}, {"model.encoder", "model.decoder"})
        else:  # BART's stacks differ in length; all layers of a stack may be frozen
            self.assertTrue(any(f"{LAYER[name]}.1." in key for key in frozen_by(name, freeze="layers:2")))

    def test_all_parts_of_a_layer_are_counted(self):
        """XLM has a list of attentions, one of feed-forward networks, and two of norms."""
        model = tiny_model("xlm", "emb_dim=16,n_layers=2,n_heads=2")
        frozen = untrained(tiny_tuner(model, tokenizer=tiny_tokenizer(), freeze="layers:1").model)
        of_first_layer = [key for key, _ in model.named_parameters() if ".0." in key]
        parts = {key.split(".")[1] for key in of_first_layer}
        self.assertEqual(parts, {"attentions", "layer_norm1", "ffns", "layer_norm2"})
        self.assertEqual(frozen, of_first_layer)

    @pytest.mark.slow
    def test_a_tower_of_images_is_no_layer_of_the_text(self):
        settings = copy.deepcopy(SETTINGS["T5Gemma 2"]["encoder"])
        settings["vision_config"]["num_hidden_layers"] = 3
        model = tiny_model(configured("T5Gemma 2", encoder=settings), "")
        frozen = untrained(tiny_tuner(model, tokenizer=tiny_tokenizer(), freeze="encoder:1").model)
        self.assertNotEmpty(frozen)
        self.assertEqual(frozen, [key for key, _ in model.named_parameters() if "text_model.layers.0." in key])

    @parameterized.parameters("bert", "gpt2")
    @pytest.mark.quick_cases(1)
    def test_a_model_of_one_stack_has_that_stack_its_embeddings_and_its_head(self, name):
        tuner = tuner_of(name)
        every = [key for key, _ in tuner.model.named_parameters()]
        names_of_parts = {}
        for part in (*PARTS[name], "layers"):
            tuner.model.requires_grad_(True)
            names_of_parts[part] = tuner.freeze(**{part: 1 if part == "layers" else True})
            self.assertEqual(untrained(tuner.model), names_of_parts[part])
        stack, embeddings, head = (names_of_parts[part] for part in PARTS[name])
        self.assertCountEqual({*stack, *embeddings, *head}, every)
        self.assertNoCommonElements(stack, [*embeddings, *head])
        self.assertEqual(names_of_parts["layers"], [key for key in stack if f".{LAYER[name]}.0." in key])
        of_tables = ("wte", "wpe") if name == "gpt2" else ("word_emb", "position_emb", "token_type_emb")
        self.assertEqual(embeddings, [key for key in every if any(table in key for table in of_tables)])

    def test_patterns_freeze_and_leave_out(self):
        pattern = r"^encoder\.(block|final)(?!.*layer_norm)|decoder.*\.wo\."
        model = tuner_of("t5", freeze_regex=pattern).model
        expected = {
            key
            for key, _ in model.named_parameters()
            if (key.startswith(("encoder.block", "encoder.final")) or ("decoder" in key and ".wo." in key))
            and "layer_norm" not in key
        }
        self.assertEqual(set(untrained(model)), expected)
        self.assertTrue([key for key in expected if key.startswith("decoder")])

    def test_a_method_freezes_as_the_flags_do(self):
        tuner = tuner_of("t5")
        expected = frozen_by("t5", freeze="encoder,layers:1", freeze_regex="final_layer_norm")
        names = tuner.freeze(encoder=True, layers=1, pattern="final_layer_norm")
        self.assertEqual(names, expected)
        self.assertEqual(untrained(tuner.model), expected)

    def test_parameters_of_which_a_rank_holds_a_part_are_counted_whole(self):
        tuner, counted = tuner_of("t5"), tuner_of("t5")
        for parameter in tuner.model.parameters():  # as ZeRO-3 leaves them
            parameter.ds_numel = parameter.numel()
            parameter.data = torch.empty(0)
        logs = []
        for each in (tuner, counted):
            with self.assertLogs("t5suite", "INFO") as log:
                each.freeze(encoder=True)
            logs.append(log.output[-1])
        self.assertEqual(logs[0], logs[1])
        size_of = re.compile(r"[\d,]+ parameters, [\d,]+ trained")
        self.assertEqual(size_of.search(repr(tuner))[0], size_of.search(repr(counted))[0])

    def test_any_name_of_a_tied_parameter_is_found(self):
        self.assertEqual(frozen_by("t5", freeze_regex="^lm_head"), ["shared.weight"])
        self.assertEqual(frozen_by("t5_v1_1", freeze_regex="^lm_head"), ["lm_head.weight"])

    def test_frozen_embeddings_of_a_tied_model_say_that_they_are_the_output_layer(self):
        with self.assertLogs("t5suite", "WARNING") as log:
            frozen_by("t5", freeze="embeddings")
        self.assertIn("one matrix (shared.weight", log.output[0])
        with self.assertNoLogs("t5suite", "WARNING"):
            frozen_by("t5_v1_1", freeze="embeddings")

    @parameterized.parameters(
        ("t5", {"freeze": "encodr"}, "no part 'encodr'; did you mean encoder"),
        ("gpt2", {"freeze": "encoder"}, "GPT2LMHeadModel has no part 'encoder'; did you mean decoder"),
        ("t5", {"freeze": "layers:3"}, "the encoder has 2 layers"),
        ("t5", {"freeze": "layers"}, "give the number of layers, such as layers:2"),
        ("t5", {"freeze": "layers:0"}, "give the number of layers"),
        ("t5", {"freeze": "embeddings:1"}, "layers are counted in encoder and decoder"),
        ("t5", {"freeze": "encoder,decoder,embeddings"}, "every parameter"),
        ("t5", {"freeze": " , "}, "nothing is left to freeze"),
        ("t5", {"freeze_regex": "lm_heads.weight"}, "found in no parameter's name; there are lm_head.weight"),
        ("t5", {"freeze_regex": "(["}, "not a regular expression"),
    )
    def test_what_freezes_nothing_or_everything_is_refused(self, name, flags, message):
        with exits_with(78, message):
            tuner_of(name, **flags)


class TrainingTest(parameterized.TestCase):
    @parameterized.parameters({"optimizer": "adamw_rms"}, {"optim": "adamw_torch"})
    @pytest.mark.quick_cases(1)
    def test_frozen_parameters_stay_to_the_bit_and_take_no_optimizer_state(self, **optimizer):
        tuner = tiny_tuner(
            config_overrides=SMALL_T5,
            freeze="encoder,embeddings",
            schedule="constant",
            max_train_samples=48,
            max_eval_samples=8,
            per_device_train_batch_size=16,
            max_steps=3,
            eval_strategy="no",
            **optimizer,
        )
        before = {name: parameter.detach().clone() for name, parameter in tuner.model.named_parameters()}
        tuner.train()
        for name, parameter in tuner.model.named_parameters():
            self.assertEqual(torch.equal(before[name], parameter), not parameter.requires_grad, name)
            self.assertTrue(parameter.requires_grad or parameter.grad is None, name)
        optimizer = getattr(tuner.trainer.optimizer, "optimizer", tuner.trainer.optimizer)
        trained = {id(parameter) for parameter in tuner.model.parameters() if parameter.requires_grad}
        self.assertEqual({id(parameter) for parameter in optimizer.state}, trained)
        self.assertTrue(any(name.startswith("encoder") for name in untrained(tuner.model)))
