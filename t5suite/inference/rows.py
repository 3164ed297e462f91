"""Rows of a file or of standard input, one at a time; the text that the model reads of each; the file of answers.

    >>> row = next(RowSource("rows.jsonl").rows())
    >>> row
    Row(index=0, place='rows.jsonl:1', value={'sentence1': 'It rains.', 'sentence2': 'It is wet.'})
    >>> input_text(row, load_task("glue", "rte"))
    'rte sentence1: It rains. sentence2: It is wet.'
    >>> output = ResumableOutput("answers.jsonl", settings)
    >>> output.open(window=512)        # so many rows are done already
    1024
    >>> output.append(lines, rows=1536, digest=digest_of_input)

Rows are JSON lines, lines of text, CSV, TSV or Parquet, read as in fine-tuning (`t5suite.data.rows`). Only the current
row is in memory, so a file may be larger than memory. In text files an empty line is a row, too: line i of the input is
line i of the output. In JSON lines, CSV and TSV, empty lines are skipped.

Next to `answers.jsonl` is `answers.jsonl.progress.json`: the settings that the answers depend on, how many rows were
done at the last window's end, and a digest of the input up to there. A window's lines are appended and synced, then the
progress file is replaced. A resumed run counts whole lines, truncates the file after the last whole window (a partial
line, half a window) and answers those rows again: its batches, and so its bytes, equal those of an uninterrupted run.
"""

import hashlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.files import named_errors
from t5suite.base.lookup import listed, suggestion
from t5suite.base.redaction import printable
from t5suite.base.text_encodings import utf8_problem
from t5suite.data.corpora.readers import byte_lines, filled_lines, without_compression
from t5suite.data.rows.files import (
    FORMATS_BY_SUFFIX,
    TYPELESS,
    files_of_splits,
    is_json_array,
    json_rows,
    parquet_rows,
    with_suffix,
)
from t5suite.data.rows.jsonl import parse_line
from t5suite.data.rows.separated import separated_rows
from t5suite.runs.directory import read_json, write_json
from t5suite.tasks.cells import as_list, value_at
from t5suite.tasks.registry import Task

logger = logging.getLogger(__name__)

STANDARD_INPUT = "-"
# Columns with finished texts, in rows without a task's columns: as `t5suite preview` and other tools write them.
TEXT_KEYS = ("inputs", "input")
PROGRESS_SUFFIX = ".progress.json"
PROGRESS_KINDS = {"format": int, "settings": dict, "rows": int, "digest": str | None, "finished": bool}
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
ROW_SUFFIXES = (*JSON_SUFFIXES, ".txt", ".csv", ".tsv", ".tab", ".parquet")
FORMAT = 1
CHUNK_BYTES = 1 << 20
_MISSING = object()


class Row(NamedTuple):
    """One row: its number from 0, its file and line (for messages), its columns or its text; in a folder, its file."""

    index: int
    place: str
    value: dict | str
    file: str | None = None


