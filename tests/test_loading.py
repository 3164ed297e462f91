"""Loading: tokens that a vocabulary lacks, weights in 8 or 4 bits, memory that ranks share."""

import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import pytest
import torch
from absl.testing import absltest, parameterized
from later_flags import later_wins

import fine_tune_t5
from t5suite.base.errors import ConfigError
from t5suite.models.adapter_files import is_adapter
from t5suite.models.loading import load_adapter, load_model, load_tokenizer
from t5suite.models.placement import KINDS, is_quantized, quantization_of
from t5suite.models.vocabulary import add_words, begin_at_mean, parse_tokens
from t5suite.training.flags.fine_tuning import ModelArguments
from t5suite.training.flags.parser import parse_arguments
from t5suite.training.run import tokenizer_and_model

SMALL = "d_model=32,d_kv=8,d_ff=48,num_layers=1,num_heads=2"


@functools.cache
def saved(rows: int | None, tied: bool = True) -> str:
    """A trained model's folder, its vocabulary of the tokenizer's pieces and unused rows."""
    folder = tempfile.mkdtemp()
    tokenizer = load_tokenizer(None)
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
        pieces = len(load_tokenizer(None))
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
        folder = saved(len(load_tokenizer(None)) + 28)
        _, one = loaded(folder, "--add_tokens", "<turn>")
        self.assertLen(one.shared.weight, len(load_tokenizer(None)) + 28)
        _, many = loaded(folder, "--add_tokens", ",".join(f"<w{n}>" for n in range(60)))
        self.assertGreaterEqual(len(many.shared.weight), len(load_tokenizer(None)) + 60)
        self.assertEqual(len(many.shared.weight) % 128, 0)

    def test_they_are_whole_words_that_decoding_keeps(self):
        tokenizer, _ = loaded(saved(None), "--add_tokens", "<turn>")
        ids = tokenizer("hello <turn> there")["input_ids"]
        self.assertIn(tokenizer.convert_tokens_to_ids("<turn>"), ids)
        self.assertIn("<turn>", tokenizer.decode(ids, skip_special_tokens=True))

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
        self.assertEqual(parse_tokens(None), [])
        for text, message in (("x,,y", "token 2 is ''"), ("x, y", "token 2 is ' y'"), ("no.txt", "no such file")):
            with self.assertRaisesRegex(ConfigError, message):
                parse_tokens(text)

    def test_known_tokens_are_left_alone(self):
        tokenizer = load_tokenizer(None)
        known = tokenizer.convert_ids_to_tokens(50)
        with self.assertLogs("t5suite.models.vocabulary", "WARNING"):
            self.assertEqual(add_words(tokenizer, [known]), [])
        begin_at_mean(None, [])


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


TESTS = Path(__file__).parent
BIG = "d_model=512,d_ff=2048,num_layers=4,num_decoder_layers=4,num_heads=8,d_kv=64"


def held() -> dict[str, int]:
    """Bytes of this process: `Pss` counts a page that n processes share as an n-th of it."""
    with open("/proc/self/smaps_rollup") as file:
        fields = [line.split() for line in file]
    return {field[0][:-1]: 1024 * int(field[1]) for field in fields if field[0] in ("Rss:", "Pss:", "Private_Dirty:")}


def say(what: dict) -> None:
    print(json.dumps(what), flush=True)


def load_as_rank(folder: str) -> None:
    tokenizer = load_tokenizer(folder)
    load_model(f"{folder}/tiny", tokenizer=tokenizer)  # what loading imports is there from now on
    before = held()
    model = load_model(folder, tokenizer=tokenizer)
    total = sum(float(parameter.sum()) for parameter in model.parameters())  # as a copy to a device would, reads all
    say({"total": total, "weights": sum(4 * parameter.numel() for parameter in model.parameters())})
    sys.stdin.readline()
    now = held()
    say({name: now[name] - before[name] for name in now})
    sys.stdin.readline()


def together(folder: str, count: int) -> list[dict]:
    """What each of so many processes holds more than before, while all of them have loaded."""
    environ = {**os.environ, "PYTHONPATH": f"{TESTS.parent}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "rank", folder]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environ}
    ranks = [subprocess.Popen(command, **pipes) for _ in range(count)]
    try:
        loaded = [json.loads(rank.stdout.readline()) for rank in ranks]
        for rank in ranks:
            rank.stdin.write("all have loaded\n")
            rank.stdin.flush()
        return [{**one, **json.loads(rank.stdout.readline())} for one, rank in zip(loaded, ranks, strict=True)]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


@pytest.mark.slow
@pytest.mark.ranks
class LoadingMemoryTest(parameterized.TestCase):
    def test_two_ranks_hold_one_copy_of_a_checkpoint(self):
        if not Path("/proc/self/smaps_rollup").exists():
            self.skipTest("this system does not say which pages are shared")
        folder, tokenizer = tempfile.mkdtemp(), load_tokenizer(None)
        torch.manual_seed(0)
        load_model(tokenizer=tokenizer, config_overrides=BIG).save_pretrained(folder)
        load_model(tokenizer=tokenizer, config_overrides="num_layers=1").save_pretrained(f"{folder}/tiny")
        tokenizer.save_pretrained(folder)
        found = together(folder, 2)
        weights = found[0]["weights"]
        self.assertEqual(found[0]["total"], found[1]["total"])
        for rank in found:
            self.assertGreater(rank["Rss"], 0.9 * weights)
            # Half of the pages that both have mapped, and what loading itself leaves behind.
            self.assertLess(rank["Pss"], 0.75 * weights, found)
            self.assertLess(rank["Private_Dirty"], 0.25 * weights, found)
        self.assertGreater(weights, 10**8)


if __name__ == "__main__":
    load_as_rank(sys.argv[2]) if sys.argv[1:2] == ["rank"] else absltest.main()
