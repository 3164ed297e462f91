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

import torch
from absl.testing import absltest, parameterized
from safetensors.torch import save_file
from support import folder, later_wins
from transformers import set_seed

import fine_tune_t5
from t5suite import load_task
from t5suite.models.adapter_files import is_adapter
from t5suite.models.loading import load_adapter, load_model, load_tokenizer
from t5suite.models.placement import KINDS, is_quantized, quantization_of
from t5suite.models.vocabulary import parse_tokens
from t5suite.models.weights import load_init_checkpoint
from t5suite.testing import exits_with, tiny_tokenizer
from t5suite.training.flags.fine_tuning import ModelArguments
from t5suite.training.flags.parser import parse_arguments
from t5suite.training.run import tokenizer_and_model

SMALL = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"


@functools.cache
def saved(rows: int | None, tied: bool = True) -> str:
    """A trained model's folder, its vocabulary of the tokenizer's pieces and unused rows."""
    folder = tempfile.mkdtemp()
    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    overrides = f"{SMALL},tie_word_embeddings={tied}" + (f",vocab_size={rows}" if rows else "")
    load_model(tokenizer=tokenizer, config_overrides=overrides, config_name="mini").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def loaded(folder, *argv):
    return tokenizer_and_model(parse_arguments((ModelArguments,), ["--model_name_or_path", folder, *argv])[0])


class AddedTokensTest(parameterized.TestCase):
    @parameterized.product(tied=[True, False], spare=[0, 200])
    def test_new_rows_begin_as_the_mean_of_the_old_ones(self, tied, spare):
        pieces = len(tiny_tokenizer())
        folder = saved(pieces + spare, tied)
        _, before = loaded(folder)
        tokenizer, model = loaded(folder, "--add_tokens", "<turn>,<speaker>")
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
        _, one = loaded(folder, "--add_tokens", "<turn>")
        self.assertLen(one.shared.weight, len(tiny_tokenizer()) + 28)
        _, many = loaded(folder, "--add_tokens", ",".join(f"<w{n}>" for n in range(60)))
        self.assertGreaterEqual(len(many.shared.weight), len(tiny_tokenizer()) + 60)
        self.assertEqual(len(many.shared.weight) % 128, 0)

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

    def test_lists_and_files(self):
        path = Path(tempfile.mkdtemp()) / "words"
        path.write_text("a b\nc\n")
        self.assertEqual(parse_tokens(str(path)), ["a b", "c"])
        self.assertEqual(parse_tokens("x,y,x"), ["x", "y"])
        self.assertEqual(parse_tokens(r"{,\n,\nabla"), ["{", "\n", r"\nabla"])
        self.assertEqual(parse_tokens(None), [])
        for text, message in (("x,,y", "token 2 is ''"), ("x, y", "token 2 is ' y'"), ("no.txt", "no such file")):
            with exits_with(78, message):
                parse_tokens(text)


HAS_LIBRARY = importlib.util.find_spec("bitsandbytes") is not None
FAST = ["--max_train_samples", "32", "--max_eval_samples", "8", "--max_steps", "3", "--per_device_train_batch_size",
        "8", "--use_cpu", "--disable_tqdm", "True", "--eval_method", "score"]  # fmt: skip


@functools.cache
def base() -> str:
    folder, tokenizer = tempfile.mkdtemp(), tiny_tokenizer()
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

    def test_what_cannot_be_is_refused_by_name(self):
        with exits_with(78, "give one of them"):
            quantization_of(True, True)
        with (
            mock.patch("importlib.util.find_spec", return_value=None),
            exits_with(78, r"--load_in_4bit .* pip install 't5suite\[quantization\]'"),
        ):
            quantization_of(False, True)
        with exits_with(78, "these would be random"):
            load_model(None, tokenizer=tiny_tokenizer(), quantization="4bit")
        self.assertIsNone(quantization_of(False, False))


TINY = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2,vocab_size=640"
UNTIED = f"{TINY},tie_word_embeddings=False,feed_forward_proj=gated-gelu"
EMBEDDINGS = ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight")


def tiny(overrides=TINY, seed=0):
    set_seed(seed)
    return load_model(config_overrides=overrides, tokenizer=tiny_tokenizer()).eval()


