"""Settings of an optimizer or a schedule, as text on a command line -> typed keyword arguments.

    >>> def polynomial(step, num_training_steps, *, power: float = 1.0, min_lr_rate: float = 0.0): ...
    >>> settings_for(polynomial, "power=2,min_lr_rate=1e-2", "--lr_scheduler_kwargs")
    {'power': 2.0, 'min_lr_rate': 0.01}

A function's keyword-only parameters are its settings: their names, types and defaults are all there is to know.
"""

import ast
import inspect
import types
import typing
from collections.abc import Callable, Mapping

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion


def parse_settings(given: str | Mapping | None, where: str) -> dict:
    """`name=value` pairs with commas between, as Hugging Face's `--optim_args` has them; tuples in parentheses.

    >>> parse_settings("betas=(0.9, 0.95), eps=1e-6", "--optim_args")
    {'betas': '(0.9, 0.95)', 'eps': '1e-6'}

    Raises:
      ConfigError: a part without `=`, or a name given twice.
    """
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    settings = {}
    for part in _split_outside_brackets(given):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name:
            raise ConfigError(f"{where} {given!r}: {part.strip()!r} is not name=value")
        if name in settings:
            raise ConfigError(f"{where} {given!r}: {name} stands there twice")
        settings[name] = value
    return settings


def setting_types(function: Callable) -> dict[str, object]:
    """The settings that a function has, with their types: its keyword-only parameters.

    >>> def constant(step, num_training_steps, *, rate: float = 1.0): ...
    >>> setting_types(constant)
    {'rate': <class 'float'>}
    """
    hints = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    return {spec.name: hints[spec.name] for spec in parameters if spec.kind is spec.KEYWORD_ONLY}


def settings_for(function: Callable, given: str | Mapping | None, where: str) -> dict:
    """The settings given for `function`, each in its own type.

    Raises:
      ConfigError: a name that the function does not have (with the closest), or a value of another type.
    """
    return typed_settings(setting_types(function), function.__name__, given, where)


def typed_settings(known: Mapping[str, object], owner: str, given: str | Mapping | None, where: str) -> dict:
    """The settings given for `owner`, which has those of `known` (`{name: type}`), each in its own type.

    Raises:
      ConfigError: as `settings_for`.
    """
    settings = {}
    for name, value in parse_settings(given, where).items():
        if name not in known:
            has = suggestion(name, known) if known else "it has none"
            raise ConfigError(f"{where}: {owner} has no setting {name!r}; {has}")
        settings[name] = _typed(value, known[name], f"{where} {name}={value}")
    return settings


def read_value(value):
    """A value as text -> what it says; text that says nothing else stays text.

    >>> [read_value(text) for text in ("1e-6", "(0.9, 0.95)", "true", "linear")]
    [1e-06, (0.9, 0.95), True, 'linear']
    """
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(value.lower(), value))
    except (ValueError, SyntaxError):
        return value


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


def _typed(value, hint, where: str):
    value = read_value(value)
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if option is int and isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value):
            return int(value)
        if typing.get_origin(option) is tuple and isinstance(value, (tuple, list)):
            if len(value) == len(typing.get_args(option)):
                return tuple(_typed(item, kind, where) for item, kind in zip(value, typing.get_args(option)))
        if option in (bool, str, types.NoneType) and isinstance(value, option):
            return value
    wanted = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    raise ConfigError(f"{where}: expected {wanted.replace('NoneType', 'None')}")
