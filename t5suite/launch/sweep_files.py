"""W&B sweep files: read, with the line of everything, and their parameters with the distributions of W&B's schema.

    >>> sweep = read_sweep("sweeps/glue_rte_sweep.yaml")
    >>> parameters_of(sweep)[2]
    Parameter(path=('learning_rate',), distribution='log_uniform_values', settings={'min': 1e-05, 'max': 0.01}, line=15)
    >>> sweep.finding(("parameters", "seed", "min"), "seed: min 0.5 is no whole number")
    Finding(path='sweeps/glue_rte_sweep.yaml', line=19, message='seed: min 0.5 is no whole number', ...)

The distributions and their settings are those of W&B's `sweeps` package (`config/schema.json`, 0.3.0).
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion
from t5suite.base.yaml_files import read_yaml

PARAMETER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# What YAML 1.1 as PyYAML reads it takes for text: no dot, or no sign in the exponent.
NUMBER_LIKE = re.compile(r"([+-]?\d+)(\.\d*)?[eE]([+-]?\d+)")
MAX_NESTING = 20


class Finding(NamedTuple):
    """Something wrong in a sweep file.

    Attributes:
      level: "error", or "note" for what runs but is hardly meant.
      needs_server: nothing is wrong, but only W&B's server can do it.
    """

    path: str
    line: int
    message: str
    level: str = "error"
    needs_server: bool = False

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {'' if self.level == 'error' else self.level + ': '}{self.message}"


class Parameter(NamedTuple):
    """One parameter of a sweep; nested ones have a path of several names."""

    path: tuple[str, ...]
    distribution: str
    settings: dict
    line: int

    @property
    def name(self) -> str:
        """`lr_scheduler_kwargs.min_lr`."""
        return ".".join(self.path)


@dataclass(frozen=True)
class SweepFile:
    """A sweep file's content, and where each part of it stands.

    Attributes:
      lines: the line of every key, by its path: `("parameters", "seed", "value")`; items of lists by their number.
    """

    path: str
    content: dict
    lines: dict[tuple, int]

    def line(self, *keys) -> int:
        """The line of the deepest of these keys that stands in the file itself (not behind an anchor)."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return self.lines.get(keys, 1)

    def finding(self, keys: tuple, message: str, level: str = "error") -> Finding:
        """A finding at that key."""
        return Finding(self.path, self.line(*keys), message, level)


def read_sweep(path) -> SweepFile:
    """Reads a sweep file without judging it.

    Raises:
      ConfigError: it is not YAML, or no table of names.
    """
    content = read_yaml(path).content
    if content is None:
        raise ConfigError(f"{path}: the file is empty")
    if not isinstance(content, dict):
        raise ConfigError(f"{path}:1: a sweep is a table (method: ..., parameters: ...), not {type(content).__name__}")
    return SweepFile(str(path), content, _deep_lines(path))


def _deep_lines(path) -> dict[tuple, int]:
    """The line of every key. `read_yaml` has been here before: no value holds itself, none is nested too deeply."""
    import yaml

    lines = {}

    def walk(node, keys):
        if len(keys) > MAX_NESTING:
            return
        pairs = node.value if node.id == "mapping" else []
        for key, value in pairs:
            if key.id == "scalar":
                lines[(*keys, key.value)] = key.start_mark.line + 1
                walk(value, (*keys, key.value))
        for i, item in enumerate(node.value if node.id == "sequence" else []):
            lines[(*keys, i)] = item.start_mark.line + 1
            walk(item, (*keys, i))

    walk(yaml.compose(Path(path).read_text(encoding="utf-8-sig"), Loader=yaml.SafeLoader), ())
    return lines


def parameters_of(sweep: SweepFile) -> list[Parameter]:
    """The parameters in the file's order, nested ones unfolded; those that are wrong are left out."""
    return [parameter for parameter, _ in walk_parameters(sweep) if parameter is not None]


# ---------------------------------------------------------------------------------------------------------------------
# Parameters


