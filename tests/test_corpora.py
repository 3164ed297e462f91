"""Readers of text: every format gives the same documents, nothing is left out silently, torn files are errors."""

import gzip
import itertools
import json
import os
import random
import unittest
from pathlib import Path
from unittest import mock

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from absl.testing import parameterized
from support import folder

from t5suite.data.corpora.documents import (
    Tally,
    document_hash,
    held_out_below,
    is_held_out,
    kept_documents,
    list_sources,
    read_documents,
)
from t5suite.data.corpora.encoding import make_text_encoder
from t5suite.data.corpora.readers import READERS, TextOptions, byte_lines, document_start, file_records
from t5suite.models.loading import load_tokenizer
from t5suite.testing import exits_with
from tests.shared_data import MISSING, SHARED_DATA, has, read_rows

TEXTS = ["one  two", "drei, vier: „fünf“\u2028 und mehr", "six"]
PACKED = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}


def written(name, content: bytes, where=None):
    path = (where or folder()) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PACKED[path.suffix if path.suffix in PACKED else ""](content))
    return path


def parquet(texts, column="text", row_group_size=2) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": range(len(texts)), column: texts}), sink, row_group_size=row_group_size)
    return sink.getvalue().to_pybytes()


def json_lines(texts, column="text") -> bytes:
    return "".join(json.dumps({column: text}) + "\n" for text in texts).encode()


CONTENTS = {
    ".txt": "\n".join(TEXTS).encode(),
    ".jsonl": json_lines(TEXTS),
    ".json": json_lines(TEXTS),
    ".parquet": parquet(TEXTS),
}


class FormatTest(parameterized.TestCase):
    @parameterized.product(suffix=list(READERS), packed=list(PACKED))
    def test_every_format_gives_the_same_documents(self, suffix, packed):
        path = written(f"a{suffix}{packed}", CONTENTS[suffix])
        self.assertEqual(list(read_documents(path)), TEXTS)

    @parameterized.parameters(
        ("line", ["one two", "three", "four"]),
        ("paragraph", ["one two\nthree", "four"]),
        ("file", ["one two\r\nthree\n \n\nfour\n\n"]),
    )
    def test_what_a_document_of_a_txt_file_is(self, text_unit, expected):
        path = written("a.txt", "\ufeffone two\r\nthree\n \n\nfour\n\n".encode())
        self.assertEqual(list(read_documents(path, text_unit=text_unit)), expected)

    @parameterized.product(
        case=[
            ("a.txt", "line", "\ufeffeins\r\n\nzwei\ndreißig\n\n\nvier".encode()),
            ("a.txt", "paragraph", b"\n\nab\nc\n \n\nde\nf\n\ng\n"),
            ("a.jsonl", "line", json_lines(["one", "", "two", "three"])),
        ],
        width=[1, 5, 7, 64],
    )
    def test_parts_of_a_plain_file_give_each_document_once(self, case, width):
        name, text_unit, content = case
        path, options = written(name, content), TextOptions(text_unit=text_unit)
        cuts = [document_start(path, offset, text_unit) for offset in range(0, len(content), width)] + [len(content)]
        parts = []
        for start, end in itertools.pairwise(cuts):
            parts += [(r.text, r.offset) for r in kept_documents(str(path), options, Tally(), start, end)]
        self.assertEqual(parts, [(r.text, r.offset) for r in kept_documents(str(path), options, Tally())])

    def test_row_groups_of_a_parquet_file_give_each_document_once(self):
        path = written("a.parquet", parquet(list("abcde")))
        parts = [(r.text, r.line) for group in range(3) for r in file_records(path, TextOptions(), group, group + 1)]
        self.assertEqual(parts, [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("e", 5)])


BAD = [
    ("a.txt", b"fine\nw\xff\n", "a.txt:2: not UTF-8 .byte 1 is 0xff", "not UTF-8"),
    ("a.jsonl", b'{"txt": "one"}', "a.jsonl:1: no column 'text' .--text_column_name.; did you mean txt", "no text column"),
    ("a.jsonl.gz", b'{"text": "one"}\n{"text": 3}', "a.jsonl.gz:2: column 'text' holds 3 .int., not text", "not text"),
    ("a.jsonl.zst", b'{"text": "one"}\n{"text"', "a.jsonl.zst:2: not JSON", "not JSON"),
    ("a.json", b'[{"text": "one"}]', "a.json:1: expected one JSON object a line, found a list", "not an object"),
    ("a.json", rb'{"text": "\ud800x"}', "a.json:1: character 0 is half a surrogate pair", "not UTF-8"),
    ("a.jsonl", b"[" * 200000, "a.jsonl:1: not JSON .maximum recursion depth", "not JSON"),
    ("a.parquet", parquet(["one", None]), "a.parquet:2: column 'text' holds None", "not text"),
]  # fmt: skip


