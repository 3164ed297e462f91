"""W&B sweep files: read with the line of every key, and checked against W&B's schema, Optuna and the script they run.

    >>> sweep = read_sweep("my_sweep.yaml")
    >>> parameters_of(sweep)[2]
    Parameter(path=('learning_rate',), distribution='log_uniform_values', settings={'min': 1e-05, 'max': 0.01}, line=15)
    >>> for finding in check_sweep(sweep):
    ...     print(finding)
    my_sweep.yaml:3: metric: fine_tune_t5.py logs no 'accuracy'; did you mean eval/accuracy?

The distributions and their settings are those of W&B's `sweeps` package (`config/schema.json`, 0.3.0). A command that
runs neither `fine_tune_t5.py` nor `pre_train_t5.py` is checked for its macros alone.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import closest, suggestion
from t5suite.base.script_flags import flags_of, script_named, value_problem
from t5suite.base.yaml_files import read_yaml
from t5suite.constants import DATASET_VALS, MIXTURES
from t5suite.launch.command_line import config_content, unknown_flag
from t5suite.launch.commands import (
    ARGUMENT_MACROS,
    DEFAULT_COMMAND,
    ENVIRONMENT_MACRO,
    MACRO_NAMES,
    flags_in,
    goal_of,
    macro_name,
)

PARAMETER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# Numbers that PyYAML (YAML 1.1) reads as text: no dot, or no sign in the exponent.
NUMBER_LIKE = re.compile(r"([+-]?\d+)(\.\d*)?[eE]([+-]?\d+)")
MAX_NESTING = 20
# Flags that name a model, and flags that name rows; the bundled model is made for the bundled benchmark's.
MODEL_FLAGS = ("model_name_or_path", "config_name", "model_class", "init_checkpoint")
OWN_ROW_FLAGS = ("data_format", "train_file", "train_dir", "data_class", "task_file")
ROW_FLAGS = ("benchmark", *OWN_ROW_FLAGS)
BUNDLED_BENCHMARK = "mini"


class Finding(NamedTuple):
    """A problem in a sweep file: an "error", or a "note" for what runs but is hardly intended or `needs_server`."""

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
    """A sweep file's content, and the line of every key by its path, such as `("parameters", "seed", "value")`."""

    path: str
    content: dict
    lines: dict[tuple, int]

    def line(self, *keys) -> int:
        """The line of the deepest of these keys that is in the file itself (not behind an anchor)."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return self.lines.get(keys, 1)

    def table(self, key: str) -> dict:
        """The table at a key of the top level; an empty one if there is none."""
        return self.content[key] if isinstance(self.content.get(key), dict) else {}

    def command(self) -> list[str]:
        """The words of `command:`, or W&B's default."""
        command = self.content.get("command")
        return [str(word) for word in (command if isinstance(command, list) and command else DEFAULT_COMMAND)]


def read_sweep(path) -> SweepFile:
    """Reads a sweep file without checking it.

    Raises:
      ConfigError: it is not YAML, or not a mapping.
    """
    content, lines = read_yaml(path)
    if content is None:
        raise ConfigError(f"{path}: nothing in it but comments or white space")
    if not isinstance(content, dict):
        raise ConfigError(f"{path}:1: a sweep is a table (method: ..., parameters: ...), not {type(content).__name__}")
    return SweepFile(str(path), content, lines)


def check_sweep(sweep: SweepFile) -> list[Finding]:
    """All problems, in the order of lines."""
    problems = [*_check_keys(sweep.content, TOP_LEVEL), *_check_sense(sweep), *_check_command(sweep)]
    problems += [problem for _, wrong in walk_parameters(sweep) for problem in wrong]
    if all(problem[2:] == ("note",) for problem in problems):
        problems += [(place, message, "note", True) for place, message in _check_search(sweep)]
    script = script_of(sweep)
    if script is not None:
        problems += [*_check_flags(sweep, script), *_check_model(sweep, script), *_check_logged(sweep, script)]
    found = set()
    for place, *rest in problems:
        found.add(Finding(sweep.path, place if isinstance(place, int) else sweep.line(*place), *rest))
    return sorted(found, key=lambda finding: (finding.line, finding.message))


