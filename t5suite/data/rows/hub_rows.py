"""A user's data set of the hub, as a source of rows.

>>> HubRows("stanfordnlp/imdb", None, None, Columns(("text",), "label")).read("train").places[0]
'stanfordnlp/imdb train row 0'
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError, UserError, first_line
from t5suite.base.hub import absent, prepare_hub
from t5suite.base.hub_commits import commit_to_read
from t5suite.data.rows.decimals import as_decimals, narrow_columns
from t5suite.data.rows.files import SPLIT_NAMES
from t5suite.data.rows.fingerprints import dataset_fingerprint
from t5suite.data.rows.hub_data_sets import load_hub_data
from t5suite.data.rows.own_rows import Columns, Rows, check_columns
from t5suite.tasks.cells import value_at
from t5suite.tasks.targets import class_names, with_words_of_ids, words_of_ids


@dataclass(frozen=True)
class HubRows:
    """Rows of a hub data set, or of a local folder that `datasets` can read as one.

    Attributes:
      unwrap: a row of the data set -> the row whose columns are used.
    """

    path: str
    name: str | None
    revision: str | None
    columns: Columns
    unwrap: Callable[[dict], dict] | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        """The splits that it has under a known name."""
        return tuple(self._names())

    def _names(self) -> dict[str, str]:
        """The data set's name of each split; of several for one split, the first in `SPLIT_NAMES`."""
        splits, _ = load_hub_splits(self.path, self.name, self.revision)
        names_there = {}
        for role, names in SPLIT_NAMES.items():
            for name in names:
                if name in splits:
                    names_there.setdefault(role, name)
        return names_there

    def read(self, role: str, tokenizer=None) -> Rows:
        """All rows of a split."""
        split = self._names()[role]
        splits, commit = load_hub_splits(self.path, self.name, self.revision)
        dataset = splits[split]
        missing_column = self.columns.missing_text(dataset.column_names)
        if missing_column is not None:
            remedy = self.columns.remedy(missing_column, dataset.column_names)
            raise DataError(f"{self.path}: no column {missing_column!r}{remedy}")
        origin = " ".join(part for part in (self.path, self.name, split) if part)
        narrow = narrow_columns(dataset.features)
        # Other columns may hold images or sounds, which cannot be decoded without another library.
        read_part = dataset.select_columns(self.columns.names_read(dataset.column_names))
        plain_rows = (as_decimals(row, narrow) for row in read_part)
        if self.unwrap is not None:
            plain_rows = map(self.unwrap, plain_rows)
        names = class_names(value_at(dataset.features, self.columns.target))
        if names:
            words = words_of_ids(names, self.columns.labels)
            plain_rows = (with_words_of_ids(row, self.columns.target, words) for row in plain_rows)
        rows = [self.columns.shaped(row) for row in plain_rows]
        if not rows:
            raise DataError(f"{origin}: no rows")
        check_columns(self.columns, role, rows, f"{origin} row 0", set(dataset.column_names) - rows[0].keys())
        fingerprint = f"datasets:{dataset_fingerprint(dataset)}"
        places = [f"{origin} row {i}" for i in range(len(rows))]
        if dataset.builder_name == "csv":
            self._check_cells_of_csv(role, rows, places)
        return Rows(rows, places, origin, fingerprint, commit=commit)

    def _check_cells_of_csv(self, role: str, rows: list[dict], places: list[str]) -> None:
        """Refuses an empty cell, which may have been a text.

        Raises:
          DataError: names the first row with one, and its column.
        """
        remedy = ""
        if Path(self.path).is_dir():
            remedy = f"; --data_format csv --train_dir {self.path} reads cells as they are written"
        for place, row in zip(places, rows, strict=True):
            for column in self.columns.needed(role):
                if value_at(row, column) is None:
                    raise DataError(
                        f"{place}: column {column!r} is empty, as `datasets` reads also the cells NA, None and null of "
                        f"CSV{remedy}"
                    )


def load_hub_splits(path: str, name: str | None, revision: str | None):
    """`(splits, commit)`: the hub data set with all its splits, and the commit that they are of.

    Raises:
      ConfigError: it cannot be reached, does not exist, or has no split with a known name.
    """
    online = Path(path).exists() or prepare_hub()
    try:
        splits, commit = _load_splits(path, name, revision)
    except UserError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        message = f"hub data set {path}: {first_line(error):.300}"
        if online:
            raise ConfigError(message) from None
        raise absent(f"{message}; there is no network, and no copy in the local cache: give a local folder") from None
    if set().union(*SPLIT_NAMES.values()).isdisjoint(splits):
        raise ConfigError(f"hub data set {path}: no train, validation or test split; it has {', '.join(splits)}")
    return splits, commit


def _load_splits(path: str, name: str | None, revision: str | None):
    """`load_hub_data` of all splits, which are asked for several times: once for each state of the data set."""
    state = commit_to_read("dataset", path, revision) or folder_state(path)
    if state is None:
        return load_hub_data(path, name, None, revision)
    return _load_state_once(path, name, revision, state)


@functools.lru_cache(maxsize=8)
def _load_state_once(path: str, name: str | None, revision: str | None, state):
    return load_hub_data(path, name, None, revision)


def folder_state(path: str) -> tuple[tuple[str, int], ...] | None:
    """The files of a folder, each with the time of its last change in nanoseconds, by which `datasets`, too, tells
    whether it has read them; None if there is no such folder.

    >>> folder_state("reviews")
    (('reviews/test.csv', 1764500000000000000), ('reviews/train.csv', 1764500000000000000))
    """
    if not Path(path).is_dir():
        return None
    files = sorted(file for file in Path(path).rglob("*") if file.is_file())
    return tuple((str(file), file.stat().st_mtime_ns) for file in files)


def hub_label_words(path: str, name: str | None, revision: str | None, column: str) -> tuple[str, ...] | None:
    """The names of a column of class labels; None for other columns."""
    splits, _ = load_hub_splits(path, name, revision)
    dataset = next(iter(splits.values()))
    return tuple(getattr(value_at(dataset.features, column), "names", None) or ()) or None
