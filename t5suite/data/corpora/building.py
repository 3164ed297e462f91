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
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ChangedDataError, ConfigError, DataError
from t5suite.data.corpora.finishing import BUILD, LOCK, Build, finish, locked, num_read
from t5suite.data.corpora.plans import CorpusPlan, CorpusSettings, make_plan
from t5suite.data.corpora.store import MANIFEST, TokenStore
from t5suite.data.corpora.units import build_unit, finished_unit
from t5suite.data.corpora.workers import run_jobs
from t5suite.data.rows.jsonl import file_sha256
from t5suite.data.text.encoding import make_text_encoder
from t5suite.data.text.readers import TextOptions
from t5suite.runs.directory import read_json, write_json


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

    A document is held out for validation by its text's hash (`t5suite.data.text.held_out`). Where that would leave a
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
