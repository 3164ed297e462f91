"""Files of text -> documents, each with its line, and bad lines: the table READERS, by the ending of a file's name.

    >>> for record in file_records(Path("rows.jsonl"), TextOptions()):
    ...     print(record)
    Document(text='The centre of the city is old.', line=1, offset=0)
    BadLine(kind='not JSON', line=2, problem='not JSON (Expecting value at column 10)')

A document is a line of a `.txt` file (or, by `text_unit`, a paragraph or the file); the text column of a line of a
`.jsonl` or `.json` file, or of a row of a `.parquet` file. Records come in the order of the file, read as a stream.
Documents without text come too: the caller (`t5suite.data.corpora.documents`) counts and drops them.

A part of a file is read by `start` and `end`: bytes of a plain file, which must be the start of a document
(`document_start`), or row groups of a parquet file. Lines are then counted from the part's start, rows from the file's.
"""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

from t5suite.base.errors import DataError, first_line
from t5suite.base.file_names import COMPRESSIONS, is_compressed, unpacked_suffix
from t5suite.base.lookup import find, suggestion
from t5suite.base.text_encodings import other_kind
from t5suite.data.corpora.byte_files import BYTE_ORDER_MARK, actual_kind, all_bytes, check_is_file, numbered_byte_lines

ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class TextOptions:
    """How a file is split into documents; wrong choices raise ConfigError.

    Attributes:
      text_column_name: the column of .jsonl, .json and .parquet files.
      text_unit: what a document of a .txt file is, a name in TEXT_UNITS.
      bad_lines: 'error' stops at the first line that cannot be read, 'skip' counts it and continues.
      column_flag: the flag that names the column, for messages; no choice, and no part of a corpus's settings.
    """

    text_column_name: str = "text"
    text_unit: str = "line"
    bad_lines: str = "error"
    column_flag: ClassVar[str] = "--text_column_name"

    def __post_init__(self):
        find(self.text_unit, TEXT_UNITS, "unit", where="--text_unit")
        find(self.bad_lines, {"error": 0, "skip": 0}, "choice", where="--bad_lines")


class Document(NamedTuple):
    """A document, the line (or row, from 1) that it starts on, and the byte where it starts in the unpacked file."""

    text: str
    line: int
    offset: int | None = None


class BadLine(NamedTuple):
    """A line that is not a document; it is counted under `kind`, and `problem` describes it."""

    kind: str
    line: int
    problem: str


def file_records(path: Path, options: TextOptions, start: int = 0, end: int | None = None):
    """The documents and bad lines of a file or of a part of it.

    Raises:
      DataError: no such file, an unknown ending, a damaged compressed or parquet file, or no such parquet column.
    """
    return READERS[text_suffix(path)](path, options, start, end)


def text_suffix(path: Path) -> str:
    """The key of READERS that a file's name has.

    >>> text_suffix(Path("c4-train.00000.json.gz"))
    '.json'
    """
    suffix = unpacked_suffix(path.name)
    if suffix not in READERS:
        endings = f"{', '.join(READERS)}, each also with {' or '.join(COMPRESSIONS)}"
        raise DataError(f"{path}: a text file's name ends in one of {endings}")
    return suffix


def unit_of_file(path: Path, text_unit: str) -> str:
    """What a document of a file is: `--text_unit` for plain text; JSON has a document a line.

    >>> unit_of_file(Path("a.txt"), "paragraph"), unit_of_file(Path("a.jsonl"), "paragraph")
    ('paragraph', 'line')
    """
    return text_unit if text_suffix(path) == ".txt" else "line"


def _line_records(path, start, end):
    for number, offset, line in numbered_byte_lines(path, start, end):
        yield _decoded(line.rstrip(b"\r\n"), number, offset)


def _paragraph_records(path, start, end):
    """Runs of lines that are not blank; a paragraph with a bad line is bad as a whole, as text would be missing."""
    lines = []
    for number, offset, line in numbered_byte_lines(path, start, end):
        if line.strip():
            lines.append(_decoded(line.rstrip(b"\r\n"), number, offset))
        elif lines:
            yield _paragraph(lines)
            lines = []
    if lines:
        yield _paragraph(lines)


def _paragraph(lines: list[Document | BadLine]) -> Document | BadLine:
    """The lines as one document, or the first bad one."""
    for line in lines:
        if isinstance(line, BadLine):
            return line
    return lines[0]._replace(text="\n".join(line.text for line in lines))


