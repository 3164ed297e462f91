"""A name in a table, or an error with the closest names."""

import difflib
import importlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from t5suite.base.errors import ConfigError


def closest(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """The names most like `name`, best first.

    >>> closest("ssst2", ["cola", "sst2", "stsb"])
    ['sst2', 'stsb']
    """
    by_lower = {}
    for candidate in names:
        by_lower.setdefault(str(candidate).lower(), str(candidate))
    return [by_lower[match] for match in difflib.get_close_matches(str(name).lower(), by_lower, n=count, cutoff=0.5)]


def suggestion(name: str, names: Iterable[str]) -> str:
    """`did you mean a, b?` for a mistyped name, or the list of all names where nothing is close.

    >>> suggestion("ssst2", ["cola", "sst2"])
    'did you mean sst2?'
    """
    names = [str(candidate) for candidate in names]
    near = closest(name, names)
    return f"did you mean {', '.join(near)}?" if near else f"choose from {', '.join(sorted(names))}"


def in_plain_words(message: str) -> str:
    """What `argparse` says of a value, with the flag's name alone, what would be right, and the closest choices.

    >>> in_plain_words("argument --seed/--s: invalid int value: 'x'")
    "--seed: invalid int value: 'x'; give a whole number, such as 100"
    """
    message = re.sub(r"^(--[\w-]+)(?:/--[\w-]+)+", r"\1", message.removeprefix("argument "))
    choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message)
    if choice:
        return f"{message}; {suggestion(choice[1], [name.strip(chr(39)) for name in choice[2].split(', ')])}"
    kind = re.search(r": invalid (\w+) value: ", message)
    return f"{message}; give {NUMBERS[kind[1]]}" if kind and kind[1] in NUMBERS else message


def find(name: str, table: Mapping, what: str, where: str = ""):
    """`table[name]`, or a `ConfigError` that names the value, where it was given and the closest names.

    >>> find("acuracy", METRICS, "metric", where="--metric_to_optimize")
    ConfigError: --metric_to_optimize: unknown metric 'acuracy'; did you mean accuracy?
    """
    if name in table:
        return table[name]
    place = f"{where}: " if where else ""
    raise ConfigError(f"{place}unknown {what} {name!r}; {suggestion(name, table)}")


# What a flag of a kind takes, in argparse's names.
NUMBERS = {"int": "a whole number, such as 100", "float": "a number, such as 0.001"}


def load_object(spec: str, where: str) -> Any:
    """What `module:Name` names, found as `import` finds the module, which runs it: for names that the user gave.

    >>> load_object("collections:OrderedDict", "--data_class")
    <class 'collections.OrderedDict'>

    Args:
      where: the flag or setting that named it, for errors.

    Raises:
      ConfigError: there is no such module, or nothing of that name in it.
    """
    module_name, _, name = spec.partition(":")
    if not (module_name and name):
        raise ConfigError(f"{where} {spec}: must be module:Name")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise
        raise ConfigError(f"{where} {spec}: no module {module_name!r}; add its folder to PYTHONPATH") from None
    try:
        return getattr(module, name)
    except AttributeError:
        names = [other for other in vars(module) if not other.startswith("_")]
        raise ConfigError(f"{where} {spec}: {module_name} has no {name!r}; {suggestion(name, names)}") from None
