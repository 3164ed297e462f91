"""Where a stream's documents come from: local files, or a data set of the hub.

    >>> source = FileSource(["articles.jsonl", "books/"])
    >>> for item in source.read(Share(3, 64)):
    ...     print(item)
    Item(position=(0, 48113, 0), text='The centre of the city is old.', problem=None)

A source is read by V readers at once (`num_virtual_streams`), each of which has a share of its documents, passes over
it again and again, and can go on from the position of any document. Both kinds offer

* `read(share, epoch, position, seed)`: the share's items of one pass, from a position on;
* `describe()`: what a resumed run compares, as JSON.

How text is shared out. Plain files are cut like a loaf: of all their bytes, reader i gets the documents that begin in
the i-th of V equal parts. Files that can only be read from their beginning (compressed ones, parquet, the hub's) are
dealt out instead: with F files the readers form g groups, g being the greatest common divisor of F and V; a group has
F / g files to itself, and each of its V / g readers takes every (V / g)-th document of them. 1024 files and 64 readers
make 64 groups of 16 files and one reader; of a single file, 64 readers each take every 64th document, for which each
must unpack all of it. Where files are so unequal that groups would have unequal shares, fewer groups are made.
"""

import functools
import hashlib
import json
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import suggestion
from t5suite.data.corpora.documents import is_hub_name, list_sources, open_stream, place_of
from t5suite.data.corpora.encoding import TextEncoder, make_text_encoder
from t5suite.data.corpora.readers import (
    BadLine,
    TextOptions,
    document_start,
    file_records,
    is_compressed,
    record_of_value,
    text_suffix,
)
from t5suite.data.corpora.store import tokenizer_fingerprint

ROWS_AT_ONCE = 64
# Groups of files may differ that much in size before fewer groups are made: the smaller one is read more often.
LARGEST_IMBALANCE = 1.05
FILE_ORDER = 1  # what a random number is for, as part of its seed


class Share(NamedTuple):
    """Reader `index` of `count`."""

    index: int
    count: int


class Item(NamedTuple):
    """One document or what stands in its place; reading on from a document's position gives it again.

    `text` is None where there is none: an empty line or row, or, with a `problem`, a bad one.
    """

    position: tuple
    text: str | None
    problem: str | None


class Piece(NamedTuple):
    """What is read in one go: the documents that begin in the bytes `start` to `end` of a file; None: all of it."""

    file: int
    start: int = 0
    end: int | None = None


def open_source(inputs, options: TextOptions | None = None):
    """The source of files, folders and patterns, or of one data set of the hub.

    >>> open_source("hub:allenai/c4:en:train")
    HubSource('hub:allenai/c4:en:train')

    Raises:
      ConfigError: files and data sets of the hub together.
      DataError: nothing of that name.
    """
    sources, options = list_sources(inputs), options or TextOptions()
    of_hub = [source for source in sources if is_hub_name(source)]
    if not of_hub:
        return FileSource(sources, options)
    if len(sources) > 1:
        raise ConfigError(f"{', '.join(sources[:3])}: stream them as several corpora, each with its weight")
    return HubSource(sources[0], options)


# ---------------------------------------------------------------------------------------------------------------------
# Shares


def dealt_files(sizes: list[float], share: Share) -> tuple[list[Piece], int, int]:
    """`(files, step, offset)`: the reader takes documents offset, offset + step, ... of those files.

    >>> files, step, offset = dealt_files([1] * 128, Share(3, 64))
    >>> [piece.file for piece in files], step, offset
    ([3, 67], 1, 0)
    >>> dealt_files([1, 1], Share(3, 64))        # the second of the 32 readers of file 1
    ([Piece(file=1, start=0, end=None)], 32, 1)
    >>> dealt_files([1, 1, 1], Share(3, 64))[1:]
    (64, 3)
    """
    largest = math.gcd(len(sizes), share.count)
    for groups in range(largest, 0, -1):
        if largest % groups == 0:
            totals = [sum(sizes[group::groups]) for group in range(groups)]
            if max(totals) <= LARGEST_IMBALANCE * min(totals):
                break
    files = range(share.index % groups, len(sizes), groups)
    return [Piece(file) for file in files], share.count // groups, share.index // groups