# ---------------------------------------------------------------------------------------------------------------------
# W&B's schema. Problems are yielded as `(keys or line, message[, "note"])`.


def _check_keys(table: dict, schema: dict, above: tuple = ()):
    """Unknown keys and wrong values of a table: TOP_LEVEL, or one within it."""
    for key, value in table.items():
        keys, takes = (*above, key), schema.get(key) if isinstance(key, str) else None
        if takes is None:
            place = f"{'.'.join(above)}: " if above else ""
            yield keys, f"{place}unknown key {key!r:.60}; {suggestion(key, schema)}"
        elif isinstance(takes, dict) and isinstance(value, dict):
            yield from _check_keys(value, takes, keys)
        else:
            if isinstance(takes, tuple):
                is_one = isinstance(value, str) and value in takes
                problem = None if is_one else f"{value!r:.60} is not one of {', '.join(takes)}"
            else:
                problem = TABLE(value) if isinstance(takes, dict) else takes(value)
            if problem:
                yield keys, f"{'.'.join(keys)}: {problem}"


def _check_sense(sweep: SweepFile):
    """What is missing, and what contradicts something else."""
    content, early = sweep.content, sweep.content.get("early_terminate")
    method = content.get("method")
    if "method" not in content:
        yield (), f"method is missing; choose from {', '.join(METHODS)}"
    if "parameters" not in content and method != "custom":
        yield (), "parameters is missing: nothing is searched"
    if "metric" in content and not sweep.table("metric").get("name"):
        yield ("metric",), "metric: name is missing: the metric that runs log"
    for need, is_there in (("early_terminate", "early_terminate" in content), ("method: bayes", method == "bayes")):
        if is_there and content.get("metric") is None:
            yield (), f"metric is missing, which {need} needs: name and goal"
    if isinstance(early, dict) and "type" not in early:
        yield ("early_terminate",), "early_terminate: type is missing; W&B has hyperband"
    if isinstance(early, dict) and "min_iter" not in early and not {"max_iter", "s"} <= set(early):
        yield ("early_terminate",), "early_terminate: give min_iter, or max_iter and s"
    for p in parameters_of(sweep) if method == "grid" else []:
        if p.distribution not in GRID_DISTRIBUTIONS:
            yield p.line, f"{p.name}: a grid cannot go through {p.distribution}; give values: [...]"


def parameters_of(sweep: SweepFile) -> list[Parameter]:
    """The parameters in the file's order, nested ones flattened; invalid ones are skipped."""
    return [parameter for parameter, _ in walk_parameters(sweep) if parameter is not None]


def walk_parameters(sweep: SweepFile):
    """`(Parameter or None, its problems)` of every parameter."""
    if isinstance(sweep.content.get("parameters"), dict):
        yield from _walk_table(sweep, sweep.content["parameters"], ("parameters",), ())


def _walk_table(sweep: SweepFile, table: dict, keys: tuple, path: tuple[str, ...]):
    if not table:
        yield None, [(keys, f"{'.'.join(map(str, keys))}: an empty table")]
    for name, entry in table.items():
        here, shown = (*keys, name), ".".join([*path, str(name)])
        if not (isinstance(name, str) and PARAMETER_NAME.fullmatch(name)):
            yield None, [(here, f"{shown!r:.60} is not a parameter's name (letters, digits, _ . -)")]
        elif not isinstance(entry, dict):
            yield None, [(here, f"{shown}: {entry!r:.60} is not a table; write value: {entry!r:.60}")]
        elif isinstance(entry.get("parameters"), dict) and len(path) < MAX_NESTING:
            extra = [key for key in entry if key != "parameters"]
            if extra:
                yield None, [(here, f"{shown}: {extra[0]!r:.60} cannot be combined with parameters")]
            yield from _walk_table(sweep, entry["parameters"], (*here, "parameters"), (*path, name))
        else:
            distribution = entry.get("distribution", _inferred(entry))
            settings = {key: value for key, value in entry.items() if key != "distribution"}
            found = [
                ((*here, *at), f"{shown}: {message}", *level)
                for at, message, *level in _check_parameter(distribution, settings)
            ]
            is_right = all(level for _, _, *level in found)
            line = sweep.line(*here)
            yield Parameter((*path, name), distribution, settings, line) if is_right else None, found