def weights_of(model) -> dict:
    return {name: value.clone() for name, value in model.state_dict().items()}


def without_repeats(weights: dict) -> dict:
    """As safetensors need it: one name for each tensor."""
    kept = {}
    for name, value in weights.items():
        if not any(
            value.shape == other.shape and torch.equal(value, other) for other in kept.values() if value.ndim > 1
        ):
            kept[name] = value
    return kept


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
    def test_weights_are_loaded(self, form, overrides):
        source, target = tiny(overrides, seed=1), tiny(overrides, seed=2)
        path = FORMS[form](folder(), weights_of(source))
        report = load_init_checkpoint(target, path)
        self.assertEqual(
            report,
            {
                "path": str(path),
                "loaded": len({id(tensor) for tensor in target.state_dict(keep_vars=True).values()}),
                "missing": [],
                "unexpected": [],
            },
        )
        for name, value in target.state_dict().items():
            wanted = source.state_dict()[name]
            self.assertTrue(torch.equal(value, wanted.bfloat16().float() if form == "bfloat16" else wanted), name)
            self.assertEqual(value.dtype, torch.float32)
        self.assertIs(target.encoder.embed_tokens.weight, target.shared.weight)
        self.assertEqual(target.lm_head.weight is target.shared.weight, overrides == TINY)

    def test_nanot5s_checkpoint_predicts_the_same(self):
        source, target = tiny(UNTIED, seed=1), tiny(UNTIED, seed=2)
        place = folder() / "checkpoint-pt-65536"
        place.mkdir()
        torch.save(nanot5_weights(source), place / "pytorch_model.bin")
        for other in ("optimizer.bin", "scheduler.bin"):
            torch.save({"state": {}}, place / other)
        (place / "random_states_0.pkl").write_bytes(pickle.dumps({}))
        load_init_checkpoint(target, place)
        batch = {"input_ids": torch.randint(3, 600, (2, 9)), "decoder_input_ids": torch.randint(3, 600, (2, 5))}
        with torch.no_grad():
            self.assertTrue(torch.equal(source(**batch).logits, target(**batch).logits))

    @parameterized.parameters(*EMBEDDINGS, "lm_head.weight")
    def test_one_name_of_a_tied_weight_suffices(self, kept):
        source, target = tiny(seed=1), tiny(seed=2)
        weights = {n: v for n, v in weights_of(source).items() if n not in (*EMBEDDINGS, "lm_head.weight") or n == kept}
        load_init_checkpoint(target, write_torch("a.bin")(folder(), weights))
        self.assertTrue(torch.equal(target.shared.weight, source.shared.weight))

    def test_what_else_a_run_keeps_is_not_taken_for_weights(self):
        source, target, place = tiny(seed=1), tiny(seed=2), folder()
        write_torch("step-9.pt")(place, weights_of(source))
        for other in ("optimizer.pt", "scheduler.pt", "training_args.bin", "rng_state_0.pth"):
            write_torch(other)(place, {})
        load_init_checkpoint(target, place)
        self.assertTrue(torch.equal(target.shared.weight, source.shared.weight))

    @parameterized.parameters((621, 640), (640, 621), (640, 768), (768, 640))
    def test_rows_of_padding_are_no_matter(self, rows, own_rows):
        overrides = (f"{UNTIED},vocab_size={n}" for n in (rows, own_rows))
        source, target = (tiny(o, seed=seed) for seed, o in enumerate(overrides))
        before, common = target.shared.weight.clone(), min(rows, own_rows)
        with self.assertLogs("t5suite", "WARNING") as logs:
            load_init_checkpoint(target, write_torch("a.bin")(folder(), weights_of(source)))
        self.assertLen(logs.output, 2)
        self.assertIn(f"shared.weight has {rows} rows, the model {own_rows}", logs.output[0])
        self.assertTrue(torch.equal(target.shared.weight[:common], source.shared.weight[:common]))
        self.assertTrue(torch.equal(target.shared.weight[common:], before[common:]))
        self.assertTrue(torch.equal(target.lm_head.weight[:common], source.lm_head.weight[:common]))

    def test_the_flag(self):
        source = tiny(UNTIED, seed=1)
        path = write_torch("a.pth")(folder(), {"model_state_dict": weights_of(source)})
        _, model = tokenizer_and_model(ModelArguments(config_overrides=UNTIED, init_checkpoint=str(path)))
        self.assertTrue(torch.equal(model.lm_head.weight, source.lm_head.weight))
        with self.assertLogs("t5suite", "WARNING") as logs:
            tokenizer_and_model(ModelArguments(config_overrides=TINY, allow_missing_keys=True))
        self.assertIn("--allow_missing_keys has no effect", logs.output[0])


