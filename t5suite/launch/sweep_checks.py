"""A sweep file against the script that it runs: its command, its flags and their values, the metric that is logged.

    >>> for finding in check_sweep(read_sweep("my_sweep.yaml")):
    ...     print(finding)
    my_sweep.yaml:3: metric: fine_tune_t5.py logs no 'accuracy'; did you mean eval/accuracy?
    my_sweep.yaml:7: unknown flag --learning_rat; did you mean learning_rate?

A command that runs neither `fine_tune_t5.py` nor `pre_train_t5.py` is checked for its macros alone.
"""

import os
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.files import shipped_folder
from t5suite.base.lookup import closest, suggestion
from t5suite.base.script_flags import flags_of, is_script, removed_flags, value_problem
from t5suite.base.yaml_files import read_yaml
from t5suite.constants import DATASET_VALS, MIXTURES
from t5suite.launch.commands import (
    ARGUMENT_MACROS,
    DEFAULT_COMMAND,
    ENVIRONMENT_MACRO,
    MACRO_NAMES,
    goal_of,
    macro_name,
)
from t5suite.launch.search import check_search
from t5suite.launch.sweep_files import Finding, Parameter, SweepFile, check_file, parameters_of

# What both scripts' evaluation logs beside the tasks' own metrics.
OF_ANY_TASK = ("loss", "invalid_rate", "truncated_rate")
OF_PRE_TRAINING = ("nll", "perplexity", "accuracy", "nll_text")
CONTINUOUS = (
    "uniform",
    "log_uniform",
    "log_uniform_values",
    "normal",
    "log_normal",
    "beta",
    "inv_log_uniform",
    "inv_log_uniform_values",
)


class Script(NamedTuple):
    """The entry script of a sweep's command.

    Attributes:
      flags: those that the command gives it itself, a configuration file's included, by name.
      places: where each of them stands, as keys of the sweep file.
    """

    name: str
    flags: dict[str, object]
    places: dict[str, tuple]


def check_sweep(sweep: SweepFile) -> list[Finding]:
    """All that is wrong, in the order of lines."""
    found = [*check_file(sweep), *_check_command(sweep)]
    if not any(finding.level == "error" for finding in found):
        found += check_search(sweep)
    script = script_of(sweep)
    if script is not None:
        found += [*_check_flags(sweep, script), *_check_metric(sweep, script), *_check_directory(sweep, script)]
    return sorted(set(found), key=lambda finding: (finding.line, finding.message))


# ---------------------------------------------------------------------------------------------------------------------
# The command


def _command(sweep: SweepFile) -> list[str]:
    command = sweep.content.get("command")
    return [str(word) for word in (command if isinstance(command, list) and command else DEFAULT_COMMAND)]


def script_of(sweep: SweepFile) -> Script | None:
    """The entry script that the command runs, with the flags that follow it there; None: it is another program."""
    words = _command(sweep)
    program = sweep.content.get("program")
    for i, word in enumerate(words):
        name = program if word == "${program}" else word
        if isinstance(name, str) and not name.startswith("-") and is_script(name):
            return _read_words(Path(name).stem, words, i + 1)
    return None


def _read_words(name: str, words: list[str], start: int) -> Script:
    flags, places, i = {}, {}, start
    while i < len(words):
        word, place = words[i], ("command", i)
        flag, equals, value = word.partition("=")
        if i == start and not word.startswith(("-", "$")):
            _read_config(word, flags, places, place)
        elif flag.startswith("--"):
            follows = i + 1 < len(words) and not words[i + 1].startswith(("--", "${args"))
            if not equals and follows:
                value, i = words[i + 1], i + 1
            key = flag[2:].replace("-", "_")
            if key == "config":
                _read_config(value, flags, places, place)
            else:
                flags[key], places[key] = (value if equals or follows else True), place
        i += 1
    return Script(name, flags, places)


def _read_config(word: str, flags: dict, places: dict, place: tuple) -> None:
    """The flags of a configuration file, which the script checks itself; flags given before win over it."""
    recipes = {path.name: path for path in shipped_folder("recipes").glob("*.yaml")}
    path = word if os.path.isfile(word) else recipes.get(Path(word).name)  # isfile takes a name that is too long, too
    try:
        content = read_yaml(path).content if path else None
    except ConfigError:
        return
    for name, value in content.items() if isinstance(content, dict) else ():
        if isinstance(name, str) and name not in flags:
            flags[name.replace("-", "_")], places[name.replace("-", "_")] = value, place


