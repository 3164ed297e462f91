"""Text -> a corpus of tokens on disk, by many processes, which can be killed and restarted at any time.

    >>> store = build_corpus(["crawl/*.jsonl.gz"], "corpus", tokenizer, num_workers=16)
    >>> len(store.split("train"))
    61203311

The work is cut into units (`t5suite.data.corpora.units`), each of which becomes a shard. A resumed build keeps the
finished ones; one with `shard=(i, n)` builds every n-th of them, so that the jobs of a Slurm array share a folder. The
process that finds all of them finished writes the manifest. None of this changes the tokens, byte for byte.

While a corpus is being built its folder has `build.json`, which says what is built, and `source-00000.json` with
each source's SHA-256. `t5suite.data.corpora.store` describes the finished folder.
"""

import concurrent.futures
import fcntl
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import AnotherCorpusError, ChangedDataError, ConfigError, DataError
from t5suite.base.provenance import versions
from t5suite.data.corpora.documents import Tally, fitting_fraction, refuse_no_documents
from t5suite.data.corpora.encoding import TextEncoder, make_text_encoder
from t5suite.data.corpora.readers import TextOptions
from t5suite.data.corpora.store import FORMAT, MANIFEST, SPLITS, VERSION, TokenStore, token_dtype
from t5suite.data.corpora.units import CorpusPlan, CorpusSettings, UnitJob, finished_unit, make_plan, run_jobs
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
    unit_megabytes: float = 64.0,
    num_workers: int = 1,
    shard: tuple[int, int] | None = None,
    tokenizer_engine: str = "auto",
    progress: Callable[[Progress], None] | None = None,
) -> TokenStore | None:
    """Builds the corpus, resumes its build, or opens it if it is finished.

    Args:
      inputs: files, folders, patterns, `hub:` names (`list_sources`).
      validation_fraction: share of the documents that are held out, by their text's hash (`fitting_fraction`).
      document_separator: what ends each document: 'none' (T5), 'eos' or a token of the vocabulary.
      split_sentences: a language such as 'en' (which True means): the text is split into sentences, which are encoded
        one by one, and the corpus records where each starts.
      unit_megabytes: text of a unit of work; a killed build loses at most the units in progress.
      shard: `(i, n)`: only every n-th unit from the i-th on; returns None while other jobs' units are missing.
      tokenizer_engine: which encoder is used; the ids are the same (`make_text_encoder`).

    Raises:
      ConfigError: impossible settings; the folder holds a corpus of other settings.
      DataError: nothing to read, a bad line, a damaged file; a source has changed since the build began.
    """
    language, options = "en" if split_sentences is True else split_sentences or None, options or TextOptions()
    check_work(num_workers, shard)
    fraction = fitting_fraction(inputs, options, validation_fraction)
    settings = CorpusSettings(options, fraction, document_separator, language, unit_megabytes)
    plan, directory = make_plan(inputs, settings, tokenizer), Path(output_dir)
    if (directory / MANIFEST).is_file():
        return _reopen(directory, plan)
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory / LOCK):
        _begin(directory, plan)
    encoder, started = make_text_encoder(tokenizer, tokenizer_engine), time.perf_counter()
    jobs = plan.jobs(directory)
    _build_units(plan, jobs, encoder, num_workers, shard or (0, 1), progress)
    with _locked(directory / LOCK):
        if not (directory / MANIFEST).is_file():
            shards = [finished_unit(job) for job in jobs]
            sums = [directory / name for name in _sums(plan).values()]
            if None in shards or not all(path.is_file() for path in sums):
                return None  # those of other processes are missing
            manifest = _manifest(directory, plan, shards, encoder)
            build = {"seconds": round(time.perf_counter() - started, 3), "num_workers": num_workers}
            mtimes = {source.name: source.mtime_ns for source in plan.sources}
            write_json(directory / MANIFEST, {**manifest, "build": {**build, "versions": versions(), "mtimes": mtimes}})
            for path in [*sums, directory / BUILD, *directory.glob("shard-*/.*")]:
                path.unlink(missing_ok=True)
    return TokenStore.open(directory).check_once()


def check_work(num_workers: int, shard) -> None:
    """Refuses impossible numbers of workers and shards."""
    if num_workers < 1:
        raise ConfigError(f"--num_workers {num_workers}: must be at least 1")
    if shard is not None and not 0 <= shard[0] < shard[1]:
        raise ConfigError(f"--shard {shard[0]}/{shard[1]}: must be i/n with i from 0 to n - 1, such as 0/{shard[1]}")


# ---------------------------------------------------------------------------------------------------------------------
# The folder