class BadLinesTest(parameterized.TestCase):
    @parameterized.parameters(*BAD)
    def test_a_bad_line_is_named_or_counted_and_named(self, name, content, message, kind):
        path, tally = written(name, content), Tally()
        with exits_with(65, message):
            list(read_documents(path))
        documents = list(read_documents([written("good.txt", b"good"), path], bad_lines="skip", tally=tally))
        self.assertEqual(documents[0], "good")
        self.assertEqual((tally.documents, tally.left_out), (len(documents), {kind: 1}))
        self.assertRegex(tally.named[kind][0], message)

    def test_the_first_ten_of_each_kind_are_named(self):
        lines = [b'{"text": "fine"}', *[b'{"text": 3}', b'{"text": " "}', b"{"] * 30]
        path, tally = written("a.jsonl", b"\n".join(lines)), Tally()
        list(read_documents(path, bad_lines="skip", tally=tally))
        self.assertEqual(tally.left_out, {"not text": 30, "empty": 30, "not JSON": 30})
        self.assertEqual(tally.named["empty"], [f"{path}:{3 * i}" for i in range(1, 11)])
        self.assertLen(tally.named["not JSON"], 10)
        self.assertIn("30 documents without text", tally.summary())

    def test_a_paragraph_with_a_bad_line_is_left_out_whole(self):
        path, tally = written("a.txt", b"one\n\xff\ntwo\n\nthree\n"), Tally()
        options = {"text_unit": "paragraph", "bad_lines": "skip", "tally": tally}
        self.assertEqual(list(read_documents(path, **options)), ["three"])
        self.assertIn("a.txt:2", tally.named["not UTF-8"][0])

    @parameterized.product(suffix=[".gz", ".zst"], kind=[".txt", ".jsonl", ".parquet"], missing=[4, 12])
    def test_a_torn_file_is_named(self, suffix, kind, missing):
        contents = {".txt": b"one two three\n" * 4000, ".jsonl": json_lines(["ab"] * 4000), ".parquet": parquet(TEXTS)}
        path = written(f"a{kind}{suffix}", contents[kind])
        path.write_bytes(path.read_bytes()[:-missing])
        with exits_with(65, f"a{kind}{suffix}: the .* file is cut off"):
            list(read_documents(path))
        path.write_bytes(b"nonsense")
        with exits_with(65, f"a{kind}{suffix}: not a sound"):
            list(read_documents(path))
        with exits_with(65, "a.parquet: not a sound parquet file"):
            list(read_documents(written("a.parquet", contents[".parquet"][:-20])))

    def test_zstandard_frames_follow_one_another(self):
        path = folder() / "a.txt.zst"
        path.write_bytes(b"".join(zstandard.compress(part) for part in (b"one\ntw", b"o\n", b"", b"three")))
        self.assertEqual(list(byte_lines(path)), [b"one\n", b"two\n", b"three"])


class SourcesTest(parameterized.TestCase):
    def test_folders_and_patterns_are_sorted(self):
        where = folder()
        for name in ("b/2.txt", "b/10.txt", "a.jsonl", "c.parquet", "b/.hidden.txt", ".git/x.txt", "b/notes.md"):
            written(name, CONTENTS.get(Path(name).suffix, b"text"), where)
        with self.assertLogs("t5suite.data.corpora.documents", "WARNING") as logs:
            found = list_sources(where)
        self.assertIn("notes.md", logs.output[0])
        expected = [str(where / name) for name in ("a.jsonl", "b/10.txt", "b/2.txt", "c.parquet")]
        self.assertEqual(found, expected)
        self.assertEqual(list_sources(f"{where}/**/*.txt"), expected[1:3])
        self.assertEqual(list_sources([expected[3], f"{where}/b/*.txt"]), [expected[3], *expected[1:3]])

    def test_what_is_not_there_or_there_twice_is_refused(self):
        path = written("a.txt", b"one")
        for inputs, message in (
            ("none.txt", "none.txt: no such file"),
            (str(path.parent / "*.jsonl"), r"\*.jsonl: no text file"),
            (folder(), "no text file"),
            ([path, path], "is given twice"),
            ([path, path.parent], "is given twice"),
            ([path, written("a.txt.gz", b"one", path.parent)], "a.txt.gz and .*a.txt hold the same text"),
            (written("a.csv", b"one"), "a.csv: a text file's name ends in one of .txt, .jsonl"),
            (written("a.txt", b" \n"), r"a.txt: no document in it \(1 document without text .*a.txt:1"),
        ):
            with self.subTest(message), exits_with(65, message):
                list(read_documents(inputs))

    def test_a_pipe_is_not_a_missing_file(self):
        pipe = folder() / "a.txt"
        os.mkfifo(pipe)
        with exits_with(65, "a.txt: a pipe or a device, which is read only once"):
            list_sources(pipe)

    def test_impossible_settings_are_refused(self):
        for settings, message in (
            ({"inputs": []}, "no text is given"),
            ({"bad_lines": "skipp"}, "--bad_lines: unknown choice 'skipp'; did you mean skip"),
            ({"inputs": "hub:a:b:c:d"}, "hub:PATH"),
        ):
            with exits_with(78, message):
                list(read_documents(**{"inputs": "a.txt", **settings}))


