"""Sources of a user's rows: files, hub data sets, rows in memory; and reducing rows to the columns that a task reads.

    >>> FileRows({"train": (Path("reviews.csv"),)}, "csv", Columns(("text",), "label")).read("train")
    Rows(rows=[{'text': 'a', 'label': 'b'}], places=['reviews.csv:2'], origin='reviews.csv', ...)

A source is any object with `roles`, the splits that it has ('train', 'validation', 'test'), and `read(role,
tokenizer)`; only sources that split texts by tokens need the tokenizer.
"""

import functools
import hashlib
import json
import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from t5suite.base.errors import ConfigError, DataError, UserError
from t5suite.base.hub import absent, prepare_hub
from t5suite.base.hub_commits import commit_to_read
from t5suite.base.lookup import closest, suggestion
from t5suite.data.corpora.readers import BadLine, TextOptions, file_records
from t5suite.data.rows.decimals import as_decimals, narrow_columns, scalar
from t5suite.data.rows.files import SPLIT_NAMES, TYPELESS, table_rows
from t5suite.data.rows.fingerprints import dataset_fingerprint
from t5suite.data.rows.hub_data_sets import load_hub_data
from t5suite.data.rows.jsonl import file_sha256
from t5suite.tasks.cells import value_at
from t5suite.tasks.tokens import encoded

logger = logging.getLogger(__name__)

# So many names of unread columns stand in a message.
MOST_COLUMNS = 30


class Rows(NamedTuple):
    """A split's rows, the location of each ('file:line'), their common origin, and a fingerprint of their content.

    `commit` is the hub's commit that they were read from.
    """

    rows: list[dict]
    places: list[str]
    origin: str
    fingerprint: str
    files: dict[str, str] = {}
    commit: str | None = None


class RowSource(Protocol):
    """Where a user's rows come from."""

    roles: tuple[str, ...]

    def read(self, role: str, tokenizer=None) -> Rows:
        """All rows of a split."""


@dataclass(frozen=True)
class Columns:
    """The columns of a row that a task reads.

    Attributes:
      texts: columns that every row has; a dotted name is a key of a nested object (`translation.de`).
      target: the column of the answer, which is missing or empty in unlabelled rows.
      optional: columns that a row may have.
      labels: the label words of a classification task.
    """

    texts: tuple[str, ...] = ("input",)
    target: str = "output"
    optional: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = field(default=None)

    def shaped(self, row: dict, from_text: bool = False) -> dict:
        """The row with the columns that are used, and `idx`, which identifies it in predictions.

        >>> Columns(("sentence",), "label", labels=("bad", "good")).shaped({"sentence": "Fine.", "label": "1"}, True)
        {'sentence': 'Fine.', 'label': 'good'}

        Args:
          from_text: the row comes from a file without types: an empty answer is None, a number is a class id.
        """
        names = [_outermost(column, row) for column in self.texts]
        kept = {name: row[name] for name in names if name in row}
        kept |= {name: row.get(name) for name in self.optional}
        target = _outermost(self.target, row)
        if target not in kept:
            kept[target] = _typed(row.get(target), self.labels) if from_text else row.get(target)
        return kept | ({"idx": row["idx"]} if "idx" in row else {})


def _outermost(column: str, row: dict) -> str:
    """The row's own column that a dotted name begins with: `translation` of `translation.de`."""
    return column if column in row else column.partition(".")[0] if "." in column else column


def _typed(target: str | None, labels):
    if target in (None, ""):
        return None
    number = target.strip()
    if labels and target not in labels and number.isdecimal() and int(number) < len(labels):
        return labels[int(number)]
    return None if labels and number == "-1" else target


def _rows_of(paths: Sequence[Path], rows: list[dict], places: list[str]) -> Rows:
    """Rows of files: the origin of several is their folder, their fingerprint a hash of their hashes, in order."""
    hashes = {str(path): f"sha256:{file_sha256(path)}" for path in paths}
    if len(paths) == 1:
        return Rows(rows, places, str(paths[0]), *hashes.values(), hashes)
    fingerprint = f"sha256:{hashlib.sha256(' '.join(hashes.values()).encode()).hexdigest()}"
    return Rows(rows, places, f"{paths[0].parent} ({len(paths)} files)", fingerprint, hashes)


