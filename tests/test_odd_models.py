"""Laws 9 and 12: a model whose values, types, memory, settings or tokenizer are wrong is refused by its true cause.

Every door is a public one: the scripts, `t5suite predict` and `export`, `FineTuner`.
"""

import functools
import itertools
import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from absl.testing import absltest, parameterized
from safetensors.torch import load_file, save_file
from support import folder, later_wins
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

import fine_tune_t5
import pre_train_t5
from t5suite import FineTuner
from t5suite.testing import (
    TINY_T5,
    bundled_model,
    exits_with,
    run_cli,
    save_model,
    tiny_model,
    tiny_tokenizer,
    tiny_trainer,
    tiny_tuner,
)

WEIGHTS, PICKLE = "model.safetensors", "pytorch_model.bin"
ROW = "sentiment text: a good film\n"
NAN, INFINITE = float("nan"), float("inf")
QUIET = ("--disable_tqdm", "True", "--use_cpu", "True", "--max_steps", "1")


def new_path() -> str:
    return str(folder() / "output")


def predict(model, *flags):
    rows = folder() / "rows.txt"
    rows.write_text(ROW)
    words = ["--model_name_or_path", str(model), "--input", str(rows), "--raw", "--max_new_tokens", "2"]
    run_cli("predict", *words, "--output", new_path(), *flags)


def export(model, *flags):
    run_cli("export", "--model_name_or_path", str(model), "--output_dir", new_path(), *flags)


def fine_tune(model, *flags, output=None, name="--model_name_or_path"):
    output = output or new_path()
    rows = ("--dataset_name", "sentiment", "--max_train_samples", "8", "--no_eval", "True")
    words = [name, str(model), "--output_dir", output, *rows, "--save_strategy", "no", *QUIET]
    fine_tune_t5.main(later_wins(words, flags))
    return output


def initialize(model):
    fine_tune(model, name="--init_checkpoint")


def pre_train(model, *flags):
    output = new_path()
    pre_train_t5.main(
        ["--model_name_or_path", str(model), "--output_dir", output, "--inputs_length", "32", *QUIET, *flags]
    )
    return output


def with_fine_tuner(model):
    tiny_tuner(str(model))


def loaded(model, **flags):
    """The model of a folder as a run loads it, with the bundled tokenizer."""
    return tiny_tuner(str(model), tokenizer=tiny_tokenizer(), **flags).model


READING = {"predict": predict, "export": export, "fine_tune": fine_tune, "FineTuner": with_fine_tuner}
TRAINED = {**READING, "pre_train": pre_train}
ALL = {**TRAINED, "init_checkpoint": initialize}


def named(table):
    """A table's keys as parameters with names."""
    return [(case, case) for case in table]


def in_turn(cases, others):
    """Every case with one of the others, each in its turn, as parameters with names."""
    return [(f"{case}_{other}", case, other) for case, other in zip(cases, itertools.cycle(others))]


def all_in_turn(cases, others):
    """Every case with one of the others, and then with each of the others that are left; names that sort in this order."""
    first = [(case, other) for _, case, other in in_turn(cases, others)]
    pairs = first + [pair for pair in itertools.product(cases, others) if pair not in first]
    return [(f"{number:02}_{case}_{other}", case, other) for number, (case, other) in enumerate(pairs)]


@functools.cache
def base_folder() -> Path:
    """A model without flaws; only read it."""
    return save_model(Path(tempfile.mkdtemp()) / "base", tiny_model(config_overrides="", scale=1.0))