class RowSource:
    """The rows of a file (`.gz` and `.zst` are unpacked), of a folder's files sorted by name, or of
    standard input.

    Args:
      path: a file, a folder (of whose splits the test split is read, if it has any), or `-`.
      input_type: jsonl, text, csv, tsv, parquet, or auto: by the file's name, for standard input by its first line.
      delimiter: of CSV and TSV, if it is not the file's own.
      columns: `{the task's column: the rows' column}` where they differ.
      answer_column: the task's; not read from CSV and TSV, where a class is text and an unknown answer an empty cell.

    Attributes:
      digest: the SHA-256 over the lines (of tables: the columns) of all rows yielded so far.
    """

    def __init__(
        self,
        path: str,
        input_type: str = "auto",
        delimiter: str | None = None,
        columns: Mapping[str, str] | None = None,
        answer_column: str | None = None,
    ):
        self.path, self.input_type, self.delimiter = path, input_type, delimiter
        self.answer_column = answer_column
        self.columns = dict(columns or {})
        self.name = "standard input" if path == STANDARD_INPUT else path
        self.digest = hashlib.sha256()
        self.is_folder = path != STANDARD_INPUT and Path(path).is_dir()
        self.files = row_files(path) if self.is_folder else [path]

    def rows(self) -> Iterator[Row]:
        """Every row, in order.

        Raises:
          DataError: a line that is not UTF-8, not JSON, or neither an object nor a text; a table that cannot be read;
            no such column; named by file and line.
        """
        index = 0
        for path in self.files:
            for place, value in self._file_rows(path):
                yield Row(index, place, self._renamed(place, value), Path(path).name if self.is_folder else None)
                index += 1

    def _file_rows(self, path: str) -> Iterator[tuple[str, dict | str]]:
        """A file's rows, each with its place."""
        kind, lines = self.input_type, None
        if path == STANDARD_INPUT:
            lines = sys.stdin.buffer
        if kind == "auto" and path != STANDARD_INPUT:
            kind = kind_of_file(path)
        if kind == "parquet" and path == STANDARD_INPUT:
            raise ConfigError("--input_type parquet: standard input is read line by line; give --input FILE")
        if self.delimiter is not None and kind not in TYPELESS:
            raise ConfigError(f"--delimiter {self.delimiter!r} has no effect: {path} is not read as CSV or TSV")
        if kind == "parquet":
            yield from self._table_rows(parquet_rows(Path(path)))
        elif kind in TYPELESS:
            lines = byte_lines(Path(path)) if lines is None else lines
            name = self.name if path == STANDARD_INPUT else path
            for place, row in self._table_rows(separated_rows(lines, name, kind, self.delimiter)):
                yield place, row | ({self.answer_column: None} if self.answer_column in row else {})
        else:
            yield from self._line_rows(path, kind, lines)

    def _table_rows(self, rows: Iterator[tuple[str, dict]]) -> Iterator[tuple[str, dict]]:
        """A table's rows."""
        for place, row in rows:
            content = json.dumps(row, ensure_ascii=False, default=str)
            self.digest.update(content.encode("utf-8", "backslashreplace") + b"\n")
            yield place, row

    def _line_rows(self, path: str, kind: str, lines) -> Iterator[tuple[str, dict | str]]:
        """Rows of one line each: JSON or text."""
        name = self.name if path == STANDARD_INPUT else path
        if lines is not None:
            numbered = enumerate(lines, start=1)
        elif kind == "jsonl" and is_json_array(Path(path)):
            yield from self._table_rows(json_rows(Path(path)))
            return
        elif kind == "jsonl":
            numbered = filled_lines(Path(path))
        else:
            numbered = enumerate(byte_lines(Path(path)), start=1)
        for number, line in numbered:
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if kind == "auto":
                kind = "jsonl" if line.lstrip()[:1] in (b"{", b'"') else "text"
            if kind == "jsonl" and not line.strip():
                continue
            place = f"{name}:{number}"
            if kind == "text":
                value = text_of_line(line, place)
            else:
                value = _json_value(line, place)
            self.digest.update(line.rstrip(b"\r\n") + b"\n")
            yield place, value

    def _renamed(self, place: str, value: dict | str) -> dict | str:
        """The row with the task's columns, from those that `--text_column` names."""
        if not self.columns:
            return value
        if isinstance(value, str):
            raise DataError(f"{place}: a line of text has no columns, so --text_column has no effect")
        for column in self.columns.values():
            if value_at(value, column, _MISSING) is _MISSING:
                raise DataError(f"{place}: no column {column!r} (--text_column); {suggestion(column, value)}")
        rest = {name: content for name, content in value.items() if name not in TEXT_KEYS}
        return rest | {column: value_at(value, name) for column, name in self.columns.items()}


def kind_of_file(path: str) -> str:
    """What a file's name says that it holds: jsonl, csv, tsv, parquet; else text.

    >>> kind_of_file("rows.csv.gz"), kind_of_file("notes.md")
    ('csv', 'text')
    """
    name = without_compression(path)
    return "jsonl" if name.endswith(JSON_SUFFIXES) else FORMATS_BY_SUFFIX.get(Path(name).suffix, "text")


def text_of_line(line: bytes, place: str) -> str:
    """A line as text, without its end.

    Raises:
      DataError: it is not UTF-8.
    """
    problem = None if line.isascii() and b"\0" not in line else utf8_problem(line)
    if problem is not None:
        raise DataError(f"{place}: {problem}")
    return line.decode("utf-8").rstrip("\r\n")


def _json_value(line: bytes, place: str) -> dict | str:
    """A line of JSON that holds an object or a text."""
    try:
        value = parse_line(line, whole_characters=True)
    except ValueError as error:
        raise DataError(f"{place}: {error}") from None
    if not isinstance(value, dict | str):
        raise DataError(f"{place}: expected an object or a text a line, found {value!r:.60}")
    return value