@contextmanager
def _locked(path: Path):
    """Only one process at a time is inside; a killed one leaves no lock behind."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _begin(directory: Path, plan: CorpusPlan) -> None:
    """Claims the folder for this build, or checks that this build is the one that was begun there."""
    path, mtimes = directory / BUILD, [source.mtime_ns for source in plan.sources]
    if not path.is_file():
        # Shards without a manifest: it was deleted so that a damaged shard is rebuilt.
        shards = {plan.shard_name(unit) for unit in range(len(plan.units))}
        others = {entry.name for entry in directory.iterdir() if not entry.name.startswith(".")} - shards
        if others:
            raise ConfigError(f"--output_dir {directory}: not empty ({min(others)}), and not a corpus; give a new one")
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
    there, here = theirs["settings"], ours["settings"]
    differing = [
        f"--{name} {there.get(name)} there, {here[name]} here" for name in here if there.get(name) != here[name]
    ]
    others = {"tokenizer": "another tokenizer", "version": "another format", "num_units": "other units"}
    differing += [what for name, what in others.items() if theirs[name] != ours[name]]
    if differing:
        raise AnotherCorpusError(
            f"--output_dir {directory} holds another corpus: {', '.join(differing)}. Give a new one"
        )


# ---------------------------------------------------------------------------------------------------------------------
# Units


def _sums(plan: CorpusPlan) -> dict[int, str]:
    """The files that keep the sources' SHA-256 during the build, by the source's number; the hub's have none."""
    return {n: f"source-{n:05d}.json" for n, source in enumerate(plan.sources) if source.size is not None}


def _build_units(plan: CorpusPlan, jobs: list[UnitJob], encoder: TextEncoder, num_workers, shard, progress) -> None:
    """Builds this process's share of the missing units, and the checksums of its share of sources."""
    started, mine = time.perf_counter(), range(shard[0], len(jobs), shard[1])
    done = {unit: facts for unit in mine if (facts := finished_unit(jobs[unit]))}
    missing = {unit: jobs[unit] for unit in mine if unit not in done}

    def report():
        if progress is not None:
            counts = [split for facts in done.values() for split in facts["splits"].values()]
            documents, tokens = (sum(count[name] for count in counts) for name in ("documents", "tokens"))
            progress(Progress(len(done), len(mine), documents, tokens, time.perf_counter() - started))

    def write_sum(number, name):
        if not (path := Path(jobs[0].folder).parent / name).is_file():
            write_json(path, {"sha256": file_sha256(plan.sources[number].name)})

    hashing = concurrent.futures.ThreadPoolExecutor(1)  # in parallel with the units: hashing releases the GIL
    try:
        sums = [item for item in _sums(plan).items() if item[0] % shard[1] == shard[0]]
        hashed = [hashing.submit(write_sum, *item) for item in sums]
        report()
        for unit, facts in run_jobs(missing, encoder, num_workers):
            done[unit] = facts
            report()
        for future in hashed:
            future.result()
    finally:
        hashing.shutdown(wait=False, cancel_futures=True)


def _manifest(directory: Path, plan: CorpusPlan, shards: list[dict], encoder: TextEncoder) -> dict:
    """The manifest of finished shards, without `build`; raises DataError if they have no document."""
    sources, sums, whole = [], _sums(plan), Tally()
    for number, source in enumerate(plan.sources):
        tally, tokens = Tally(), 0
        for counts in (facts["sources"][str(number)] for facts in shards if str(number) in facts["sources"]):
            tally.add(Tally(**counts["tally"]))
            tokens += counts["tokens"]
        checksum = read_json(directory / sums[number])["sha256"] if number in sums else None
        sources.append(
            {"name": source.name, "size": source.size, "sha256": checksum, "documents": tally.documents}
            | {"tokens": tokens, "left_out": tally.left_out, "named": tally.named}
            | ({} if source.commit is None else {"commit": source.commit})
        )
        whole.add(tally)
    refuse_no_documents([source.name for source in plan.sources], whole)
    splits = {split: [facts["splits"][split] for facts in shards] for split in SPLITS}
    engine = "+".join(sorted({facts["engine"] for facts in shards}))
    described = plan.described()
    return {
        "format": FORMAT,
        "version": VERSION,
        "tokenizer": {**plan.tokenizer, "vocabulary_size": encoder.vocabulary_size, "engine": engine},
        "dtype": token_dtype(encoder.vocabulary_size).name,
        "settings": described["settings"],
        "splits": {split: {k: sum(c[k] for c in counts) for k in counts[0]} for split, counts in splits.items()},
        "sources": sources,
        "shards": [
            {"name": plan.shard_name(unit), "splits": facts["splits"], "files": facts["files"]}
            for unit, facts in enumerate(shards)
        ],
        "plan": described,
    }
