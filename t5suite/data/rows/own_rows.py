"""A user's rows: the columns of them that a task reads, and rows in memory as a source.

    >>> MemoryRows({"train": [{"text": "a", "label": "b"}]}, Columns(("text",), "label")).read("train")
    Rows(rows=[{'text': 'a', 'label': 'b'}], places=['train row 0'], origin='train rows in memory', ...)

A source is any object with `roles`, the splits that it has ('train', 'validation', 'test'), and `read(role,
tokenizer)`; only sources that split texts by tokens need the tokenizer.
"""

import hashlib
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from t5suite.base.errors import DataError
from t5suite.base.lookup import closest, first_repeated, listed, suggestion
from t5suite.data.rows.decimals import as_decimals, narrow_columns, scalar
from t5suite.data.rows.jsonl import without_nan
from t5suite.tasks.cells import outermost, value_at, with_value_at
from t5suite.tasks.cut_marks import CUT_TOKENS, without_cut
from t5suite.tasks.targets import is_id_in_digits, label_of_value

WHOLE_NUMBER = re.compile(r"^\s*(-?[0-9]+)\.0*\s*$")

# Columns that a formatter reads where a row has them.
OPTIONAL_COLUMNS = {"instruction": ("input",)}
# So many names of unread columns stand in a message.
MOST_COLUMNS = 30


