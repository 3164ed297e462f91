"""Markdown: code, escaped text, tables.

>>> escaped_table(["task", "accuracy"], [["rte", "71.12"]])
['| task | accuracy |', '| --- | ---: |', '| rte | 71.12 |', '']
"""

import re
from collections.abc import Iterable


def code(text: str) -> str:
    """Inline code in Markdown.

    >>> code("a `b` c")
    '`` a `b` c ``'
    """
    text = re.sub(r"\s+", " ", text).strip()
    if "`" not in text:
        return f"`{text}`"
    fence = "`" * (1 + _longest_backticks(text))
    return f"{fence} {text} {fence}"


def block(language: str, lines: Iterable[str]) -> list[str]:
    """A Markdown code block, with a fence that its lines cannot close."""
    lines = list(lines)
    longest = max(map(_longest_backticks, lines), default=0)
    fence = "`" * max(3, 1 + longest)
    return [fence + language, *lines, fence]


def _longest_backticks(text: str) -> int:
    """How many backticks there are at most in a row."""
    return max(map(len, re.findall("`+", text)), default=0)


def escaped(text) -> str:
    """Text in which nothing is Markdown or HTML.

    >>> escaped("a|b <i>")
    'a\\\\|b &lt;i&gt;'
    """
    text = str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return " ".join(re.sub(r"([\\|*_`\[\]])", r"\\\1", text).split())


def escaped_table(header: list[str], rows: Iterable[list]) -> list[str]:
    """A Markdown table; the first column is text, the others are numbers if they look like numbers."""
    rows = [list(map(str, row)) for row in rows]
    rule = ["---"]
    for column in range(1, len(header)):
        are_numbers = all(re.fullmatch("[0-9.,– -]*", row[column]) for row in rows)
        if are_numbers:
            rule.append("---:")
        else:
            rule.append("---")
    lines = [_table_line(map(escaped, header)), _table_line(rule)]
    lines += [_table_line(map(escaped, row)) for row in rows]
    return [*lines, ""]


def _table_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