def cut_files(sizes: list[int], share: Share) -> list[Piece]:
    """The reader's bytes of all files, laid end to end.

    >>> cut_files([100, 300], Share(0, 2))
    [Piece(file=0, start=0, end=100), Piece(file=1, start=0, end=100)]
    >>> cut_files([100, 300], Share(1, 2))
    [Piece(file=1, start=100, end=300)]
    """
    first, last = (sum(sizes) * index // share.count for index in (share.index, share.index + 1))
    pieces, before = [], 0
    for file, size in enumerate(sizes):
        start, end = max(first - before, 0), min(last - before, size)
        if start < end:
            pieces.append(Piece(file, start, end))
        before += size
    return pieces


def order_of_pass(pieces: list[Piece], epoch: int, seed: int | None) -> list[Piece]:
    """The pieces in the order of a pass, the same for all readers of a group; without a seed, as they are."""
    if seed is None or not pieces:
        return pieces
    return [
        pieces[i] for i in np.random.default_rng((seed, FILE_ORDER, pieces[0].file, epoch)).permutation(len(pieces))
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Files


class FileSource:
    """Local text files, in any form that `t5suite.data.corpora.readers` reads.

    A position is (piece of the pass's order, byte or number of documents in it, documents before it in the pass).
    """

    def __init__(self, paths, options: TextOptions | None = None):
        self.paths = [Path(path) for path in list_sources(paths)]
        self.options = options or TextOptions()
        self.bad_lines = self.options.bad_lines
        self.sizes = [path.stat().st_size for path in self.paths]
        for path, size in zip(self.paths, self.sizes):
            if size == 0:
                raise DataError(f"{path}: the file is empty")
        self.can_be_cut = all(_can_be_cut(path, self.options) for path in self.paths)

    def __repr__(self):
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"FileSource('{self.paths[0]}'{more})"

    def describe(self) -> dict:
        """The files by name and size, and samples of their content, in a hash each; a resumed run refuses others."""
        names = json.dumps([[path.name, size] for path, size in zip(self.paths, self.sizes)])
        return {
            "files": len(self.paths),
            "bytes": sum(self.sizes),
            "names_and_sizes": hashlib.sha256(names.encode()).hexdigest()[:16],
            "samples": samples_hash(tuple(self.paths)),
            "text_column_name": self.options.text_column_name,
            "text_unit": self.options.text_unit,
            "bad_lines": self.bad_lines,
        }

    def times_read(self, num_readers: int) -> int:
        """How often so many readers read every file in a pass."""
        return 1 if self.can_be_cut else dealt_files(self.sizes, Share(0, num_readers))[1]

    def read(self, share: Share, epoch: int = 0, position=None, seed: int | None = None) -> Iterator[Item]:
        """The share's items of one pass.

        Raises:
          DataError: a torn compressed file.
        """
        if self.can_be_cut:
            pieces, step, offset = cut_files(self.sizes, share), 1, 0
        else:
            pieces, step, offset = dealt_files(self.sizes, share)
        pieces = order_of_pass(pieces, epoch, seed)
        begun, place, document = position or (0, 0, 0)
        for number in range(begun, len(pieces)):
            for at, first, record in self._records(pieces[number], place):
                if document % step == offset:
                    yield Item((number, at, document), *self._text(pieces[number], first, record))
                document += 1
            place = 0

    def _records(self, piece: Piece, place: int) -> Iterator[tuple]:
        """`(place, start, record)`: where each record stands, and the byte that its line is counted from."""
        path = self.paths[piece.file]
        if piece.end is None:
            for at, record in enumerate(islice(file_records(path, self.options), place, None), start=place):
                yield at, 0, record
            return
        start = place or document_start(path, piece.start, self.options.text_unit)
        end = document_start(path, piece.end, self.options.text_unit)
        for record in file_records(path, self.options, start, end):
            yield None if isinstance(record, BadLine) else record.offset, start, record

    def _text(self, piece: Piece, start: int, record) -> tuple[str | None, str | None]:
        if isinstance(record, BadLine):
            return None, f"{place_of(str(self.paths[piece.file]), record.line, start)}: {record.problem}"
        return (record.text if record.text.strip() else None), None


def _can_be_cut(path: Path, options: TextOptions) -> bool:
    """Whether reading may begin in the middle of the file."""
    if is_compressed(path) or text_suffix(path) == ".parquet":
        return False
    return text_suffix(path) != ".txt" or options.text_unit != "file"


# ---------------------------------------------------------------------------------------------------------------------
# The hub


@functools.lru_cache(maxsize=64)
def samples_hash(paths: tuple, most_files: int = 256, sample: int = 1 << 16) -> str:
    """A hash of the first and the last 64 KiB of the files, or of so many of them, evenly chosen.

    To read all of a stream's text before it begins would take hours; a file that was edited mostly differs there.
    """
    digest = hashlib.sha256()
    step = max(1, len(paths) / most_files)
    for number in range(min(len(paths), most_files)):
        with open(paths[int(number * step)], "rb") as file:
            digest.update(file.read(sample))
            file.seek(max(0, file.seek(0, 2) - sample))
            digest.update(file.read(sample))
    return digest.hexdigest()[:16]


class HubSource:
    """A data set of the hub, streamed.

    A position is (file of the pass's order, rows before it in the file, documents before it in the pass), and not the
    state of `datasets` itself, whose form is its own affair. To go on, a file is read again from its beginning; so does
    `datasets`.

    Args:
      name: `hub:PATH[@REVISION][:CONFIG[:SPLIT]]`.
      dataset: an opened `datasets.IterableDataset`; None opens it.

    Raises:
      DataError: no such data set, or no such column in it.
    """

    def __init__(self, name: str, options: TextOptions | None = None, dataset=None):
        self.name = name
        options = options or TextOptions()
        self.column, self.bad_lines = options.text_column_name, options.bad_lines
        dataset = open_stream(name) if dataset is None else dataset
        columns = dataset.column_names
        if columns is not None and self.column not in columns:
            found = suggestion(self.column, columns)
            raise DataError(f"{name}: no column {self.column!r} (--text_column_name); {found}")
        self.dataset = dataset.select_columns([self.column])
        self.num_files = dataset.num_shards

    def __repr__(self):
        return f"HubSource('{self.name}')"

    def describe(self) -> dict:
        """What a resumed run compares: the name and the number of files."""
        return {
            "name": self.name,
            "files": self.num_files,
            "text_column_name": self.column,
            "bad_lines": self.bad_lines,
        }

    def times_read(self, num_readers: int) -> int:
        """How often so many readers read every file in a pass."""
        return dealt_files([1] * self.num_files, Share(0, num_readers))[1]

    def read(self, share: Share, epoch: int = 0, position=None, seed: int | None = None) -> Iterator[Item]:
        """The share's items of one pass.

        Raises:
          DataError: a file that cannot be read.
        """
        files, step, offset = dealt_files([1] * self.num_files, share)
        files = order_of_pass(files, epoch, seed)
        begun, row, document = position or (0, 0, 0)
        for number in range(begun, len(files)):
            for value in self._values(files[number].file, row):
                if document % step == offset:
                    yield Item((number, row, document), *self._text(value, files[number].file, row))
                row, document = row + 1, document + 1
            row = 0

    def _values(self, file: int, row: int) -> Iterator:
        """The text column's cells from a row on.

        By `iter`: in a DataLoader's worker, plain iteration would share the files out over the workers once more.
        """
        import pyarrow

        part = self.dataset.shard(num_shards=self.num_files, index=file)
        try:
            for batch in (part.skip(row) if row else part).iter(batch_size=ROWS_AT_ONCE):
                for value in batch[self.column]:
                    row += 1
                    yield value
        except (OSError, ValueError, KeyError, EOFError, pyarrow.ArrowException) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(f"{self.name}: file {file} cannot be read after row {row} ({reason:.300})") from error

    def _text(self, value, file: int, row: int) -> tuple[str | None, str | None]:
        record = record_of_value(value, self.column, row + 1)
        if isinstance(record, BadLine):
            return None, f"{place_of(self.name, record.line, file)}: {record.problem}"
        return (record.text if record.text.strip() else None), None


# ---------------------------------------------------------------------------------------------------------------------
# The tokenizer of a stream: the fast engine where it is equal on the stream's own documents, and what identifies it.


logger = logging.getLogger(__name__)

# Documents of each source on which the fast engine must agree with the tokenizer's own.
DOCUMENTS_COMPARED = 256


@dataclass(frozen=True)
class StreamEncoder:
    """Texts -> ids; goes to the workers. `fingerprint` tells a resumed run that the tokenizer is the same."""

    encoder: TextEncoder
    fingerprint: str

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        return self.encoder.encode(texts)


# What changes a text's ids, however rarely: a resumed run must not go on with another.
WAYS = {
    "sentencepiece": "sentencepiece-3",
    "tokenizers": "tokenizers-2",
    "transformers": "transformers",
}


def stream_encoder(tokenizer, sources: Sequence, engine: str = "auto") -> StreamEncoder:
    """The encoder for the documents of these sources.

    The engine is chosen once, by the first documents of every source, and not changed later: a change in the middle of
    a run would make its data depend on when it happened.
    """
    samples = [_first_documents(source) for source in sources]
    encoder = make_text_encoder(tokenizer, engine)
    for source, texts in zip(sources, samples, strict=True):
        if encoder.engine == "sentencepiece" and encoder.encode(texts) != encoder.reference(texts):
            logger.warning("%r: SentencePiece's ids differ from the tokenizer's, which is slower and is used", source)
            encoder = encoder.by_reference()
    return StreamEncoder(encoder, f"{WAYS[encoder.engine]} {tokenizer_fingerprint(tokenizer)[:16]}")


def _first_documents(source) -> list[str]:
    return [item.text for item in islice(source.read(Share(0, 1)), DOCUMENTS_COMPARED) if item.text is not None]
