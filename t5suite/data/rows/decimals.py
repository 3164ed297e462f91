"""Numbers of narrow columns as the decimals that they stand for: float32's 0.1 is 0.1, not 0.10000000149011612.

    >>> columns = narrow_columns({"price": "float32", "name": "string"})
    >>> as_decimals({"price": 0.10000000149011612, "name": "tea"}, columns)
    {'price': 0.1, 'name': 'tea'}

Libraries return the cells of such columns as Python's floats, which have twice the digits.
"""

from collections.abc import Mapping

import numpy as np

from t5suite.tasks.cells import value_at, with_value_at

# pyarrow says float and halffloat; datasets, pandas, NumPy and torch say float32 and float16.
NARROW_TYPES = {"float": np.float32, "float32": np.float32, "halffloat": np.float16, "float16": np.float16}


def narrow_columns(types: Mapping[str, object]) -> dict[str, type]:
    """The columns of narrow numbers, and NumPy's type of each, from the columns' types; a field has a dotted name.

    >>> narrow_columns({"price": pyarrow.float32(), "count": pyarrow.int64(), "meta": {"score": "float16"}})
    {'price': <class 'numpy.float32'>, 'meta.score': <class 'numpy.float16'>}
    """
    columns = {}
    for column, kind in types.items():
        kind = getattr(kind, "pyarrow_dtype", kind)  # pandas wraps Arrow's types
        fields = _fields_of(kind)
        columns |= {f"{column}.{name}": narrow for name, narrow in narrow_columns(fields).items()}
        name = str(getattr(kind, "dtype", kind)).lower()
        if name in NARROW_TYPES:
            columns[column] = NARROW_TYPES[name]
    return columns


def _fields_of(kind) -> Mapping[str, object]:
    """The types of the fields of a column of objects, as datasets and pyarrow have them; none for other columns."""
    if isinstance(kind, Mapping):
        return kind
    is_struct = str(kind).startswith("struct<")
    return {field.name: field.type for field in kind} if is_struct else {}


def as_decimals(row: Mapping, columns: Mapping[str, type]) -> dict:
    """The row; cells of narrow columns are the floats with the same shortest decimals."""
    converted_row = dict(row)
    for column, kind in columns.items():
        value = value_at(converted_row, column)
        if isinstance(value, float):
            converted_row = with_value_at(converted_row, column, float(str(kind(value))))
    return converted_row


def scalar(value):
    """A NumPy (or torch) scalar as Python's; a narrow one by its decimal.

    >>> scalar(numpy.float32(0.1)), scalar(numpy.int64(3))
    (0.1, 3)
    """
    kind = NARROW_TYPES.get(str(getattr(value, "dtype", "")).removeprefix("torch."))
    return value.item() if kind is None else float(str(kind(value)))
