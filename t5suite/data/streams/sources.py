"""Text that several readers read in parallel, each its share, from any document's position."""

import functools
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.file_names import is_compressed
from t5suite.data.corpora.byte_files import document_start
from t5suite.data.corpora.documents import place_of
from t5suite.data.corpora.hub_documents import hub_records, open_stream
from t5suite.data.corpora.readers import BadLine, Document, TextOptions, file_records, text_suffix, unit_of_file
from t5suite.data.corpora.sources import is_hub_name, list_sources
from t5suite.data.streams.shared_reading import SharedFiles
from t5suite.data.streams.shares import Deal, Piece, Share, cut_files, dealt_files, in_order_of_pass, parts_a_file

# Passes in a row without any text after which a reader gives up, if every pass gives it other files.
EMPTY_PASSES_OF_ROTATED_FILES = 20
# Of so many files, and so many bytes at both ends of each, a stream takes a hash.
SAMPLED_FILES = 256
SAMPLED_BYTES = 1 << 16


class BadRecord(NamedTuple):
    """A bad line or row of a file: its `line` is counted from `start`, as in `place_of`."""

    name: str
    start: int
    line: int
    problem: str

    def description(self) -> str:
        """The place and the problem; to count the lines before it may take a reading of half the file."""
        return f"{place_of(self.name, self.line, self.start)}: {self.problem}"


class Item(NamedTuple):
    """One document, or a placeholder for one; reading from a document's position gives it again.

    `position` is (piece of the pass's order, byte or number of records in it, documents before it in the pass); `text`
    is None for an empty line or row, and for a `bad_record`.
    """

    position: tuple
    text: str | None
    bad_record: BadRecord | None


class TextSource:
    """Text that V readers (`num_virtual_streams`) read in parallel, each its share, from any document's position.

    `names` are files or one data set of the hub, `sizes` their bytes (equal for the hub's files); `can_be_cut`: reading
    can begin in the middle of a file.
    """

    def __init__(self, names: list[str], sizes: list[int], options: TextOptions | None, can_be_cut: bool):
        self.names = names
        self.sizes = sizes
        self.options = options or TextOptions()
        self.can_be_cut = can_be_cut
        self.bad_lines = self.options.bad_lines
        self.shared_files = SharedFiles(self.records_of_file)

    @property
    def title(self) -> str:
        """The first name, and how many others there are."""
        further_names = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        return f"{self.names[0]}{further_names}"

    def __repr__(self):
        return f"{type(self).__name__}({self.title!r})"

    def read(self, share: Share, epoch: int = 0, position=None, seed: int | None = None) -> Iterator[Item]:
        """The share's items of one pass, from a position on; with a seed, every pass has its own order of files."""
        deal = self._deal(share, epoch, seed)
        first_piece, place, document = position or (0, 0, 0)
        for number in range(first_piece, len(deal.pieces)):
            piece = deal.pieces[number]
            offset = deal.offset_of(number)
            for record_place, origin, record in self._records(piece, place, is_shared=deal.step > 1):
                if document % deal.step == offset:
                    yield _item((number, record_place, document), origin, record)
                document += 1
            place = 0
            if deal.is_numbered_by_file:
                document = 0

    def _deal(self, share: Share, epoch: int, seed: int | None) -> Deal:
        if self.can_be_cut:
            return Deal(in_order_of_pass(cut_files(self.sizes, share), epoch, seed))
        return dealt_files(self.sizes, share, epoch, seed)

    def _records(self, piece: Piece, place: int, is_shared: bool) -> Iterator[tuple]:
        if is_shared:
            return self.shared_files.read(piece.file, place)
        return self.records(piece, place)

    def records_of_file(self, file: int, place: int) -> Iterator[tuple]:
        """The records of a whole file from number `place` on."""
        return self.records(Piece(file), place)

    def most_empty_passes(self, reader_count: int) -> int:
        """How many passes in a row may give a reader no text before there is none: another pass may be another file."""
        is_rotated = not self.can_be_cut and parts_a_file(self.sizes, reader_count) is not None
        return EMPTY_PASSES_OF_ROTATED_FILES if is_rotated else 0

    def describe_deal(self, reader_count: int) -> dict:
        """What a resumed run compares of the way in which files are dealt out, where another way existed before."""
        if self.can_be_cut:
            return {}
        parts = parts_a_file(self.sizes, reader_count)
        return {} if parts is None else {"parts_a_file": parts}


