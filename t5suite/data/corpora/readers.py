"""A text file -> its documents, one record each: a `Document`, or the `BadLine` that stands in its place.

    >>> for record in file_records(Path("rows.jsonl"), TextOptions()):
    ...     print(record)
    Document(text='The centre of the city is old.', line=1, offset=0)
    BadLine(kind='not JSON', line=2, problem='not JSON (Expecting value at column 10)')

What a document is: a line of a `.txt` file (or, by `text_unit`, a paragraph or the file); the text column of a line of
a `.jsonl` or `.json` file, or of a row of a `.parquet` file. Records come in the order of the file, and files are read
as a stream. Documents without text come too: the caller (`t5suite.data.corpora.documents`) counts and drops them.

A part of a file is read by `start` and `end`: bytes of a plain file, which must stand at the start of a document
(`document_start`), or row groups of a parquet file. Lines are then counted from the part's start, rows from the file's.
"""

import functools
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from t5suite.base.errors import DataError
from t5suite.base.lookup import find, suggestion

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class TextOptions:
    """How a file's documents are told apart; wrong choices raise ConfigError.

    Attributes:
      text_column_name: the column of .jsonl, .json and .parquet files.
      text_unit: what a document of a .txt file is, a name in TEXT_UNITS.
      bad_lines: 'error' stops at the first line that cannot be read, 'skip' counts it and goes on.
    """

    text_column_name: str = "text"
    text_unit: str = "line"
    bad_lines: str = "error"

    def __post_init__(self):
        find(self.text_unit, TEXT_UNITS, "unit", where="--text_unit")
        find(self.bad_lines, {"error": 0, "skip": 0}, "choice", where="--bad_lines")


class Document(NamedTuple):
    """A document, the line (or row, from 1) that it starts on, and the byte where it starts in the unpacked file."""

    text: str
    line: int
    offset: int | None = None


class BadLine(NamedTuple):
    """A line that is no document; `kind` is what it is counted under, `problem` says it in words."""

    kind: str
    line: int
    problem: str


def file_records(path: Path, options: TextOptions, start: int = 0, end: int | None = None):
    """The documents and bad lines of a file or of a part of it.

    Raises:
      DataError: no such file, an unknown ending, a torn compressed or parquet file, a parquet file without the column.
    """
    return READERS[text_suffix(path)](path, options, start, end)


def text_suffix(path: Path) -> str:
    """The key of READERS that a file's name has.

    >>> text_suffix(Path("c4-train.00000.json.gz"))
    '.json'
    """
    suffix = Path(without_compression(path.name)).suffix
    if suffix not in READERS:
        endings = f"{', '.join(READERS)}, each also with {' or '.join(COMPRESSIONS)}"
        raise DataError(f"{path}: a text file's name ends in one of {endings}")
    return suffix


# ---------------------------------------------------------------------------------------------------------------------
# .txt


def _text_records(path, options, start, end):
    return TEXT_UNITS[options.text_unit](path, start, end)


def _line_records(path, start, end):
    for number, offset, line in numbered_byte_lines(path, start, end):
        yield _decoded(line.rstrip(b"\r\n"), number, offset)


def _paragraph_records(path, start, end):
    """Runs of lines that are not blank; a paragraph with a bad line is bad as a whole, for text would be missing."""
    lines, bad = [], None
    for number, offset, line in numbered_byte_lines(path, start, end):
        if line.strip():
            record = _decoded(line.rstrip(b"\r\n"), number, offset)
            bad = bad or (record if isinstance(record, BadLine) else None)
            lines.append(record)
        elif lines:
            yield bad or _joined(lines)
            lines, bad = [], None
    if lines:
        yield bad or _joined(lines)


def _joined(lines: list[Document]) -> Document:
    return lines[0]._replace(text="\n".join(line.text for line in lines))


def _whole_file_record(path, start, end):
    content = all_bytes(path).removeprefix(BYTE_ORDER_MARK)
    record = _decoded(content, 1, 0)
    if isinstance(record, BadLine):
        # The first bad line, as a line-wise reader would name it.
        record = next(line for line in _line_records(path, 0, None) if isinstance(line, BadLine))
    yield record


