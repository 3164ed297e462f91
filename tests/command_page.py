"""A documentation page whose console blocks can be run: its commands, and whether they print what the page says.

    ## Data
    ### JSON lines
    ```console
    $ python fine_tune_t5.py --data_class JSONLines --data_path pairs --max_steps 4 | grep exact_match
    data.pairs  exact_match 0.0
    ```

Commands of a section run one after the other in one folder that looks like the checkout. Printed lines are an excerpt:
each must be found in the output, in order; figures may differ (`12.5` matches `9`), and `...` stands for any text.

    python tests/command_page.py docs/coverage.md            # runs all sections and says what does not hold
    python tests/command_page.py docs/coverage.md Data       # one section
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
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
