"""Text -> blocks of tokens, shuffled, from any position: the virtual streams of a run.

    >>> source = open_source(["articles.jsonl", "books/"])
    >>> for item in source.read(Share(3, 64)):
    ...     print(item)
    Item(position=(0, 48113, 0), text='The centre of the city is old.', problem=None)
    >>> stream = VirtualStream([StreamCorpus(source)], encode, settings, index=5)
    >>> next(stream)
    Block(tokens=array([8774, 296, 541, ...], dtype=int32), denoiser=0, corpus=0, window={...}, given=1)

A run's text is cut into V virtual streams, whatever the number of processes that read them; run-long datum j is the
next block of stream j % V. A stream reads its share of every corpus in endless passes: its documents are tokenized,
joined without a separator (or with one) across documents and passes, and cut into blocks.

Shuffling is by windows: window w holds the next `buffer_size / V` blocks, in an order drawn from (seed, stream, w). A
position therefore does not contain a buffer: it is the place where the window begins and how many of its blocks have
been returned. The first windows of different streams have different lengths, so that they do not all end at once.
"""

import functools
import hashlib
import json
import logging
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.corpora.blocks import CorpusMixture, check_lengths
from t5suite.data.corpora.documents import (
    held_out_below,
    hub_records,
    is_held_out,
    is_hub_name,
    list_sources,
    open_stream,
    place_of,
)
from t5suite.data.corpora.encoding import TextEncoder, make_text_encoder
from t5suite.data.corpora.readers import BadLine, TextOptions, document_start, file_records, is_compressed, text_suffix
from t5suite.data.corpora.shared_reading import SharedFiles
from t5suite.data.corpora.store import tokenizer_fingerprint

logger = logging.getLogger(__name__)

# Groups of files may differ by this factor in size before fewer groups are made: a smaller one is read more often.
LARGEST_IMBALANCE = 1.05
# Documents of each source on which the fast engine must agree with the tokenizer.
DOCUMENTS_COMPARED = 256
# Text given to the tokenizer at once: enough for its batched path, but little is read ahead.
CHARACTERS_AT_ONCE = 1 << 16
# Draws per chunk of a virtual stream's mixture of corpora; there are V streams, so chunks may be short.
MIXTURE_CHUNK = 256
# Passes in a row without any text after which a reader gives up, if every pass gives it other files.
EMPTY_PASSES_OF_ROTATED_FILES = 20
# What random numbers are for, as parts of their seeds.
FILE_ORDER, WINDOW_ORDER, DENOISERS, MIXTURE = 1, 11, 12, 13

# ---------------------------------------------------------------------------------------------------------------------
# Where documents come from.
#
# Plain files are cut by bytes: of all their bytes, reader i gets the documents that begin in the i-th of V equal parts.
# Files that can only be read from their beginning (compressed ones, parquet, the hub's) are dealt out instead:
#
# * F files of one size, F a divisor or a multiple of V: reader i reads file i % F alone or with the V / F - 1 other
#   readers of that file, each taking every (V / F)-th document; or the F / V files i, i + V, ... whole.
# * F files of one size, otherwise: a file is a part, or ceil(V / F) parts if there are fewer files than readers. All
#   passes are one endless sequence of parts, of which reader i takes every V-th: while some readers read the last files
#   of a pass, the others begin the next one (`rotated_parts`).
# * Files of unequal sizes: the readers form groups, as many as have equal shares of the text; each reader of a group
#   takes every n-th document of all its files.
#
# A file that several readers of a process need is read once for all of them (`shared_reading`).


class Share(NamedTuple):
    """Reader `index` of `count`."""

    index: int
    count: int


class Item(NamedTuple):
    """One document, or a placeholder for one; reading from a document's position gives it again.

    `position` is (piece of the pass's order, byte or number of records in it, documents before it in the pass); `text`
    is None for an empty line or row, or, with a `problem`, a bad one.
    """

    position: tuple
    text: str | None
    problem: str | None


class Piece(NamedTuple):
    """What is read in one go: the documents that begin in the bytes `start` to `end` of a file; None: all of it."""

    file: int
    start: int = 0
    end: int | None = None


