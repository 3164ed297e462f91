"""What a corpus build has to do: its settings, its sources, and the units of work that they are cut into.

    >>> plan = make_plan(["books/", "crawl/*.jsonl.gz"], CorpusSettings(), tokenizer)
    >>> len(plan.sources), len(plan.units), plan.units[0]
    (130, 77, (Piece(source=0, start=0, end=64000188),))

A unit is text of about `unit_megabytes`: a part of a big plain or parquet file, a whole compressed file, or several
small files. It becomes one shard of the corpus. Units depend on the files and settings alone, not on who builds them,
which is why any number of workers and machines gives the same shards, byte for byte.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion
from t5suite.data.corpora.documents import held_out_below, is_hub_name, list_sources, require_splitter, source_parts
from t5suite.data.corpora.readers import TextOptions, document_start, is_compressed, parquet_file, text_suffix
from t5suite.data.corpora.store import VERSION, tokenizer_fingerprint

# Shards are files, of which a reader has only some hundred mapped at a time: a huge corpus gets larger ones.
MAX_UNITS = 1024
UNPACKED_PER_PACKED = 3


@dataclass(frozen=True)
class CorpusSettings:
    """What decides the tokens of a corpus beside its sources and its tokenizer; wrong values raise ConfigError.

    Attributes:
      document_separator: what ends each document: 'none', 'eos', or a token of the vocabulary.
      split_sentences: the language whose rules tell sentences apart, such as 'en'; None leaves documents whole.
      max_documents: only so many documents, from the first source on.
      unit_megabytes: text of a unit of work, in 10**6 bytes.
    """

    text_column_name: str = "text"
    text_unit: str = "line"
    bad_lines: str = "error"
    validation_fraction: float = 0.01
    document_separator: str = "none"
    split_sentences: str | None = None
    max_documents: int | None = None
    unit_megabytes: float = 64.0

    def __post_init__(self):
        self.text_options()
        held_out_below(self.validation_fraction)
        if self.split_sentences:
            require_splitter()
        if self.max_documents is not None and self.max_documents < 1:
            raise ConfigError(f"--max_documents {self.max_documents}: must be at least 1")
        if not 0 < self.unit_megabytes < math.inf:
            raise ConfigError(f"--unit_megabytes {self.unit_megabytes}: must be more than 0")

    def text_options(self) -> TextOptions:
        """The settings that readers need."""
        return TextOptions(self.text_column_name, self.text_unit, self.bad_lines)


class Source(NamedTuple):
    """A file, its size in bytes and the time of its last change; or a data set of the hub, without both."""

    name: str
    size: int | None
    mtime_ns: int | None


class Piece(NamedTuple):
    """A part of a source by number: bytes, row groups or files, as `kept_documents` reads it."""

    source: int
    start: int
    end: int | None


@dataclass(frozen=True)
class CorpusPlan:
    """Sources, settings, and units of work in order."""

    sources: tuple[Source, ...]
    units: tuple[tuple[Piece, ...], ...]
    settings: CorpusSettings
    tokenizer: dict
    separator_id: int | None

    def described(self) -> dict:
        """What has to be equal for two builds to be the same one, as plain data."""
        return {
            "version": VERSION,
            "settings": asdict(self.settings),
            "tokenizer": self.tokenizer["fingerprint"],
            "sources": [[source.name, source.size] for source in self.sources],
            "num_units": len(self.units),
        }

    def fingerprint(self) -> str:
        """SHA-256 of `described`."""
        return hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()

    def shard_name(self, unit: int) -> str:
        """The folder of a unit's tokens.

        >>> plan.shard_name(3)
        'shard-00003-of-00077'
        """
        return f"shard-{unit:05d}-of-{len(self.units):05d}"


def make_plan(inputs, settings: CorpusSettings, tokenizer) -> CorpusPlan:
    """Lists the sources and cuts them into units; reads no more of them than is needed to find the cuts.

    Raises:
      ConfigError: a separator that the tokenizer does not have.
      DataError: a source is missing or of a kind that cannot be read.
    """
    sources = tuple(_source(name) for name in list_sources(inputs))
    total = sum(_unpacked_size(source) for source in sources)
    unit_bytes = max(int(settings.unit_megabytes * 10**6), math.ceil(total / MAX_UNITS), 1)
    described = {
        "name": tokenizer.name_or_path,
        "class": type(tokenizer).__name__,
        "fingerprint": tokenizer_fingerprint(tokenizer),
    }
    units = tuple(_units(sources, settings.text_unit, unit_bytes))
    return CorpusPlan(sources, units, settings, described, separator_id(settings.document_separator, tokenizer))


def separator_id(separator: str, tokenizer) -> int | None:
    """The id that ends each document.

    >>> separator_id("none", t5_tokenizer), separator_id("eos", t5_tokenizer)
    (None, 1)
    """
    if separator == "none":
        return None
    if separator == "eos":
        if tokenizer.eos_token_id is None:
            raise ConfigError(
                f"--document_separator eos: the tokenizer {tokenizer.name_or_path} has no end-of-sequence"
            )
        return tokenizer.eos_token_id
    vocabulary = tokenizer.get_vocab()
    if separator not in vocabulary:
        near = suggestion(separator, {"none", "eos", *tokenizer.all_special_tokens[:20]})
        raise ConfigError(f"--document_separator {separator!r}: not a token of {tokenizer.name_or_path}; {near}")
    return vocabulary[separator]


def _source(name: str) -> Source:
    if is_hub_name(name):
        return Source(name, None, None)
    status = Path(name).stat()
    return Source(name, status.st_size, status.st_mtime_ns)


def _unpacked_size(source: Source) -> int:
    """About the bytes of text in a source; 0 where it is not known."""
    return (source.size or 0) * (UNPACKED_PER_PACKED if is_compressed(source.name) else 1)


def _units(sources, text_unit: str, unit_bytes: int) -> Iterator[tuple[Piece, ...]]:
    """Neighbouring pieces together until they hold `unit_bytes`."""
    unit, held = [], 0
    for number, source in enumerate(sources):
        for piece, size in _pieces(number, source, text_unit, unit_bytes):
            if unit and held + size > unit_bytes:
                yield tuple(unit)
                unit, held = [], 0
            unit.append(piece)
            held += size
    if unit:
        yield tuple(unit)


def _pieces(number: int, source: Source, text_unit: str, unit_bytes: int) -> Iterator[tuple[Piece, int]]:
    """`(piece, about its bytes of text)` of a source."""
    if is_hub_name(source.name):
        yield from ((Piece(number, start, end), unit_bytes) for start, end in source_parts(source.name))
        return
    path = Path(source.name)
    is_parquet = text_suffix(path) == ".parquet"
    if is_compressed(path) or (text_unit == "file" and text_suffix(path) == ".txt"):
        yield Piece(number, 0, None), _unpacked_size(source)
    elif is_parquet:
        yield from _row_groups(number, path, unit_bytes)
    elif source.size <= unit_bytes:
        yield Piece(number, 0, None), source.size
    else:
        unit = text_unit if text_suffix(path) == ".txt" else "line"
        cuts = [document_start(path, offset, unit) for offset in range(0, source.size, unit_bytes)]
        cuts = sorted({*cuts, source.size})
        yield from ((Piece(number, start, end), end - start) for start, end in itertools.pairwise(cuts))


def _row_groups(number: int, path: Path, unit_bytes: int) -> Iterator[tuple[Piece, int]]:
    metadata = parquet_file(path).metadata
    start, held = 0, 0
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).total_byte_size
        if group > start and held + size > unit_bytes:
            yield Piece(number, start, group), held
            start, held = group, 0
        held += size
    yield Piece(number, start, max(metadata.num_row_groups, 1)), held