def walk_parameters(sweep: SweepFile):
    """`(Parameter or None, findings)` of every parameter."""
    parameters = sweep.content.get("parameters")
    if isinstance(parameters, dict):
        yield from _walk_table(sweep, parameters, ("parameters",), ())


def _walk_table(sweep: SweepFile, table: dict, keys: tuple, path: tuple[str, ...]):
    if not table:
        yield None, [sweep.finding(keys, f"{'.'.join(map(str, keys))}: an empty table")]
    for name, entry in table.items():
        here, shown = (*keys, name), ".".join([*path, str(name)])
        if not (isinstance(name, str) and PARAMETER_NAME.fullmatch(name)):
            yield None, [sweep.finding(here, f"{shown!r:.60} is no parameter's name (letters, digits, _ . -)")]
        elif not isinstance(entry, dict):
            yield None, [sweep.finding(here, f"{shown}: {entry!r:.60} is no table; write value: {entry!r:.60}")]
        elif isinstance(entry.get("parameters"), dict) and len(path) < MAX_NESTING:
            extra = [key for key in entry if key != "parameters"]
            if extra:
                yield None, [sweep.finding(here, f"{shown}: {extra[0]!r:.60} cannot stand beside parameters")]
            yield from _walk_table(sweep, entry["parameters"], (*here, "parameters"), (*path, name))
        else:
            yield _read_parameter(sweep, entry, here, (*path, name))


def _read_parameter(sweep: SweepFile, entry: dict, keys: tuple, path: tuple[str, ...]):
    name = ".".join(path)
    distribution = entry.get("distribution", _inferred(entry))
    if distribution is None:
        return None, [sweep.finding(keys, f"{name}: give value, values, or min and max")]
    if not isinstance(distribution, str) or distribution not in DISTRIBUTIONS:
        known = suggestion(distribution, DISTRIBUTIONS)
        return None, [
            sweep.finding((*keys, "distribution"), f"{name}: unknown distribution {distribution!r:.60}; {known}")
        ]
    needed, optional = DISTRIBUTIONS[distribution]
    settings = {key: value for key, value in entry.items() if key != "distribution"}
    found = []
    for key in needed:
        if key not in settings:
            found.append(sweep.finding(keys, f"{name}: {distribution} needs {key}"))
    for key, value in settings.items():
        if key not in (*needed, *optional):
            takes = ", ".join((*needed, *optional))
            found.append(sweep.finding((*keys, key), f"{name}: {distribution} takes {takes}, not {key!r:.60}"))
        elif _setting_problem(distribution, key, value):
            found.append(sweep.finding((*keys, key), f"{name}: {key} {_setting_problem(distribution, key, value)}"))
    if not found:
        found += [
            sweep.finding((*keys, *at), f"{name}: {said}", level) for at, said, level in _sense(distribution, settings)
        ]
    if any(finding.level == "error" for finding in found):
        return None, found
    return Parameter(path, distribution, settings, sweep.line(*keys)), found


def _inferred(entry: dict) -> str | None:
    """What W&B takes a parameter without `distribution` for."""
    if "value" in entry:
        return "constant"
    if "probabilities" in entry:
        return "categorical_w_probabilities"
    if "values" in entry:
        return "categorical"
    if "min" in entry or "max" in entry:
        whole = all(is_whole(entry.get(key, 0)) for key in ("min", "max"))
        return "int_uniform" if whole else "uniform"
    return None


def _setting_problem(distribution: str, key: str, value) -> str | None:
    if key == "value":
        return _value_problem(value)
    if key == "values":
        if not isinstance(value, list) or not value:
            return f"{value!r:.60} is no list with at least one item"
        return next(filter(None, map(_value_problem, value)), None)
    if key == "probabilities":
        good = isinstance(value, list) and value and all(is_number(item) and item >= 0 for item in value)
        return None if good else f"{value!r:.60} is no list of numbers from 0"
    if not is_number(value):
        return not_a_number(value)
    if distribution == "int_uniform" and not is_whole(value):
        return f"{value!r} is no whole number"
    if (key in LEAST and value < LEAST[key]) or (key == "q" and value <= 0):
        return f"{value!r} is too small"
    return None


