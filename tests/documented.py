"""The fenced blocks of the README and of docs/, and the commands in them.

>>> [block.first for block in blocks(ROOT / "README.md")][:2]
['git clone <this repository> t5suite && cd t5suite', ' task n metrics ...']
"""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from t5suite.cli import COMMANDS, _parser
from t5suite.optim.optimizers import OPTIMIZERS
from t5suite.optim.schedules import SCHEDULES

ROOT = Path(__file__).parent.parent
# A line that begins like this is a command, whatever the block's language says.
COMMAND = re.compile(
    r"(?:[A-Z_]+=\S+ )*(python3?|t5suite|accelerate|torchrun|deepspeed|srun|sbatch|wandb|make|git|pip|conda|echo|export|cat"
    r"|head|tail|cp|mkdir|cmp|cd|kubectl|bsub|docker|[A-Z]=\S+$) ?"
)
SHELL = ("sh", "bash", "console", "shell", "")


class Block(NamedTuple):
    """A fenced block: the page, the line of its fence, its language, its lines (indentation of a list taken off)."""

    page: str
    line: int
    language: str
    lines: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def first(self) -> str:
        """The first line without its comment; what the table of blocks knows it by."""
        return next((re.split(r"\s#\s", line)[0].strip() for line in self.lines if line.strip()), "")

    @property
    def commands(self) -> list[str]:
        """Logical command lines: continued lines joined, prompts and printed lines left out."""
        if self.language not in SHELL:
            return []
        found: list[str] = []
        for line in self.lines:
            if found and found[-1].endswith("\\"):
                found[-1] = found[-1][:-1] + line.strip()
            elif line.startswith("$ ") or (self.language != "console" and COMMAND.match(line)):
                found.append(line.removeprefix("$ "))
        return found


def pages() -> list[Path]:
    """The README and every page of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in its order."""
    found, fence = [], None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        stripped = line.lstrip()
        if stripped.startswith("```") and fence is None:
            fence, depth, lines = (number, stripped[3:].strip()), len(line) - len(stripped), []
        elif stripped.startswith("```"):
            found.append(Block(str(page.relative_to(ROOT)), *fence, tuple(lines)))
            fence = None
        elif fence is not None:
            lines.append(line[depth:])
    return found


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    inside, kept = False, []
    for line in page.read_text(encoding="utf-8").splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


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


# Longest that one command may take, in seconds, beside other work.
HANG = 900


class Command(NamedTuple):
    """One line of a console block with what it prints; `place` is file:line, `exports` the page's own settings."""

    feature: str
    line: str
    printed: list[str]
    place: str
    exports: tuple[str, ...] = ()


def sections(path: Path) -> dict[str, list[Command]]:
    """`{section: its commands}` of a page, in the page's order."""
    found: dict[str, list[Command]] = {}
    exports: list[str] = []
    section = feature = ""
    inside = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            inside = line.strip() == "```console"
        elif inside and line.startswith("$ export "):
            exports.append(line[2:])
        elif inside and line.startswith("$ "):
            found[section].append(Command(feature, line[2:], [], f"{path.name}:{number}", tuple(exports)))
        elif inside and found[section][-1].line.endswith("\\") and not found[section][-1].printed:
            last = found[section].pop()
            found[section].append(last._replace(line=f"{last.line}\n{line}"))
        elif inside:
            found[section][-1].printed.append(line)
        elif line.startswith("## "):
            section = line[3:].strip()
            found[section] = []
        elif line.startswith("### "):
            feature = line[4:].strip()
    return {name: commands for name, commands in found.items() if commands}


def workplace() -> Path:
    """A folder with everything of the checkout in it, where runs can write without touching that."""
    folder = Path(tempfile.mkdtemp(prefix="commands-"))
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".") and entry.name not in ("runs", "wandb", "build"):
            (folder / entry.name).symlink_to(entry)
    return folder


def run(command: Command, folder: Path) -> subprocess.CompletedProcess:
    """Runs one line in bash, offline; standard error is part of the output."""
    path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    given = {"PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "118"}
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", "\n".join([*command.exports, command.line])],
        cwd=folder,
        env={**kept, **given},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG,
    )


def unprinted(printed: list[str], output: str) -> str | None:
    """The first line of the page that the output does not hold where it should; None where all is as the page says.

    >>> unprinted(["accuracy 71.2"], "accuracy 55.0"), unprinted(["accuracy 71.2"], "f1 55.0")
    (None, 'accuracy 71.2')
    """
    lines = iter(map(_without_figures, output.splitlines()))
    for expected in printed:
        pattern = ".*".join(map(re.escape, _without_figures(expected).split("...")))
        if not any(re.fullmatch(pattern, line) for line in lines):
            return expected
    return None


def _without_figures(line: str) -> str:
    """Numbers and the width of columns are a machine's or a seed's affair."""
    return re.sub(r"[\s─━]+", " ", re.sub(r"-?\d+(\.\d+)?(e-?\d+)?", "#", line)).strip()


def check(commands: list[Command], folder: Path) -> list[str]:
    """What does not hold of a section's commands, run in `folder`; after a command that failed nothing more is run."""
    wrong = []
    for command in commands:
        done = run(command, folder)
        missing = unprinted(command.printed, done.stdout)
        if done.returncode != 0:
            wrong.append(
                f"{command.place} ({command.feature}): exit {done.returncode}\n{command.line}\n{done.stdout[-3000:]}"
            )
            break
        if missing is not None:
            wrong.append(
                f"{command.place} ({command.feature}): not printed: {missing!r}\n{command.line}\n{done.stdout[-3000:]}"
            )
    return wrong


def main(page: str, *names: str) -> int:
    """Runs a page's sections, all or those named, and prints what does not hold."""
    bad = 0
    for name, commands in sections(Path(page)).items():
        if names and name not in names:
            continue
        wrong = check(commands, workplace())
        bad += len(wrong)
        print(f"{name}: {len(commands)} commands, {'all hold' if not wrong else ''}", *wrong, sep="\n", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
