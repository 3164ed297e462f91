"""Token files of other tools -> a corpus, without copying tokens.

    >>> store = adopt_corpus("tokenized", tokenizer, AdoptionSettings(num_workers=8))
    >>> len(store.split("train"))
    61203311

The tokens stay where they are (`folders`). Their files are cut into parts of whole documents, each of which becomes
a shard (`parts`): where the documents of each split are in the file, and the SHA-256 of the part's bytes, which
training compares only if the file has changed since. A killed adoption resumes after the finished parts.
"""

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import AnotherCorpusError, ChangedDataError, ConfigError, DataError
from t5suite.base.files import read_json, write_json
from t5suite.base.provenance import versions
from t5suite.contrib.token_files.folders import TokenFile, list_token_files
from t5suite.contrib.token_files.parts import DTYPES, PartJob, TokenRules, adopt_part
from t5suite.data.corpora.building import LOCK, BuildProgress, check_work, corpus_lock, summed
from t5suite.data.corpora.corpus_plan import tokenizer_facts
from t5suite.data.corpora.encoding import control_ids, unknown_id
from t5suite.data.corpora.held_out import held_out_below
from t5suite.data.corpora.store import CHECKED, FORMAT, MANIFEST, SPLITS, VERSION, TokenStore
from t5suite.data.corpora.unit_workers import run_jobs
from t5suite.data.corpora.units import finished_unit


@dataclass(frozen=True)
class AdoptionSettings:
    """How token files become a corpus; wrong values raise ConfigError.

    Attributes:
      validation_fraction: the share of documents that is held out, by the hash of their ids.
      unit_megabytes: tokens of a part, in 10**6 bytes.
      num_workers: processes.
    """

    validation_fraction: float = 0.01
    unit_megabytes: float = 1000.0
    num_workers: int = 1

    def __post_init__(self):
        held_out_below(self.validation_fraction)
        check_work(self.num_workers, None)
        if not self.unit_megabytes > 0:
            raise ConfigError(f"--unit_megabytes {self.unit_megabytes}: must be more than 0")


class _FileState(NamedTuple):
    """A file's size, and when its content or its place last changed."""

    size: int
    ctime_ns: int


class _Adoption(NamedTuple):
    """What is adopted: the folder of tokens, their files, and the rules of their tokenizer."""

    folder: Path
    form: str
    files: list[TokenFile]
    states: list[_FileState]
    tokenizer: dict
    rules: TokenRules
    settings: AdoptionSettings

    def described(self) -> dict:
        """What must be equal for two adoptions to be the same, as plain data."""
        return {
            "version": VERSION,
            "tokenizer": self.tokenizer["fingerprint"],
            "validation_fraction": self.settings.validation_fraction,
            "unit_megabytes": self.settings.unit_megabytes,
            "files": {file.name: state.size for file, state in zip(self.files, self.states, strict=True)},
        }

    def jobs(self, directory: Path) -> list[PartJob]:
        """The job of every part, in order."""
        parts = []
        for file, state in zip(self.files, self.states, strict=True):
            decisive = [VERSION, self.tokenizer["fingerprint"], self.settings.validation_fraction, file.name, state]
            for first, last in _cuts(file, self.settings.unit_megabytes * 10**6):
                content = json.dumps([*decisive, first, last])
                parts.append((file, first, last, hashlib.sha256(content.encode()).hexdigest()))
        jobs = []
        for number, (file, first, last, plan) in enumerate(parts):
            folder = directory / f"shard-{number:05d}-of-{len(parts):05d}"
            jobs.append(PartJob(str(folder), plan, file, first, last, self.rules, self.settings.validation_fraction))
        return jobs


