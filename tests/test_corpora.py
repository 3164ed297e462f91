"""Readers of text: every format gives the same documents, nothing is left out silently, torn files are errors.

Seen through `t5suite corpus build` with a tokenizer that keeps every byte.
"""

import errno
import json
import os
import random
import re
import unittest
from pathlib import Path
from unittest import mock

import datasets
import pytest
import zstandard
from absl.testing import parameterized
from corpus_files import (
    PACKED,
    build_corpus,
    build_with_messages,
    byte_tokenizer,
    document_hash,
    is_held_out,
    json_lines,
    parquet,
    write_lines,
    write_packed,
)
from support import folder
from transformers import T5Tokenizer

from t5suite.testing import exits_with
from tests.shared_data import MISSING, SHARED_DATA, has, read_rows

TEXTS = ["one  two", "drei, vier: „fünf“\u2028 und mehr", "six"]
BYTES = byte_tokenizer()
CONTENTS = {
    ".txt": "\n".join(TEXTS).encode(),
    ".jsonl": json_lines(TEXTS),
    ".json": json_lines(TEXTS),
    ".parquet": parquet(TEXTS),
}


def build(inputs, **flags):
    return build_corpus(inputs, tokenizer=BYTES, **{"validation_fraction": 0, **flags})


def texts_of(inputs, **flags) -> list[str]:
    return build(inputs, **flags).texts()


class FormatTest(parameterized.TestCase):
    @parameterized.product(suffix=list(CONTENTS), packing=list(PACKED))
    @pytest.mark.quick_cases(4)
    def test_every_format_gives_the_same_documents(self, suffix, packing):
        path = write_packed(f"a{suffix}{packing}", CONTENTS[suffix])
        self.assertEqual(texts_of(path), TEXTS)

    @parameterized.parameters(
        ("line", ["one two", "three", "four"]),
        ("paragraph", ["one two\nthree", "four"]),
        ("file", ["one two\r\nthree\n \n\nfour\n\n"]),
    )
    def test_what_a_document_of_a_txt_file_is(self, text_unit, expected):
        path = write_packed("a.txt", "\ufeffone two\r\nthree\n \n\nfour\n\n".encode())
        self.assertEqual(texts_of(path, text_unit=text_unit), expected)

    @parameterized.parameters("PAR1 was the first\nof\n", "%PDF settings of the paper\r\nand more\r\n", "BZh\n")
    def test_a_file_that_is_a_document_may_begin_as_another_kind_of_file(self, text):
        self.assertEqual(texts_of(write_packed("a.txt", text.encode()), text_unit="file"), [text])

    @parameterized.product(
        case=[
            ("a.txt", "line", "\ufeffeins\r\n\nzwei\ndreißig\n\n\nvier".encode(), "eins zwei dreißig vier"),
            ("a.txt", "paragraph", b"\n\nab\nc\n \n\nde\nf\n\ng\n", "ab\nc de\nf g"),
            ("a.jsonl", "line", json_lines(["one", "", "two", "three"]), "one two three"),
        ],
        num_bytes=[1, 5, 7, 64],
    )
    def test_parts_of_a_plain_file_give_each_document_once(self, case, num_bytes):
        name, text_unit, content, expected = case
        corpus = build(write_packed(name, content), text_unit=text_unit, unit_megabytes=f"{num_bytes}e-6")
        self.assertEqual(corpus.texts(), expected.split(" "))
        if num_bytes < 64:
            self.assertGreater(len(corpus.shards), 1)

    def test_row_groups_of_a_parquet_file_give_each_document_once(self):
        corpus = build(write_packed("a.parquet", parquet(list("abcde"))), unit_megabytes="1e-6")
        self.assertEqual((corpus.texts(), len(corpus.shards)), (list("abcde"), 3))


