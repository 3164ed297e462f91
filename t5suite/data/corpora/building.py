"""Text -> a corpus of tokens on disk, by many processes, which can be killed and started again at any time.

    >>> store = build_corpus(["crawl/*.jsonl.gz"], "corpus", tokenizer, num_workers=16)
    >>> len(store.split("train"))
    61203311

The work is cut into units (`t5suite.data.corpora.units`), each of which becomes a shard. A build that goes on keeps the
finished ones; one with `shard=(i, n)` makes every n-th of them, so that the jobs of a Slurm array share a folder; who
finds all of them finished writes the manifest. Tokens do not depend on any of that, byte for byte.

While a corpus is being built its folder has `build.json`, which says what is built, and `source-00000.json` for each
source's SHA-256. `t5suite.data.corpora.store` says what it has in the end.
"""

import concurrent.futures
import fcntl
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from t5suite.base.errors import ChangedDataError, ConfigError, DataError
from t5suite.base.provenance import versions
from t5suite.data.corpora.documents import Tally, held_out_below, refuse_no_documents
from t5suite.data.corpora.encoding import TextEncoder, make_text_encoder
from t5suite.data.corpora.readers import TextOptions
from t5suite.data.corpora.store import FORMAT, MANIFEST, SPLITS, VERSION, TokenStore, token_dtype
from t5suite.data.corpora.units import (
    CorpusPlan,
    CorpusSettings,
    UnitJob,
    build_unit,
    finished_unit,
    make_plan,
    run_jobs,
)
from t5suite.data.rows.jsonl import file_sha256
from t5suite.runs.directory import read_json, write_json

BUILD = "build.json"
LOCK = ".lock"


class Progress(NamedTuple):
    """How far a build has come; `documents` and `tokens` are those of all finished units."""

    units: int
    num_units: int
    documents: int
    tokens: int
    seconds: float


def build_corpus(
    inputs,
    output_dir,
    tokenizer,
    *,
    options: TextOptions | None = None,
    validation_fraction: float = 0.01,
    document_separator: str = "none",
    split_sentences: str | bool | None = None,
    max_documents: int | None = None,
    unit_megabytes: float = 64.0,
    num_workers: int = 1,
    shard: tuple[int, int] | None = None,
    tokenizer_engine: str = "auto",
    progress: Callable[[Progress], None] | None = None,
) -> TokenStore | None:
    """Builds the corpus, goes on with its build, or opens it where it is finished.

    A document is held out for validation by its text's hash. Where that would leave a side without a document, though
    0 < `validation_fraction` < 1, the document with the lowest hash is held out, or the one with the highest is trained
    on (with its duplicates).

    Args:
      inputs: files, folders, patterns, `hub:` names (`list_sources`).
      document_separator: what ends each document: 'none' (T5), 'eos' or a token of the vocabulary.
      split_sentences: a language such as 'en' (which is what True means): sentences are told apart and encoded one by
        one, and the corpus says where each starts.
      unit_megabytes: text of a unit of work; a killed build loses at most the units that were under way.
      shard: `(i, n)`: only every n-th unit from the i-th on; None is returned while others' units are missing.
      tokenizer_engine: what encodes, with the same ids (`make_text_encoder`).

    Raises:
      ConfigError: impossible settings; the folder holds a corpus of other settings.
      DataError: nothing to read, a bad line, a torn file; a source has changed since the build began.
    """
    options = options or TextOptions()
    settings = CorpusSettings(
        options.text_column_name, options.text_unit, options.bad_lines, validation_fraction,
        document_separator, "en" if split_sentences is True else split_sentences or None, max_documents, unit_megabytes,
    )  # fmt: skip
    check_work(num_workers, shard, max_documents)
    plan, directory = make_plan(inputs, settings, tokenizer), Path(output_dir)
    if (directory / MANIFEST).is_file():
        return _reopen(directory, plan)
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory / LOCK):
        _begin(directory, plan)
    build = _Build(directory, plan, make_text_encoder(tokenizer, tokenizer_engine), num_workers)
    started = time.perf_counter()
    _build_units(build, shard or (0, 1), progress, started)
    with _locked(directory / LOCK):
        if not (directory / MANIFEST).is_file() and not _finish(build, started):
            return None
    return TokenStore.open(directory).check_once()


def check_work(num_workers: int, shard, max_documents) -> None:
    """Refuses numbers of workers and shards that make no sense, alone or together."""
    if num_workers < 1:
        raise ConfigError(f"--num_workers {num_workers}: must be at least 1")
    if shard is not None and not 0 <= shard[0] < shard[1]:
        raise ConfigError(f"--shard {shard[0]}/{shard[1]}: must be i/n with i from 0 to n - 1, such as 0/{shard[1]}")
    if shard is not None and max_documents is not None:
        raise ConfigError("--max_documents counts from the first document on, which --shard cannot: give one of them")


