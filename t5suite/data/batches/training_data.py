"""Training rows of one task or a mixture -> tokenized examples, and the order in which a run sees them.

>>> sets = load_training_sets([load_task("glue", "rte")], DataOptions(data_dir="data"), Subset(), seed=42)
>>> features = tokenize_training_sets(sets, TextEncoding(tokenizer, Lengths(512, 512)))
>>> order = make_epoch_order(sets, features, Mixing(), Schedule(num_epochs=3, update_size=32), seed=42)
"""

import functools
import hashlib
import importlib.metadata
import json
import logging
import math
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.batches.encodings import TextEncoding, bind_encoding
from t5suite.data.batches.features import COLUMNS, Ragged, TokenArrays
from t5suite.data.batches.samplers import length_grouped_order, mixture_order, shuffled_order
from t5suite.data.mixtures import draw_mixture, equal_rates, grouped_in_updates, mixing_rates, proportional_order
from t5suite.data.rows.sources import DataOptions, LoadedSplit, MissingSplit, load_split
from t5suite.data.rows.subsets import few_shot_rows, select_rows, split_for_selection
from t5suite.runs.directory import write_json
from t5suite.tasks.formatters import FORMATTERS
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import label_id

# ---------------------------------------------------------------------------------------------------------------------
# Tokenized examples on disk, found again by what they were made of: the next run, and every rank, maps them.
#
# `datasets` keeps what it maps of the hub's data sets; rows of local files (`--data_dir`, `--train_file`) are in memory
# to it, and were tokenized anew by every run and rank. The key covers rows, task, tokenizer, lengths and encoding, and
# the code that makes texts of rows. A folder of `.npy` files is written beside its place and renamed; the first process
# makes it while the others wait at a lock. Files are mapped, not read: ranks and workers of a machine share the memory.
# Each process compares their CRC-32 once (1.9 GB/s: 40 ms for 72 MB, MNLI's size), and a damaged folder is made anew.


# Fewer rows are tokenized in about a second, and leave nothing behind.
FEWEST_ROWS = 5000
NONE = "none"
SUMS = "crc32.json"


class TokenCache:
    """A folder of tokenized data sets.

    Args:
      folder: None for the cache of `datasets`; "none" for no cache.
    """

    def __init__(self, folder: str | None = None):
        import datasets

        if not folder and datasets.is_caching_enabled():
            folder = Path(datasets.config.HF_DATASETS_CACHE) / "t5suite"
        self.folder = Path(folder) if folder and folder != NONE else None

    def serves(self, task, num_rows: int) -> bool:
        """Whether it is worth keeping; what a formatter of the user's own makes of rows may change unseen."""
        formatter = FORMATTERS[task.entry.get("formatter") or "columns"]
        return self.folder is not None and num_rows >= FEWEST_ROWS and formatter.__module__.startswith("t5suite.")

    def get(self, key: str, make: Callable[[], TokenArrays]) -> TokenArrays:
        """What is kept under a key, else what `make` makes, which is then kept."""
        from filelock import FileLock

        place = self.folder / hashlib.sha256(f"{key} {code_digest()}".encode()).hexdigest()[:32]
        try:
            found = read_arrays(place)  # by all ranks at once
            if found is not None:
                return found
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{place}.lock"):
                found = read_arrays(place)
                if found is None:
                    if place.is_dir():
                        logger.warning("the tokenized data in %s are damaged, and are made anew", place)
                    write_arrays(place, make())
                    found = read_arrays(place)
                if found is None:
                    raise OSError(f"{place}: what is read is not what was written")
        except OSError as error:  # a cache that is full or read-only costs time, and nothing else
            logger.warning("tokenized data are not kept in %s: %s", self.folder, error)
            return make()
        return found


@functools.cache
def code_digest() -> str:
    """A hash of the code that makes texts of rows and ids of texts: what an older one made is not taken.

    The key has the tokenizer's own settings beside it; this has the version of the library that uses them.
    """
    root = Path(__file__).resolve().parent.parent.parent
    files = [*sorted((root / "tasks").rglob("*.py")), root / "data" / "batches" / "encodings.py"]
    parts = [path.read_bytes() for path in files] + [importlib.metadata.version("tokenizers").encode()]
    return hashlib.sha256(b"\x00".join(parts)).hexdigest()


