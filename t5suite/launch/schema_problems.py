"""What is wrong in a sweep file by W&B's schema, in words.

    >>> for problem in problems_by_schema({"method": "bayesian", "parameters": {"seed": {"value": 1}}}):
    ...     print(problem.keys, problem.message)
    ('method',) method: 'bayesian' is not one of grid, random, bayes, custom

The errors are found by `jsonschema`.
"""

import re
from typing import NamedTuple

from t5suite.base.json_schemas import problems_of
from t5suite.base.lookup import suggestion
from t5suite.launch.sweep_schema import DISTRIBUTIONS, METHODS, SWEEP, with_distributions

# Numbers that PyYAML (YAML 1.1) reads as text: no dot, or no sign in the exponent.
NUMBER_LIKE = re.compile(r"([+-]?\d+)(\.\d*)?[eE]([+-]?\d+)")
# What is said of a key that is missing, by the key's path.
MISSING = {
    ("method",): f"method is missing; choose from {', '.join(METHODS)}",
    ("parameters",): "parameters is missing: nothing is searched",
    ("metric",): "metric is missing, which method: bayes needs: name and goal",
    ("metric", "name"): "metric: name is missing: the metric that runs log",
    ("early_terminate", "type"): "early_terminate: type is missing; W&B has hyperband",
}


class Problem(NamedTuple):
    """What is wrong at some keys of a sweep file.

    Attributes:
      keys: the path of what is wrong, such as `("parameters", "seed", "value")`; `()` for the file as a whole. What is
        missing in a table has the table's path, or the one that it would have.
      level: "error", or "note" for what runs but is hardly intended, or `needs_server`.
    """

    keys: tuple
    message: str
    level: str = "error"
    needs_server: bool = False


def problems_by_schema(content: dict) -> list[Problem]:
    """All that is wrong by the schema in a sweep file's content.

    Raises:
      RecursionError: its values are nested too deeply.
    """
    if isinstance(content.get("parameters"), dict):
        content = {**content, "parameters": with_distributions(content["parameters"])}
    problems = []
    for error in problems_of(content, SWEEP):
        problems += _problems_of(error)
    return problems


def _problems_of(error) -> list[Problem]:
    """An error of jsonschema in our words; several where it stands for several keys."""
    keys = tuple(error.absolute_path)
    match error.validator:
        case "required":
            missing = [name for name in error.validator_value if name not in error.instance]
            return [Problem(keys, _missing_key(keys, name, error.instance)) for name in missing]
        case "dependentRequired":
            return [Problem(keys, "metric is missing, which early_terminate needs: name and goal")]
        case "additionalProperties":
            unknown = [key for key in error.instance if key not in error.schema["properties"]]
            return [Problem((*keys, key), _unknown_key(keys, key, error)) for key in unknown]
        case "maxProperties":
            extra = next(key for key in error.instance if key != "parameters")
            return [Problem(keys, f"{shown_keys(keys)}: {extra!r:.60} cannot be combined with parameters")]
        case "minProperties":
            return [Problem(keys, f"{shown_keys(keys)}: an empty table")]
        case "anyOf":
            return [Problem(keys, f"{shown_keys(keys)}: {error.schema['description']}")]
        case _ if "propertyNames" in error.relative_schema_path:
            return [Problem((*keys, error.instance), _wrong_name(keys, error))]
        case _:
            return [Problem(keys, _wrong_setting(keys, error))]


def _missing_key(keys: tuple, name: str, table: dict) -> str:
    """What is said of a key that a table needs and has not."""
    if (*keys, name) in MISSING:
        return MISSING[(*keys, name)]
    if name == "distribution":
        return f"{shown_keys(keys)}: give value, values, or min and max"
    return f"{shown_keys(keys)}: {table['distribution']} needs {name}"


def _unknown_key(keys: tuple, key, error) -> str:
    """What is said of a key that a table does not take."""
    names = [name for name in error.schema["properties"] if name != "distribution"]
    if keys[:1] == ("parameters",):
        distribution = error.instance["distribution"]
        return f"{shown_keys(keys)}: {distribution} takes {', '.join(names)}, not {key!r:.60}"
    message = f"unknown key {key!r:.60}; {suggestion(key, names)}"
    if keys:
        return f"{shown_keys(keys)}: {message}"
    return message


def _wrong_name(keys: tuple, error) -> str:
    """What is said of a parameter's name, or of a key within a value, that is none."""
    _, setting = split_keys(keys)
    if setting == ("parameters",):
        return _wrong_value(error)
    return _wrong_setting(keys, error)


def _wrong_setting(keys: tuple, error) -> str:
    """What is said of a value: `learning_rate: min '1e-5' is text in YAML; write 1.0e-5`."""
    names, setting = split_keys(keys)
    if names and setting[:1] == ("distribution",):
        hint = suggestion(error.instance, DISTRIBUTIONS)
        return f"{'.'.join(names)}: unknown distribution {error.instance!r:.60}; {hint}"
    if names and setting:
        return f"{'.'.join(names)}: {setting[0]} {_wrong_value(error)}"
    return f"{shown_keys(keys)}: {_wrong_value(error)}"


def _wrong_value(error) -> str:
    """`'max' is not one of minimize, maximize`."""
    value = error.instance
    is_text_for_number = isinstance(value, str) and error.schema.get("type") == "number"
    if is_text_for_number and NUMBER_LIKE.fullmatch(value):
        return number_for_yaml(value)
    description = error.schema["description"].format(value=f"{value!r:.60}")
    return f"{value!r:.60} is not {description}"


def number_for_yaml(text: str) -> str:
    """How to write a number that YAML reads as text.

    >>> number_for_yaml("1e5")
    "'1e5' is text in YAML; write 1.0e+5"
    """
    whole_part, fraction, exponent = NUMBER_LIKE.fullmatch(text).groups()
    if fraction in (None, "."):
        fraction = ".0"
    if exponent[0] not in "+-":
        exponent = f"+{exponent}"
    return f"{text!r} is text in YAML; write {whole_part}{fraction}e{exponent}"


def split_keys(keys: tuple) -> tuple[list[str], tuple]:
    """A parameter's names, outermost first, and the keys within it.

    >>> split_keys(("parameters", "lr_scheduler_kwargs", "parameters", "min_lr", "values", 0))
    (['lr_scheduler_kwargs', 'min_lr'], ('values', 0))
    """
    names = []
    while keys[:1] == ("parameters",) and len(keys) > 1:
        names.append(str(keys[1]))
        keys = keys[2:]
    return names, keys


def shown_keys(keys: tuple) -> str:
    """The keys in a message: `metric.goal`, and a parameter by its name."""
    names, setting = split_keys(keys)
    return ".".join([*names, *map(str, setting)])
