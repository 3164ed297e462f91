"""Rows of a task from a file, as `t5suite preview` and `t5suite score` read them.

>>> task = load_task("glue", "rte")
>>> read_task_rows(task, "rows.jsonl", role_of(task, "validation"))[0]
TaskRow(place='rows.jsonl:1', row={'sentence1': 'It rains.', ...}, examples=[Example(inputs='rte sentence1: ...', ...)])
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import find
from t5suite.commands.path_checks import check_input_file

ROLES = ("train", "validation", "test")
# What pandas needs to read cells as they are written, and empty ones alone as missing values.
CELLS_AS_WRITTEN = "dtype=str, keep_default_na=False, na_values=['']"


class TaskRow(NamedTuple):
    """A row of a file with its place (`file:line`), and its examples (ReCoRD: one per answer)."""

    place: str
    row: dict
    examples: list


def role_of(task, split: str) -> str:
    """'train', 'validation' or 'test' of a role or of a source's split name.

    >>> role_of(load_task("glue", "mnli"), "validation_matched")
    'validation'
    """
    roles = {name: role for role in ROLES for name in task.splits(role).values()}
    roles |= {role: role for role in ROLES}
    return find(split, roles, "split", where="--split")


def read_task_rows(
    task, path: str, role: str, by_data_format: bool = False, delimiter: str | None = None
) -> list[TaskRow]:
    """The rows of a file with their examples.

    Args:
      path: JSON lines, a JSON array of objects or Parquet, as its name says; CSV and TSV only with `by_data_format`.
      by_data_format: the task is one that flags made of the user's own rows: they are read as its training read them.
      delimiter: of CSV and TSV, if it is not the file's own.

    Raises:
      ConfigError: CSV or TSV without `by_data_format`.
      DataError: no such file, it is empty, or a line is not a row of the task (with file and line).
    """
    check_input_file("--rows", path)
    task_rows = []
    placed_rows = _rows_by_data_format(task, path, delimiter) if by_data_format else _rows_with_types(task, path)
    if role == "test":
        placed_rows = _without_hidden_numbers(task, list(placed_rows))
    for place, row in placed_rows:
        try:
            examples = task.examples(row, role)
        except DataError as error:
            raise DataError(f"{place}: {error}") from None
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            raise DataError(
                f"{place}: not a row of {task.benchmark}/{task.name} ({type(error).__name__}: {error})"
            ) from None
        task_rows.append(TaskRow(place, row, examples))
    if not task_rows:
        raise DataError(f"{path}: the file is empty")
    return task_rows


def _without_hidden_numbers(task, placed_rows: list[tuple[str, dict]]) -> list[tuple[str, dict]]:
    """The `(place, row)` of a test split, without its numbers where these stand for hidden ones."""
    from t5suite.tasks.cells import value_at, with_value_at
    from t5suite.tasks.targets import are_hidden_numbers, has_free_numbers

    column = task.entry["label_column_name"]
    if not has_free_numbers(task.entry) or not are_hidden_numbers(value_at(row, column) for _, row in placed_rows):
        return placed_rows
    return [(place, with_value_at(row, column, None)) for place, row in placed_rows]


def _rows_with_types(task, path: str) -> Iterator[tuple[str, dict]]:
    """`(place, row)` of every row, as the file has it.

    Raises:
      ConfigError: CSV or TSV, where every cell is a text.
    """
    from t5suite.data.rows.file_rows import TABLES, TYPELESS, format_by_name

    kind = format_by_name(path)
    if kind in TYPELESS:
        raise ConfigError(
            f"--rows {path}: rows of {task.benchmark}/{task.name} are JSON lines, a JSON array of objects or "
            f"Parquet; with pandas: read_csv({path!r}, {_pandas_arguments(path, kind)}).to_json('rows.jsonl', "
            "orient='records', lines=True)"
        )
    yield from TABLES[kind](Path(path))


def _pandas_arguments(path: str, kind: str) -> str:
    """What pandas needs to read CSV with the file's own delimiter, or TSV, whose quotes are text."""
    from t5suite.data.corpora.byte_files import byte_lines
    from t5suite.data.rows.separated import chosen_delimiter, text_lines

    if kind == "tsv":
        return rf"sep='\t', quoting=3, {CELLS_AS_WRITTEN}"
    try:
        delimiter, _ = chosen_delimiter(text_lines(byte_lines(Path(path)), path), path)
    except DataError:
        delimiter = ","  # none fits: pandas says which line does not
    return f"sep={delimiter!r}, {CELLS_AS_WRITTEN}"


def _rows_by_data_format(task, path: str, delimiter: str | None) -> Iterator[tuple[str, dict]]:
    """`(place, row)` of every row, with the words of labels."""
    from t5suite.data.rows.file_rows import TYPELESS, format_by_name, table_rows, words_of_class_ids
    from t5suite.data.rows.own_rows import OPTIONAL_COLUMNS, Columns
    from t5suite.tasks.targets import with_words_of_ids

    kind = format_by_name(path)
    columns = Columns(
        texts=tuple(task.text_columns),
        target=task.entry["label_column_name"],
        optional=OPTIONAL_COLUMNS.get(task.entry.get("formatter"), ()),
        labels=task.label_words or None,
    )
    words = words_of_class_ids(Path(path), kind, columns)
    for place, row in table_rows(Path(path), kind, delimiter):
        if words:
            row = with_words_of_ids(row, columns.target, words)
        shaped = columns.shaped(row, kind in TYPELESS)
        yield place, shaped if kind in TYPELESS else row | shaped
