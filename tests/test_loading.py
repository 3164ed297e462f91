"""Loading: tokens that a vocabulary lacks, weights in 8 or 4 bits, bare weights of any origin."""

import functools
import importlib.util
import json
import logging
import os
import pickle
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from absl.testing import absltest, parameterized
from safetensors.torch import save_file
from support import folder, later_wins
from transformers import AutoModelForSeq2SeqLM

import fine_tune_t5
from t5suite.testing import exits_with, save_model, tiny_model, tiny_tokenizer, tiny_tuner

SMALL = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"


@functools.cache
def saved(rows: int | None, tied: bool = True) -> str:
    """A trained model's folder, its vocabulary of the tokenizer's pieces and unused rows."""
    overrides = f"{SMALL},tie_word_embeddings={tied}" + (f",vocab_size={rows}" if rows else "")
    return str(save_model(folder(), tiny_model("mini", overrides)))


def loaded(path, **flags):
    """Tokenizer and model of a folder, as a run begins with them."""
    tuner = tiny_tuner(str(path), **flags)
    return tuner.tokenizer, tuner.model


class AddedTokensTest(parameterized.TestCase):
    @parameterized.product(tied=[False, True], spare=[0, 200])
    @pytest.mark.quick_cases(1)
    def test_new_rows_begin_as_the_mean_of_the_old_ones(self, tied, spare):
        pieces = len(tiny_tokenizer())
        folder = saved(pieces + spare, tied)
        _, before = loaded(folder)
        tokenizer, model = loaded(folder, add_tokens="<turn>,<extra_id_7>,<speaker>")  # one is there already
        ids = tokenizer.convert_tokens_to_ids(["<turn>", "<speaker>"])
        self.assertEqual(ids, [pieces, pieces + 1])
        for old, new in zip(
            *([m.get_input_embeddings().weight, m.get_output_embeddings().weight] for m in (before, model))
        ):
            torch.testing.assert_close(new[ids], old[:pieces].mean(0).expand(2, -1), rtol=0, atol=1e-6)
            self.assertTrue(torch.equal(new[:pieces], old[:pieces]))
            self.assertGreaterEqual(len(new), len(old))

    def test_t5_s_unused_rows_are_taken_first_and_never_shrunk(self):
        folder = saved(len(tiny_tokenizer()) + 28)
        _, one = loaded(folder, add_tokens="<turn>")
        self.assertLen(one.shared.weight, len(tiny_tokenizer()) + 28)
        _, many = loaded(folder, add_tokens=",".join(f"<w{n}>" for n in range(60)))
        self.assertGreaterEqual(len(many.shared.weight), len(tiny_tokenizer()) + 60)
        self.assertEqual(len(many.shared.weight) % 128, 0)

    def test_rows_that_were_trained_stay_where_their_words_are_added_again(self):
        tuner = tiny_tuner(saved(None), "mini/sentiment", add_tokens="<turn>")
        pieces = len(tiny_tokenizer())
        trained_row = torch.arange(32.0)
        with torch.no_grad():
            tuner.model.shared.weight[pieces] = trained_row
        place = tuner.save(folder())
        words = {"tokenizer": saved(None), "add_tokens": "<turn>,<speaker>"}
        weights = {"config_overrides": SMALL, "init_checkpoint": f"{place}/model.safetensors"}
        for _, model in (loaded(place, **words), loaded("mini", **words, **weights)):
            rows = model.shared.weight
            self.assertTrue(torch.equal(rows[pieces], trained_row))
            torch.testing.assert_close(rows[pieces + 1], rows[: pieces + 1].mean(0), rtol=0, atol=1e-6)

    @parameterized.parameters(
        ({"adapter": "lora"}, [0, 1]),
        ({"adapter": "prompt_tuning"}, [0, 1]),
        ({"freeze": "encoder,embeddings"}, [0, 1]),
        ({"adapter": "lora", "adapter_args": "trainable_token_indices=({0},)"}, [1]),
        ({"adapter": "lora", "adapter_args": "trainable_token_indices=({0},{1})"}, []),
        ({"freeze": "encoder"}, []),
    )
    @pytest.mark.quick_cases(2)
    def test_new_rows_that_stay_equal_are_named(self, flags, frozen):
        ids = [len(tiny_tokenizer()), len(tiny_tokenizer()) + 1]
        flags = {name: text.format(*ids) for name, text in flags.items()}
        with self.assertLogs("t5suite") as logs:
            loaded(saved(None), add_tokens="<turn>,<speaker>", **flags)
        text = "\n".join(logs.output)
        self.assertEqual("are frozen at the mean" in text, bool(frozen), text)
        if frozen:
            rows = ",".join(str(ids[place]) for place in frozen)
            self.assertIn(f"new tokens (ids {rows}) are frozen at the mean", text)
            self.assertIn(f"trainable_token_indices=({rows},)", text)

    @parameterized.parameters(
        ("head", "rows of the output layer"),
        ("embeddings", "embeddings"),
        ("embeddings,head", "embeddings and rows of the output layer"),
        ("encoder", None),
    )
    def test_new_rows_of_either_matrix_that_stay_equal_are_named(self, parts, frozen):
        with self.assertLogs("t5suite") as logs:
            tokenizer, model = loaded(saved(None, tied=False), add_tokens="<turn>,<speaker>", freeze=parts)
        ids = tokenizer.convert_tokens_to_ids(["<turn>", "<speaker>"])
        warnings = [line for line in logs.output if "--add_tokens" in line]
        self.assertEqual(len(warnings), frozen is not None)
        if frozen:
            self.assertIn(f"the {frozen} of the new tokens (ids {ids[0]},{ids[1]}) are frozen", warnings[0])
        matrices = {"embeddings": model.get_input_embeddings(), "rows of the output layer": model.lm_head}
        for part, module in matrices.items():
            self.assertEqual(module.weight.requires_grad, part not in (frozen or ""))

    def test_new_rows_that_were_trained_before_an_adapter_came_are_not_named(self):
        tokenizer, model = loaded(saved(None), add_tokens="<turn>,<speaker>")
        trained_id, frozen_id = tokenizer.convert_tokens_to_ids(["<turn>", "<speaker>"])
        with torch.no_grad():
            model.shared.weight[trained_id] += 0.01
        with self.assertLogs("t5suite", "WARNING") as logs:
            tiny_tuner(model, tokenizer=tokenizer, adapter="lora")
        self.assertIn(f"new tokens (ids {frozen_id}) are frozen at the mean", "\n".join(logs.output))

    def test_new_rows_of_an_output_layer_of_its_own_are_trained_with_the_model_alone(self):
        with self.assertLogs("t5suite", "WARNING") as logs:
            loaded(saved(None, tied=False), add_tokens="<turn>", adapter="lora")
        text = "\n".join(logs.output)
        self.assertIn(f"new tokens (ids {len(tiny_tokenizer())}) are frozen at the mean", text)
        self.assertNotIn("trainable_token_indices", text)

    def test_a_tokenizer_in_memory_stays_as_it_was(self):
        tokenizer = tiny_tokenizer()
        pieces = len(tokenizer)
        for _ in range(2):
            _, model = loaded(saved(pieces + 200), tokenizer=tokenizer, add_tokens="<turn>")
            rows = model.shared.weight
            torch.testing.assert_close(rows[pieces], rows[:pieces].mean(0), rtol=0, atol=1e-6)
        self.assertLen(tokenizer, pieces)

    def test_bare_weights_are_trained_ones(self):
        rows = len(tiny_tokenizer()) + 19
        weights = str(Path(saved(rows)) / "model.safetensors")
        overrides = f"{SMALL},tie_word_embeddings=True"
        _, model = loaded("mini", config_overrides=overrides, init_checkpoint=weights, add_tokens="<turn>")
        embeddings = model.shared.weight
        torch.testing.assert_close(embeddings[rows - 19], embeddings[: rows - 19].mean(0), rtol=0, atol=1e-6)

    def test_a_tied_weight_counts_once_though_bare_weights_have_both_of_its_names(self):
        overrides = f"{SMALL},tie_word_embeddings=True"
        _, model = loaded("mini", config_overrides=overrides)
        weights = folder() / "weights.pt"
        torch.save(model.state_dict(), weights)
        self.assertIn("encoder.embed_tokens.weight", model.state_dict())
        with self.assertLogs("t5suite", "INFO") as logs:
            loaded("mini", config_overrides=overrides, init_checkpoint=weights)
        count = len(list(model.parameters()))
        self.assertIn(f"{count} weights of {weights} are loaded", "\n".join(logs.output))

    @pytest.mark.slow
    def test_a_run_with_them_saves_what_loads_again(self):
        out, words = tempfile.mkdtemp(), Path(tempfile.mkdtemp()) / "words.txt"
        words.write_text("<turn>\n<speaker>\n")
        argv = ["--model_name_or_path", saved(None), "--add_tokens", str(words), "--max_train_samples", "16",
                "--max_eval_samples", "4", "--max_steps", "1", "--use_cpu", "--disable_tqdm", "True",
                "--per_device_train_batch_size", "8", "--eval_method", "score", "--output_dir", out]  # fmt: skip
        fine_tune_t5.main(argv)
        tokenizer, model = loaded(out)
        self.assertEqual(tokenizer.tokenize("<turn>"), ["<turn>"])
        rows = model.shared.weight[tokenizer.convert_tokens_to_ids(["<turn>", "<speaker>"])]
        self.assertGreaterEqual(len(model.shared.weight), len(tokenizer))
        self.assertLess(float(rows.abs().max()), 1.0)  # the mean, not noise of standard deviation 1

    @parameterized.parameters(
        ("x,y,x", ["x", "y"]),
        ("\ufeffä\r\nx\u2028y\n", ["ä", "x\u2028y"]),  # a byte-order mark is no part of a token
        (r"{,\n,\nabla", ["{", "\n", r"\nabla"]),
        ("a b\nc\n", ["a b", "c"]),
    )
    @pytest.mark.quick_cases(2)
    def test_lists_and_files(self, text, tokens):
        if text.endswith("\n"):
            path = folder() / "words"
            path.write_text(text, encoding="utf-8", newline="")
            text = str(path)
        tokenizer, _ = loaded(saved(None), add_tokens=text)
        pieces = set(tiny_tokenizer().get_vocab())
        self.assertCountEqual(set(tokenizer.get_vocab()) - pieces, set(tokens) - pieces)
        for token in tokens:
            self.assertEqual(tokenizer.decode(tokenizer(token)["input_ids"], skip_special_tokens=True), token)

    @parameterized.parameters(("x,,y", "token 2 is ''"), ("x, y", "token 2 is ' y'"), ("no.txt", "no such file"))
    def test_what_is_no_list_of_tokens_is_refused(self, text, message):
        with exits_with(78, message):
            loaded(saved(None), add_tokens=text)


