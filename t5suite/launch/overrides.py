"""Flags behind `--`, which come last in a trial's command and so go before the sweep file's.

>>> flags_in(["--max_steps", "100", "--bf16", "--learning_rate=1e-3"])
{'max_steps': 100, 'bf16': True, 'learning_rate': 0.001}
>>> overridden({"max_steps": 1500, "seed": 1}, ["--max_steps", "100"])
{'max_steps': 100, 'seed': 1}
"""

import json
import shlex
from collections.abc import Iterable, Mapping

from t5suite.errors import ConfigError
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


def settled(parameters: Mapping, command: str) -> tuple[dict, str]:
    """`(parameters, command)` of a record in whose command a flag may stand twice: the last one is what counted.

    >>> settled({"max_steps": 1500}, "python fine_tune_t5.py --max_steps=1500 --max_steps 100")
    ({'max_steps': 100}, 'python fine_tune_t5.py --max_steps 100')
    """
    try:
        words = shlex.split(command)
    except ValueError:
        return dict(parameters), command
    given = {name: f"--{name}={value}" for name, value in parameters.items()}
    twice = {name for name, word in given.items() if word in words and name in flags_in(_behind(words, word))}
    if not twice:
        return dict(parameters), command
    for name in twice:
        command = command.replace(f"{shlex.quote(given[name])} ", "", 1)
    return {**parameters, **{name: flags_in(words)[name] for name in twice}}, command


def _behind(words: list[str], word: str) -> list[str]:
    return words[words.index(word) + 1 :]


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
