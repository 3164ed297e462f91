"""Rows of a file or of standard input, one at a time, and the text that the model reads of each.

    >>> source = RowSource("rows.jsonl")
    >>> row = next(source.rows())
    >>> row
    Row(index=0, place='rows.jsonl:1', value={'sentence1': 'It rains.', 'sentence2': 'It is wet.'})
    >>> input_text(row, load_task("glue", "rte"))
    'rte sentence1: It rains. sentence2: It is wet.'

Nothing is held but the row at hand, so that a file may be larger than memory. In files of lines an empty line is a row,
too: line i of the input is line i of the output. In JSON lines empty lines are passed over, as everywhere.
"""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.corpora.readers import byte_lines, without_compression
from t5suite.data.rows.jsonl import parse_line
from t5suite.tasks.formatters import as_list
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import value_at

STANDARD_INPUT = "-"
INPUT_TYPES = ("auto", "jsonl", "text")
# What finished texts are called in rows that are no task's own: as `t5suite preview` writes them, and in other tools.
TEXT_KEYS = ("inputs", "input")
_MISSING = object()


class Row(NamedTuple):
    """One row: its number from 0, where it stands (for messages), and its columns or its text."""

    index: int
    place: str
    value: dict | str


class RowSource:
    """The rows of a file (`.gz` and `.zst` are unpacked) or of standard input.

    Args:
      path: a file, or `-`.
      input_type: jsonl, text, or auto: by the file's name, for standard input by its first line.

    Attributes:
      digest: the SHA-256 over the lines of all rows handed out so far.
    """

    def __init__(self, path: str, input_type: str = "auto"):
        self.path = path
        self.name = "standard input" if path == STANDARD_INPUT else path
        self.input_type = input_type
        self.digest = hashlib.sha256()

    def rows(self) -> Iterator[Row]:
        """Every row, in order.

        Raises:
          DataError: a line that is not UTF-8, no JSON, or neither an object nor a text; named by file and line.
        """
        lines = sys.stdin.buffer if self.path == STANDARD_INPUT else byte_lines(Path(self.path))
        kind, index = self.input_type, 0
        for number, line in enumerate(lines, start=1):
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            kind = self._kind(line) if kind == "auto" else kind
            if kind == "jsonl" and not line.strip():
                continue
            value = self._value(line, kind, f"{self.name}:{number}")
            self.digest.update(line.rstrip(b"\r\n") + b"\n")
            yield Row(index, f"{self.name}:{number}", value)
            index += 1

    def _kind(self, first_line: bytes) -> str:
        if self.path == STANDARD_INPUT:
            return "jsonl" if first_line.lstrip()[:1] in (b"{", b'"') else "text"
        return "jsonl" if without_compression(self.path).endswith((".jsonl", ".json", ".ndjson")) else "text"

    @staticmethod
    def _value(line: bytes, kind: str, place: str):
        try:
            if kind == "text":
                return line.decode("utf-8").rstrip("\r\n")
            value = parse_line(line, whole_characters=True)
        except UnicodeDecodeError as error:
            raise DataError(f"{place}: not UTF-8 (byte {error.start} is 0x{line[error.start]:02x})") from None
        except ValueError as error:
            raise DataError(f"{place}: {error}") from None
        if not isinstance(value, dict | str):
            raise DataError(f"{place}: expected an object or a text a line, found {value!r:.60}")
        return value


def input_text(row: Row, task: Task | None, raw: bool = False, fits=None) -> str:
    """What the model reads: a task's columns with their prefixes, or the finished text that the row holds.

    Args:
      task: what the model was trained on; None where nobody says so.
      raw: the row holds a finished text, whatever the task.
      fits: whether a text is short enough, for tasks that show as many examples as fit.

    Raises:
      DataError: the row has neither the task's columns nor a text; named by its place.
    """
    value = {"inputs": row.value} if isinstance(row.value, str) and (raw or task is None) else row.value
    try:
        if isinstance(value, str):
            value = {_only_column(task): value}
        if not raw and task is not None and has_columns(value, task):
            return task.examples(value, "validation", fits)[0].inputs
        return _finished_text(value, None if raw else task)
    except DataError as error:
        raise DataError(f"{row.place}: {error}") from None
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        if isinstance(error, ConfigError):
            raise
        what = f"{type(error).__name__}: {error}"
        raise DataError(f"{row.place}: not a row of {task.benchmark}/{task.name} ({what:.200})") from None


def has_columns(value: dict, task: Task) -> bool:
    """Whether a row has all columns that the task's text is made of; a dotted name reaches into a table.

    >>> has_columns({"translation": {"en": "Hi."}}, load_task("translation", "wmt14_en_de"))
    True
    """
    return all(value_at(value, column, _MISSING) is not _MISSING for column in task.text_columns)


def _only_column(task: Task) -> str:
    columns = task.text_columns
    if len(columns) > 1:
        raise DataError(
            f"a line of text, but {task.benchmark}/{task.name} reads {len(columns)} columns; give JSON lines with "
            f"{', '.join(columns)}, or finished texts with --raw"
        )
    return columns[0]


def _finished_text(value: dict, task: Task | None) -> str:
    found = [key for key in TEXT_KEYS if key in value]
    if len(found) == 1 and isinstance(value[found[0]], str):
        return value[found[0]]
    if found and len(found) == 1:
        raise DataError(f"column {found[0]!r} holds {value[found[0]]!r:.60}, not a text")
    wanted = f"neither {' and '.join(as_list(task.text_columns))} nor " if task else "no "
    has = ", ".join(map(str, value)) or "nothing"
    raise DataError(f"the row has {wanted}one of {', '.join(TEXT_KEYS)}; it has {has:.200}")
