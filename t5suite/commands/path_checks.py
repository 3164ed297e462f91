"""Checks of the files, folders and models that flags name, before anything is loaded or written.

>>> check_input_file("--input", "rows.jsom")
DataError: rows.jsom: no such file; did you mean rows.jsonl?
"""

import os
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.files import STANDARD_INPUT
from t5suite.base.hub_commits import is_repository
from t5suite.base.lookup import closest
from t5suite.base.model_files import check_has_model, check_model_files

# The number of processes, as launchers set it.
PROCESS_COUNTS = ("WORLD_SIZE", "SLURM_NTASKS")


def is_only_process() -> bool:
    """Whether this is the only process: of several, only the main one needs the files."""
    return all(os.environ.get(name, "1") == "1" for name in PROCESS_COUNTS)


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
        raise DataError(f"{path}: no such file{' or folder' if or_folder else ''}{missing_path_hint(path)}")


def check_output_file(flag: str, path: str, *inputs: str | None) -> None:
    """Checks that a file can be written there and is not one of the inputs.

    Raises:
      ConfigError: a folder, a file where a folder is needed, or one of the inputs.
    """
    if os.path.isdir(path):
        raise ConfigError(f"{flag} {path}: a folder; name the file, such as {os.path.join(path, 'answers.jsonl')}")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ConfigError(f"{flag} {path}: a pipe or a device; name a file, or leave {flag} out for standard output")
    if any(_is_same_file(path, name) for name in inputs):
        raise ConfigError(f"{flag} {path} is the file that is read; what is written would take its place")
    check_place(flag, path)


def _is_same_file(path: str, other_path: str | None) -> bool:
    """Whether both exist and are one file, perhaps by a link."""
    return os.path.exists(path) and os.path.exists(other_path or "") and os.path.samefile(path, other_path)


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
    """Checks that a folder, or the nearest existing one above a path, is writable.

    Raises:
      ConfigError: it is a file, or not writable.
    """
    above = Path(path).expanduser().absolute()
    if not os.path.isdir(above):
        above = above.parent
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
        raise ConfigError(f"{flag} {name}: no such folder{missing_path_hint(name)}")


def check_model_revision(arguments) -> None:
    """Refuses `--model_revision` if neither the model nor its tokenizer is of the hub.

    >>> check_model_revision(Namespace(model_name_or_path="runs/rte", tokenizer_name=None, model_revision="v2"))
    ConfigError: --model_revision v2 has no effect: --model_name_or_path runs/rte is a folder
    """
    revision = arguments.model_revision
    name = arguments.model_name_or_path
    if revision is None or name is None or not os.path.isdir(name):
        return
    if not is_repository(getattr(arguments, "tokenizer_name", None)):
        raise ConfigError(f"--model_revision {revision} has no effect: --model_name_or_path {name} is a folder")


def may_be_of_the_hub(name: str) -> bool:
    """Whether this may be a hub model's name: NAME or OWNER/NAME, if no local folder OWNER has runs.

    >>> may_be_of_the_hub("google/t5-v1_1-small"), may_be_of_the_hub("../runs/rte")
    (True, False)
    """
    owner, _, model_name = name.rpartition("/")
    if not model_name or "/" in owner or owner in (".", "..", "~"):
        return False
    return not owner or not any(Path(owner).glob("*/manifest.json"))


def missing_path_hint(path: str) -> str:
    """What may have been meant: the files there with nearly that name, a broken link, a missing folder."""
    folder = Path(path).parent
    if os.path.islink(path):
        return f": it is a link to {os.readlink(path)!r}, where there is nothing"
    if not folder.is_dir():
        return f", and no folder {folder}"
    similar_names = closest(Path(path).name, (entry.name for entry in folder.iterdir()))
    if not similar_names:
        return ""
    return f"; did you mean {', '.join(str(folder / name) for name in similar_names)}?"
