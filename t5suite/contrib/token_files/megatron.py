"""Megatron-LM's files of tokens (`IndexedDataset`), as documents; NeMo Curator and datatrove write them, too.

    >>> file = open_megatron_file(Path("tokenized/crawl_text_document.bin"), "crawl_text_document.bin")
    >>> file.num_documents, file.boundaries(0, 3)
    (2310, array([  0, 187, 455, 460]))

`NAME.bin` has the ids of sequences. `NAME.idx` has nine bytes `MMIDIDX\\0\\0`, the version (uint64, 1), the code of
the type of ids (uint8), the number S of sequences and the number D + 1 of borders of documents (uint64); then S lengths
in tokens (int32), S places in bytes (int64), and the sequence at which each document starts, with S at the end (int64);
all little endian. Source: megatron-core 0.16, `datasets/indexed_dataset.py`. Opening a file reads no tokens.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import DataError
from t5suite.data.corpora.byte_files import check_is_file

MAGIC = b"MMIDIDX\0\0"
HEADER = struct.Struct("<9sQBQQ")
VERSION = 1
TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
# Ids of int32 are read as uint32: a negative one is then above every vocabulary.
BYTES_BY_TYPE = {"uint16": 2, "int32": 4}
LENGTH_BYTES = 4
PLACE_BYTES = 8


class _Index(NamedTuple):
    """The parts of a `.idx` file."""

    path: str
    id_bytes: int
    num_sequences: int
    num_borders: int

    @property
    def size(self) -> int:
        """Its bytes, unless its sequences have modes."""
        return HEADER.size + (LENGTH_BYTES + PLACE_BYTES) * self.num_sequences + PLACE_BYTES * self.num_borders

    def lengths(self, first: int, count: int) -> np.ndarray:
        """The tokens of sequences, from one on."""
        return np.fromfile(self.path, "<i4", count, offset=HEADER.size + LENGTH_BYTES * first)

    def places(self, first: int, count: int) -> np.ndarray:
        """The bytes at which sequences stand, from one on."""
        offset = HEADER.size + LENGTH_BYTES * self.num_sequences + PLACE_BYTES * first
        return np.fromfile(self.path, "<i8", count, offset=offset)

    def borders(self, first: int, count: int) -> np.ndarray:
        """The sequences at which documents start, from one on."""
        offset = HEADER.size + (LENGTH_BYTES + PLACE_BYTES) * self.num_sequences + PLACE_BYTES * first
        return np.fromfile(self.path, "<i8", count, offset=offset)


@dataclass(frozen=True)
class MegatronFile:
    """A `.bin` file with its `.idx`; `name` is its name within the folder."""

    name: str
    path: str
    id_bytes: int
    num_tokens: int
    num_documents: int
    index: _Index

    @property
    def index_path(self) -> str:
        """Where the ends of its documents are."""
        return self.index.path

    def boundaries(self, first: int, last: int) -> np.ndarray:
        """The token at which each document from `first` up to `last` starts, and the end of the last one, int64.

        Raises:
          DataError: the documents are not in order, or their sequences do not stand one after the other.
        """
        borders = self.index.borders(first, last - first + 1)
        first_sequence = int(borders[0])
        end_sequence = int(borders[-1])
        is_in_order = np.all(np.diff(borders) >= 0) and first_sequence >= 0 and end_sequence <= self.index.num_sequences
        if not is_in_order:
            raise DataError(
                f"{self.index_path}: documents {first} to {last - 1} (from 0) are not in order; it is damaged"
            )
        places = self._places(first_sequence, end_sequence)
        lengths = self.index.lengths(first_sequence, end_sequence - first_sequence)
        if np.any(lengths < 0) or np.any(np.diff(places) != self.id_bytes * lengths.astype(np.int64)):
            raise DataError(
                f"{self.index_path}: the sequences of documents {first} to {last - 1} (from 0) do not stand one after "
                f"the other in {self.name}; it is damaged, or written by a tool with another layout"
            )
        return places[borders - first_sequence] // self.id_bytes

    def _places(self, first: int, end: int) -> np.ndarray:
        """The bytes at which sequences stand, and the end of the last one."""
        if end < self.index.num_sequences:
            return self.index.places(first, end - first + 1)
        return np.append(self.index.places(first, end - first), self.id_bytes * self.num_tokens)


def open_megatron_file(path: Path, name: str) -> MegatronFile:
    """A `.bin` file, by its size and its index.

    Raises:
      DataError: the index is not Megatron's, of another version or type of ids, or the sizes do not agree.
    """
    check_is_file(path)
    index = _read_header(path.with_suffix(".idx"))
    _check_size(index)
    num_bytes = path.stat().st_size
    first_place, end = _extent_of_sequences(index)
    if first_place != 0 or end != num_bytes or num_bytes % index.id_bytes:
        raise DataError(
            f"{path}: {num_bytes} bytes, but the sequences of {Path(index.path).name} go from byte {first_place} to "
            f"{end}; one of the two is cut off, or of another file"
        )
    first_sequence, end_sequence = _extent_of_documents(index)
    if first_sequence != 0 or end_sequence != index.num_sequences:
        raise DataError(
            f"{index.path}: its documents have the sequences from {first_sequence} to {end_sequence} of "
            f"{index.num_sequences}; it is damaged, or its last document was not ended"
        )
    num_documents = max(index.num_borders - 1, 0)
    return MegatronFile(name, str(path), index.id_bytes, num_bytes // index.id_bytes, num_documents, index)


def _read_header(path: Path) -> _Index:
    """The index of a `.bin` file by its first bytes."""
    with path.open("rb") as file:
        header = file.read(HEADER.size)
    if len(header) < HEADER.size or not header.startswith(MAGIC):
        raise DataError(f"{path}: begins with {header[:9]!r}, and Megatron's index with {MAGIC!r} and 25 bytes more")
    _, version, code, num_sequences, num_borders = HEADER.unpack(header)
    if version != VERSION:
        raise DataError(f"{path}: version {version} of Megatron's index; version {VERSION} can be read")
    type_of_ids = TYPES.get(code, f"code {code}")
    if type_of_ids not in BYTES_BY_TYPE:
        raise DataError(f"{path}: its ids are of type {type_of_ids}; write them as {' or '.join(BYTES_BY_TYPE)}")
    return _Index(str(path), BYTES_BY_TYPE[type_of_ids], num_sequences, num_borders)


def _check_size(index: _Index) -> None:
    """Refuses an index that is cut off, or has modes of sequences (images among text)."""
    size = Path(index.path).stat().st_size
    if index.num_sequences and size == index.size + index.num_sequences:
        raise DataError(f"{index.path}: its sequences have modes, as images among text do; only text can be adopted")
    if size != index.size:
        raise DataError(
            f"{index.path}: {size} bytes instead of {index.size} for {index.num_sequences} sequences and "
            f"{index.num_borders} borders of documents; it is cut off or damaged"
        )


def _extent_of_sequences(index: _Index) -> tuple[int, int]:
    """The byte of the first sequence, and the one behind the last."""
    if index.num_sequences == 0:
        return 0, 0
    last = index.num_sequences - 1
    end = int(index.places(last, 1)[0]) + index.id_bytes * int(index.lengths(last, 1)[0])
    return int(index.places(0, 1)[0]), end


def _extent_of_documents(index: _Index) -> tuple[int, int]:
    """The first sequence of the first document, and the one behind the last document."""
    if index.num_borders == 0:
        return 0, 0
    return int(index.borders(0, 1)[0]), int(index.borders(index.num_borders - 1, 1)[0])