class OddModels(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.base = base_folder()

    def copy(self) -> Path:
        path = folder() / "odd"
        shutil.copytree(self.base, path)
        return path

    def with_weights(self, change, file=WEIGHTS) -> Path:
        """A copy with changed tensors, as safetensors or as a pickle."""
        path = self.copy()
        tensors = load_file(path / WEIGHTS)
        change(tensors)
        (path / WEIGHTS).unlink()
        if file == PICKLE:
            torch.save(tensors, path / PICKLE)
        else:
            save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
        return path

    def with_settings(self, file="config.json", **settings) -> Path:
        path = self.copy()
        content = json.loads((path / file).read_text())
        (path / file).write_text(json.dumps({**content, **settings}))
        return path


def spoil(value):
    def change(tensors):
        tensors["shared.weight"][3, 2:4] = value
        tensors["encoder.final_layer_norm.weight"][0] = value

    return change


def as_type(dtype):
    def change(tensors):
        name = "decoder.block.0.layer.2.DenseReluDense.wo.weight"
        tensors[name] = (tensors[name] * 100).to(dtype)

    return change


class ValuesTest(OddModels):
    @parameterized.named_parameters(*in_turn(ALL, (NAN, -INFINITE)))
    @pytest.mark.quick_cases(1)
    def test_weights_that_are_not_finite_are_refused_by_name(self, door, value):
        model = self.with_weights(spoil(value), WEIGHTS if value == -INFINITE else PICKLE)
        counts = r"2 of its tensors: .*shared.weight \(2 of 39744 values\)"
        with exits_with(65, counts) as caught:
            ALL[door](model)
        self.assertIn(str(model), str(caught.exception))
        self.assertIn("encoder.final_layer_norm.weight (1 of 64 values)", str(caught.exception))

    @parameterized.named_parameters(*in_turn(ALL, ("int8", "int32", "bool")))
    @pytest.mark.quick_cases(1)
    def test_integers_for_floating_point_weights_are_refused_by_name(self, door, dtype):
        model = self.with_weights(as_type(getattr(torch, dtype)), PICKLE if dtype == "bool" else WEIGHTS)
        named = rf"1 tensors are stored as integers.*decoder.block.0.layer.2.DenseReluDense.wo.weight \({dtype}\)"
        with exits_with(65, named):
            ALL[door](model)

    def test_complex_numbers_are_called_so(self):
        model = self.with_weights(as_type(torch.complex64), PICKLE)
        with exits_with(65, r"1 tensors are stored as complex numbers, .*wo.weight \(complex64\)"):
            predict(model)

    def test_nothing_but_zeros_is_refused_and_some_matrices_of_zeros_are_warned_of(self):
        def empty(tensors):
            for name in tensors:
                tensors[name] = torch.zeros_like(tensors[name])

        model = self.with_weights(empty)
        for door in (predict, fine_tune):
            with exits_with(65, f"{model}: all [0-9]+ matrices hold nothing but 0"):
                door(model)

        def cut(tensors):
            tensors["shared.weight"] = torch.zeros_like(tensors["shared.weight"])
            query = tensors["encoder.block.0.layer.0.SelfAttention.q.weight"]
            query[0, 0] = query[-1, -1] = 0

        with self.assertLogs("t5suite", "WARNING") as logs:
            loaded(self.with_weights(cut))
        self.assertRegex("\n".join(logs.output), "1 of [0-9]+ matrices hold nothing but 0, .*: shared.weight(\n|$)")

    def test_a_shard_with_nan_is_named(self):
        model = self.copy()
        T5ForConditionalGeneration.from_pretrained(self.base).save_pretrained(model, max_shard_size="300KB")
        (model / WEIGHTS).unlink()
        index = json.loads((model / f"{WEIGHTS}.index.json").read_text())["weight_map"]
        shard = index["decoder.final_layer_norm.weight"]
        tensors = load_file(model / shard)
        tensors["decoder.final_layer_norm.weight"][5] = NAN
        save_file(tensors, model / shard, metadata={"format": "pt"})
        with exits_with(65, rf"{shard}: .*decoder.final_layer_norm.weight \(1 of 64 values\)"):
            predict(model)

    @parameterized.parameters("lora", "prompt_tuning")
    @pytest.mark.quick_cases(1)
    def test_an_adapter_with_nan_is_refused(self, kind):
        run = tiny_tuner(str(self.base), "mini/sentiment", adapter=kind).save(folder() / "adapter")
        file = run / "adapter_model.safetensors"
        tensors = load_file(file)
        next(iter(tensors.values())).view(-1)[0] = NAN
        save_file(tensors, file, metadata={"format": "pt"})
        for door in (predict, export) if kind == "lora" else (predict,):
            with exits_with(65, r"adapter_model.safetensors: NaN or infinite values in 1 of"):
                door(run)

    def test_a_model_in_memory_with_nan_is_refused(self):
        model = T5ForConditionalGeneration.from_pretrained(self.base)
        with torch.no_grad():
            model.shared.weight[0, 0] = NAN
        with exits_with(65, r"in memory: NaN or infinite values in 1 of.*shared.weight \(1 of"):
            FineTuner(model, tokenizer=str(self.base), quiet=True, output_dir=new_path())

    def test_finite_weights_that_overflow_end_a_training_with_their_cause(self):
        def enlarge(tensors):
            for name in tensors:
                tensors[name] = tensors[name] * 1e30

        with exits_with(70, "none of the 1 updates was applied.*damaged or far too large"):
            fine_tune(self.with_weights(enlarge))

    def test_integer_buffers_of_old_checkpoints_still_load(self):
        """BERT's positions were saved until transformers 4.31, and are integers by right."""
        from transformers import BertConfig, BertForMaskedLM

        path = folder()
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        model = BertForMaskedLM(BertConfig(vocab_size=640, max_position_embeddings=32, **sizes))
        model.save_pretrained(path)
        tensors = load_file(path / WEIGHTS)
        tensors["bert.embeddings.position_ids"] = torch.arange(32)[None]
        save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
        embeddings = loaded(path).bert.embeddings.word_embeddings.weight
        self.assertTrue(torch.equal(embeddings, model.bert.embeddings.word_embeddings.weight))


class SharedMemoryTest(OddModels):
    def untied_pickle(self) -> Path:
        """What plain transformers 5 writes of a v1.1: it ties every T5, and the configuration says that it is not."""
        path = self.copy()
        settings = json.loads((path / "config.json").read_text())
        model = T5ForConditionalGeneration(T5Config(**{**settings, "tie_word_embeddings": True}))
        self.assertIs(model.lm_head.weight, model.shared.weight)
        (path / WEIGHTS).unlink()
        torch.save(model.state_dict(), path / PICKLE)
        (path / "config.json").write_text(json.dumps({**settings, "tie_word_embeddings": False}))
        return path

    @pytest.mark.slow
    def test_an_output_layer_in_the_embeddings_memory_becomes_a_weight_of_its_own(self):
        model = self.untied_pickle()
        run = Path(fine_tune(model))
        saved = load_file(run / WEIGHTS)
        self.assertContainsSubset({"lm_head.weight", "shared.weight"}, saved)
        self.assertFalse(torch.equal(saved["lm_head.weight"], saved["shared.weight"]))
        plain, report = T5ForConditionalGeneration.from_pretrained(run, output_loading_info=True)
        self.assertEmpty(report["missing_keys"])
        self.assertEmpty(report["unexpected_keys"])
        for name, value in saved.items():
            self.assertTrue(torch.equal(plain.state_dict()[name], value), name)
        predict(run)

    def test_two_matrices_in_one_memory_are_two_weights(self):
        names = [f"decoder.block.0.layer.0.SelfAttention.{part}.weight" for part in "qk"]
        model = self.with_weights(lambda tensors: tensors.update({names[1]: tensors[names[0]]}), PICKLE)
        whole = loaded(model)
        first, second = (whole.get_parameter(name) for name in names)
        self.assertTrue(torch.equal(first, second))
        with torch.no_grad():
            first.add_(1)
        self.assertTrue(torch.equal(first, second + 1))

    def test_matrices_that_overlap_in_one_buffer_are_two_weights(self):
        names = [f"decoder.block.0.layer.0.SelfAttention.{part}.weight" for part in "qk"]
        buffer = torch.randn(65 * 64)
        parts = buffer[: 64 * 64].view(64, 64), buffer[64:].view(64, 64)
        whole = loaded(self.with_weights(lambda tensors: tensors.update(zip(names, parts, strict=True)), PICKLE))
        for name, part in zip(names, parts, strict=True):
            self.assertTrue(torch.equal(whole.get_parameter(name), part))
        with torch.no_grad():
            whole.get_parameter(names[0]).add_(1)
        self.assertTrue(torch.equal(whole.get_parameter(names[1]), parts[1]))


# Settings of a T5 with what the message says of each.
SETTINGS = {
    "epsilon_nan": ({"layer_norm_epsilon": NAN}, "layer_norm_epsilon is nan"),
    "epsilon_negative": ({"layer_norm_epsilon": -1e-6}, "layer_norm_epsilon is -1e-06; give a number of at least 0"),
    "no_heads": ({"num_heads": 0}, "num_heads is 0; give a whole number of at least 1"),
    "half_a_head": ({"num_heads": 2.5}, "num_heads is 2.5; give a whole number of at least 1"),
    "heads_as_text": ({"num_heads": "4"}, "num_heads is '4'; give a whole number"),
    "dropout": ({"dropout_rate": 2}, "dropout_rate is 2; give a number of at least 0 and below 1"),
    "initial_nan": ({"initializer_factor": NAN}, "initializer_factor is nan"),
    "initial_infinite": ({"initializer_factor": INFINITE}, "initializer_factor is inf"),
    "initial_negative": ({"initializer_factor": -1.0}, "initializer_factor is -1.0"),
    "no_key_size": ({"d_kv": 0}, "d_kv is 0"),
    "layers": ({"num_layers": -1}, "num_layers is -1"),
    "no_rows": ({"vocab_size": 0}, "vocab_size is 0"),
    "buckets": ({"relative_attention_num_buckets": 2}, "relative_attention_num_buckets is 2"),
    "distance": ({"relative_attention_max_distance": 0}, "relative_attention_max_distance is 0"),
    "beyond any float": ({"relative_attention_max_distance": 10**400}, "relative_attention_max_distance is 1000"),
    "near": ({"relative_attention_max_distance": 16}, "relative_attention_max_distance is 16; give one above half"),
    "switch": ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; give true or false"),
    "dtype": ({"dtype": "float99"}, "dtype is 'float99'"),
}
GENERATION = {
    "beams": ({"num_beams": 0}, "num_beams is 0; give a whole number of at least 1"),
    "length": ({"max_length": 0}, "max_length is 0"),
    "penalty": ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0; give a number above 0"),
    "temperature": ({"temperature": NAN}, "temperature is nan"),
    "tokens": ({"suppress_tokens": "x"}, "suppress_tokens is 'x'; give a list"),
    "contradiction": ({"min_length": 50, "max_length": 5}, "min_length is 50, above max_length, 5"),
}


class SettingsTest(OddModels):
    @parameterized.named_parameters(*in_turn(SETTINGS, READING))
    def test_a_setting_that_no_model_can_have_is_refused_by_key_and_file(self, case, door):
        settings, message = SETTINGS[case]
        model = self.with_settings(**settings)
        with exits_with(78, f"{model}/config.json: {message}"):
            READING[door](model)

    @parameterized.named_parameters(*in_turn(GENERATION, READING))
    def test_generation_settings_that_cannot_be_are_refused_by_key_and_file(self, case, door):
        settings, message = GENERATION[case]
        model = self.with_settings("generation_config.json", **settings)
        with exits_with(78, f"{model}/generation_config.json: {message}"):
            READING[door](model)

    @parameterized.parameters(
        {"prompt_lookup_num_tokens": 10}, {"dola_layers": "high"}, {"penalty_alpha": 0.5, "top_k": 4},
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}, {"stop_strings": ["x"]},
        {"guidance_scale": 1.5}, {"low_memory": True}, {"token_healing": True},
    )  # fmt: skip
    @pytest.mark.quick_cases(1)
    def test_ways_to_decode_that_a_batch_cannot_have_are_left_out_with_a_warning(self, **settings):
        model = self.with_settings("generation_config.json", **settings)
        with self.assertLogs("t5suite", "WARNING") as logs:
            loaded(model)
        name = {"num_beams": "num_beam_groups"}.get(next(iter(settings)), next(iter(settings)))
        self.assertRegex("\n".join(logs.output), f"not used here: .*{name}")
        predict(model, "--num_beams", "4" if name == "low_memory" else "1")

    def test_settings_of_a_model_in_memory_are_checked_as_those_of_a_folder(self):
        model = tiny_model()
        model.generation_config.update(dola_layers="high", penalty_alpha=0.5)
        with self.assertLogs("t5suite", "WARNING") as logs:
            tuner = tiny_tuner(model, tokenizer=tiny_tokenizer())
        self.assertRegex("\n".join(logs.output), "not used here: dola_layers, penalty_alpha")
        self.assertLen(tuner.predict(["A good film."], raw=True, num_beams=1), 1)
        for settings, message in (
            ({"num_beams": "four"}, "num_beams is 'four'"),
            ({"eos_token_id": 9999}, "eos_token_id is 9999"),
        ):
            model = tiny_model()
            model.generation_config.update(**settings)
            with exits_with(78, f"model: .*T5ForConditionalGeneration: {message}"):
                tiny_tuner(model, tokenizer=tiny_tokenizer())

    @parameterized.parameters({"diversity_penalty": 0.0}, {"guidance_scale": 1.0, "penalty_alpha": 0.0})
    def test_ways_to_decode_are_not_left_out_where_they_have_no_effect(self, **settings):
        model = self.with_settings("generation_config.json", **settings)
        with self.assertNoLogs("t5suite", "WARNING"):
            loaded(model)
        predict(model)

    @parameterized.parameters(
        {"length_penalty": 2.0, "temperature": 0.9}, {"temperature": 0.0, "eos_token_id": [1, 2]}, {}
    )
    @pytest.mark.quick_cases(1)
    def test_settings_of_generation_are_saved_as_they_stand(self, **settings):
        """Alone a temperature has no effect, but with `--do_sample` it has one."""
        model = self.with_settings("generation_config.json", pad_token_id=5, **settings)
        tuner = tiny_tuner(str(model), "mini/sentiment", tokenizer=tiny_tokenizer())
        saved = tuner.save(folder() / "saved")
        trained = new_path()
        tiny_trainer(model=tuner.model).save_model(trained)
        exported = new_path()
        run_cli("export", "--model_name_or_path", model, "--output_dir", exported)
        for path in (saved, trained, exported):
            stored = json.loads((Path(path) / "generation_config.json").read_text())
            self.assertEqual(stored | settings, stored)

    def test_settings_of_generation_are_written_as_transformers_writes_them(self):
        model = tiny_model()
        paths = [folder() / "stock", folder() / "saved"]
        model.save_pretrained(paths[0])
        tiny_trainer(model=model).save_model(paths[1])
        files = [(path / "generation_config.json").read_bytes() for path in paths]
        self.assertEqual(files[0], files[1])

    @parameterized.parameters(fine_tune, pre_train)
    @pytest.mark.slow
    def test_so_it_is_in_whole_runs(self, train):
        output = train(self.with_settings("generation_config.json", pad_token_id=5, temperature=0.5))
        stored = json.loads((Path(output) / "generation_config.json").read_text())
        self.assertEqual(stored["temperature"], 0.5)

    def test_a_configuration_of_another_width_says_so(self):
        with exits_with(65, "config.json describes another model than these weights"):
            predict(self.with_settings(d_model=60))

    def test_a_number_that_no_float_holds_is_too_large(self):
        with exits_with(78, "d_model is 10+"):
            predict(self.with_settings(d_model=10**400))

    def test_changes_on_the_command_line_face_the_same_checks(self):
        with exits_with(78, "--config_overrides d_ff=64,dropout_rate=3.0: dropout_rate is 3.0"):
            fine_tune(bundled_model(), "--config_overrides", "d_ff=64,dropout_rate=3.0", name="--config_name")

    def test_sizes_and_rates_at_the_edges_pass(self):
        """As published configurations have them, some for other types of models."""
        edges = {
            "dropout_rate": 0, "eps": None, "d_head": [1, 2], "classifier_dropout": 0.0, "encoder_layerdrop": 0.0,
            "num_beams": 4, "max_length": 142, "time_step_limit": [0.0, INFINITE], "n_groups": 1,
            "task_specific_params": {"other": {"num_heads": 0, "eps": 7}}, "torch_dtype": "float32",
        }  # fmt: skip
        predict(self.with_settings(**edges))
        generation = {"max_length": None, "eos_token_id": [1, 2], "temperature": 0.0}
        predict(self.with_settings("generation_config.json", **generation))


