"""HTML from text that may hold anything: every text is escaped, every attribute quoted.

>>> element("td", "53.33", title="53.333333", data_value=53.333333)
'<td title="53.333333" data-value="53.333333">53.33</td>'
>>> element("p", "<script>")
'<p>&lt;script&gt;</p>'
"""

import html
import json


class Markup(str):
    """Text that is HTML already, made by this module."""


def text_of(content) -> str:
    """Content as HTML: markup as it is, sequences joined, all else escaped."""
    if isinstance(content, Markup):
        return content
    if isinstance(content, (list, tuple)):
        return "".join(map(text_of, content))
    return "" if content is None else html.escape(str(content), quote=True)


def element(name: str, /, *content, **attributes) -> Markup:
    """An element; an attribute that is None or False is left out, `class_` and `data_x` are `class` and `data-x`."""
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{html.escape(str(value), quote=True)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{said}>")
    return Markup(f"<{name}{said}>{text_of(content)}</{name}>")


def embedded_json(value, id_: str) -> Markup:
    """JSON that a page carries: no `<` in it, so that no text can end the element.

    Raises:
      ValueError: a number that JSON has none for.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter, code in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(letter, code)
    return Markup(f'<script type="application/json" id="{id_}">{text}</script>')


def table(caption: str, columns: list[tuple], rows: list[list], sortable: bool = True, class_: str = "") -> Markup:
    """A table that scrolls sideways within its frame; headers are buttons that sort.

    Args:
      columns: `(header, "text" or "number")`, or with a longer explanation as third.
      rows: lists of `td` markup (`text_cell`, `number_cell`); the first cell of each is its header.
    """
    heads = [_head(*column, sortable=sortable) for column in columns]
    body = [element("tr", row) for row in rows]
    made = element("table", element("caption", caption), element("thead", element("tr", heads)), element("tbody", body),
                   class_=" ".join(filter(None, ["sortable" if sortable else "", class_])) or None)  # fmt: skip
    return element("div", made, class_="scroll", tabindex="0", role="region", aria_label=caption)


def _head(header: str, kind: str, explained: str | None = None, sortable: bool = True) -> Markup:
    """A column's header: a button where the table can be sorted by it."""
    arrow = element("span", class_="arrow", aria_hidden="true")
    sorts = sortable and kind != "picture"
    label = element("button", header, arrow, type="button") if sorts else header
    said = {"class_": kind, "data_kind": kind, "title": explained, "aria_sort": "none" if sorts else None}
    return element("th", label, scope="col", **said)


def text_cell(text, header: bool = False, **attributes) -> Markup:
    """A cell of words."""
    attributes = {"class_": "text", **attributes}
    return element("th" if header else "td", text, scope="row" if header else None, **attributes)


def number_cell(value, shown: str) -> Markup:
    """A cell with a rounded number; the whole one is its title and what it is sorted by."""
    known = value is not None and value == value
    return element(
        "td", shown, class_="number", title=repr(value) if known else None, data_value=value if known else None
    )


VOID = frozenset(("meta", "input", "br", "hr"))