def _whole_file_record(path, start, end):
    record = _decoded(all_bytes(path).removeprefix(BYTE_ORDER_MARK), 1, 0)
    if isinstance(record, BadLine):  # the first bad line, as a line-wise reader names it
        record = next((line for line in _line_records(path, 0, None) if isinstance(line, BadLine)), record)
    yield record


def _decoded(line: bytes, number: int, offset: int) -> Document | BadLine:
    description = other_kind(line.partition(b"\n")[0]) if offset == 0 else None  # a file may be one record
    if description is not None:
        return BadLine("not text", number, f"not text, but {description}")
    if b"\0" in line:
        return BadLine("NUL bytes", number, "NUL bytes in the text: a file with a hole in it, or one in UTF-16")
    try:
        return Document(line.decode("utf-8"), number, offset)
    except UnicodeDecodeError as error:
        return BadLine("not UTF-8", number, f"not UTF-8 (byte {error.start} is 0x{line[error.start]:02x})")


def _json_records(path, options, start, end):
    for number, offset, line in numbered_byte_lines(path, start, end):
        if not line.strip():
            yield Document("", number, offset)
            continue
        record = _decoded(line, number, offset)
        if isinstance(record, Document):
            record = _record_of_json(record, options)
        yield record


def _record_of_json(line: Document, options: TextOptions) -> Document | BadLine:
    """The record of a line's JSON object."""
    try:
        row = json.loads(line.text)
    except json.JSONDecodeError as error:
        return BadLine("not JSON", line.line, f"not JSON ({error.msg} at column {error.colno})")
    except (ValueError, RecursionError) as error:  # an integer of over 4300 digits; nested too deeply
        return BadLine("not JSON", line.line, f"not JSON ({error})")
    if not isinstance(row, dict):
        problem = f"expected one JSON object a line, found a {type(row).__name__}"
        return BadLine("not an object", line.line, problem)
    column = options.text_column_name
    if column not in row:
        return BadLine("no text column", line.line, no_column(options, row))
    return record_of_value(row[column], column, line.line, line.offset)


def record_of_value(value, column: str, number: int, offset: int | None = None) -> Document | BadLine:
    """The record of what a row's text column holds."""
    if not isinstance(value, str):
        return BadLine("not text", number, f"column {column!r} holds {value!r:.60} ({type(value).__name__}), not text")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            surrogate = value[error.start]
            return BadLine("not UTF-8", number, f"character {error.start} is half a surrogate pair ({surrogate!r})")
    return Document(value, number, offset)


def no_column(options: TextOptions, columns) -> str:
    """The message for rows that lack the text column."""
    column = options.text_column_name
    return f"no column {column!r} ({options.column_flag}); {suggestion(column, columns)}"


def _parquet_records(path, options, start, end):
    import pyarrow

    column = options.text_column_name
    try:
        file = parquet_file(path)
        if column not in file.schema_arrow.names:
            raise DataError(f"{path}: {no_column(options, file.schema_arrow.names)}")
        groups = range(file.num_row_groups)[start:end]
        number = sum(file.metadata.row_group(group).num_rows for group in range(start))
        for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=list(groups), columns=[column]):
            for value in batch.column(0).to_pylist():
                number += 1
                yield record_of_value(value, column, number)
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        raise parquet_error(path, error) from None


def parquet_file(path: Path):
    """The opened `pyarrow.parquet.ParquetFile`; one inside .gz or .zst is unpacked into memory."""
    import pyarrow.parquet

    check_is_file(path)
    try:
        content = io.BytesIO(all_bytes(path)) if is_compressed(path) else path
        return pyarrow.parquet.ParquetFile(content)
    except (pyarrow.ArrowException, OSError) as error:
        raise parquet_error(path, error) from None


def parquet_error(path: Path, error: Exception, place: str = "") -> Exception:
    """What to raise for an error of pyarrow: that of the disk itself, with the file, or that the file is not sound."""
    if isinstance(error, OSError) and error.errno is not None:  # of the disk
        error.filename = str(path)
        return error
    reason = actual_kind(path) or first_line(error)
    return DataError(f"{path}: not a sound parquet file{place} ({reason})")


TEXT_UNITS: dict[str, Callable] = {"line": _line_records, "paragraph": _paragraph_records, "file": _whole_file_record}
READERS: dict[str, Callable] = {
    ".txt": lambda path, options, start, end: TEXT_UNITS[options.text_unit](path, start, end),
    ".jsonl": _json_records,
    ".json": _json_records,
    ".parquet": _parquet_records,
}
