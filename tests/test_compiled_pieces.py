"""Numba's encoder gives the tokenizer's ids, whatever the text."""

import doctest
import functools
import itertools
import json
import pickle
import random
import sys
import unittest
from unittest import mock

import numpy as np
import pytest
import regex
import tokenizers
from absl.testing import parameterized

from t5suite.base.errors import ConfigError
from t5suite.data.encodings import PromptEncoding, TextEncoding, bind_encoding, with_row_tokenizer
from t5suite.data.streams.encoding import stream_encoder
from t5suite.data.streams.sources import FileSource
from t5suite.data.text import compiled_pieces, encoding, row_tokenizer
from t5suite.data.text.compiled_pieces import ALONE, CompiledEngine, why_not
from t5suite.data.text.documents import bundled_text
from t5suite.data.text.encoding import PROBES, make_text_encoder
from t5suite.data.text.row_tokenizer import RowTokenizer
from t5suite.models.loading import load_tokenizer
from t5suite.tasks.registry import Lengths, load_task
from tests.shared_data import MISSING, SHARED_DATA, has, read_rows

NAMES = ("bundled", "t5")
T5 = str(SHARED_DATA / "tokenizer" / "t5")
REAL = (
    "glue/cola/test.jsonl", "glue/mrpc/test.jsonl", "glue/stsb/train.jsonl", "super_glue/record/validation.jsonl",
    "text/state_union.jsonl", "text/web_c4_cc_sample.jsonl",
)  # fmt: skip
# Parts of texts: words that tie, controls, clusters of characters, all kinds of space.
PARTS = (
    "the", "house", "It's", "....", "-------", "of", "3,500", "</s>", "<extra_id_0>", "<pad>", "<unk>", "x" * 40, "é",
    "e\u0301", "naïve", "½", "ﬁ", "①", "ｆ", "\u00a0", "\u3000", "\u00a8", "\u00ad", "\u200b", "\ufeff", "\u0600",
    "日本", "한국", "\u1100\u1161", "हिन्दी", "\U0001f600", "\U0001f44d\U0001f3fd", "\u2581", "\u2581a", "\u2028", "\x85",
    "\t", "\r\n", "\n", "\r", "\x00", "\x07", "\x1c", "\x7f", " ", "  ", "\u0301", "\ufdfa", "\u2026", "don", "t",
)  # fmt: skip


