"""Rows of one question with several answers -> one row with all of them.

    >>> rows = datasets.Dataset.from_list([{"id": "q1", "output": "Bob"}, {"id": "q1", "output": "the man"}])
    >>> merge_references(rows, "id", "output").to_list()
    [{'id': 'q1', 'output': ['Bob', 'the man']}]

A question is answered and scored once; training reads every row.
"""

from t5suite.base.errors import DataError


def merge_references(rows, by: str, column: str):
    """A `datasets.Dataset` with the first row of each value of `by`, and in `column` the list of all its rows' answers.

    Rows without an answer (None, in hidden test splits) keep None.

    Raises:
      DataError: there is no such column.
    """
    for name in (by, column):
        if name not in rows.column_names:
            raise DataError(f"no column {name!r}; the rows have {', '.join(map(repr, rows.column_names)):.500}")
    answers: dict = {}
    first: dict = {}
    for i, (key, answer) in enumerate(zip(rows[by], rows[column], strict=True)):
        if isinstance(key, (list, dict)):
            raise DataError(f"column {by!r} of row {i} holds {key!r:.100}, by which rows cannot be told apart")
        first.setdefault(key, i)
        found = answers.setdefault(key, [])
        if answer is not None:
            found.extend(map(str, answer if isinstance(answer, list) else [answer]))
    kept = rows.select(list(first.values())).remove_columns(column)
    return kept.add_column(column, [found or None for found in answers.values()]).select_columns(rows.column_names)
