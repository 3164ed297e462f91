"""SentencePiece's encoder in short pieces and without ties: the ids of the tokenizer."""

import doctest
import random
import unittest

import numpy as np
from absl.testing import parameterized

from t5suite.base.errors import ConfigError
from t5suite.data.corpora import sentence_pieces
from t5suite.data.corpora.encoding import make_text_encoder
from t5suite.data.corpora.sentence_pieces import pieces_of, repeated_characters, tied_runs
from t5suite.models.loading import load_tokenizer
from tests.shared_data import MISSING, SHARED_DATA, has, read_rows

T5 = str(SHARED_DATA / "tokenizer" / "t5")
needs_t5 = unittest.skipUnless(has("tokenizer/t5/spiece.model"), MISSING)


@needs_t5
class T5IdsTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokenizer = load_tokenizer(T5)
        cls.encoder = make_text_encoder(cls.tokenizer)

    def assert_equal_ids(self, texts, expected=None):
        self.assertEqual(self.encoder.engine, "sentencepiece")
        expected = expected or self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        for text, found, ids in zip(texts, self.encoder.encode(texts), expected, strict=True):
            self.assertEqual(found, ids, text[:200])

    def test_long_real_documents(self):
        """Whole, SentencePiece's float32 scores make `comp r ising` of a word of one of these."""
        texts = [row["text"] for row in read_rows("text/state_union.jsonl")]
        (comprising,) = [text for text in texts if "submarines--comprising" in text]
        self.assert_equal_ids([comprising, *texts[:10]])

    @parameterized.parameters(*".-_!?*0oz", "\u2026", "\uff0e")
    def test_runs_of_one_character(self, character):
        """By the tokenizer read from its JSON, as `tokenizers` sends it to workers: its scores are off by a last bit
        (serde_json), which decides ties such as `-------` otherwise than in the process that made it."""
        texts = [f"{before}{character * n} and" for n in range(1, 45) for before in ("", "x", "saying ")]
        self.assert_equal_ids(texts, self.encoder.reference(texts))

    def test_words_of_any_characters_and_spaces(self):
        rng = random.Random(0)
        some = [
            "the",
            "e\u0301",
            "½",
            "a\u00a0b",
            "\u200b",
            "\t",
            "\n",
            "  ",
            " ",
            " ",
            "....",
            "日本",
            "-" * 9,
            "\u2581",
            "ﬁ",
        ]
        texts = [
            "".join(rng.choice(some) + rng.choice(["", " "]) for _ in range(rng.randrange(400))) for _ in range(40)
        ]
        self.assert_equal_ids(texts)

    def test_a_long_text_without_spaces(self):
        texts = ["ab" * 3000, "x" + " " * 3000 + "y", "word " * 400 + "w" * 2000 + " end"]
        self.assert_equal_ids(texts, self.encoder.reference(texts))

    def test_the_engine_is_chosen(self):
        self.assertEqual(make_text_encoder(self.tokenizer, "tokenizers").engine, "tokenizers")
        self.assertEqual(make_text_encoder(self.tokenizer, "sentencepiece").engine, "sentencepiece")
        with self.assertRaisesRegex(ConfigError, "--tokenizer_engine.*did you mean sentencepiece"):
            make_text_encoder(self.tokenizer, "sentence_piece")


class PiecesTest(parameterized.TestCase):
    @parameterized.parameters(range(20))
    def test_pieces_and_spaces_are_the_text(self, seed):
        rng = np.random.default_rng(seed)
        text = "".join(rng.choice(["a", "b", " "], size=200, p=[0.5, 0.3, 0.2]))
        parts = pieces_of(text, size=16)
        self.assertEqual(" ".join(parts), text)
        self.assertTrue(all(len(part) <= 16 or " " not in part[1:16] for part in parts))

    def test_runs_that_take_two_different_pieces(self):
        """Of pieces of 1, 3 and 4 dots, five are 4 + 1 or 1 + 4."""

        def greedy(texts):
            return [[9, *self._dots(len(text) - 1)] for text in texts]

        self.assertEqual(tied_runs(["a", ".", "...", "...."], greedy), (".....",))

    def _dots(self, count):
        return [4] * (count // 4) + ([3] if count % 4 == 3 else [1] * (count % 4))

    @parameterized.parameters("no", "a--b", "x\n\n\ny", "   ", "")
    def test_nothing_repeated(self, text):
        self.assertFalse(repeated_characters(text))

    def test_what_is_repeated(self):
        self.assertEqual(repeated_characters("so... é ---"), {".", "-"})
        self.assertIn(".", repeated_characters("so\u2026\u2026"))

    def test_a_tokenizer_without_a_model_cannot_be_asked_for_one(self):
        from transformers import ByT5Tokenizer

        with self.assertRaisesRegex(ConfigError, "--tokenizer_engine sentencepiece: .*has no spiece.model"):
            make_text_encoder(ByT5Tokenizer(), "sentencepiece")

    def test_examples_hold(self):
        for function in (pieces_of, repeated_characters):
            examples = doctest.DocTestFinder(recurse=False).find(function, globs=vars(sentence_pieces))
            self.assertFalse([e for e in examples if doctest.DocTestRunner().run(e).failed])


if __name__ == "__main__":
    unittest.main()
