"""One part of an adopted file: its tokens are checked and hashed, its documents sorted into splits; nothing is copied.

    >>> adopt_part(job)["splits"]["train"]
    {'documents': 2287, 'tokens': 1502211, 'unk': 17, 'runs': 24}

A part is finished if its `shard.json`, which is written last, matches its files. Shape suffixes: N tokens of a batch of
documents, D documents, R runs of documents that stand in the file one after the other and are of one split.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import DataError
from t5suite.base.files import file_sha256, whole_file, write_json
from t5suite.contrib.token_files.folders import TokenFile
from t5suite.data.corpora.held_out import are_held_out
from t5suite.data.corpora.store import SPLITS
from t5suite.data.corpora.units import FACTS

TOKENS_AT_ONCE = 2**22
DTYPES = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


class TokenRules(NamedTuple):
    """What the ids of a corpus must be, by its tokenizer.

    Attributes:
      end_id, end_token: what ends every document.
      unk_id, control_ids: the id of unknown text, and those of special tokens and sentinels, which text that spelt one
        has given (`encoding.unknown_id`, `control_ids`).
    """

    tokenizer_name: str
    vocabulary_size: int
    end_id: int
    end_token: str
    unk_id: int | None
    control_ids: tuple[int, ...]


@dataclass(frozen=True)
class PartJob:
    """Documents of a file to adopt, as plain data that can be sent to another process; `plan` is a hash of it."""

    folder: str
    plan: str
    file: TokenFile
    first: int
    last: int
    rules: TokenRules
    validation_fraction: float


class _Batch(NamedTuple):
    """Documents: the number of the first in the file, their ids, and where each starts among these, with the end."""

    first: int
    ids_N: np.ndarray
    boundaries_D: np.ndarray


def adopt_part(job: PartJob) -> dict:
    """Checks the part, writes where its documents are, and returns its facts.

    Raises:
      DataError: the file is cut off, an id is not in the vocabulary, a document is not ended by the tokenizer's end.
    """
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    boundaries_D = job.file.boundaries(job.first, job.last)
    _check_boundaries(job, boundaries_D)
    findings = _Findings(job.rules, job.validation_fraction)
    for batch in _batches(job, boundaries_D):
        _check_vocabulary(job, batch)
        _check_ends(job, batch)
        findings.add(batch)
    held_out_D = np.concatenate(findings.held_out)
    splits = {}
    paths = []
    for split, chosen_D in zip(SPLITS, (~held_out_D, held_out_D), strict=True):
        documents_D, runs_2R = _places_of_split(boundaries_D, chosen_D)
        for name, places in (("documents", documents_D), ("runs", runs_2R)):
            paths.append(folder / f"{split}.{name}.npy")
            _save(paths[-1], places)
        splits[split] = {
            "documents": len(documents_D),
            "tokens": int(np.diff(boundaries_D)[chosen_D].sum()),
            "unk": findings.unknown[split],
            "runs": runs_2R.shape[1],
        }
    facts = {
        "plan": job.plan,
        "splits": splits,
        "files": {path.name: {"size": path.stat().st_size, "sha256": file_sha256(path)} for path in paths},
        "token_file": job.file.name,
        "start": int(boundaries_D[0]),
        "tokens": int(boundaries_D[-1] - boundaries_D[0]),
        "sha256": findings.digest.hexdigest(),
        "control_tokens": findings.control_tokens,
        "first_control_token": findings.first_control_token,
    }
    write_json(folder / FACTS, facts)
    return facts


class _Findings:
    """What a part's tokens are: their SHA-256, which documents are held out, and tokens that are not text.

    Attributes:
      held_out: for each batch, which of its documents are held out.
      unknown: the number of unknown tokens of each split.
      control_tokens, first_control_token: how many stand inside documents, and `(document, id)` of the first.
    """

    def __init__(self, rules: TokenRules, validation_fraction: float):
        self.digest = hashlib.sha256()
        self.held_out = []
        self.unknown = dict.fromkeys(SPLITS, 0)
        self.control_tokens = 0
        self.first_control_token = None
        self._rules = rules
        self._validation_fraction = validation_fraction
        self._is_control_V = np.zeros(rules.vocabulary_size, dtype=bool)
        self._is_control_V[list(rules.control_ids)] = True

    def add(self, batch: _Batch) -> None:
        """The next documents, which are known to be ids of the vocabulary and to be ended."""
        self.digest.update(batch.ids_N)
        held_out_D = are_held_out(batch.ids_N, batch.boundaries_D, self._validation_fraction)
        self.held_out.append(held_out_D)
        self._count_unknown(batch, held_out_D)
        self._count_controls(batch)

    def _count_unknown(self, batch: _Batch, held_out_D: np.ndarray) -> None:
        positions = np.flatnonzero(batch.ids_N == self._rules.unk_id) if self._rules.unk_id is not None else []
        held_out = int(np.count_nonzero(held_out_D[_documents_of(batch, positions)]))
        self.unknown["validation"] += held_out
        self.unknown["train"] += len(positions) - held_out

    def _count_controls(self, batch: _Batch) -> None:
        is_control_N = self._is_control_V[batch.ids_N]
        is_control_N[batch.boundaries_D[1:] - 1] = False
        positions = np.flatnonzero(is_control_N)
        if positions.size and self.first_control_token is None:
            document = int(_documents_of(batch, positions[:1])[0])
            self.first_control_token = [batch.first + document, int(batch.ids_N[positions[0]])]
        self.control_tokens += len(positions)


def _documents_of(batch: _Batch, positions) -> np.ndarray:
    """The documents, from the batch's first, that tokens belong to."""
    return np.searchsorted(batch.boundaries_D, positions, side="right") - 1