def _decoded(line: bytes, number: int, offset: int) -> Document | BadLine:
    if b"\0" in line:
        return BadLine("NUL bytes", number, "NUL bytes in the text: a file with a hole in it, or one in UTF-16")
    try:
        return Document(line.decode("utf-8"), number, offset)
    except UnicodeDecodeError as error:
        return BadLine("not UTF-8", number, f"not UTF-8 (byte {error.start} is 0x{line[error.start]:02x})")


# ---------------------------------------------------------------------------------------------------------------------
# .jsonl, .json


def _json_records(path, options, start, end):
    for number, offset, line in numbered_byte_lines(path, start, end):
        if not line.strip():
            yield Document("", number, offset)
            continue
        try:
            row = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError:
            yield _decoded(line, number, offset)
        except json.JSONDecodeError as error:
            yield BadLine("not JSON", number, f"not JSON ({error.msg} at column {error.colno})")
        except (ValueError, RecursionError) as error:  # ValueError: a whole number of over 4300 digits
            what = error if isinstance(error, ValueError) else "nested too deeply"
            yield BadLine("not JSON", number, f"not JSON ({what})")
        else:
            yield _record_of_row(row, options.text_column_name, number, offset)


def _record_of_row(row, column: str, number: int, offset: int) -> Document | BadLine:
    if not isinstance(row, dict):
        return BadLine("not an object", number, f"expected one JSON object a line, found a {type(row).__name__}")
    if column not in row:
        return BadLine("no text column", number, _no_column(column, row))
    return record_of_value(row[column], column, number, offset)


def record_of_value(value, column: str, number: int, offset: int | None = None) -> Document | BadLine:
    """The record of what a row's text column holds."""
    if not isinstance(value, str):
        return BadLine("not text", number, f"column {column!r} holds {value!r:.60} ({type(value).__name__}), not text")
    if not value.isascii():
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            half = value[error.start]
            return BadLine("not UTF-8", number, f"character {error.start} is half a surrogate pair ({half!r})")
    return Document(value, number, offset)


def _no_column(column: str, columns) -> str:
    return f"no column {column!r} (--text_column_name); {suggestion(column, columns)}"


# ---------------------------------------------------------------------------------------------------------------------
# .parquet


def _parquet_records(path, options, start, end):
    import pyarrow

    column = options.text_column_name
    try:
        file = parquet_file(path)
        if column not in file.schema_arrow.names:
            raise DataError(f"{path}: {_no_column(column, file.schema_arrow.names)}")
        groups = range(file.num_row_groups)[start:end]
        number = sum(file.metadata.row_group(group).num_rows for group in range(start))
        for batch in file.iter_batches(ROWS_AT_ONCE, row_groups=list(groups), columns=[column]):
            for value in batch.column(0).to_pylist():
                number += 1
                yield record_of_value(value, column, number)
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        raise _unsound(path, error) from None


def parquet_file(path: Path):
    """The opened `pyarrow.parquet.ParquetFile`; one inside .gz or .zst is unpacked into memory.

    Raises:
      DataError: no such file, or no parquet file.
    """
    import pyarrow.parquet

    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        return pyarrow.parquet.ParquetFile(io.BytesIO(all_bytes(path)) if is_compressed(path) else path)
    except (pyarrow.ArrowException, OSError) as error:
        raise _unsound(path, error) from None


def _unsound(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: not a sound parquet file ({(str(error).splitlines() or [type(error).__name__])[0]})")


# ---------------------------------------------------------------------------------------------------------------------
# Lines


def numbered_byte_lines(path: Path, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int, bytes]]:
    """`(line number from 1, byte offset, line)` of a file, or of the bytes from `start` to `end` of a plain one."""
    offset = start
    for number, line in enumerate(_byte_lines_from(path, start), start=1):
        if end is not None and offset >= end:
            return
        bare = line.removeprefix(BYTE_ORDER_MARK) if offset == 0 else line
        yield number, offset, bare
        offset += len(line)


def _byte_lines_from(path: Path, start: int) -> Iterator[bytes]:
    if start == 0:
        yield from byte_lines(path)
        return
    with path.open("rb") as file:
        file.seek(start)
        yield from file


def document_start(path: Path, offset: int, text_unit: str = "line") -> int:
    """The first byte at or after `offset` of a plain file where a document may start; the file's size if there is none.

    For paragraphs that is a line after a blank one.
    """
    with path.open("rb") as file:
        file.seek(max(offset - 1, 0))
        if offset > 0:
            file.readline()  # the rest of the line that the byte before belongs to
        if text_unit == "paragraph" and offset > 0:
            for line in iter(file.readline, b""):
                if not line.strip():
                    break
        return file.tell()


