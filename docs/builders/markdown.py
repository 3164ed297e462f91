"""Small pieces of Markdown that the generated pages share.

>>> print(table(["name", "points"], [["sst2", "95"], ["a|b", ""]]))
| name | points |
|---|---|
| sst2 | 95 |
| a\\|b |  |
"""

from collections.abc import Iterable, Sequence

MADE = "<!-- Made by `python -m docs.builders` from {sources}; edit those, not this page. -->"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; bars inside cells are escaped, line breaks become spaces."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(map(_cell, row)) + " |" for row in rows)])


def code(text: str) -> str:
    """`text` as code; with two backticks where it holds one itself."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _cell(text: str) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")