def _item(position: tuple, origin: tuple, record: Document | BadLine) -> Item:
    """The item of a record; its line is counted from `origin`, (name, byte or file)."""
    if isinstance(record, BadLine):
        name, start = origin
        return Item(position, None, BadRecord(name, start, record.line, record.problem))
    text = record.text if record.text.strip() else None
    return Item(position, text, None)


class FileSource(TextSource):
    """Local text files, in any form that `t5suite.data.corpora.readers` reads."""

    def __init__(self, paths, options: TextOptions | None = None):
        self.paths = [Path(path) for path in list_sources(paths)]
        options = options or TextOptions()
        sizes = [path.stat().st_size for path in self.paths]
        if 0 in sizes:
            raise DataError(f"{self.paths[sizes.index(0)]}: the file is empty")
        uncut_suffixes = [".parquet", ".txt"] if options.text_unit == "file" else [".parquet"]
        can_be_cut = not any(is_compressed(path) or text_suffix(path) in uncut_suffixes for path in self.paths)
        super().__init__(list(map(str, self.paths)), sizes, options, can_be_cut)

    def describe(self) -> dict:
        """The files by name and size, and samples of their content, each as a hash; a resumed run refuses others."""
        names = json.dumps([[path.name, size] for path, size in zip(self.paths, self.sizes)])
        return {
            "files": len(self.paths),
            "bytes": sum(self.sizes),
            "names_and_sizes": hashlib.sha256(names.encode()).hexdigest()[:16],
            "samples": samples_hash(tuple(self.paths)),
            **asdict(self.options),
        }

    def records(self, piece: Piece, place: int) -> Iterator[tuple]:
        """`(place, (file, byte that its line is counted from), record)` of each record from a place on."""
        path = self.paths[piece.file]
        if piece.end is None:
            records = islice(file_records(path, self.options), place, None)
            for number, record in enumerate(records, start=place):
                yield number, (str(path), 0), record
            return
        unit = unit_of_file(path, self.options.text_unit)
        start = place or document_start(path, piece.start, unit)
        end = document_start(path, piece.end, unit)
        for record in file_records(path, self.options, start, end):
            offset = None if isinstance(record, BadLine) else record.offset
            yield offset, (str(path), start), record


@functools.lru_cache(maxsize=64)
def samples_hash(paths: tuple) -> str:
    """A hash of the first and the last 64 KiB of the files, or of 256 of them, evenly chosen.

    Reading all of a stream's text first would take hours; an edited file usually differs there.
    """
    digest = hashlib.sha256()
    step = max(1, len(paths) / SAMPLED_FILES)
    for number in range(min(len(paths), SAMPLED_FILES)):
        with open(paths[int(number * step)], "rb") as file:
            digest.update(file.read(SAMPLED_BYTES))
            file.seek(max(0, file.seek(0, 2) - SAMPLED_BYTES))
            digest.update(file.read(SAMPLED_BYTES))
    return digest.hexdigest()[:16]


class HubSource(TextSource):
    """A data set of the hub, streamed. To resume, a file is read again from its beginning, as `datasets` does.

    `dataset` is an opened `datasets.IterableDataset`; None opens it.
    """

    def __init__(self, name: str, options: TextOptions | None = None, dataset=None):
        self.dataset = open_stream(name) if dataset is None else dataset
        super().__init__([name], [1] * self.dataset.num_shards, options, can_be_cut=False)

    def describe(self) -> dict:
        """What a resumed run compares: the name and the number of files."""
        options = {"text_column_name": self.options.text_column_name, "bad_lines": self.bad_lines}
        return {"name": self.names[0], "files": len(self.sizes), **options}

    def records(self, piece: Piece, place: int) -> Iterator[tuple]:
        """`(row, (name, file), record)` of each row of a file, from a row on."""
        rows = hub_records(self.names[0], self.dataset, piece.file, self.options, place)
        for row, record in enumerate(rows, start=place):
            yield row, (self.names[0], piece.file), record


def open_source(inputs, options: TextOptions | None = None) -> TextSource:
    """The source of files, folders and patterns, or of one data set of the hub.

    >>> open_source("hub:allenai/c4:en:train")
    HubSource('hub:allenai/c4:en:train')

    Raises ConfigError for files and data sets of the hub together, and as `list_sources` does.
    """
    sources = list_sources(inputs)
    if not any(map(is_hub_name, sources)):
        return FileSource(sources, options)
    if len(sources) > 1:
        raise ConfigError(f"{', '.join(sources[:3])}: stream them as several corpora, each with its weight")
    return HubSource(sources[0], options)