# ---------------------------------------------------------------------------------------------------------------------
# The folder


@contextmanager
def _locked(path: Path):
    """Only one process at a time is inside; a killed one leaves no lock behind."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _begin(directory: Path, plan: CorpusPlan) -> None:
    """Claims the folder for this build, or makes sure that it is the one that was begun there."""
    path = directory / BUILD
    mtimes = [source.mtime_ns for source in plan.sources]
    if not path.is_file():
        # Shards alone are those of a corpus whose manifest was deleted for the sake of a damaged one.
        shards = {plan.shard_name(unit) for unit in range(len(plan.units))}
        others = [entry.name for entry in directory.iterdir() if not entry.name.startswith(".")]
        if others := sorted(set(others) - shards):
            raise ConfigError(f"--output_dir {directory}: not empty ({others[0]}), and no corpus; give a new one")
        write_json(path, {**plan.described(), "mtimes": mtimes})
        return
    begun = read_json(path)
    _refuse_another(directory, begun, plan.described())
    for source, before, now in zip(plan.sources, begun["mtimes"], mtimes, strict=True):
        if before != now:
            raise DataError(f"{source.name}: has changed since the build in {directory} began; delete that folder")


def _reopen(directory: Path, plan: CorpusPlan) -> TokenStore:
    """The finished corpus, if it is of this plan and its sources are still the same."""
    store = TokenStore.open(directory).check_once()
    _refuse_another(directory, store.manifest["plan"], plan.described())
    for source, built in zip(plan.sources, store.manifest["sources"], strict=True):
        same_time = source.mtime_ns == store.manifest["build"]["mtimes"][source.name]
        if not same_time and file_sha256(source.name) != built["sha256"]:
            raise ChangedDataError(
                f"{source.name}: has changed since the corpus in {directory} was built; give a new --output_dir, or "
                "delete that folder"
            )
    return store


def _refuse_another(directory: Path, theirs: dict, ours: dict) -> None:
    if theirs["sources"] != ours["sources"]:
        there, here = ({tuple(source) for source in plan["sources"]} for plan in (theirs, ours))
        names = ", ".join(f"{name} ({size} bytes)" for name, size in sorted(there ^ here)[:3]) or "their order"
        raise ChangedDataError(
            f"{directory} holds the corpus of other sources ({names} differ); give a new --output_dir"
        )
    differing = [
        f"--{name} {theirs['settings'].get(name)} there, {value} here"
        for name, value in ours["settings"].items()
        if theirs["settings"].get(name) != value
    ]
    names = {"tokenizer": "another tokenizer", "version": "another format", "num_units": "other units"}
    differing += [what for name, what in names.items() if theirs[name] != ours[name]]
    if differing:
        raise ConfigError(f"--output_dir {directory} holds another corpus: {', '.join(differing)}. Give a new one")


# ---------------------------------------------------------------------------------------------------------------------
# Units


@dataclass
class _Build:
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

    def jobs(self, facts_of: Callable):
        """`(unit, job, facts_of(job))` of every unit, or of those up to `max_documents`."""
        remaining = self.plan.settings.max_documents
        for unit in range(len(self.plan.units)):
            job = self.job(unit, remaining)
            facts = facts_of(job)
            yield unit, job, facts
            if remaining is not None and facts:
                remaining -= sum(source["read"] for source in facts["sources"].values())
                if remaining <= 0:
                    return

    def source_file(self, source: int) -> Path:
        """Where a source's SHA-256 is kept during the build."""
        return self.directory / f"source-{source:05d}.json"


def _build_units(build: _Build, shard: tuple[int, int], progress, started: float) -> None:
    """Builds this process's share of the units that are not there yet, and the checksums of its share of sources."""
    index, count = shard
    mine, sources = range(index, len(build.plan.units), count), build.plan.sources
    done = {unit: facts for unit in mine if (facts := finished_unit(build.job(unit)))}
    if build.plan.settings.max_documents is None:
        jobs = {unit: build.job(unit) for unit in mine if unit not in done}
        finished = run_jobs(jobs, build.encoder, build.num_workers)
    else:  # one after the other, for each must know how many documents those before it had
        make = lambda job: finished_unit(job) or build_unit(job, build.encoder)
        done, finished = {}, ((unit, facts) for unit, _, facts in build.jobs(make))

    def report():
        if progress is not None:
            counts = [split for facts in done.values() for split in facts["splits"].values()]
            documents, tokens = (sum(count[name] for count in counts) for name in ("documents", "tokens"))
            progress(Progress(len(done), len(mine), documents, tokens, time.perf_counter() - started))

    def hash_source(number):
        path = build.source_file(number)
        if sources[number].size is not None and not path.is_file():
            write_json(path, {"sha256": file_sha256(sources[number].name)})

    hashing = concurrent.futures.ThreadPoolExecutor(1)  # beside the units: hashing leaves the interpreter's lock
    try:
        hashed = [hashing.submit(hash_source, number) for number in range(index, len(sources), count)]
        report()
        for unit, facts in finished:
            done[unit] = facts
            report()
        for future in hashed:
            future.result()
    finally:
        hashing.shutdown(wait=False, cancel_futures=True)


