"""CSV and TSV: the file's own delimiter or a clear refusal; files that are no UTF-8 text; rows given twice."""

import csv
import gzip
import io
import json
import pickle
import zipfile
from unittest import mock

import numpy as np
from absl.testing import parameterized
from support import folder

from t5suite.base.text_encodings import utf8_problem
from t5suite.data.corpora.readers import TextOptions, file_records, filled_lines
from t5suite.data.rows import separated
from t5suite.data.rows.files import json_rows, parquet_rows
from t5suite.data.rows.formats import FormatOptions, Wishes, format_form, own_data, words_of
from t5suite.data.rows.separated import CANDIDATES, delimiter_by_flag, separated_rows
from t5suite.data.rows.sources import DataOptions, load_split
from t5suite.data.rows.subsets import HeldOutRows
from t5suite.testing import exits_with, read_rows

CELLS = ["plain", "a, b", "a; b", "a | b", "tab\there", 'say "so"', "two\nlines", "", "naïve", "3,5"]


def csv_bytes(records, **dialect) -> bytes:
    file = io.StringIO()
    csv.writer(file, **dialect).writerows(records)
    return file.getvalue().encode()


def rows_of(content: bytes, kind: str = "csv", delimiter: str | None = None) -> list[dict]:
    lines = io.BytesIO(content)
    return [row for _, row in separated_rows(lines, "rows.csv", kind, delimiter)]


class DelimiterTest(parameterized.TestCase):
    @parameterized.parameters(*CANDIDATES)
    def test_what_a_writer_separated_by_any_candidate_is_read_as_it_was(self, delimiter):
        rng = np.random.default_rng(0)
        for width in (2, 3, 5):
            names = [f"column {i}" for i in range(width)]
            records = [[CELLS[i] for i in rng.integers(len(CELLS), size=width)] for _ in range(40)]
            content = csv_bytes([names, *records], delimiter=delimiter)
            self.assertEqual(rows_of(content), [dict(zip(names, record, strict=True)) for record in records])
            self.assertEqual(rows_of(content, delimiter=delimiter), rows_of(content))

    @parameterized.parameters(
        (b"text\nHello world\nfoo; bar\n", [{"text": "Hello world"}, {"text": "foo; bar"}]),
        (b'text\n"Hello, world"\n', [{"text": "Hello, world"}]),
        (b"a,b\n\n1,2\n", [{"a": "1", "b": "2"}]),
        (b"a;b\n1,5;2,5\n", [{"a": "1,5", "b": "2,5"}]),
    )
    def test_one_column_empty_lines_and_decimal_commas(self, content, rows):
        self.assertEqual(rows_of(content), rows)

    @parameterized.parameters(
        (b"text,label\nx,a\ny\n", r"rows\.csv:3: 1 cells, but .* 2 columns; .*',' 2 in line 1, 1 in line 3; ';' 1 in each"),
        (b"a,b;c\n1,2;3\n", "both ',' and ';' may separate its cells .*--delimiter"),
        (b"text\nHello, world\n", "rows.csv:2: 2 cells, .* 1 columns.*--delimiter tab: each line is one cell"),
        (b"a;b,c\n1;2\n1,2\n", "rows.csv: no delimiter gives every record"),
        (b'text,label\n"x,a\n', "rows.csv:2: a quote that opens here is not closed"),
        (b'text,label\n"x"y,a\n', "rows.csv:2: ',' expected after '\"': a quote within a quoted cell is written twice"),
        (b"sep=;\nx;y\n", "rows.csv:1: 'sep=' is Excel's note"),
        (b"text,label\rx,a\ry,b\r", "rows.csv:1: a carriage return alone"),
    )  # fmt: skip
    def test_what_cannot_be_decided_is_refused_with_what_each_candidate_gives(self, content, message):
        with exits_with(65, message):
            rows_of(content)

    def test_a_file_of_empty_lines_is_damaged(self):
        with mock.patch.object(separated, "MOST_EMPTY_LINES", 100):
            self.assertLen(rows_of(b"a,b\n" + b"\n" * 100 + b"1,2\n"), 1)
            with exits_with(65, "rows.csv:102: 101 empty lines follow each other"):
                rows_of(b"a,b\n" + b"\n" * 101 + b"1,2\n")

    def test_a_ragged_record_beyond_the_sample_is_named(self):
        content = b"text,label\n" + b"x,a\n" * 1500 + b"y\n"
        with exits_with(65, "rows.csv:1502: 1 cells, but the first line names 2 columns"):
            rows_of(content)

    def test_the_flag_names_one_character_and_overrides_both_formats(self):
        self.assertEqual(
            list(map(delimiter_by_flag, (None, ";", "tab", r"\t", "semicolon"))), [None, ";", "\t", "\t", ";"]
        )
        for value in (";;", '"', "\n", ""):
            with exits_with(78, "--delimiter .*one character"):
                delimiter_by_flag(value)
        for kind in ("csv", "tsv"):
            self.assertEqual(rows_of(b"a:b\n1:2\n", kind, ":"), [{"a": "1", "b": "2"}])
        with exits_with(65, "the first line has no tab, but ',': is this a CSV file"):
            rows_of(b"a,b\n1,2\n", "tsv")

    def test_a_decimal_comma_in_a_column_of_numbers_is_named(self):
        path = folder() / "train.csv"
        path.write_text("text;score\nx;3,5\n")
        options = FormatOptions(train_file=str(path), text_columns=("text",), target_column="score")
        data = own_data("own", format_form("csv", options), Wishes(metrics=("pearson",), evaluates=False))
        with exits_with(65, "train.csv:2: label '3,5'.*it has a decimal comma: write 3.5"):
            load_split(data.task, "train", "train", DataOptions(own={"own": data.source}))


