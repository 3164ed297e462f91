"""Training rows of one task or a mixture -> tokenized examples, and the order in which a run uses them.

>>> sets = load_training_sets([load_task("glue", "rte")], DataOptions(data_dir="data"), Subset(), seed=42)
>>> features = tokenize_training_sets(sets, TextEncoding(tokenizer, Lengths(512, 512)))
>>> order, rates = make_epoch_order(features, ["rte"], Mixing(), "group_by_length", seed=42, update_size=32)
"""

import functools
import hashlib
import importlib.metadata
import json
import logging
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.files import whole_file
from t5suite.data.batches.encodings import LanguageEncoding, TextEncoding, bind_encoding
from t5suite.data.batches.features import COLUMNS, RaggedColumn, TokenArrays
from t5suite.data.batches.samplers import length_grouped_order, shuffled_order
from t5suite.data.mixtures import MixtureDraws, epoch_counts, grouped_in_updates, mixing_rates, proportional_order
from t5suite.data.rows.fingerprints import dataset_fingerprint
from t5suite.data.rows.sources import DataOptions, LoadedSplit, MissingSplit, load_split
from t5suite.data.rows.subsets import input_digests, select_rows, split_for_selection
from t5suite.tasks.examples import ExampleSet
from t5suite.tasks.registry import Task
from t5suite.tasks.targets import label_of, rows_by_label

logger = logging.getLogger(__name__)
# Fewer rows are tokenized in about a second, and are not cached.
FEWEST_ROWS = 5000
ROWS_AT_ONCE = 1000
# How many draws a mixture has: more than any run takes, wherever in its order it begins. They are made on demand.
ENDLESS = 2**62


@dataclass(frozen=True)
class Subset:
    """Which training rows are used; None means all."""

    limit: int | None = None
    selection_share: float | None = None


@dataclass(frozen=True)
class Mixing:
    """How often each task of a mixture is drawn; `proportions` take precedence over rates."""

    strategy: str = "proportional"
    limit: float | None = None
    temperature: float = 1.0
    proportions: tuple[float, ...] | None = None


@dataclass
class TrainingSet:
    """One task's training rows after subsetting, and the rows held out to select checkpoints."""

    task: Task
    rows: Any
    selection_rows: Any
    loaded: LoadedSplit
    is_subset: bool

    def describe(self) -> dict:
        """Its description in the manifest."""
        return {
            "origin": self.loaded.origin,
            "fingerprint": self.loaded.fingerprint,
            "rows": len(self.loaded.rows),
            "used": len(self.rows),
            "kept_for_selection": len(self.selection_rows) if self.selection_rows is not None else 0,
            "empty_texts": self.loaded.empty_texts,
            "subset": self.is_subset,
            **self.loaded.more,
        }

    @functools.cached_property
    def labels_of_sets(self) -> list[str]:
        """The labels that its rows have, of a task of sets of labels."""
        return list(rows_by_label(label_of(row, self.task.entry) for row in rows_of_batches(self.rows)))


def load_training_sets(tasks: list[Task], options: DataOptions, subset: Subset, seed: int, allow_missing: bool = False):
    """`(training sets, names of skipped tasks)`.

    Raises:
      DataError: a task has no training split (unless `allow_missing`), or a row is invalid.
    """
    if options.train_file and len(tasks) > 1:
        raise ConfigError("--train_file replaces one task's training split; --dataset_name names several tasks")
    sets = []
    missing = []
    for task in tasks:
        try:
            sets.append(_load_training_set(task, options, subset, seed))
        except MissingSplit as error:
            if not allow_missing:
                hint = "; --allow_missing_tasks skips such tasks" if len(tasks) > 1 else ""
                raise MissingSplit(f"{task.benchmark}/{task.name} has no training split: {error}{hint}") from None
            logger.warning("%s/%s is skipped: %s", task.benchmark, task.name, error)
            missing.append(task.name)
    if not sets:
        raise DataError("no task has a training split")
    return sets, missing


def _load_training_set(task: Task, options: DataOptions, subset: Subset, seed: int) -> TrainingSet:
    splits = list(task.splits("train").values())
    if not splits:
        raise DataError(f"{task.benchmark}/{task.name} is for evaluation only (--eval_only); it has no training split")
    loaded = load_split(task, "train", splits[0], options)
    chosen = np.arange(len(loaded.rows))
    held_out = None
    if subset.selection_share:
        inputs = input_digests(rows_of_batches(loaded.rows), task, loaded.place)
        chosen, held_out = split_for_selection(inputs, subset.selection_share, seed)
    before = len(chosen)
    chosen = chosen[select_rows(len(chosen), limit=subset.limit, seed=seed)]
    return TrainingSet(
        task=task,
        rows=loaded.rows if len(chosen) == len(loaded.rows) else loaded.rows.select(chosen),
        selection_rows=None if held_out is None else loaded.rows.select(held_out),
        loaded=loaded,
        is_subset=len(chosen) < (loaded.official or before),
    )