def _check_command(sweep: SweepFile) -> list[Finding]:
    found, handed_over = [], False
    for i, word in enumerate(_command(sweep)):
        keys, name = ("command", i), macro_name(word)
        handed_over = handed_over or name in ARGUMENT_MACROS
        if ENVIRONMENT_MACRO.search(word):
            continue
        if name is not None and name not in MACRO_NAMES:
            found.append(
                sweep.finding(
                    keys, f"command: unknown macro {word:.60}, which W&B leaves out; {suggestion(name, MACRO_NAMES)}"
                )
            )
        elif name is None and "${" in word:
            found.append(sweep.finding(keys, f"command: {word!r:.60}: a macro must be an item of its own", "note"))
        elif name == "program" and not sweep.content.get("program"):
            found.append(sweep.finding(keys, "command: ${program} needs a program:, the script to run"))
    if not handed_over and "parameters" in sweep.content:
        found.append(
            sweep.finding(("command",), "command: no ${args} or the like, so the parameters never reach the script")
        )
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Flags


def _check_flags(sweep: SweepFile, script: Script) -> list[Finding]:
    known, found = flags_of(script.name), []
    for name, value in script.flags.items():
        keys = script.places[name]
        if name not in known:
            found.append(sweep.finding(keys, f"command: {_unknown(name, known)}"))
        elif not str(value).startswith("${") and value_problem(known[name], value):
            found.append(sweep.finding(keys, f"command: --{name}: {value_problem(known[name], value)}"))
    seen = set()
    for parameter in parameters_of(sweep):
        name = parameter.path[0]
        if name not in known:
            if name not in seen:
                found.append(Finding(sweep.path, sweep.line("parameters", name), _unknown(name, known)))
        elif len(parameter.path) > 1:
            if known[name]["type"] != "dict" and name not in seen:
                line = sweep.line("parameters", name)
                found.append(
                    Finding(sweep.path, line, f"{name}: --{name} takes no table, so it has no nested parameters")
                )
        else:
            found += _check_values(sweep, parameter, known[name])
            if name in script.flags and script.places[name][0] == "command" and name in _given(sweep):
                found.append(Finding(sweep.path, parameter.line, f"{name}: the command gives --{name} too"))
        seen.add(name)
    return found


def _given(sweep: SweepFile) -> set[str]:
    """Flags that stand in the command itself, rather than in a configuration file that it names."""
    return {word.partition("=")[0][2:].replace("-", "_") for word in _command(sweep) if word.startswith("--")}


def _unknown(name: str, known: dict) -> str:
    if name in removed_flags():
        return f"--{name} is gone from transformers 5; use {removed_flags()[name]}"
    near = closest(name, known)
    return f"unknown flag --{name}; {'did you mean ' + ', '.join(near) + '?' if near else 'see --help of the script'}"


def _check_values(sweep: SweepFile, parameter: Parameter, flag: dict) -> list[Finding]:
    """Whether the flag takes what the parameter can be."""
    name, kind, settings = parameter.name, parameter.distribution, parameter.settings
    keys = ("parameters", *parameter.path)
    if kind in CONTINUOUS and flag["type"] == "int":
        cure = (
            "int_uniform, or q_log_uniform_values with q: 1" if "log" in kind else "int_uniform, or q_uniform with q: 1"
        )
        return [sweep.finding(keys, f"{name}: --{name} takes whole numbers, and {kind} gives others; take {cure}")]
    if flag["type"] in ("bool", "dict", "str") and "min" in settings:
        return [sweep.finding(keys, f"{name}: --{name} takes no numbers; give values: [...]")]
    if kind.startswith("q_") and flag["type"] == "int" and not isinstance(settings.get("q", 1.0), int):
        return [
            sweep.finding(
                (*keys, "q"),
                f"{name}: --{name} takes whole numbers, and q {settings.get('q', 1.0)} gives others; write q: 1",
            )
        ]
    values = {("value",): settings["value"]} if "value" in settings else {}
    values |= {("values", i): value for i, value in enumerate(settings.get("values", []))}
    found = []
    for at, value in values.items():
        problem = value_problem(flag, value)
        if problem:
            found.append(sweep.finding((*keys, *at), f"{name}: {problem}"))
    if "${args_no_boolean_flags}" in _command(sweep) and flag["default_true"] and False in values.values():
        said = f"{name}: ${{args_no_boolean_flags}} leaves False out, and --{name} is on by default; take ${{args}}"
        found.append(sweep.finding(keys, said))
    return found