def write_arrays(place: Path, arrays: TokenArrays) -> None:
    """Writes a folder of flat arrays and their checksums, all of it or nothing."""
    working = Path(tempfile.mkdtemp(prefix=".", dir=place.parent))
    try:
        for name in COLUMNS:
            ragged = getattr(arrays, name)
            if ragged is not None:
                for part in ("values", "offsets"):
                    with open(working / f"{name}.{part}.npy", "wb") as file:
                        np.save(file, getattr(ragged, part), allow_pickle=False)
                        file.flush()
                        os.fsync(file.fileno())
        write_json(working / SUMS, {path.name: _crc32(path) for path in working.iterdir()})
        shutil.rmtree(place, ignore_errors=True)  # what was damaged
        working.rename(place)
    finally:
        shutil.rmtree(working, ignore_errors=True)


def read_arrays(place: Path) -> TokenArrays | None:
    """The arrays of a folder, mapped; None where there are none, or they are not what was written."""
    try:
        sums = json.loads((place / SUMS).read_bytes())
        if sums != {name: _crc32(place / name) for name in sums}:
            return None
        # plain arrays, whose slices are quicker than a `numpy.memmap`'s
        parts = {
            name.removesuffix(".npy"): np.asarray(np.load(place / name, mmap_mode="r", allow_pickle=False))
            for name in sums
        }
        columns = [name for name in COLUMNS if f"{name}.values" in parts]
        return TokenArrays(**{name: Ragged(parts[f"{name}.values"], parts[f"{name}.offsets"]) for name in columns})
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _crc32(path: Path) -> int:
    total = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            total = zlib.crc32(block, total)
    return total


# ---------------------------------------------------------------------------------------------------------------------
# Training rows


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Subset:
    """Which training rows are used; None means all."""

    limit: int | None = None
    fraction: float | None = None
    few_shot: int | None = None
    selection_share: float | None = None


@dataclass(frozen=True)
class Mixing:
    """How often each task of a mixture is drawn; `proportions` go before rates."""

    strategy: str = "proportional"
    limit: float | None = None
    temperature: float = 1.0
    proportions: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Schedule:
    """How long a run is, in epochs or updates, and how many examples an update takes."""

    num_epochs: float
    update_size: int
    max_steps: int = -1
    sampling: str = "group_by_length"


@dataclass
class TrainingSet:
    """One task's training rows after the subset, and those kept aside to select checkpoints."""

    task: Task
    rows: Any
    selection_rows: Any
    loaded: LoadedSplit
    is_subset: bool

    def describe(self) -> dict:
        """What the manifest says of it."""
        return {
            "origin": self.loaded.origin,
            "fingerprint": self.loaded.fingerprint,
            "rows": len(self.loaded.rows),
            "used": len(self.rows),
            "kept_for_selection": len(self.selection_rows) if self.selection_rows is not None else 0,
            "empty_texts": self.loaded.empty_texts,
            "subset": self.is_subset,
            **({"files": self.loaded.files} if self.loaded.files else {}),
        }


def load_training_sets(tasks: list[Task], options: DataOptions, subset: Subset, seed: int, allow_missing: bool = False):
    """`(training sets, names of tasks left out)`.

    Raises:
      DataError: a task has no training split (unless `allow_missing`), or a row is wrong.
    """
    if options.train_file and len(tasks) > 1:
        raise ConfigError("--train_file replaces one task's training split; --dataset_name names several tasks")
    sets, missing = [], []
    for task in tasks:
        try:
            sets.append(_load_training_set(task, options, subset, seed))
        except MissingSplit as error:
            if not allow_missing:
                hint = "; --allow_missing_tasks leaves such tasks out" if len(tasks) > 1 else ""
                raise MissingSplit(f"{task.benchmark}/{task.name} has no training split: {error}{hint}") from None
            logger.warning("%s/%s is left out: %s", task.benchmark, task.name, error)
            missing.append(task.name)
    if not sets:
        raise DataError("no task has a training split")
    return sets, missing


def _load_training_set(task: Task, options: DataOptions, subset: Subset, seed: int) -> TrainingSet:
    splits = list(task.splits("train").values())
    if not splits:
        raise DataError(f"{task.benchmark}/{task.name} is for evaluation only (--eval_only); it has no training split")
    loaded = load_split(task, "train", splits[0], options)
    chosen, held_out = np.arange(len(loaded.rows)), None
    if subset.selection_share:
        chosen, held_out = split_for_selection(len(loaded.rows), subset.selection_share, seed)
    before = len(chosen)
    chosen = chosen[select_rows(len(chosen), limit=subset.limit, fraction=subset.fraction, seed=seed)]
    if subset.few_shot:
        if task.value_kind != "class":
            raise ConfigError(f"--few_shot: {task.benchmark}/{task.name} has no classes; use --max_train_samples")
        column = task.entry["label_column_name"]
        labels = loaded.rows[column]
        classes = [label_id({column: labels[int(i)]}, task.entry) for i in chosen]
        chosen = chosen[few_shot_rows(classes, subset.few_shot, seed)]
    return TrainingSet(
        task=task,
        rows=loaded.rows if len(chosen) == len(loaded.rows) else loaded.rows.select(chosen),
        selection_rows=None if held_out is None else loaded.rows.select(held_out),
        loaded=loaded,
        is_subset=len(chosen) < before,
    )


