"""Freezing: what each part names in every family, what stays as it was in training, and what is refused."""

import functools
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from absl.testing import parameterized
from support import later_wins

import fine_tune_t5
from t5suite.models.freezing import freeze, part_table, stacks_of
from t5suite.models.loading import load_model
from t5suite.testing import exits_with, tiny_tokenizer
from t5suite.training.processes.signals import StopRequests
from t5suite.training.trainer import SuiteTrainer

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
    "config_name": "bert",
    "config_overrides": "hidden_size=16,num_hidden_layers=2,num_attention_heads=2,intermediate_size=24", },
}  # fmt: skip
LAYER = {"t5": "block", "t5_v1_1": "block", "bart": "layers", "gpt2": "h", "bert": "layer"}
FAST = ["--config_overrides", SMALL_T5, "--max_train_samples", "48", "--max_eval_samples", "8", "--use_cpu",
        "--per_device_train_batch_size", "16", "--eval_method", "score", "--disable_tqdm", "True",
        "--logging_steps", "1", "--max_steps", "4", "--eval_strategy", "steps", "--eval_steps", "2"]  # fmt: skip


@functools.cache
def tokenizer():
    return tiny_tokenizer()


def model_of(name, **settings):
    torch.manual_seed(0)
    return load_model(tokenizer=tokenizer(), **MODELS[name], **settings)


def names(model, trained):
    return {name for name, p in model.named_parameters() if p.requires_grad == trained}


def run(*argv, out=None, **patches):
    out = out or tempfile.mkdtemp()
    # A request to stop is the process's own; here every run is to have its own.
    fresh = mock.patch("t5suite.training.trainer.stop_requests", StopRequests)
    with fresh, mock.patch.multiple(SuiteTrainer, **patches) if patches else mock.patch.dict({}):
        fine_tune_t5.main(later_wins([*FAST, *argv, "--output_dir", out]))
    return Path(out)


class PartsTest(parameterized.TestCase):
    @parameterized.parameters(*MODELS)
    def test_the_parts_are_the_whole_model(self, name):
        model = model_of(name)
        found = {key for parameters in part_table(model).values() for key in parameters}
        self.assertEqual(found, {id(p) for p in model.parameters()})

    @parameterized.parameters(*MODELS)
    def test_embeddings_are_no_part_of_a_stack_and_position_tables_belong_to_them(self, name):
        model = model_of(name)
        table = part_table(model)
        for stack in stacks_of(model):
            self.assertFalse(table[stack].keys() & table["embeddings"].keys())
        frozen = freeze(model, "embeddings")
        self.assertIn(id(model.get_input_embeddings().weight), table["embeddings"])
        self.assertFalse([n for n in frozen if "relative_attention_bias" in n])
        if name in ("bart", "gpt2", "bert"):
            self.assertTrue([n for n in frozen if "position" in n or "wpe" in n])

    @parameterized.parameters(*MODELS)
    def test_layers_are_counted_in_each_stack(self, name):
        model = model_of(name)
        frozen = freeze(model, "layers:1")
        self.assertTrue(frozen)
        for parameter in frozen:
            self.assertIn(f"{LAYER[name]}.0.", parameter)
        self.assertEqual({n for n in names(model, True) if f"{LAYER[name]}.0." in n}, set())
        if name == "bart":
            self.assertEqual({n.split(".layers")[0] for n in frozen}, {"model.encoder", "model.decoder"})
        if name != "bart":  # whose stacks differ in length; all layers of a stack may be frozen
            self.assertTrue(any(f"{LAYER[name]}.1." in n for n in freeze(model_of(name), "layers:2")))

    def test_patterns_freeze_and_thaw(self):
        model = model_of("t5")
        frozen = freeze(model, "encoder", freeze_regex=r"decoder.*\.wo\.", unfreeze_regex="layer_norm")
        self.assertTrue(all(("encoder" in n or ".wo." in n) and "layer_norm" not in n for n in frozen))
        self.assertTrue([n for n in frozen if n.startswith("decoder")])
        self.assertTrue([n for n in names(model, True) if n.startswith("encoder")])

    def test_any_name_of_a_tied_parameter_is_found(self):
        self.assertEqual(freeze(model_of("t5"), freeze_regex="^lm_head"), ["shared.weight"])
        self.assertEqual(freeze(model_of("t5_v1_1"), freeze_regex="^lm_head"), ["lm_head.weight"])

    def test_frozen_embeddings_of_a_tied_model_say_that_they_are_the_output_layer(self):
        with self.assertLogs("t5suite.models.freezing", "WARNING") as log:
            freeze(model_of("t5"), "embeddings")
        self.assertIn("one matrix (shared.weight", log.output[0])
        with self.assertNoLogs("t5suite.models.freezing", "WARNING"):
            freeze(model_of("t5_v1_1"), "embeddings")

    @parameterized.parameters(
        ("t5", {"parts": "encodr"}, "no part 'encodr'; did you mean encoder"),
        ("gpt2", {"parts": "encoder"}, "GPT2LMHeadModel has no part 'encoder'; did you mean decoder"),
        ("t5", {"parts": "layers:3"}, "the encoder has 2 layers"),
        ("t5", {"parts": "layers"}, "give the number of layers, such as layers:2"),
        ("t5", {"parts": "layers:0"}, "give the number of layers"),
        ("t5", {"parts": "embeddings:1"}, "layers are counted in encoder and decoder"),
        ("t5", {"parts": "encoder,decoder,embeddings"}, "every parameter"),
        ("t5", {"parts": " , "}, "nothing is left to freeze"),
        ("t5", {"freeze_regex": "lm_heads.weight"}, "found in no parameter's name; there are lm_head.weight"),
        ("t5", {"freeze_regex": "(["}, "not a regular expression"),
        ("t5", {"parts": "encoder", "unfreeze_regex": "decoder"}, "name no such parameter"),
        ("t5", {"unfreeze_regex": "decoder"}, "name no such parameter"),
    )
    def test_what_freezes_nothing_or_everything_is_refused(self, name, settings, message):
        with exits_with(78, message):
            freeze(model_of(name), **settings)


class TrainingTest(parameterized.TestCase):
    @parameterized.parameters("--optimizer=adamw_rms", "--optim=adamw_torch")
    @pytest.mark.slow
    def test_frozen_parameters_stay_to_the_bit_and_take_no_optimizer_state(self, optimizer):
        trainers = []

        def train(trainer, *args, **kwargs):
            trainers.append(trainer)
            before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
            output = original(trainer, *args, **kwargs)
            for name, parameter in trainer.model.named_parameters():
                self.assertEqual(torch.equal(before[name], parameter), not parameter.requires_grad, name)
                self.assertTrue(parameter.requires_grad or parameter.grad is None, name)
            return output

        original = SuiteTrainer.train
        run("--freeze", "encoder,embeddings", optimizer, "--schedule", "constant", "--eval_strategy", "no", train=train)
        optimizer = getattr(trainers[0].optimizer, "optimizer", trainers[0].optimizer)
        trained = {id(p) for p in trainers[0].model.parameters() if p.requires_grad}
        self.assertEqual({id(p) for p in optimizer.state}, trained)