def _check_directory(sweep: SweepFile, script: Script) -> list[Finding]:
    """Trials write to directories of their own: the sweep's, or those that the scripts name by the run's id."""
    said = "output_dir: all trials would share it; leave it out, and each has its own"
    found = [sweep.finding(script.places["output_dir"], said)] if "output_dir" in script.flags else []
    found += [Finding(sweep.path, p.line, said) for p in parameters_of(sweep) if p.path[0] == "output_dir"]
    return found


# ---------------------------------------------------------------------------------------------------------------------
# The metric


def _check_metric(sweep: SweepFile, script: Script) -> list[Finding]:
    metric = sweep.content.get("metric")
    name = metric.get("name") if isinstance(metric, dict) else None
    if not isinstance(name, str) or name.startswith("train/"):
        return []
    found, names = [], logged_metrics(sweep, script)
    if names is not None and name not in names:
        near = [other for other in names if other.rpartition("/")[2] == name.rpartition("/")[2]] or closest(name, names)
        hint = f"did you mean {', '.join(near[:3])}?" if near else f"it logs {', '.join(names)}"
        found.append(sweep.finding(("metric", "name"), f"metric: {script.name}.py logs no {name!r:.60}; {hint}"))
    elif names is None and not name.startswith("eval/"):
        found.append(
            sweep.finding(
                ("metric", "name"), f"metric: {name!r:.60} is none of a run's; they are eval/... and train/..."
            )
        )
    goal = metric.get("goal", "minimize")
    if goal != goal_of(name):
        said = "goal is missing, and W&B's default is minimize" if "goal" not in metric else f"goal {goal}"
        kind = "less is better" if goal_of(name) == "minimize" else "more is better"
        found.append(
            sweep.finding(("metric", "goal"), f"metric: {said}; of {name:.60} {kind}: write goal: {goal_of(name)}")
        )
    return found


def logged_metrics(sweep: SweepFile, script: Script) -> list[str] | None:
    """The names that the runs log evaluations by; None where the tasks are not known from the file.

    >>> logged_metrics(read_sweep("sweeps/glue_mrpc_sweep.yaml"), script)
    ['eval/f1', 'eval/accuracy', 'eval/loss', 'eval/invalid_rate', 'eval/truncated_rate', 'eval/average']
    """
    if script.name == "pre_train_t5":
        return [f"eval/{name}" for name in OF_PRE_TRAINING]
    benchmarks, tasks = _values_of(sweep, script, "benchmark"), _values_of(sweep, script, "dataset_name")
    own_tasks = "task_file" in script.flags or any(p.path[0] == "task_file" for p in parameters_of(sweep))
    if own_tasks or len(benchmarks) != 1 or not tasks:
        return None
    every = [_logged_by(benchmarks[0], task) for task in tasks]
    if None in every:
        return None
    return [name for name in every[0] if all(name in others for others in every)]


def _values_of(sweep: SweepFile, script: Script, flag: str) -> list[str]:
    """What a flag can be, by the command and the parameters."""
    found = [script.flags[flag]] if flag in script.flags else []
    for parameter in parameters_of(sweep):
        if parameter.path == (flag,):
            found = parameter.settings.get("values", [parameter.settings.get("value")])
    return [value for value in found if isinstance(value, str)]


def _logged_by(benchmark: str, task: str) -> list[str] | None:
    entries = DATASET_VALS.get(benchmark, {})
    names = MIXTURES.get(benchmark, {}).get(task, {}).get("evaluate") or [name.strip() for name in task.split(",")]
    if not names or any(name not in entries for name in names):
        return None
    found = []
    for name in names:
        splits = (entries[name].get("splits") or {}).get("validation", "validation")
        parts = [name] if isinstance(splits, str) else [split.replace("validation", name) for split in splits]
        metrics = [*entries[name]["metric_names"], *OF_ANY_TASK]
        if len(names) == 1:
            found += [f"eval/{metric}" for metric in metrics]
        if len(names) > 1 or len(parts) > 1:
            found += [f"eval/{part}/{metric}" for part in parts for metric in metrics]
    return [*dict.fromkeys(found), "eval/average"]
