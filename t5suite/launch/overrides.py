"""Flags behind `--`, which come last in a trial's command and so go before the sweep file's.

>>> flags_in(["--max_steps", "100", "--bf16", "--learning_rate=1e-3"])
{'max_steps': 100, 'bf16': True, 'learning_rate': 0.001}
>>> overridden({"max_steps": 1500, "seed": 1}, ["--max_steps", "100"])
{'max_steps': 100, 'seed': 1}
"""

import json
from collections.abc import Iterable, Mapping

from t5suite.base.errors import ConfigError
from t5suite.launch.sweep_files import Parameter

WORDS = {"true": True, "false": False, "none": None, "null": None}


def flags_in(words: Iterable[str]) -> dict[str, object]:
    """Each flag's last value, as plain data; True of a flag without one, a list of several."""
    found: dict[str, list] = {}
    name = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            found[name] = [value] if equals else []
        elif name is not None:
            found[name].append(word)
    return {name: _plain(values) for name, values in found.items()}


def overridden(parameters: Mapping, words: Iterable[str]) -> dict:
    """A trial's parameters as its process takes them."""
    later = flags_in(words)
    return {name: later.get(name, value) for name, value in parameters.items()}


def not_overridden(parameters: Mapping, words: Iterable[str]) -> dict:
    """The parameters that the words leave as they are: the others need not stand in the command."""
    later = flags_in(words)
    return {name: value for name, value in parameters.items() if name not in later}


def command_without(command: Iterable, words: Iterable[str]) -> list[str]:
    """A `command:` without the flags that the words give: a script refuses a flag that is given twice.

    >>> command_without(["python", "fine_tune_t5.py", "--max_steps", 1500, "--bf16", "${args}"], ["--max_steps", "100"])
    ['python', 'fine_tune_t5.py', '--bf16', '${args}']
    """
    later, kept, is_left_out = flags_in(words), [], False
    for item in map(str, command):
        if item.startswith(("--", "${")):
            is_left_out = item[2:].partition("=")[0].replace("-", "_") in later
        if not is_left_out:
            kept.append(item)
    return kept


def check_overrides(parameters: Iterable[Parameter], words: Iterable[str]) -> None:
    """Refuses words that take away what is searched.

    Raises:
      ConfigError: naming the flag.
    """
    later = flags_in(words)
    for parameter in parameters:
        if parameter.path[0] in later and parameter.distribution != "constant":
            raise ConfigError(
                f"--{parameter.path[0]} {later[parameter.path[0]]} behind --: the sweep searches {parameter.name}, so "
                "that every trial would be the same in it; leave the flag out, or give the file one `value:` of it"
            )


def _plain(values: list[str]):
    if len(values) > 1:
        return [_plain([value]) for value in values]
    if not values:
        return True
    if values[0].lower() in WORDS:
        return WORDS[values[0].lower()]
    for kind in (int, float, json.loads):
        try:
            return kind(values[0])
        except ValueError:
            continue
    return values[0]
