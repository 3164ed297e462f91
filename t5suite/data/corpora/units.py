"""A corpus build cut into units of work, and the work of one unit: documents -> tokens -> a shard's files.

    >>> plan = make_plan(["books/", "crawl/*.jsonl.gz"], CorpusSettings(TextOptions()), tokenizer)
    >>> len(plan.sources), len(plan.units), plan.units[0]
    (130, 77, (Piece(source=0, start=0, end=64000188),))
    >>> build_unit(job, encoder)["splits"]["train"]
    {'documents': 2310, 'tokens': 1502211, 'bytes': 6210034, 'unk': 17}

A unit is text of about `unit_megabytes`: a part of a big plain or parquet file, a whole compressed file, or several
small files. Units depend on the files and settings alone, so any number of workers and machines gives the same
shards, byte for byte. A unit is finished if its `shard.json`, which is written last, matches its files.
Shape suffixes: D documents, S sentences (documents, where they are not split), N tokens of a batch.
"""

import concurrent.futures
import contextlib
import hashlib
import itertools
import json
import math
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.files import whole_file
from t5suite.base.lookup import suggestion
from t5suite.data.corpora.documents import (
    Tally,
    at_commit,
    commit_of_source,
    held_out_below,
    is_held_out,
    is_hub_name,
    kept_documents,
    list_sources,
    open_stream,
    place_of,
    split_sentences,
)
from t5suite.data.corpora.encoding import TextEncoder
from t5suite.data.corpora.readers import Document, TextOptions, document_start, is_compressed, parquet_file, text_suffix
from t5suite.data.corpora.store import SPLITS, VERSION, token_dtype, tokenizer_fingerprint
from t5suite.data.rows.jsonl import file_sha256
from t5suite.runs.directory import read_json, write_json

# Shards are mapped files, each of which costs a file descriptor; a process has 1024 by default.
MAX_UNITS = 256
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
        held_out_below(self.validation_fraction)
        if self.split_sentences:
            split_sentences("")  # raises if the splitter is not installed
        if not 0 < self.unit_megabytes < math.inf:
            raise ConfigError(f"--unit_megabytes {self.unit_megabytes}: must be more than 0")