class EncodingTest(parameterized.TestCase):
    @parameterized.parameters(
        ("Café, Ünder", "cp1252", "seems to be cp1252 .*iconv -f CP1252"), ("“quoted”", "cp1252", "cp1252"),
        ("text", "utf-16", "UTF-16, not UTF-8; .*iconv -f UTF-16 "), ("text", "utf-16-le", "iconv -f UTF-16LE"),
        ("text", "utf-16-be", "iconv -f UTF-16BE"), ("日本語です", "shift_jis", "an unknown encoding"),
        ("Привет мир", "cp1251", "an unknown encoding"),
    )  # fmt: skip
    def test_an_encoding_is_named_with_the_line_that_converts_it(self, text, encoding, message):
        self.assertRegex(utf8_problem(text.encode(encoding)), message)
        for name, write in (("a.csv", bytes), ("a.jsonl", bytes), ("a.csv.gz", gzip.compress)):
            path = folder() / name
            line = text if "csv" in name else json.dumps({"a": text}, ensure_ascii=False)
            path.write_bytes(write(f"{line}\n".encode(encoding)))
            kind = "csv" if "csv" in name else "jsonl"
            with exits_with(65, rf"{name}:1: .*{message}"):
                format_form(kind, FormatOptions(train_file=str(path))).source.read("train")

    def test_text_and_damage_and_other_files(self):
        for text in ("", "plain", "naïve ☃", "日本語"):
            self.assertIsNone(utf8_problem(text.encode()))
        self.assertRegex(utf8_problem(b"a\0\0\0\0\0"), "a file with a hole in it")
        self.assertRegex(utf8_problem("日本語です。".encode() + b"\xff"), "the file is damaged there")
        self.assertRegex(utf8_problem(gzip.compress(b"a")), r"a gzip file: its name should end in \.gz")
        self.assertRegex(utf8_problem(b"PK\x03\x04\x14\0\x06"), "Excel's .xlsx")
        self.assertRegex(utf8_problem(b"SQLite format 3\0\x10"), "an SQLite database")
        self.assertRegex(utf8_problem(b"\x7fELF\x02" + bytes(9)), "a program")
        self.assertRegex(utf8_problem(b"a\0b\x01c"), "NUL bytes: not a text, or a damaged one")
        for protocol in range(2, 6):
            self.assertRegex(utf8_problem(pickle.dumps([{"text": "a"}], protocol)), "a Python pickle")

    def test_a_compressed_files_name_and_its_content_differ(self):
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr("a.jsonl", '{"text": "a"}\n')
        path = folder() / "a.jsonl.gz"
        path.write_bytes(content.getvalue())
        with exits_with(65, "a.jsonl.gz: not a sound gzip file .it is a zip file"):
            list(filled_lines(path))
        path.write_bytes(gzip.compress(b"{}\n") + b"more")
        with exits_with(65, "a.jsonl.gz: not a sound gzip file .zlib"):
            list(filled_lines(path))

    def test_text_to_train_on_is_no_document_of_another_program(self):
        path = folder() / "book.txt"
        path.write_text("%PDF-1.4\n1 0 obj\n")
        first, second = file_records(path, TextOptions())
        self.assertEqual(first.problem, "not text, but a PDF document: export its text")
        self.assertEqual(second.text, "1 0 obj")
        path.write_text("About PDF\n%PDF-1.4 is how such a file begins.\n")
        self.assertLen([record for record in file_records(path, TextOptions()) if hasattr(record, "text")], 2)