HAS_LIBRARY = importlib.util.find_spec("bitsandbytes") is not None
FAST = ["--max_train_samples", "32", "--max_eval_samples", "8", "--max_steps", "3", "--per_device_train_batch_size",
        "8", "--use_cpu", "--disable_tqdm", "True", "--eval_method", "score"]  # fmt: skip


KINDS = ("8bit", "4bit")
find_spec = importlib.util.find_spec


def find_no_bitsandbytes(name, package=None):
    """`importlib.util.find_spec` where bitsandbytes is not installed."""
    return None if name.startswith("bitsandbytes") else find_spec(name, package)


def find_everything(name, package=None):
    """The same where it is installed."""
    return find_spec("json") if name.startswith("bitsandbytes") else find_spec(name, package)


@functools.cache
def base() -> str:
    model = tiny_model(config_overrides="d_model=64,d_kv=32,d_ff=128,num_layers=1,num_heads=2", scale=1.0)
    return str(save_model(folder(), model))


class QuantizationTest(parameterized.TestCase):
    @parameterized.parameters(*KINDS)
    def test_matrices_between_the_layers_shrink_and_answers_stay_near(self, kind):
        if not HAS_LIBRARY:
            self.skipTest("bitsandbytes is not installed")
        plain = loaded(base())[1].eval()
        model = loaded(base(), **{f"load_in_{kind}": True}, eval_only=True)[1].eval()
        matrix = model.decoder.block[0].layer[0].SelfAttention.q.weight
        self.assertFalse(matrix.dtype.is_floating_point)
        self.assertEqual(model.shared.weight.dtype, torch.float32)
        ids = torch.tensor([[5, 6, 7, 1]])
        with torch.no_grad():
            plain_logits, logits = (
                each(input_ids=ids, decoder_input_ids=ids).logits.flatten() for each in (plain, model)
            )
        self.assertGreater(float(torch.corrcoef(torch.stack([plain_logits, logits]))[0, 1]), 0.98)

    @parameterized.parameters(*KINDS)
    def test_lora_over_them_trains_and_its_adapter_loads_over_the_whole_model(self, kind):
        if not HAS_LIBRARY:
            self.skipTest("bitsandbytes is not installed")
        out = tempfile.mkdtemp()
        argv = ["--model_name_or_path", base(), f"--load_in_{kind}", "--adapter", "lora", "--output_dir", out]
        fine_tune_t5.main(later_wins([*FAST, *argv]))
        self.assertTrue((Path(out) / "adapter_model.safetensors").is_file())
        trained = [weight for name, weight in loaded(out)[1].named_parameters() if "lora_B" in name]
        self.assertTrue(any(weight.abs().max() > 0 for weight in trained))

    def test_what_cannot_be_is_refused_by_name(self):
        with exits_with(78, "give one of them"):
            loaded(base(), load_in_8bit=True, load_in_4bit=True, adapter="lora")
        with (
            mock.patch("importlib.util.find_spec", find_no_bitsandbytes),
            exits_with(78, r"--load_in_4bit .* pip install 't5suite\[quantization\]'"),
        ):
            loaded(base(), load_in_4bit=True, adapter="lora")
        with mock.patch("importlib.util.find_spec", find_everything), exits_with(78, "these would be random"):
            tiny_tuner(load_in_4bit=True, adapter="lora")

    def test_trained_weights_are_no_random_ones(self):
        with (
            mock.patch("importlib.util.find_spec", find_everything),
            mock.patch("transformers.BitsAndBytesConfig", side_effect=LookupError("reached")) as config,
            self.assertRaisesRegex(LookupError, "reached"),
        ):
            loaded(base(), load_in_4bit=True, adapter="lora")
        self.assertTrue(config.call_args.kwargs["load_in_4bit"])


