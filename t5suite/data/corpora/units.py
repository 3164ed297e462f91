"""One unit of a corpus build (`corpus_plan`): documents -> tokens -> a shard's files.

    >>> build_unit(job, encoder)["splits"]["train"]
    {'documents': 2310, 'tokens': 1502211, 'bytes': 6210034, 'unk': 17}

A unit is finished if its `shard.json`, which is written last, matches its files.
Shape suffixes: D documents, S sentences (documents, where they are not split), N tokens of a batch.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import DataError
from t5suite.base.files import file_sha256, read_json, whole_file, write_json
from t5suite.data.corpora.corpus_plan import UnitJob
from t5suite.data.corpora.documents import documents_with_text, place_of
from t5suite.data.corpora.encoding import TextEncoder
from t5suite.data.corpora.held_out import is_held_out
from t5suite.data.corpora.readers import Document
from t5suite.data.corpora.sentences import split_sentences
from t5suite.data.corpora.store import SPLITS, token_dtype
from t5suite.data.corpora.tally import EMPTY, Tally

FACTS = "shard.json"
DOCUMENTS_AT_ONCE = 1000
CHARACTERS_AT_ONCE = 10**7
CHECK_EVERY = 256
NO_TOKENS = "without tokens"


class _EnginesDiffer(Exception):
    """The fast encoder gave other ids than the tokenizer."""


def build_unit(job: UnitJob, encoder: TextEncoder) -> dict:
    """Writes the unit's shard and returns its facts.

    If the fast encoder differs from the tokenizer on a document, the tokenizer encodes the whole unit.
    """
    try:
        return _build(job, encoder, _inputs_of(job))
    except _EnginesDiffer:
        return _build(job, encoder.by_reference(), _inputs_of(job))


def build_unit_of(texts: Iterable[str], job: UnitJob, encoder: TextEncoder) -> dict:
    """As `build_unit`, of texts that can be read only once: the tokenizer itself encodes them."""
    ((source, name),) = job.sources.items()
    (Path(job.folder) / FACTS).unlink(missing_ok=True)  # of an earlier attempt: the shard is not finished now
    return _build(job, encoder.by_reference(), [_Input(source, name, 0, functools.partial(_numbered, texts, name))])


class _Input(NamedTuple):
    """What a unit reads of one source: its number and name, and its documents, which are counted as they are read."""

    source: int
    name: str
    start: int
    documents: Callable[[Tally], Iterator[Document]]


def _inputs_of(job: UnitJob) -> Iterator[_Input]:
    """The pieces of files and data sets that the job names."""
    for piece in job.pieces:
        name = job.sources[piece.source]
        documents = functools.partial(documents_with_text, name, job.settings.text, start=piece.start, end=piece.end)
        yield _Input(piece.source, name, piece.start, documents)


def _numbered(texts: Iterable[str], name: str, tally: Tally) -> Iterator[Document]:
    """The documents that have text, numbered from 1 as lines are; others are counted."""
    for number, text in enumerate(texts, start=1):
        if not text or text.isspace():
            tally.count(EMPTY, place_of(name, number))
        else:
            tally.documents += 1
            yield Document(text, number)


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
    for name, file in facts["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != file["size"]:
            return None
    return facts


def _build(job: UnitJob, encoder: TextEncoder, inputs: Iterable[_Input]) -> dict:
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    encoding = _Encoding(job, encoder)
    counts_by_source = {}
    paths = [folder / f"{split}.tokens.bin" for split in SPLITS]
    with contextlib.ExitStack() as stack:
        splits = {}
        for split, path in zip(SPLITS, paths, strict=True):
            file = stack.enter_context(_writing(path))
            splits[split] = _Split(file, encoder, with_sentences=bool(job.settings.split_sentences))
        for read_input in inputs:
            counts = counts_by_source.setdefault(str(read_input.source), _SourceCounts())
            _write_input(job, read_input, encoding, splits, counts)
    for split, written_split in splits.items():
        for name, parts in written_split.starts.items():
            path = folder / f"{split}.{name}.npy"
            with _writing(path) as file:
                np.save(file, np.concatenate(parts).astype("<i8"), allow_pickle=False)
            paths.append(path)
    facts = {
        "plan": job.plan,
        "engine": encoder.engine,
        "splits": {split: written_split.counts for split, written_split in splits.items()},
        "sources": {number: asdict(counts) for number, counts in counts_by_source.items()},
        "files": {path.name: {"size": path.stat().st_size, "sha256": file_sha256(path)} for path in paths},
    }
    write_json(folder / FACTS, facts)
    return facts


@dataclass
class _SourceCounts:
    """What a unit has read of one source."""

    tally: Tally = field(default_factory=Tally)
    tokens: int = 0


@contextlib.contextmanager
def _writing(path: Path):
    with whole_file(path) as temporary, temporary.open("wb") as file:
        yield file


class _Split:
    """What a shard has of one split: counts, where documents (and sentences) start, and the file of its tokens."""

    def __init__(self, file, encoder: TextEncoder, with_sentences: bool):
        names = ("documents", "sentences") if with_sentences else ("documents",)
        self.starts = {name: [np.zeros(0, "<i8")] for name in names}
        self.counts = dict.fromkeys(["documents", "tokens", "bytes", "unk", *names], 0)
        self._file = file
        self._unk_id = encoder.unk_id
        self._dtype = token_dtype(encoder.vocabulary_size)

    def add(self, tokens_N, lengths_S, length_D, num_bytes: int) -> None:
        """Appends documents, of which `tokens_N` are all tokens."""
        for name, lengths in (("documents", length_D), ("sentences", lengths_S)):
            if name in self.starts:
                self.starts[name].append(self.counts["tokens"] + np.cumsum(lengths) - lengths)
                self.counts[name] += len(lengths)
        self._file.write(tokens_N.astype(self._dtype).tobytes())
        self.counts["tokens"] += len(tokens_N)
        self.counts["bytes"] += num_bytes
        if self._unk_id is not None:
            self.counts["unk"] += int(np.count_nonzero(tokens_N == self._unk_id))


def _write_input(job: UnitJob, read_input: _Input, encoding: "_Encoding", splits: dict, counts: _SourceCounts) -> None:
    """Encodes the documents of an input and counts them; one without tokens counts as skipped."""
    for batch in _batched(read_input.documents(counts.tally)):
        num_tokens, empty_documents = _write(job, batch, encoding, splits)
        counts.tokens += num_tokens
        for number in empty_documents:
            counts.tally.documents -= 1
            counts.tally.count(NO_TOKENS, place_of(read_input.name, batch[number].line, read_input.start))


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
    batch = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if len(batch) == DOCUMENTS_AT_ONCE or characters >= CHARACTERS_AT_ONCE:
            yield batch
            batch = []
            characters = 0
    if batch:
        yield batch


class _Encoding:
    """Encodes a unit's documents and compares the engines every CHECK_EVERY texts."""

    def __init__(self, job: UnitJob, encoder: TextEncoder):
        self.encoder = encoder
        self.separator_id = job.separator_id
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
        has_tokens_S = lengths_S > 0
        document_S = document_S[has_tokens_S]
        lengths_S = lengths_S[has_tokens_S]
        if self.separator_id is not None and len(document_S):
            is_last_S = np.append(np.diff(document_S) > 0, True)
            tokens_N = np.insert(tokens_N, np.cumsum(lengths_S)[is_last_S], self.separator_id)
            lengths_S = lengths_S + is_last_S
        return tokens_N, lengths_S, document_S

    def _checked(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        tokens_N, offsets = self.encoder.encode_flat(texts)
        if self.encoder.engine == "sentencepiece":
            compared = range(-self._num_texts % CHECK_EVERY, len(texts), CHECK_EVERY)
            ids_of_compared = [tokens_N[offsets[i] : offsets[i + 1]].tolist() for i in compared]
            if self.encoder.reference([texts[i] for i in compared]) != ids_of_compared:
                raise _EnginesDiffer
            self._num_texts += len(texts)
        return tokens_N, np.diff(offsets)