def row_files(folder) -> list[str]:
    """A folder's files of rows, by name; of a folder of splits (`train/`, `test.csv`), those of the test split.

    Raises:
      ConfigError: there is none, or other files are among them; a folder of splits without a test split.
    """
    splits = splits_of_folder(folder)
    if "test" in splits:
        logger.info("--input %s: its test split is answered (%s)", folder, listed(splits["test"], 3))
        return list(map(str, splits["test"]))
    files = sorted(path for path in Path(folder).iterdir() if path.is_file() and not path.name.startswith("."))
    if not files and splits:
        there = ", ".join(str(paths[0].parent) for paths in splits.values())
        raise ConfigError(
            f"--input {folder}: a folder of splits without a test split; name one of its folders: {there}"
        )
    odd = [path.name for path in files if not without_compression(path.name).endswith(ROW_SUFFIXES)]
    if not files or odd:
        problem = f"{odd[0]} is not one" if odd else "there is none"
        raise ConfigError(f"--input {folder}: a folder of {', '.join(ROW_SUFFIXES)} files; {problem}")
    return list(map(str, files))


def splits_of_folder(folder) -> dict[str, tuple[Path, ...]]:
    """`{role: files}` of a folder whose rows are all in splits: in their folders, or in files named after them.

    >>> splits_of_folder("reviews")             # reviews/train.csv, reviews/test.csv
    {'train': (PosixPath('reviews/train.csv'),), 'test': (PosixPath('reviews/test.csv'),)}
    >>> splits_of_folder("months")              # months/may.csv, months/june.csv
    {}
    """
    splits = files_of_splits(Path(folder), ROW_SUFFIXES)
    inside = {path for files in splits.values() for path in files}
    beside = set(with_suffix(Path(folder), ROW_SUFFIXES)) - inside
    return {} if beside else splits


def input_text(row: Row, task: Task | None, raw: bool = False, fits=None) -> str:
    """What the model reads: a task's columns with their prefixes, or the finished text that the row holds.

    Args:
      task: what the model was trained on; None if unknown.
      raw: the row holds a finished text, whatever the task.
      fits: whether a text is short enough, for tasks that show as many examples as fit.

    Raises:
      DataError: the row has neither the task's columns nor a text; the message has its file and line.
    """
    value, task = row.value, None if raw else task
    try:
        if isinstance(value, str) and task is not None:
            columns = task.text_columns
            if len(columns) > 1:
                raise DataError(
                    f"a line of text, but {task.benchmark}/{task.name} reads {len(columns)} columns; give JSON lines "
                    f"with {', '.join(columns)}, or finished texts with --raw"
                )
            value = {columns[0]: value}
        elif isinstance(value, str):
            return value
        if task is not None and has_columns(value, task):
            return task.examples(value, "validation", fits)[0].inputs
    except DataError as error:
        raise DataError(f"{row.place}: {error}") from None
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        if isinstance(error, ConfigError):
            raise
        what = f"{type(error).__name__}: {error}"
        raise DataError(f"{row.place}: not a row of {task.benchmark}/{task.name} ({what:.200})") from None
    found = [key for key in TEXT_KEYS if key in value]
    if len(found) != 1:
        wanted = f"neither {' and '.join(as_list(task.text_columns))} nor " if task else "no "
        has = ", ".join(map(str, value)) or "nothing"
        cure = "--text_column names the text's column in your rows; the first line of CSV and TSV names the columns"
        raise DataError(f"{row.place}: the row has {wanted}one of {', '.join(TEXT_KEYS)}; it has {has:.200}; {cure}")
    if not isinstance(value[found[0]], str):
        raise DataError(f"{row.place}: column {found[0]!r} holds {value[found[0]]!r:.60}, not a text")
    return value[found[0]]


def has_columns(value: dict, task: Task) -> bool:
    """Whether a row has all columns that the task's text is made of; a dotted name reaches into a nested dict.

    >>> has_columns({"translation": {"en": "Hi."}}, load_task("translation", "wmt14_en_de"))
    True
    """
    return all(value_at(value, column, _MISSING) is not _MISSING for column in task.text_columns)


