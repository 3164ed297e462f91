"""The fenced blocks of the README and of docs/, and the commands in them.

>>> [block.first for block in blocks(ROOT / "README.md")][:2]
['git clone <this repository> t5suite && cd t5suite', ' task n metrics ...']
"""

import re
from pathlib import Path
from typing import NamedTuple

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
