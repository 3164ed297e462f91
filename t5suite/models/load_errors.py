"""Why a model, a configuration or a tokenizer cannot be loaded by its name, in one line.

>>> loading_error("a tokenizer", "google/t5-bse", "--tokenizer_name", error)
ConfigError("--tokenizer_name: cannot load a tokenizer from 'google/t5-bse' (...)")
"""

import re
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError, UserError
from t5suite.base.hub import absent, prepare_hub
from t5suite.base.hub_failures import Reading, failure_of, hub_error

TOKENIZER = "a tokenizer"
# A folder with a tokenizer has one of these.
TOKENIZER_FILES = ("tokenizer*", "*.model", "vocab*", "merges.txt")


def refuse_missing_path(name: str, flag: str) -> None:
    """Refuses a name that can only be a path, if nothing is there. For a name that the hub may have, readies the hub.

    Raises:
      ConfigError: no such file or folder.
    """
    path = Path(name)
    if path.exists():
        return
    can_only_be_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or path.suffix == ".json"
    if can_only_be_path:
        raise ConfigError(f"{flag}: no file or folder {name!r}")
    prepare_hub()  # if it cannot be reached, the libraries go offline, and look for a local copy alone


def loading_error(
    kind: str, name: str, flag: str, error: Exception, hint: str = "", are_files_wrong: bool = False
) -> UserError:
    """The error to raise where a model, a configuration or a tokenizer could not be loaded by its name.

    Args:
      kind: "a model", "a configuration" or TOKENIZER.
      hint: the end of the message: the names that are nearly this one, if there are any. A name that is probably
        mistyped is a `ConfigError` even where the hub cannot be reached: a second attempt would not help.
      are_files_wrong: the cause are the files, not the name: a `DataError` (exit code 65) in place of a `ConfigError`.
    """
    path = Path(name)
    if path.exists():
        defect = _defect_of_path(kind, path, flag)
        if defect is not None:
            return ConfigError(f"{flag} {name}: {defect}")
    elif re.search(r"\s", name):
        return ConfigError(f"{flag}: no folder {name!r}, and a name of the hub has no white space{hint}")
    elif not prepare_hub():
        return _unreachable(name, flag, hint)
    else:
        failure = failure_of(error)
        if failure is not None:
            # "model" is the hub's kind of repository, of a tokenizer, too.
            return hub_error(failure, Reading("model", name, revision=None, part=kind))
    error_class = DataError if are_files_wrong else ConfigError
    return error_class(f"{flag}: cannot load {kind} from {name!r} ({short_message(error)}){hint}")


def _unreachable(name: str, flag: str, hint: str) -> UserError:
    """The error for a name that is no folder, while the hub cannot be reached."""
    message = (
        f"{flag}: {name!r} is no folder, the hub cannot be reached, and there is no copy of it in the local cache; "
        f"give a folder with the model's files{hint}"
    )
    if hint:
        return ConfigError(message)
    return absent(message)


def _defect_of_path(kind: str, path: Path, flag: str) -> str | None:
    """Why nothing of this kind can be in an existing file or folder; None if it can."""
    if path.is_file():
        is_tokenizer_file = path.suffix == ".model"
        if kind == TOKENIZER and not is_tokenizer_file:
            return "a file that is no tokenizer; name its folder, or a spiece.model"
        return None
    if not path.is_dir():
        return None
    if not any(path.iterdir()):
        return "an empty folder"
    has_tokenizer = any(next(path.glob(pattern), None) for pattern in TOKENIZER_FILES)
    if kind == TOKENIZER and not has_tokenizer:
        cure = "name one that has" if flag == "--tokenizer_name" else "--tokenizer_name names one"
        return f"no tokenizer in this folder (no tokenizer.json, spiece.model or the like); {cure}"
    return None


def short_message(error: Exception) -> str:
    """An error's first two lines as one, or its type if it has no message."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    return " ".join(line.strip() for line in lines[:2])
