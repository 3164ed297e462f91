"""The text that the model reads of a row.

>>> row = Row(0, "rows.jsonl:1", {"sentence1": "It rains.", "sentence2": "It is wet."})
>>> input_text(row, load_task("glue", "rte"))
'rte sentence1: It rains. sentence2: It is wet.'
"""

import contextlib
from collections.abc import Iterator

from t5suite.base.errors import ConfigError, DataError
from t5suite.inference.rows import TEXT_KEYS, Row
from t5suite.tasks.cells import as_list, null_text_message, value_at
from t5suite.tasks.registry import Task

_MISSING = object()


class NoTextError(DataError):
    """A row has no text that the model could read; the message says what it has and what it needs."""


@contextlib.contextmanager
def with_hints_about_columns() -> Iterator[None]:
    """Within the block, a row without a text is told what `t5suite predict` has for other columns.

    Raises:
      DataError: the row's, with the hints.
    """
    try:
        yield
    except NoTextError as error:
        raise DataError(
            f"{error}; --text_column names the text's column in your rows; the first line of CSV and TSV names the "
            "columns"
        ) from None


def input_text(row: Row, task: Task | None, raw: bool = False, fits=None) -> str:
    """What the model reads: a task's columns with their prefixes, or the finished text that the row holds.

    Args:
      task: what the model was trained on; None if unknown.
      raw: the row holds a finished text, whatever the task.
      fits: whether a text is short enough, for tasks that show as many examples as fit.

    Raises:
      NoTextError: the row has neither the task's columns nor a text; the message has its file and line.
      DataError: a column's cell cannot be read.
    """
    if task is None or raw:
        return row.value if isinstance(row.value, str) else _finished_text(row.value, row.place, None)
    try:
        columns = task_columns(row.value, task)
        if has_text_columns(columns, task):
            return task.examples(without_answer(columns, task), "validation", fits)[0].inputs
    except ConfigError:
        raise
    except DataError as error:
        raise DataError(f"{row.place}: {error}") from None
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise DataError(f"{row.place}: not a row of {task.benchmark}/{task.name} ({problem:.200})") from None
    return _finished_text(columns, row.place, task)


def task_columns(row: dict | str, task: Task) -> dict:
    """A row as columns: a line of text is the task's only column.

    >>> task_columns("Good.", load_task("glue", "sst2"))
    {'sentence': 'Good.'}

    Raises:
      DataError: a line of text, of a task that reads several columns.
    """
    if isinstance(row, dict):
        return row
    columns = task.text_columns
    if len(columns) > 1:
        raise DataError(
            f"a line of text, but {task.benchmark}/{task.name} reads {len(columns)} columns; give objects with "
            f"{', '.join(columns)} (JSON, in Python dicts), or finished texts with --raw (in Python raw=True)"
        )
    return {columns[0]: row}


def without_answer(row: dict, task: Task) -> dict:
    """The row with an unknown answer: the model reads none, so any value may stand there.

    >>> without_answer({"sentence": "Good.", "label": "?"}, load_task("glue", "sst2"))
    {'sentence': 'Good.', 'label': None}
    """
    answer_column = task.entry["label_column_name"]
    return row if answer_column in task.text_columns else {**row, answer_column: None}


def has_text_columns(row: dict, task: Task) -> bool:
    """Whether a row has all columns that the task's text is made of; a dotted name reaches into a nested dict.

    >>> has_text_columns({"translation": {"en": "Hi."}}, load_task("translation", "wmt14_en_de"))
    True
    """
    return all(value_at(row, column, _MISSING) is not _MISSING for column in task.text_columns)


def _finished_text(row: dict, place: str, task: Task | None) -> str:
    """The text in a row that has no columns of a task.

    Raises:
      NoTextError: there is none, or several.
      DataError: it is not a text.
    """
    keys = [key for key in TEXT_KEYS if key in row]
    if len(keys) > 1:
        raise NoTextError(f"{place}: the row has a text in each of {' and '.join(keys)}; give one of them")
    if not keys:
        columns = ", ".join(map(str, row)) or "nothing"
        raise NoTextError(f"{place}: the row has {_missing_text(row, task)}; it has {columns:.200}")
    text = row[keys[0]]
    if text is None:
        raise DataError(f"{place}: {null_text_message(keys[0])}")
    if not isinstance(text, str):
        raise DataError(f"{place}: column {keys[0]!r} holds {text!r:.60}, not a text")
    return text


def _missing_text(row: dict, task: Task | None) -> str:
    """What a row without a text lacks, for the message."""
    if task is None:
        return f"no one of {', '.join(TEXT_KEYS)}"
    missing_columns = [column for column in task.text_columns if value_at(row, column, _MISSING) is _MISSING]
    if len(missing_columns) < len(task.text_columns):
        names = " and no ".join(map(repr, missing_columns))
        return f'no {names}, which the model reads (an empty text is "")'
    return f"neither {' and '.join(as_list(task.text_columns))} nor one of {', '.join(TEXT_KEYS)}"