class TwiceTest(parameterized.TestCase):
    def test_a_key_that_an_object_has_twice_is_refused_and_named(self):
        for content in ('{"a": 1, "label": 2, "label": 3}\n', '{"a": {"label": 1, "label": 1}}\n'):
            path = folder() / "rows.jsonl"
            path.write_text('{"a": 0}\n' + content)
            for read in (read_rows, lambda path: list(json_rows(path))):
                with exits_with(65, "rows.jsonl:2: key 'label' is given for the second time"):
                    read(path)

    def test_a_column_that_a_parquet_file_has_twice_is_refused(self):
        import pyarrow
        import pyarrow.parquet

        path = folder() / "rows.parquet"
        table = pyarrow.Table.from_arrays([pyarrow.array(["x"])] * 3, names=["text", "label", "text"])
        pyarrow.parquet.write_table(table, path)
        with exits_with(65, "rows.parquet: column 'text' is there for the second time"):
            list(parquet_rows(path))


class LinesTest(parameterized.TestCase):
    def test_filled_lines_are_those_that_a_plain_loop_finds(self):
        rng = np.random.default_rng(1)
        pieces = [b"a", b" ", b"\n", b"\n\n\n", b"\r\n", b"bc d", b"\t", b"\xc3\xa9", b"x" * 3000]
        for size in (0, 1, 5, 60, 2000):
            content = b"".join(pieces[i] for i in rng.integers(len(pieces), size=size))
            content += b"\n" * int(rng.integers(3))
            path = folder() / "lines.txt"
            path.write_bytes(content)
            expected = [(i, line) for i, line in enumerate(io.BytesIO(content), start=1) if line.strip()]
            self.assertEqual(list(filled_lines(path)), expected)

    def test_blocks_do_not_change_numbers(self):
        content = b"a\n" + b"\n" * (1 << 20) + b"b\n" + b"y" * (1 << 21) + b"\n\n" + b"z"
        path = folder() / "lines.txt.gz"
        path.write_bytes(gzip.compress(content, 1))
        expected = [(i, line) for i, line in enumerate(io.BytesIO(content), start=1) if line.strip()]
        self.assertEqual(list(filled_lines(path)), expected)


LFS_POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 12345\n"


