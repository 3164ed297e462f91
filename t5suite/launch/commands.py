"""A sweep's `command:` and a trial's parameters -> a command line, and the flags that words give.

    >>> command_words(["${env}", "python", "${program}", "${args}"], {"bf16": True, "seed": 1}, "fine_tune_t5.py")
    ['/usr/bin/env', 'python', 'fine_tune_t5.py', '--bf16=True', '--seed=1']

The words are those of W&B's agent (wandb 0.31, `wandb_agent.py` and `sdk/launch/sweeps/utils.py`; a test compares), but
an unknown macro, which W&B drops, is an error here. No shell parses them.
"""

import contextlib
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion
from t5suite.base.script_flags import script_named
from t5suite.runs.settings import ENVIRONMENT_MACRO

DEFAULT_COMMAND = ("${env}", "${interpreter}", "${program}", "${args}")
# Parameters that make repetitions and tasks, rather than settings.
SEED = "seed"
TASK = "dataset_name"
# Words of the command line that stand for a value.
WORDS = {"true": True, "false": False, "none": None, "null": None}


def command_words(
    command,
    parameters: Mapping[str, object],
    program: str | None = None,
    json_file=None,
    environment: Mapping[str, str] | None = os.environ,
) -> list[str]:
    """The words of a trial's process.

    Args:
      command: the sweep's `command:`; None: W&B's default.
      parameters: by flag; nested ones are tables.
      json_file: the file of `${args_json_file}`, which is to hold `json.dumps(parameters)`.
      environment: of `${envvar:NAME}`; None: it stays as it is.

    Raises:
      ConfigError: an unknown macro, `${program}` without a program.
    """
    words = []
    for item in command or DEFAULT_COMMAND:
        word = str(item)
        if environment is not None:
            # Like W&B, keeps the name of a variable that is not set.
            word = ENVIRONMENT_MACRO.sub(lambda match: environment.get(match[1], match[1]), word)
        name = macro_name(word)
        if name is None or ENVIRONMENT_MACRO.search(word):
            words.append(word)
        elif name == "program":
            if not program:
                raise ConfigError("the command has ${program}, but the sweep has no program:")
            words.append(program)
        elif name == "args_json_file":
            words.append(str(json_file))
        elif name in MACROS:
            words += MACROS[name](parameters)
        else:
            raise ConfigError(f"command: unknown macro {word}; {suggestion(name, MACRO_NAMES)}")
    return words


def installed_script(word: str) -> str:
    """The suite's own script for the name of one that is not in the working directory; any other word as it is.

    >>> Path(installed_script("fine_tune_t5.py")).name, installed_script("--seed=1")
    ('fine_tune_t5.py', '--seed=1')
    """
    script = Path(word)
    is_entry_script = word == script.name and script.suffix == ".py" and script_named(word) is not None
    if not is_entry_script or script.is_file():
        return word
    return importlib.util.find_spec(script.stem).origin


def macro_name(word: str) -> str | None:
    """`args` of `${args}`; None for a word that is not a macro."""
    if word.startswith("${") and word.endswith("}"):
        return word[2:-1]
    return None


def _without_booleans(parameters) -> list[str]:
    """Omits False; True becomes the flag alone."""
    words = []
    for name, value in parameters.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not False:
            words.append(f"--{name}={value}")
    return words


def _without_equals(parameters) -> list[str]:
    """A flag and its value are two words."""
    words = []
    for name, value in parameters.items():
        words += [f"--{name}", str(value)]
    return words


MACROS = {
    "env": lambda parameters: ["/usr/bin/env"],
    "interpreter": lambda parameters: ["python"],
    "args": lambda parameters: [f"--{name}={value}" for name, value in parameters.items()],
    "args_no_equals": _without_equals,
    "args_no_hyphens": lambda parameters: [f"{name}={value}" for name, value in parameters.items()],
    "args_no_boolean_flags": _without_booleans,
    "args_json": lambda parameters: [json.dumps(dict(parameters))],
    "args_append_hydra": lambda parameters: [f"+{name}={value}" for name, value in parameters.items()],
    "args_override_hydra": lambda parameters: [f"++{name}={value}" for name, value in parameters.items()],
}
MACRO_NAMES = (*MACROS, "program", "args_json_file", "envvar:NAME")
# Those that pass the parameters on.
ARGUMENT_MACROS = tuple(name for name in MACRO_NAMES if name.startswith("args"))


def flags_in(words: Iterable[str]) -> dict[str, object]:
    """Each flag's last value, as plain data; True for a flag without one, a list for several.

    >>> flags_in(["--max_steps", "100", "--bf16", "--seed=1", "--seed=2"])
    {'max_steps': 100, 'bf16': True, 'seed': 2}
    """
    words_by_flag: dict[str, list[str]] = {}
    name = None
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, text = word[2:].partition("=")
            name = name.replace("-", "_")
            words_by_flag[name] = []
            if equals:
                words_by_flag[name].append(text)
        elif name is not None:
            words_by_flag[name].append(word)
    return {name: _flag_value(words_of_flag) for name, words_of_flag in words_by_flag.items()}


def _flag_value(words: list[str]):
    """A flag's value, as plain data, from the words after it."""
    values = [_read_json_or_word(word) for word in words]
    if not values:
        return True
    if len(values) == 1:
        return values[0]
    return values


def _read_json_or_word(word: str):
    """A table or a list from JSON, and another word by `read_word`."""
    if word.startswith(("{", "[")):
        with contextlib.suppress(ValueError):
            return json.loads(word)
    return read_word(word)


def entry_script(words: list[str], program: str | None = None) -> tuple[int, str | None]:
    """The position of the word of a `command:` that names an entry script, and the script; None if no word does.

    >>> entry_script(["accelerate", "launch", "--num_processes", "2", "pre_train_t5.py", "${args}"])
    (4, 'pre_train_t5')
    """
    previous_word = ""
    for position, word in enumerate(words):
        filled_word = word
        if word == "${program}":
            filled_word = str(program)
        script = script_named(filled_word, previous_word)
        if script:
            return position, script
        previous_word = filled_word
    return len(words), None


def command_without(command: Iterable, words: Iterable[str], program: str | None = None) -> list[str]:
    """A `command:` without the flags that the words give: a script rejects a flag that is given twice.

    The flags of a launcher, which stand before an entry script, stay.

    >>> command_without(["python", "fine_tune_t5.py", "--max_steps", 1500, "--bf16", "${args}"], ["--max_steps", "100"])
    ['python', 'fine_tune_t5.py', '--bf16', '${args}']
    """
    items = [str(item) for item in command]
    start, script = entry_script(items, program)
    if script is None:
        start = 0
    replaced_flags = flags_in(words)
    remaining = items[:start]
    is_replaced = False
    for item in items[start:]:
        if item.startswith("--"):
            is_replaced = item[2:].partition("=")[0].replace("-", "_") in replaced_flags
        elif macro_name(item) in ARGUMENT_MACROS:
            is_replaced = False
        if not is_replaced:
            remaining.append(item)
    return remaining


def read_word(word: str):
    """A word of the command line, as a number or truth value if it is one.

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
