"""The end of a corpus build: both sides get a document, and the manifest is written.

    >>> finish(build, started).manifest["splits"]["validation"]
    {'documents': 231, 'tokens': 150022, 'bytes': 620703, 'unk': 2}

Shape suffix: D documents.
"""

import fcntl
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from t5suite.base.errors import DataError
from t5suite.base.provenance import versions
from t5suite.data.corpora.plans import CorpusPlan
from t5suite.data.corpora.store import FORMAT, MANIFEST, SPLITS, VERSION, TokenStore, token_dtype
from t5suite.data.corpora.units import FACTS, UnitJob, build_unit, finished_unit
from t5suite.data.text.documents import Tally, refuse_no_documents
from t5suite.data.text.encoding import TextEncoder
from t5suite.data.text.held_out import held_out_below
from t5suite.runs.directory import read_json, write_json

BUILD = "build.json"
LOCK = ".lock"


@dataclass
class Build:
    """A build in a folder: what is to be done, and with what."""

    directory: Path
    plan: CorpusPlan
    encoder: TextEncoder
    num_workers: int

    def job(self, unit: int, limit: int | None = None) -> UnitJob:
        """The job of a unit."""
        plan = self.plan
        return UnitJob(
            folder=str(self.directory / plan.shard_name(unit)),
            plan=plan.fingerprint(),
            sources={piece.source: plan.sources[piece.source].name for piece in plan.units[unit]},
            pieces=plan.units[unit],
            settings=plan.settings,
            separator_id=plan.separator_id,
            held_out_below=held_out_below(plan.settings.validation_fraction),
            limit=limit,
        )

    def source_file(self, source: int) -> Path:
        """Where a source's SHA-256 is kept during the build."""
        return self.directory / f"source-{source:05d}.json"

    def source_files(self) -> list[Path]:
        """The same for every source that is a file."""
        return [self.source_file(n) for n, source in enumerate(self.plan.sources) if source.size is not None]


def finish(build: Build, started: float) -> TokenStore | None:
    """The finished corpus, or None while units of other processes are missing."""
    with locked(build.directory / LOCK):
        if not (build.directory / MANIFEST).is_file():
            jobs = _finished_jobs(build)
            sums = build.source_files()
            if jobs is None or not all(path.is_file() for path in sums):
                return None
            below = _give_both_sides_a_document(build, jobs)
            write_json(build.directory / MANIFEST, _manifest(build, [job for job, _ in jobs], below, started))
            half_written = build.directory.glob("shard-*/.*")
            for path in [*sums, build.directory / BUILD, *half_written]:
                path.unlink(missing_ok=True)
    return TokenStore.open(build.directory).check_once()


@contextmanager
def locked(path: Path):
    """Only one process at a time is inside; a killed one leaves no lock behind."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _finished_jobs(build: Build) -> list[tuple[UnitJob, dict]] | None:
    """`(job, facts)` of every unit, or of those up to `max_documents`; None where one is missing."""
    jobs, remaining = [], build.plan.settings.max_documents
    for unit in range(len(build.plan.units)):
        job = build.job(unit, remaining)
        facts = finished_unit(job)
        if facts is None:
            return None
        jobs.append((job, facts))
        if remaining is not None:
            remaining -= num_read(facts)
            if remaining <= 0:
                break
    return jobs


def num_read(facts: dict) -> int:
    """The documents that a unit's limit counts."""
    return sum(source["read"] for source in facts["sources"].values())


# ---------------------------------------------------------------------------------------------------------------------
# Both sides


def _give_both_sides_a_document(build: Build, jobs: list[tuple[UnitJob, dict]]) -> int:
    """Moves the threshold as `build_corpus` says where a side is empty; returns it."""
    fraction, below = build.plan.settings.validation_fraction, jobs[0][0].held_out_below
    counts = {split: sum(facts["splits"][split]["documents"] for _, facts in jobs) for split in SPLITS}
    _refuse_empty(build, jobs, sum(counts.values()))
    empty = [split for split in SPLITS if counts[split] == 0]
    if not empty or fraction in (0, 1):
        return below
    full = "train" if empty == ["validation"] else "validation"
    extremes = [_extremes(job, full) for job, _ in jobs]
    low, high = min(pair[0] for pair in extremes if pair), max(pair[1] for pair in extremes if pair)
    if low == high:
        raise DataError(
            f"{build.plan.sources[0].name}: one document alone cannot be both trained on and held out; give more text, "
            "tell documents apart otherwise (--text_unit), or set --validation_fraction 0"
        )
    below = low + 1 if full == "train" else high
    for (job, _), pair in zip(jobs, extremes, strict=True):
        if pair and (pair[0] < below if full == "train" else pair[1] >= below):
            build_unit(replace(job, held_out_below=below), build.encoder)
    return below


def _extremes(job: UnitJob, split: str) -> tuple[int, int] | None:
    hash_D = np.load(Path(job.folder) / f"{split}.hashes.npy", allow_pickle=False)
    return (int(hash_D.min()), int(hash_D.max())) if len(hash_D) else None


def _refuse_empty(build: Build, jobs, num_documents: int) -> None:
    if num_documents == 0:
        tally = Tally()
        for _, facts in jobs:
            for counts in facts["sources"].values():
                tally.add(Tally(**{name: counts[name] for name in ("documents", "left_out", "named")}))
        tally.documents = 0
        refuse_no_documents([source.name for source in build.plan.sources], tally)


# ---------------------------------------------------------------------------------------------------------------------
# The manifest


def _manifest(build: Build, jobs: list[UnitJob], below: int, started: float) -> dict:
    plan, described = build.plan, build.plan.described()
    shards = [(job, read_json(Path(job.folder) / FACTS)) for job in jobs]
    engines = sorted({facts["engine"] for _, facts in shards})
    return {
        "format": FORMAT,
        "version": VERSION,
        "tokenizer": {
            **plan.tokenizer,
            "vocabulary_size": build.encoder.vocabulary_size,
            "engine": "+".join(engines),
            "control_tokens_dropped": sum(facts["control_tokens_dropped"] for _, facts in shards),
        },
        "dtype": token_dtype(build.encoder.vocabulary_size).name,
        "settings": described["settings"],
        "held_out_below": f"{below:016x}",
        "splits": {split: _summed([facts["splits"][split] for _, facts in shards]) for split in SPLITS},
        "sources": _sources(build, [facts for _, facts in shards]),
        "shards": [
            {"name": Path(job.folder).name, "splits": facts["splits"], "files": facts["files"]} for job, facts in shards
        ],
        "plan": described,
        "build": {
            "seconds": round(time.perf_counter() - started, 3),
            "num_workers": build.num_workers,
            "versions": versions(),
            "mtimes": {source.name: source.mtime_ns for source in plan.sources},
        },
    }


def _summed(counts: list[dict]) -> dict:
    return {name: sum(count[name] for count in counts) for name in counts[0]}


def _sources(build: Build, shards: list[dict]) -> list[dict]:
    """Name, size, SHA-256 and counts of every source."""
    found = []
    for number, source in enumerate(build.plan.sources):
        tally, tokens = Tally(), 0
        for facts in shards:
            counts = facts["sources"].get(str(number))
            if counts:
                tally.add(Tally(counts["documents"], counts["left_out"], counts["named"]))
                tokens += counts["tokens"]
        checksum = None if source.size is None else read_json(build.source_file(number))["sha256"]
        found.append(
            {"name": source.name, "size": source.size, "sha256": checksum, "documents": tally.documents}
            | {"tokens": tokens, "left_out": tally.left_out, "named": tally.named}
        )
    return found
