"""The command of a sweep file and the entry script that it runs: whether the script takes the flags and their values.

    >>> script_of(read_sweep("my_sweep.yaml"))                # whose command has --eval_strategy epoch
    Script(name='fine_tune_t5', flags={'eval_strategy': 'epoch'}, places={'eval_strategy': ('command', 5)})

A command that runs neither `fine_tune_t5.py` nor `pre_train_t5.py` is checked for its macros alone.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion
from t5suite.base.script_flags import flags_of, value_problem
from t5suite.launch.commands import ARGUMENT_MACROS, MACRO_NAMES, entry_script, flags_in, macro_name
from t5suite.launch.config_files import config_content
from t5suite.launch.flag_problems import unknown_flag
from t5suite.launch.schema_problems import Problem
from t5suite.launch.sweep_files import Parameter, SweepFile, parameters_of
from t5suite.runs.settings import ENVIRONMENT_MACRO

# Flags that name a model, and flags that name rows; the bundled model is made for the bundled benchmark's.
MODEL_FLAGS = ("model_name_or_path", "config_name", "model_class", "init_checkpoint")
OWN_ROW_FLAGS = ("data_format", "train_file", "train_dir", "data_class", "task_file")
ROW_FLAGS = ("benchmark", *OWN_ROW_FLAGS)
# With one of these, every trial is scored on the same rows.
VALIDATION_FLAGS = ("validation_file", "train_dir", "benchmark", "task_file")
BUNDLED_BENCHMARK = "mini"
# Distributions that give other numbers than multiples of q.
CONTINUOUS = (
    "uniform",
    "log_uniform",
    "log_uniform_values",
    "inv_log_uniform",
    "inv_log_uniform_values",
    "normal",
    "log_normal",
    "beta",
)
SHARED_OUTPUT_DIR = "output_dir: all trials would share it; without it each has its own"


class Script(NamedTuple):
    """The entry script of a command, the flags that it is given there, and their places as keys of the sweep file."""

    name: str
    flags: dict[str, object]
    places: dict[str, tuple]


def script_of(sweep: SweepFile) -> Script | None:
    """The entry script that the command runs, with the flags that follow it there; None: it is another program."""
    words = sweep.command()
    position, script = entry_script(words, sweep.content.get("program"))
    if script is None:
        return None
    arguments = words[position + 1 :]
    flags = flags_in(word for word in arguments if not word.startswith("${args"))
    places = _places_of_flags(words)
    files = [(word, ("command", position + 1 + i)) for i, word in enumerate(_first_files(arguments))]
    if "config" in flags:
        files.append((str(flags.pop("config")), places["config"]))
    flags_of_files: dict[str, object] = {}
    places_in_files: dict[str, tuple] = {}
    for file, place in files:  # a later file wins
        flags_of_file = _flags_of_config(file)
        flags_of_files |= flags_of_file
        places_in_files |= dict.fromkeys(flags_of_file, place)
    return Script(script, {**flags_of_files, **flags}, {**places_in_files, **places})


def _places_of_flags(words: list[str]) -> dict[str, tuple]:
    """The place of each flag's last word, as keys of the sweep file."""
    places: dict[str, tuple] = {}
    for position, word in enumerate(words):
        for flag in flags_in([word]):
            places[flag] = ("command", position)
    return places


def _first_files(arguments: list[str]) -> list[str]:
    """The files of flags that a script's arguments may begin with."""
    return list(itertools.takewhile(lambda word: not word.startswith(("-", "$")), arguments))


def _flags_of_config(source: str) -> dict:
    """The flags that a configuration file sets; none if it cannot be read, which the script itself reports."""
    try:
        _, content, _ = config_content(source)
    except ConfigError:
        return {}
    if not isinstance(content, dict):
        return {}
    flags = {}
    for name, value in content.items():
        if isinstance(name, str):
            flags[name.replace("-", "_")] = value
    return flags


def check_command(sweep: SweepFile) -> Iterator[Problem]:
    """The words of the command: its macros, and whether one of them passes the parameters on."""
    words = sweep.command()
    yield from _check_items(sweep.content.get("command"))
    for position, word in enumerate(words):
        problem = _macro_problem(word, sweep.content.get("program"))
        if problem:
            yield Problem(("command", position), f"command: {problem}")
        elif _is_macro_within(word):
            message = f"command: {word!r:.60}: a macro must be an item of its own"
            yield Problem(("command", position), message, "note")
    passes_parameters = any(macro_name(word) in ARGUMENT_MACROS for word in words)
    if "parameters" in sweep.content and not passes_parameters:
        yield Problem(("command",), "command: no ${args} or the like, so the parameters never reach the script")


def _check_items(command) -> Iterator[Problem]:
    """Whether the items of `command:` are words."""
    if not isinstance(command, list):
        return
    for position, item in enumerate(command):
        if item is None or isinstance(item, (dict, list)):
            yield Problem(("command", position), f"command: {item!r:.60} is not a word; put it in quotes")


def _macro_problem(word: str, program) -> str | None:
    """Why W&B cannot fill a word in; None for a word without a macro."""
    name = macro_name(word)
    if name is None or ENVIRONMENT_MACRO.search(word):
        return None
    if name not in MACRO_NAMES:
        return f"unknown macro {word:.60}, which W&B drops; {suggestion(name, MACRO_NAMES)}"
    if name == "program" and not program:
        return "${program} needs a program:, the script to run"
    return None


def _is_macro_within(word: str) -> bool:
    """Whether a word has a macro as a part, which W&B does not fill in."""
    if macro_name(word) is not None or ENVIRONMENT_MACRO.search(word):
        return False
    return "${" in word


