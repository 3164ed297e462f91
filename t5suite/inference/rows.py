"""The rows of a file, of a folder or of standard input, one at a time.

    >>> next(InputRows("rows.jsonl").rows())
    Row(index=0, place='rows.jsonl:1', value={'sentence1': 'It rains.', 'sentence2': 'It is wet.'})

Rows are JSON lines, lines of text, CSV, TSV or Parquet, read as in fine-tuning (`t5suite.data.rows`). Only the current
row is in memory, so a file may be larger than memory. In text files an empty line is a row, too: line i of the input is
line i of the output. In JSON lines, CSV and TSV, empty lines are skipped.
"""

import hashlib
import itertools
import json
import logging
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.file_names import FORMATS_BY_SUFFIX, unpacked_suffix
from t5suite.base.files import STANDARD_INPUT
from t5suite.base.lookup import listed, suggestion
from t5suite.base.text_encodings import utf8_problem
from t5suite.data.corpora.byte_files import BYTE_ORDER_MARK, byte_lines, filled_lines
from t5suite.data.rows.file_rows import TYPELESS, is_json_array, json_rows, parquet_rows
from t5suite.data.rows.files import files_of_splits, with_suffix
from t5suite.data.rows.jsonl import parse_line
from t5suite.data.rows.separated import separated_rows
from t5suite.tasks.cells import value_at

logger = logging.getLogger(__name__)

# Columns with finished texts, in rows without a task's columns: as `t5suite preview` and other tools write them.
TEXT_KEYS = ("inputs", "input")
# The first line of an array of objects or texts, and no other text in brackets: [1], [[Film]].
START_OF_ARRAY = re.compile(rb'\s*\[\s*(["{]|$)')
_MISSING = object()


class Row(NamedTuple):
    """One row: its number from 0, its file and line (for messages), its columns or its text; in a folder, its file."""

    index: int
    place: str
    value: dict | str
    file: str | None = None