def rows_of_batches(rows) -> Iterator[dict]:
    """The rows of a `datasets.Dataset`, which reads single ones forty times more slowly."""
    for batch in rows.iter(batch_size=ROWS_AT_ONCE):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


def tokenize_split(rows, task: Task, encoding: TextEncoding, split: str, cache: bool = False) -> TokenArrays:
    """`Dataset.map` with the task's tokenize lambda.

    Large splits are cached in a file, which the next run and all other ranks read. Its key: content, task, tokenizer,
    lengths, encoding and the code that turns rows into texts.

    Args:
      cache: whether many rows are kept, in the cache of `datasets` (the variable HF_DATASETS_CACHE).
    """
    encoding = encoding.for_task(task)
    fingerprint = _fingerprint(rows, task, encoding, split)

    def make() -> TokenArrays:
        tokenized = rows.map(
            bind_encoding(encoding, task, split),
            batched=True,
            remove_columns=rows.column_names,
            desc=f"tokenizing {task.name} {split}",
            new_fingerprint=fingerprint,
            # The fingerprint knows no code of the user's: the cache of `datasets` would give what earlier code made.
            keep_in_memory=True,
            load_from_cache_file=False,
        )
        return TokenArrays.from_dataset(tokenized)

    if not cache or len(rows) < FEWEST_ROWS or not _may_be_cached(task):
        return make()
    return _read_or_make(Path(datasets.config.HF_DATASETS_CACHE, "t5suite", f"{fingerprint}.npz"), make)


def tokenize_example_set(examples: ExampleSet, task: Task, encoding: TextEncoding) -> TokenArrays:
    """The tokens of rows that have been read; `encoding` has the task's own lengths (`for_task`)."""
    if not len(examples):
        return TokenArrays.from_columns({"input_ids": [], "labels": []})
    parts = []
    for start in range(0, len(examples.rows), ROWS_AT_ONCE):
        end = min(start + ROWS_AT_ONCE, len(examples.rows))
        columns = encoding.columns(examples.part(range(start, end)), task)
        parts.append(TokenArrays.from_columns(columns))
    return TokenArrays.concatenate(parts)


def _read_or_make(place: Path, make: Callable[[], TokenArrays]) -> TokenArrays:
    """The content of a cache file, which one process makes while others wait; NumPy checks its checksums."""
    from filelock import FileLock

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(f"{place}.lock").acquire()
    except OSError as error:
        _log_missing_cache(place, error)
        return make()
    with lock:
        tokens = _cached_tokens(place)
        if tokens is not None:
            return tokens
        tokens = make()
        try:
            _write_tokens(place, tokens)
        except OSError as error:
            _log_missing_cache(place, error)
        return tokens


def _log_missing_cache(place: Path, error: OSError) -> None:
    """Says why rows are tokenized again in the next run: a full or read-only cache costs only time."""
    logger.warning("tokenized rows are not cached in %s: %s", place, error)


def _cached_tokens(place: Path) -> TokenArrays | None:
    """The content of a cache file; None if there is none, or one that is damaged or cannot be read."""
    try:
        return _read_tokens(place)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        logger.warning("the tokenized rows in %s cannot be read (%s), and are rebuilt", place, error)
        return None


def _read_tokens(place: Path) -> TokenArrays:
    with np.load(place) as arrays:
        columns = {}
        for name in COLUMNS:
            if f"{name}.values" in arrays:
                columns[name] = RaggedColumn(arrays[f"{name}.values"], arrays[f"{name}.offsets"])
        return TokenArrays(**columns)


def _write_tokens(place: Path, tokens: TokenArrays) -> None:
    arrays = {}
    for name in COLUMNS:
        column = getattr(tokens, name)
        if column is not None:
            arrays |= {f"{name}.values": column.values, f"{name}.offsets": column.offsets}
    with whole_file(place) as temporary, open(temporary, "wb") as file:
        np.savez(file, **arrays)


def _may_be_cached(task: Task) -> bool:
    """The code of your own formatter or target may change unnoticed: its rows are not cached."""
    return not task.has_own_formatter and not task.has_own_target and datasets.is_caching_enabled()


def tokenize_training_sets(sets: list[TrainingSet], encoding: TextEncoding) -> list[TokenArrays]:
    """The tokenized examples of each set; an expanded row (ReCoRD) gives several, a skipped one (WSC) none."""
    for part in sets:
        check_languages(part.loaded, encoding)
    features = [tokenize_split(part.rows, part.task, encoding, "train", cache=True) for part in sets]
    for part, tokens in zip(sets, features, strict=True):
        if len(tokens) == 0:
            raise DataError(f"{part.loaded.origin}: none of the {len(part.rows)} rows makes a training example")
    return features


