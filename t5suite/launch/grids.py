"""A grid without a sweep file: settings, seeds and tasks from the command line.

>>> grid_content(["learning_rate=1e-3,3e-4"], "1,2,3", "rte,cola", ["python", "fine_tune_t5.py"])["parameters"]
{'learning_rate': {'values': [0.001, 0.0003]}, 'seed': {'values': [1, 2, 3]}, 'dataset_name': {...}}
"""

import hashlib
import json
import re

from t5suite.base.errors import ConfigError
from t5suite.launch.macros import ARGUMENT_MACROS, macro_name
from t5suite.launch.summaries import SEED, TASK

# Metrics of which less is better; a run's other ones are scores.
LESS_IS_BETTER = ("loss", "nll", "nll_text", "perplexity", "invalid_rate", "truncated_rate", "grad_norm")
WORDS = {"True": True, "False": False, "None": None}


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
    if word in WORDS:
        return WORDS[word]
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
