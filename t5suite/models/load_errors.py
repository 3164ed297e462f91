"""Why a model, a configuration or a tokenizer cannot be loaded by its name, in one line.

>>> loading_error("a tokenizer", "google/t5-bse", "--tokenizer_name", error)
ConfigError("--tokenizer_name: cannot load a tokenizer from 'google/t5-bse' (...)")
"""

import re
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError, UserError
from t5suite.base.hub import absent, prepare_hub
from t5suite.base.hub_failures import Reading, failure_of, hub_error

# A folder with a tokenizer has one of these.
TOKENIZER_FILES = ("tokenizer*", "*.model", "vocab*", "merges.txt")


def check_source_name(name: str, flag: str) -> None:
    """Refuses a missing folder, and checks at most once whether the hub can be reached."""
    path = Path(name)
    if path.exists():
        return
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or path.suffix == ".json":
        raise ConfigError(f"{flag}: no file or folder {name!r}")
    prepare_hub()


def loading_error(what: str, name: str, flag: str, error: Exception, hint: str = "", data: bool = False) -> UserError:
    """The error to raise where `what` could not be loaded by its name.

    Args:
      hint: names that are nearly this one, which is then taken for a mistake.
      data: the files are wrong rather than the name.
    """
    if Path(name).exists():
        missing_part = _missing_part(what, Path(name))
        if missing_part is not None:
            return ConfigError(f"{flag} {name}: {missing_part}")
        failure = None
    else:
        if re.search(r"\s", name):
            return ConfigError(f"{flag}: no folder {name!r}, and a name of the hub has no white space{hint}")
        if not prepare_hub():
            return _unreachable(name, flag, hint)
        failure = failure_of(error)
    if failure is not None:
        return hub_error(failure, Reading("model", name, None, what))
    error_class = DataError if data else ConfigError
    return error_class(f"{flag}: cannot load {what} from {name!r} ({short_message(error)}){hint}")


def _unreachable(name: str, flag: str, hint: str) -> UserError:
    message = (
        f"{flag}: {name!r} is no folder, the hub cannot be reached, and there is no copy of it in the local cache; "
        f"give a folder with the model's files{hint}"
    )
    return ConfigError(message) if hint else absent(message)


def _missing_part(what: str, path: Path) -> str | None:
    """What an existing folder or file lacks; None if there is something of the kind."""
    if path.is_file():
        return "a file that is no tokenizer; name its folder, or a spiece.model" if what == "a tokenizer" else None
    if not path.is_dir():
        return None
    if not any(path.iterdir()):
        return "an empty folder"
    has_tokenizer = any(next(path.glob(pattern), None) for pattern in TOKENIZER_FILES)
    if what == "a tokenizer" and not has_tokenizer:
        return "no tokenizer in this folder (no tokenizer.json, spiece.model or the like); --tokenizer_name names one"
    return None


def short_message(error: Exception) -> str:
    """An error's first two lines as one, or its type if it has no message."""
    lines = str(error).strip().splitlines()
    return " ".join(line.strip() for line in lines[:2]) if lines else type(error).__name__
