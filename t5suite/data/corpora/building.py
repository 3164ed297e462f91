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
import functools
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import AnotherCorpusError, ChangedDataError, ConfigError, DataError
from t5suite.base.files import file_sha256, read_json, write_json
from t5suite.base.provenance import versions
from t5suite.data.corpora.corpus_plan import (
    CorpusPlan,
    CorpusSettings,
    Source,
    make_plan,
    plan_of_streams,
    source_as_it_is,
)
from t5suite.data.corpora.documents import read_documents, refuse_no_documents
from t5suite.data.corpora.encoding import TextEncoder, make_text_encoder
from t5suite.data.corpora.held_out import document_hash, held_out_below
from t5suite.data.corpora.readers import TextOptions
from t5suite.data.corpora.store import FORMAT, MANIFEST, SPLITS, VERSION, TokenStore, token_dtype
from t5suite.data.corpora.tally import Tally
from t5suite.data.corpora.unit_workers import run_jobs
from t5suite.data.corpora.units import build_unit, build_unit_of, finished_unit

logger = logging.getLogger(__name__)
BUILD = "build.json"
LOCK = ".lock"


class BuildProgress(NamedTuple):
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
    settings: CorpusSettings | None = None,
    *,
    num_workers: int = 1,
    shard: tuple[int, int] | None = None,
    tokenizer_engine: str = "auto",
    progress: Callable[[BuildProgress], None] | None = None,
) -> TokenStore | None:
    """Builds the corpus, resumes its build, or opens it if it is finished.

    Args:
      inputs: files, folders, patterns, `hub:` names (`list_sources`).
      settings: what determines the tokens; its `validation_fraction` is the share of the documents that are held out,
        by their text's hash (`fitting_fraction`). A killed build loses at most the units in progress.
      shard: `(i, n)`: only every n-th unit from the i-th on; returns None while other jobs' units are missing.
      tokenizer_engine: which encoder is used: auto compares a sample of the ids (`make_text_encoder`).

    Raises:
      ConfigError: impossible settings; the folder holds a corpus of other settings.
      DataError: nothing to read, a bad line, a damaged file; a source has changed since the build began.
    """
    check_work(num_workers, shard)
    settings = settings or CorpusSettings(TextOptions())
    fraction = fitting_fraction(inputs, settings.text, settings.validation_fraction)
    plan = make_plan(inputs, replace(settings, validation_fraction=fraction), tokenizer)
    directory = Path(output_dir)
    if (directory / MANIFEST).is_file():
        return _reopen(directory, plan)
    if fraction != settings.validation_fraction:
        logger.warning(
            "%s: --validation_fraction %s would leave nothing to train on, or nothing held out, of this small text; it "
            "is %s instead",
            directory,
            settings.validation_fraction,
            fraction,
        )
    directory.mkdir(parents=True, exist_ok=True)
    with corpus_lock(directory / LOCK):
        _claim_folder(directory, plan)
    encoder = make_text_encoder(tokenizer, tokenizer_engine)
    started = time.perf_counter()
    _build_units(directory, plan, encoder, num_workers, shard or (0, 1), progress)
    return _finish(directory, plan, encoder, {"seconds": time.perf_counter() - started, "num_workers": num_workers})


def fitting_fraction(inputs, options: TextOptions, fraction: float) -> float:
    """The fraction itself; or, if a side of a small text would be empty, one that holds out only the document with the
    lowest hash, or trains only on the one with the highest; 0 and 1 are returned as they are.

    >>> fitting_fraction(["three_lines.txt"], TextOptions(), 0.05)
    0.2731
    """
    below = held_out_below(fraction)
    if fraction in (0, 1):
        return fraction
    hashes = []  # the two lowest and the two highest so far
    for text in read_documents(inputs, **asdict(options), tally=Tally()):
        hashes = sorted({*hashes[:2], *hashes[-2:], document_hash(text)})
        if hashes[0] < below <= hashes[-1]:
            return fraction
    if len(hashes) < 2:  # equal documents are on one side
        return fraction
    neighbours = hashes[:2] if hashes[0] >= below else hashes[-2:]
    return sum(neighbours) / 2 / 2**64


