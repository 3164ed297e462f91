"""The parts that a report's sections are made of, which the page and Markdown render alike.

>>> number_cell(71.48)
Cell(text='71.5', value=71.48, kind='number', small='', note=None, style='')
"""

from typing import NamedTuple

from t5suite.reports.formatting import NOTHING, points, significant
from t5suite.reports.units import NATS, POINTS, metric_unit


class Cell(NamedTuple):
    """A table's cell.

    Attributes:
      value: the number before rounding: the page shows all of its digits, and sorts by it.
      kind: `text`, `number`, or `head` for the row's name.
      small: what follows the text in small letters.
      note: an explanation, or the full text if it is shortened.
      style: a class of the page's style.
    """

    text: str
    value: object = None
    kind: str = "text"
    small: str = ""
    note: str | None = None
    style: str = ""


class Column(NamedTuple):
    """A table's column: its header, whether it holds `text` or `number`, and its meaning."""

    header: str
    kind: str = "text"
    meaning: str | None = None


class Table(NamedTuple):
    """A table; `style` is a class of the page's style."""

    caption: str
    columns: list[Column]
    rows: list[list[Cell]]
    style: str = "sortable"


class Part(NamedTuple):
    """A part of a section: `kind` is note, table, plots, words (a list of meanings), code, facts, run or examples."""

    kind: str
    content: object
    title: str = ""


class Section(NamedTuple):
    """A section of the report; `id` is the page's anchor."""

    id: str
    title: str
    parts: list[Part]


def head_cell(text) -> Cell:
    """A row's name."""
    return Cell(str(text), kind="head")


def number_cell(value, text: str | None = None, small: str = "", metric: str = "average") -> Cell:
    """A number, by default as `rounded` writes the metric's values; without a metric, points."""
    if text is None:
        text = rounded(value, metric)
    is_missing = value is None or value != value
    if is_missing:
        return Cell(text, None, "number", small)
    return Cell(text, value, "number", small)


def count_cell(value) -> Cell:
    """A whole number, with commas."""
    if value is None:
        return number_cell(None, NOTHING)
    return number_cell(value, f"{value:,}")


def interval_cell(interval: dict | None, metric: str, names_source: bool = False) -> Cell:
    """An interval, sorted by its lower end; `names_source` adds what it is over: rows or seeds."""
    if not interval:
        return Cell(NOTHING, kind="number")
    low = interval["low"]
    high = interval["high"]
    text = f"{rounded(low, metric)} to {rounded(high, metric)}"
    source = ""
    if names_source:
        source = f" {interval['over']}"
    return Cell(text, low, "number", source, note=f"{low!r} to {high!r}")


def rounded(value, metric: str) -> str:
    """A score as text: points have one decimal, as papers print them, nats three, other values four digits.

    >>> rounded(71.48, "accuracy"), rounded(-0.00345, "neg_mean_absolute_error"), rounded(0.87, "word_share")
    ('71.5', '-0.00345', '0.87')
    """
    unit = metric_unit(metric)
    if unit == POINTS:
        return points(value, digits=1)
    if unit == NATS:
        return points(value, digits=3)
    return significant(value)
