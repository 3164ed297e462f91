"""Files, plain, gzipped (`.gz`) or Zstandard (`.zst`), as bytes and as lines; a file that ends too early is an error.

>>> list(byte_lines(Path("articles.txt.zst")))
[b'The centre of the city is old.\n', b'A second article.\n']
"""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from t5suite.base.errors import DataError

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
