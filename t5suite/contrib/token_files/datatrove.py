"""datatrove's files of tokens (`DocumentTokenizer`, `DocumentTokenizerMerger`), as documents.

    >>> file = open_datatrove_file(Path("tokenized/00000_00000_doc_shuffled.ds"), "00000_00000_doc_shuffled.ds")
    >>> file.num_documents, file.boundaries(0, 3)
    (2310, array([  0, 187, 455, 460]))

`NAME.ds` has the ids, uint16 or uint32, `NAME.ds.index` the end of each document in tokens, uint64, little endian.
`NAME.ds.metadata`, if it is there, is three lines of text: the tokenizer and the bytes of an id
(`google/t5-v1_1-base|2`), the number of tokens, and the same for people. Opening a file reads no tokens.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from t5suite.base.errors import DataError
from t5suite.data.corpora.byte_files import check_is_file

END_BYTES = 8
ID_BYTES = (2, 4)


@dataclass(frozen=True)
class DatatroveFile:
    """A `.ds` file with its `.ds.index`; `name` is its name within the folder."""

    name: str
    path: str
    id_bytes: int
    num_tokens: int
    num_documents: int

    @property
    def index_path(self) -> str:
        """Where the ends of its documents are."""
        return f"{self.path}.index"

    def boundaries(self, first: int, last: int) -> np.ndarray:
        """The token at which each document from `first` up to `last` starts, and the end of the last one, int64."""
        if first == 0:
            ends = np.fromfile(self.index_path, "<u8", last)
            return np.concatenate([np.zeros(1, np.int64), ends.astype(np.int64)])
        return np.fromfile(self.index_path, "<u8", last - first + 1, offset=END_BYTES * (first - 1)).astype(np.int64)


def open_datatrove_file(path: Path, name: str) -> DatatroveFile:
    """A `.ds` file, by the sizes of it and its index.

    Raises:
      DataError: index, metadata and size do not agree.
    """
    check_is_file(path)
    index = path.with_name(f"{path.name}.index")
    num_bytes = path.stat().st_size
    num_documents, surplus_bytes = divmod(index.stat().st_size, END_BYTES)
    if surplus_bytes:
        raise DataError(f"{index}: {index.stat().st_size} bytes, no whole number of 8-byte ends; it is cut off")
    num_tokens = 0
    if num_documents:
        num_tokens = int(np.fromfile(index, "<u8", 1, offset=END_BYTES * (num_documents - 1))[0])
    id_bytes = _id_bytes(path, num_bytes, num_tokens)
    if id_bytes not in ID_BYTES or num_bytes != id_bytes * num_tokens:
        raise DataError(
            f"{path}: {num_bytes} bytes, but {index.name} ends at token {num_tokens}; ids have 2 or 4 bytes, so one of "
            "the two is cut off, or of another file"
        )
    return DatatroveFile(name, str(path), id_bytes, num_tokens, num_documents)


def _id_bytes(path: Path, num_bytes: int, num_tokens: int) -> int:
    """The bytes of an id, by the metadata or else by the size of the file.

    Raises:
      DataError: what stands in place of the metadata is something else, or of another number of tokens.
    """
    metadata = path.with_name(f"{path.name}.metadata")
    if not metadata.is_file():
        return num_bytes // num_tokens if num_tokens else min(ID_BYTES)
    lines = metadata.read_text(encoding="utf-8", errors="replace").splitlines()
    id_bytes = lines[0].rpartition("|")[2] if lines else ""
    if len(lines) < 2 or not (id_bytes.isdecimal() and lines[1].isdecimal()):
        raise DataError(f"{metadata}: not datatrove's metadata (TOKENIZER|BYTES, then the number of tokens); remove it")
    if int(lines[1]) != num_tokens:
        raise DataError(
            f"{metadata}: {lines[1]} tokens, but {path.name}.index ends at token {num_tokens}; one of the two is cut "
            "off, or of another file"
        )
    return int(id_bytes)
