"""A sweep's `command:` and a trial's parameters -> the words of a process.

    >>> command_words(["${env}", "python", "${program}", "${args}"], {"bf16": True, "seed": 1}, "fine_tune_t5.py")
    ['/usr/bin/env', 'python', 'fine_tune_t5.py', '--bf16=True', '--seed=1']

The words are those that W&B's agent makes (wandb 0.31, `wandb_agent.py` and `sdk/launch/sweeps/utils.py`; a test
compares), but a macro that W&B does not know vanishes there and is an error here. No shell sees them, so quotes, blanks
and `$()` in values are what they are.
"""

import json
import os
import re
from collections.abc import Mapping

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion

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