def _value_problem(value) -> str | None:
    """W&B keeps values as JSON."""
    if value is None or isinstance(value, (str, bool, int)) or is_number(value):
        return None
    if isinstance(value, list):
        return next(filter(None, map(_value_problem, value)), None)
    if isinstance(value, dict):
        wrong = [key for key in value if not isinstance(key, str)]
        if wrong:
            return f"{wrong[0]!r:.60} is no text, as a table's names must be"
        return next(filter(None, map(_value_problem, value.values())), None)
    return f"{value!r:.60} is a {type(value).__name__}; put it in quotes"


def _sense(distribution: str, settings: dict) -> list[tuple[tuple, str, str]]:
    """What fits the schema and makes no sense: `(keys, message, level)`."""
    low, high = settings.get("min"), settings.get("max")
    if low is not None and high is not None:
        if low > high:
            return [(("min",), f"min {low} is above max {high}", "error")]
        if distribution.endswith("log_uniform_values") and low <= 0:
            return [(("min",), f"min {low}: {distribution} needs values above 0", "error")]
        if distribution in EXPONENTS and max(abs(low), abs(high)) > 700:
            return [
                (
                    (),
                    f"min and max of {distribution} are exponents of e; for values take {distribution}_values",
                    "error",
                )
            ]
        if distribution in EXPONENTS and low > 0 and high < 1:
            said = f"min and max of {distribution} are exponents of e: values from {math.exp(low):.5g} to "
            return [((), f"{said}{math.exp(high):.5g}; for values take {distribution}_values", "note")]
    if "values" in settings:
        return _sense_of_values(settings)
    return []


def _sense_of_values(settings: dict) -> list[tuple[tuple, str, str]]:
    values, found = settings["values"], []
    if "probabilities" in settings and len(settings["probabilities"]) != len(values):
        found.append(
            (("probabilities",), f"{len(settings['probabilities'])} probabilities of {len(values)} values", "error")
        )
    for i, value in enumerate(values):
        if any(type(value) is type(other) and value == other for other in values[:i]):
            found.append((("values", i), f"{value!r:.60} stands there twice", "error"))
        if isinstance(value, str) and NUMBER_LIKE.fullmatch(value):
            found.append((("values", i), f"{value!r} is text in YAML; write {as_yaml_float(value)}", "note"))
    return found


def as_yaml_float(text: str) -> str:
    """A number as YAML 1.1 takes it for one.

    >>> as_yaml_float("1e-5"), as_yaml_float("2.5E3")
    ('1.0e-5', '2.5e+3')
    """
    whole, fraction, exponent = NUMBER_LIKE.fullmatch(text).groups()
    fraction = fraction if fraction and len(fraction) > 1 else ".0"
    return f"{whole}{fraction}e{exponent if exponent[0] in '+-' else '+' + exponent}"


def not_a_number(value) -> str:
    """Why a value is no number, with what would be one.

    >>> not_a_number("1e-5")
    "'1e-5' is text in YAML; write 1.0e-5"
    """
    if isinstance(value, str) and NUMBER_LIKE.fullmatch(value):
        return f"{value!r} is text in YAML; write {as_yaml_float(value)}"
    return f"{value!r:.60} is no finite number"


