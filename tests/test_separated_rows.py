"""CSV and TSV: the file's own delimiter or a clear refusal; files that are no UTF-8 text; rows given twice."""

import csv
import gzip
import io
import json
import pickle
import re
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from absl.testing import parameterized
from support import folder

from t5suite.data.corpora.readers import text_suffix
from t5suite.data.rows import separated
from t5suite.data.rows.file_rows import format_by_name, table_rows
from t5suite.data.rows.separated import CANDIDATES, delimiter_by_flag, separated_rows
from t5suite.inference.rows import kind_of_file
from t5suite.launch.row_formats import format_of_files
from t5suite.testing import exits_with, load_own_rows, read_rows, tiny_run

COLUMNS = {"text_column": "text", "target_column": "label"}
CELLS = ["plain", "a, b", "a; b", "a | b", "tab\there", 'say "so"', "two\nlines", "", "naïve", "3,5"]


def csv_bytes(records, **dialect) -> bytes:
    file = io.StringIO()
    csv.writer(file, **dialect).writerows(records)
    return file.getvalue().encode()


def rows_of(content: bytes, kind: str = "csv", delimiter: str | None = None) -> list[dict]:
    lines = io.BytesIO(content)
    return [row for _, row in separated_rows(lines, "rows.csv", kind, delimiter)]


class NamesTest(parameterized.TestCase):
    @parameterized.parameters(
        ("rows.CSV", "csv"), ("Rows.Tab.GZ", "tsv"), ("ROWS.JSONL", "jsonl"), ("a.Parquet", "parquet")
    )  # fmt: skip
    def test_an_ending_in_capital_letters_says_the_same(self, name, kind):
        self.assertEqual(kind_of_file(name), kind)
        self.assertEqual(format_by_name(name), kind)
        self.assertEqual(format_of_files({"train_file": name, "text_column": "text"}), kind)
        if kind in ("jsonl", "parquet"):
            self.assertEqual(text_suffix(Path(name)), f".{kind}")

    def test_a_packed_file_in_capital_letters_is_unpacked(self):
        path = folder() / "ROWS.CSV.GZ"
        path.write_bytes(gzip.compress(b"text\nIt rains.\n"))
        self.assertEqual([row for _, row in table_rows(path, "csv")], [{"text": "It rains."}])


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

    def test_a_tsv_with_the_quotes_of_csv_is_named_once_with_its_first_row(self):
        lines = [b"text\tlabel\n", b'"fine"\ta\n', b'"I ""like"" it"\tb\n', b'"so ""so"""\tb\n']
        for name, kind, delimiter, is_named in (("q.tsv", "tsv", None, True), ("q.csv", "csv", "\t", False)):
            with self.assertLogs("t5suite", "INFO") as logs:
                separated.logger.info("read twice, as a run does")
                for _ in range(2):
                    self.assertLen(list(separated_rows(lines, name, kind, delimiter)), 3)
            named = [line for line in logs.output if "quoted as in CSV" in line]
            self.assertLen(named, is_named)
            self.assertIn(f"{name}:3: ", "".join(named) or f"{name}:3: ")

    @parameterized.parameters(("two\nlines", "a"), ("a", "two\nlines"), ("a\ttab", "b"))
    def test_a_tsv_with_quoted_cells_of_several_lines_names_its_quotes_and_is_csv(self, *record):
        content = csv_bytes([["text", "label"], ["plain", "a"], record], delimiter="\t")
        with exits_with(65, r"rows.csv:\d: .* opens a quote.*--data_format csv.*name that ends in \.csv"):
            rows_of(content, "tsv")
        self.assertEqual([tuple(row.values()) for row in rows_of(content)], [("plain", "a"), record])
        with exits_with(65, "names 2 columns$"):
            rows_of(b'text\tlabel\n"x" is\ta\ny\n', "tsv")
        with exits_with(65, r"""; '"long long .*long\.\.\.' opens a quote"""):
            rows_of(b'text\tlabel\n"' + b"long " * 20 + b"\n", "tsv")

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

    @parameterized.parameters(
        ("3,5", "write 3[.]5$"), ("-0,125", "write -0[.]125$"), ("1234,567", "write 1234[.]567$"),
        ("12,500", "write 12500 if .*, 12[.]500 if "), ("1,234,567", "write 1234567$"), ("1,234.5", "write 1234.5$"),
        ("1,2,3", "not a finite number$"), ("3.5.1", "not a finite number$"),
    )  # fmt: skip
    def test_what_a_comma_in_a_number_may_mean_is_named(self, number, message):
        """One before exactly three digits may be either kind: the wrong reading changes the number a thousandfold."""
        path = folder() / "train.csv"
        path.write_text(f"text;score\nx;{number}\n")
        with exits_with(65, f"train.csv:2: label '{number}'.*{message}"):
            load_own_rows(path, text_column="text", target_column="score", metrics="pearson", no_eval=True)