def _check_parameter(distribution, settings: dict) -> list[tuple]:
    if distribution is None:
        return [((), "give value, values, or min and max")]
    if not isinstance(distribution, str) or distribution not in DISTRIBUTIONS:
        known = suggestion(distribution, DISTRIBUTIONS)
        return [(("distribution",), f"unknown distribution {distribution!r:.60}; {known}")]
    needed, optional = DISTRIBUTIONS[distribution]
    found = [((), f"{distribution} needs {key}") for key in needed if key not in settings]
    for key, value in settings.items():
        if key not in (*needed, *optional):
            found.append(((key,), f"{distribution} takes {', '.join((*needed, *optional))}, not {key!r:.60}"))
        elif problem := _setting_problem(distribution, key, value):
            found.append(((key,), f"{key} {problem}"))
    return found or _contradictions(distribution, settings)


def _inferred(entry: dict) -> str | None:
    """The distribution that W&B infers for a parameter without `distribution`."""
    if "value" in entry:
        return "constant"
    if "values" in entry or "probabilities" in entry:
        return "categorical_w_probabilities" if "probabilities" in entry else "categorical"
    if "min" in entry or "max" in entry:
        return "int_uniform" if all(is_whole(entry.get(key, 0)) for key in ("min", "max")) else "uniform"
    return None


def _setting_problem(distribution: str, key: str, value) -> str | None:
    if key == "value":
        return _value_problem(value)
    if key == "values":
        if not isinstance(value, list) or not value:
            return f"{value!r:.60} is not a non-empty list"
        return next(filter(None, map(_value_problem, value)), None)
    if key == "probabilities":
        good = isinstance(value, list) and value and all(is_number(item) and item >= 0 for item in value)
        return None if good else f"{value!r:.60} is not a list of numbers from 0"
    if not is_number(value):
        return _not_a_number(value)
    if distribution == "int_uniform" and not is_whole(value):
        return f"{value!r} is not a whole number"
    if (key in ("sigma", "a", "b") and value < 0) or (key == "q" and value <= 0):
        return f"{value!r} is too small"
    return None


def _value_problem(value) -> str | None:
    """W&B stores values as JSON."""
    try:
        is_kept = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError):
        is_kept = False
    return None if is_kept else f"{value!r:.60} cannot be kept as JSON; put it in quotes"


def _contradictions(distribution: str, settings: dict) -> list[tuple]:
    """What fits the schema but makes no sense: `(keys, message[, level])`."""
    low, high, values = settings.get("min"), settings.get("max"), settings.get("values", [])
    if low is not None and high is not None:
        if low > high:
            return [(("min",), f"min {low} is above max {high}")]
        if distribution.endswith("log_uniform_values") and low <= 0:
            return [(("min",), f"min {low}: {distribution} needs values above 0")]
        exponents = f"min and max of {distribution} are exponents of e"
        if distribution in EXPONENTS and max(abs(low), abs(high)) > 700:
            return [((), f"{exponents}; for values take {distribution}_values")]
        if distribution in EXPONENTS and low > 0 and high < 1:
            bounds = f"values from {math.exp(low):.5g} to {math.exp(high):.5g}"
            return [((), f"{exponents}: {bounds}; for values take {distribution}_values", "note")]
    found = []
    if "probabilities" in settings and len(settings["probabilities"]) != len(values):
        found.append((("probabilities",), f"{len(settings['probabilities'])} probabilities of {len(values)} values"))
    for i, value in enumerate(values):
        if any(type(value) is type(other) and value == other for other in values[:i]):
            found.append((("values", i), f"{value!r:.60} is given twice"))
        if isinstance(value, str) and NUMBER_LIKE.fullmatch(value):
            found.append((("values", i), _not_a_number(value), "note"))
    return found