class Source(NamedTuple):
    """A file, its size in bytes and the time of its last change; or a data set of the hub, with its commit instead."""

    name: str
    size: int | None
    mtime_ns: int | None
    commit: str | None = None

    @property
    def identity(self) -> list:
        """What must be equal for two builds to be the same."""
        return [self.name, self.size] if self.commit is None else [self.name, self.size, self.commit]


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
        """What must be equal for two builds to be the same, as plain data."""
        settings = asdict(self.settings)
        return {
            "version": VERSION,
            "settings": {**settings.pop("text"), **settings},
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
            read = {piece.source: self.sources[piece.source] for piece in pieces}
            sources = {number: at_commit(source.name, source.commit) for number, source in read.items()}
            folder = str(directory / self.shard_name(unit))
            jobs.append(UnitJob(folder, plan, sources, pieces, self.settings, self.separator_id))
        return jobs


def make_plan(inputs, settings: CorpusSettings, tokenizer) -> CorpusPlan:
    """Lists the sources and cuts them into units; reads no more of them than is needed to find the cuts."""
    sources = []
    for name in list_sources(inputs):
        if is_hub_name(name):
            sources.append(Source(name, None, None, commit_of_source(name)))
        else:
            status = Path(name).stat()
            sources.append(Source(name, status.st_size, status.st_mtime_ns))
    total = sum(_unpacked_size(source) for source in sources)
    unit_bytes = max(int(settings.unit_megabytes * 10**6), math.ceil(total / MAX_UNITS), 1)
    described = {"name": tokenizer.name_or_path, "class": type(tokenizer).__name__}
    described["fingerprint"] = tokenizer_fingerprint(tokenizer)
    units, held = [[]], 0  # neighbouring pieces together until they hold `unit_bytes`
    for number, source in enumerate(sources):
        for start, end, size in _cuts(source, settings.text.text_unit, unit_bytes):
            if units[-1] and held + size > unit_bytes:
                units.append([])
                held = 0
            units[-1].append(Piece(number, start, end))
            held += size
    separator, separator_id = settings.document_separator, None
    if separator != "none":
        vocabulary, token = tokenizer.get_vocab(), tokenizer.eos_token if separator == "eos" else separator
        if token not in vocabulary:
            near = suggestion(separator, {"none", "eos", *tokenizer.all_special_tokens[:20]})
            raise ConfigError(f"--document_separator {separator!r}: not a token of {tokenizer.name_or_path}; {near}")
        separator_id = vocabulary[token]
    return CorpusPlan(tuple(sources), tuple(map(tuple, units)), settings, described, separator_id)


def _unpacked_size(source: Source) -> int:
    """The approximate bytes of text in a source; 0 if unknown."""
    return (source.size or 0) * (UNPACKED_PER_PACKED if is_compressed(source.name) else 1)


def _cuts(source: Source, text_unit: str, unit_bytes: int) -> Iterator[tuple[int, int | None, int]]:
    """`(start, end, approximate bytes of text)` of each piece of a source."""
    if is_hub_name(source.name):
        yield from ((part, part + 1, unit_bytes) for part in range(open_stream(source.name).num_shards))
        return
    path = Path(source.name)
    suffix = text_suffix(path)
    if is_compressed(path) or (text_unit == "file" and suffix == ".txt"):
        yield 0, None, _unpacked_size(source)
    elif suffix == ".parquet":
        metadata, start, held = parquet_file(path).metadata, 0, 0
        for group in range(metadata.num_row_groups):
            size = metadata.row_group(group).total_byte_size
            if group > start and held + size > unit_bytes:
                yield start, group, held
                start, held = group, 0
            held += size
        yield start, max(metadata.num_row_groups, 1), held
    elif source.size <= unit_bytes:
        yield 0, None, source.size
    else:
        unit = text_unit if suffix == ".txt" else "line"
        places = {document_start(path, offset, unit) for offset in range(0, source.size, unit_bytes)}
        cuts = sorted({*places, source.size})
        yield from ((start, end, end - start) for start, end in itertools.pairwise(cuts))


# ---------------------------------------------------------------------------------------------------------------------
# One unit


FACTS = "shard.json"
DOCUMENTS_AT_ONCE = 1000
CHARACTERS_AT_ONCE = 10**7
CHECK_EVERY = 256
NO_TOKENS = "without tokens"


@dataclass(frozen=True)
class UnitJob:
    """A unit to build, as plain data that can be sent to another process; `plan` is a hash of what is built."""

    folder: str
    plan: str
    sources: dict[int, str]
    pieces: tuple[Piece, ...]
    settings: CorpusSettings
    separator_id: int | None


class _EnginesDiffer(Exception):
    """The fast encoder gave other ids than the tokenizer."""


def build_unit(job: UnitJob, encoder: TextEncoder) -> dict:
    """Writes the unit's shard and returns its facts.

    If the fast encoder differs from the tokenizer on a document, the tokenizer encodes the whole unit.
    """
    try:
        return _build(job, encoder)
    except _EnginesDiffer:
        return _build(job, encoder.by_reference())


def finished_unit(job: UnitJob) -> dict | None:
    """The facts of a unit that was already built completely, from the same plan; else None."""
    folder = Path(job.folder)
    if not (folder / FACTS).is_file():
        return None
    try:
        facts = read_json(folder / FACTS)
    except DataError:  # incomplete: rebuilt
        return None
    if facts["plan"] != job.plan:
        return None
    sizes = {name: (folder / name).stat().st_size for name in facts["files"] if (folder / name).is_file()}
    return facts if sizes == {name: file["size"] for name, file in facts["files"].items()} else None


def _build(job: UnitJob, encoder: TextEncoder) -> dict:
    folder, options = Path(job.folder), job.settings.text
    folder.mkdir(parents=True, exist_ok=True)
    encoding, sources = _Encoding(job, encoder), {}
    with contextlib.ExitStack() as stack:
        files = {split: stack.enter_context(_writing(folder / f"{split}.tokens.bin")) for split in SPLITS}
        splits = {split: _Split(file, encoder, bool(job.settings.split_sentences)) for split, file in files.items()}
        for piece in job.pieces:
            source = job.sources[piece.source]
            counts = sources.setdefault(str(piece.source), {"tally": Tally(), "tokens": 0})
            for batch in _batched(kept_documents(source, options, counts["tally"], piece.start, piece.end)):
                num_tokens, empty = _write(job, batch, encoding, splits)
                for number in empty:
                    counts["tally"].documents -= 1
                    counts["tally"].count(NO_TOKENS, place_of(source, batch[number].line, piece.start))
                counts["tokens"] += num_tokens
    for split, written in splits.items():
        for name, parts in written.starts.items():
            with _writing(folder / f"{split}.{name}.npy") as file:
                np.save(file, np.concatenate(parts).astype("<i8"), allow_pickle=False)
    paths = [folder / f"{split}.tokens.bin" for split in SPLITS]
    paths += [folder / f"{split}.{name}.npy" for split in SPLITS for name in splits[split].starts]
    facts = {
        "plan": job.plan,
        "engine": encoder.engine,
        "splits": {split: written.counts for split, written in splits.items()},
        "sources": {number: {**counts, "tally": asdict(counts["tally"])} for number, counts in sources.items()},
        "files": {path.name: {"size": path.stat().st_size, "sha256": file_sha256(path)} for path in paths},
    }
    write_json(folder / FACTS, facts)
    return facts


@contextlib.contextmanager
def _writing(path: Path):
    with whole_file(path) as temporary, temporary.open("wb") as file:
        yield file


class _Split:
    """What a shard has of one split: counts, where documents (and sentences) start, and the file of its tokens."""

    def __init__(self, file, encoder: TextEncoder, with_sentences: bool):
        self.starts = {name: [np.zeros(0, "<i8")] for name in ("documents", "sentences")[: 1 + with_sentences]}
        self.counts = dict.fromkeys(["documents", "tokens", "bytes", "unk", *self.starts], 0)
        self._file, self._unk_id, self._dtype = file, encoder.unk_id, token_dtype(encoder.vocabulary_size)

    def add(self, tokens_N, lengths_S, length_D, num_bytes: int) -> None:
        """Appends documents, of which `tokens_N` are all tokens."""
        for name, lengths in (("documents", length_D), ("sentences", lengths_S)):
            if name in self.starts:
                self.starts[name].append(self.counts["tokens"] + np.cumsum(lengths) - lengths)
                self.counts[name] += len(lengths)
        self._file.write(tokens_N.astype(self._dtype).tobytes())
        self.counts["tokens"] += len(tokens_N)
        self.counts["bytes"] += num_bytes
        self.counts["unk"] += int(np.count_nonzero(tokens_N == self._unk_id)) if self._unk_id is not None else 0


def _write(job: UnitJob, batch: list[Document], encoding: "_Encoding", splits: dict) -> tuple[int, list[int]]:
    """Encodes documents and hands each to its split; returns the number of tokens and the documents without any."""
    tokens_N, lengths_S, document_S = encoding.encode([document.text for document in batch])
    length_D = np.bincount(document_S, weights=lengths_S, minlength=len(batch)).astype(np.int64)
    bytes_D = np.array([len(document.text.encode("utf-8")) for document in batch])
    held_out_D = np.array([is_held_out(document.text, job.settings.validation_fraction) for document in batch])
    for split, chosen_D in (("train", ~held_out_D), ("validation", held_out_D)):
        chosen_D &= length_D > 0
        chosen_S = chosen_D[document_S]
        tokens = tokens_N[np.repeat(chosen_S, lengths_S)]
        splits[split].add(tokens, lengths_S[chosen_S], length_D[chosen_D], int(bytes_D[chosen_D].sum()))
    return len(tokens_N), np.flatnonzero(length_D == 0).tolist()


def _batched(documents: Iterator[Document]) -> Iterator[list[Document]]:
    batch, characters = [], 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if len(batch) == DOCUMENTS_AT_ONCE or characters >= CHARACTERS_AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class _Encoding:
    """Encodes a unit's documents and compares the engines every CHECK_EVERY texts."""

    def __init__(self, job: UnitJob, encoder: TextEncoder):
        self.encoder, self.separator_id = encoder, job.separator_id
        self.language = job.settings.split_sentences
        self._num_texts = 0
        self._is_control_V = np.zeros(encoder.vocabulary_size, dtype=bool)
        self._is_control_V[list(encoder.control_ids)] = True

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`(tokens_N, lengths_S, document_S)`: the ids, the number of tokens of each sentence, and its document."""
        parts = [split_sentences(text, self.language) if self.language else [text] for text in texts]
        document_S = np.repeat(np.arange(len(texts)), [len(part) for part in parts])
        tokens_N, lengths_S = self._checked([sentence for part in parts for sentence in part])
        control_N = self._is_control_V[tokens_N]
        if control_N.any():
            sentence_N = np.repeat(np.arange(len(lengths_S)), lengths_S)
            lengths_S = np.bincount(sentence_N[~control_N], minlength=len(lengths_S))
            tokens_N = tokens_N[~control_N]
        document_S, lengths_S = document_S[lengths_S > 0], lengths_S[lengths_S > 0]
        if self.separator_id is not None and len(document_S):
            is_last_S = np.append(np.diff(document_S) > 0, True)
            tokens_N = np.insert(tokens_N, np.cumsum(lengths_S)[is_last_S], self.separator_id)
            lengths_S = lengths_S + is_last_S
        return tokens_N, lengths_S, document_S

    def _checked(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        tokens_N, offsets = self.encoder.encode_flat(texts)
        if self.encoder.engine == "sentencepiece":
            chosen = range(-self._num_texts % CHECK_EVERY, len(texts), CHECK_EVERY)
            found = [tokens_N[offsets[i] : offsets[i + 1]].tolist() for i in chosen]
            if self.encoder.reference([texts[i] for i in chosen]) != found:
                raise _EnginesDiffer
            self._num_texts += len(texts)
        return tokens_N, np.diff(offsets)


# ---------------------------------------------------------------------------------------------------------------------
# Units of a corpus build, done in this process or by several others.
#
# Workers are spawned: a process with threads, as tokenizers and torch have, cannot be forked safely. They load neither
# torch nor transformers, because the encoder is plain data.


_encoder = None


def run_jobs(jobs: dict[int, UnitJob], encoder: TextEncoder, num_workers: int) -> Iterator[tuple[int, dict]]:
    """`(unit, facts)` of each job as it finishes; after an error, units in progress are finished first."""
    if num_workers == 1 or len(jobs) <= 1:
        yield from ((unit, build_unit(job, encoder)) for unit, job in jobs.items())
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        min(num_workers, len(jobs)), multiprocessing.get_context("spawn"), _start_worker, (encoder,)
    )
    try:
        futures = {pool.submit(_work, job): unit for unit, job in jobs.items()}
        for future in concurrent.futures.as_completed(futures):
            yield futures[future], future.result()
    except BrokenProcessPool:
        raise DataError(
            "a worker was killed, perhaps for lack of memory: lower --num_workers; the same command resumes after the "
            "finished units"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(encoder: TextEncoder) -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = encoder
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """Ends a worker whose parent was killed: it would wait for jobs forever."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _work(job: UnitJob) -> dict:
    return build_unit(job, _encoder)