class EncodingTest(parameterized.TestCase):
    @parameterized.parameters(
        ("Café, Ünder", "cp1252", "seems to be cp1252 .*iconv -f CP1252"), ("“quoted”", "cp1252", "cp1252"),
        ("text", "utf-16", "UTF-16, not UTF-8; .*iconv -f UTF-16 "), ("text", "utf-16-le", "iconv -f UTF-16LE"),
        ("text", "utf-16-be", "iconv -f UTF-16BE"), ("日本語です", "shift_jis", "an unknown encoding"),
        ("Привет мир", "cp1251", "an unknown encoding"),
    )  # fmt: skip
    def test_an_encoding_is_named_with_the_line_that_converts_it(self, text, encoding, message):
        for name, write in (("a.csv", bytes), ("a.jsonl", bytes), ("a.csv.gz", gzip.compress)):
            path = folder() / name
            line = text if "csv" in name else json.dumps({"a": text}, ensure_ascii=False)
            path.write_bytes(write(f"{line}\n".encode(encoding)))
            with exits_with(65, rf"{name}:1: .*{message}"):
                load_own_rows(path)

    def test_texts_in_utf8_are_read(self):
        self.assertEqual(rows_of("text\n日本語\nnaïve ☃\n".encode()), [{"text": "日本語"}, {"text": "naïve ☃"}])

    @parameterized.parameters(
        (b"a\0\0\0\0\0", "a file with a hole in it"), ("日本語です。".encode() + b"\xff", "the file is damaged there"),
        (gzip.compress(b"a"), r"a gzip file: its name should end in \.gz"), (b"PK\x03\x04\x14\0\x06", "Excel's .xlsx"),
        (b"SQLite format 3\0\x10", "an SQLite database"), (b"\x7fELF\x02" + bytes(9), "a program"),
        (b"a\0b\x01c", "NUL bytes: not a text, or a damaged one"),
        *((pickle.dumps([{"text": "a"}], protocol), "a Python pickle") for protocol in range(2, 6)),
    )  # fmt: skip
    def test_damage_and_other_files_are_told_apart(self, content, message):
        with exits_with(65, rf"rows\.csv:1: .*{message}"):
            rows_of(content)

    def test_a_compressed_files_name_and_its_content_differ(self):
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr("a.jsonl", '{"text": "a"}\n')
        path = folder() / "a.jsonl.gz"
        path.write_bytes(content.getvalue())
        with exits_with(65, "a.jsonl.gz: not a sound gzip file .it is a zip file"):
            load_own_rows(path)
        path.write_bytes(gzip.compress(b"{}\n") + b"more")
        with exits_with(65, "a.jsonl.gz: not a sound gzip file .zlib"):
            load_own_rows(path)

    def test_text_to_train_on_is_no_document_of_another_program(self):
        path = folder() / "book.txt"
        path.write_text("%PDF-1.4\n1 0 obj\n")
        with exits_with(65, "book.txt:1: not text, but a PDF document: export its text"):
            load_own_rows(path, no_eval=True)
        path.write_text("About PDF\n%PDF-1.4 is how such a file begins.\n")
        (block,) = load_own_rows(path, no_eval=True).rows
        self.assertEqual(block["text"], path.read_text().strip())


class TwiceTest(parameterized.TestCase):
    def test_a_key_that_an_object_has_twice_is_refused_and_named(self):
        for content in ('{"a": 1, "label": 2, "label": 3}\n', '{"a": {"label": 1, "label": 1}}\n'):
            path = folder() / "rows.jsonl"
            path.write_text('{"input": 0, "output": 0}\n' + content)
            for read in (read_rows, load_own_rows):
                with exits_with(65, "rows.jsonl:2: key 'label' is given for the second time"):
                    read(path)

    def test_a_column_that_a_parquet_file_has_twice_is_refused(self):
        import pyarrow
        import pyarrow.parquet

        path = folder() / "rows.parquet"
        table = pyarrow.Table.from_arrays([pyarrow.array(["x"])] * 3, names=["text", "label", "text"])
        pyarrow.parquet.write_table(table, path)
        with exits_with(65, "rows.parquet: column 'text' is there for the second time"):
            load_own_rows(path, **COLUMNS)

    @parameterized.parameters(("date32[day]", 10**7), ("timestamp[us]", 10**18), ("duration[s]", 10**18))
    def test_a_value_of_a_parquet_file_that_python_cannot_hold_is_named(self, kind, value):
        import pyarrow
        import pyarrow.parquet

        path = folder() / "rows.parquet"
        types = {"date32[day]": pyarrow.date32(), "timestamp[us]": pyarrow.timestamp("us")}
        cells = pyarrow.array([1, None, value], types.get(kind, pyarrow.duration("s")))
        table = pyarrow.Table.from_arrays([pyarrow.array(["x"] * 3)] * 2 + [cells], names=["text", "label", "seen"])
        pyarrow.parquet.write_table(table, path)
        with exits_with(65, f"rows.parquet row 3: column 'seen' holds a value of type {re.escape(kind)} that is too"):
            load_own_rows(path, **COLUMNS)


