"""Sources of a user's rows: files, hub data sets, and a part of the training rows kept for validation.

>>> source = FileRows({"train": (Path("reviews.csv"),)}, "csv", Columns(("text",), "label"))
>>> HeldOutRows(source, share=0.05, seed=42).roles
('train', 'validation')
"""

import functools
import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.hub import prepare_hub
from t5suite.base.lookup import suggestion
from t5suite.data.formats.files import SPLIT_NAMES
from t5suite.data.formats.rows import Columns, Rows, RowSource, files_fingerprint, hashed_files
from t5suite.data.formats.tables import table_rows
from t5suite.tasks.targets import value_at

logger = logging.getLogger(__name__)

# Files without types: every cell is a text.
TYPELESS = ("csv", "tsv")
_VALIDATION_STREAM = 6


@dataclass(frozen=True)
class FileRows:
    """Rows of files, all files of a split one after the other.

    Attributes:
      files: the files of each split, in order.
      kind: a name in `tables.TABLES`.
      unwrap: a row as it stands in the file -> the row whose columns count.
    """

    files: dict[str, tuple[Path, ...]]
    kind: str
    columns: Columns
    unwrap: Callable[[dict], dict] | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        """The splits that have files."""
        return tuple(self.files)

    def read(self, role: str, tokenizer=None) -> Rows:
        """All rows of a split.

        Raises:
          DataError: a line cannot be read, or is no such row; the message names it.
        """
        rows, places, unused = [], [], set()
        for path in self.files[role]:
            for place, row in table_rows(path, self.kind):
                row = _unwrapped(row, self.unwrap, place)
                rows.append(self.columns.shaped(row, self.kind in TYPELESS))
                places.append(place)
                unused |= row.keys() - rows[-1].keys()
        check_columns(self.columns, role, rows, places[0], unused)
        if unused:
            logger.info("%s: columns that no flag names are not read: %s", places[0], ", ".join(sorted(unused)))
        hashes = hashed_files(self.files[role])
        return Rows(rows, places, _origin(self.files[role]), files_fingerprint(hashes), hashes)


def check_columns(columns: Columns, role: str, rows: list[dict], place: str, others: set[str]) -> None:
    """A column that no row has is a slip of the flags, not of the rows.

    Args:
      place: where the first row stands; others: columns of the rows that are not read.

    Raises:
      DataError: there is such a column.
    """
    for column in [*columns.texts, *([columns.target] if role == "train" else [])]:
        if all(value_at(row, column) is None for row in rows):
            there = [*others, *(name for name in rows[0] if any(value_at(row, name) is not None for row in rows))]
            raise DataError(f"{place}: no row has anything in column {column!r}; {suggestion(column, there)}")


def _unwrapped(row: dict, unwrap, place: str) -> dict:
    try:
        return row if unwrap is None else unwrap(row)
    except DataError as error:
        raise DataError(f"{place}: {error}") from None


def _origin(files: tuple[Path, ...]) -> str:
    return str(files[0]) if len(files) == 1 else f"{files[0].parent} ({len(files)} files)"


@dataclass(frozen=True)
class HubRows:
    """Rows of a hub data set, or of a local folder that `datasets` can read as one."""

    path: str
    name: str | None
    revision: str | None
    columns: Columns

    @property
    def roles(self) -> tuple[str, ...]:
        """The splits that it has under a name that is known."""
        return tuple(self._names())

    def _names(self) -> dict[str, str]:
        there = load_hub_splits(self.path, self.name, self.revision)
        return {role: name for role, names in SPLIT_NAMES.items() for name in names if name in there}

    def read(self, role: str, tokenizer=None) -> Rows:
        """All rows of a split."""
        split = self._names()[role]
        dataset = load_hub_splits(self.path, self.name, self.revision)[split]
        for column in self.columns.texts:
            if column not in dataset.column_names and column.partition(".")[0] not in dataset.column_names:
                raise DataError(f"{self.path}: no column {column!r}; {suggestion(column, dataset.column_names)}")
        origin = " ".join(part for part in (self.path, self.name, split) if part)
        rows = [self.columns.shaped(row) for row in dataset]
        fingerprint = f"datasets:{dataset._fingerprint}"
        return Rows(rows, [f"{origin} row {i}" for i in range(len(rows))], origin, fingerprint)