def _not_a_number(value) -> str:
    match = NUMBER_LIKE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return f"{value!r:.60} is not a finite number"
    whole, fraction, exponent = match.groups()
    fraction = fraction if fraction and len(fraction) > 1 else ".0"
    sign = "" if exponent[0] in "+-" else "+"
    return f"{value!r} is text in YAML; write {whole}{fraction}e{sign}{exponent}"


def is_number(value) -> bool:
    """Whether it is a finite number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


def is_whole(value) -> bool:
    """Whether it is an integer, not one like 2.0."""
    return isinstance(value, int) and is_number(value)


# ---------------------------------------------------------------------------------------------------------------------
# Optuna


def _check_search(sweep: SweepFile) -> list[tuple]:
    """What W&B's server can search and Optuna cannot."""
    content, eta = sweep.content, sweep.table("early_terminate").get("eta", 3)
    found = [(p.line, f"{p.name}: {no_counterpart(p)}") for p in parameters_of(sweep) if no_counterpart(p)]
    found += [((key,), f"{key} needs W&B's server") for key in ("scheduler", "metrics") if key in content]
    if content.get("method") == "custom":
        found.append((("method",), "method custom needs W&B's server"))
    if isinstance(eta, float) and not eta.is_integer():
        said = f"early_terminate.eta {eta}: without W&B's server it must be a whole number"
        found.append((("early_terminate", "eta"), said))
    if {sweep.table("metric").get(key) for key in ("impute", "impute_while_running")} & {"latest", "best"}:
        found.append((("metric",), "metric.impute other than worst needs W&B's server"))
    return found


def no_counterpart(parameter: Parameter) -> str | None:
    """Why Optuna cannot search the parameter; None if it can."""
    kind, q = parameter.distribution, parameter.settings.get("q", 1)
    if kind in WITHOUT_COUNTERPART:
        return f"{kind} has no counterpart in Optuna, so it needs W&B's server"
    if kind in ("q_log_uniform", "q_log_uniform_values") and q != 1:
        return f"{kind} with q {q} has no counterpart in Optuna (q: 1 has), so it needs W&B's server"
    if kind in ("q_uniform", "q_log_uniform", "q_log_uniform_values"):
        first, last = multiples_of_q(parameter)
        return f"no multiple of q {q} lies between min and max" if first > last else None
    return None


def multiples_of_q(parameter: Parameter) -> tuple[int, int]:
    """The first and the last k for which k * q is in the range; a bound missed by rounding alone counts."""
    low, high = parameter.settings["min"], parameter.settings["max"]
    if parameter.distribution == "q_log_uniform":
        low, high = math.exp(low), math.exp(high)
    q = parameter.settings.get("q", 1.0)
    return math.ceil(round(low / q, 9)), math.floor(round(high / q, 9))


# ---------------------------------------------------------------------------------------------------------------------
# The script


class Script(NamedTuple):
    """The entry script of a command, the flags that it is given there, and their places as keys of the sweep file."""

    name: str
    flags: dict[str, object]
    places: dict[str, tuple]


def script_of(sweep: SweepFile) -> Script | None:
    """The entry script that the command runs, with the flags that follow it there; None: it is another program."""
    words, program = sweep.command(), sweep.content.get("program")
    names = [str(program) if word == "${program}" else word for word in words]
    scripts = [script_named(*pair) for pair in zip(names, ["", *names])]
    start = next((i for i, script in enumerate(scripts, 1) if script), None)
    if start is None:
        return None
    given = flags_in(word for word in words[start:] if not word.startswith("${args"))
    places = {flag: ("command", i) for i, word in enumerate(words) for flag in flags_in([word])}
    first = words[start] if words[start:] and not words[start].startswith(("-", "$")) else None
    flags = _flags_of_config(str(given.pop("config", first)))
    place = places.get("config", ("command", start))
    return Script(scripts[start - 1], {**flags, **given}, {**dict.fromkeys(flags, place), **places})


