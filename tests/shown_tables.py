"""Tables read back from what people see: the terminal, Markdown, an HTML page; and whether a number is shown rightly.

>>> terminal_tables("task   n\\n ─────────\\n rte    7")
[[{'task': 'rte', 'n': '7'}]]
>>> is_rounded("70.5", 70.4678), is_rounded("70.4", 70.4678)
(True, False)
"""

import re
from decimal import Decimal

import lxml.html


def is_rounded(text: str, value: float, decimals: int = 0) -> bool:
    """Whether a text is a number as it is when it is rounded to the digits shown, of which there are enough.

    Args:
      decimals: at least as many digits after the point.
    """
    shown, exact = Decimal(text.replace(",", "").replace("+", "")), Decimal(value)
    places = -shown.as_tuple().exponent
    if places < decimals or len(shown.as_tuple().digits) > 20:
        return False
    whole_digits = shown.as_tuple().digits
    num_zeros = len(whole_digits) - len("".join(map(str, whole_digits)).rstrip("0")) if places == 0 else 0
    # 117,000 may stand for 117,028.6: three digits are enough for a large number.
    coarsest = max(0, min(num_zeros, len(whole_digits) - 3))
    return any(exact.quantize(Decimal(1).scaleb(zeros - places)) == shown for zeros in range(coarsest + 1))


def terminal_tables(text: str) -> list[list[dict[str, str]]]:
    """The tables with a rule below their header, as rows by heading; a cell of several lines is put together."""
    tables, lines = [], text.splitlines()
    for at, line in enumerate(lines):
        if not re.fullmatch(r"\s*─+\s*", line):
            continue
        columns = [(found[0].strip(), *found.span()) for found in re.finditer(r"\S+(?: {1,2}\S+)*", lines[at - 1])]
        rows: list[dict[str, str]] = []
        for body in lines[at + 1 :]:
            if not body.strip():
                break
            pieces = list(re.finditer(r"\S+(?: {1,2}\S+)*", body))
            row = {heading: "" for heading, *_ in columns}
            for piece in pieces:
                row[_heading_of(piece.span(), columns)] += piece[0]
            if rows and not row[columns[0][0]]:
                rows[-1] = {heading: f"{rows[-1][heading]} {cell}".strip() for heading, cell in row.items()}
            else:
                rows.append(row)
        tables.append(rows)
    return tables


def _heading_of(span: tuple[int, int], columns: list[tuple]) -> str:
    """The column of a piece of text: its left edge is the heading's, or its right edge."""
    headings = [heading for heading, start, end in columns if start == span[0] or end == span[1]]
    if len(headings) != 1:
        raise AssertionError(f"columns {span} lie below {headings or 'no heading'}")
    return headings[0]


def boxed_tables(text: str) -> list[list[dict[str, str]]]:
    """The tables with vertical lines."""
    tables: list[list[dict[str, str]]] = []
    headings: list[str] = []
    for line in text.splitlines():
        if line.startswith("┃"):
            headings = [cell.strip() for cell in line.strip("┃").split("┃")]
            tables.append([])
        elif line.startswith("│"):
            cells = [cell.strip() for cell in line.strip("│").split("│")]
            tables[-1].append(dict(zip(headings, cells, strict=True)))
    return tables


def markdown_tables(text: str) -> list[list[dict[str, str]]]:
    """The tables of a Markdown text; a column without a heading is called by its place."""
    tables, lines = [], text.splitlines()
    for at, line in enumerate(lines):
        if re.fullmatch(r"\|[-:| ]*-[-:| ]*\|", line) and at:
            rows, (headings, *bodies) = [], [lines[at - 1], *lines[at + 1 :]]
            for body in bodies:
                if not body.startswith("|"):
                    break
                named = [heading or str(place) for place, heading in enumerate(_cells(headings))]
                rows.append(dict(zip(named, _cells(body), strict=True)))
            tables.append(rows)
    return tables


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _whole_value(cell) -> str:
    """The number that a cell carries, or the text of one that is no number."""
    if "number" in cell.attrib["class"].split():
        return cell.attrib.get("data-value", "")
    return cell.text_content().strip()


class PageTables:
    """A page's tables.

    Attributes:
      tables: by caption, rows of `{heading: text}`.
      values: the same, with the whole number that a cell carries (`data-value`) in place of its text.
      kinds: the same, with what a cell is: `number`, `head`, ...
      explanations: the same, with what a cell says where it is pointed at; empty if it says nothing.
      headline: what stands above all, `{name: text}`.
      notes: the lines of text.
    """

    def __init__(self, page: str):
        tree = lxml.html.fromstring(page)
        self.tables, self.values, self.kinds, self.explanations = {}, {}, {}, {}
        for table in tree.iter("table"):
            headings = [cell.text_content().strip() for cell in table.find("thead").iter("th")]
            caption, bodies = table.findtext("caption"), list(table.find("tbody").iter("tr"))
            cells = [list(body.iter("td", "th")) for body in bodies]
            self.tables[caption] = [
                dict(zip(headings, [cell.text_content().strip() for cell in row], strict=True)) for row in cells
            ]
            self.values[caption] = [
                dict(zip(headings, [_whole_value(cell) for cell in row], strict=True)) for row in cells
            ]
            self.kinds[caption] = [
                dict(zip(headings, [cell.get("class").split()[0] for cell in row], strict=True)) for row in cells
            ]
            self.explanations[caption] = [
                dict(zip(headings, [cell.get("title", "") for cell in row], strict=True)) for row in cells
            ]
        (headline,) = tree.xpath("//dl[@class='headline']")
        self.headline = {pair.findtext("dt"): pair.findtext("dd") for pair in headline.iter("div")}
        self.notes = [note.text_content() for note in tree.xpath("//p[@class='note']")]
