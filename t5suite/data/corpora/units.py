"""One unit of a corpus build: its documents -> tokens -> a shard's files.

    >>> build_unit(job, encoder)["splits"]["train"]
    {'documents': 2310, 'tokens': 1502211, 'bytes': 6210034, 'unk': 17}

The files come out the same, byte for byte, whoever builds them and however often: a finished unit is one whose
`shard.json`, which is written last, fits its files.
Shape suffixes: D documents, S sentences (documents, where they are not split), N tokens of a batch.
"""

import concurrent.futures
import itertools
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from t5suite.base.errors import DataError
from t5suite.base.files import sync_file
from t5suite.data.corpora.documents import Tally, document_hash, kept_documents, place_of, split_sentences
from t5suite.data.corpora.encoding import TextEncoder
from t5suite.data.corpora.plans import CorpusSettings, Piece
from t5suite.data.corpora.readers import Document
from t5suite.data.corpora.store import SPLITS, token_dtype
from t5suite.data.rows.jsonl import file_sha256
from t5suite.runs.directory import read_json, write_json

FACTS = "shard.json"
DOCUMENTS_AT_ONCE = 1000
CHARACTERS_AT_ONCE = 10**7
CHECK_EVERY = 256
NO_TOKENS = "without tokens"


@dataclass(frozen=True)
class UnitJob:
    """A unit to build, as plain data that can be sent to another process.

    Attributes:
      sources: the sources' names, by the pieces' numbers.
      held_out_below: documents whose hash is lower go to the validation split.
      limit: only so many documents.
    """

    folder: str
    plan: str
    sources: dict[int, str]
    pieces: tuple[Piece, ...]
    settings: CorpusSettings
    separator_id: int | None
    held_out_below: int
    limit: int | None = None


class _EnginesDiffer(Exception):
    """The fast encoder gave other ids than the tokenizer."""


def build_unit(job: UnitJob, encoder: TextEncoder) -> dict:
    """Writes the unit's shard and returns its facts.

    Where a document is found on which the fast encoder differs from the tokenizer, the whole unit is encoded by the
    tokenizer.

    Raises:
      DataError: a bad line (with `bad_lines="error"`), a torn file.
    """
    try:
        return _build(job, encoder)
    except _EnginesDiffer:
        return _build(job, encoder.by_reference())


def finished_unit(job: UnitJob) -> dict | None:
    """The facts of a unit that was built before, from the same plan and wholly; else None."""
    folder = Path(job.folder)
    if not (folder / FACTS).is_file():
        return None
    try:
        facts = read_json(folder / FACTS)
    except DataError:  # half written: built again
        return None
    if [facts["plan"], facts["held_out_below"], facts["limit"]] != [job.plan, f"{job.held_out_below:x}", job.limit]:
        return None
    sizes = {name: (folder / name).stat().st_size for name in facts["files"] if (folder / name).is_file()}
    return facts if sizes == {name: file["size"] for name, file in facts["files"].items()} else None


def _build(job: UnitJob, encoder: TextEncoder) -> dict:
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    writers = {split: _SplitWriter(folder, split, encoder, bool(job.settings.split_sentences)) for split in SPLITS}
    batches = _Encoding(job, encoder)
    try:
        sources = {}
        for piece in job.pieces:
            counts = sources.setdefault(piece.source, {"tally": Tally(), "tokens": 0, "read": 0})
            num_read, num_tokens = _write_piece(job, piece, counts["tally"], batches, writers)
            counts["read"] += num_read
            counts["tokens"] += num_tokens
        files = {name: facts for writer in writers.values() for name, facts in writer.finish().items()}
    finally:
        for writer in writers.values():
            writer.remove_temporary()
    facts = {
        "plan": job.plan,
        "held_out_below": f"{job.held_out_below:x}",
        "limit": job.limit,
        "engine": encoder.engine,
        "control_tokens_dropped": batches.num_dropped,
        "splits": {split: writer.counts for split, writer in writers.items()},
        "sources": {str(number): {**asdict(counts.pop("tally")), **counts} for number, counts in sources.items()},
        "files": files,
    }
    write_json(folder / FACTS, facts)
    return facts