@functools.lru_cache(maxsize=16)
def lines_before(path: Path, offset: int) -> int:
    """The number of lines that end before byte `offset` of a plain file."""
    count = 0
    with path.open("rb") as file:
        while offset > 0 and (block := file.read(min(offset, 1 << 20))):
            count += block.count(b"\n")
            offset -= len(block)
    return count


TEXT_UNITS: dict[str, Callable] = {
    "line": _line_records,
    "paragraph": _paragraph_records,
    "file": _whole_file_record,
}

READERS: dict[str, Callable] = {
    ".txt": _text_records,
    ".jsonl": _json_records,
    ".json": _json_records,
    ".parquet": _parquet_records,
}


# ---------------------------------------------------------------------------------------------------------------------
# Files, plain, gzipped (`.gz`) or Zstandard (`.zst`), as bytes and as lines; a file that ends too early is an error.


COMPRESSIONS = (".gz", ".zst")
CHUNK_BYTES = 1 << 20


def without_compression(name: str) -> str:
    """The name that a file has when it is unpacked.

    >>> without_compression("articles.jsonl.gz")
    'articles.jsonl'
    """
    for suffix in COMPRESSIONS:
        name = name.removesuffix(suffix)
    return name


def is_compressed(path) -> bool:
    """Whether the file's name says that it is compressed."""
    return Path(path).suffix in COMPRESSIONS


def byte_lines(path: Path) -> Iterator[bytes]:
    r"""The lines of a file as they are, with their line ends; only `\n` ends a line.

    Raises:
      DataError: no such file, or a compressed file that is broken or cut off.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    number = 0
    try:
        with open_bytes(path) as file:
            for line in file:
                number += 1
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile, _BrokenZstandard) as error:
        raise _torn(path, error, f"after line {number}") from None


def all_bytes(path: Path) -> bytes:
    """The whole of a file, unpacked; raises DataError as `byte_lines` does."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        with open_bytes(path) as file:
            return file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile, _BrokenZstandard) as error:
        raise _torn(path, error, "somewhere") from None


def open_bytes(path: Path) -> BinaryIO:
    """The file opened for reading, unpacked on the way; a cut-off one raises EOFError when its end is read."""
    if path.suffix == ".gz":
        return gzip.open(path)
    if path.suffix == ".zst":
        return io.BufferedReader(_ZstandardFile(path), CHUNK_BYTES)
    return path.open("rb")


def _torn(path: Path, error: Exception, where: str) -> DataError:
    kind = "gzip" if path.suffix == ".gz" else "Zstandard"
    if isinstance(error, EOFError):
        return DataError(f"{path}: the {kind} file is cut off {where}")
    return DataError(f"{path}: not a sound {kind} file ({error}; {where})")


class _BrokenZstandard(Exception):
    """The bytes are no Zstandard frame, or one whose checksum is wrong."""


class _ZstandardFile(io.RawIOBase):
    """All frames of a .zst file, one after the other.

    `zstandard`'s own stream reader takes the end of a cut-off file for the end of the text (0.25), hence this.
    """

    def __init__(self, path: Path):
        import zstandard

        self._error = zstandard.ZstdError
        # Frames of `zstd --long=31`, which published corpora use, need a window of 2 GiB.
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=2**31)
        self._file = path.open("rb")
        self._frame, self._packed, self._text = None, b"", b""

    def readable(self):
        return True

    def close(self):
        self._file.close()
        super().close()

    def readinto(self, buffer) -> int:
        while not self._text:
            self._packed = self._packed or self._file.read(CHUNK_BYTES)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError
                return 0
            self._unpack()
        count = min(len(buffer), len(self._text))
        buffer[:count] = self._text[:count]
        self._text = self._text[count:]
        return count

    def _unpack(self):
        self._frame = self._frame or self._decompressor.decompressobj()
        try:
            self._text = memoryview(self._frame.decompress(self._packed))
        except self._error as error:
            raise _BrokenZstandard(str(error)) from None
        self._packed = b""
        if self._frame.eof:
            self._packed, self._frame = self._frame.unused_data, None