class Trap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class ToysTest(absltest.TestCase):
    def test_what_stands_in_for_a_model_or_a_vocabulary_is_named(self):
        model, vocabulary = "bundled toy T5 with random weights", "the bundled toy's 621 pieces .give --tokenizer_name"
        for flags, task, expected in (
            ({}, ("mini", "sentiment"), [f"INFO:.*{model}$"]),
            ({}, ("glue", "rte"), [f"WARNING:.*{model} .give --model_name_or_path", vocabulary]),
            ({"config_name": "mini"}, None, [vocabulary]),
            ({"model_name_or_path": saved(None)}, ("glue", "rte"), []),
        ):
            with self.assertLogs("t5suite.training.run", "INFO") as logs:
                logging.getLogger("t5suite.training.run").info("begun")
                tokenizer_and_model(ModelArguments(**flags), tasks=[load_task(*task)] if task else [])
            for line, pattern in zip(logs.output[1:], expected, strict=True):
                self.assertRegex(line, pattern)


class RefusalTest(parameterized.TestCase):
    def refused(self, path, message, overrides=TINY, allow_missing=False):
        model = tiny(overrides, seed=2)
        before = weights_of(model)
        with exits_with(78, message):
            load_init_checkpoint(model, path, allow_missing)
        self.assertTrue(all(torch.equal(value, before[name]) for name, value in model.state_dict().items()))

    def changed(self, overrides=TINY, drop=(), **added):
        weights = {name: value for name, value in weights_of(tiny(overrides, seed=1)).items() if name not in drop}
        return write_torch("a.bin")(folder(), {**weights, **added})

    def test_weights_that_one_side_lacks(self):
        drop = ("encoder.final_layer_norm.weight", "decoder.final_layer_norm.weight")
        path = self.changed(drop=drop, **{f"extra.{n:02}": torch.ones(1) for n in range(12)})
        self.refused(path, r"missing \(2\): decoder.final_layer_norm.weight, encoder.final_layer_norm.weight; unknown")
        self.refused(path, r"unknown \(12\): extra.00, .*, extra.04 and 7 more; fine_tune and .* with --allow_mis")
        model = tiny(seed=2)
        with self.assertLogs("t5suite", "WARNING") as logs:
            report = load_init_checkpoint(model, path, allow_missing=True)
        self.assertLen(logs.output, 1)
        self.assertCountEqual(report["missing"], drop)
        self.assertLen(report["unexpected"], 12)
        self.assertTrue(torch.equal(model.shared.weight, tiny(seed=1).shared.weight))

    def test_other_shapes(self):
        path = self.changed(f"{TINY},d_ff=64,num_heads=4")
        self.refused(path, r"k.weight \(32x32, not 16x32\)", allow_missing=True)
        self.refused(self.changed(f"{TINY},vocab_size=800"), r"weight \(800x32, not 640x32\)")
        path = self.changed(**{"shared.weight": torch.ones(640, 32, dtype=torch.int8)})
        with exits_with(65, r"1 tensors are stored as integers.*shared.weight \(int8\)"):
            load_init_checkpoint(tiny(seed=2), path)

    def test_an_output_layer_of_its_own_does_not_go_into_a_tied_model(self):
        path = write_torch("a.bin")(folder(), nanot5_weights(tiny(f"{TINY},tie_word_embeddings=False", seed=1)))
        self.refused(
            path,
            "lm_head.weight .tied to .*, but stored with other values.*--config_overrides tie_word_embeddings=False",
        )

    @parameterized.parameters("zip", "legacy", "pickle")
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
