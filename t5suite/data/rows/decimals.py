"""Numbers of narrow columns as the decimals that they stand for: float32's 0.1 is 0.1, not 0.10000000149011612.

    >>> columns = narrow_columns({"price": "float32", "name": "string"})
    >>> as_decimals({"price": 0.10000000149011612, "name": "tea"}, columns)
    {'price': 0.1, 'name': 'tea'}

Libraries return the cells of such columns as Python's floats, which have twice the digits.
"""

from collections.abc import Mapping

import numpy as np

# pyarrow says float and halffloat; datasets, pandas, NumPy and torch say float32 and float16.
NARROW_TYPES = {"float": np.float32, "float32": np.float32, "halffloat": np.float16, "float16": np.float16}


def narrow_columns(types: Mapping[str, object]) -> dict[str, type]:
    """The columns of narrow numbers, and NumPy's type of each, from the columns' types.

    >>> narrow_columns({"price": pyarrow.float32(), "count": pyarrow.int64()})
    {'price': <class 'numpy.float32'>}
    """
    names = {column: str(getattr(kind, "dtype", kind)).lower() for column, kind in types.items()}
    return {column: NARROW_TYPES[name] for column, name in names.items() if name in NARROW_TYPES}


def as_decimals(row: Mapping, columns: Mapping[str, type]) -> dict:
    """The row; cells of narrow columns are the floats with the same shortest decimals."""
    narrow = {column: kind for column, kind in columns.items() if isinstance(row.get(column), float)}
    return {**row, **{column: float(str(kind(row[column]))) for column, kind in narrow.items()}}


def scalar(value):
    """A NumPy (or torch) scalar as Python's; a narrow one by its decimal.

    >>> scalar(numpy.float32(0.1)), scalar(numpy.int64(3))
    (0.1, 3)
    """
    kind = NARROW_TYPES.get(str(getattr(value, "dtype", "")).removeprefix("torch."))
    return value.item() if kind is None else float(str(kind(value)))