class LinesTest(parameterized.TestCase):
    """Lines are counted as a plain loop counts them, empty ones too."""

    def check(self, content: bytes, name: str):
        """The rows of JSON lines, and the number in the message about a line that is appended."""
        compress = gzip.compress if name.endswith(".gz") else bytes
        path = folder() / name
        path.write_bytes(compress(content))
        rows = [json.loads(line) for line in io.BytesIO(content) if line.strip()]
        self.assertEqual(load_own_rows(path, no_eval=True, **COLUMNS).rows, rows)
        content = content.removesuffix(b"\n") + b"\n[]"
        path.write_bytes(compress(content))
        last = sum(1 for _ in io.BytesIO(content))
        with exits_with(65, rf"{name}:{last}: "):
            load_own_rows(path, no_eval=True, **COLUMNS)

    @parameterized.parameters(1, 5, 60, 2000)
    @pytest.mark.quick_cases(1)
    def test_rows_and_numbers_are_those_of_a_plain_loop(self, size):
        rng = np.random.default_rng(size)
        texts = ["a", "é", "x" * 3000]
        ends = [b"\n", b"\n\n\n", b"\r\n", b" \n", b"\n\t\n"]
        lines = [json.dumps({"text": texts[rng.integers(3)], "label": str(i)}).encode() for i in range(size)]
        self.check(b"".join(line + ends[rng.integers(len(ends))] for line in lines), "rows.jsonl")

    @pytest.mark.slow
    def test_blocks_do_not_change_numbers(self):
        first, long = b'{"text": "a", "label": "b"}\n', b'{"text": "%s", "label": "b"}\n' % (b"y" * (1 << 21))
        self.check(first + b"\n" * (1 << 20) + first + long + b"\n" + first, "rows.jsonl.gz")


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
        ("a.csv", " text ,label\na,x\n", "did you mean '\" text \"'\\? .*invisible"),
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
        return load_own_rows(path, no_eval=True, **COLUMNS).rows


class ColumnsTest(parameterized.TestCase):
    def test_a_name_with_a_comma_is_quoted_and_the_message_says_so(self):
        path = folder() / "train.csv"
        path.write_bytes(csv_bytes([["id", "Text, long", "label"], ["1", "x", "a"]]))
        task, _ = load_own_rows(path, text_column='id,"Text, long"', target_column="label", no_eval=True)
        self.assertEqual(list(task.text_columns), ["id", "Text, long"])
        with exits_with(65, """did you mean '"Text, long"'.*a name with a comma is quoted"""):
            load_own_rows(path, text_column="Text,long", target_column="label", no_eval=True)

    def test_spaces_at_the_ends_of_a_name_are_given_in_quotes_as_the_message_shows_them(self):
        path = folder() / "train.csv"
        path.write_bytes(b"id, text, label\n1,x,a\n")
        for columns in ('id , " text"', ["id", " text"]):
            task, rows = load_own_rows(path, text_column=columns, target_column=" label", no_eval=True)
            self.assertEqual(list(task.text_columns), ["id", " text"])
            self.assertEqual(rows, [{"id": "1", " text": "x", " label": "a"}])
        with exits_with(65, """did you mean '" text"'"""):
            load_own_rows(path, text_column="text", target_column=" label", no_eval=True)
        with exits_with(65, "did you mean ' label'"):
            load_own_rows(path, text_column='" text"', target_column="label", no_eval=True)

    @pytest.mark.slow
    def test_columns_that_are_not_read_are_logged_once_for_both_parts(self):
        path = folder() / "train.csv"
        path.write_bytes(csv_bytes([["text", "label", "note"], *([f"x{i}", "a", "n"] for i in range(20))]))
        with self.assertLogs("t5suite", "INFO") as logs:
            tiny_run(data=path, max_eval_samples=1, quiet=False, **COLUMNS)
        self.assertLen([line for line in logs.output if "columns that no flag names are not read: note" in line], 1)

    def test_equal_inputs_are_the_cause_that_is_named(self):
        path = folder() / "train.csv"
        path.write_bytes(csv_bytes([["text", "label"], *(["same", "a"] for _ in range(1000))]))
        with exits_with(65, "all 1000 rows have the same input .'same'.*; check --text_column .text., or"):
            load_own_rows(path, **COLUMNS)
