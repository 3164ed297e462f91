"""Flags, reading and printing that several sub-commands share.

>>> add_json_flag(parser)
"""

import json
import os
import sys

from t5suite.base.errors import DataError
from t5suite.base.lookup import find
from t5suite.base.redaction import printable

ROLES = ("train", "validation", "test")


def add_task_flags(parser, required: bool = True) -> None:
    parser.add_argument("--benchmark", required=required, help="a benchmark, such as glue (all: t5suite tasks)")
    parser.add_argument("--dataset_name", required=required, help="the task, such as rte")
    parser.add_argument("--task_file", help="YAML or Python file with tasks of your own")


def add_json_flag(parser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON lines on standard output, all else on standard error")


def add_data_dir_flag(parser) -> None:
    parser.add_argument(
        "--data_dir",
        default=os.environ.get("T5SUITE_DATA_DIR"),
        help="DIR/<benchmark>/<task>/<split>.jsonl[.gz]; default: $T5SUITE_DATA_DIR, else the hub",
    )


def print_json(value) -> None:
    """One line; what could steer a terminal is escaped, as JSON does by itself with half of it."""
    show_text(json.dumps(value, ensure_ascii=False, allow_nan=False))


def show_text(text: str, file=None) -> None:
    """Prints text that may hold anything."""
    print(printable(text), file=file)


def note(message: str) -> None:
    show_text(f"note: {message}", sys.stderr)


def role_of(task, split: str) -> str:
    """'train', 'validation' or 'test' of a role or of a source's split name.

    >>> role_of(load_task("glue", "mnli"), "validation_matched")
    'validation'
    """
    roles = {name: role for role in ROLES for name in task.splits(role).values()}
    return find(split, {**roles, **{role: role for role in ROLES}}, "split", where="--split")


def read_rows(task, path: str, role: str) -> tuple[list[int], list[dict], list[list]]:
    """`(line numbers, rows, examples of each row)` of a file of rows; a bad one is named by file and line."""
    from t5suite.data.rows.jsonl import numbered_lines

    numbers, rows, examples = [], [], []
    for number, row in numbered_lines(path):
        try:
            examples.append(task.examples(row, role))
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from None
        except (TypeError, ValueError, AttributeError, LookupError) as error:
            what = f"{type(error).__name__}: {error}"
            raise DataError(f"{path}:{number}: not a row of {task.benchmark}/{task.name} ({what})") from None
        numbers.append(number)
        rows.append(row)
    if not rows:
        raise DataError(f"{path}: the file is empty")
    return numbers, rows, examples