class Deal(NamedTuple):
    """What a reader reads in a pass: of the documents of `pieces`, one in `step`, beginning with number `offset`.

    Documents are numbered through all pieces; or, if `offset` has a number for each piece, in each file anew.
    """

    pieces: list[Piece]
    step: int = 1
    offset: int | tuple[int, ...] = 0

    def offset_of(self, number: int) -> int:
        """The offset in piece `number`."""
        return self.offset[number] if self.is_numbered_by_file else self.offset

    @property
    def is_numbered_by_file(self) -> bool:
        """Whether every file's documents are numbered from 0."""
        return isinstance(self.offset, tuple)


def parts_a_file(sizes: list[float], reader_count: int) -> int | None:
    """How many readers divide a file, if the parts of all passes rotate among the readers; None: they do not.

    >>> parts_a_file([1] * 41, 64), parts_a_file([1] * 100, 64), parts_a_file([1] * 128, 64)
    (2, 1, None)
    """
    divides = len(sizes) % reader_count == 0 or reader_count % len(sizes) == 0
    if divides or max(sizes) > LARGEST_IMBALANCE * min(sizes):
        return None
    return -(-reader_count // len(sizes))


def rotated_parts(file_count: int, reader_count: int, parts: int, reader: int, epoch: int) -> list[tuple[int, int]]:
    """`(place of the file in the pass's order, part of it)` of each part that a reader takes in a pass.

    The parts of a file are taken by readers reader_count // parts apart at the same time, so that one process reads
    them together if the number of processes divides this.

    >>> rotated_parts(3, 4, 2, reader=0, epoch=0), rotated_parts(3, 4, 2, reader=1, epoch=0)
    ([(0, 0), (2, 0)], [(1, 0), (2, 1)])
    >>> rotated_parts(3, 4, 2, reader=2, epoch=1)        # the second pass begins with reader 2
    [(0, 0), (2, 0)]
    """
    files_at_once = reader_count // parts
    before = epoch * file_count * parts
    first = (reader - before) % reader_count
    parts_of_reader = []
    for number in range(first, file_count * parts, reader_count):
        turn, place = divmod(number, files_at_once * parts)
        first_file = turn * files_at_once
        width = min(files_at_once, file_count - first_file)
        parts_of_reader.append((first_file + place % width, place // width))
    return parts_of_reader


def dealt_files(sizes: list[float], share: Share, epoch: int = 0, seed: int | None = None) -> Deal:
    """The files of a reader in a pass, in order; with a seed, every pass has its own order.

    >>> deal = dealt_files([1] * 128, Share(3, 64))
    >>> [piece.file for piece in deal.pieces], deal.step, deal.offset
    ([3, 67], 1, 0)
    >>> dealt_files([1, 1], Share(3, 64))        # the second of the 32 readers of file 1
    Deal(pieces=[Piece(file=1, start=0, end=None)], step=32, offset=1)
    >>> dealt_files([1, 1, 1], Share(3, 4))      # the second half of file 1
    Deal(pieces=[Piece(file=1, start=0, end=None)], step=2, offset=(1,))
    """
    parts = parts_a_file(sizes, share.count)
    if parts is not None:
        order = range(len(sizes))
        if seed is not None:  # the same for all readers
            order = np.random.default_rng((seed, FILE_ORDER, len(sizes), epoch)).permutation(len(sizes)).tolist()
        rotated = rotated_parts(len(sizes), share.count, parts, share.index, epoch)
        return Deal([Piece(order[place]) for place, _ in rotated], parts, tuple(part for _, part in rotated))
    groups = _number_of_groups(sizes, share.count)
    files = range(share.index % groups, len(sizes), groups)
    pieces = in_order_of_pass([Piece(file) for file in files], epoch, seed)
    return Deal(pieces, share.count // groups, share.index // groups)


def _number_of_groups(sizes: list[float], reader_count: int) -> int:
    """The largest number of groups of readers, and of files, that have equal shares."""
    largest = math.gcd(len(sizes), reader_count)
    for groups in range(largest, 1, -1):
        if largest % groups == 0:
            totals = [sum(sizes[group::groups]) for group in range(groups)]
            if max(totals) <= LARGEST_IMBALANCE * min(totals):
                return groups
    return 1


def in_order_of_pass(pieces: list[Piece], epoch: int, seed: int | None) -> list[Piece]:
    """The pieces of a reader in the order of a pass: the same for all readers of a group; None: their own order."""
    if seed is None or not pieces:
        return pieces
    order = np.random.default_rng((seed, FILE_ORDER, pieces[0].file, epoch)).permutation(len(pieces))
    return [pieces[i] for i in order]


def cut_files(sizes: list[int], share: Share) -> list[Piece]:
    """The reader's bytes of all files, laid end to end.

    >>> cut_files([100, 300], Share(0, 2))
    [Piece(file=0, start=0, end=100), Piece(file=1, start=0, end=100)]
    """
    first, last = (sum(sizes) * index // share.count for index in (share.index, share.index + 1))
    pieces, before = [], 0
    for file, size in enumerate(sizes):
        start, end = max(first - before, 0), min(last - before, size)
        if start < end:
            pieces.append(Piece(file, start, end))
        before += size
    return pieces


class TextSource:
    """Text that V readers (`num_virtual_streams`) read in parallel, each its share, from any document's position.

    `names` are files or one data set of the hub, `sizes` their bytes (equal for the hub's files); `can_be_cut`: reading
    can begin in the middle of a file.
    """

    def __init__(self, names: list[str], sizes: list[int], options: TextOptions | None, can_be_cut: bool):
        self.names, self.sizes, self.options = names, sizes, options or TextOptions()
        self.can_be_cut, self.bad_lines = can_be_cut, self.options.bad_lines
        self.shared_files = SharedFiles(self.records_of_file)

    def __repr__(self):
        more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        return f"{type(self).__name__}('{self.names[0]}'{more})"

    def read(self, share: Share, epoch: int = 0, position=None, seed: int | None = None) -> Iterator[Item]:
        """The share's items of one pass, from a position on; with a seed, every pass has its own order of files."""
        deal = self._deal(share, epoch, seed)
        first_piece, place, document = position or (0, 0, 0)
        for number in range(first_piece, len(deal.pieces)):
            piece, offset = deal.pieces[number], deal.offset_of(number)
            for at, (name, start), record in self._records(piece, place, is_shared=deal.step > 1):
                if document % deal.step == offset:
                    text, problem = None, None
                    if isinstance(record, BadLine):
                        problem = f"{place_of(name, record.line, start)}: {record.problem}"
                    elif record.text.strip():
                        text = record.text
                    yield Item((number, at, document), text, problem)
                document += 1
            place = 0
            if deal.is_numbered_by_file:
                document = 0

    def _deal(self, share: Share, epoch: int, seed: int | None) -> Deal:
        if self.can_be_cut:
            return Deal(in_order_of_pass(cut_files(self.sizes, share), epoch, seed))
        return dealt_files(self.sizes, share, epoch, seed)

    def _records(self, piece: Piece, place: int, is_shared: bool) -> Iterator[tuple]:
        return self.shared_files.read(piece.file, place) if is_shared else self.records(piece, place)

    def records_of_file(self, file: int, place: int) -> Iterator[tuple]:
        """The records of a whole file from number `place` on."""
        return self.records(Piece(file), place)

    def most_empty_passes(self, reader_count: int) -> int:
        """How many passes in a row may give a reader no text before there is none: another pass may be another file."""
        is_rotated = not self.can_be_cut and parts_a_file(self.sizes, reader_count) is not None
        return EMPTY_PASSES_OF_ROTATED_FILES if is_rotated else 0

    def describe_deal(self, reader_count: int) -> dict:
        """What a resumed run compares of the way in which files are dealt out, where another way existed before."""
        parts = None if self.can_be_cut else parts_a_file(self.sizes, reader_count)
        return {} if parts is None else {"parts_a_file": parts}


class FileSource(TextSource):
    """Local text files, in any form that `t5suite.data.corpora.readers` reads."""

    def __init__(self, paths, options: TextOptions | None = None):
        self.paths, options = [Path(path) for path in list_sources(paths)], options or TextOptions()
        sizes = [path.stat().st_size for path in self.paths]
        if 0 in sizes:
            raise DataError(f"{self.paths[sizes.index(0)]}: the file is empty")
        whole = [".parquet", ".txt"] if options.text_unit == "file" else [".parquet"]
        can_be_cut = not any(is_compressed(path) or text_suffix(path) in whole for path in self.paths)
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
            for at, record in enumerate(islice(file_records(path, self.options), place, None), start=place):
                yield at, (str(path), 0), record
            return
        start = place or document_start(path, piece.start, self.options.text_unit)
        end = document_start(path, piece.end, self.options.text_unit)
        for record in file_records(path, self.options, start, end):
            yield None if isinstance(record, BadLine) else record.offset, (str(path), start), record


@functools.lru_cache(maxsize=64)
def samples_hash(paths: tuple, most_files: int = 256, sample: int = 1 << 16) -> str:
    """A hash of the first and the last 64 KiB of the files, or of `most_files` of them, evenly chosen.

    Reading all of a stream's text first would take hours; an edited file usually differs there.
    """
    digest = hashlib.sha256()
    step = max(1, len(paths) / most_files)
    for number in range(min(len(paths), most_files)):
        with open(paths[int(number * step)], "rb") as file:
            digest.update(file.read(sample))
            file.seek(max(0, file.seek(0, 2) - sample))
            digest.update(file.read(sample))
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
        for at, record in enumerate(rows, start=place):
            yield at, (self.names[0], piece.file), record


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


# ---------------------------------------------------------------------------------------------------------------------
# The tokenizer of a stream: the fast engine if it gives equal ids on the stream's own documents, and its fingerprint.


# Versions of what changes a text's ids, however rarely: a resumed run must not switch to another.
WAYS = {"sentencepiece": "sentencepiece-4", "tokenizers": "tokenizers-2", "transformers": "transformers"}


def stream_encoder(tokenizer, sources: Sequence, engine: str = "auto") -> TextEncoder:
    """The encoder for the documents of these sources.

    The engine is chosen once, by the first documents of every source, and not changed later: a change in the middle of
    a run would make its data depend on when it happened.
    """
    encoder = make_text_encoder(tokenizer, engine)
    for source in sources:
        items = islice(source.read(Share(0, 1)), DOCUMENTS_COMPARED)
        texts = [item.text for item in items if item.text is not None]
        if encoder.engine == "sentencepiece" and encoder.encode(texts) != encoder.reference(texts):
            logger.warning("%r: SentencePiece's ids differ from the tokenizer's; using the slower tokenizer", source)
            encoder = encoder.by_reference()
    return replace(encoder, fingerprint=f"{WAYS[encoder.engine]} {tokenizer_fingerprint(tokenizer)[:16]}")


# ---------------------------------------------------------------------------------------------------------------------
# Blocks


NO_COUNTS = {"documents": 0, "tokens": 0, "held_out": 0, "empty": 0, "bad": 0}


class StreamCorpus(NamedTuple):
    """One of the corpora that a run streams, and its share of the blocks, relative to the others'."""

    source: TextSource
    weight: float = 1.0


@dataclass(frozen=True)
class StreamSettings:
    """Everything but the text that determines a stream's data; a resumed run must have the same.

    Attributes:
      lengths, denoiser_weights: tokens of a block and how often it occurs, one entry for each denoiser.
      num_virtual_streams: V; a multiple of ranks x workers.
      buffer_size: blocks that are shuffled among one another, over all virtual streams.
      validation_fraction: share of the documents that is held out and skipped.
      separator_id: a token appended to every document, e.g. end-of-sequence; None: nothing, as in T5.
    """

    lengths: tuple[int, ...]
    denoiser_weights: tuple[float, ...] = ()
    seed: int = 0
    num_virtual_streams: int = 64
    buffer_size: int = 4096
    validation_fraction: float = 0.0
    separator_id: int | None = None

    def __post_init__(self):
        weights = tuple(self.denoiser_weights) or (1.0,) * len(self.lengths)
        object.__setattr__(self, "lengths", tuple(int(length) for length in self.lengths))
        object.__setattr__(self, "denoiser_weights", weights)
        check_lengths(self.lengths, weights)
        if self.num_virtual_streams < 1 or self.buffer_size < 1:
            raise ConfigError(
                f"--num_virtual_streams {self.num_virtual_streams} and --shuffle_buffer_size {self.buffer_size} must "
                "be at least 1 each"
            )
        held_out_below(self.validation_fraction)
        if self.validation_fraction == 1:
            raise ConfigError("--validation_fraction 1.0 leaves nothing to train on")

    def describe(self) -> dict:
        """The settings as JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    def rng(self, *key: int) -> np.random.Generator:
        """Random numbers that depend on the seed and the key alone."""
        return np.random.default_rng((self.seed, *key))


class Block(NamedTuple):
    """A block of tokens, and the stream's position after it.

    `window` is the position at which the block's window begins, None if an earlier block of the window had it; `given`
    counts the blocks returned from the window, this one included.
    """

    tokens: np.ndarray
    denoiser: int
    corpus: int
    window: dict | None
    given: int


class VirtualStream:
    """Endless blocks of stream `index`, from all corpora in proportion to their weights.

    `positions` has one for each corpus (`BlockStream`); `report` is called with every bad line's description.
    """

    def __init__(self, corpora: list[StreamCorpus], encoder, settings, index: int, positions=None, report=None):
        weights = [corpus.weight for corpus in corpora]
        self.mixture = CorpusMixture(weights, (settings.seed, MIXTURE, index), MIXTURE_CHUNK)
        positions = positions or [None] * len(corpora)
        self.given = sum(position["before"] + position["given"] for position in positions if position)
        self.parts = []
        for number, (corpus, position) in enumerate(zip(corpora, positions, strict=True)):
            blocks = settings.buffer_size * corpus.weight / sum(weights) / settings.num_virtual_streams
            size, key = max(1, round(blocks)), (number, index)
            self.parts.append(BlockStream(corpus.source, encoder, settings, key, size, position, report))

    def __next__(self) -> Block:
        corpus = self.mixture.corpus_of(self.given)[0]
        self.given += 1
        return next(self.parts[corpus])


class BlockStream:
    """The blocks of one corpus in one virtual stream.

    Args:
      key: (number of the corpus, number of the stream), part of every seed.
      window_size: blocks of a window.
      position: `{"epoch", "source", "token", "window", "before", "given", "counts"}`: in window `window`, whose text
        begins at a document's token, `given` blocks were returned; `before` counts those of earlier windows.
    """

    def __init__(self, source, encoder, settings: StreamSettings, key, window_size: int, position=None, report=None):
        self.source, self.encoder, self.settings, self.key = source, encoder, settings, key
        self.window_size, self.report = window_size, report or (lambda problem: None)
        self.share = Share(key[1], settings.num_virtual_streams)
        names, position = ("window", "before", "given", "token"), position or {}
        self.window, self.before, self.given, self.token = (position.get(name, 0) for name in names)
        self.counts = dict(position.get("counts", NO_COUNTS))
        self.documents = self._documents(position.get("epoch", 0), position.get("source"))
        self.waiting = deque()  # tokenized documents, each as (where it begins, its ids)
        self.blocks, self.start = None, None

    def __next__(self) -> Block:
        if self.blocks is None:  # the window in which a run stopped, which may be used up
            self._fill_window()
        if self.given == len(self.blocks):
            self.window, self.before, self.given = self.window + 1, self.before + len(self.blocks), 0
            self._fill_window()
        tokens, denoiser = self.blocks[self.given]
        self.given += 1
        start, self.start = self.start, None
        return Block(tokens, denoiser, self.key[0], start, self.given)

    def _fill_window(self) -> None:
        """Cuts the window's blocks and shuffles them."""
        settings, key, size = self.settings, (*self.key, self.window), self.window_size
        if self.window == 0:  # first windows grow from stream to stream, to spread out their ends
            size = 1 + (size - 1) * self.share.index // self.share.count
        weights = np.asarray(settings.denoiser_weights) / sum(settings.denoiser_weights)
        denoisers_N = settings.rng(DENOISERS, *key).choice(len(weights), size=size, p=weights)
        ends_N = np.cumsum(np.asarray(settings.lengths)[denoisers_N])
        document, _ = self._first_waiting()
        self.start = {**document, "token": self.token, "window": self.window, "before": self.before}
        blocks = np.split(self._take(int(ends_N[-1])), ends_N[:-1])
        self.start["read"] = dict(self.counts)
        order = settings.rng(WINDOW_ORDER, *key).permutation(size)
        self.blocks = [(blocks[i], int(denoisers_N[i])) for i in order]

    def _first_waiting(self) -> tuple[dict, np.ndarray]:
        if not self.waiting:
            self.waiting.append(next(self.documents))
        return self.waiting[0]

    def _take(self, count: int) -> np.ndarray:
        """The next `count` tokens."""
        parts = []
        while count:
            _, whole = self._first_waiting()
            ids = whole[self.token : self.token + count]
            parts.append(ids)
            count -= len(ids)
            self.token += len(ids)
            if self.token >= len(whole):
                self.waiting.popleft()
                self.token = 0
        return np.concatenate(parts)

    # The methods below read and count. Text read ahead of a window is counted ahead, too, so every document carries
    # the counts before it.

    def _documents(self, epoch: int, position) -> Iterator[tuple[dict, np.ndarray]]:
        """All documents from a position on, pass after pass."""
        empty_passes, most_empty_passes = 0, self.source.most_empty_passes(self.share.count)
        while True:
            tokens = self.counts["tokens"]
            for read in self._batches(self.source.read(self.share, epoch, position, self.settings.seed)):
                yield from self._tokenized(epoch, read)
            is_empty = self.counts["tokens"] == tokens and position is None
            empty_passes = empty_passes + 1 if is_empty else 0
            if empty_passes > most_empty_passes:
                counts = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in self.counts.items())
                raise DataError(
                    f"virtual stream {self.share.index} of {self.share.count} finds nothing to train on in "
                    f"{self.source!r}: {counts}. Lower --num_virtual_streams (a stream takes every "
                    f"{self.share.count}th document or fewer), or give more text"
                )
            epoch, position = epoch + 1, None

    def _batches(self, items: Iterator[Item]) -> Iterator[list]:
        """Documents to train on, each with the counts before it, in batches that are tokenized at once."""
        read, characters = [], 0
        for item in items:
            kind = self._kind(item)
            if kind == "documents":
                read.append((item, dict(self.counts)))
                characters += len(item.text)
            self.counts[kind] += 1
            if characters >= CHARACTERS_AT_ONCE:
                yield read
                read, characters = [], 0
        if read:
            yield read

    def _kind(self, item: Item) -> str:
        if item.problem:
            if self.source.bad_lines == "error":
                raise DataError(item.problem)
            self.report(item.problem)
            return "bad"
        if item.text is None:
            return "empty"
        return "held_out" if is_held_out(item.text, self.settings.validation_fraction) else "documents"

    def _tokenized(self, epoch: int, read: list) -> Iterator[tuple[dict, np.ndarray]]:
        """The documents' ids and where each begins; those without tokens are dropped."""
        end = [] if self.settings.separator_id is None else [self.settings.separator_id]
        tokens = self.counts["tokens"]
        for (item, counts), ids in zip(read, self.encoder.encode([item.text for item, _ in read]), strict=True):
            ids = np.asarray([*ids, *end] if end else ids, dtype=np.int32)
            if len(ids):
                yield {"epoch": epoch, "source": list(item.position), "counts": {**counts, "tokens": tokens}}, ids
            tokens += len(ids)
            self.counts["tokens"] = tokens
