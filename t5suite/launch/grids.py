"""`--grid`, `--seeds` and `--tasks` -> the content of the equivalent sweep file.

>>> content = grid_content(["learning_rate=1e-3,3e-4"], "1,2", None, ["python", "fine_tune_t5.py"])
>>> content["parameters"]
{'learning_rate': {'values': [0.001, 0.0003]}, 'seed': {'values': [1, 2]}}
"""

import hashlib
import json

from t5suite.base.errors import ConfigError
from t5suite.launch.commands import ARGUMENT_MACROS, SEED, TASK, macro_name, read_word
from t5suite.launch.sweep_metrics import goal_of
from t5suite.runs.settings import without_secrets


def grid_content(
    settings: list[str], seeds: str | None, tasks: str | None, command: list[str], metric: str | None = None
) -> dict:
    """The content of the equivalent sweep file.

    Args:
      settings: `flag=value,value,...` each; a value cannot contain a comma, and a text keeps the spaces at its end.
      command: of a trial; its parameters come at the end unless it has a macro for them.

    Raises:
      ConfigError: a setting without values or given twice; no command.
    """
    if not command:
        raise ConfigError("--grid, --seeds and --tasks need the command of a trial: ... -- python fine_tune_t5.py ...")
    passes_parameters = any(macro_name(word) in ARGUMENT_MACROS for word in command)
    if not passes_parameters:
        command = [*command, "${args}"]
    content = {"method": "grid", "parameters": _grid_parameters(settings, seeds, tasks), "command": command}
    if metric:
        content["metric"] = {"name": metric, "goal": goal_of(metric)}
    shown_content = {**content, "command": without_secrets(command)}
    digest = hashlib.sha256(json.dumps(shown_content).encode()).hexdigest()[:8]
    return {"name": f"grid-{digest}", **content}


def _grid_parameters(settings: list[str], seeds: str | None, tasks: str | None) -> dict[str, dict]:
    """The `parameters:` of the flags."""
    flags = [("--grid", setting) for setting in settings]
    if seeds is not None:
        flags.append(("--seeds", f"{SEED}={seeds}"))
    if tasks is not None:
        flags.append(("--tasks", f"{TASK}={tasks}"))
    parameters: dict[str, dict] = {}
    for flag, setting in flags:
        name, values = _read_setting(flag, setting)
        if name in parameters:
            raise ConfigError(f"{flag}: {name} is given twice")
        parameters[name] = {"values": values}
    return parameters


def _read_setting(flag: str, setting: str) -> tuple[str, list]:
    """A parameter's name and values; tasks stay text, seeds are whole numbers."""
    name, equals, text = setting.partition("=")
    name = name.strip().removeprefix("--").replace("-", "_")
    words = [word.strip() for word in text.split(",")]
    has_name = bool(equals and name)
    if not has_name or "" in words:
        raise ConfigError(f"{flag} {setting!r}: write flag=value,value (learning_rate=1e-3,3e-4)")
    if flag == "--tasks":
        return name, words
    values = [_read_value(word) for word in text.split(",")]
    are_whole_numbers = all(type(value) is int for value in values)
    if flag == "--seeds" and not are_whole_numbers:
        raise ConfigError(f"--seeds {text}: seeds are whole numbers")
    return name, values


def _read_value(word: str):
    """A number or a truth value; a text keeps the spaces at its end, which a prefix needs.

    >>> _read_value(" 3 "), _read_value(" summarize: ")
    (3, 'summarize: ')
    """
    value = read_word(word.strip())
    if isinstance(value, str):
        return word.lstrip()
    return value