class UntidyFilesTest(parameterized.TestCase):
    """Files as they come: each gives its rows, or one message with the place and the cause."""

    @parameterized.parameters(
        ("a.csv", "\ufeff\ufefftext,label\na,x\n"), ("a.csv", "text,label\r\na,x\n"), ("a.csv", "text,label,\na,x,\n"),
        ("a.csv", "text,label\na,x"), ("a.jsonl", '[{"text": "a", "label": "x"}]'), ("a.csv", 'text,label\n"a",x\n'),
        ("a.jsonl", '\ufeff\n\r\n{"label": "x", "text": "a"}\n \n'),
    )  # fmt: skip
    def test_rows_that_are_all_there_are_read(self, name, content):
        self.assertEqual(self.read(name, content), [{"text": "a", "label": "x"}])

    @parameterized.parameters(
        ("a.csv", "", "a.csv: the file has no rows"), ("a.csv", "\ufeff", "a.csv: the file has no rows"),
        ("a.csv", "text,label\n", "a.csv: the file has no rows"), ("a.csv", "text,label\na\0,x\n", "a.csv:2: NUL bytes"),
        ("a.csv", "text,label,,\na,x,,\n", "a.csv:1: 2 columns have no name"),
        ("a.csv", " text ,label\na,x\n", "did you mean ' text '\\? .*invisible"),
        ("a.csv.gz", "text,label\na,x\n", "a.csv.gz: not a sound gzip file"),
        ("a.jsonl", '[{"text": "a"},\n{"text": }]', "a.jsonl: not JSON .*line 2, column"),
        ("a.jsonl", '[["a", "x"]]', "entry 0 of the array is"), ("a.jsonl", '{"text": NaN}', "a.jsonl:1: .*NaN is not a JSON value"),
        ("a.jsonl", '{"text": "a", "label": %s}' % ("9" * 5000), "a.jsonl:1: not JSON .a number of more than 4300 digits"),
        ("a.jsonl", '{"text": "\\ud800", "label": "x"}', "a.jsonl:1: .*half a surrogate pair"),
        ("a.jsonl", '{"text": "a", "label": "x"}\n{"Text": "b", "label": "x"}', "a.jsonl:2: no column 'text', .*did you mean Text"),
        ("a.parquet", "text,label\n", "a.parquet: not a sound parquet file"),
        ("a.parquet", LFS_POINTER, "a.parquet: not a sound parquet file .it is a pointer of Git LFS: .* git lfs pull"),
        ("a.jsonl", LFS_POINTER, "a.jsonl:1: not text, but a pointer of Git LFS"),
        ("a.csv", "%PDF-1.4\n1 0 obj\n", "a.csv:1: not text, but a PDF document"),
        ("a.csv", "<!DOCTYPE html>\n<p>a, b; c</p>\n", "a.csv:1: not rows, but a web page"),
        ("a.jsonl", "\n<html><body>\n", "a.jsonl:2: not rows, but a web page"),
        ("a.jsonl", "{\n  \"text\": \"a\"\n}\n", "a.jsonl:1: not JSON .*an object stands on one line, not over several"),
    )  # fmt: skip
    def test_others_are_named_with_place_and_cause(self, name, content, message):
        with exits_with(65, message):
            self.read(name, content)

    def read(self, name: str, content: str) -> list[dict]:
        path = folder() / name
        path.write_bytes(content.encode())
        options = FormatOptions(train_file=str(path), text_columns=("text",), target_column="label")
        return format_form(name.split(".")[1], options).source.read("train").rows


class ColumnsTest(parameterized.TestCase):
    def test_a_name_with_a_comma_is_quoted_and_the_message_says_so(self):
        self.assertEqual(words_of('id,"Text, long"', "--text_column"), ("id", "Text, long"))
        path = folder() / "train.csv"
        path.write_bytes(csv_bytes([["Text, long", "label"], ["x", "a"]]))
        with exits_with(65, """did you mean '"Text, long"'.*a name with a comma is quoted"""):
            options = FormatOptions(train_file=str(path), text_columns=("Text", "long"), target_column="label")
            format_form("csv", options).source.read("train")

    def test_columns_that_are_not_read_are_logged_once_for_both_parts(self):
        path = folder() / "train.csv"
        path.write_bytes(csv_bytes([["text", "label", "note"], *([f"x{i}", "a", "n"] for i in range(20))]))
        options = FormatOptions(train_file=str(path), text_columns=("text",), target_column="label")
        form = format_form("csv", options)
        source = HeldOutRows(form.source, form.columns, 0.1, 0)
        with self.assertLogs("t5suite.data.rows.own_rows", "INFO") as logs:
            source.read("train"), source.read("validation")
        self.assertLen(logs.output, 1)

    def test_equal_inputs_are_the_cause_that_is_named(self):
        path = folder() / "train.csv"
        path.write_bytes(csv_bytes([["text", "label"], *(["same", "a"] for _ in range(1000))]))
        options = FormatOptions(train_file=str(path), text_columns=("text",), target_column="label")
        form = format_form("csv", options)
        with exits_with(65, "all 1000 rows have the same input .*'same' in column text"):
            HeldOutRows(form.source, form.columns, 0.05, 0).read("train")
