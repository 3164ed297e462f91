"""The flags of the entry scripts as a table, for programs that write command lines and must answer without torch.

    >>> flags_of("fine_tune_t5.py")["learning_rate"]
    {'type': 'float', 'choices': None, 'list': False, 'none': False, 'default_true': False}
    >>> value_problem(flags_of("fine_tune_t5.py")["learning_rate"], "fast")
    "'fast' is not a float"

The table is made from the argument dataclasses, at the versions of the libraries that the project is tested with, by
`python -m t5suite.training.flags.table`; a test keeps it equal to them.
"""

import functools
import json
from pathlib import Path

from t5suite.base.lookup import find

TABLE_FILE = Path(__file__).with_name("script_flags.json")
TYPES = ("bool", "int", "float", "str", "dict")
# What an entry has for the keys that it leaves out in the file.
ABSENT = {"choices": None, "list": False, "none": False, "default_true": False}
# What Hugging Face's `string_to_bool` takes.
BOOLEAN_WORDS = ("yes", "true", "t", "y", "1", "no", "false", "f", "n", "0")


@functools.cache
def flag_table() -> dict[str, dict]:
    """The file: `{"scripts": {script: {flag: entry}}, "removed": {flag: what serves instead}}`."""
    return json.loads(TABLE_FILE.read_text(encoding="utf-8"))


def flags_of(script: str) -> dict[str, dict]:
    """`{flag: {"type", "choices", "list", "none", "default_true"}}` of a script, given by its name or path.

    `type` is one of TYPES; `choices` is None or the values that are taken; `list`: several values may follow;
    `none`: the flag takes None; `default_true`: a boolean that is on unless it is given as False.

    Raises:
      ConfigError: not one of the two scripts.
    """
    scripts = flag_table()["scripts"]
    find(Path(script).stem, scripts, "script")
    return {name: {**ABSENT, **entry} for name, entry in scripts[Path(script).stem].items()}


def is_script(word: str) -> bool:
    """Whether a word of a command is one of the entry scripts: `fine_tune_t5.py`, a path to it, or its module."""
    path = Path(word)
    return path.suffix in ("", ".py") and path.stem in flag_table()["scripts"]


def removed_flags() -> dict[str, str]:
    """Flags that transformers 5 removed, with what serves instead."""
    return flag_table()["removed"]


def value_problem(flag: dict, value) -> str | None:
    """Why a script would refuse the value, as a YAML file or the text of a command line has it; None if it takes it.

    >>> value_problem(flags_of("fine_tune_t5.py")["eval_method"], "guess")
    "'guess' is not one of generate, score"

    Args:
      flag: an entry of `flags_of`.
    """
    if value is None or value == "None":
        return None if flag["none"] else "None is not taken"
    if isinstance(value, list):
        if not flag["list"]:
            return f"{value!r:.80} is a list, and one value is taken"
        problems = [value_problem(flag, item) for item in value] or ["the list is empty"]
        return next(filter(None, problems), None)
    if flag["choices"] is not None and value not in flag["choices"]:
        return f"{value!r:.80} is not one of {', '.join(map(str, flag['choices']))}"
    return None if FITS[flag["type"]](value) else f"{value!r:.80} is not {ARTICLES[flag['type']]}"


def _is_bool(value) -> bool:
    return isinstance(value, bool) or str(value).lower() in BOOLEAN_WORDS


def _is_int(value) -> bool:
    if isinstance(value, (bool, float)):  # `int("2.0")` fails, and 2.0 is written so
        return False
    return _succeeds(int, value)


def _is_float(value) -> bool:
    return not isinstance(value, bool) and _succeeds(float, value)


def _is_text(value) -> bool:
    return isinstance(value, (str, int, float, bool, dict))


def _is_table(value) -> bool:
    return isinstance(value, dict) or (isinstance(value, str) and bool(value.strip()))


def _succeeds(function, value) -> bool:
    try:
        function(value)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


FITS = {"bool": _is_bool, "int": _is_int, "float": _is_float, "str": _is_text, "dict": _is_table}
ARTICLES = {"bool": "a boolean", "int": "an int", "float": "a float", "str": "a word", "dict": "a table"}