def check_languages(loaded: LoadedSplit, encoding: TextEncoding) -> None:
    """Refuses a row whose columns of languages name none that the tokenizer has.

    Raises:
      DataError: names the row's place, the column and the cell.
    """
    if not isinstance(encoding, LanguageEncoding) or not any(encoding.languages[2:]):
        return
    for i, row in enumerate(rows_of_batches(loaded.rows)):
        try:
            encoding.languages_of(row)
        except DataError as error:
            raise DataError(f"{loaded.place(i)}: {error}") from None


def make_epoch_order(
    features: list[TokenArrays],
    names: list[str],
    mixing: Mixing,
    sampling: str,
    seed: int,
    update_size: int,
):
    """`(epoch -> indices into the concatenated features, {task: mixing rate})`.

    One task: every example once per epoch. A mixture: an epoch has as many draws as the tasks have examples, each
    task counted with at most `mixing.limit`. No order ends.

    Args:
      sampling: `--train_sampling_strategy`.
      update_size: by how many examples those of similar length are grouped.
    """
    sizes = [len(tokens) for tokens in features]
    lengths = np.concatenate([tokens.input_ids.lengths for tokens in features])
    grouped = sampling == "group_by_length"
    if len(features) == 1:
        order = shuffled_order(len(lengths), seed)
        if grouped:
            order = length_grouped_order(lengths, update_size, seed)
        elif sampling == "sequential":
            order = lambda epoch: np.arange(len(lengths))
        return order, {names[0]: 1.0}
    if mixing.proportions:
        order = proportional_order(sizes, mixing.proportions, seed)
        warn_of_sets_left_out(names, mixing.proportions, sum(sizes))
        rates = dict(zip(names, mixing.proportions, strict=True))
    else:
        rates = dict.fromkeys(names, 1.0)
        if mixing.strategy == "proportional":
            rates = mixing_rates(dict(zip(names, sizes, strict=True)), mixing.limit, mixing.temperature)
        epoch_length = examples_an_epoch(sizes, mixing)
        draws = MixtureDraws(sizes, list(rates.values()), ENDLESS, seed)
        order = lambda epoch: draws[epoch * epoch_length : (epoch + 1) * epoch_length]
    # Within an update only: grouping over many fills each with one task, as tasks differ in length; the bundled
    # benchmark then scored 64 points on average instead of 73 (docs/log.md).
    return grouped_in_updates(order, lengths, update_size) if grouped else order, rates


def warn_of_sets_left_out(names: list[str], proportions: Sequence[float], total: int) -> None:
    """Warns of data sets whose share of an epoch is less than one example, and rounded to none."""
    counts = epoch_counts(proportions, total)
    names_left_out = [name for name, count in zip(names, counts, strict=True) if count == 0]
    if names_left_out:
        logger.warning(
            "--data_sampling_proportion %s: no example of %s is drawn, as its share of the %d of an epoch is less than "
            "one; give it a larger one",
            " ".join(f"{proportion:g}" for proportion in proportions),
            ", ".join(names_left_out),
            total,
        )


def examples_an_epoch(sizes: list[int], mixing: Mixing) -> int:
    """How many examples an epoch has: all of one task; of a mixture as many draws as its tasks have examples.

    >>> examples_an_epoch([100, 9000], Mixing(limit=500))
    600
    """
    if len(sizes) == 1 or mixing.proportions:
        return sum(sizes)
    return int(sum(min(size, mixing.limit or size) for size in sizes))


def _fingerprint(rows, task: Task, encoding: TextEncoding, split: str) -> str:
    """The same for the same rows, task entry, tokenizer, lengths, encoding and code, in every process."""
    tokenizer = encoding.tokenizer
    if backend := getattr(tokenizer, "backend_tokenizer", None):  # it also has the lengths of the last call
        content = {**json.loads(backend.to_str()), "truncation": None, "padding": None}
    else:
        content = tokenizer.get_vocab()
    parts = [dataset_fingerprint(rows), json.dumps(task.entry, sort_keys=True), json.dumps(content, sort_keys=True)]
    # Encodings write the end and other special tokens themselves; the backend does not know which these are.
    parts.append(json.dumps(tokenizer.special_tokens_map, sort_keys=True, default=str))
    parts += [str(tuple(encoding.lengths)), split, encoding.key, importlib.metadata.version("tokenizers")]
    parts.append(_code_of_examples())
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _code_of_examples() -> str:
    """The code that makes examples of rows, and ids of examples."""
    root = Path(__file__).resolve().parent.parent.parent
    files = [*sorted((root / "tasks").rglob("*.py")), root / "contrib" / "formatters.py"]
    files += sorted((root / "data" / "batches" / "encodings").rglob("*.py"))
    return "\x00".join(path.read_text(encoding="utf-8") for path in files)