BAD = [
    ("a.txt", b"fine\nw\xff\n", "a.txt:2: not UTF-8 .byte 1 is 0xff", "not UTF-8"),
    ("a.jsonl", b'{"txt": "one"}', "a.jsonl:1: no column 'text' .--text_column_name.; did you mean txt", "no text column"),
    ("a.jsonl.gz", b'{"text": "one"}\n{"text": 3}', "a.jsonl.gz:2: column 'text' holds 3 .int., not text", "not text"),
    ("a.jsonl.zst", b'{"text": "one"}\n{"text"', "a.jsonl.zst:2: not JSON", "not JSON"),
    ("a.json", b'[{"text": "one"}]', "a.json:1: expected one JSON object a line, found a list", "not an object"),
    ("a.json", rb'{"text": "\ud800x"}', "a.json:1: character 0 is half a surrogate pair", "not UTF-8"),
    ("a.jsonl", b"[" * 200000, "a.jsonl:1: not JSON .maximum recursion depth", "not JSON"),
    ("a.parquet", parquet(["one", None]), "a.parquet:2: column 'text' holds None", "not text"),
    ("a.txt", b"%PDF-1.7\nfine", "a.txt:1: not text, but a PDF document", "not text"),
    ("a.txt", b"fine\nw\0\n", "a.txt:2: NUL bytes in the text", "NUL bytes"),
]  # fmt: skip
# Lines of one file by the kind under which they are counted. A pointer is told from a text at a file's beginning alone.
LINES_BY_KIND = {
    "not text": [b"version https://git-lfs.github.com/spec/v1", b'{"text": 3}', b'{"text": null}', b'{"text": ["a"]}'],
    "NUL bytes": [b"\0", b'{"text": "a\0b"}'],
    "not UTF-8": [b'{"text": "caf\xe9"}', rb'{"text": "\udc00"}', b"\xff"],
    "not JSON": [b"{", b"words", b'{"text": "a"', b'{"text": "a"} {}', b"1" * 5000],
    "not an object": [b"[]", b'"text"', b"3", b"null", b'["text"]', b"true"],
    "no text column": [b"{}", b'{"txt": "a"}', b'{"Text": "a"}', b'{"a": {"text": "a"}}', b'{"txt": 1}', b'{"": ""}', b'{"a": 1}'],
    "empty": [b"", b" ", b'{"text": ""}', b'{"text": " "}', rb'{"text": "\n"}', b"\t", b'{ "text":"" }', rb'{"text": "\u2003"}'],
    None: [b'{"text": "%d"}' % number for number in range(9)],
}  # fmt: skip