def tokenize_split(
    rows, task: Task, encoding: TextEncoding, split: str, cache: TokenCache | None = None
) -> TokenArrays:
    """`Dataset.map` with the task's tokenize lambda; cached by content, task, and the encoding with its lengths."""
    encoding = encoding.for_task(task)
    fingerprint = _fingerprint(rows, task, encoding, split)

    def make() -> TokenArrays:
        tokenized = rows.map(
            bind_encoding(encoding, task, split),
            batched=True,
            remove_columns=rows.column_names,
            desc=f"tokenizing {task.name} {split}",
            new_fingerprint=fingerprint,
        )
        return TokenArrays.from_dataset(tokenized)

    return cache.get(fingerprint, make) if cache is not None and cache.serves(task, len(rows)) else make()


def tokenize_training_sets(
    sets: list[TrainingSet], encoding: TextEncoding, cache: TokenCache | None = None
) -> list[TokenArrays]:
    """The tokenized examples of each set; an expanded row (ReCoRD) gives several, a left-out one (WSC) none."""
    features = [tokenize_split(part.rows, part.task, encoding, "train", cache) for part in sets]
    for part, tokens in zip(sets, features, strict=True):
        if len(tokens) == 0:
            raise DataError(f"{part.loaded.origin}: none of the {len(part.rows)} rows makes a training example")
    return features


def make_epoch_order(features: list[TokenArrays], names: list[str], mixing: Mixing, schedule: Schedule, seed: int):
    """`(epoch -> indices into the concatenated features, {task: mixing rate})`.

    One task: every example once an epoch. A mixture: an epoch has as many draws as the tasks have examples, each
    task counting for `mixing.limit` at most.
    """
    sizes = [len(tokens) for tokens in features]
    lengths = np.concatenate([tokens.input_ids.lengths for tokens in features])
    grouped = schedule.sampling == "group_by_length"
    if len(features) == 1:
        order = shuffled_order(len(lengths), seed)
        if grouped:
            order = length_grouped_order(lengths, schedule.update_size, seed)
        elif schedule.sampling == "sequential":
            order = lambda epoch: np.arange(len(lengths))
        return order, {names[0]: 1.0}
    if mixing.proportions:
        order = proportional_order(sizes, mixing.proportions, seed)
        order = grouped_in_updates(order, lengths, schedule.update_size) if grouped else order
        return order, dict(zip(names, mixing.proportions, strict=True))
    counts = dict(zip(names, sizes, strict=True))
    rates = equal_rates(counts)
    if mixing.strategy == "proportional":
        rates = mixing_rates(counts, mixing.limit, mixing.temperature)
    epoch_length = int(sum(min(size, mixing.limit or size) for size in sizes))
    steps_an_epoch = math.ceil(epoch_length / schedule.update_size)
    epochs = (
        math.ceil(schedule.max_steps / steps_an_epoch) if schedule.max_steps > 0 else math.ceil(schedule.num_epochs)
    )
    draws = draw_mixture(sizes, list(rates.values()), max(epochs, 1) * epoch_length, seed)
    return mixture_order(draws, epoch_length, lengths, schedule.update_size, grouped), rates


def _fingerprint(rows, task: Task, encoding: TextEncoding, split: str) -> str:
    """The same for the same rows, task entry, tokenizer, lengths and encoding, in every process."""
    tokenizer = encoding.tokenizer
    if backend := getattr(tokenizer, "backend_tokenizer", None):  # its last call's lengths stand in it, too
        content = {**json.loads(backend.to_str()), "truncation": None, "padding": None}
    else:
        content = tokenizer.get_vocab()
    parts = [rows._fingerprint, json.dumps(task.entry, sort_keys=True), json.dumps(content, sort_keys=True)]
    parts += [str(tuple(encoding.lengths)), split, encoding.key]
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]
