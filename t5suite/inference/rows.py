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

Only the current row is in memory, so a file may be larger than memory. In text files an empty line is a row, too: line
i of the input is line i of the output. In JSON lines, empty lines are skipped.

Next to `answers.jsonl` is `answers.jsonl.progress.json`: the settings that the answers depend on, how many rows were
done at the last window's end, and a digest of the input up to there. A window's lines are appended and synced, then the
progress file is replaced. A resumed run counts whole lines, truncates the file after the last whole window (a partial
line, half a window) and answers those rows again: its batches, and so its bytes, equal those of an uninterrupted run.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.files import named_errors
from t5suite.base.redaction import printable
from t5suite.data.corpora.readers import byte_lines, without_compression
from t5suite.data.rows.jsonl import parse_line
from t5suite.runs.directory import read_json, write_json
from t5suite.tasks.formatters import as_list
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import value_at

STANDARD_INPUT = "-"
# Columns with finished texts, in rows without a task's columns: as `t5suite preview` and other tools write them.
TEXT_KEYS = ("inputs", "input")
PROGRESS_SUFFIX = ".progress.json"
PROGRESS_KINDS = {"format": int, "settings": dict, "rows": int, "digest": str | None, "finished": bool}
JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
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
      path: a file, a folder, or `-`.
      input_type: jsonl, text, or auto: by the file's name, for standard input by its first line.

    Attributes:
      digest: the SHA-256 over the lines of all rows yielded so far.
    """

    def __init__(self, path: str, input_type: str = "auto"):
        self.path, self.input_type = path, input_type
        self.name = "standard input" if path == STANDARD_INPUT else path
        self.digest = hashlib.sha256()
        self.is_folder = path != STANDARD_INPUT and Path(path).is_dir()
        self.files = row_files(path) if self.is_folder else [path]

    def rows(self) -> Iterator[Row]:
        """Every row, in order.

        Raises:
          DataError: a line that is not UTF-8, not JSON, or neither an object nor a text; named by file and line.
        """
        index = 0
        for path in self.files:
            for place, value in self._lines(path):
                yield Row(index, place, value, Path(path).name if self.is_folder else None)
                index += 1

    def _lines(self, path: str) -> Iterator[tuple[str, dict | str]]:
        """A file's rows, each with its place."""
        lines = sys.stdin.buffer if path == STANDARD_INPUT else byte_lines(Path(path))
        kind, name = self.input_type, "standard input" if path == STANDARD_INPUT else path
        for number, line in enumerate(lines, start=1):
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if kind == "auto" and path == STANDARD_INPUT:
                kind = "jsonl" if line.lstrip()[:1] in (b"{", b'"') else "text"
            elif kind == "auto":
                kind = "jsonl" if without_compression(path).endswith(JSON_SUFFIXES) else "text"
            if kind == "jsonl" and not line.strip():
                continue
            place = f"{name}:{number}"
            try:
                if kind == "text":
                    value = line.decode("utf-8").rstrip("\r\n")
                else:
                    value = parse_line(line, whole_characters=True)
            except UnicodeDecodeError as error:
                raise DataError(f"{place}: not UTF-8 (byte {error.start} is 0x{line[error.start]:02x})") from None
            except ValueError as error:
                raise DataError(f"{place}: {error}") from None
            if not isinstance(value, dict | str):
                raise DataError(f"{place}: expected an object or a text a line, found {value!r:.60}")
            self.digest.update(line.rstrip(b"\r\n") + b"\n")
            yield place, value


def row_files(folder) -> list[str]:
    """A folder's files of rows, by name.

    Raises:
      ConfigError: there is none, or other files are among them.
    """
    files = sorted(path for path in Path(folder).iterdir() if path.is_file() and not path.name.startswith("."))
    others = [path.name for path in files if not without_compression(path.name).endswith((*JSON_SUFFIXES, ".txt"))]
    if not files or others:
        found = f"{others[0]} is not one" if others else "there is none"
        raise ConfigError(f"--input {folder}: a folder of {', '.join(JSON_SUFFIXES)} and .txt files; {found}")
    return list(map(str, files))


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
        raise DataError(f"{row.place}: the row has {wanted}one of {', '.join(TEXT_KEYS)}; it has {has:.200}")
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
    return json.dumps(answer, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n"