def _flags_of_config(word: str) -> dict:
    """The flags that a configuration file sets; none if it cannot be read, which the script itself reports."""
    try:
        _, content, _ = config_content(word)
    except ConfigError:
        return {}
    items = content.items() if isinstance(content, dict) else ()
    return {name.replace("-", "_"): value for name, value in items if isinstance(name, str)}


def _check_command(sweep: SweepFile):
    words, given = sweep.command(), sweep.content.get("command")
    for i, word in enumerate(words):
        name = macro_name(word)
        if given and isinstance(given, list) and (isinstance(given[i], (dict, list)) or given[i] is None):
            yield ("command", i), f"command: {given[i]!r:.60} is not a word; put it in quotes"
        if ENVIRONMENT_MACRO.search(word):
            continue
        if name is not None and name not in MACRO_NAMES:
            known = suggestion(name, MACRO_NAMES)
            yield ("command", i), f"command: unknown macro {word:.60}, which W&B drops; {known}"
        elif name is None and "${" in word:
            yield ("command", i), f"command: {word!r:.60}: a macro must be an item of its own", "note"
        elif name == "program" and not sweep.content.get("program"):
            yield ("command", i), "command: ${program} needs a program:, the script to run"
    if "parameters" in sweep.content and not any(macro_name(word) in ARGUMENT_MACROS for word in words):
        yield ("command",), "command: no ${args} or the like, so the parameters never reach the script"


def _check_flags(sweep: SweepFile, script: Script):
    """The flags that the command and the parameters set: known, of the right type, none twice, no shared directory."""
    known, in_command = flags_of(script.name), flags_in(sweep.command())
    shared = "output_dir: all trials would share it; without it each has its own"
    for name, value in script.flags.items():
        place = script.places[name]
        if name not in known:
            yield place, f"command: {unknown_flag(name, known)}"
        elif name == "output_dir":
            yield place, shared
        elif not str(value).startswith("${") and value_problem(known[name], value):
            yield place, f"command: --{name}: {value_problem(known[name], value)}"
    for parameter in parameters_of(sweep):
        name = parameter.path[0]
        line = sweep.line("parameters", name)
        if name not in known:
            yield line, unknown_flag(name, known)
        elif name == "output_dir":
            yield line, shared
        elif len(parameter.path) == 1:
            yield from _check_values(sweep, parameter, known[name])
            if name in in_command and name in script.flags:
                yield line, f"{name}: the command gives --{name} too"
        elif known[name]["type"] != "dict":
            yield line, f"{name}: --{name} takes no table, so it has no nested parameters"


def _check_model(sweep: SweepFile, script: Script):
    """Notes that no flag names a model for rows that the bundled one is not made for."""
    names = {*script.flags, *(parameter.path[0] for parameter in parameters_of(sweep))}
    if script.name != "fine_tune_t5" or names.intersection(MODEL_FLAGS) or not names.intersection(ROW_FLAGS):
        return
    benchmark = sweep.table("parameters").get("benchmark", script.flags.get("benchmark", BUNDLED_BENCHMARK))
    if benchmark in (BUNDLED_BENCHMARK, {"value": BUNDLED_BENCHMARK}) and names.isdisjoint(OWN_ROW_FLAGS):
        return
    message = "no model is named: each trial trains the bundled toy T5 from random weights; give model_name_or_path"
    yield ("parameters",), message, "note"


