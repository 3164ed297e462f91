"""A corpus build cut into units of work.

    >>> plan = make_plan(["books/", "crawl/*.jsonl.gz"], CorpusSettings(TextOptions()), tokenizer)
    >>> len(plan.sources), len(plan.units), plan.units[0]
    (130, 77, (SourcePart(source=0, start=0, end=64000188),))

A unit is text of about `unit_megabytes`: a part of a big plain or parquet file, a whole compressed file, a file of a
data set of the hub, or several small files. Each unit becomes a shard of the corpus. Units depend on the sources and
settings alone, so any number of workers and machines gives the same shards, byte for byte.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.file_names import is_compressed
from t5suite.base.lookup import suggestion
from t5suite.data.corpora.byte_files import document_start
from t5suite.data.corpora.held_out import held_out_below
from t5suite.data.corpora.hub_documents import commit_of_source, open_stream
from t5suite.data.corpora.readers import TextOptions, parquet_file, text_suffix, unit_of_file
from t5suite.data.corpora.sentences import split_sentences
from t5suite.data.corpora.sources import at_commit, is_hub_name, list_sources
from t5suite.data.corpora.store import VERSION, tokenizer_fingerprint

# A compressed file is taken to hold this many times its bytes in text.
UNPACKED_PER_PACKED = 3


@dataclass(frozen=True)
class CorpusSettings:
    """What determines a corpus's tokens, besides its sources and tokenizer; wrong values raise ConfigError.

    Attributes:
      document_separator: what ends each document: 'none', 'eos', or a token of the vocabulary.
      split_sentences: the language whose rules split sentences, such as 'en'; None keeps documents whole.
      unit_megabytes: text of a unit of work, in 10**6 bytes.
    """

    text: TextOptions
    validation_fraction: float = 0.01
    document_separator: str = "none"
    split_sentences: str | None = None
    unit_megabytes: float = 64.0

    def __post_init__(self):
        held_out_below(self.validation_fraction)  # raises if it is no fraction
        if self.split_sentences:
            split_sentences("")  # raises if the splitter is not installed; every language has rules
        if not 0 < self.unit_megabytes < math.inf:
            raise ConfigError(f"--unit_megabytes {self.unit_megabytes}: give a finite number above 0")


class Source(NamedTuple):
    """A file, a data set of the hub, or a stream of texts.

    Attributes:
      size: in bytes; None unless it is a file.
      mtime_ns: the time of the file's last change; None unless it is a file. A file whose time is another one than when
        the corpus was built is hashed, to see whether it has changed.
      commit: of a data set of the hub; None if it is not known.
    """

    name: str
    size: int | None
    mtime_ns: int | None
    commit: str | None = None

    @property
    def identity(self) -> list:
        """What must be equal for two builds to be the same; a copy of a file with another time is the same file."""
        if self.commit is None:
            return [self.name, self.size]
        return [self.name, self.size, self.commit]


class SourcePart(NamedTuple):
    """A part of a source, for `readers.documents_with_text`.

    Attributes:
      source: its place in the plan's sources.
      start, end: bytes of a plain file, row groups of a parquet file, files of a data set of the hub; an end of None is
        the source's end.
    """

    source: int
    start: int
    end: int | None


@dataclass(frozen=True)
class CorpusPlan:
    """Sources, settings, and units of work in order."""

    sources: tuple[Source, ...]
    units: tuple[tuple[SourcePart, ...], ...]
    settings: CorpusSettings
    tokenizer: dict
    separator_id: int | None

    def described(self) -> dict:
        """What must be equal for two builds to be the same, as plain data."""
        settings = asdict(self.settings)
        text_options = settings.pop("text")
        return {
            "version": VERSION,
            "settings": {**text_options, **settings},
            "tokenizer": self.tokenizer["fingerprint"],
            "sources": [source.identity for source in self.sources],
            "num_units": len(self.units),
        }

    def shard_name(self, unit: int) -> str:
        """The folder of a unit's tokens, such as `shard-00003-of-00077`."""
        return f"shard-{unit:05d}-of-{len(self.units):05d}"

    def jobs(self, directory: Path) -> list["UnitJob"]:
        """The job of every unit."""
        plan = hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()
        jobs = []
        for unit, pieces in enumerate(self.units):
            sources = {}
            for piece in pieces:
                source = self.sources[piece.source]
                sources[piece.source] = at_commit(source.name, source.commit)
            folder = str(directory / self.shard_name(unit))
            jobs.append(UnitJob(folder, plan, sources, pieces, self.settings, self.separator_id))
        return jobs


def make_plan(inputs, settings: CorpusSettings, tokenizer) -> CorpusPlan:
    """Lists the sources and cuts them into units; reads no more of them than is needed to find the cuts."""
    sources = tuple(source_as_it_is(name) for name in list_sources(inputs))
    return _plan(sources, _units(sources, settings), settings, tokenizer)