def check_flags(sweep: SweepFile, script: Script) -> Iterator[Problem]:
    """The flags that the command and the parameters set: known, of the right type, none twice, no shared directory."""
    for name in script.flags:
        problem = _flag_problem(name, script)
        if problem:
            yield Problem(script.places[name], problem)
    flags_in_command = flags_in(sweep.command())
    for parameter in parameters_of(sweep):
        yield from _check_parameter(parameter, script, sweep.command())
        name = parameter.path[0]
        is_set_twice = len(parameter.path) == 1 and name in flags_in_command and name in script.flags
        if is_set_twice and _flag_problem(name, script) is None:
            yield Problem(parameter.keys, f"{name}: the command gives --{name} too")


def _flag_problem(name: str, script: Script) -> str | None:
    """What is wrong with a flag that the command gives the script."""
    flags = flags_of(script.name)
    if name not in flags:
        return f"command: {unknown_flag(name, flags)}"
    if name == "output_dir":
        return SHARED_OUTPUT_DIR
    value = script.flags[name]
    if str(value).startswith("${"):
        return None
    problem = value_problem(flags[name], value)
    if problem is None:
        return None
    return f"command: --{name}: {problem}"


def _check_parameter(parameter: Parameter, script: Script, command: list[str]) -> Iterator[Problem]:
    """Whether the script has the flag that a parameter sets, and the flag accepts its values."""
    flags = flags_of(script.name)
    name = parameter.path[0]
    place = ("parameters", name)
    if name not in flags:
        yield Problem(place, unknown_flag(name, flags))
    elif name == "output_dir":
        yield Problem(place, SHARED_OUTPUT_DIR)
    elif len(parameter.path) == 1:
        yield from _check_range(parameter, flags[name])
        yield from _check_values(parameter, flags[name])
        yield from _check_omitted_false(parameter, flags[name], command)
    elif flags[name]["type"] != "dict":
        yield Problem(place, f"{name}: --{name} takes no table, so it has no nested parameters")


def _check_range(parameter: Parameter, flag: dict) -> Iterator[Problem]:
    """Whether a distribution gives numbers of the flag's type."""
    name = parameter.name
    if flag["type"] == "int":
        yield from _check_whole_numbers(parameter)
    elif flag["type"] in ("bool", "dict", "str") and "min" in parameter.settings:
        yield Problem(parameter.keys, f"{name}: --{name} takes no numbers; give values: [...]")


def _check_whole_numbers(parameter: Parameter) -> Iterator[Problem]:
    """Whether a distribution gives whole numbers alone."""
    name = parameter.name
    distribution = parameter.distribution
    q = parameter.settings.get("q", 1.0)
    if distribution in CONTINUOUS:
        of_integers = "q_uniform"
        if "log" in distribution:
            of_integers = "q_log_uniform_values"
        message = f"and {distribution} gives others; take int_uniform, or {of_integers} with q: 1"
        yield Problem(parameter.keys, f"{name}: --{name} takes whole numbers, {message}")
    elif distribution.startswith("q_") and not isinstance(q, int):
        message = f"{name}: --{name} takes whole numbers, and q {q} gives others; write q: 1"
        yield Problem((*parameter.keys, "q"), message)


def _check_values(parameter: Parameter, flag: dict) -> Iterator[Problem]:
    """Whether the flag accepts every listed value."""
    values = {("values", i): value for i, value in enumerate(parameter.settings.get("values", []))}
    if "value" in parameter.settings:
        values["value",] = parameter.settings["value"]
    for keys, value in values.items():
        problem = value_problem(flag, value)
        if problem:
            yield Problem((*parameter.keys, *keys), f"{parameter.name}: {problem}")


def _check_omitted_false(parameter: Parameter, flag: dict, command: list[str]) -> Iterator[Problem]:
    """Whether False reaches a flag that is on by default."""
    if not flag["default_true"] or "${args_no_boolean_flags}" not in command:
        return
    values = [*parameter.settings.get("values", []), parameter.settings.get("value")]
    if False in values:
        name = parameter.name
        message = f"${{args_no_boolean_flags}} omits False, and --{name} is on by default; take ${{args}}"
        yield Problem(parameter.keys, f"{name}: {message}")


def check_rows_of_seeds(sweep: SweepFile, script: Script) -> Iterator[Problem]:
    """Notes that trials of several seeds would be scored on different rows, held out of one file."""
    seeds = [parameter for parameter in parameters_of(sweep) if parameter.path == ("seed",)]
    if script.name != "fine_tune_t5" or not seeds or "value" in seeds[0].settings:
        return
    flags = {*script.flags, *(parameter.path[0] for parameter in parameters_of(sweep))}
    if "train_file" in flags and flags.isdisjoint(VALIDATION_FLAGS):
        message = (
            "seed: each seed holds other rows of train_file out for validation, so that trials are scored on "
            "different rows; give validation_file"
        )
        yield Problem(("parameters", "seed"), message, "note")


def check_model_is_named(sweep: SweepFile, script: Script) -> Iterator[Problem]:
    """Notes that no flag names a model for rows that the bundled one is not made for."""
    flags = {*script.flags, *(parameter.path[0] for parameter in parameters_of(sweep))}
    if script.name != "fine_tune_t5" or not flags.isdisjoint(MODEL_FLAGS):
        return
    if flags.isdisjoint(ROW_FLAGS):
        return
    benchmark = sweep.table("parameters").get("benchmark", script.flags.get("benchmark", BUNDLED_BENCHMARK))
    is_bundled = benchmark in (BUNDLED_BENCHMARK, {"value": BUNDLED_BENCHMARK})
    if is_bundled and flags.isdisjoint(OWN_ROW_FLAGS):
        return
    message = "no model is named: each trial trains the bundled toy T5 from random weights; give model_name_or_path"
    yield Problem(("parameters",), message, "note")
