"""The few forms of Markdown that cards are made of.

>>> table(["task", "points"], [["rte", "71.10"]])
['| task | points |', '|---|---|', '| rte | 71.10 |']
"""

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence]) -> list[str]:
    """The lines of a table; bars and line ends in cells do not end them."""
    rule = f"|{'---|' * len(head)}"
    above, *below = [f"| {' | '.join(map(cell, line))} |" for line in [head, *rows]]
    return [above, rule, *below]


def cell(value) -> str:
    """A table's cell.

    >>> cell("a | b\\nc")
    'a \\\\| b c'
    """
    return re.sub(r"\s+", " ", str(value)).strip().replace("|", "\\|")


def code(text: str) -> str:
    """Text in a line, as it stands.

    >>> code("a `b` c")
    '`` a `b` c ``'
    """
    text = re.sub(r"\s+", " ", text).strip()
    if "`" not in text:
        return f"`{text}`"
    fence = "`" * (1 + max(map(len, re.findall("`+", text))))
    return f"{fence} {text} {fence}"


def block(language: str, lines: Iterable[str]) -> list[str]:
    """A block of code, behind a fence that its lines do not end."""
    lines = list(lines)
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))
    return [fence + language, *lines, fence]


def shortened(text: str, most: int = 160) -> str:
    """The beginning of a long text.

    >>> shortened("It rains.", 5)
    'It ra…'
    """
    return text if len(text) <= most else f"{text[:most]}…"