def is_number(value) -> bool:
    """Whether it is a number, and a finite one."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def is_whole(value) -> bool:
    """Whether it is a whole number, not one like 2.0."""
    return isinstance(value, int) and is_number(value)


# Each distribution's settings: those that it needs, and those that have a default.
DISTRIBUTIONS = {
    "constant": (("value",), ()),
    "categorical": (("values",), ()),
    "categorical_w_probabilities": (("values", "probabilities"), ()),
    "int_uniform": (("min", "max"), ()),
    "uniform": (("min", "max"), ()),
    "q_uniform": (("min", "max"), ("q",)),
    "log_uniform": (("min", "max"), ()),
    "log_uniform_values": (("min", "max"), ()),
    "q_log_uniform": (("min", "max"), ("q",)),
    "q_log_uniform_values": (("min", "max"), ("q",)),
    "inv_log_uniform": (("min", "max"), ()),
    "inv_log_uniform_values": (("min", "max"), ()),
    "normal": ((), ("mu", "sigma")),
    "q_normal": ((), ("mu", "sigma", "q")),
    "log_normal": ((), ("mu", "sigma")),
    "q_log_normal": ((), ("mu", "sigma", "q")),
    "beta": ((), ("a", "b")),
    "q_beta": ((), ("a", "b", "q")),
}
EXPONENTS = ("log_uniform", "q_log_uniform", "inv_log_uniform")
LEAST = {"sigma": 0, "a": 0, "b": 0}


METHODS = ("grid", "random", "bayes", "custom")
GOALS = ("minimize", "maximize")
GRID_DISTRIBUTIONS = ("constant", "categorical", "int_uniform", "q_uniform")


def check_file(sweep: SweepFile) -> list[Finding]:
    """All that W&B's schema would refuse, in the order of lines."""
    found = [*_check_top_level(sweep), *_check_metric(sweep), *_check_early_terminate(sweep), *_check_scheduler(sweep)]
    found += [finding for _, findings in walk_parameters(sweep) for finding in findings]
    found += _check_method(sweep)
    return sorted(set(found), key=lambda finding: (finding.line, finding.message))


def _check_top_level(sweep: SweepFile) -> list[Finding]:
    found = []
    for key, value in sweep.content.items():
        if key not in TOP_LEVEL:
            found.append(sweep.finding((key,), f"unknown key {key!r:.60}; {suggestion(key, TOP_LEVEL)}"))
        else:
            problem = KINDS[TOP_LEVEL[key]](value)
            if problem:
                found.append(sweep.finding((key,), f"{key}: {value!r:.60} {problem}"))
    if "method" not in sweep.content:
        found.append(sweep.finding((), f"method is missing; choose from {', '.join(METHODS)}"))
    if "parameters" not in sweep.content and sweep.content.get("method") != "custom":
        found.append(sweep.finding((), "parameters is missing: nothing is searched"))
    found += _check_choice(sweep, ("method",), METHODS)
    found += _check_choice(sweep, ("controller", "type"), ("local", "cloud"))
    for i, word in enumerate(_of(list, sweep.content.get("command"))):
        if isinstance(word, (dict, list)) or word is None:
            found.append(sweep.finding(("command", i), f"command: {word!r:.60} is no word; put it in quotes"))
    return found


def _check_choice(sweep: SweepFile, keys: tuple, choices) -> list[Finding]:
    value = sweep.content
    for key in keys:
        if not isinstance(value, dict) or key not in value:
            return []
        value = value[key]
    if isinstance(value, str) and value in choices:
        return []
    return [sweep.finding(keys, f"{'.'.join(keys)}: {value!r:.60} is none of {', '.join(choices)}")]


def _check_closed(sweep: SweepFile, place: str, allowed) -> list[Finding]:
    """Refuses unknown keys of the table at `place`."""
    table = _of(dict, sweep.content.get(place))
    return [
        sweep.finding((place, key), f"{place}: unknown key {key!r:.60}; {suggestion(key, allowed)}")
        for key in table
        if key not in allowed
    ]


def _check_metric(sweep: SweepFile) -> list[Finding]:
    found = _check_closed(sweep, "metric", ("name", "goal", "target", "impute", "impute_while_running"))
    metric = sweep.content.get("metric")
    needing = [name for name in ("early_terminate",) if name in sweep.content]
    needing += ["method: bayes"] if sweep.content.get("method") == "bayes" else []
    if metric is None and needing:
        found.append(sweep.finding((), f"metric is missing, which {needing[0]} needs: name and goal"))
    if not isinstance(metric, dict):
        return found
    if not (isinstance(metric.get("name"), str) and metric["name"].strip()):
        found.append(sweep.finding(("metric", "name"), "metric: name is missing: the metric that runs log"))
    if "target" in metric and not is_number(metric["target"]):
        found.append(sweep.finding(("metric", "target"), f"metric.target: {not_a_number(metric['target'])}"))
    found += _check_choice(sweep, ("metric", "goal"), GOALS)
    found += _check_choice(sweep, ("metric", "impute"), ("latest", "best", "worst"))
    found += _check_choice(sweep, ("metric", "impute_while_running"), ("latest", "best", "worst", "false"))
    return found