@functools.cache
def adapter_folder(base: Path) -> Path:
    """A LoRA of rank 2 over a model, with a tokenizer; only read it."""
    from peft import LoraConfig, get_peft_model

    path = folder() / "adapter"
    rank = LoraConfig(r=2, target_modules=["q", "v"], task_type="SEQ_2_SEQ_LM")
    get_peft_model(T5ForConditionalGeneration.from_pretrained(base), rank).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


class AdaptersTest(OddModels):
    """Adapters as PEFT writes them, over the base model of these tests."""

    def adapter(self, base=None, change=None, **settings) -> Path:
        """An adapter's folder with a tokenizer, its tensors changed, and with other settings."""
        path = Path(shutil.copytree(adapter_folder(base or self.base), folder() / "adapter"))
        file = path / "adapter_config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
        if change:
            tensors = load_file(path / "adapter_model.safetensors")
            change(tensors)
            save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
        return path

    def test_an_adapters_base_is_a_whole_model(self):
        itself = self.adapter()
        settings = json.loads((itself / "adapter_config.json").read_text())
        (itself / "adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": str(itself)}))
        another = self.adapter(base_model_name_or_path=str(self.adapter()))
        for door in (predict, with_fine_tuner):
            with exits_with(78, "base model of this adapter is its own folder; name a whole"):
                door(itself)
        for door in (export, fine_tune):
            with exits_with(78, "which holds an adapter, too; name a whole model by --adapter_ba"):
                door(another)

    def test_a_rank_without_weights_is_refused_before_memory_is_made_for_it(self):
        model = self.adapter(r=10**9)
        with exits_with(78, "adapter_config.json: r is 1000000000, but no tensor of .* than 64"):
            predict(model)

    @pytest.mark.slow
    def test_tensors_of_another_base_or_half_an_adapter_are_named(self):
        def halve(tensors):
            for name in [name for name in tensors if "decoder" in name]:
                del tensors[name]

        with exits_with(78, r"missing \(8\): .*decoder.block.0.layer.0.*; name the base model"):
            predict(self.adapter(change=halve))
        wide = folder() / "wide"
        settings = {**json.loads((self.base / "config.json").read_text()), "d_model": 32}
        T5ForConditionalGeneration(T5Config(**settings)).save_pretrained(wide)
        model = self.adapter(base=wide)
        with exits_with(78, r"reshaped \(10\): .*lora_A.weight \(\(2, 32\), not \(2, 64\)\)"):
            predict(model, "--adapter_base", str(self.base))

    def test_an_adapter_without_a_tokenizer_names_its_bases(self):
        model = self.adapter()
        for file in model.glob("*token*"):
            file.unlink()
        with exits_with(78, f"give its base's by --tokenizer_name {self.base}$"):
            predict(model)
        predict(model, "--tokenizer_name", str(self.base))


