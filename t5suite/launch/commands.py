"""A sweep's `command:` and a trial's parameters -> the words of a process.

    >>> command_words(["${env}", "python", "${program}", "${args}"], {"bf16": True, "seed": 1}, "fine_tune_t5.py")
    ['/usr/bin/env', 'python', 'fine_tune_t5.py', '--bf16=True', '--seed=1']

The words are those that W&B's agent makes (wandb 0.31, `wandb_agent.py` and `sdk/launch/sweeps/utils.py`; a test
compares), but a macro that W&B does not know vanishes there and is an error here. No shell sees them, so quotes, blanks
and `$()` in values are what they are.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion
from t5suite.launch.sweep_files import Parameter
from t5suite.launch.sweep_tables import SEED, TASK

DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
ENVIRONMENT_MACRO = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")


def command_words(
    command,
    parameters: Mapping[str, object],
    program: str | None = None,
    json_file=None,
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """The words of a trial's process.

    Args:
      command: the sweep's `command:`; None: W&B's default.
      parameters: by flag; nested ones are tables.
      json_file: the file of `${args_json_file}`, which is to hold `json.dumps(parameters)`.

    Raises:
      ConfigError: an unknown macro, `${program}` without a program.
    """
    words = []
    for item in command or DEFAULT_COMMAND:
        word = _with_environment(str(item), environment)
        name = macro_name(word)
        if name is None:
            words.append(word)
        elif name == "program":
            if not program:
                raise ConfigError("${program} stands in the command, but the sweep has no program:")
            words.append(program)
        elif name == "args_json_file":
            words.append(str(json_file))
        elif name in MACROS:
            words += MACROS[name](parameters)
        else:
            raise ConfigError(f"command: unknown macro {word}; {suggestion(name, MACRO_NAMES)}")
    return words


def macro_name(word: str) -> str | None:
    """`args` of `${args}`; None for a word that is no macro.

    >>> macro_name("${args_json}"), macro_name("--x=${args}")
    ('args_json', None)
    """
    return word[2:-1] if word.startswith("${") and word.endswith("}") else None


def _with_environment(word: str, environment) -> str:
    """W&B leaves the name of a variable that is not set."""
    return ENVIRONMENT_MACRO.sub(lambda match: environment.get(match[1], match[1]), word)


def needs_json_file(command) -> bool:
    """Whether the command takes its parameters from a file, which must be there when it starts."""
    return any(str(item) == "${args_json_file}" for item in command or DEFAULT_COMMAND)


def _without_booleans(parameters) -> list[str]:
    """False is left out, True is the flag alone."""
    words = []
    for name, value in parameters.items():
        if not isinstance(value, bool):
            words.append(f"--{name}={value}")
        elif value:
            words.append(f"--{name}")
    return words


MACROS = {
    "env": lambda parameters: ["/usr/bin/env"],
    "interpreter": lambda parameters: ["python"],
    "args": lambda parameters: [f"--{name}={value}" for name, value in parameters.items()],
    "args_no_equals": lambda parameters: [
        word for name, value in parameters.items() for word in (f"--{name}", str(value))
    ],
    "args_no_hyphens": lambda parameters: [f"{name}={value}" for name, value in parameters.items()],
    "args_no_boolean_flags": _without_booleans,
    "args_json": lambda parameters: [json.dumps(dict(parameters))],
    "args_append_hydra": lambda parameters: [f"+{name}={value}" for name, value in parameters.items()],
    "args_override_hydra": lambda parameters: [f"++{name}={value}" for name, value in parameters.items()],
}
MACRO_NAMES = (*MACROS, "program", "args_json_file", "envvar:NAME")
# Those that hand the parameters over.
ARGUMENT_MACROS = tuple(name for name in MACRO_NAMES if name.startswith("args"))


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
    if values[0][:1] in ("{", "["):
        with contextlib.suppress(ValueError):
            return json.loads(values[0])
    return read_word(values[0])


# Metrics of which less is better; a run's other ones are scores.
LESS_IS_BETTER = ("loss", "nll", "nll_text", "perplexity", "invalid_rate", "truncated_rate", "grad_norm")
WORDS = {"true": True, "false": False, "none": None, "null": None}


def grid_content(
    settings: list[str], seeds: str | None, tasks: str | None, command: list[str], metric: str | None = None
) -> dict:
    """The content of a sweep file that does the same.

    Args:
      settings: `flag=value,value,...` each; a comma within a value cannot be written so.
      command: of a trial; its parameters come at the end unless it has a macro for them.

    Raises:
      ConfigError: a setting without values, given twice; no command.
    """
    if not command:
        raise ConfigError("--grid, --seeds and --tasks need the command of a trial: ... -- python fine_tune_t5.py ...")
    parameters: dict[str, dict] = {}
    given = [("--grid", setting) for setting in settings]
    given += [("--seeds", f"{SEED}={seeds}")] if seeds is not None else []
    given += [("--tasks", f"{TASK}={tasks}")] if tasks is not None else []
    for flag, setting in given:
        name, values = _read_setting(flag, setting)
        if name in parameters:
            raise ConfigError(f"{flag}: {name} is given twice")
        parameters[name] = {"values": values}
    if not any(macro_name(word) in ARGUMENT_MACROS for word in command):
        command = [*command, "${args}"]
    content = {"method": "grid", "parameters": parameters, "command": command}
    if metric:
        content["metric"] = {"name": metric, "goal": goal_of(metric)}
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:8]
    return {"name": f"grid-{digest}", **content}


def _read_setting(flag: str, setting: str) -> tuple[str, list]:
    name, equals, text = setting.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    words = [word.strip() for word in text.split(",")]
    if not equals or not name or "" in words:
        raise ConfigError(f"{flag} {setting!r}: write flag=value,value (learning_rate=1e-3,3e-4)")
    values = [read_word(word) for word in words]
    for i, value in enumerate(values):
        if value in values[:i] and type(value) in map(type, values[:i]):
            raise ConfigError(f"{flag} {setting!r}: {words[i]} stands there twice")
    if flag == "--seeds" and not all(type(value) is int for value in values):
        raise ConfigError(f"--seeds {text}: seeds are whole numbers")
    return name, [str(word) for word in words] if flag == "--tasks" else values


def read_word(word: str):
    """A word of the command line as a number or truth value where it is one.

    >>> [read_word(word) for word in ("1e-3", "12", "True", "adafactor", "007")]
    [0.001, 12, True, 'adafactor', '007']
    """
    if word.lower() in WORDS:
        return WORDS[word.lower()]
    if re.fullmatch(r"[+-]?(0|[1-9]\d{0,17})", word):
        return int(word)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][+-]?\d{1,3})?", word):
        return float(word)
    return word


def goal_of(metric: str) -> str:
    """Whether more or less of a metric is better.

    >>> goal_of("eval/rte/loss"), goal_of("eval/accuracy")
    ('minimize', 'maximize')
    """
    return "minimize" if metric.rpartition("/")[2] in LESS_IS_BETTER else "maximize"
