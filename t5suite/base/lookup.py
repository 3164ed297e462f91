"""Looks up names in tables, with errors that suggest the closest ones, and checks names that become part of a path.

    >>> suggestion("ssst2", ["cola", "sst2"])
    'did you mean sst2?'
    >>> check_name("../topics", "task", where="tasks.yaml:2")
    ConfigError: tasks.yaml:2: the task name '../topics' cannot be part of a path ('/' in it); ...

Files are named after tasks, splits and runs. A name that is one component of a path cannot lead out of a folder,
whatever it is joined to.
"""

import difflib
import importlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from t5suite.base.errors import ConfigError


def closest(name: str, names: Iterable[str]) -> list[str]:
    """The names most like `name`, three at most, best first.

    >>> closest("ssst2", ["cola", "sst2", "stsb"])
    ['sst2']
    """
    by_lower = {}
    for candidate in names:
        by_lower.setdefault(str(candidate).lower(), str(candidate))
    matches = difflib.get_close_matches(str(name).lower(), by_lower, n=3, cutoff=0.5)
    return [by_lower[match] for match in matches]


def suggestion(name: str, names: Iterable[str]) -> str:
    """`did you mean a, b?` for a mistyped name, or the list of all names where nothing is close.

    >>> suggestion("ssst2", ["cola", "sst2"])
    'did you mean sst2?'
    """
    names = [str(candidate) for candidate in names]
    near = closest(name, names)
    if near:
        return f"did you mean {', '.join(near)}?"
    return f"choose from {', '.join(sorted(names))}"


def first_repeated(names: Iterable[str]) -> str | None:
    """The first name that is there for the second time; None if each is there once.

    >>> first_repeated(["text", "label", "text"])
    'text'
    """
    earlier: set[str] = set()
    for name in names:
        if name in earlier:
            return name
        earlier.add(name)
    return None


def listed(names: Sequence, max_names: int = 5) -> str:
    """The first few names, and how many more there are.

    >>> listed(["q.weight", "k.weight", "v.weight"], 2)
    'q.weight, k.weight and 1 more'
    """
    first_names = ", ".join(map(str, names[:max_names]))
    if len(names) <= max_names:
        return first_names
    return f"{first_names} and {len(names) - max_names} more"


def in_plain_words(message: str, refused: Iterable[str] = ()) -> str:
    """`argparse`'s message about a value, with the flag's name alone, what would be valid, and the closest choices.

    >>> in_plain_words("argument --seed/--s: invalid int value: 'x'")
    "--seed: invalid int value: 'x'; give a whole number, such as 100"

    Args:
      refused: choices that are not suggested.
    """
    message = re.sub(r"^(--[\w-]+)(?:/--[\w-]+)+", r"\1", message.removeprefix("argument "))
    choice = re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)$", message)
    if choice:
        names = [name.strip("'") for name in choice[2].split(", ")]
        offered_names = [name for name in names if name not in set(refused)]
        return f"{message[: choice.start()]}unknown choice {choice[1]!r}; {suggestion(choice[1], offered_names)}"
    kind = re.search(r": invalid (\w+) value: ", message)
    if kind is None or kind[1] not in NUMBERS:
        return message
    return f"{message}; give {NUMBERS[kind[1]]}"


def find(name: str, table: Mapping, what: str, where: str = ""):
    """`table[name]`, or a `ConfigError` that names the value, where it was given and the closest names.

    >>> find("acuracy", METRICS, "metric", where="--metric_to_optimize")
    ConfigError: --metric_to_optimize: unknown metric 'acuracy'; did you mean accuracy?
    """
    if name in table:
        return table[name]
    raise ConfigError(f"{_beginning(where)}unknown {what} {name!r}; {suggestion(name, table)}")


def _beginning(where: str) -> str:
    """What a message begins with: the place where a value was given, if it has one."""
    if where:
        return f"{where}: "
    return ""


# What a flag of a type takes, by argparse's names of types.
NUMBERS = {"int": "a whole number, such as 100", "float": "a number, such as 0.001"}