# Sizes that no machine has room for, with what the message says.
SIZES = {
    "layers": ({"num_layers": 10**7}, 65, "config.json: num_layers is 10000000, but its weights are 42 tensors"),
    "decoder": ({"num_decoder_layers": 3000}, 65, "num_decoder_layers is 3000, but its weights are 42 tensors"),
    "rows": ({"vocab_size": 10**9}, 65, r"shared.weight \(621x64, not 1000000000x64\); config.json describes an"),
    "width": ({"d_ff": 10**8}, 65, r"DenseReluDense.wi.weight \(256x64, not 100000000x64\)"),
    "heads": ({"num_heads": 10**8}, 65, r"SelfAttention.k.weight \(64x64, not 1600000000x64\)"),
    "beyond_torch": ({"vocab_size": 10**30}, 78, "vocab_size is 10{30}; give .* of at most 1e[+]09"),
}


class SizesTest(OddModels):
    @parameterized.named_parameters(*named(SIZES))
    @pytest.mark.quick_cases(1)
    def test_a_configuration_of_a_far_larger_model_is_refused_before_that_model_is_made(self, case):
        """In a second and without memory: transformers makes 10^7 layers for hours, and asks for 256 GB of rows."""
        settings, exit_code, message = SIZES[case]
        model = self.with_settings(**settings)
        for door in (predict, with_fine_tuner):
            with exits_with(exit_code, message):
                door(model)

    def test_a_pickle_and_shards_are_measured_too(self):
        for file in (PICKLE, INDEX):
            model = self.with_settings(num_layers=10**7)
            tensors = load_file(model / WEIGHTS)
            (model / WEIGHTS).unlink()
            if file == PICKLE:
                torch.save(tensors, model / PICKLE)
            else:
                shard = "model-00001-of-00001.safetensors"
                save_file(tensors, model / shard, metadata={"format": "pt"})
                (model / INDEX).write_text(json.dumps({"weight_map": dict.fromkeys(tensors, shard)}))
            with exits_with(65, "num_layers is 10000000, but its weights are 42 tensors"):
                predict(model)

    def test_sizes_without_tensors_of_their_own_may_be_large(self):
        """Positions that are computed, and distances: 128 Ki of them need no memory."""
        from transformers import LlamaConfig, LlamaForCausalLM

        path = folder()
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        LlamaForCausalLM(LlamaConfig(vocab_size=640, max_position_embeddings=2**40, **sizes)).save_pretrained(path)
        loaded(path)
        predict(self.with_settings(relative_attention_max_distance=10**12))