def _check_early_terminate(sweep: SweepFile) -> list[Finding]:
    place = "early_terminate"
    rule = sweep.content.get(place)
    if not isinstance(rule, dict):
        return []
    found = _check_closed(sweep, place, ("type", "min_iter", "max_iter", "s", "eta", "strict"))
    if "type" not in rule:
        found.append(sweep.finding((place,), f"{place}: type is missing; W&B has hyperband"))
    found += _check_choice(sweep, (place, "type"), ("hyperband",))
    if "min_iter" not in rule and not {"max_iter", "s"} <= set(rule):
        found.append(sweep.finding((place,), f"{place}: give min_iter, or max_iter and s"))
    for key, smallest in {"min_iter": 1, "max_iter": 1, "s": 1}.items():
        if key in rule and not (is_whole(rule[key]) and rule[key] >= smallest):
            found.append(
                sweep.finding((place, key), f"{place}.{key}: {rule[key]!r:.60} is no whole number above {smallest - 1}")
            )
    if "eta" in rule and not (is_number(rule["eta"]) and rule["eta"] > 1):
        found.append(sweep.finding((place, "eta"), f"{place}.eta: {rule['eta']!r:.60} is no number above 1"))
    if "strict" in rule and not isinstance(rule["strict"], bool):
        found.append(sweep.finding((place, "strict"), f"{place}.strict: {rule['strict']!r:.60} is not true or false"))
    return found


def _check_scheduler(sweep: SweepFile) -> list[Finding]:
    content, found = sweep.content, []
    if "scheduler" in content and "early_terminate" in content:
        found.append(sweep.finding(("scheduler",), "scheduler cannot stand beside early_terminate"))
    if "metrics" in content and "metric" in content:
        found.append(sweep.finding(("metrics",), "metrics cannot stand beside metric"))
    if "metrics" in content and content.get("method") != "custom":
        found.append(sweep.finding(("metrics",), "metrics needs method: custom"))
    engine = _of(dict, content.get("scheduler")).get("engine")
    if "scheduler" in content:
        found += _check_closed(sweep, "scheduler", ("engine", "source", "optimizer", "search_space"))
        if engine not in ("optuna", "ax", "wandb"):
            found.append(
                sweep.finding(("scheduler", "engine"), f"scheduler.engine: {engine!r:.60} is none of optuna, ax, wandb")
            )
    return found


def _check_method(sweep: SweepFile) -> list[Finding]:
    """A grid has no continuous parameters."""
    if sweep.content.get("method") != "grid":
        return []
    return [
        Finding(sweep.path, p.line, f"{p.name}: a grid cannot go through {p.distribution}; give values: [...]")
        for p in parameters_of(sweep)
        if p.distribution not in GRID_DISTRIBUTIONS
    ]


def _of(kind, value):
    """The value if it is of that kind, else an empty one."""
    return value if isinstance(value, kind) else kind()


KINDS = {
    "text": lambda value: None if isinstance(value, str) else "is no text; put it in quotes",
    "table": lambda value: None if isinstance(value, dict) else "is no table",
    "list": lambda value: None if isinstance(value, list) and value else "is no list with at least one item",
    "count": lambda value: None if is_whole(value) and value > 0 else "is no whole number above 0",
}

TOP_LEVEL = {
    "method": "text",
    "metric": "table",
    "metrics": "list",
    "parameters": "table",
    "early_terminate": "table",
    "command": "list",
    "program": "text",
    "run_cap": "count",
    "name": "text",
    "project": "text",
    "entity": "text",
    "description": "text",
    "controller": "table",
    "scheduler": "table",
    "job": "text",
    "image_uri": "text",
    "apiVersion": "text",
    "kind": "text",
}
