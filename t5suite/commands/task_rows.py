"""Rows of a task from a file, as `t5suite preview` and `t5suite score` read them.

>>> task = load_task("glue", "rte")
>>> read_task_rows(task, "rows.jsonl", role_of(task, "validation"))[0]
TaskRow(line_number=1, row={'sentence1': 'It rains.', ...}, examples=[Example(inputs='rte sentence1: ...', ...)])
"""

from typing import NamedTuple

from t5suite.base.errors import DataError
from t5suite.base.lookup import find

ROLES = ("train", "validation", "test")


class TaskRow(NamedTuple):
    """A row of a file, the number of its line from 1, and its examples (ReCoRD: one per answer)."""

    line_number: int
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


def read_task_rows(task, path: str, role: str) -> list[TaskRow]:
    """The rows of a file with their examples.

    Raises:
      DataError: a line is not a row of the task (with file and line), or the file is empty.
    """
    from t5suite.data.rows.jsonl import numbered_lines

    task_rows = []
    for line_number, row in numbered_lines(path):
        try:
            examples = task.examples(row, role)
        except DataError as error:
            raise DataError(f"{path}:{line_number}: {error}") from None
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            raise DataError(
                f"{path}:{line_number}: not a row of {task.benchmark}/{task.name} ({type(error).__name__}: {error})"
            ) from None
        task_rows.append(TaskRow(line_number, row, examples))
    if not task_rows:
        raise DataError(f"{path}: the file is empty")
    return task_rows
