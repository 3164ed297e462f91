"""Rows that are in memory already, as Python has them: `FineTuner(data=[{"input": "a", "output": "b"}])`.

>>> MemoryRows({"train": [{"text": "Fine.", "label": "good", "id": 7}]}, Columns(("text",), "label")).read("train")
Rows(rows=[{'text': 'Fine.', 'label': 'good'}], places=['train row 0'], origin='train rows in memory', ...)
>>> as_rows(pandas.DataFrame({"text": ["Fine."], "label": [None]}))
[{'text': 'Fine.', 'label': None}]
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from t5suite.base.errors import DataError
from t5suite.data.formats.rows import Columns, Rows, rows_fingerprint
from t5suite.data.formats.sources import check_columns


@dataclass(frozen=True)
class MemoryRows:
    """A source like any other; a row is named by its split and number from 0.

    Attributes:
      rows: of each split.
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
      DataError: it is none of these, has no rows, or a row is no dict; says which.
    """
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
    return [{str(column): _plain(value) for column, value in row.items()} for row in rows]


def _plain(value):
    """What JSON would hold: NumPy's numbers as Python's; pandas' signs for nothing as None."""
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and math.isnan(value)):
        return None
    return value
