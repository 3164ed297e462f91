"""Whether a command that a page shows could run: its script or sub-command, flags, choices and files exist.

>>> problems("python fine_tune_t5.py mini.yaml --learning_rat 1e-2 --eval_method guess")
['fine_tune_t5.py has no flag --learning_rat', "--eval_method takes no 'guess'"]
>>> problems("t5suite report runs/x | head")
[]

Words in capitals (`FILE`), `...` and `{a,b}` stand for values of the reader's.
"""

import importlib
import json
import re
import shlex
from pathlib import Path

from t5suite.cli import COMMANDS, _parser
from t5suite.optim.optimizers import OPTIMIZERS
from t5suite.optim.schedules import SCHEDULES

ROOT = Path(__file__).parent.parent
SCRIPTS = json.loads((ROOT / "t5suite/base/script_flags.json").read_text())["scripts"]
SUB_COMMANDS = _parser().flags_of
OPERATORS = {"|", "||", "&&", ";", ">", ">>", "<", "&"}
# Folders of the checkout: what a page names in them must be there.
FOLDERS = ("recipes", "sweeps", "slurm", "clusters", "accelerate_configs", "deepspeed_configs", "examples", "docs")
# Configuration files that a page leaves to the reader.
READERS_FILES = {"config.yaml", "my_tasks.yaml", "my_tasks.py", "my_sweep.yaml", "FILE.yaml"}
PLACEHOLDER = re.compile(r"\.\.\.|[A-Z][A-Z_/]*|.*[{<$].*")
NAMES = {"optimizer": {*OPTIMIZERS}, "schedule": {*SCHEDULES}}


def problems(line: str) -> list[str]:
    """What is wrong with one logical command line; launchers and commands of others are passed over."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        return [f"{error}: {line}"]
    found = []
    for command in _split(words):
        found += _files(command) + _checked(command)
    return found


def _split(words: list[str]) -> list[list[str]]:
    """The words between the shell's operators."""
    commands: list[list[str]] = [[]]
    for word in words:
        if word in OPERATORS:
            commands.append([])
        else:
            commands[-1].append(word.removesuffix(";"))
    return commands


def _files(words: list[str]) -> list[str]:
    """Named files of the checkout's own folders that are not there."""
    return [
        f"{word} is not in the checkout"
        for word in words
        if word.startswith(tuple(f"{folder}/" for folder in FOLDERS)) and "*" not in word and not (ROOT / word).exists()
    ]


def _checked(words: list[str]) -> list[str]:
    for place, word in enumerate(words):
        rest = words[place + 1 :]
        name = Path(word).name
        if name in ("fine_tune_t5.py", "pre_train_t5.py"):
            return script_problems(name, rest)
        if name == "t5suite":
            return sub_command_problems(rest)
        if word == "-m" and rest and rest[0].split(".")[0] in ("t5suite", "benchmarks", "faults", "docs"):
            return module_problems(rest[0], rest[1:])
        if name == "make":
            return [f"make has no target {target}" for target in rest if target not in make_targets()]
    return []


def script_problems(script: str, words: list[str]) -> list[str]:
    """Flags that a script does not have, values that they do not take, a configuration file that is not there."""
    flags = SCRIPTS[script.removesuffix(".py")]
    found = []
    if words and words[0].endswith((".yaml", ".yml")) and not _is_configuration(words[0]):
        found.append(f"{words[0]} is neither in the checkout nor a shipped recipe")
    for name, values in _flags(words):
        if name in ("help", "help_all", "config", "version"):
            continue
        if name not in flags:
            found.append(f"{script} has no flag --{name}")
            continue
        choices = NAMES.get(name) or flags[name].get("choices")
        # `--optimizer` and `--schedule` take Hugging Face's names, too: only those of one word are ours to check.
        found += [
            f"--{name} takes no {value!r}"
            for value in values
            if choices and value not in map(str, choices) and not PLACEHOLDER.fullmatch(value) and "_torch" not in value
        ]
    return found


def sub_command_problems(words: list[str]) -> list[str]:
    """An unknown sub-command of `t5suite`, or flags that it does not have; a command behind `--` is looked at, too."""
    before, _, after = _cut(words, "--")
    if not before or before[0].startswith("-"):
        return [f"t5suite has no flag {word}" for word in before if word.split("=")[0] not in ("--help", "--version")]
    action = " ".join(before[:2])
    command = action if action in SUB_COMMANDS else before[0]
    if before[0] not in COMMANDS:
        return [f"t5suite has no sub-command {before[0]}"]
    own = {flag.removeprefix("--").replace("-", "_") for flag in _all_flags(command)}
    if after and after[0].startswith("--"):
        found = script_problems("fine_tune_t5.py", after)
    else:
        found = _checked(after)
    return found + [f"t5suite {command} has no flag --{name}" for name, _ in _flags(before) if name not in own]


def module_problems(module: str, words: list[str]) -> list[str]:
    """A module that is not there, or whose text does not hold the flag, nor that of the harness of measurements."""
    if module == "t5suite":
        return sub_command_problems(words)
    path = ROOT / module.replace(".", "/")
    files = [file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()]
    if not files:
        return [f"there is no module {module}"]
    text = files[0].read_text(encoding="utf-8")
    if "from benchmarks.harness import" in text:
        text += (ROOT / "benchmarks/harness.py").read_text(encoding="utf-8")
    before = _cut(words, "--")[0]
    return [
        f"{module} has no flag --{name}"
        for name, _ in _flags(before)
        if not re.search(rf"--{re.escape(name)}\b|\badd\w*\(\W*{re.escape(name)}\b", text) and "add_flags" not in text
    ]


def is_flag(name: str) -> bool:
    """Whether either script or any sub-command has a flag."""
    own = {flag.removeprefix("--") for flags in SUB_COMMANDS.values() for flag in flags}
    return name in own or any(name in flags for flags in SCRIPTS.values())


def is_name(dotted: str) -> bool:
    """Whether `t5suite.a.b` can be imported, or is an attribute (of an attribute) of what can."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        try:
            for part in parts[length:]:
                found = getattr(found, part)
        except AttributeError:
            return False
        return True
    return False


def make_targets() -> set[str]:
    """The Makefile's targets."""
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


def _all_flags(command: str) -> set[str]:
    parents = [command.rsplit(" ", length)[0] for length in range(command.count(" ") + 1)]
    return {flag for name in [command, *parents] for flag in SUB_COMMANDS.get(name, ())}


def _flags(words: list[str]):
    """`(name, values)` of each flag among the words."""
    for place, word in enumerate(words):
        if re.fullmatch(r"--[A-Za-z][\w-]*(=.*)?", word, re.S):
            name, equals, value = word[2:].partition("=")
            values = [value] if equals else []
            for following in words[place + 1 :] if not equals else []:
                if following.startswith("--"):
                    break
                values.append(following)
            yield name.replace("-", "_"), values[:1]


def _is_configuration(name: str) -> bool:
    return name in READERS_FILES or any((folder / name).is_file() for folder in (ROOT, ROOT / "recipes"))


def _cut(words: list[str], at: str) -> tuple[list[str], str, list[str]]:
    place = words.index(at) if at in words else len(words)
    return words[:place], at, words[place + 1 :]