class InputRows:
    """The rows of a file (`.gz` and `.zst` are unpacked), of a folder's files sorted by name, or of
    standard input.

    Args:
      path: a file, a folder (of whose splits the test split is read, if it has any), or `-`.
      input_type: jsonl, text, csv, tsv, parquet, or auto: by the file's name; for standard input and other names, JSON
        lines or text, by the first line that is not blank.
      delimiter: of CSV and TSV, if it is not the file's own.
      columns: `{the task's column: the rows' column}` where they differ.
      task_columns: the task's columns, by which the first line of a table is recognized where no name tells it.

    Attributes:
      digest: the SHA-256 over the lines (of tables: the columns) of all rows that `rows` has yielded so far.
    """

    def __init__(
        self,
        path: str,
        input_type: str = "auto",
        delimiter: str | None = None,
        columns: Mapping[str, str] | None = None,
        task_columns: Collection[str] = (),
    ):
        self.input_type = input_type
        self.delimiter = delimiter
        self.columns = dict(columns or {})
        self.header_columns = {*task_columns, *TEXT_KEYS}
        self.name = _name_of_path(path)
        self.digest = hashlib.sha256()
        self.is_stream = path == STANDARD_INPUT
        self.is_folder = not self.is_stream and Path(path).is_dir()
        self.files = row_files(path) if self.is_folder else [path]

    def rows(self) -> Iterator[Row]:
        """Every row, in order.

        Raises:
          ConfigError: the lines seem to be a table, and neither a name nor --input_type says what they are.
          DataError: a line that is not UTF-8, not JSON, or neither an object nor a text; a table that cannot be read;
            no such column; a JSON array in standard input; named by file and line.
        """
        self.digest = hashlib.sha256()
        index = 0
        for path in self.files:
            file_name = Path(path).name if self.is_folder else None
            for place, row in self._file_rows(path):
                yield Row(index, place, self._with_task_columns(place, row), file_name)
                index += 1

    def begins_with(self, count: int, digest: str) -> bool:
        """Whether the first `count` rows have this digest; standard input, which is read once, cannot be asked."""
        if self.is_stream:
            return True
        for row in self.rows():
            if row.index + 1 == count:
                return self.digest.hexdigest() == digest
        return False

    def _file_rows(self, path: str) -> Iterator[tuple[str, dict | str]]:
        """A file's rows, each with its place."""
        kind = self._kind_of_input(path)
        if kind == "parquet":
            yield from self._table_rows(parquet_rows(Path(path)))
        elif kind in TYPELESS:
            yield from self._separated_rows(path, kind)
        elif kind == "jsonl" and path != STANDARD_INPUT and is_json_array(Path(path)):
            yield from self._table_rows(json_rows(Path(path)))
        else:
            yield from self._line_rows(path, kind)

    def _kind_of_input(self, path: str) -> str:
        """How a file is read; `auto` only for standard input, which is read once.

        Raises:
          ConfigError: --input_type or --delimiter does not fit it.
        """
        kind = self.input_type
        if kind == "auto" and path != STANDARD_INPUT:
            kind = kind_of_file(path)
        if kind is None:
            kind = self._kind_of_lines(_lines_to_first_filled(_numbered_byte_lines(path)), path)
        if kind == "parquet" and path == STANDARD_INPUT:
            raise ConfigError("--input_type parquet: standard input is read line by line; give --input FILE")
        if self.delimiter is not None and kind not in TYPELESS:
            raise ConfigError(f"--delimiter {self.delimiter!r} has no effect: {path} is not read as CSV or TSV")
        return kind

    def _table_rows(self, rows: Iterator[tuple[str, dict]]) -> Iterator[tuple[str, dict]]:
        """A table's rows; the digest is that of their columns."""
        for place, row in rows:
            content = json.dumps(row, ensure_ascii=False, default=str)
            self.digest.update(content.encode("utf-8", "backslashreplace") + b"\n")
            yield place, row

    def _separated_rows(self, path: str, kind: str) -> Iterator[tuple[str, dict]]:
        """Rows of CSV or TSV."""
        lines = sys.stdin.buffer if path == STANDARD_INPUT else byte_lines(Path(path))
        rows = separated_rows(lines, _name_of_path(path), kind, self.delimiter)
        yield from self._table_rows(rows)

    def _line_rows(self, path: str, kind: str) -> Iterator[tuple[str, dict | str]]:
        """Rows of one line each: JSON or text."""
        lines = _numbered_byte_lines(path, kind)
        if kind == "auto":
            first_lines = _lines_to_first_filled(lines)
            kind = self._kind_of_lines(first_lines, path)
            lines = itertools.chain(first_lines, lines)
        for number, line in lines:
            place = f"{_name_of_path(path)}:{number}"
            if kind == "jsonl" and not line.strip():
                continue
            row = text_of_line(line, place) if kind == "text" else _json_row(line, place)
            self.digest.update(line.rstrip(b"\r\n") + b"\n")
            yield place, row

    def _kind_of_lines(self, first_lines: list[tuple[int, bytes]], path: str) -> str:
        """How lines are read whose name does not tell it: jsonl or text, by the first that is not blank.

        Raises:
          DataError: it begins a JSON array in standard input, or seems to be an object and is not JSON.
          ConfigError: it seems to be a table's, whose columns would be answered as a row: it holds a tab, or one of its
            cells is a column's name.
        """
        if not first_lines:
            return "text"
        number, line = first_lines[-1]
        place = f"{_name_of_path(path)}:{number}"
        if START_OF_ARRAY.match(line):
            if path != STANDARD_INPUT:
                return "jsonl"
            raise DataError(
                f"{place}: the start of a JSON array, but standard input is read line by line: give --input FILE.json, "
                "or one row a line (jq -c '.[]'); --input_type text reads such lines as texts"
            )
        first_character = line.lstrip()[:1]
        if first_character == b"{":
            _check_is_json(line, place)
            return "jsonl"
        if first_character == b'"' and path == STANDARD_INPUT:  # in a file, a quoted sentence
            return "jsonl"
        text = text_of_line(line, place)
        if "\t" in text or not self.header_columns.isdisjoint(text.split(",")):
            raise ConfigError(
                f"{place}: {text[:60]!r} may be the first line of a table; --input_type tsv or csv reads it as a "
                "table, --input_type text as lines of text"
            )
        return "text"

    def _with_task_columns(self, place: str, row: dict | str) -> dict | str:
        """The row with the task's columns, moved from those that `--text_column` names; the others stay.

        A text that takes the place of a finished one is the row's only finished text.
        """
        if not self.columns:
            return row
        if isinstance(row, str):
            raise DataError(f"{place}: a line of text has no columns, so --text_column has no effect")
        for column in self.columns.values():
            if value_at(row, column, _MISSING) is _MISSING:
                raise DataError(f"{place}: no column {column!r} (--text_column); {suggestion(column, row)}")
        is_finished_text = not self.columns.keys().isdisjoint(TEXT_KEYS)
        names_left_out = TEXT_KEYS if is_finished_text else tuple(self.columns.values())
        renamed = {name: cell for name, cell in row.items() if name not in names_left_out}
        for task_column, row_column in self.columns.items():
            renamed[task_column] = value_at(row, row_column)
        return renamed