# ---------------------------------------------------------------------------------------------------------------------
# The end of a build: both sides get a document, and the manifest is written.


def _finish(build: _Build, started: float) -> bool:
    """Writes the manifest; False while units or checksums of other processes are missing."""
    sums = [build.source_file(n) for n, source in enumerate(build.plan.sources) if source.size is not None]
    if not all(path.is_file() for path in sums):
        return False
    jobs, facts = [], []
    for _, job, found in build.jobs(finished_unit):
        if found is None:
            return False
        jobs.append(job)
        facts.append(found)
    below = jobs[0].held_out_below
    moved = _threshold_for_both_sides(build, jobs, facts)
    if moved is not None:
        below, full = moved
        for number, job in enumerate(jobs):
            extremes = _extremes(job, full)
            if extremes and (extremes[0] < below if full == "train" else extremes[1] >= below):
                facts[number] = build_unit(replace(job, held_out_below=below), build.encoder)
    write_json(build.directory / MANIFEST, _manifest(build, jobs, facts, below, started))
    for path in [*sums, build.directory / BUILD, *build.directory.glob("shard-*/.*")]:
        path.unlink(missing_ok=True)
    return True


def _threshold_for_both_sides(build: _Build, jobs: list[UnitJob], facts: list[dict]) -> tuple[int, str] | None:
    """`(threshold, the side that has documents)` as `build_corpus` describes where one side has none, else None."""
    counts = {split: sum(found["splits"][split]["documents"] for found in facts) for split in SPLITS}
    if not sum(counts.values()):
        tally = Tally()
        for source in (source for found in facts for source in found["sources"].values()):
            tally.add(Tally(0, source["left_out"], source["named"]))
        refuse_no_documents([source.name for source in build.plan.sources], tally)
    if all(counts.values()) or build.plan.settings.validation_fraction in (0, 1):
        return None
    full = "train" if counts["train"] else "validation"
    extremes = [pair for job in jobs if (pair := _extremes(job, full))]
    low, high = min(pair[0] for pair in extremes), max(pair[1] for pair in extremes)
    if low == high:
        raise DataError(
            f"{build.plan.sources[0].name}: one document alone cannot be both trained on and held out; give more text, "
            "tell documents apart otherwise (--text_unit), or set --validation_fraction 0"
        )
    return (low + 1 if full == "train" else high), full


def _extremes(job: UnitJob, split: str) -> tuple[int, int] | None:
    hash_D = np.load(Path(job.folder) / f"{split}.hashes.npy", allow_pickle=False)
    return (int(hash_D.min()), int(hash_D.max())) if len(hash_D) else None


def _manifest(build: _Build, jobs: list[UnitJob], shards: list[dict], below: int, started: float) -> dict:
    plan, described = build.plan, build.plan.described()
    sources = []
    for number, source in enumerate(plan.sources):
        tally, tokens = Tally(), 0
        for counts in (facts["sources"][str(number)] for facts in shards if str(number) in facts["sources"]):
            tally.add(Tally(counts["documents"], counts["left_out"], counts["named"]))
            tokens += counts["tokens"]
        checksum = None if source.size is None else read_json(build.source_file(number))["sha256"]
        sources.append(
            {"name": source.name, "size": source.size, "sha256": checksum, "documents": tally.documents}
            | {"tokens": tokens, "left_out": tally.left_out, "named": tally.named}
        )
    splits = {split: [facts["splits"][split] for facts in shards] for split in SPLITS}
    return {
        "format": FORMAT,
        "version": VERSION,
        "tokenizer": {
            **plan.tokenizer,
            "vocabulary_size": build.encoder.vocabulary_size,
            "engine": "+".join(sorted({facts["engine"] for facts in shards})),
            "control_tokens_dropped": sum(facts["control_tokens_dropped"] for facts in shards),
        },
        "dtype": token_dtype(build.encoder.vocabulary_size).name,
        "settings": described["settings"],
        "held_out_below": f"{below:016x}",
        "splits": {split: {k: sum(c[k] for c in counts) for k in counts[0]} for split, counts in splits.items()},
        "sources": sources,
        "shards": [
            {"name": Path(job.folder).name, "splits": facts["splits"], "files": facts["files"]}
            for job, facts in zip(jobs, shards, strict=True)
        ],
        "plan": described,
        "build": {
            "seconds": round(time.perf_counter() - started, 3),
            "num_workers": build.num_workers,
            "versions": versions(),
            "mtimes": {source.name: source.mtime_ns for source in plan.sources},
        },
    }