def rows_fingerprint(rows: list[dict]) -> str:
    """A hash of rows that do not come from a file."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False, default=str).encode("utf-8", "replace"))
    return f"sha256:{digest.hexdigest()}"


@dataclass(frozen=True)
class FileRows:
    """Rows of files; the files of a split are read one after the other.

    Attributes:
      files: the files of each split, in order.
      kind: a name in `files.TABLES`.
      unwrap: a row of the file -> the row whose columns are used.
      delimiter: of CSV and TSV, if it is not the file's own.
      unread_columns: those of which a message was logged: held-out rows are read twice.
    """

    files: dict[str, tuple[Path, ...]]
    kind: str
    columns: Columns
    unwrap: Callable[[dict], dict] | None = None
    delimiter: str | None = None
    unread_columns: set[str] = field(default_factory=set, compare=False, repr=False)

    @property
    def roles(self) -> tuple[str, ...]:
        """The splits that have files."""
        return tuple(self.files)

    def read(self, role: str, tokenizer=None) -> Rows:
        """All rows of a split.

        Raises:
          DataError: a line cannot be read, or is not such a row; the message names it.
        """
        rows, places, unused, lacking = [], [], set(), None
        for path in self.files[role]:
            for place, row in table_rows(path, self.kind, self.delimiter):
                try:
                    row = row if self.unwrap is None else self.unwrap(row)
                except DataError as error:
                    raise DataError(f"{place}: {error}") from None
                rows.append(self.columns.shaped(row, self.kind in TYPELESS))
                places.append(place)
                unused |= row.keys() - rows[-1].keys()
                if lacking is None and any(_outermost(column, row) not in row for column in self.columns.texts):
                    lacking = place, row
        check_columns(self.columns, role, rows, places[0], unused)
        if lacking is not None:
            place, row = lacking
            column = next(column for column in self.columns.texts if _outermost(column, row) not in row)
            raise DataError(
                f"{place}: no column {column!r}, which other rows have; {column_suggestion(column, list(row))}"
            )
        if unused - self.unread_columns:
            names = sorted(unused)
            more = f" and {len(names) - MOST_COLUMNS:,} more" if len(names) > MOST_COLUMNS else ""
            first_names = ", ".join(names[:MOST_COLUMNS])
            logger.info("%s: columns that no flag names are not read: %s%s", places[0], first_names, more)
            self.unread_columns.update(unused)
        return _rows_of(self.files[role], rows, places)


def check_columns(columns: Columns, role: str, rows: list[dict], place: str, others: set[str]) -> None:
    """Rejects a column that no row has: the mistake is in the flags, not in the rows.

    Args:
      place: the first row's location; others: columns of the rows that are not read.

    Raises:
      DataError: no row has such a column.
    """
    for column in [*columns.texts, *([columns.target] if role == "train" else [])]:
        if all(value_at(row, column) is None for row in rows):
            there = [*others, *(name for name in rows[0] if any(value_at(row, name) is not None for row in rows))]
            raise DataError(f"{place}: no row has anything in column {column!r}; {column_suggestion(column, there)}")


def column_suggestion(column: str, names: list[str]) -> str:
    """`suggestion`, and how a name with a comma is written in a list of columns.

    >>> column_suggestion("Text", ["Text, long"])
    'did you mean \'"Text, long"\'? (a name with a comma is quoted, as in CSV)'
    """
    near = closest(column, names)
    if any(name != name.strip() or not name.isprintable() for name in near):
        return f"did you mean {', '.join(map(repr, near))}? (spaces and invisible characters belong to a name)"
    if not any("," in name for name in near):
        return suggestion(column, names)
    quoted_names = ", ".join(f"'\"{name}\"'" if "," in name else name for name in near)
    return f"did you mean {quoted_names}? (a name with a comma is quoted, as in CSV)"


@dataclass(frozen=True)
class HubRows:
    """Rows of a hub data set, or of a local folder that `datasets` can read as one."""

    path: str
    name: str | None
    revision: str | None
    columns: Columns

    @property
    def roles(self) -> tuple[str, ...]:
        """The splits that it has under a known name."""
        return tuple(self._names())

    def _names(self) -> dict[str, str]:
        there, _ = load_hub_splits(self.path, self.name, self.revision)
        return {role: name for role, names in SPLIT_NAMES.items() for name in names if name in there}

    def read(self, role: str, tokenizer=None) -> Rows:
        """All rows of a split."""
        split = self._names()[role]
        splits, commit = load_hub_splits(self.path, self.name, self.revision)
        dataset = splits[split]
        for column in self.columns.texts:
            if column not in dataset.column_names and column.partition(".")[0] not in dataset.column_names:
                raise DataError(f"{self.path}: no column {column!r}; {suggestion(column, dataset.column_names)}")
        origin = " ".join(part for part in (self.path, self.name, split) if part)
        narrow = narrow_columns(dataset.features)
        rows = [self.columns.shaped(as_decimals(row, narrow)) for row in dataset]
        fingerprint = f"datasets:{dataset_fingerprint(dataset)}"
        places = [f"{origin} row {i}" for i in range(len(rows))]
        return Rows(rows, places, origin, fingerprint, commit=commit)


def load_hub_splits(path: str, name: str | None, revision: str | None):
    """`(splits, commit)`: the hub data set with all its splits, and the commit that they are of.

    Raises:
      ConfigError: it cannot be reached, does not exist, or has no split with a known name.
    """
    online = Path(path).exists() or prepare_hub()
    try:
        splits, commit = load_hub_data_once(path, name, revision, commit_to_read("dataset", path, revision))
    except UserError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        message = f"hub data set {path}: {(str(error).splitlines() or ['?'])[0]:.300}"
        if online:
            raise ConfigError(message) from None
        raise absent(f"{message}; there is no network, and no copy in the local cache: give a local folder") from None
    if not any(name in splits for names in SPLIT_NAMES.values() for name in names):
        raise ConfigError(f"hub data set {path}: no train, validation or test split; it has {', '.join(splits)}")
    return splits, commit


@functools.lru_cache(maxsize=8)
def load_hub_data_once(path: str, name: str | None, revision: str | None, commit: str | None):
    """`load_hub_data` of all splits, which are asked for several times; `commit` tells one state from another."""
    return load_hub_data(path, name, None, revision)


def hub_label_words(path: str, name: str | None, revision: str | None, column: str) -> tuple[str, ...] | None:
    """The names of a column of class labels; None for other columns."""
    splits, _ = load_hub_splits(path, name, revision)
    dataset = next(iter(splits.values()))
    return tuple(getattr(dataset.features.get(column), "names", None) or ()) or None


@dataclass(frozen=True)
class MemoryRows:
    """Rows in memory, by split; a row is named by its split and its number from 0.

    >>> MemoryRows({"train": [{"text": "Fine.", "label": "good", "id": 7}]}, Columns(("text",), "label")).read("train")
    Rows(rows=[{'text': 'Fine.', 'label': 'good'}], places=['train row 0'], origin='train rows in memory', ...)
    """

    rows: Mapping[str, list[dict]]
    columns: Columns

    @property
    def roles(self) -> tuple[str, ...]:
        """The splits that were given."""
        return tuple(self.rows)

    def read(self, role: str, tokenizer=None) -> Rows:
        """All rows of a split.

        Raises:
          DataError: a column that no row has.
        """
        given = self.rows[role]
        rows = [self.columns.shaped(row) for row in given]
        places = [f"{role} row {i}" for i in range(len(rows))]
        unused = {name for row in given for name in row} - {name for row in rows for name in row}
        check_columns(self.columns, role, rows, places[0], unused)
        return Rows(rows, places, f"{role} rows in memory", rows_fingerprint(rows))


def as_rows(data: Any, name: str = "data") -> list[dict]:
    """A pandas DataFrame, a `datasets.Dataset` or a list of dicts as plain rows; a cell without a value is None.

    Raises:
      DataError: it has another type, has no rows, or a row is not a dict; the message says which.
    """
    types = getattr(data, "dtypes", None) if hasattr(data, "columns") else getattr(data, "features", None)
    if hasattr(data, "to_dict") and hasattr(data, "columns"):
        rows = data.to_dict("records")
    elif isinstance(data, (list, tuple)) or hasattr(data, "column_names"):
        rows = list(data)
    else:
        raise DataError(f"{name}: {type(data).__name__} holds no rows; give a DataFrame, a Dataset or a list of dicts")
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"{name}: row {i} is {row!r:.60}, not a dict of columns")
    if not rows:
        raise DataError(f"{name}: no rows")
    narrow = narrow_columns({} if types is None else dict(types))
    return [{str(column): _plain(value) for column, value in as_decimals(row, narrow).items()} for row in rows]


def _plain(value):
    """A value as JSON has it: NumPy scalars as Python numbers; pandas' missing values as None."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = scalar(value)
    if type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and math.isnan(value)):
        return None
    return value