def build_shard(
    texts: Iterable[str],
    output_dir,
    tokenizer,
    shard: tuple[int, int],
    settings: CorpusSettings | None = None,
    name="texts",
) -> TokenStore | None:
    """Writes one shard of a corpus from texts of any origin, such as the end of a pipeline of another library.

    >>> build_shard((document.text for document in data), "corpus", tokenizer, shard=(rank, world_size))

    Each of n processes writes its own; the one that finds all of them finished writes the manifest and gets the corpus.
    A shard that is there already is written anew, until the corpus is finished.

    Args:
      texts: one a document, read once.
      shard: `(i, n)`: this is the i-th of n.
      name: what the manifest calls the texts.

    Raises:
      ConfigError: impossible settings; the folder holds a finished corpus, or one of other settings.
    """
    check_work(1, shard)
    number, num_shards = shard
    names = [f"{name} {i}/{num_shards}" for i in range(num_shards)]
    plan = plan_of_streams(names, settings or CorpusSettings(TextOptions()), tokenizer)
    directory = Path(output_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with corpus_lock(directory / LOCK):
        if (directory / MANIFEST).is_file():
            raise ConfigError(
                f"{directory}: holds a finished corpus; delete it to write it again, or name a new folder"
            )
        _claim_folder(directory, plan)
    encoder = make_text_encoder(tokenizer, "tokenizers")
    started = time.perf_counter()
    build_unit_of(texts, plan.jobs(directory)[number], encoder)
    return _finish(directory, plan, encoder, {"seconds": time.perf_counter() - started, "num_workers": num_shards})


def _finish(directory: Path, plan: CorpusPlan, encoder: TextEncoder, work: dict) -> TokenStore | None:
    """Writes the manifest if all units are finished, and opens the corpus; None if some are missing."""
    with corpus_lock(directory / LOCK):
        if not (directory / MANIFEST).is_file():
            shards = _finished_shards(directory, plan)
            if shards is None:
                return None
            manifest = _manifest(directory, plan, shards, encoder)
            manifest["build"] = {
                "seconds": round(work["seconds"], 3),
                "num_workers": work["num_workers"],
                "versions": versions(),
                "mtimes": {source.name: source.mtime_ns for source in plan.sources},
            }
            _refuse_changed_sources(directory, plan)
            write_json(directory / MANIFEST, manifest)
            _delete_build_files(directory, plan)
    return TokenStore.open(directory).check_once()


def _refuse_changed_sources(directory: Path, plan: CorpusPlan) -> None:
    """Raises DataError if a file is not the one any more that was cut into units."""
    files = [source for source in plan.sources if source.size is not None]
    for source in files:
        if source_as_it_is(source.name) != source:
            raise DataError(
                f"{source.name}: has changed while the corpus in {directory} was built; wait until it is written, "
                "delete that folder, and build again"
            )


def check_work(num_workers: int, shard) -> None:
    """Refuses impossible numbers of workers and shards."""
    if num_workers < 1:
        raise ConfigError(f"--num_workers {num_workers}: must be at least 1")
    if shard is not None and not 0 <= shard[0] < shard[1]:
        raise ConfigError(f"--shard {shard[0]}/{shard[1]}: must be i/n with i from 0 to n - 1, such as 0/{shard[1]}")


@contextmanager
def corpus_lock(path: Path):
    """Only one process at a time is inside; a killed one leaves no lock behind."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _claim_folder(directory: Path, plan: CorpusPlan) -> None:
    """Claims the folder for this build, or checks that this build is the one that was begun there."""
    path = directory / BUILD
    mtimes = [source.mtime_ns for source in plan.sources]
    if not path.is_file():
        _refuse_foreign_files(directory, plan)
        write_json(path, {**plan.described(), "mtimes": mtimes})
        return
    begun_build = read_json(path)
    _refuse_another_plan(directory, begun_build, plan.described())
    for source, begun_mtime, mtime in zip(plan.sources, begun_build["mtimes"], mtimes, strict=True):
        if begun_mtime != mtime:
            raise DataError(f"{source.name}: has changed since the build in {directory} began; delete that folder")


def _refuse_foreign_files(directory: Path, plan: CorpusPlan) -> None:
    """Raises ConfigError if a new folder holds anything but shards.

    There are shards without a manifest where it was deleted so that a damaged shard is rebuilt.
    """
    shard_names = {plan.shard_name(unit) for unit in range(len(plan.units))}
    visible_names = {entry.name for entry in directory.iterdir() if not entry.name.startswith(".")}
    foreign_names = visible_names - shard_names
    if foreign_names:
        raise ConfigError(
            f"--output_dir {directory}: not empty ({min(foreign_names)}), and not a corpus; give a new one"
        )


def _reopen(directory: Path, plan: CorpusPlan) -> TokenStore:
    """The finished corpus, if it is of this plan and its sources are still the same."""
    store = TokenStore.open(directory)
    if "adopted" in store.manifest:
        raise ConfigError(f"--output_dir {directory}: holds an adopted corpus; give a new one")
    store.check_once()
    _refuse_another_plan(directory, store.manifest["plan"], plan.described())
    mtimes = store.manifest["build"]["mtimes"]
    for source, built_source in zip(plan.sources, store.manifest["sources"], strict=True):
        if source.mtime_ns != mtimes[source.name] and file_sha256(source.name) != built_source["sha256"]:
            raise ChangedDataError(
                f"{source.name}: has changed since the corpus in {directory} was built; give a new --output_dir, or "
                "delete that folder"
            )
    return store


def _refuse_another_plan(directory: Path, folder_plan: dict, plan: dict) -> None:
    """Raises a ConfigError that says how the plan of the folder's corpus differs from this one (`described`)."""
    if folder_plan["sources"] != plan["sources"]:
        folder_sources = {tuple(source) for source in folder_plan["sources"]}
        differing_sources = folder_sources ^ {tuple(source) for source in plan["sources"]}
        names = ", ".join(_identity_text(*source) for source in sorted(differing_sources)[:3]) or "their order"
        raise ChangedDataError(
            f"{directory} holds the corpus of other sources ({names} differ); give a new --output_dir"
        )
    differences = []
    for name, setting in plan["settings"].items():
        folder_setting = folder_plan["settings"].get(name)
        if folder_setting != setting:
            differences.append(f"--{name} {folder_setting} there, {setting} here")
    descriptions = {"tokenizer": "another tokenizer", "version": "another format", "num_units": "other units"}
    differences += [description for name, description in descriptions.items() if folder_plan[name] != plan[name]]
    if differences:
        raise AnotherCorpusError(
            f"--output_dir {directory} holds another corpus: {', '.join(differences)}. Give a new one"
        )


def _identity_text(name: str, size: int | None, commit: str | None = None) -> str:
    """A source's `identity`, in a message."""
    if commit is not None:
        return f"{name} (commit {commit})"
    return name if size is None else f"{name} ({size} bytes)"


def _checksum_names(plan: CorpusPlan) -> dict[int, str]:
    """The files that keep the sources' SHA-256 during the build, by the source's number; the hub's have none."""
    return {n: f"source-{n:05d}.json" for n, source in enumerate(plan.sources) if source.size is not None}


def _build_units(
    directory: Path, plan: CorpusPlan, encoder: TextEncoder, num_workers: int, shard: tuple[int, int], progress
) -> None:
    """Builds this process's share of the missing units, and the checksums of its share of sources."""
    started = time.perf_counter()
    jobs = plan.jobs(directory)
    shard_number, num_shards = shard
    units = range(shard_number, len(jobs), num_shards)
    facts_by_unit = {}
    for unit in units:
        facts = finished_unit(jobs[unit])
        if facts:
            facts_by_unit[unit] = facts
    missing_jobs = {unit: jobs[unit] for unit in units if unit not in facts_by_unit}

    def report():
        if progress is not None:
            counts = [split for facts in facts_by_unit.values() for split in facts["splits"].values()]
            documents = sum(count["documents"] for count in counts)
            tokens = sum(count["tokens"] for count in counts)
            progress(BuildProgress(len(facts_by_unit), len(units), documents, tokens, time.perf_counter() - started))

    hashing = concurrent.futures.ThreadPoolExecutor(1)  # in parallel with the units: hashing releases the GIL
    try:
        hashed = [
            hashing.submit(_write_checksum, directory / name, plan.sources[number])
            for number, name in _checksum_names(plan).items()
            if number % num_shards == shard_number
        ]
        report()
        for unit, facts in run_jobs(missing_jobs, functools.partial(build_unit, encoder=encoder), num_workers):
            facts_by_unit[unit] = facts
            report()
        for future in hashed:
            future.result()
    finally:
        hashing.shutdown(wait=False, cancel_futures=True)


def _write_checksum(path: Path, source: Source) -> None:
    """Writes the SHA-256 of a source, unless an earlier process has."""
    if not path.is_file():
        write_json(path, {"sha256": file_sha256(source.name)})


def _finished_shards(directory: Path, plan: CorpusPlan) -> list[dict] | None:
    """The facts of all units; None while units or checksums of other processes are missing."""
    shards = [finished_unit(job) for job in plan.jobs(directory)]
    has_checksums = all((directory / name).is_file() for name in _checksum_names(plan).values())
    return shards if has_checksums and None not in shards else None


def _delete_build_files(directory: Path, plan: CorpusPlan) -> None:
    """Deletes what only an unfinished build needs."""
    checksums = [directory / name for name in _checksum_names(plan).values()]
    for path in [*checksums, directory / BUILD, *directory.glob("shard-*/.*")]:
        path.unlink(missing_ok=True)


def _manifest(directory: Path, plan: CorpusPlan, shards: list[dict], encoder: TextEncoder) -> dict:
    """The manifest of finished shards, without `build`; raises DataError if they have no document."""
    checksum_names = _checksum_names(plan)
    sources = []
    corpus_tally = Tally()
    for number, source in enumerate(plan.sources):
        name = checksum_names.get(number)
        checksum = None if name is None else read_json(directory / name)["sha256"]
        counts = [facts["sources"][str(number)] for facts in shards if str(number) in facts["sources"]]
        tally = Tally()
        for unit_counts in counts:
            tally.add(Tally(**unit_counts["tally"]))
        sources.append(_source_facts(source, checksum, tally, sum(unit_counts["tokens"] for unit_counts in counts)))
        corpus_tally.add(tally)
    refuse_no_documents([source.name for source in plan.sources], corpus_tally)
    engine = "+".join(sorted({facts["engine"] for facts in shards}))
    plan_facts = plan.described()
    return {
        "format": FORMAT,
        "version": VERSION,
        "tokenizer": {**plan.tokenizer, "vocabulary_size": encoder.vocabulary_size, "engine": engine},
        "dtype": token_dtype(encoder.vocabulary_size).name,
        "settings": plan_facts["settings"],
        "splits": {split: summed([facts["splits"][split] for facts in shards]) for split in SPLITS},
        "sources": sources,
        "shards": [
            {"name": plan.shard_name(unit), "splits": facts["splits"], "files": facts["files"]}
            for unit, facts in enumerate(shards)
        ],
        "plan": plan_facts,
    }


def _source_facts(source: Source, checksum: str | None, tally: Tally, num_tokens: int) -> dict:
    """What the manifest says of a source; a data set of the hub has its commit in it."""
    facts = {
        "name": source.name,
        "size": source.size,
        "sha256": checksum,
        "documents": tally.documents,
        "tokens": num_tokens,
        "left_out": tally.left_out,
        "named": tally.named,
    }
    if source.commit is not None:
        facts["commit"] = source.commit
    return facts


def summed(counts: list[dict]) -> dict:
    """Counts of shards, by name -> their sums."""
    return {name: sum(shard_counts[name] for shard_counts in counts) for name in counts[0]}