# Ids for which a model of 621 pieces has no embedding, by file.
IDS = {
    "start": ("config.json", {"decoder_start_token_id": 99999}, "decoder_start_token_id is 99999"),
    "pad": ("config.json", {"pad_token_id": 99999}, "pad_token_id is 99999"),
    "end": ("config.json", {"eos_token_id": 621}, "eos_token_id is 621"),
    "below": ("config.json", {"decoder_start_token_id": -3}, "decoder_start_token_id is -3"),
    "forced": ("generation_config.json", {"forced_bos_token_id": 99999}, "forced_bos_token_id is 99999"),
    "suppressed": ("generation_config.json", {"suppress_tokens": [5, 99999]}, "suppress_tokens is 99999"),
    "generated": ("generation_config.json", {"eos_token_id": 99999}, "eos_token_id is 99999"),
}


class TokenizerTest(OddModels):
    def with_pieces(self, model, change) -> Path:
        """A copy of a folder with other pieces in its tokenizer.json."""
        path = folder() / "odd"
        shutil.copytree(model, path)
        file = path / "tokenizer.json"
        content = json.loads(file.read_text())
        change(content["model"]["vocab"])
        file.write_text(json.dumps(content))
        return path

    @parameterized.named_parameters(*all_in_turn(IDS, READING))
    @pytest.mark.quick_cases(len(IDS))
    def test_ids_beyond_the_vocabulary_are_refused_by_key_and_file(self, case, door):
        file, settings, message = IDS[case]
        model = self.with_settings(file, **settings)
        with exits_with(78, f"{file}: {message}, and the model has embeddings for the ids 0 to 620"):
            READING[door](model)

    def test_a_t5_whose_end_is_not_its_tokenizers_is_refused(self):
        with exits_with(78, "config.json: eos_token_id is 5, but the tokenizer's is 1"):
            predict(self.with_settings(eos_token_id=5))
        with exits_with(78, r"config.json: eos_token_id is \[5, 7\], but the tokenizer's is 1"):
            predict(self.with_settings(eos_token_id=[5, 7]))

    def test_a_vocabulary_that_was_cut_is_refused(self):
        model = self.with_pieces(self.base, lambda pieces: pieces.__delitem__(slice(len(pieces) // 3, None)))
        for door in READING.values():
            with exits_with(78, r"tokenizer.json declares ids .*<extra_id_99> is 207, not 521"):
                door(model)

    def test_a_tokenizer_of_far_fewer_pieces_is_warned_of(self):
        model = tiny_model()
        model.resize_token_embeddings(1024)
        path = save_model(folder(), model)
        with self.assertLogs("t5suite", "WARNING") as logs:
            loaded(path)
        self.assertIn("has embeddings for 1024 pieces, but its tokenizer has 621", "\n".join(logs.output))

    @pytest.mark.slow
    def test_another_tokenizer_than_the_folder_was_trained_with_is_refused_at_every_door(self):
        run = fine_tune(self.base, "--save_strategy", "steps", "--save_steps", "1")
        exported = new_path()
        run_cli("export", "--model_name_or_path", run, "--output_dir", exported)
        checkpoint = next(Path(run).glob("checkpoint-*"))

        def exchange(pieces):
            pieces[300], pieces[301] = pieces[301], pieces[300]

        for model in (run, exported):
            predict(model)
            odd = self.with_pieces(model, exchange)
            for door in TRAINED.values():
                with exits_with(78, "trained with another tokenizer.*its 621 pieces and their ids differ"):
                    door(odd)
        other = str(self.with_pieces(self.base, exchange))
        for model, door in ((run, fine_tune), (run, predict), (run, export), (checkpoint, predict)):
            with exits_with(78, "its 621 pieces and their ids differ"):
                door(model, "--tokenizer_name", other)

    @pytest.mark.slow
    def test_a_pre_trained_folder_and_an_adapter_name_their_tokenizer(self):
        def rescore(pieces):
            """Texts fall into characters."""
            pieces[10:] = [[piece, -100.0 if len(piece) > 2 else score] for piece, score in pieces[10:]]

        other = str(self.with_pieces(self.base, rescore))
        for run in (pre_train(self.base), fine_tune(self.base, "--adapter", "lora")):
            predict(run, "--tokenizer_name", str(self.base))
            with exits_with(78, "the same pieces, but splits texts otherwise"):
                predict(run, "--tokenizer_name", other)

    @pytest.mark.slow
    def test_added_tokens_stay_within_the_description(self):
        run = fine_tune(self.base)
        grown = fine_tune(run, "--add_tokens", "<turn>,<speaker>")
        predict(grown)
        with exits_with(78, "it had 623 pieces, and this one has 621"):
            predict(grown, "--tokenizer_name", run)

    def test_a_saved_tokenizer_is_known_again_and_others_are_not(self):
        def exchange(pieces):
            pieces[300], pieces[301] = pieces[301], pieces[300]

        path = tiny_tuner(str(self.base), "mini/sentiment").save(folder() / "model")
        AutoTokenizer.from_pretrained(path).save_pretrained(path)
        predict(path)
        with exits_with(78, "its 621 pieces and their ids differ"):
            predict(self.with_pieces(path, exchange))


def tokenizer_in(path):
    """The tokenizer of a folder as a run loads it."""
    return tiny_tuner(config_name="mini", config_overrides=TINY_T5, tokenizer=str(path), from_scratch=True).tokenizer


class SentencePieceTest(OddModels):
    """The ids of a folder with spiece.model alone are those of Google's SentencePiece."""

    TEXTS = ("The film was good.", "naïve ﬁnal: 3.14 (50%)", "你好 мир <b>", "  two  spaces", "zebra xylophone")

    def spiece(self, **settings) -> bytes:
        import io

        import sentencepiece

        words = "the film was good and a cat sat on it while rain fell over hills".split()
        lines = [" ".join(words[i:] + words[:i]) for i in range(len(words))] * 4
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, model_type="unigram", pad_id=0, eos_id=1,
            minloglevel=2, hard_vocab_limit=False, **settings,
        )  # fmt: skip
        return model.getvalue()

    @parameterized.named_parameters(
        ("t5", "t5", {"unk_id": 2, "bos_id": -1, "vocab_size": 60}, 100),
        ("mt5_bytes", "mt5", {"unk_id": 2, "bos_id": -1, "vocab_size": 320, "byte_fallback": True}, 100),
        ("umt5_bytes", "umt5", {"unk_id": 3, "bos_id": 2, "vocab_size": 320, "byte_fallback": True}, 100),
        (
            "umt5_sentinels", "umt5",
            {"unk_id": 3, "bos_id": 2, "vocab_size": 330, "byte_fallback": True,
             "user_defined_symbols": [f"<extra_id_{i}>" for i in range(9, -1, -1)]}, 0,
        ),
    )  # fmt: skip
    @pytest.mark.quick_cases(2)
    def test_ids_equal_sentencepieces(self, model_type, settings, num_added):
        import sentencepiece

        content = self.spiece(**settings)
        reference = sentencepiece.SentencePieceProcessor(model_proto=content)
        path = folder()
        (path / "spiece.model").write_bytes(content)
        (path / "config.json").write_text(json.dumps({"model_type": model_type, "vocab_size": 512}))
        tokenizer = tokenizer_in(path)
        for text in self.TEXTS:
            self.assertEqual(tokenizer(text)["input_ids"], [*reference.encode(text), 1], text)
        self.assertLen(tokenizer, reference.get_piece_size() + num_added)
        self.assertEqual(
            tokenizer.decode(tokenizer("rain fell <extra_id_0>")["input_ids"], skip_special_tokens=True).strip(),
            "rain fell",
        )
        saved = folder()
        tokenizer.save_pretrained(saved)
        self.assertEqual(tokenizer_in(saved).get_vocab(), tokenizer.get_vocab())

    def test_what_is_no_model_of_t5s_kind_is_refused(self):
        cases = {
            b"": "spiece.model is empty",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:1": "Git LFS's pointer",
            b"garbage": "not a SentencePiece model",
        }
        for content, message in cases.items():
            path = folder()
            (path / "spiece.model").write_bytes(content)
            with exits_with(78, message):
                tokenizer_in(path)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 242043056\n"
PAGE = b"<!DOCTYPE html>\n<html><head><title>404</title></head></html>"
INDEX = f"{WEIGHTS}.index.json"
# What stands in a file's place, by the file: its content, and what the message says.
FILES = {
    "pointer": (WEIGHTS, LFS, f"{WEIGHTS} is Git LFS's pointer to a file"),
    "page": (WEIGHTS, PAGE, f"{WEIGHTS} is a web page"),
    "nothing": (WEIGHTS, b"", f"{WEIGHTS} is empty"),
    "noise": (WEIGHTS, bytes(1000), f"{WEIGHTS}: not a weights file, or a truncated one"),
    "settings_page": ("config.json", PAGE, "config.json is a web page"),
    "settings_pointer": ("config.json", LFS, "config.json is Git LFS's pointer"),
    "settings_nothing": ("config.json", b"", "config.json is empty"),
    "settings_mark": ("config.json", b"\xef\xbb\xbf{}", "config.json is UTF-8 with a byte order mark"),
    "settings_utf16": ("config.json", "{}".encode("utf-16"), "config.json is UTF-16"),
    "settings_none": ("config.json", b"{}", "config.json has no model_type"),
    "tokenizer_page": ("tokenizer.json", PAGE, "tokenizer.json is a web page"),
    "tokenizer_pointer": ("tokenizer.json", LFS, "tokenizer.json is Git LFS's pointer"),
    "generation_page": ("generation_config.json", PAGE, "generation_config.json is a web page"),
}


class FilesTest(OddModels):
    def assert_refused(self, model, message, doors=READING):
        for door in doors:
            with self.assertRaisesRegex(ValueError, message) as refusal:
                READING[door](model)
            self.assertIn(refusal.exception.exit_code, (65, 78))

    @parameterized.named_parameters(*all_in_turn(FILES, READING))
    @pytest.mark.quick_cases(len(FILES))
    def test_what_stands_in_a_files_place_is_named(self, case, door):
        file, content, message = FILES[case]
        model = self.copy()
        (model / file).write_bytes(content)
        self.assert_refused(model, message, [door])

    @pytest.mark.slow
    def test_links_and_folders_in_a_files_place(self):
        for file in (WEIGHTS, "config.json"):
            model = self.copy()
            (model / file).unlink()
            (model / file).symlink_to(file)
            self.assert_refused(model, f"{file} is a link to '{file}', where there is no file")
            (model / file).unlink()
            (model / file).mkdir()
            self.assert_refused(model, f"{file} is a folder")

    def test_a_folder_without_a_model_names_the_models_below_it(self):
        path = folder()
        for door in TRAINED.values():
            with exits_with(78, f"{path}: no model in this folder: no config.json, no weights"):
                door(path)
        shutil.copytree(self.base, path / "checkpoint-2")
        for door in (predict, fine_tune, with_fine_tuner, pre_train):
            with exits_with(78, f"no weights; there are {path}/checkpoint-2"):
                door(path)
        with exits_with(78, "no weights; there are"):
            pre_train(path, "--tokenizer_name", str(self.base))
        link = folder() / "link"
        link.symlink_to(link)
        with exits_with(78, f"no such folder: it is a link to '{link}', where there is nothing"):
            predict(link)

    def test_a_file_in_place_of_a_folder_is_said_to_be_one(self):
        for door in TRAINED.values():
            with exits_with(78, f"{WEIGHTS}: a file; name the folder of the model"):
                door(self.base / WEIGHTS)

    @pytest.mark.slow
    def test_a_tokenizers_folder_suffices_for_random_weights(self):
        path = folder()
        tiny_tokenizer().save_pretrained(path)
        fine_tune(path, "--config_name", "mini")

    def test_a_file_that_is_cut_short_or_not_there(self):
        model = self.copy()
        content = (model / WEIGHTS).read_bytes()
        (model / WEIGHTS).write_bytes(content[: len(content) // 2])
        self.assert_refused(model, f"{WEIGHTS}: not a weights file, or a truncated one")
        for other, message in (
            ("model.safetensors.incomplete", "an unfinished download, model.safetensors.incomplete"),
            ("tf_model.h5", "tf_model.h5, a format that is not read"),
        ):
            model = self.copy()
            (model / WEIGHTS).rename(model / other)
            with exits_with(78, message):
                predict(model)
        model = self.copy()
        (model / "config.json").unlink()
        with exits_with(78, "there is no config.json in this folder"):
            predict(model)

    @parameterized.parameters(
        ("decoder_model.onnx", {}, "but decoder_model.onnx: ONNX files"),
        ("model.bin", {"model_type": None, "add_source_eos": False}, "but model.bin: CTranslate2's files"),
    )
    def test_exported_files_are_answered_from_by_predict_and_serve_alone(self, file, settings, message):
        model = self.copy()
        (model / WEIGHTS).rename(model / file)
        config = {**json.loads((model / "config.json").read_text()), **settings}
        config = {name: value for name, value in config.items() if value is not None}
        (model / "config.json").write_text(json.dumps(config))
        for door in (with_fine_tuner, fine_tune):
            with exits_with(78, f"{message}, from which t5suite predict and serve answer; .* name the model"):
                door(model)

    def sharded(self) -> tuple[Path, list[Path]]:
        model = self.copy()
        T5ForConditionalGeneration.from_pretrained(self.base).save_pretrained(model, max_shard_size="300KB")
        (model / WEIGHTS).unlink()
        return model, sorted(model.glob("model-*.safetensors"))

    @pytest.mark.slow
    def test_shards(self):
        model, shards = self.sharded()
        predict(model)
        shards[1].write_bytes(LFS)
        self.assert_refused(model, f"{shards[1].name} is Git LFS's pointer", ["predict", "fine_tune"])
        shards[1].unlink()
        self.assert_refused(model, f"1 of its shards are missing: {shards[1].name}", ["export"])
        (model / INDEX).write_bytes(PAGE)
        self.assert_refused(model, f"{INDEX} is a web page", ["FineTuner"])

    def test_a_tensor_in_two_shards_is_refused(self):
        model, shards = self.sharded()
        first, second = load_file(shards[0]), load_file(shards[1])
        name = next(iter(first))
        save_file({**second, name: first[name] + 1}, shards[1], metadata={"format": "pt"})
        self.assert_refused(model, f"{name} is both in {shards[0].name} and in {shards[1].name}")

    def test_a_pointer_that_nothing_reads_does_not_matter(self):
        model = self.copy()
        for name in (PICKLE, "spiece.model", "tf_model.h5"):
            (model / name).write_bytes(LFS)
        predict(model)

    @pytest.mark.slow
    def test_weights_of_another_model_or_in_a_wrapper_say_so(self):
        message = r"config.json \(model_type bert\) describes another model than these weights"
        with exits_with(65, message):
            export(self.with_settings(model_type="bert"))

        def wrap(tensors):
            for name in list(tensors):
                tensors[f"module.{name}"] = tensors.pop(name)

        def nest(tensors):
            inner = {f"model.{name}": tensors.pop(name) for name in list(tensors)}
            tensors.update(state_dict=inner, epoch=3)

        for model in (self.with_weights(wrap), self.with_weights(nest, PICKLE)):
            advice = f"weights inside of a wrapper: give them as --init_checkpoint {model}, with --config_name {model};"
            with exits_with(65, advice):
                predict(model)
            plain = tiny_tuner(init_checkpoint=str(model), config_name=str(model)).model.state_dict()
            expected = load_file(self.base / WEIGHTS)
            self.assertTrue(all(torch.equal(plain[name], value) for name, value in expected.items()))

    def test_a_copy_beside_the_weights_is_no_wrapper(self):
        double = lambda tensors: tensors.update({f"module.{name}": value + 1 for name, value in tensors.items()})
        with exits_with(65, r"unknown \(42\): .*; use a complete copy"):
            predict(self.with_weights(double))

    def test_an_unknown_type_and_code_of_its_own_are_said_to_be_so(self):
        for settings, message in (
            ({"model_type": "frobnicator"}, "its config.json has no model_type that transformers knows"),
            ({"auto_map": {"AutoConfig": "own.Own"}, "model_type": "own"}, "code of its own .*--trust_remote_code"),
        ):
            model = self.with_settings(**settings)
            for door in (predict, with_fine_tuner):
                with exits_with(78, f"^{model}: .*{message}"):
                    door(model)

    def test_a_tokenizer_that_is_cut_short_is_named(self):
        model = self.copy()
        (model / "spiece.model").unlink(missing_ok=True)
        content = (model / "tokenizer.json").read_text()
        (model / "tokenizer.json").write_text(content[: len(content) // 2])
        self.assert_refused(model, f"{model}/tokenizer.json:[0-9]+: not JSON")

    def test_an_empty_shard_of_deepspeed_is_named(self):
        model = self.copy()
        (model / WEIGHTS).unlink()
        shards = model / "global_step2"
        shards.mkdir()
        for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"):
            (shards / name).write_bytes(b"")
        (model / "latest").write_text("global_step2")
        with exits_with(74, "mp_rank_00_model_states.pt is empty"):
            export(model)

    def test_a_broken_record_of_an_adapters_base(self):
        model = self.copy()
        settings = {"peft_type": "LORA", "base_model_name_or_path": str(self.base), "task_type": "SEQ_2_SEQ_LM"}
        (model / "adapter_config.json").write_text(json.dumps({**settings, "r": 4, "target_modules": ["q"]}))
        (model / "adapter_base.json").write_text("{")
        with exits_with(78, "adapter_base.json:1: not JSON"):
            predict(model)


if __name__ == "__main__":
    absltest.main()