class ResumableOutput:
    """One file of answers, written by one process.

    Args:
      settings: plain data; a file is not continued with other settings.
      overwrite: start over and discard existing answers.

    Attributes:
      known_rows, known_digest: what the progress file says about the input's first rows; 0 and None without one.
    """

    def __init__(self, path, settings: dict, overwrite: bool = False):
        self.path = Path(path)
        self.progress_path = self.path.with_name(self.path.name + PROGRESS_SUFFIX)
        self.settings, self.overwrite = json.loads(json.dumps(settings)), overwrite
        self.known_rows, self.known_digest = 0, None
        self._complete_rows, self._kept, self._file = None, 0, None

    def open(self, window: int) -> int:
        """How many answered rows are kept: a multiple of `window`. No file is changed yet.

        Raises:
          ConfigError: there is a file that is not an output of this command, or that has other settings.
        """
        if self.overwrite or not (self.path.exists() or self.progress_path.exists()):
            return 0
        progress = self.read_progress()
        there, here = progress["settings"], self.settings
        if differing := [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]:
            shown = "; ".join(f"{name} {there.get(name)!r} there, {here.get(name)!r} here" for name in differing)
            raise ConfigError(
                f"--output {self.path} has answers from other settings ({shown:.600}); give those, another --output, "
                "or start over with --overwrite"
            )
        rows = 0
        if self.path.exists():
            with self.path.open("rb") as file:  # a partial last line does not count
                rows = sum(block.count(b"\n") for block in iter(lambda: file.read(CHUNK_BYTES), b""))
        self.known_rows, self.known_digest = progress["rows"], progress["digest"]
        if progress["finished"] and rows == progress["rows"]:
            self._complete_rows = rows
        self._kept = rows - rows % window
        return self._kept

    def read_progress(self) -> dict:
        """What the progress file says about the existing answers.

        Raises:
          ConfigError: there is none, or one that cannot be read.
        """
        try:
            progress = read_json(self.progress_path)
            wrong = [key for key, kind in PROGRESS_KINDS.items() if not isinstance(progress[key], kind)]
            if wrong or progress["format"] != FORMAT:
                raise ValueError(f"{', '.join(wrong) or 'another format'}")
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(
                f"--output {self.path} cannot be continued: {self.progress_path.name} cannot be read "
                f"({type(error).__name__}: {error!s:.200}); give another --output, or start over with --overwrite"
            ) from None
        return progress

    def is_complete(self, rows: int) -> bool:
        """Whether an input with this many rows has all its answers."""
        return rows == self._complete_rows

    def check_input(self, rows: int, digest: str) -> None:
        """Compares the first rows of the input with those that the answers belong to, once they have been read.

        Raises:
          DataError: they differ.
        """
        if rows == self.known_rows and digest != self.known_digest:
            raise DataError(
                f"the first {rows} rows of --input are not those that {self.path} answers; restore them, "
                "give another --output, or start over with --overwrite"
            )

    def append(self, lines: list[dict], rows: int, digest: str) -> None:
        """Appends the answers of a window, `rows` in all; they are synced to disk when this returns."""
        self._begin()
        with named_errors(self.path):
            self._file.write(b"".join(map(as_line, lines)))
            self._file.flush()
            os.fsync(self._file.fileno())
        self._write_progress(rows, digest, finished=False)

    def finish(self, rows: int, digest: str) -> None:
        """Notes that the answers are complete."""
        self._begin()
        self._write_progress(rows, digest, finished=True)

    def close(self) -> None:
        """Closes the file, complete or not."""
        if self._file is not None:
            self._file.close()

    def _begin(self) -> None:
        """Opens the file and truncates what is not kept; the progress file is written before any line."""
        if self._file is not None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._kept:
            self._write_progress(0, None, finished=False)
        self._file = self.path.open("r+b" if self.path.exists() else "wb+")
        self._file.truncate(sum(len(self._file.readline()) for _ in range(self._kept)))
        self._file.seek(0, os.SEEK_END)

    def _write_progress(self, rows: int, digest: str | None, finished: bool) -> None:
        content = {"format": FORMAT, "settings": self.settings, "rows": rows, "digest": digest, "finished": finished}
        write_json(self.progress_path, content)


class StreamOutput(ResumableOutput):
    """A text stream instead of a file: every window is written at once, and the output cannot be resumed."""

    def __init__(self, stream):
        super().__init__(os.devnull, {}, overwrite=True)
        self.stream = stream

    def append(self, lines: list[dict], rows: int, digest: str) -> None:
        """Writes the answers of a window."""
        self.stream.write(printable(b"".join(map(as_line, lines)).decode("utf-8")))
        self.stream.flush()

    def finish(self, rows: int, digest: str) -> None:
        """All is written."""


def as_line(answer: dict) -> bytes:
    """One line of JSON."""
    # A Parquet file's `idx` may be a date.
    text = json.dumps(answer, ensure_ascii=False, allow_nan=False, default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"