def adopt_corpus(
    folder,
    tokenizer,
    settings: AdoptionSettings | None = None,
    output_dir=None,
    progress: Callable[[BuildProgress], None] | None = None,
) -> TokenStore:
    """Makes a corpus of a folder's token files, resumes that, or opens the corpus if it is there.

    >>> store = adopt_corpus("tokenized", tokenizer)
    >>> len(store.split("train"))
    61203311

    Args:
      folder: what datatrove or Megatron wrote, and folders below it.
      output_dir: where the manifest and the documents' places go; by default, into the folder.

    Raises:
      ConfigError: impossible settings; the corpus that is there is another; the tokenizer has no end token.
      DataError: damaged files, or none; ids that are not the tokenizer's; a document without the tokenizer's end.
    """
    settings = settings or AdoptionSettings()
    folder = Path(folder)
    directory = folder if output_dir is None else Path(output_dir)
    adoption = _adoption(folder, tokenizer, settings)
    if (directory / MANIFEST).is_file():
        return _reopen(directory, adoption)
    directory.mkdir(parents=True, exist_ok=True)
    with corpus_lock(directory / LOCK):
        if not (directory / MANIFEST).is_file():
            started = time.perf_counter()
            jobs = adoption.jobs(directory)
            shards = _adopt_parts(jobs, settings.num_workers, progress)
            manifest = _manifest(directory, adoption, jobs, shards)
            manifest["build"]["seconds"] = round(time.perf_counter() - started, 3)
            _refuse_changed_files(adoption)
            write_json(directory / MANIFEST, manifest)
            _note_checked_files(directory, adoption)
    return TokenStore.open(directory).check_once()


def _adoption(folder: Path, tokenizer, settings: AdoptionSettings) -> _Adoption:
    """What there is to adopt, by sizes and headers alone."""
    form, files = list_token_files(folder)
    states = [_state_of(file) for file in files]
    return _Adoption(folder, form, files, states, tokenizer_facts(tokenizer), _rules_of(tokenizer), settings)


def _state_of(file: TokenFile) -> _FileState:
    status = Path(file.path).stat()
    return _FileState(status.st_size, status.st_ctime_ns)


def _rules_of(tokenizer) -> TokenRules:
    """What a tokenizer's ids are.

    Raises:
      ConfigError: it has no end token.
    """
    if tokenizer.eos_token_id is None:
        raise ConfigError(
            f"--tokenizer_name {tokenizer.name_or_path}: has no end token (eos_token), which must end every document "
            "of an adopted corpus; give another tokenizer"
        )
    return TokenRules(
        tokenizer.name_or_path,
        max(tokenizer.get_vocab().values()) + 1,
        tokenizer.eos_token_id,
        tokenizer.eos_token,
        unknown_id(tokenizer),
        tuple(sorted(control_ids(tokenizer))),
    )