class BadLinesTest(parameterized.TestCase):
    @parameterized.parameters(*BAD)
    def test_a_bad_line_is_named_or_counted_and_named(self, name, content, message, kind):
        path = write_packed(name, content)
        with exits_with(65, message):
            build(path)
        good = write_packed("good.txt", b"good")
        corpus = build([good, path], bad_lines="skip")
        self.assertEqual(corpus.texts()[0], "good")
        of_good, of_bad = corpus.manifest["sources"]
        self.assertEqual((of_good["documents"], of_good["left_out"]), (1, {}))
        self.assertEqual((1 + of_bad["documents"], of_bad["left_out"]), (len(corpus.texts()), {kind: 1}))
        self.assertRegex(of_bad["named"][kind][0], message)

    def test_of_lines_in_any_order_each_is_a_document_or_is_counted_and_named_under_its_kind(self):
        first, *others = [(line, kind) for kind, lines in LINES_BY_KIND.items() for line in lines]
        random.Random(0).shuffle(others)
        path = write_packed("a.jsonl", b"\n".join(line for line, _ in (first, *others)))
        corpus = build(path, bad_lines="skip")
        expected: dict = {kind: [] for kind in LINES_BY_KIND}
        for number, (_, kind) in enumerate((first, *others), 1):
            expected[kind].append(f"{path}:{number}")
        self.assertLen(corpus.texts(), len(expected.pop(None)))
        (source,) = corpus.manifest["sources"]
        self.assertEqual(source["left_out"], {kind: len(places) for kind, places in expected.items()})
        for kind, places in expected.items():
            named = [re.match(re.escape(str(path)) + r":\d+", place)[0] for place in source["named"][kind]]
            self.assertEqual(named, places, kind)

    @parameterized.product(
        text_unit=["line", "paragraph", "file"],
        case=[(b"PK\x03\x04 a", "not text"), (b"one \0 two", "NUL bytes"), (b"caf\xe9", "not UTF-8")],
    )
    def test_a_bad_line_of_a_txt_file_has_one_kind_whatever_a_document_is(self, text_unit, case):
        content, kind = case
        corpus = build(
            [write_packed("a.txt", content), write_packed("b.txt", b"fine")], text_unit=text_unit, bad_lines="skip"
        )
        self.assertEqual([source["left_out"] for source in corpus.manifest["sources"]], [{kind: 1}, {}])

    def test_the_first_ten_of_each_kind_are_named(self):
        lines = [b'{"text": "fine"}', *[b'{"text": 3}', b'{"text": " "}', b"{"] * 30]
        path = write_packed("a.jsonl", b"\n".join(lines))
        corpus, messages = build_with_messages(path, tokenizer=BYTES, bad_lines="skip", validation_fraction=0)
        source = corpus.manifest["sources"][0]
        self.assertEqual(source["left_out"], {"not text": 30, "empty": 30, "not JSON": 30})
        self.assertEqual(source["named"]["empty"], [f"{path}:{3 * i}" for i in range(1, 11)])
        self.assertLen(source["named"]["not JSON"], 10)
        self.assertIn("30 documents without text", messages)

    def test_a_paragraph_with_a_bad_line_is_left_out_whole(self):
        path = write_packed("a.txt", b"one\n\xff\ntwo\n\nthree\n")
        corpus = build(path, text_unit="paragraph", bad_lines="skip")
        self.assertEqual(corpus.texts(), ["three"])
        self.assertIn("a.txt:2", corpus.manifest["sources"][0]["named"]["not UTF-8"][0])

    @parameterized.product(suffix=[".gz", ".zst"], kind=[".txt", ".jsonl", ".parquet"], missing=[4, 12])
    @pytest.mark.quick_cases(4)
    def test_a_torn_file_is_named(self, suffix, kind, missing):
        contents = {".txt": b"one two three\n" * 4000, ".jsonl": json_lines(["ab"] * 4000), ".parquet": parquet(TEXTS)}
        path = write_packed(f"a{kind}{suffix}", contents[kind])
        path.write_bytes(path.read_bytes()[:-missing])
        with exits_with(65, f"a{kind}{suffix}: the .* file is cut off"):
            build(path)
        path.write_bytes(b"nonsense")
        with exits_with(65, f"a{kind}{suffix}: not a sound"):
            build(path)

    def test_a_torn_parquet_file_is_named(self):
        with exits_with(65, "a.parquet: not a sound parquet file"):
            build(write_packed("a.parquet", parquet(TEXTS)[:-20]))

    @parameterized.parameters("ParquetFile", "ParquetFile.iter_batches")
    def test_an_error_of_the_disk_is_no_unsound_parquet_file(self, step):
        path = write_packed("a.parquet", parquet(TEXTS))
        fault = OSError(errno.EIO, "Error reading bytes from file")
        with mock.patch(f"pyarrow.parquet.{step}", side_effect=fault), self.assertRaises(OSError) as raised:
            build(path)
        self.assertEqual((raised.exception.errno, raised.exception.filename), (errno.EIO, str(path)))

    def test_zstandard_frames_follow_one_another(self):
        path = folder() / "a.txt.zst"
        path.write_bytes(b"".join(zstandard.compress(part) for part in (b"one\ntw", b"o\n", b"", b"three")))
        self.assertEqual(texts_of(path), ["one", "two", "three"])