@functools.lru_cache(maxsize=8)
def load_hub_splits(path: str, name: str | None, revision: str | None):
    """The hub data set with all its splits.

    Raises:
      ConfigError: it cannot be reached, or is not there.
    """
    import datasets

    online = Path(path).exists() or prepare_hub()
    try:
        found = datasets.load_dataset(path, name, revision=revision)
    except (OSError, ValueError, RuntimeError) as error:
        hint = "" if online else "; there is no network, and no copy in the local cache: give a local folder"
        raise ConfigError(f"hub data set {path}: {(str(error).splitlines() or ['?'])[0]:.300}{hint}") from None
    if not any(name in found for names in SPLIT_NAMES.values() for name in names):
        raise ConfigError(f"hub data set {path}: no train, validation or test split; it has {', '.join(found)}")
    return found


def hub_label_words(path: str, name: str | None, revision: str | None, column: str) -> tuple[str, ...] | None:
    """The names of a column of class labels; None for other columns."""
    dataset = next(iter(load_hub_splits(path, name, revision).values()))
    return tuple(getattr(dataset.features.get(column), "names", None) or ()) or None


@dataclass(frozen=True)
class HeldOutRows:
    """A source without validation rows, a part of whose training rows is kept for that and never trained on.

    Rows with equal inputs stay on one side, so that none that is learnt is validated on.

    Attributes:
      share: how much of the training rows, between 0 and 1.
      seed: decides which.
    """

    source: RowSource
    columns: Columns
    share: float
    seed: int

    @property
    def roles(self) -> tuple[str, ...]:
        """The source's splits, and 'validation'."""
        return ("train", "validation", *(role for role in self.source.roles if role != "train"))

    def read(self, role: str, tokenizer=None) -> Rows:
        """All rows of a split; those of 'train' and 'validation' together are the source's training rows."""
        if role not in ("train", "validation"):
            return self.source.read(role, tokenizer)
        rows = self.source.read("train", tokenizer)
        held_out = held_out_rows([_key(row, self.columns) for row in rows.rows], self.share, self.seed)
        if not held_out.any() or held_out.all():
            raise DataError(
                f"{rows.origin}: {len(rows.rows)} rows are too few to keep {self.share:.1%} of them for validation; "
                "give --validation_file, a larger --validation_split, or --no_eval"
            )
        kept = np.flatnonzero(held_out if role == "validation" else ~held_out)
        return rows._replace(
            rows=[rows.rows[i] for i in kept],
            places=[rows.places[i] for i in kept],
            origin=f"{rows.origin} ({'held-out' if role == 'validation' else 'not held-out'} rows)",
        )


def held_out_rows(keys: list[str], share: float, seed: int) -> np.ndarray:
    """Which rows are held out, as booleans: whole groups of equal keys, in a random order, as long as they fit.

    >>> held_out_rows(["a", "b", "a", "c"], share=0.25, seed=0)
    array([False,  True, False, False])
    """
    groups: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    wanted, chosen = max(1, round(len(keys) * share)), np.zeros(len(keys), dtype=bool)
    places = list(groups.values())
    for group in np.random.default_rng((seed, _VALIDATION_STREAM)).permutation(len(places)):
        if chosen.sum() + len(places[group]) <= wanted:
            chosen[places[group]] = True
    if not chosen.any():
        chosen[min(places, key=len)] = True
    return chosen


def _key(row: dict, columns: Columns) -> str:
    texts = [str(value_at(row, column)) for column in (*columns.texts, *columns.optional)]
    return hashlib.sha256("\x00".join(texts).encode("utf-8", "replace")).hexdigest()