def _places_of_split(boundaries_D: np.ndarray, chosen_D: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where a split's documents start in its own row, and its runs: [2, R], their starts in the row and in the file.

    >>> _places_of_split(np.array([10, 13, 18, 20]), np.array([True, False, True]))
    (array([0, 3]), array([[ 0,  3], [10, 18]]))
    """
    lengths_D = np.diff(boundaries_D)[chosen_D]
    documents_D = np.cumsum(lengths_D) - lengths_D
    starts_run_D = chosen_D & ~np.concatenate([[False], chosen_D[:-1]])
    runs_2R = np.stack([documents_D[starts_run_D[chosen_D]], boundaries_D[:-1][starts_run_D]])
    return documents_D, runs_2R


def _save(path: Path, array: np.ndarray) -> None:
    with whole_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, array.astype("<i8"), allow_pickle=False)


def _check_boundaries(job: PartJob, boundaries_D: np.ndarray) -> None:
    """Refuses an index whose documents end before they start, or behind the file's end."""
    wrong_D = np.flatnonzero(np.diff(boundaries_D) < 0)
    if wrong_D.size:
        document = int(wrong_D[0])
        raise DataError(
            f"{job.file.index_path}: document {job.first + document} (from 0) starts at token {boundaries_D[document]} "
            f"and ends at {boundaries_D[document + 1]}; it is damaged, or not the index of {job.file.name}"
        )


def _batches(job: PartJob, boundaries_D: np.ndarray) -> Iterator[_Batch]:
    """The part's documents, whole ones of about TOKENS_AT_ONCE at a time."""
    dtype = DTYPES[job.file.id_bytes]
    document = 0
    with open(job.file.path, "rb") as file:
        file.seek(int(boundaries_D[0]) * job.file.id_bytes)
        while document < len(boundaries_D) - 1:
            start = boundaries_D[document]
            end = int(np.searchsorted(boundaries_D, start + TOKENS_AT_ONCE, side="right")) - 1
            end = max(end, document + 1)
            count = int(boundaries_D[end] - start)
            ids_N = np.fromfile(file, dtype, count)
            if len(ids_N) < count:
                raise DataError(f"{job.file.path}: ends within document {job.first + end - 1} (from 0); it is cut off")
            yield _Batch(job.first + document, ids_N, boundaries_D[document : end + 1] - start)
            document = end


def _check_vocabulary(job: PartJob, batch: _Batch) -> None:
    """Checks that every id is below the tokenizer's number of ids."""
    rules = job.rules
    if not batch.ids_N.size or int(batch.ids_N.max()) < rules.vocabulary_size:
        return
    position = int(np.argmax(batch.ids_N >= rules.vocabulary_size))
    document = batch.first + int(_documents_of(batch, [position])[0])
    raise DataError(
        f"{job.file.path}: document {document} (from 0) has the id {batch.ids_N[position]}, and {rules.tokenizer_name} "
        f"has {rules.vocabulary_size} ids; give the --tokenizer_name that the file was written with"
    )


def _check_ends(job: PartJob, batch: _Batch) -> None:
    """Checks that the tokenizer's end token ends every document."""
    rules = job.rules
    for document in np.flatnonzero(np.diff(batch.boundaries_D) == 0)[:1]:
        raise DataError(
            f"{job.file.path}: document {batch.first + document} (from 0) has no tokens, not even {rules.end_token}, "
            f"the end of {rules.tokenizer_name}; {_how_to_end(rules)}"
        )
    last_ids_D = batch.ids_N[batch.boundaries_D[1:] - 1]
    for document in np.flatnonzero(last_ids_D != rules.end_id)[:1]:
        raise DataError(
            f"{job.file.path}: document {batch.first + document} (from 0) ends with the id {last_ids_D[document]}, not "
            f"with {rules.end_token} ({rules.end_id}), the end of {rules.tokenizer_name}; {_how_to_end(rules)}"
        )


def _how_to_end(rules: TokenRules) -> str:
    return (
        f"write the file with it (datatrove: eos_token={rules.end_token!r}, without shuffle_chunk_size, which cuts "
        "documents; Megatron: --append-eod)"
    )
