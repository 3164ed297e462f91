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
    fence = "`" * (1 + max(map(len, re.findall("`+", text))))
    return f"{fence} {text} {fence}"


def block(language: str, lines: Iterable[str]) -> list[str]:
    """A Markdown code block, with a fence that its lines cannot close."""
    lines = list(lines)
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))
    return [fence + language, *lines, fence]


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
        rule.append("---:" if are_numbers else "---")
    lines = [map(escaped, header), rule, *(map(escaped, row) for row in rows)]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]