class HubTest(parameterized.TestCase):
    """The hub's stand-in is a local folder, streamed by the real `load_dataset`."""

    def setUp(self):
        super().setUp()
        self.hub = folder()
        for number in range(3):
            written(f"en/train-{number}.jsonl", json_lines([f"{number}.{row}" for row in range(4)]), self.hub)
        readme = "---\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/train-*.jsonl\n---\n"
        (self.hub / "README.md").write_text(readme)
        for patch in (
            mock.patch.object(datasets.config, "HF_DATASETS_CACHE", folder()),
            mock.patch("t5suite.base.hub.hub_reachable", return_value=True),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def test_a_data_set_of_the_hub_is_read_file_by_file(self):
        expected = [f"{number}.{row}" for number in range(3) for row in range(4)]
        self.assertEqual(list(read_documents(f"hub:{self.hub}:en:train")), expected)
        self.assertEqual(list(read_documents(f"hub:{self.hub}:en")), expected)
        part = [r.text for r in kept_documents(f"hub:{self.hub}:en", TextOptions(), Tally(), 1, 2)]
        self.assertEqual(part, expected[4:8])

    def test_what_the_hub_lacks_is_refused_and_bad_rows_are_named_with_their_file(self):
        for name in ("de", "en:test"):
            with exits_with(65, f"hub:.*:{name}: cannot be read .*{name[-2:]}"):
                list(read_documents(f"hub:{self.hub}:{name}"))
        with exits_with(65, "no column 'body' .*; choose from text"):
            list(read_documents(f"hub:{self.hub}:en", "body"))
        written("en/train-1.jsonl", json_lines(["1.0", ""]), self.hub)
        tally = Tally()
        self.assertLen(list(read_documents(f"hub:{self.hub}:en", tally=tally)), 9)
        self.assertEqual(tally.named["empty"], [f"hub:{self.hub}:en, file 1:2"])


class HeldOutTest(parameterized.TestCase):
    def test_the_fraction_is_kept_and_grows_by_adding(self):
        texts = [f"document {number}" for number in range(20000)]
        sides = {fraction: {t for t in texts if is_held_out(t, fraction)} for fraction in (0, 0.01, 0.1, 1)}
        self.assertEqual((len(sides[0]), len(sides[1])), (0, len(texts)))
        self.assertLess(abs(len(sides[0.1]) - 2000), 4 * (20000 * 0.09) ** 0.5)
        self.assertTrue(sides[0.01] < sides[0.1])

    def test_the_hash_is_what_it_says(self):
        # From another implementation: `printf 'It rains.' | b2sum -l 64`
        self.assertEqual(document_hash("It rains."), int.from_bytes(bytes.fromhex("638677e57bb2fef9"), "little"))
        self.assertEqual(document_hash(" It rains.\n"), document_hash("It rains."))
        self.assertEqual(held_out_below(0.5), 2**63)


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

    @parameterized.parameters(*".-_!?*0oz", "\u2026", "\uff0e")
    def test_runs_of_one_character(self, character):
        """By the tokenizer read from its JSON, as `tokenizers` sends it to workers: its scores are off by a last bit
        (serde_json), which decides ties such as `-------` otherwise than in the process that made it."""
        texts = [f"{before}{character * n} and" for n in range(1, 45) for before in ("", "x", "saying ")]
        self.assert_equal_ids(texts, self.encoder.reference(texts))

    def test_long_documents_and_words_of_any_characters_and_spaces(self):
        """Whole, SentencePiece's float32 scores make `comp r ising` of a word of one of the speeches."""
        speeches = [row["text"] for row in read_rows("text/state_union.jsonl")]
        (comprising,) = [text for text in speeches if "submarines--comprising" in text]
        self.assert_equal_ids([comprising, *speeches[:10]])
        rng = random.Random(0)
        some = "the e\u0301 ½ a\u00a0b \u200b .... 日本 --------- \u2581 ﬁ".split(" ") + ["\t", "\n", "  ", " ", " "]
        texts = [
            "".join(rng.choice(some) + rng.choice(["", " "]) for _ in range(rng.randrange(400))) for _ in range(40)
        ]
        self.assert_equal_ids(texts)
        texts = ["ab" * 3000, "x" + " " * 3000 + "y", "word " * 400 + "w" * 2000 + " end"]
        self.assert_equal_ids(texts, self.encoder.reference(texts))