class Rows(NamedTuple):
    """A split's rows, the location of each ('file:line'), their common origin, and a fingerprint of their content.

    `commit` is the hub's commit that they were read from. `held_out_sha256` is a hash of those that are held out of
    training, for these as for the rows that are left.
    """

    rows: list[dict]
    places: list[str]
    origin: str
    fingerprint: str
    files: dict[str, str] = {}
    commit: str | None = None
    held_out_sha256: str | None = None


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
      lang_flags: the flags that name those of `texts` that hold languages, by column.
      key_flags: the flags that name the keys of nested objects in `texts` and `target`, by column.
      fixed_by: the flag whose rows always have these columns, with its value; None where other flags name them.
    """

    texts: tuple[str, ...] = ("input",)
    target: str = "output"
    optional: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = field(default=None)
    lang_flags: Mapping[str, str] = field(default_factory=dict, hash=False)
    key_flags: Mapping[str, str] = field(default_factory=dict, hash=False)
    fixed_by: str | None = None

    def shaped(self, row: dict, from_text: bool = False) -> dict:
        """The row with the columns that are used, and `idx`, which identifies it in predictions.

        >>> Columns(("sentence",), "label", labels=("bad", "good")).shaped({"sentence": "Fine.", "label": "1"}, True)
        {'sentence': 'Fine.', 'label': 'good'}

        Args:
          from_text: the row comes from a file without types: an empty answer is None, a number is a class id.
        """
        names = [outermost(column, row) for column in self.texts]
        shaped = {name: row[name] for name in names if name in row}
        if CUT_TOKENS in row:  # `t5suite predict --include_inputs` wrote it: a mark stands where the text was cut
            shaped |= {name: without_cut(cell) for name, cell in shaped.items() if isinstance(cell, str)}
        shaped |= {name: row.get(name) for name in self.optional}
        target_column = outermost(self.target, row)
        shaped.setdefault(target_column, row.get(target_column))
        if "idx" in row:
            shaped["idx"] = row["idx"]
        if self.target in self.texts:
            return shaped
        answer = value_at(shaped, self.target)
        spelled_answer = self._spelled(answer, from_text)
        return shaped if spelled_answer is answer else with_value_at(shaped, self.target, spelled_answer)

    def _spelled(self, answer, from_text: bool):
        """The answer, as the label word that it spells if it spells one."""
        if from_text:
            return _typed(answer, self.labels)
        return label_of_value(answer, self.labels) if self.labels else answer

    def needed(self, role: str) -> list[str]:
        """The columns in which the rows of a split need a value: in training rows the target, too."""
        return [*self.texts, self.target] if role == "train" else list(self.texts)

    def names_read(self, names: Sequence[str]) -> list[str]:
        """Those of a table's columns that are read.

        >>> Columns(("pair.first",), "label").names_read(["idx", "image", "pair", "label"])
        ['idx', 'pair', 'label']
        """
        columns = (*self.texts, self.target, *self.optional, "idx", CUT_TOKENS)
        outermost_names = {outermost(column, names) for column in columns}
        return [name for name in names if name in outermost_names]

    def remedy(self, column: str, names: Sequence[str]) -> str:
        """The end of a message about a column that a row lacks: what names it, and what to give.

        >>> Columns(("text",), "label").remedy("label", ["text", "lable"])
        " (--target_column); did you mean lable?"

        Args:
          names: the columns that the row, all rows or the data set have; keys of nested objects as dotted names.
        """
        if column in self.lang_flags:
            return self._choice(column, names, self.lang_flags[column])
        outer_column, _, key = column.partition(".")
        keys = [name.removeprefix(f"{outer_column}.") for name in names if name.startswith(f"{outer_column}.")]
        if column in self.key_flags and keys:
            return f" ({self.key_flags[column]} {key}); the rows have {listed(keys, MOST_COLUMNS)}"
        if self.fixed_by is not None:
            return (
                f", which {self.fixed_by} reads; --data_format jsonl in its place reads the columns that --text_column "
                f"and --target_column name; there are the columns {listed(names, MOST_COLUMNS)}"
            )
        if column != self.target:
            return self._choice(column, names, "--text_column", is_in_list=True)
        parts = [part.strip() for part in column.split(",")]
        if len(parts) > 1 and set(parts) <= set(names):
            return (
                f" (--target_column), but a column for each of {listed(parts)}: give one target column, whose cells "
                "hold a row's labels, commas between"
            )
        return self._choice(column, names, "--target_column")

    def _choice(self, column: str, names: Sequence[str], flag: str, is_in_list: bool = False) -> str:
        """The flag that names a missing column, and what it may mean: no column that is read already."""
        unread_names = [name for name in names if name not in (*self.texts, self.target)]
        if closest(column, unread_names):
            return f" ({flag}); {column_suggestion(column, unread_names, is_in_list)}"
        return f" ({flag}); there are the columns {listed(names, MOST_COLUMNS)}"

    def missing_text(self, names: Collection[str]) -> str | None:
        """The first text column that a row, or the columns of a table, lack."""
        return next((column for column in self.texts if outermost(column, names) not in names), None)


def _typed(target: str | None, labels: tuple[str, ...] | None) -> str | None:
    """The answer of a row without types: an empty one is None, so is -1 that is no label; a class id is its word.

    >>> _typed("1", ("bad", "good")), _typed("1.0", ("bad", "good")), _typed("3.0", ("1", "2", "3"))
    ('good', 'good', '3')
    """
    if target in (None, ""):
        return None
    if not labels:
        return target
    spelled = target if target in labels else _without_zeros(target)
    number = spelled.strip()
    if number == "-1" and number not in labels:
        return None
    if is_id_in_digits(number, labels) and int(number) < len(labels):
        return labels[int(number)]
    return spelled if spelled in labels else target


def _without_zeros(text: str) -> str:
    """`3` for `3.0`, as pandas writes whole numbers of a column with empty cells; other texts as they are."""
    return WHOLE_NUMBER.sub(r"\1", text)


def rows_fingerprint(rows: list[dict]) -> str:
    """A hash of rows that do not come from a file, the same for rows that were written as JSON lines and read again."""
    digest = hashlib.sha256()
    for row in rows:
        text = json.dumps(without_nan(row), sort_keys=True, ensure_ascii=False, default=str)
        digest.update(text.encode("utf-8", "replace"))
    return f"sha256:{digest.hexdigest()}"


def check_columns(columns: Columns, role: str, rows: list[dict], place: str, unread: set[str]) -> None:
    """Rejects a column that no row has: the mistake is in the flags, not in the rows.

    Args:
      place: the first row's location.
      unread: columns of the rows that are not read.

    Raises:
      DataError: no row has such a column.
    """
    for column in columns.needed(role):
        if _is_blank(column, rows):
            filled_columns = [name for name in _names_beside(column, rows[0]) if not _is_blank(name, rows)]
            remedy = columns.remedy(column, sorted({*unread, *filled_columns}))
            raise DataError(f"{place}: no row has anything in column {column!r}{remedy}")


def _names_beside(column: str, row: dict) -> list[str]:
    """The names of a row's columns; of an object in which a dotted name looks for a key, those of its keys.

    >>> _names_beside("translation.de", {"idx": 3, "translation": {"en": "Hello", "fr": "Salut"}})
    ['idx', 'translation.en', 'translation.fr']
    """
    outer_column = outermost(column, row)
    names = []
    for name, value in row.items():
        if name == outer_column != column and isinstance(value, Mapping):
            names += [f"{name}.{key}" for key in value]
        else:
            names.append(name)
    return names


def _is_blank(column: str, rows: list[dict]) -> bool:
    return all(value_at(row, column) is None for row in rows)


def column_suggestion(column: str, names: list[str], is_in_list: bool = True) -> str:
    """`suggestion`, and how a name with a comma, or with spaces at its ends, is written in a list of columns.

    >>> column_suggestion("Text", ["Text, long"])
    'did you mean \'"Text, long"\'? (a name with a comma is quoted, as in CSV)'

    Args:
      is_in_list: the flag takes a list of columns, in which such a name is quoted.
    """
    near = closest(column, names)
    quoted_names = [_quoted(name) if is_in_list else name for name in near]
    if any(name != name.strip() or not name.isprintable() for name in near):
        return f"did you mean {', '.join(map(repr, quoted_names))}? (spaces and invisible characters belong to a name)"
    if quoted_names == near:
        return suggestion(column, names)
    shown_names = [repr(name) if name.startswith('"') else name for name in quoted_names]
    return f"did you mean {', '.join(shown_names)}? (a name with a comma is quoted, as in CSV)"


def _quoted(name: str) -> str:
    """A column's name in double quotes if a list of columns needs them."""
    if "," in name or name != name.strip():
        return f'"{name}"'
    return name


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

        A text column's missing cell (a DataFrame's NaN) is an empty text, as the empty cell of a CSV file is.

        Raises:
          DataError: a column that no row has.
        """
        text_columns = [column for column in self.columns.texts if column != self.columns.target]
        rows = [self.columns.shaped(with_empty_texts(row, text_columns)) for row in self.rows[role]]
        places = [f"{role} row {i}" for i in range(len(rows))]
        unused = set().union(*self.rows[role]) - set().union(*rows)
        check_columns(self.columns, role, rows, places[0], unused)
        return Rows(rows, places, f"{role} rows in memory", rows_fingerprint(rows))


def with_empty_texts(row: Mapping, columns: Sequence[str]) -> Mapping:
    """A row in memory with an empty text in each of these columns that has no value.

    >>> with_empty_texts({"title": None, "text": "Fine."}, ["title", "text"])
    {'title': '', 'text': 'Fine.'}
    """
    for column in columns:
        if value_at(row, column, "") is None:
            row = with_value_at(row, column, "")
    return row


def as_rows(data: Any, name: str = "data") -> list[dict]:
    """A DataFrame of pandas or polars, a `datasets.Dataset` or a list of dicts as plain rows.

    A cell without a value is None.

    Raises:
      DataError: it has another type, has no rows, or a row is not a dict; the message says which.
    """
    table = _table_of(data, name)
    for i, row in enumerate(table.rows):
        if not isinstance(row, Mapping):
            raise DataError(f"{name}: row {i} is {row!r:.60}, not a dict of columns")
    if not table.rows:
        raise DataError(f"{name}: no rows")
    narrow = narrow_columns(table.column_types)
    rows = [as_decimals(row, narrow) for row in table.rows]
    return [{str(column): plain_cell(value) for column, value in row.items()} for row in rows]


class _Table(NamedTuple):
    """A user's rows, and the types of the columns as the object's library writes them; a list of dicts has none."""

    rows: list
    column_types: dict


def _table_of(data: Any, name: str) -> _Table:
    if hasattr(data, "to_dicts") and hasattr(data, "schema"):  # polars
        return _Table(data.to_dicts(), dict(data.schema))
    if hasattr(data, "to_dict") and hasattr(data, "columns"):  # pandas
        repeated = first_repeated(map(str, data.columns))
        if repeated is not None:
            raise DataError(f"{name}: column {repeated!r} is there for the second time; each column has its name")
        return _Table(data.to_dict("records"), dict(data.dtypes))
    if hasattr(data, "column_names"):  # datasets, where the features of a stream may be unknown
        features = dict(getattr(data, "features", None) or {})
        return _Table(list(_undecoded(data, features)), features)
    if isinstance(data, (list, tuple)):
        return _Table(list(data), {})
    raise DataError(f"{name}: {type(data).__name__} holds no rows; give a DataFrame, a Dataset or a list of dicts")


def _undecoded(data, features: Mapping):
    """A Dataset whose images and sounds stay as they are stored: decoding them may need another library."""
    for column, feature in features.items():
        if getattr(feature, "decode", False):
            data = data.cast_column(column, replace(feature, decode=False))
    return data


def plain_cell(value):
    """A value as JSON has it, also inside lists and objects: NumPy's scalars as Python's; pandas' missing ones as None.

    >>> plain_cell({"spans": np.array([1, 2]), "score": np.float32(0.1)})
    {'spans': [1, 2], 'score': 0.1}
    """
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = scalar(value)
    if isinstance(value, Mapping):
        return {key: plain_cell(item) for key, item in value.items()}
    if isinstance(value, (np.ndarray, list, tuple)):
        return [plain_cell(item) for item in value]
    if type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and math.isnan(value)):
        return None
    return value