def _check_values(sweep: SweepFile, parameter: Parameter, flag: dict):
    """Whether the flag accepts every value of the parameter."""
    name, kind, settings = parameter.name, parameter.distribution, parameter.settings
    keys, whole = ("parameters", *parameter.path), f"{name}: --{name} takes whole numbers, and"
    if flag["type"] == "int" and kind in CONTINUOUS:
        other = "q_log_uniform_values" if "log" in kind else "q_uniform"
        yield keys, f"{whole} {kind} gives others; take int_uniform, or {other} with q: 1"
    elif flag["type"] == "int" and kind.startswith("q_") and not isinstance(settings.get("q", 1.0), int):
        yield (*keys, "q"), f"{whole} q {settings.get('q', 1.0)} gives others; write q: 1"
    elif flag["type"] in ("bool", "dict", "str") and "min" in settings:
        yield keys, f"{name}: --{name} takes no numbers; give values: [...]"
    values = {("value",): settings["value"]} if "value" in settings else {}
    values |= {("values", i): value for i, value in enumerate(settings.get("values", []))}
    for at, value in values.items():
        if value_problem(flag, value):
            yield (*keys, *at), f"{name}: {value_problem(flag, value)}"
    if "${args_no_boolean_flags}" in sweep.command() and flag["default_true"] and False in values.values():
        said = f"omits False, and --{name} is on by default; take ${{args}}"
        yield keys, f"{name}: ${{args_no_boolean_flags}} {said}"


def _check_logged(sweep: SweepFile, script: Script):
    """Whether the script logs the metric, and the goal is the right one."""
    metric = sweep.table("metric")
    name, goal, names = metric.get("name"), metric.get("goal", "minimize"), logged_metrics(sweep, script)
    if not isinstance(name, str) or name.startswith("train/"):
        return
    if names is not None and name not in names:
        near = [other for other in names if other.rpartition("/")[2] == name.rpartition("/")[2]] or closest(name, names)
        hint = f"did you mean {', '.join(near[:3])}?" if near else f"it logs {', '.join(names)}"
        yield ("metric", "name"), f"metric: {script.name}.py logs no {name!r:.60}; {hint}"
    elif names is None and not name.startswith("eval/"):
        yield ("metric", "name"), f"metric: {name!r:.60} is not a metric of a run; those are eval/... and train/..."
    if goal != goal_of(name):
        said = "goal is missing, and W&B's default is minimize" if "goal" not in metric else f"goal {goal}"
        kind = "less is better" if goal_of(name) == "minimize" else "more is better"
        yield ("metric", "goal"), f"metric: {said}; of {name:.60} {kind}: write goal: {goal_of(name)}"


def logged_metrics(sweep: SweepFile, script: Script) -> list[str] | None:
    """The names that the runs log evaluations by; None where the tasks are not known from the file.

    >>> logged_metrics(read_sweep("sweeps/glue_mrpc_sweep.yaml"), script)
    ['eval/f1', 'eval/accuracy', 'eval/loss', 'eval/invalid_rate', 'eval/truncated_rate', 'eval/average']
    """
    if script.name == "pre_train_t5":
        return ["eval/nll", "eval/perplexity", "eval/accuracy", "eval/nll_text"]
    given = {name: [value] for name, value in script.flags.items()}
    for parameter in parameters_of(sweep):
        given[parameter.name] = parameter.settings.get("values", [parameter.settings.get("value")])
    benchmarks, tasks = given.get("benchmark", []), given.get("dataset_name", [])
    are_text = all(isinstance(name, str) for name in [*benchmarks, *tasks])
    if "task_file" in given or len(benchmarks) != 1 or not tasks or not are_text:
        return None
    entries, logged = DATASET_VALS.get(benchmarks[0], {}), []
    for task in tasks:
        mixture = MIXTURES.get(benchmarks[0], {}).get(task, {})
        names = mixture.get("evaluate") or [name.strip() for name in task.split(",")]
        if any(name not in entries for name in names):
            return None
        found = []
        for name in names:
            splits = (entries[name].get("splits") or {}).get("validation", "validation")
            parts = [name] if isinstance(splits, str) else [split.replace("validation", name) for split in splits]
            metrics = [*entries[name]["metric_names"], "loss", "invalid_rate", "truncated_rate"]
            if len(names) == 1:
                found += [f"eval/{metric}" for metric in metrics]
            if len(names) > 1 or len(parts) > 1:
                found += [f"eval/{part}/{metric}" for part in parts for metric in metrics]
        logged.append([*dict.fromkeys(found), "eval/average"])
    return [name for name in logged[0] if all(name in others for others in logged)]