class SourcesTest(parameterized.TestCase):
    def sources_of(self, inputs) -> list[str]:
        return [source["name"] for source in build(inputs).manifest["sources"]]

    def test_folders_and_patterns_are_sorted(self):
        where = folder()
        for name in ("b/2.txt", "b/10.txt", "a.jsonl", "c.parquet", "b/.hidden.txt", ".git/x.txt", "b/notes.md"):
            write_packed(name, CONTENTS.get(Path(name).suffix, b"text"), where)
        with self.assertLogs("t5suite", "WARNING") as logs:
            sources = self.sources_of(where)
        self.assertIn("notes.md", "".join(logs.output))
        expected = [str(where / name) for name in ("a.jsonl", "b/10.txt", "b/2.txt", "c.parquet")]
        self.assertEqual(sources, expected)
        self.assertEqual(self.sources_of(f"{where}/**/*.txt"), expected[1:3])
        self.assertEqual(self.sources_of([expected[3], f"{where}/b/*.txt"]), [expected[3], *expected[1:3]])

    def test_what_is_not_there_or_there_twice_is_refused(self):
        path = write_packed("a.txt", b"one")
        for inputs, message in (
            ("none.txt", "none.txt: no such file"),
            (str(path.parent / "*.jsonl"), r"\*.jsonl: no text file"),
            (folder(), "no text file"),
            ([path, path], "is given twice"),
            ([path, path.parent], "is given twice"),
            ([path, write_packed("a.txt.gz", b"one", path.parent)], "a.txt.gz and .*a.txt hold the same text"),
            (write_packed("a.csv", b"one"), "a.csv: a text file's name ends in one of .txt, .jsonl"),
            (write_packed("a.txt", b" \n"), r"a.txt: no document in it \(1 document without text .*a.txt:1"),
        ):
            with self.subTest(message), exits_with(65, message):
                build(inputs)

    def test_a_pipe_is_not_a_missing_file(self):
        pipe = folder() / "a.txt"
        os.mkfifo(pipe)
        with exits_with(65, "a.txt: a pipe or a device, which is read only once"):
            build(pipe)

    def test_impossible_settings_are_refused(self):
        path = write_packed("a.txt", b"one")
        for inputs, flags, message in (
            (path, {"bad_lines": "skipp"}, "--bad_lines: unknown choice 'skipp'; did you mean skip"),
            (path, {"text_unit": "word"}, "--text_unit: unknown .*'word'"),
            ("hub:a:b:c:d", {}, "hub:PATH"),
        ):
            with self.subTest(message), exits_with(78, message):
                build(inputs, **flags)


class HubTest(parameterized.TestCase):
    """The hub's stand-in is a local folder, streamed by the real `load_dataset`."""

    def setUp(self):
        super().setUp()
        self.hub = folder()
        for number in range(3):
            write_packed(f"en/train-{number}.jsonl", json_lines([f"{number}.{row}" for row in range(4)]), self.hub)
        readme = "---\nconfigs:\n- config_name: en\n  data_files:\n  - split: train\n    path: en/train-*.jsonl\n---\n"
        (self.hub / "README.md").write_text(readme)
        self.enter_context(mock.patch.object(datasets.config, "HF_DATASETS_CACHE", folder()))

    def test_a_data_set_of_the_hub_is_read_file_by_file(self):
        expected = [f"{number}.{row}" for number in range(3) for row in range(4)]
        corpus = build(f"hub:{self.hub}:en:train", unit_megabytes="1e-6")
        self.assertEqual((corpus.texts(), len(corpus.shards)), (expected, 3))
        self.assertEqual(texts_of(f"hub:{self.hub}:en"), expected)

    def test_what_the_hub_lacks_is_refused_and_bad_rows_are_named_with_their_file(self):
        for name in ("de", "en:test"):
            with exits_with(65, f"hub:.*:{name}: cannot be read .*{name[-2:]}"):
                build(f"hub:{self.hub}:{name}")
        with exits_with(65, "no column 'body' .*; choose from text"):
            build(f"hub:{self.hub}:en", text_column_name="body")
        write_packed("en/train-1.jsonl", json_lines(["1.0", ""]), self.hub)
        corpus = build(f"hub:{self.hub}:en")
        self.assertLen(corpus.texts(), 9)
        named = [place for source in corpus.manifest["sources"] for place in source["named"].get("empty", [])]
        self.assertEqual(named, [f"hub:{self.hub}:en, file 1:2"])

    def test_a_corpus_of_another_commit_is_refused_by_its_name(self):
        """The stand-in has no commits, so the plan gets one, as the plan of a corpus of the hub has it."""
        name, commit = f"hub:{self.hub}:en", "a" * 40
        corpus = build(name)
        corpus.manifest["plan"]["sources"] = [[name, None, commit]]
        (corpus.directory / "corpus.json").write_text(json.dumps(corpus.manifest))
        with exits_with(65, rf"other sources .*{name} \(commit {commit}\)"):
            build(name, directory=corpus.directory)