def load_object(spec: str, where: str) -> Any:
    """The object that `module:Name` names. Imports the module, which runs its code: for names that the user gave.

    >>> load_object("collections:OrderedDict", "--data_class")
    <class 'collections.OrderedDict'>

    The module is one that `import` finds, one of the current folder, or the script that runs.

    Args:
      where: the flag or setting that named it, for errors.

    Raises:
      ConfigError: there is no such module, or nothing of that name in it.
    """
    module_name, _, name = spec.partition(":")
    if not (module_name and name):
        raise ConfigError(f"{where} {spec}: must be module:Name")
    try:
        module = _imported(module_name)
    except ModuleNotFoundError as error:
        if error.name and not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and lacks another one
        raise ConfigError(f"{where} {spec}: no module {module_name!r}; add its folder to PYTHONPATH") from None
    try:
        return getattr(module, name)
    except AttributeError:
        names = [public_name for public_name in vars(module) if not public_name.startswith("_")]
        raise ConfigError(f"{where} {spec}: {module_name} has no {name!r}; {suggestion(name, names)}") from None


def script_module() -> str | None:
    """The name by which `import` finds the script that runs; None for a notebook, a prompt or a console script.

    It is `train` of `python train.py`, and `research.train` of `python -m research.train`.
    """
    script = sys.modules["__main__"]
    if getattr(script, "__spec__", None) is not None:
        return script.__spec__.name
    path = Path(getattr(script, "__file__", None) or "")
    return path.stem if path.suffix == ".py" else None


def _imported(module_name: str) -> ModuleType:
    """The module; where Python finds none, that of the current folder. The script that runs is not run again."""
    if module_name == script_module():
        return sys.modules["__main__"]
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError:
        search_current_folder()
    return importlib.import_module(module_name)


def search_current_folder() -> None:
    """From now on `import` looks in the current folder, too, where a console script does not; there it looks last."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)


# Files are called `<task>.<split>.jsonl.gz`, and file systems take 255 bytes.
MAX_NAME_BYTES = 100


def check_name(name, what: str, where: str = "", error=ConfigError) -> str:
    """The name, unchanged, if it can be a component of a path.

    Args:
      what: what it names; where: the flag or file:line that gave it; both for the message.

    Raises:
      ConfigError: it cannot; the message says why.
    """
    reason = _problem_of_name(name)
    if reason:
        raise error(
            f"{_beginning(where)}the {what} name {name!r:.120} cannot be part of a path ({reason}); "
            "take letters, digits, '-', '_', '.', and the like"
        )
    return name


def _problem_of_name(name) -> str | None:
    """Why a name cannot be a component of a path; None if it can."""
    if not isinstance(name, str):
        return f"it is of the type {type(name).__name__}, not a text: quote it"
    if not name.strip():
        return "it is empty"
    for character in name:
        if character in "/\\" or not character.isprintable():
            return f"{character!r} in it"
    if name.startswith("."):
        return "it begins with a dot"
    if len(name.encode("utf-8")) > MAX_NAME_BYTES:
        return f"longer than {MAX_NAME_BYTES} bytes"
    return None


def path_inside(root, *parts, where: str = "") -> Path:
    """`root/part/part`, if it is below `root` even where parts are links, absolute or contain `..`.

    >>> path_inside("runs/x", "predictions", "rte.validation.jsonl")
    PosixPath('runs/x/predictions/rte.validation.jsonl')

    Raises:
      ConfigError: it is elsewhere, or is `root` itself; the message says where a link leads.
    """
    path = Path(root, *map(str, parts))
    if "\0" in str(path):
        raise ConfigError(f"{_beginning(where)}{str(path)!r:.200} is not a path")
    real_root = os.path.realpath(root)
    real_path = os.path.realpath(path)
    if not real_path.startswith(real_root.rstrip(os.sep) + os.sep):
        raise ConfigError(f"{_beginning(where)}{path} does not lie below {root}: it leads to {real_path}")
    return path


def refuse_links_out(output_dir) -> None:
    """Rejects an output folder whose entries are links to other places (`predictions -> /home/other`).

    Raises:
      ConfigError: an entry links outside the folder; a link within it (`best -> checkpoint-400`) is allowed.
    """
    with os.scandir(output_dir) as entries:
        for entry in entries:
            if entry.is_symlink():
                path_inside(output_dir, entry.name, where="--output_dir")