# Each distribution's settings: those that it needs, and those that have a default.
RANGE, RANGE_OF_Q = (("min", "max"), ()), (("min", "max"), ("q",))
DISTRIBUTIONS = {
    "constant": (("value",), ()),
    "categorical": (("values",), ()),
    "categorical_w_probabilities": (("values", "probabilities"), ()),
    **dict.fromkeys(("int_uniform", "uniform", "log_uniform", "log_uniform_values"), RANGE),
    **dict.fromkeys(("inv_log_uniform", "inv_log_uniform_values"), RANGE),
    **dict.fromkeys(("q_uniform", "q_log_uniform", "q_log_uniform_values"), RANGE_OF_Q),
    **dict.fromkeys(("normal", "log_normal"), ((), ("mu", "sigma"))),
    **dict.fromkeys(("q_normal", "q_log_normal"), ((), ("mu", "sigma", "q"))),
    "beta": ((), ("a", "b")),
    "q_beta": ((), ("a", "b", "q")),
}
EXPONENTS = ("log_uniform", "q_log_uniform", "inv_log_uniform")
GRID_DISTRIBUTIONS = ("constant", "categorical", "int_uniform", "q_uniform")
UNQUANTIZED = ("normal", "log_normal", "beta", "inv_log_uniform", "inv_log_uniform_values")
CONTINUOUS = ("uniform", "log_uniform", "log_uniform_values", *UNQUANTIZED)
WITHOUT_COUNTERPART = (*UNQUANTIZED, "q_normal", "q_log_normal", "q_beta", "categorical_w_probabilities")
METHODS = ("grid", "random", "bayes", "custom")
IMPUTED = ("latest", "best", "worst")

TEXT = lambda value: None if isinstance(value, str) else f"{value!r:.60} is not a text; put it in quotes"
TABLE = lambda value: None if isinstance(value, dict) else f"{value!r:.60} is not a table"
LIST = lambda value: None if isinstance(value, list) and value else f"{value!r:.60} is not a non-empty list"
COUNT = lambda value: None if is_whole(value) and value > 0 else f"{value!r:.60} is not a whole number above 0"
NUMBER = lambda value: None if is_number(value) else _not_a_number(value)
ABOVE_1 = lambda value: None if is_number(value) and value > 1 else f"{value!r:.60} is not a number above 1"
BOOLEAN = lambda value: None if isinstance(value, bool) else f"{value!r:.60} is not true or false"
# What W&B's schema accepts at each key: one of several words, a table, or a value that passes a function's check.
EARLY = {"type": ("hyperband",), "min_iter": COUNT, "max_iter": COUNT, "s": COUNT, "eta": ABOVE_1, "strict": BOOLEAN}
METRIC = {"name": TEXT, "goal": ("minimize", "maximize"), "target": NUMBER}
TOP_LEVEL = {
    "method": METHODS, "metric": {**METRIC, "impute": IMPUTED, "impute_while_running": (*IMPUTED, "false")},
    "parameters": TABLE, "early_terminate": EARLY, "run_cap": COUNT, **dict.fromkeys(("command", "metrics"), LIST),
    **dict.fromkeys(("program", "name", "project", "entity", "description", "job", "image_uri"), TEXT),
    **dict.fromkeys(("apiVersion", "kind"), TEXT), "controller": {"type": ("local", "cloud")},
    "scheduler": {"engine": ("optuna", "ax", "wandb"), "source": TEXT, "optimizer": TABLE, "search_space": TABLE},
}  # fmt: skip
