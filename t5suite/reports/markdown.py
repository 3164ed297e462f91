"""Markdown: the report for a repository or a message, and the few forms that cards are made of.

>>> print(markdown(data).splitlines()[0])
# glue: rte, cola
>>> table(["task", "points"], [["rte", "71.10"]])
['| task | points |', '|---|---|', '| rte | 71.10 |']
"""

import re
from collections.abc import Iterable, Sequence

from t5suite.base.redaction import printable
from t5suite.reports.plots import Plot
from t5suite.reports.sections import Part, sections_of, summary


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


def markdown(data: dict, plots: list[Plot], folder: str) -> str:
    """The whole report, but for the answers one by one.

    Args:
      folder: of the plots' files, beside the report's.
    """
    lines = [f"# {escaped(data['title'])}", "", summary(data), ""]
    for section in sections_of(data, plots):
        if section.id != "examples":
            lines += [f"## {escaped(section.title)}", ""]
            for part in section.parts:
                lines += _part(part, folder)
    return printable("\n".join(lines).rstrip()) + "\n"


def _part(part: Part, folder: str) -> list[str]:
    """A part of a section; meanings of words, which the page explains, are left out."""
    if part.kind == "note":
        return [escaped(part.content), ""]
    if part.kind == "table":
        title = [f"**{escaped(part.content.caption)}**", ""]
        cells = [[f"{cell.text}{cell.small}" for cell in row] for row in part.content.rows]
        return [*title, *escaped_table([column.header for column in part.content.columns], cells)]
    if part.kind == "plots":
        return [*(f"![{escaped(plot.title)}]({folder}/{plot.name}.png)" for plot in part.content), ""]
    if part.kind == "code":
        return [part.title, "", *block("", [part.content]), ""]
    if part.kind == "facts":
        return [*(f"- {escaped(name)}: {escaped(text)}" for name, text in part.content), ""]
    if part.kind == "run":
        facts = [f"- {escaped(name)}: {escaped(text)}" for name, text in part.content["facts"]]
        return [f"### {escaped(part.title)}", "", *block("", [part.content["command"]]), "", *facts, ""]
    return []


def escaped(text) -> str:
    """Text in which nothing is Markdown or HTML.

    >>> escaped("a|b <i>")
    'a\\\\|b &lt;i&gt;'
    """
    text = str(text).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in "|*_`[]":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())


def escaped_table(header: list[str], rows: list[list]) -> list[str]:
    """A Markdown table; the first column is text, the others are numbers where they look like it."""
    cells = [[escaped(cell) for cell in row] for row in rows]
    right = [at > 0 and all(_is_number(row[at]) for row in rows) for at in range(len(header))]
    rule = ["---:" if is_right else "---" for is_right in right]
    return ["| " + " | ".join(line) + " |" for line in ([escaped(name) for name in header], rule, *cells)] + [""]


def _is_number(cell) -> bool:
    return all(letter in "0123456789.,-– " for letter in str(cell))