class HeldOutTest(parameterized.TestCase):
    @pytest.mark.slow
    def test_documents_are_held_out_by_their_hash(self):
        texts = [f"document {number}" for number in range(2000)]
        path = write_lines(texts)
        sides = {}
        for fraction in (0, 0.01, 0.1, 1):
            corpus = build(path, validation_fraction=fraction)
            self.assertEqual(corpus.texts(), [text for text in texts if not is_held_out(text, fraction)])
            self.assertEqual(corpus.texts("validation"), [text for text in texts if is_held_out(text, fraction)])
            sides[fraction] = set(corpus.texts("validation"))
        self.assertEqual((len(sides[0]), len(sides[1])), (0, len(texts)))
        self.assertLess(abs(len(sides[0.1]) - 200), 4 * (2000 * 0.09) ** 0.5)
        self.assertTrue(sides[0.01] < sides[0.1])

    def test_white_space_around_a_document_does_not_change_its_side(self):
        held_out = next(text for text in map(str, range(1000)) if is_held_out(text, 0.1))
        rows = [f" {held_out}\t", held_out, "1"]
        corpus = build(write_packed("a.jsonl", json_lines(rows)), validation_fraction=0.1)
        self.assertLen(corpus.texts("validation"), 2)

    def test_the_hash_is_that_of_another_program(self):
        """`printf 'It rains.' | b2sum -l 64`"""
        self.assertEqual(document_hash("It rains."), int.from_bytes(bytes.fromhex("638677e57bb2fef9"), "little"))


T5 = str(SHARED_DATA / "tokenizer" / "t5")
needs_t5 = unittest.skipUnless(has("tokenizer/t5/spiece.model"), MISSING)


@needs_t5
class T5IdsTest(parameterized.TestCase):
    """SentencePiece, which encodes the text of T5's corpora, gives the ids of the tokenizer."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tokenizer = T5Tokenizer.from_pretrained(T5)

    def ids_of(self, texts, engine) -> list[list[int]]:
        source = write_packed("a.jsonl", json_lines(texts))
        flags = {"validation_fraction": 0, "tokenizer_engine": engine}
        corpus = build_corpus(source, tokenizer=T5, **flags)
        expected = "sentencepiece" if engine == "auto" else "tokenizers"
        self.assertEqual(corpus.manifest["tokenizer"]["engine"], expected)
        return corpus.documents("train")

    def assert_equal_ids(self, texts, expected):
        for text, ids, expected_ids in zip(texts, self.ids_of(texts, "auto"), expected, strict=True):
            self.assertEqual(ids, expected_ids, text[:200])

    @pytest.mark.slow
    def test_runs_of_one_character(self):
        """By the tokenizer read from its JSON, as `tokenizers` sends it to workers: its scores are off by a last bit
        (serde_json), which decides ties such as `-------` otherwise than in the process that made it."""
        self.check_runs((1, 2, 3, 5, 7, 8, 13, 16, 31, 44))

    @pytest.mark.slow
    def test_longer_and_shorter_runs(self):
        self.check_runs(range(1, 45))

    def check_runs(self, counts):
        characters = (*".-_!?*0oz", "\u2026", "\uff0e")
        runs = [character * count for character in characters for count in counts]
        texts = [f"{before}{run} and" for run in runs for before in ("", "x", "saying ")]
        self.assert_equal_ids(texts, self.ids_of(texts, "tokenizers"))

    @pytest.mark.slow
    def test_long_documents_and_words_of_any_characters_and_spaces(self):
        self.check_documents(1, 12)

    @pytest.mark.slow
    def test_more_of_them(self):
        self.check_documents(10, 40)

    def check_documents(self, number_of_speeches, number_of_texts):
        """Whole, SentencePiece's float32 scores make `comp r ising` of a word of one of the speeches."""
        speeches = [row["text"] for row in read_rows("text/state_union.jsonl")]
        (comprising,) = [text for text in speeches if "submarines--comprising" in text]
        rng = random.Random(0)
        some = "the e\u0301 ½ a\u00a0b \u200b .... 日本 --------- \u2581 ﬁ".split(" ") + ["\t", "\n", "  ", " ", " "]
        texts = [
            "".join(rng.choice(some) + rng.choice(["", " "]) for _ in range(rng.randrange(1, 400)))
            for _ in range(number_of_texts)
        ]
        spoken = [comprising, *speeches[:number_of_speeches], *(text for text in texts if text.strip())]
        expected = self.tokenizer(spoken, add_special_tokens=False, verbose=False)["input_ids"]
        long = ["ab" * 3000, "x" + " " * 3000 + "y", "word " * 400 + "w" * 2000 + " end"]
        self.assert_equal_ids([*spoken, *long], [*expected, *self.ids_of(long, "tokenizers")])