class MemoryTest(parameterized.TestCase):
    @parameterized.parameters(
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        MemoryError("Cannot allocate memory (os error 12)"),
    )
    def test_a_model_that_does_not_fit_is_not_called_damaged(self, error):
        message = r"--model_name_or_path .*: the model does not fit into memory \(.* allocate .*\); use a smaller"
        with mock.patch.object(AutoModelForSeq2SeqLM, "from_pretrained", side_effect=error), exits_with(71, message):
            loaded(base())

    def test_a_model_whose_file_cannot_be_mapped_does_not_fit_either(self):
        error = MemoryError("Cannot allocate memory (os error 12)")
        with (
            mock.patch("torch.empty", side_effect=error),  # of the shapes in the header
            exits_with(71, "the model does not fit into memory .*os error 12.*; use a smaller model, or more memory"),
        ):
            loaded(base())

    @parameterized.parameters(
        ("w.pth", "torch.load", RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")),
        ("w.pth", "torch.load", MemoryError("Cannot allocate memory")),
        ("w.safetensors", "safetensors.torch.safe_open", MemoryError("Cannot allocate memory (os error 12)")),
    )  # fmt: skip
    def test_bare_weights_that_do_not_fit_are_not_called_truncated(self, name, reader, error):
        path = Path(tempfile.mkdtemp()) / name
        path.write_bytes(b"weights")
        message = (
            rf"^--init_checkpoint {path}: the model does not fit into memory \(.*allocate memory.*\); use a smaller"
        )
        with mock.patch(reader, side_effect=error), exits_with(71, message):
            begun_with(path)


TINY = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2,vocab_size=640"
UNTIED = f"{TINY},tie_word_embeddings=False,feed_forward_proj=gated-gelu"
EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def tiny(overrides=TINY, seed=0):
    return tiny_model(config_overrides=overrides, seed=seed, scale=1.0).eval()


def begun_with(path, overrides=TINY, **flags):
    """A model of random weights into which a file's weights were loaded."""
    return tiny_tuner(config_overrides=overrides, init_checkpoint=str(path), **flags).model.eval()


def weights_of(model) -> dict:
    return {name: value.clone() for name, value in model.state_dict().items()}


def without_repeats(weights: dict) -> dict:
    """As safetensors need it: one name for each tensor."""
    distinct = {}
    for name, value in weights.items():
        matrices = [matrix for matrix in distinct.values() if matrix.ndim > 1 and matrix.shape == value.shape]
        if not any(torch.equal(value, matrix) for matrix in matrices):
            distinct[name] = value
    return distinct


def prefixed(weights: dict, prefix: str) -> dict:
    return {prefix + name: value for name, value in weights.items()}


def nanot5_weights(model) -> dict:
    """nanoT5's MyT5: shared, both stacks' embeddings, blocks named as Hugging Face's, its own output layer."""
    weights = weights_of(model)
    assert all(torch.equal(weights[name], weights["shared.weight"]) for name in EMBEDDINGS)
    return weights


def write_shards(place: Path, weights: dict, stem: str, save) -> Path:
    names = sorted(weights)
    halves = [names[: len(names) // 2], names[len(names) // 2 :]]
    suffix = "safetensors" if stem == "model" else "bin"
    places = {}
    for number, half in enumerate(halves, start=1):
        file = f"{stem}-0000{number}-of-00002.{suffix}"
        save({name: weights[name] for name in half}, place / file)
        places |= dict.fromkeys(half, file)
    index = place / f"{stem}.{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return index


def write_safetensors(place, weights):
    save_file(without_repeats(weights), place / "model.safetensors")
    return place / "model.safetensors"


def write_torch(name, wrap=lambda weights: weights):
    def write(place, weights):
        torch.save(wrap(weights), place / name)
        return place / name

    return write


FORMS = {
    "safetensors": write_safetensors,
    "safetensors folder": lambda place, weights: write_safetensors(place, weights).parent,
    "safetensors shards": lambda place, weights: write_shards(place, without_repeats(weights), "model", save_file),
    "bin shards folder": lambda place, weights: write_shards(place, weights, "pytorch_model", torch.save).parent,
    "bin folder": lambda place, weights: write_torch("pytorch_model.bin")(place, weights).parent,
    "pth": write_torch("weights.pth"), "pt folder": lambda place, weights: write_torch("odd.pt")(place, weights).parent,
    "model_state_dict": write_torch( "a.pt", lambda w: {"model_state_dict": w, "iteration": 7, "optimizer": {"lr": 0.1}}
    ), "lightning": write_torch("a.ckpt", lambda w: {"state_dict": prefixed(w, "model."), "epoch": 3}),
    "deepspeed": write_torch("a.pt", lambda w: {"module": w, "dp_world_size": 4}),
    "ddp": write_torch("a.bin", lambda w: prefixed(w, "module.")),
    "compiled": write_torch("a.bin", lambda w: prefixed(w, "_orig_mod.")),
    "compiled ddp": write_torch("a.bin", lambda w: {"model": {"state_dict": prefixed(w, "module._orig_mod.")}}),
    "bfloat16": write_torch("a.bin", lambda w: {name: value.bfloat16() for name, value in w.items()}),
}  # fmt: skip


class FormsTest(parameterized.TestCase):
    @parameterized.parameters(*((form, TINY) for form in FORMS), (next(iter(FORMS)), UNTIED))
    @pytest.mark.quick_cases(8)
    def test_weights_are_loaded(self, form, overrides):
        source = tiny(overrides, seed=1)
        with self.assertNoLogs("t5suite", "WARNING"):
            model = begun_with(FORMS[form](folder(), weights_of(source)), overrides)
        self.assertEqual(model.state_dict().keys(), source.state_dict().keys())
        for name, value in model.state_dict().items():
            stored = source.state_dict()[name]
            self.assertTrue(torch.equal(value, stored.bfloat16().float() if form == "bfloat16" else stored), name)
            self.assertEqual(value.dtype, torch.float32)
        self.assertIs(model.encoder.embed_tokens.weight, model.shared.weight)
        self.assertEqual(model.lm_head.weight is model.shared.weight, overrides == TINY)

    def test_nanot5s_checkpoint_predicts_the_same(self):
        source = tiny(UNTIED, seed=1)
        place = folder() / "checkpoint-pt-65536"
        place.mkdir()
        torch.save(nanot5_weights(source), place / "pytorch_model.bin")
        for name in ("optimizer.bin", "scheduler.bin"):
            torch.save({"state": {}}, place / name)
        (place / "random_states_0.pkl").write_bytes(pickle.dumps({}))
        model = begun_with(place, UNTIED)
        batch = {"input_ids": torch.randint(3, 600, (2, 9)), "decoder_input_ids": torch.randint(3, 600, (2, 5))}
        with torch.no_grad():
            self.assertTrue(torch.equal(source(**batch).logits, model(**batch).logits))

    @parameterized.parameters(*EMBEDDINGS, "lm_head.weight")
    @pytest.mark.quick_cases(1)
    def test_one_name_of_a_tied_weight_suffices(self, stored_name):
        source = tiny(seed=1)
        names = {*source.state_dict()} - {*EMBEDDINGS, "lm_head.weight"} | {stored_name}
        weights = {name: value for name, value in weights_of(source).items() if name in names}
        model = begun_with(write_torch("a.bin")(folder(), weights))
        self.assertTrue(torch.equal(model.shared.weight, source.shared.weight))

    def test_what_else_a_run_keeps_is_not_taken_for_weights(self):
        source, place = tiny(seed=1), folder()
        write_torch("step-9.pt")(place, weights_of(source))
        for name in ("optimizer.pt", "scheduler.pt", "training_args.bin", "rng_state_0.pth"):
            write_torch(name)(place, {})
        self.assertTrue(torch.equal(begun_with(place).shared.weight, source.shared.weight))

    @parameterized.parameters((621, 640), (768, 640))
    @pytest.mark.quick_cases(1)
    def test_rows_of_padding_are_no_matter(self, rows, model_rows):
        self.check_padding(rows, model_rows)

    @parameterized.parameters((640, 621), (640, 768))
    @pytest.mark.slow
    def test_nor_are_they_the_other_way_round(self, rows, model_rows):
        self.check_padding(rows, model_rows)

    def check_padding(self, rows, model_rows):
        source, overrides = tiny(f"{UNTIED},vocab_size={rows}", seed=1), f"{UNTIED},vocab_size={model_rows}"
        random, common = tiny_tuner(config_overrides=overrides).model, min(rows, model_rows)
        with self.assertLogs("t5suite", "WARNING") as logs:
            model = begun_with(write_torch("a.bin")(folder(), weights_of(source)), overrides)
        self.assertLen(logs.output, 2)
        self.assertIn(f"shared.weight has {rows} rows, the model {model_rows}", logs.output[0])
        self.assertTrue(torch.equal(model.shared.weight[:common], source.shared.weight[:common]))
        self.assertTrue(torch.equal(model.shared.weight[common:], random.shared.weight[common:]))
        self.assertTrue(torch.equal(model.lm_head.weight[:common], source.lm_head.weight[:common]))

    def test_allowed_missing_weights_without_a_file_are_told(self):
        with self.assertLogs("t5suite", "WARNING") as logs:
            tiny_tuner(config_overrides=TINY, allow_missing_keys=True)
        self.assertIn("--allow_missing_keys has no effect", logs.output[0])


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class ToysTest(absltest.TestCase):
    @pytest.mark.slow
    def test_what_stands_in_for_a_model_or_a_vocabulary_is_named(self):
        model, vocabulary = "bundled toy T5 with random weights", "the bundled toy's 621 pieces .give --tokenizer_name"
        for flags, data, expected in (
            ({}, "mini/sentiment", [f"INFO:.*{model}$"]),
            ({}, "glue/rte", [f"WARNING:.*{model} .give --model_name_or_path", vocabulary]),
            ({"config_name": "mini"}, "glue/rte", [vocabulary]),
            ({"model": saved(None)}, "glue/rte", []),
        ):
            with self.assertLogs("t5suite", "INFO") as logs:
                logging.getLogger("t5suite").info("begun")
                tiny_tuner(data=data, **flags)
            lines = [line for line in logs.output if "toy" in line]
            for line, pattern in zip(lines, expected, strict=True):
                self.assertRegex(line, pattern)


class RefusalTest(parameterized.TestCase):
    def refused(self, path, message, overrides=TINY, **flags):
        with exits_with(78, message):
            begun_with(path, overrides, **flags)

    def changed(self, overrides=TINY, drop=(), **added):
        weights = {name: value for name, value in weights_of(tiny(overrides, seed=1)).items() if name not in drop}
        return write_torch("a.bin")(folder(), {**weights, **added})

    def test_weights_that_one_side_lacks(self):
        drop = ("encoder.final_layer_norm.weight", "decoder.final_layer_norm.weight")
        path = self.changed(drop=drop, **{f"extra.{n:02}": torch.ones(1) for n in range(12)})
        self.refused(path, r"missing \(2\): decoder.final_layer_norm.weight, encoder.final_layer_norm.weight; unknown")
        self.refused(
            path, r"unknown \(12\): extra.00, .*, extra.04 and 7 more; with --allow_missing_keys, fine_tune and"
        )
        with self.assertLogs("t5suite", "WARNING") as logs:
            model = begun_with(path, allow_missing_keys=True)
        self.assertLen(logs.output, 1)
        self.assertTrue(torch.equal(model.shared.weight, tiny(seed=1).shared.weight))

    def test_other_shapes(self):
        path = self.changed(f"{TINY},d_ff=64,num_heads=4")
        self.refused(path, r"k.weight \(32x32, not 16x32\)", allow_missing_keys=True)
        self.refused(self.changed(f"{TINY},vocab_size=800"), r"weight \(800x32, not 640x32\)")
        number = self.changed(**{"shared.weight": torch.tensor(0.5)})
        self.refused(number, r"shared.weight \(a number, not 640x32\)")
        path = self.changed(**{"shared.weight": torch.ones(640, 32, dtype=torch.int8)})
        with exits_with(65, r"1 tensors are stored as integers.*shared.weight \(int8\)"):
            begun_with(path)

    def test_an_output_layer_of_its_own_does_not_go_into_a_tied_model(self):
        path = write_torch("a.bin")(folder(), nanot5_weights(tiny(f"{TINY},tie_word_embeddings=False", seed=1)))
        self.refused(
            path,
            "lm_head.weight .tied to .*, but stored with other values.*--config_overrides tie_word_embeddings=False",
        )

    @parameterized.parameters("zip", "legacy", "pickle")
    @pytest.mark.quick_cases(1)
    def test_a_pickle_with_code_is_refused_and_not_run(self, form):
        place = folder()
        content = {**weights_of(tiny()), "trap": Trap(place / "ran")}
        if form == "pickle":
            (place / "a.bin").write_bytes(pickle.dumps(content["trap"]))
        else:
            torch.save(content, place / "a.bin", _use_new_zipfile_serialization=form == "zip")
        self.refused(place / "a.bin", "holds Python objects besides tensors, and reading those could run code")
        self.assertFalse((place / "ran").exists())
        pickle.loads((place / "a.bin").read_bytes()) if form == "pickle" else torch.load(
            place / "a.bin", weights_only=False
        )
        self.assertTrue((place / "ran").exists(), "the trap must work")

    def test_other_content(self):
        write = lambda value: write_torch("a.bin")(folder(), value)
        self.refused(write([torch.ones(1)]), "holds list instead of a table of weights")
        self.refused(write({}), "holds dict instead of a table of weights")
        self.refused(write({"step": 3, "rate": 0.1, "w": torch.ones(1)}), "2 of its entries are no tensors .step, rate")

    @parameterized.parameters("model.safetensors", "a.bin", "text.bin")
    def test_torn_files(self, name):
        place = folder()
        if name == "text.bin":
            (place / name).write_text("no weights")
        else:
            path = (write_safetensors if name == "model.safetensors" else write_torch(name))(place, weights_of(tiny()))
            path.write_bytes(path.read_bytes()[:-500])
        self.refused(place / name, f"{name}: not a weights file, or a truncated one")

    def test_paths(self):
        place = folder()
        self.refused(place / "none.bin", "none.bin: no such file or folder")
        self.refused(place, "no file of weights; give the file itself")
        (place / "notes.txt").write_text("hello")
        self.refused(place / "notes.txt", "a file of weights ends in one of .safetensors")
        for name in ("one.bin", "two.pt"):
            write_torch(name)(place, {})
        self.refused(place, "several files of weights .one.bin, two.pt.; give the file itself")

    def test_bad_shards(self):
        place = folder()
        index = write_shards(place, without_repeats(weights_of(tiny())), "model", save_file)
        places = json.loads(index.read_text())
        for changes, message in (
            ({"encoder.final_layer_norm.weight": "../model.safetensors"}, "does not lie beside its index"),
            ({"more": "model-00001-of-00002.safetensors"}, "1 weights are not in their shards .more"),
            ({"more": "model-00003-of-00002.safetensors"}, "its shard model-00003-of-00002.safetensors is missing"),
        ):
            index.write_text(json.dumps({"weight_map": {**places["weight_map"], **changes}}))
            self.refused(index, message)
        index.write_text("{}")
        self.refused(index, "not an index of shards")
