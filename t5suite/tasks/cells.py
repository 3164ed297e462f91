"""The values of a row, by the names of its columns.

>>> value_at({"answers": {"text": ["1815"]}}, "answers.text")
['1815']
>>> cell({"sentence": "Good."}, "sentence", str)
'Good.'
"""

import numbers
from collections.abc import Collection, Mapping

import numpy as np

from t5suite.base.errors import DataError

# A cell's types, by the requested kind, including those of NumPy and Arrow.
CELL_KINDS = {
    object: (object, "value"),
    str: (str, "text"),
    int: (numbers.Integral, "whole number"),
    list: ((list, tuple, np.ndarray), "list"),
}
_NOTHING = object()


def as_list(value) -> list:
    """A string or a list of strings, as a list: prefixes and columns come in both forms."""
    return [value] if isinstance(value, str) else list(value)


def value_at(row, column: str, default=None):
    """`row[column]`, or the value at a dotted name: `translation.de` is `row["translation"]["de"]`.

    >>> value_at({"answers": {"text": ["1815"]}}, "answers.text")
    ['1815']
    """
    if column in row:
        return row[column]
    outer_column, dot, inner_column = column.partition(".")
    if not dot or not isinstance(row.get(outer_column), Mapping):
        return default
    return value_at(row[outer_column], inner_column, default)


def outermost(column: str, names: Collection[str]) -> str:
    """The one of a row's own columns that a dotted name begins with.

    >>> outermost("translation.de", ["id", "translation"]), outermost("a.b", ["a.b"])
    ('translation', 'a.b')
    """
    return column if column in names else column.partition(".")[0]


def with_value_at(row: Mapping, column: str, value) -> dict:
    """A copy of a row with another value in a column, or at a dotted name.

    >>> with_value_at({"answers": {"text": 3, "start": 0}}, "answers.text", "3")
    {'answers': {'text': '3', 'start': 0}}
    """
    if column in row or "." not in column:
        return {**row, column: value}
    outer_column, _, inner_column = column.partition(".")
    return {**row, outer_column: with_value_at(row[outer_column], inner_column, value)}


def null_text_message(column: str) -> str:
    """The message about a row whose text is JSON's null, or an empty cell, with what to write."""
    return f'column {column!r} is null; write "" for an empty text'


def cell(row, column: str, kind: type = object):
    """`value_at` of type `kind`, or a `DataError` that names the column, its value and the row's columns."""
    value = value_at(row, column, _NOTHING)
    if value is _NOTHING:
        raise DataError(f"the row has no column {column!r}; its columns are {', '.join(map(str, row))}")
    if value is None and kind is str:
        raise DataError(null_text_message(column))
    types, name = CELL_KINDS[kind]
    if not isinstance(value, types) or (kind is int and isinstance(value, bool)):
        raise DataError(f"column {column!r} holds {value!r}, not a {name}")
    return value
