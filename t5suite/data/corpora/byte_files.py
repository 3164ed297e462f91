"""Files, plain, gzipped (`.gz`) or Zstandard (`.zst`), as bytes and as lines.

A file that ends too early is an error.
"""

import contextlib
import functools
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from t5suite.base.errors import DataError
from t5suite.base.file_names import COMPRESSIONS, is_compressed
from t5suite.base.files import named_errors
from t5suite.base.text_encodings import OTHER_FILES, OTHER_TEXTS

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CHUNK_BYTES = 1 << 20
NO_PLAIN_FILE = "a pipe or a device, which is read only once; write its content to a file first"
NO_TARGET = "a symbolic link whose file does not exist"
NOT_BLANK = re.compile(rb"\S")


def byte_lines(path: Path, start: int = 0) -> Iterator[bytes]:
    r"""The lines of a file unchanged, with their line ends, from a byte on; only `\n` ends a line.

    Raises DataError for no such file, or a compressed file that is broken or cut off; an OSError names the file.
    """
    with _unpacked(path) as file:
        if start:
            file.seek(start)
        yield from file


def filled_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """`(line number from 1, line)` of the lines that hold more than white space; others cost next to nothing."""
    number = 1
    with _unpacked(path) as file:
        while block := file.read(CHUNK_BYTES):
            block += file.readline()
            end = 0
            while match := NOT_BLANK.search(block, end):
                start = max(block.rfind(b"\n", end, match.start()) + 1, end)
                number += block.count(b"\n", end, start)
                end = block.find(b"\n", match.start()) + 1 or len(block)
                yield number, block[start:end]
                number += 1
            number += block.count(b"\n", end)


def all_bytes(path: Path) -> bytes:
    """The whole of a file, unpacked; raises DataError as `byte_lines` does."""
    with _unpacked(path) as file:
        return file.read()


def check_is_file(path: Path) -> None:
    """Checks that a path is a file that can be read several times.

    Raises:
      DataError: nothing is there, or a folder, or a pipe or device.
    """
    if path.is_dir():
        raise DataError(f"{path}: a folder, where a file is needed")
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: {NO_PLAIN_FILE}")
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path}: {NO_TARGET}")
    if not path.exists():
        raise DataError(f"{path}: no such file")
    if not os.access(path, os.R_OK):
        raise DataError(f"{path}: no permission to read it; change its permissions (chmod u+r)")


@contextlib.contextmanager
def _unpacked(path: Path) -> Iterator[BinaryIO]:
    check_is_file(path)
    if not is_compressed(path):
        with named_errors(path), path.open("rb") as file:
            yield file
        return
    import pyarrow

    kind = COMPRESSIONS[path.suffix.lower()]
    try:
        with (
            named_errors(path),
            io.BufferedReader(pyarrow.input_stream(str(path), compression=kind), CHUNK_BYTES) as file,
        ):
            yield file
    except OSError as error:
        if error.errno is not None:  # of the disk
            raise
        if "Truncated" in str(error):
            raise DataError(f"{path}: the {kind} file is cut off") from None
        reason = actual_kind(path) or error
        raise DataError(f"{path}: not a sound {kind} file ({reason})") from None


def actual_kind(path: Path) -> str | None:
    """What a file is that is not of its name's kind, by its first bytes; None if they do not tell, or it is damaged."""
    with path.open("rb") as file:
        beginning = file.read(64)
    for first_bytes, description in {**OTHER_FILES, **OTHER_TEXTS}.items():
        is_named_so = description.endswith(f"should end in {path.suffix.lower()}")
        if beginning.startswith(first_bytes) and not is_named_so:
            return f"it is {description}"
    return None


def numbered_byte_lines(path: Path, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int, bytes]]:
    """`(line number from 1, byte offset, line)` of a file, or of the bytes from `start` to `end` of a plain one."""
    offset = start
    for number, line in enumerate(byte_lines(path, start), start=1):
        if end is not None and offset >= end:
            return
        yield number, offset, line if offset else line.removeprefix(BYTE_ORDER_MARK)
        offset += len(line)


def document_start(path: Path, offset: int, text_unit: str = "line") -> int:
    """The first byte at or after `offset` of a plain file where a document may start; the file's size if there is none.

    For paragraphs that is a line after a blank one.
    """
    with named_errors(path), path.open("rb") as file:
        file.seek(max(offset - 1, 0))
        if offset > 0:
            file.readline()  # the rest of the line that contains the previous byte
        if text_unit == "paragraph" and offset > 0:
            for line in iter(file.readline, b""):
                if not line.strip():
                    break
        return file.tell()


@functools.lru_cache(maxsize=16)
def lines_before(path: Path, offset: int) -> int:
    """The number of lines that end before byte `offset` of a plain file."""
    count = 0
    with named_errors(path), path.open("rb") as file:
        while offset > 0 and (block := file.read(min(offset, CHUNK_BYTES))):
            count += block.count(b"\n")
            offset -= len(block)
    return count