def _cuts(file: TokenFile, unit_bytes: float) -> list[tuple[int, int]]:
    """`(first document, end)` of each part: about equal numbers of documents, whatever their lengths."""
    if file.num_documents == 0:
        return []
    num_parts = max(int(file.num_tokens * file.id_bytes / unit_bytes), 1)
    num_parts = min(num_parts, file.num_documents)
    cuts = [file.num_documents * number // num_parts for number in range(num_parts + 1)]
    return list(itertools.pairwise(cuts))


def _adopt_parts(jobs: list[PartJob], num_workers: int, progress) -> list[dict]:
    """The facts of every part, in order; finished ones are kept."""
    started = time.perf_counter()
    facts_by_part = {}
    for number, job in enumerate(jobs):
        facts = finished_unit(job)
        if facts is not None:
            facts_by_part[number] = facts
    missing_jobs = {number: job for number, job in enumerate(jobs) if number not in facts_by_part}
    for number, facts in run_jobs(missing_jobs, adopt_part, num_workers):
        facts_by_part[number] = facts
        if progress is not None:
            progress(_progress(facts_by_part.values(), len(jobs), time.perf_counter() - started))
    return [facts_by_part[number] for number in range(len(jobs))]


def _progress(finished_parts: Collection[dict], num_parts: int, seconds: float) -> BuildProgress:
    counts = [split for facts in finished_parts for split in facts["splits"].values()]
    documents = sum(count["documents"] for count in counts)
    tokens = sum(count["tokens"] for count in counts)
    return BuildProgress(len(finished_parts), num_parts, documents, tokens, seconds)


def _manifest(directory: Path, adoption: _Adoption, jobs: list[PartJob], shards: list[dict]) -> dict:
    """The manifest of finished parts.

    Raises:
      DataError: they have no document.
    """
    if not shards:
        raise DataError(f"{adoption.folder}: no document in its {len(adoption.files)} files of tokens")
    id_bytes = jobs[0].file.id_bytes
    shard_facts = ("splits", "files", "token_file", "start", "tokens", "sha256")
    is_inside = directory.resolve() == adoption.folder.resolve()
    return {
        "format": FORMAT,
        "version": VERSION,
        "tokenizer": {
            **adoption.tokenizer,
            "vocabulary_size": adoption.rules.vocabulary_size,
            "engine": adoption.form,
        },
        "dtype": DTYPES[id_bytes].name,
        "settings": {
            "validation_fraction": adoption.settings.validation_fraction,
            "document_separator": "eos",
            "split_sentences": None,
        },
        "splits": {split: summed([facts["splits"][split] for facts in shards]) for split in SPLITS},
        "sources": [_source_facts(file, adoption, shards) for file in adoption.files],
        "shards": [
            {"name": Path(job.folder).name, **{name: facts[name] for name in shard_facts}}
            for job, facts in zip(jobs, shards, strict=True)
        ],
        "adopted": {
            "folder": "." if is_inside else str(adoption.folder.resolve()),
            "form": adoption.form,
            "files": {file.name: state.size for file, state in zip(adoption.files, adoption.states, strict=True)},
        },
        "plan": adoption.described(),
        "build": {"num_workers": adoption.settings.num_workers, "versions": versions()},
    }


def _source_facts(file: TokenFile, adoption: _Adoption, shards: list[dict]) -> dict:
    """What the manifest says of a file of tokens; its hash is that of its parts' hashes."""
    parts = [facts for facts in shards if facts["token_file"] == file.name]
    hashes = [facts["sha256"] for facts in parts]
    first_places = [facts["first_control_token"] for facts in parts if facts["first_control_token"]]
    return {
        "name": file.name,
        "size": file.num_tokens * file.id_bytes,
        "sha256": hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest(),
        "documents": file.num_documents,
        "tokens": file.num_tokens,
        "left_out": {},
        "named": {},
        "control_tokens": sum(facts["control_tokens"] for facts in parts),
        "first_control_token": first_places[0] if first_places else None,
    }


def _refuse_changed_files(adoption: _Adoption) -> None:
    """Raises DataError if a file is not the one that was read."""
    for file, state in zip(adoption.files, adoption.states, strict=True):
        if _state_of(file) != state:
            raise DataError(f"{file.path}: has changed while it was adopted; wait until it is written, and adopt again")


def _note_checked_files(directory: Path, adoption: _Adoption) -> None:
    """Notes that the tokens have just been hashed, so that the first run does not do it again."""
    changed_at = {file.name: state.ctime_ns for file, state in zip(adoption.files, adoption.states, strict=True)}
    write_json(directory / CHECKED, changed_at)


def _reopen(directory: Path, adoption: _Adoption) -> TokenStore:
    """The corpus that is there, if it is of these files and settings."""
    manifest = read_json(directory / MANIFEST)
    if "adopted" not in manifest:
        raise ConfigError(f"{directory}: holds a corpus that was built, not adopted; give another --output_dir")
    before = manifest["plan"]
    now = adoption.described()
    if before["files"] != now["files"]:
        differing_files = sorted({*before["files"].items()} ^ {*now["files"].items()})
        raise ChangedDataError(
            f"{adoption.folder}: other files than when it was adopted ({differing_files[0][0]} differs); delete "
            f"{directory / MANIFEST} and adopt again"
        )
    for name, setting in now.items():
        if before[name] != setting:
            if name == "tokenizer":
                difference = f"with another tokenizer than --tokenizer_name {adoption.tokenizer['name']}"
            elif name == "version":
                difference = f"in version {before[name]} of the format, not {setting}"
            else:
                difference = f"with --{name} {before[name]}, not {setting}"
            raise AnotherCorpusError(f"{directory} was adopted {difference}; delete its {MANIFEST} to adopt again")
    return TokenStore.open(directory).check_once()
