"""Added tokens: rows at the mean of the old ones, no row taken away, saved and loaded as they are."""

import functools
import tempfile
from pathlib import Path

import torch
from absl.testing import absltest, parameterized

import fine_tune_t5
from t5suite.base.errors import ConfigError
from t5suite.models.loading import load_model, load_tokenizer
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


if __name__ == "__main__":
    absltest.main()