def _write_piece(job, piece: Piece, tally: Tally, batches: "_Encoding", writers: dict) -> tuple[int, int]:
    """Encodes a piece's documents and hands each to its split; returns the numbers of documents read and of tokens."""
    source, num_read, num_tokens = job.sources[piece.source], 0, 0
    documents = kept_documents(source, job.settings.text_options(), tally, piece.start, piece.end)
    for batch in _batched(itertools.islice(documents, batches.remaining)):
        tokens_N, lengths_S, document_S = batches.encode([document.text for document in batch])
        length_D = np.bincount(document_S, weights=lengths_S, minlength=len(batch)).astype(np.int64)
        for empty in np.flatnonzero(length_D == 0):
            tally.documents -= 1
            tally.count(NO_TOKENS, place_of(source, batch[empty].line, piece.start))
        hash_D = np.array([document_hash(document.text) for document in batch], dtype=np.uint64)
        held_out_D = np.array([int(value) < job.held_out_below for value in hash_D])
        for split, chosen_D in (("train", ~held_out_D), ("validation", held_out_D)):
            chosen_D &= length_D > 0
            writers[split].add(
                tokens_N[np.repeat(chosen_D[document_S], lengths_S)],
                lengths_S[chosen_D[document_S]],
                length_D[chosen_D],
                hash_D[chosen_D],
                sum(_num_bytes(document.text) for document, chosen in zip(batch, chosen_D, strict=True) if chosen),
            )
        num_read += len(batch)
        num_tokens += len(tokens_N)
    return num_read, num_tokens


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8"))


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
    """Encodes a unit's documents, compares the engines now and then, and counts."""

    def __init__(self, job: UnitJob, encoder: TextEncoder):
        self.encoder = encoder
        self.separator_id = job.separator_id
        self.language = job.settings.split_sentences
        self.remaining = job.limit
        self.num_dropped = 0
        self._num_texts = 0
        self._is_control_V = np.zeros(encoder.vocabulary_size, dtype=bool)
        self._is_control_V[list(encoder.control_ids)] = True

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`(tokens_N, lengths_S, document_S)`: the ids, the tokens of each sentence, and the document it is of."""
        if self.remaining is not None:
            self.remaining -= len(texts)
        parts = [split_sentences(text, self.language) if self.language else [text] for text in texts]
        document_S = np.repeat(np.arange(len(texts)), [len(part) for part in parts])
        tokens_N, offsets = self._checked([sentence for part in parts for sentence in part])
        tokens_N, lengths_S = self._without_controls(tokens_N, np.diff(offsets))
        document_S, lengths_S = document_S[lengths_S > 0], lengths_S[lengths_S > 0]
        return self._with_separators(tokens_N, lengths_S, document_S)

    def _checked(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        tokens_N, offsets = self.encoder.encode_flat(texts)
        if self.encoder.engine == "sentencepiece":
            chosen = range(-self._num_texts % CHECK_EVERY, len(texts), CHECK_EVERY)
            found = [tokens_N[offsets[i] : offsets[i + 1]].tolist() for i in chosen]
            if self.encoder.reference([texts[i] for i in chosen]) != found:
                raise _EnginesDiffer
            self._num_texts += len(texts)
        return tokens_N, offsets

    def _without_controls(self, tokens_N, lengths_S):
        control_N = self._is_control_V[tokens_N]
        if not control_N.any():
            return tokens_N, lengths_S
        self.num_dropped += int(control_N.sum())
        sentence_N = np.repeat(np.arange(len(lengths_S)), lengths_S)
        return tokens_N[~control_N], np.bincount(sentence_N[~control_N], minlength=len(lengths_S))

    def _with_separators(self, tokens_N, lengths_S, document_S):
        if self.separator_id is None or not len(document_S):
            return tokens_N, lengths_S, document_S
        is_last_S = np.append(np.diff(document_S) > 0, True)
        tokens_N = np.insert(tokens_N, np.cumsum(lengths_S)[is_last_S], self.separator_id)
        return tokens_N, lengths_S + is_last_S, document_S


class _SplitWriter:
    """Writes one split's files of a shard, each through a temporary sibling."""

    def __init__(self, folder: Path, split: str, encoder: TextEncoder, with_sentences: bool):
        self.counts = {"documents": 0, "tokens": 0, "bytes": 0, "unk": 0}
        self._folder = folder
        self._split = split
        self._unk_id = encoder.unk_id
        self._dtype = token_dtype(encoder.vocabulary_size)
        self._starts = {"documents": [], **({"sentences": []} if with_sentences else {})}
        self._hashes = []
        self._temporaries = []
        self._file = self._temporary("tokens.bin").open("wb")

    def add(self, tokens_N, lengths_S, length_D, hash_D, num_bytes: int) -> None:
        """Appends documents, of which `tokens_N` are all tokens."""
        for name, lengths in (("documents", length_D), ("sentences", lengths_S)):
            if name in self._starts:
                self._starts[name].append(self.counts["tokens"] + np.cumsum(lengths) - lengths)
        self._hashes.append(hash_D)
        self._file.write(tokens_N.astype(self._dtype).tobytes())
        self.counts["documents"] += len(length_D)
        self.counts["tokens"] += len(tokens_N)
        self.counts["bytes"] += num_bytes
        self.counts["unk"] += int(np.count_nonzero(tokens_N == self._unk_id)) if self._unk_id is not None else 0
        if "sentences" in self._starts:
            self.counts["sentences"] = self.counts.get("sentences", 0) + len(lengths_S)

    def finish(self) -> dict[str, dict]:
        """Gives the files their names; returns each one's size and SHA-256."""
        self._file.close()
        arrays = {name: _joined(parts, "<i8") for name, parts in self._starts.items()}
        arrays["hashes"] = _joined(self._hashes, "<u8")
        for name, array in arrays.items():
            with self._temporary(f"{name}.npy").open("wb") as file:
                np.save(file, array, allow_pickle=False)
        facts = {}
        for temporary, name in self._temporaries:
            facts[name] = {"size": temporary.stat().st_size, "sha256": file_sha256(temporary)}
            sync_file(temporary)
            os.replace(temporary, self._folder / name)
        return facts

    def remove_temporary(self) -> None:
        """Removes what a failure left half written."""
        self._file.close()
        for temporary, _ in self._temporaries:
            temporary.unlink(missing_ok=True)

    def _temporary(self, ending: str) -> Path:
        name = f"{self._split}.{ending}"
        temporary = self._folder / f".{name}.{os.getpid()}.partial"
        self._temporaries.append((temporary, name))
        return temporary


def _joined(parts: list[np.ndarray], dtype: str) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=dtype), *parts]).astype(dtype)


# ---------------------------------------------------------------------------------------------------------------------
# Units of a corpus build, done in this process or by several others.
#
# Workers are started afresh (spawned): a process that has threads, as tokenizers and torch do, cannot be forked safely.
# They load no torch and no transformers, for the encoder comes as plain data.


_encoder = None


def run_jobs(jobs: dict[int, UnitJob], encoder: TextEncoder, num_workers: int) -> Iterator[tuple[int, dict]]:
    """`(unit, facts)` of each job as it is finished.

    Raises:
      DataError: what a unit's text is wrong with; units that are under way are finished first. A worker was killed.
    """
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
            "a worker was killed, perhaps for want of memory: give fewer --num_workers; the same command goes on from "
            "the units that are finished"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(encoder: TextEncoder) -> None:
    global _encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    _encoder = encoder
    threading.Thread(target=_end_with_the_parent, daemon=True).start()


def _end_with_the_parent() -> None:
    """A pool's workers wait for jobs for ever, even when the process that would send some was killed."""
    multiprocessing.connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _work(job: UnitJob) -> dict:
    return build_unit(job, _encoder)
