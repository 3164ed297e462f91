"""Text -> a corpus of tokens on disk, by many processes, which can be killed and started again at any time.

    >>> store = build_corpus(["crawl/*.jsonl.gz"], "corpus", tokenizer, num_workers=16)
    >>> len(store.split("train"))
    61203311

The work is cut into units (`t5suite.data.corpora.plans`), each of which becomes a shard. A build that goes on keeps the
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
from t5suite.data.corpora.plans import CorpusPlan, CorpusSettings, make_plan
from t5suite.data.corpora.readers import TextOptions
from t5suite.data.corpora.store import FORMAT, MANIFEST, SPLITS, VERSION, TokenStore, token_dtype
from t5suite.data.corpora.units import FACTS, UnitJob, build_unit, finished_unit, run_jobs
from t5suite.data.rows.jsonl import file_sha256
from t5suite.runs.directory import read_json, write_json

# ---------------------------------------------------------------------------------------------------------------------
# The end of a corpus build: both sides get a document, and the manifest is written.


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


# ---------------------------------------------------------------------------------------------------------------------
# Building


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

    A document is held out for validation by its text's hash (`documents.held_out_below`). Where that would leave a
    side without a document, though 0 < `validation_fraction` < 1, the document with the lowest hash is held out, or
    the one with the highest is trained on (with its duplicates).

    Args:
      inputs: files, folders, patterns, `hub:` names (`list_sources`).
      tokenizer: a Hugging Face tokenizer.
      options: how documents are told apart; None for `TextOptions()`.
      document_separator: what ends each document: 'none' (T5), 'eos' or a token of the vocabulary.
      split_sentences: a language such as 'en' (which is what True means): sentences are told apart and encoded one by
        one, and the corpus says where each starts.
      max_documents: only the first so many.
      unit_megabytes: text of a unit of work; a killed build loses at most the units that were under way.
      num_workers: processes; 1 builds in this one.
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
    with locked(directory / LOCK):
        _begin(directory, plan)
    build = Build(directory, plan, make_text_encoder(tokenizer, tokenizer_engine), num_workers)
    started = time.perf_counter()
    _build_units(build, shard or (0, 1), progress, started)
    return finish(build, started)


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


def _begin(directory: Path, plan: CorpusPlan) -> None:
    """Claims the folder for this build, or makes sure that it is the one that was begun there."""
    path = directory / BUILD
    mtimes = [source.mtime_ns for source in plan.sources]
    if not path.is_file():
        # Shards alone are those of a corpus whose manifest was deleted for the sake of a damaged one.
        shards = {plan.shard_name(unit) for unit in range(len(plan.units))}
        others = sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))
        if others := [name for name in others if name not in shards]:
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
        changed = sorted(there ^ here)[:3] or "their order"
        names = ", ".join(f"{name} ({size} bytes)" for name, size in changed) if there ^ here else changed
        others = f"{directory} holds the corpus of other sources ({names} differ)"
        raise ChangedDataError(f"{others}; give a new --output_dir")
    differing = [
        f"--{name} {theirs['settings'].get(name)} there, {value} here"
        for name, value in ours["settings"].items()
        if theirs["settings"].get(name) != value
    ]
    differing += ["another tokenizer"] if theirs["tokenizer"] != ours["tokenizer"] else []
    differing += ["another format"] if theirs["version"] != ours["version"] else []
    if differing or theirs["num_units"] != ours["num_units"]:
        what = ", ".join(differing) or "other units"
        raise ConfigError(f"--output_dir {directory} holds another corpus: {what}. Give a new --output_dir")


# ---------------------------------------------------------------------------------------------------------------------
# Units


def _build_units(build: Build, shard: tuple[int, int], progress, started: float) -> None:
    """Builds this process's share of the units that are not there yet, and the checksums of its share of sources."""
    index, count = shard
    mine = range(index, len(build.plan.units), count)
    done = {unit: facts for unit in mine if (facts := finished_unit(build.job(unit)))}
    if build.plan.settings.max_documents is None:
        jobs = {unit: build.job(unit) for unit in mine if unit not in done}
        finished = run_jobs(jobs, build.encoder, build.num_workers)
    else:
        done, finished = {}, _limited_units(build)
    hashing = concurrent.futures.ThreadPoolExecutor(1)  # beside the units: hashing leaves the interpreter's lock
    try:
        sources = range(index, len(build.plan.sources), count)
        hashed = [hashing.submit(_hash_source, build, source) for source in sources]
        _report(progress, done, len(mine), started)
        for unit, facts in finished:
            done[unit] = facts
            _report(progress, done, len(mine), started)
        for future in hashed:
            future.result()
    finally:
        hashing.shutdown(wait=False, cancel_futures=True)


def _hash_source(build: Build, number: int) -> None:
    path, source = build.source_file(number), build.plan.sources[number]
    if source.size is not None and not path.is_file():
        write_json(path, {"sha256": file_sha256(source.name)})


def _limited_units(build: Build):
    """`(unit, facts)` from the first unit on, until there are `max_documents`: one after the other."""
    remaining = build.plan.settings.max_documents
    for unit in range(len(build.plan.units)):
        job = build.job(unit, limit=remaining)
        facts = finished_unit(job) or build_unit(job, build.encoder)
        remaining -= num_read(facts)
        yield unit, facts
        if remaining <= 0:
            return


def _report(progress, done: dict, num_units: int, started: float) -> None:
    if progress is None:
        return
    counts = [split for facts in done.values() for split in facts["splits"].values()]
    documents, tokens = (sum(count[name] for count in counts) for name in ("documents", "tokens"))
    progress(Progress(len(done), num_units, documents, tokens, time.perf_counter() - started))