def _name_of_path(path: str) -> str:
    return "standard input" if path == STANDARD_INPUT else path


def _numbered_byte_lines(path: str, kind: str = "text") -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers from 1, without a byte-order mark; of JSON lines in a file, those that are not empty."""
    if path == STANDARD_INPUT:
        lines = enumerate(sys.stdin.buffer, start=1)
    elif kind == "jsonl":
        lines = filled_lines(Path(path))
    else:
        lines = enumerate(byte_lines(Path(path)), start=1)
    for number, line in lines:
        yield number, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line


def _check_is_json(line: bytes, place: str) -> None:
    """Refuses a line that begins like a JSON object and is none, with the flag that reads it as text."""
    try:
        _json_row(line, place)
    except DataError as error:
        raise DataError(f"{error}; --input_type text reads such lines as texts") from None


def _lines_to_first_filled(lines: Iterator[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The lines up to the first that is not blank."""
    first_lines = []
    for number, line in lines:
        first_lines.append((number, line))
        if line.strip():
            break
    return first_lines


def kind_of_file(path: str) -> str | None:
    """What a file's name says that it holds: jsonl, csv, tsv, parquet or text; None where it says nothing.

    >>> kind_of_file("rows.csv.gz"), kind_of_file("part-aa")
    ('csv', None)
    """
    return FORMATS_BY_SUFFIX.get(unpacked_suffix(path))


def text_of_line(line: bytes, place: str) -> str:
    """A line as text, without its end.

    Raises:
      DataError: it is not UTF-8.
    """
    problem = None if line.isascii() and b"\0" not in line else utf8_problem(line)
    if problem is not None:
        raise DataError(f"{place}: {problem}")
    return line.decode("utf-8").rstrip("\r\n")


def _json_row(line: bytes, place: str) -> dict | str:
    """A line of JSON that holds an object or a text."""
    try:
        row = parse_line(line, whole_characters=True)
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None
    if not isinstance(row, dict | str):
        raise DataError(f"{place}: expected an object or a text a line, found {row!r:.60}")
    return row


def row_files(folder) -> list[str]:
    """A folder's files of rows, by name; of a folder of splits (`train/`, `test.csv`), those of the test split.

    Raises:
      ConfigError: there is none, or other files are among them; a folder of splits without a test split.
    """
    splits = splits_of_folder(folder)
    if "test" in splits:
        logger.info("--input %s: its test split is answered (%s)", folder, listed(splits["test"], 3))
        return [str(path) for path in splits["test"]]
    files = sorted(path for path in Path(folder).iterdir() if _is_visible_file(path))
    if not files and splits:
        split_folders = ", ".join(str(paths[0].parent) for paths in splits.values())
        raise ConfigError(
            f"--input {folder}: a folder of splits without a test split; name one of its folders: {split_folders}"
        )
    kinds = ", ".join(FORMATS_BY_SUFFIX)
    if not files:
        raise ConfigError(f"--input {folder}: a folder of {kinds} files; there is none")
    for path in files:
        if unpacked_suffix(path.name) not in FORMATS_BY_SUFFIX:
            raise ConfigError(f"--input {folder}: a folder of {kinds} files; {path.name} is not one")
    return [str(path) for path in files]


def _is_visible_file(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".")


def splits_of_folder(folder) -> dict[str, tuple[Path, ...]]:
    """`{role: files}` of a folder whose rows are all in splits: in their folders, or in files named after them.

    >>> splits_of_folder("reviews")             # reviews/train.csv, reviews/test.csv
    {'train': (PosixPath('reviews/train.csv'),), 'test': (PosixPath('reviews/test.csv'),)}
    >>> splits_of_folder("months")              # months/may.csv, months/june.csv
    {}
    """
    splits = files_of_splits(Path(folder), tuple(FORMATS_BY_SUFFIX))
    split_files = {path for files in splits.values() for path in files}
    has_more_files = any(path not in split_files for path in with_suffix(Path(folder), tuple(FORMATS_BY_SUFFIX)))
    return {} if has_more_files else splits