def plan_of_streams(names: Sequence[str], settings: CorpusSettings, tokenizer) -> CorpusPlan:
    """A plan for texts that another program hands over (`building.build_shard`): a unit for each of its streams."""
    sources = tuple(Source(name, None, None) for name in names)
    units = tuple((SourcePart(number, 0, None),) for number in range(len(names)))
    return _plan(sources, units, settings, tokenizer)


def _plan(sources, units, settings: CorpusSettings, tokenizer) -> CorpusPlan:
    separator_id = separator_token_id(settings.document_separator, tokenizer)
    return CorpusPlan(sources, units, settings, tokenizer_facts(tokenizer), separator_id)


def tokenizer_facts(tokenizer) -> dict:
    """What a manifest says of a tokenizer."""
    return {
        "name": tokenizer.name_or_path,
        "class": type(tokenizer).__name__,
        "fingerprint": tokenizer_fingerprint(tokenizer),
    }


def source_as_it_is(name: str) -> Source:
    """A source with the size and the time that its file has now."""
    if is_hub_name(name):
        return Source(name, None, None, commit_of_source(name))
    status = Path(name).stat()
    return Source(name, status.st_size, status.st_mtime_ns)


def _units(sources: Sequence[Source], settings: CorpusSettings) -> tuple[tuple[SourcePart, ...], ...]:
    """The pieces of all sources in order, neighbours together until they hold about `unit_megabytes`."""
    unit_bytes = max(int(settings.unit_megabytes * 10**6), 1)
    units = [[]]
    bytes_in_unit = 0
    for number, source in enumerate(sources):
        for start, end, size in _cuts(source, settings.text.text_unit, unit_bytes):
            if units[-1] and bytes_in_unit + size > unit_bytes:
                units.append([])
                bytes_in_unit = 0
            units[-1].append(SourcePart(number, start, end))
            bytes_in_unit += size
    return tuple(map(tuple, units))


def separator_token_id(separator: str, tokenizer) -> int | None:
    """The id of the token that ends a document; None for 'none'.

    Raises:
      ConfigError: the tokenizer has no such token, or no end token.
    """
    if separator == "none":
        return None
    if separator == "eos" and tokenizer.eos_token is None:
        raise ConfigError(
            f"--document_separator eos: {tokenizer.name_or_path} has no end token (eos_token); give none, or another "
            "tokenizer"
        )
    vocabulary = tokenizer.get_vocab()
    token = tokenizer.eos_token if separator == "eos" else separator
    if token not in vocabulary:
        near = suggestion(separator, {"none", "eos", *tokenizer.all_special_tokens[:20]})
        raise ConfigError(f"--document_separator {separator!r}: not a token of {tokenizer.name_or_path}; {near}")
    return vocabulary[token]


def _unpacked_size(source: Source) -> int:
    """The approximate bytes of text in a file."""
    if is_compressed(source.name):
        return source.size * UNPACKED_PER_PACKED
    return source.size


def _cuts(source: Source, text_unit: str, unit_bytes: int) -> Iterator[tuple[int, int | None, int]]:
    """`(start, end, approximate bytes of text)` of each piece of a source."""
    if is_hub_name(source.name):
        for number in range(open_stream(at_commit(source.name, source.commit)).num_shards):
            yield number, number + 1, unit_bytes  # sizes are not known: each file is a unit of its own
        return
    path = Path(source.name)
    suffix = text_suffix(path)
    if is_compressed(path) or (text_unit == "file" and suffix == ".txt"):
        yield 0, None, _unpacked_size(source)
    elif suffix == ".parquet":
        yield from _cuts_of_parquet(parquet_file(path).metadata, unit_bytes)
    elif source.size <= unit_bytes:
        yield 0, None, source.size
    else:
        kind_of_document = unit_of_file(path, text_unit)
        # Each piece begins with the first document at or behind its offset. A document that is longer than a unit has
        # several offsets in it, for all of which that is the same one.
        starts = {document_start(path, offset, kind_of_document) for offset in range(0, source.size, unit_bytes)}
        for start, end in itertools.pairwise(sorted({*starts, source.size})):
            yield start, end, end - start


def _cuts_of_parquet(metadata, unit_bytes: int) -> Iterator[tuple[int, int, int]]:
    """`(first row group, end, bytes)` of each piece of a file."""
    start = 0
    num_bytes = 0
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).total_byte_size
        if group > start and num_bytes + size > unit_bytes:
            yield start, group, num_bytes
            start = group
            num_bytes = 0
        num_bytes += size
    yield start, max(metadata.num_row_groups, 1), num_bytes  # a file without row groups, too, is read


@dataclass(frozen=True)
class UnitJob:
    """A unit to build, as plain data that can be sent to another process; `plan` is a hash of what is built."""

    folder: str
    plan: str
    sources: dict[int, str]
    pieces: tuple[SourcePart, ...]
    settings: CorpusSettings
    separator_id: int | None