# ---------------------------------------------------------------------------------------------------------------------
# Running text, for models that continue a text (`--data_format text`). Documents are packed into blocks of at most
# `block_size` tokens, end-of-sequence included, with a line break between two documents; one that is longer continues
# in the next block. Only empty documents are dropped.


@dataclass(frozen=True)
class TextRows:
    """Blocks of text from files.

    Attributes:
      options: what a document is, and its column in files that have columns.
    """

    files: dict[str, tuple[Path, ...]]
    options: TextOptions
    block_size: int

    @property
    def roles(self) -> tuple[str, ...]:
        """The splits that have files."""
        return tuple(self.files)

    def read(self, role: str, tokenizer=None) -> Rows:
        """All blocks of a split.

        Raises:
          DataError: a line cannot be read, or there is no text.
        """
        rows, places = [], []
        for place, block in self._blocks(role, tokenizer):
            rows.append({self.options.text_column_name: block})
            places.append(place)
        if not rows:
            raise DataError(f"{', '.join(map(str, self.files[role]))}: no text")
        return _rows_of(self.files[role], rows, places)

    def _blocks(self, role: str, tokenizer) -> Iterator[tuple[str, str]]:
        room = self.block_size - max(1, tokenizer.num_special_tokens_to_add())
        start, block, used = None, "", 0
        for place, document in self._documents(role):
            for piece in pieces(document, room, tokenizer):
                joined = f"{block}\n{piece}" if block else piece
                if block and (used + count_tokens(piece, tokenizer) > room or count_tokens(joined, tokenizer) > room):
                    yield start, block
                    block, joined = "", piece
                start = place if not block else start
                block, used = joined, count_tokens(joined, tokenizer)
        if block:
            yield start, block

    def _documents(self, role: str) -> Iterator[tuple[str, str]]:
        for path in self.files[role]:
            for record in file_records(path, self.options):
                if isinstance(record, BadLine):
                    raise DataError(f"{path}:{record.line}: {record.problem}")
                if record.text.strip():
                    yield f"{path}:{record.line}", record.text


def pieces(text: str, count: int, tokenizer) -> list[str]:
    """The text split into consecutive pieces, each at most `count` tokens when tokenized separately.

    >>> pieces("a b c d e", 2, word_tokenizer)
    ['a b', ' c d', ' e']
    """
    if tokenizer.is_fast:
        offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        starts = [start for start, _ in offsets]
    else:  # it has no offsets of tokens: split at words instead
        starts = [match.start() for match in re.finditer(r"\S+", text)]
    borders = [0, *starts[1:], len(text)]
    found, at = [], 0
    while at < len(starts):
        end = min(at + count, len(starts))
        while end > at + 1 and count_tokens(text[borders[at] : borders[end]], tokenizer) > count:
            end -= 1
        found.append(text[borders[at] : borders[end]])
        at = end
    return found


def count_tokens(text: str, tokenizer) -> int:
    """Number of tokens of a text, without special tokens."""
    return len(encoded(tokenizer, [text], add_special_tokens=False)["input_ids"][0])
