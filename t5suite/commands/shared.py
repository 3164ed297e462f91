"""Flags, reading and printing that several sub-commands share.

>>> add_json_flag(parser)
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import closest, find
from t5suite.base.model_files import check_has_model, check_model_files
from t5suite.base.redaction import printable

ROLES = ("train", "validation", "test")


def add_task_flags(parser, required: bool = True) -> None:
    parser.add_argument("--benchmark", required=required, help="a benchmark, such as glue (all: t5suite tasks)")
    parser.add_argument("--dataset_name", required=required, help="the task, such as rte")
    parser.add_argument("--task_file", help="YAML or Python file with tasks of your own")


def add_json_flag(parser) -> None:
    parser.add_argument("--json", action="store_true", help="JSON lines on standard output, all else on standard error")


def add_libraries_flag(parser) -> None:
    parser.add_argument(
        "--allow_untested_libraries",
        action="store_true",
        help="use code that was not tested with the installed versions of libraries",
    )


def add_data_dir_flag(parser) -> None:
    parser.add_argument(
        "--data_dir",
        default=os.environ.get("T5SUITE_DATA_DIR"),
        help="DIR/<benchmark>/<task>/<split>.jsonl[.gz]; default: $T5SUITE_DATA_DIR, else the hub",
    )


def check_at_least(arguments, **least: float) -> None:
    """Refuses a flag whose value is below its minimum.

    >>> check_at_least(Namespace(count=0), count=1)
    ConfigError: --count 0: must be at least 1
    """
    for name, bound in least.items():
        value = getattr(arguments, name)
        if value is not None and value < bound:
            raise ConfigError(f"--{name} {value}: must be at least {bound}")


def print_json(value) -> None:
    """Prints one line; terminal control characters are escaped, of which JSON itself escapes only half."""
    show_text(json.dumps(value, ensure_ascii=False, allow_nan=False))


def show_text(text: str, file=None) -> None:
    """Prints untrusted text, with control characters escaped."""
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


STANDARD_INPUT = "-"
# The number of processes, as launchers set it.
PROCESS_COUNTS = ("WORLD_SIZE", "SLURM_NTASKS")


def is_alone(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is the only process: of several, only the main one needs the files."""
    return all(environ.get(name, "1") == "1" for name in PROCESS_COUNTS)


def check_input_file(flag: str, path: str, or_folder: bool = False) -> None:
    """Checks that a file (or a folder) exists; `-` is standard input.

    Raises:
      DataError: there is none, or it is a folder.
    """
    if path == STANDARD_INPUT:
        return
    if os.path.isdir(path) and not or_folder:
        raise DataError(f"{path}: {flag} takes a file, and this is a folder")
    if not os.path.exists(path):
        raise DataError(f"{path}: no such file{' or folder' if or_folder else ''}{_siblings(path)}")


def check_output_file(flag: str, path: str, *inputs: str | None) -> None:
    """Checks that a file can be written there and is not one of the inputs.

    Raises:
      ConfigError: a folder, a file where a folder is needed, or one of the inputs.
    """
    if os.path.isdir(path):
        raise ConfigError(f"{flag} {path}: a folder; name the file, such as {os.path.join(path, 'answers.jsonl')}")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ConfigError(f"{flag} {path}: a pipe or a device; name a file, or leave {flag} out for standard output")
    if os.path.exists(path) and any(os.path.exists(name or "") and os.path.samefile(path, name) for name in inputs):
        raise ConfigError(f"{flag} {path} is the file that is read; what is written would take its place")
    check_place(flag, path)


def check_output_folder(flag: str, path: str, *inputs: str) -> None:
    """Checks that a folder can be made there, outside of the inputs, which are read whole.

    Raises:
      ConfigError: a file, or a folder in one of the inputs.
    """
    if os.path.exists(path) and not os.path.isdir(path):
        raise ConfigError(f"{flag} {path}: a file; name a folder")
    for name in inputs:
        if os.path.isdir(name) and Path(path).resolve().is_relative_to(Path(name).resolve()):
            raise ConfigError(f"{flag} {path} is in --input {name}, and would be read with it; give another folder")
    check_place(flag, path)


def check_place(flag: str, path: str) -> None:
    """Checks that the nearest existing folder above a path is writable.

    Raises:
      ConfigError: it is a file, or not writable.
    """
    above = Path(path).expanduser().absolute().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir():
        raise ConfigError(f"{flag} {path}: {above} is a file, and a folder is needed there; give another path")
    if not os.access(above, os.W_OK | os.X_OK):
        raise ConfigError(f"{flag} {path}: {above} cannot be written; give another folder, or change permissions")


def check_model(flag: str, name: str, of_run: bool = False) -> None:
    """Checks that a name is a folder with a model, or a possible hub name.

    Args:
      of_run: a run's folder with a checkpoint is enough.

    Raises:
      ConfigError: a file, a folder without a model, or a path that is not there.
    """
    if os.path.exists(name):
        check_has_model(flag, name, of_run)
        check_model_files(flag, name)
    elif not may_be_of_the_hub(name):
        raise ConfigError(f"{flag} {name}: no such folder{_siblings(name)}")


def may_be_of_the_hub(name: str) -> bool:
    """Whether this may be a hub model's name: NAME or OWNER/NAME, if no local folder OWNER has runs.

    >>> may_be_of_the_hub("google/t5-v1_1-small"), may_be_of_the_hub("../runs/rte")
    (True, False)
    """
    owner, _, rest = name.rpartition("/")
    if not rest or "/" in owner or owner in (".", "..", "~"):
        return False
    return not owner or not any(Path(owner).glob("*/manifest.json"))


def _siblings(path: str) -> str:
    """A hint: the files there with nearly that name."""
    folder = Path(path).parent
    if os.path.islink(path):
        return f": it is a link to {os.readlink(path)!r}, where there is nothing"
    near = closest(Path(path).name, (entry.name for entry in folder.iterdir())) if folder.is_dir() else []
    if near:
        return f"; did you mean {', '.join(str(folder / name) for name in near)}?"
    return "" if folder.is_dir() else f", and no folder {folder}"
