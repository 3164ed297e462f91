"""The fenced blocks of the README and of docs/, and the commands in them.

>>> blocks(ROOT / "README.md")[0].commands[0]
'git clone <this repository> t5suite && cd t5suite'
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
    """A fenced block: the page, the line of its fence, its language, its lines (indentation of a list taken off), and the
    headings that it stands below."""

    page: str
    line: int
    language: str
    lines: tuple[str, ...]
    section: str = ""
    feature: str = ""

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Logical command lines: continued lines joined, prompts and printed lines left out."""
        found: list[str] = []
        for line in self.lines if self.language in SHELL else ():
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
    return _parsed(page)[0]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return "\n".join(_parsed(page)[1])


def _parsed(page: Path) -> tuple[list[Block], list[str]]:
    found, kept, fence, headings = [], [], None, ["", ""]
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        stripped = line.lstrip()
        if stripped.startswith("```") and fence is None:
            fence, depth, lines = (number, stripped[3:].strip()), len(line) - len(stripped), []
        elif stripped.startswith("```"):
            found.append(Block(str(page.relative_to(ROOT)), *fence, tuple(lines), *headings))
            fence = None
        elif fence is not None:
            lines.append(line[depth:])
        else:
            kept.append(line)
            if line.startswith(("## ", "### ")):
                headings = [line[3:].strip(), ""] if line[2] == " " else [headings[0], line[4:].strip()]
    return found, kept


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
    found, commands = [], [[]]
    for word in words:
        if word in OPERATORS:
            commands.append([])
        else:
            commands[-1].append(word.removesuffix(";"))
    own = tuple(f"{folder}/" for folder in FOLDERS)
    for command in commands:
        files = [word for word in command if word.startswith(own) and "*" not in word]
        found += [f"{file} is not in the checkout" for file in files if not (ROOT / file).exists()]
        found += _checked(command)
    return found


def _checked(words: list[str]) -> list[str]:
    for place, word in enumerate(words):
        name, rest = Path(word).name, words[place + 1 :]
        if name in ("fine_tune_t5.py", "pre_train_t5.py"):
            return script_problems(name, rest)
        if name == "t5suite":
            return sub_command_problems(rest)
        if word == "-m" and rest and rest[0].split(".")[0] in ("t5suite", "benchmarks", "faults", "docs"):
            return module_problems(rest[0], rest[1:])
        if name == "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
            return [f"make has no target {target}" for target in rest if target not in targets]
    return []


def script_problems(script: str, words: list[str]) -> list[str]:
    """Flags that a script does not have, values that they do not take, a configuration file that is not there."""
    flags, found = SCRIPTS[script.removesuffix(".py")], []
    if words and words[0].endswith((".yaml", ".yml")) and words[0] not in READERS_FILES:
        if not any((folder / words[0]).is_file() for folder in (ROOT, ROOT / "recipes")):
            found.append(f"{words[0]} is neither in the checkout nor a shipped recipe")
    for name, value in _flags(words):
        if name in ("help", "help_all", "config", "version"):
            continue
        if name not in flags:
            found.append(f"{script} has no flag --{name}")
            continue
        choices = NAMES.get(name) or flags[name].get("choices")
        # `--optimizer` and `--schedule` take Hugging Face's names, too: only those of one word are ours to check.
        if choices and value and value not in map(str, choices) and "_torch" not in value:
            found += [] if PLACEHOLDER.fullmatch(value) else [f"--{name} takes no {value!r}"]
    return found


def sub_command_problems(words: list[str]) -> list[str]:
    """An unknown sub-command of `t5suite`, or flags that it does not have; a command behind `--` is checked, too."""
    cut = words.index("--") if "--" in words else len(words)
    before, after = words[:cut], words[cut + 1 :]
    if not before or before[0].startswith("-"):
        return [f"t5suite has no flag {word}" for word in before if word.split("=")[0] not in ("--help", "--version")]
    if before[0] not in COMMANDS:
        return [f"t5suite has no sub-command {before[0]}"]
    action = " ".join(before[:2])
    command = action if action in SUB_COMMANDS else before[0]
    own = {flag.removeprefix("--").replace("-", "_")
           for name in (command, before[0]) for flag in SUB_COMMANDS.get(name, ())}  # fmt: skip
    found = script_problems("fine_tune_t5.py", after) if after and after[0].startswith("--") else _checked(after)
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
    words = words[: words.index("--")] if "--" in words else words
    return [
        f"{module} has no flag --{name}"
        for name, _ in _flags(words)
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


def _flags(words: list[str]):
    """`(name, its first value)` of each flag among the words."""
    for word, following in zip(words, [*words[1:], ""]):
        if re.fullmatch(r"--[A-Za-z][\w-]*(=.*)?", word, re.S):
            name, equals, value = word[2:].partition("=")
            yield name.replace("-", "_"), value if equals else "" if following.startswith("--") else following


# Longest that one block may take, in seconds, beside other work.
HANG = 1500


class Command(NamedTuple):
    """One line of a console block with what it prints; `place` is file:line, `exports` the page's own settings."""

    feature: str
    line: str
    printed: list[str]
    place: str
    exports: tuple[str, ...] = ()


def sections(path: Path) -> dict[str, list[Command]]:
    """`{section: its commands}` of a page's console blocks, in the page's order."""
    found: dict[str, list[Command]] = {}
    exports: list[str] = []
    for block in blocks(path):
        commands = found.setdefault(block.section, [])
        for line in block.lines if block.language == "console" else ():
            if line.startswith("$ export "):
                exports.append(line[2:])
            elif line.startswith("$ "):
                commands.append(Command(block.feature, line[2:], [], block.place, tuple(exports)))
            elif commands[-1].line.endswith("\\") and not commands[-1].printed:
                commands[-1] = commands[-1]._replace(line=f"{commands[-1].line}\n{line}")
            else:
                commands[-1].printed.append(line)
    return {name: commands for name, commands in found.items() if commands}


def workplace() -> Path:
    """A folder with everything of the checkout in it, where runs can write without touching that."""
    folder = Path(tempfile.mkdtemp(prefix="commands-"))
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".") and entry.name not in ("runs", "wandb", "build"):
            (folder / entry.name).symlink_to(entry)
    return folder


def bash(script: str, folder: Path, settings: dict) -> subprocess.CompletedProcess:
    """Runs lines in bash, offline; standard error is part of the output."""
    kept = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    kept |= {"PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}", **settings}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.run(["bash", "-o", "pipefail", "-c", script], cwd=folder, env=kept, timeout=HANG, **streams)


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
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "COLUMNS": "118"}
    wrong = []
    for command in commands:
        done = bash("\n".join([*command.exports, command.line]), folder, settings)
        missing = unprinted(command.printed, done.stdout)
        if done.returncode != 0 or missing is not None:
            what = f"not printed: {missing!r}" if done.returncode == 0 else f"exit {done.returncode}"
            wrong.append(f"{command.place} ({command.feature}): {what}\n{command.line}\n{done.stdout[-3000:]}")
        if done.returncode != 0:
            break
    return wrong