def strings(value):
    """All texts of a row."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)


@functools.cache
def made(name: str):
    """The tokenizer and its engine, which takes a reference later."""
    tokenizer = load_tokenizer(T5 if name == "t5" else None)
    return tokenizer, CompiledEngine(tokenizer.backend_tokenizer.to_str(), None)


class Case(parameterized.TestCase):
    """Both tokenizers with their engines, the reference counted."""

    def setUp(self):
        super().setUp()
        self.asked = []

    def engine_of(self, name: str) -> CompiledEngine:
        if name == "t5" and not has("tokenizer/t5/spiece.model"):
            self.skipTest(MISSING)
        self.tokenizer, engine = made(name)
        engine.reference = self.reference
        return engine

    def reference(self, texts):
        self.asked += texts
        return self.ids(texts)

    def ids(self, texts):
        return self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"] if texts else []

    def assert_equal_ids(self, engine, texts):
        for text, found, ids in zip(texts, engine.encode(texts), self.ids(texts), strict=True):
            self.assertEqual(found, ids, repr(text[:300]))


class EqualIdsTest(Case):
    @parameterized.parameters(*NAMES)
    def test_every_character_of_unicodes_first_plane(self, name):
        """Alone, between letters, between spaces, and next to itself."""
        engine = self.engine_of(name)
        characters = [chr(code) for code in [*range(1 << 16), 0x1F600, 0x1F3FD] if not 0xD800 <= code < 0xE000]
        step = 3 if name == "t5" else 31
        self.assert_equal_ids(engine, [f"{c} a{c}b {c}{c} c" for c in characters[::step]])

    @parameterized.product(name=NAMES, seed=(0, 1, 2))
    def test_texts_of_odd_parts(self, name, seed):
        engine, rng = self.engine_of(name), random.Random(seed)
        texts = [
            "".join(rng.choice(PARTS) + rng.choice(("", "", " ", " ", "a")) for _ in range(n % 60)) for n in range(900)
        ]
        self.assert_equal_ids(engine, texts)

    @parameterized.product(name=NAMES, seed=(0, 1))
    def test_random_ascii(self, name, seed):
        engine, rng = self.engine_of(name), np.random.default_rng(seed)
        texts = [bytes(rng.integers(0, 128, size=n % 300, dtype=np.uint8)).decode() for n in range(600)]
        plain = [bytes(rng.choice(list(b" eaotn.-'x"), size=n % 200).astype(np.uint8)).decode() for n in range(900)]
        self.assert_equal_ids(engine, texts + plain)

    @parameterized.product(name=NAMES, length=(14, 15, 16, 17, 18, 4000, 4095, 4096, 4097, 20000))
    def test_words_at_the_limits(self, name, length):
        engine, rng = self.engine_of(name), np.random.default_rng(length)
        word = "".join(rng.choice(list("abcdeorst.-"), size=length))
        accented = "é" * (length // 2) + "a" * (length % 2)
        self.assert_equal_ids(
            engine, [word, f"a {word} b", f"é {word} ñ {word}\n", word[:-1] + " ", accented, "-" * length]
        )

    @parameterized.parameters(*REAL)
    def test_real_texts(self, path):
        if not has(path):
            self.skipTest(MISSING)
        engine = self.engine_of("t5")
        texts = [text for row in read_rows(path)[:100] for text in strings(row)][:40]
        self.assert_equal_ids(engine, texts)
        self.assertLess(sum(map(len, self.asked)), 0.02 * sum(map(len, texts)))

    @pytest.mark.slow
    def test_a_memory_that_is_full_forgets(self):
        engine, rng = self.engine_of("bundled"), random.Random(0)
        with mock.patch.multiple(compiled_pieces, WORDS_KEPT=64, IDS_KEPT=256):
            small = CompiledEngine(self.tokenizer.backend_tokenizer.to_str(), self.reference)
        words = ["".join(rng.choices("aeiorst", k=rng.randint(1, 12))) for _ in range(3000)]
        text = " ".join(rng.choice(words) for _ in range(8000))
        self.assertEqual(small.encode([text]), engine.encode([text]))
        self.assert_equal_ids(small, [text])

    @parameterized.parameters(1, 7, 64)
    def test_parts_of_any_size(self, size):
        engine = self.engine_of("bundled")
        texts = ["", "the guard", "हि न्दी of", "a </s> b", "", "x", " ", "é", "the town " * 9, ""]
        with mock.patch.object(compiled_pieces, "BYTES_AT_ONCE", size):
            ids, offsets = engine.encode_flat(texts)
        self.assertEqual([ids[a:b].tolist() for a, b in itertools.pairwise(offsets)], self.ids(texts))
        self.assertEqual(engine.encode([]), [])

    def test_what_is_cut_stands_between_ascii_characters(self):
        """A prefix such as U+0600 makes a cluster with the space behind it, an accent with the one before it."""
        engine = self.engine_of("bundled")
        engine.encode(["one two \u0600 three \u0301four five six"])
        self.assertEqual(self.asked, ["two \u0600 three \u0301four"])


class CharactersTest(parameterized.TestCase):
    def test_characters_that_stand_alone_make_no_cluster(self):
        """By `regex`, whose tables of Unicode are its own."""
        alone = [chr(code) for first, last in ALONE for code in range(first, last + 1)]
        sample = [*"a \n", *alone[::301], "\uac00", "\uac01", "\u3042", "\u00e9"]
        for character in alone[::5]:
            self.assertEqual(regex.findall(r"\X", f"a{character} {character}"), ["a", character, " ", character])
        for one in sample:
            for other in sample:
                self.assertLen(regex.findall(r"\X", one + other), 2, (one, other))


class FormTest(Case):
    @parameterized.parameters(
        ({"pre_tokenizer": {"type": "ByteLevel"}}, "splits words by ByteLevel"),
        ({"pre_tokenizer": None}, "splits words by nothing"),
        ({"normalizer": {"type": "NFC"}}, "normalises by NFC"),
        ({"model": {"type": "BPE"}}, "model is BPE"),
        ({"added_tokens": [{"content": "x", "normalized": True}]}, "looked for in normalised text"),
    )
    def test_other_forms_are_refused(self, changed, reason):
        settings = json.loads(load_tokenizer(None).backend_tokenizer.to_str())
        self.assertIsNone(why_not(settings))
        self.assertRegex(why_not({**settings, **changed}), reason)

    @parameterized.parameters(*NAMES)
    def test_scores_are_read_as_they_stand(self, name):
        """`tokenizers` reads some off by a last bit; where this fails for all, `tokenizer_of` is no longer needed."""
        self.engine_of(name)
        texts = [f"{b}{c * n} and" for c in ".-_!?*0oz" for n in range(1, 45) for b in ("", "x")]
        backend = self.tokenizer.backend_tokenizer.to_str()
        found = encoding.tokenizer_of(backend).encode_batch(texts, add_special_tokens=False)
        self.assertEqual([each.ids for each in found], self.ids(texts))
        if name == "t5":
            off = tokenizers.Tokenizer.from_str(backend).encode_batch(texts, add_special_tokens=False)
            self.assertNotEqual([each.ids for each in off], self.ids(texts))


class ChoiceTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.tokenizer = load_tokenizer(None)

    def test_little_text_loads_nothing(self):
        self.assertNotEqual(make_text_encoder(self.tokenizer).engine, "numba")
        self.assertEqual(make_text_encoder(self.tokenizer, num_bytes=3e7).engine, "numba")

    def test_text_that_is_the_references_anyhow_is_not_numbas(self):
        sample = ["हिन्दी " * 30, "the guard"]
        self.assertNotEqual(make_text_encoder(self.tokenizer, num_bytes=3e7, sample=sample).engine, "numba")
        self.assertEqual(make_text_encoder(self.tokenizer, "numba", sample=sample).engine, "numba")

    def test_without_numba(self):
        with mock.patch.object(compiled_pieces, "installed", lambda: False):
            self.assertNotEqual(make_text_encoder(self.tokenizer, num_bytes=3e7).engine, "numba")
            with self.assertRaisesRegex(ConfigError, "--tokenizer_engine numba: numba is not installed; pip install"):
                make_text_encoder(self.tokenizer, "numba")

    @parameterized.parameters(ImportError, RuntimeError)
    def test_numba_that_cannot_be_used(self, kind):
        with mock.patch.object(encoding.TextEncoder, "_make_engine", side_effect=kind("NumPy is too new")):
            fast, problem = encoding._by_numba(make_text_encoder(self.tokenizer, "tokenizers"), self.tokenizer)
        self.assertIsNone(fast)
        self.assertIn("NumPy is too new", problem)

    def test_control_tokens_stay_text_and_workers_have_the_same(self):
        encoder = make_text_encoder(self.tokenizer, "numba")
        texts = [*PROBES, "the guard </s> of <extra_id_7> a <pad> town"]
        for made in (encoder, pickle.loads(pickle.dumps(encoder))):
            self.assertEqual(made.encode(texts), encoder.by_reference().encode(texts))
        ids, offsets = encoder.encode_flat(texts)
        self.assertEqual([ids[a:b].tolist() for a, b in itertools.pairwise(offsets)], encoder.encode(texts))
        self.assertFalse(set(ids.tolist()) & encoder.control_ids)

    def test_a_stream_by_numba_is_one_by_the_tokenizer(self):
        """Its ids are the tokenizer's, and so is its fingerprint: a run goes on with either."""
        source = FileSource(bundled_text("validation"))
        numba, plain = (stream_encoder(self.tokenizer, [source], engine) for engine in ("numba", "tokenizers"))
        self.assertEqual(numba.encoder.engine, "numba")
        self.assertEqual(numba.fingerprint, plain.fingerprint)
        self.assertEqual(numba(["the guard of a town."]), plain(["the guard of a town."]))


class RowsTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.tokenizer = load_tokenizer(None)
        self.rows = RowTokenizer(self.tokenizer, "numba")

    @parameterized.parameters(1, 2, 7, 512)
    def test_cut_and_ended_as_by_the_tokenizer(self, max_length):
        texts = ["the guard of a town. </s> x", "", "é " * 50, "हिन्दी", "positive"]
        for words in ({"texts": texts}, {"text_target": texts}):
            found = self.rows(**words, max_length=max_length, truncation=True)["input_ids"]
            theirs = self.tokenizer(*words.values(), max_length=max_length, truncation=True)["input_ids"]
            self.assertEqual([row.tolist() for row in found], theirs)

    def test_one_text_and_other_settings_are_the_tokenizers(self):
        self.assertEqual(dict(self.rows("the guard", verbose=False)), dict(self.tokenizer("the guard")))
        padded = self.rows(["a", "the guard"], truncation=True, max_length=5, padding="max_length")
        self.assertEqual([len(row) for row in padded["attention_mask"]], [5, 5])

    def test_many_texts_go_to_numba(self):
        rows = RowTokenizer(self.tokenizer)
        with mock.patch.object(row_tokenizer, "CHARACTERS_BEFORE_NUMBA", 50):
            rows = RowTokenizer(self.tokenizer)
            engines = [(rows(["the guard of a town"], max_length=9, truncation=True), rows.engine)[1] for _ in range(3)]
        self.assertEqual(engines, ["tokenizers", "tokenizers", "numba"])

    def test_a_task_has_the_same_rows(self):
        task = load_task("mini", "entailment")
        names = [*task.entry["text_column_name"], "label"]
        batch = {name: ["The guard is old. </s>", "a  town", "é"] for name in names} | {"label": [0, 1, 0]}
        plain = TextEncoding(self.tokenizer, Lengths(12, 4))
        ours, theirs = (bind_encoding(e, task, "train")(batch) for e in (with_row_tokenizer(plain, "numba"), plain))
        self.assertEqual({k: [list(row) for row in v] for k, v in ours.items()}, dict(theirs))

    def test_other_endings_are_refused(self):
        self.tokenizer.truncation_side = "left"
        self.assertRegex(row_tokenizer.compiled_engine(self.tokenizer)[1], "ends or cuts texts otherwise")
        with self.assertRaisesRegex(ConfigError, "--tokenizer_engine numba: .*ends or cuts"):
            RowTokenizer(self.tokenizer, "numba")

    def test_other_families_have_the_tokenizer_alone(self):
        prompts = PromptEncoding(self.tokenizer, Lengths(32, 4))
        self.assertIs(with_row_tokenizer(prompts), prompts)
        with self.assertRaisesRegex(ConfigError, "--tokenizer_engine numba is for encoder-decoder models"):
            with_row_tokenizer(prompts, "numba")


class ExamplesTest(unittest.TestCase):
    def test_examples_hold(self):
        functions = (compiled_pieces.parts_of, compiled_pieces.joined, compiled_pieces.inserted, row_tokenizer.ended)
        for function in functions:
            names = vars(sys.modules[function.__module__])
            examples = doctest.DocTestFinder(recurse=False).find(function, globs=names)
            self.assertTrue(examples)
            self.assertFalse([e for e in examples if doctest.DocTestRunner().run(e).failed])


if __name__ == "__main__":
    unittest.main()
