"""A confusion matrix as a picture inside the page, which follows the page's colours.

>>> confusion_picture({"task": "rte", "run": "s1", "labels": ["yes", "no"], "answers": ["yes", "no"],
...                    "counts": [[64, 0], [56, 0]]})[:80]
'<svg viewBox="0 0 271 162" width="271" height="162" class="heat" role="img" aria'

Rows are labels, columns are answers; the shade of a cell is its share of its row, and right answers have a frame, so
that nothing hangs on colour alone. A screen reader is told each row in words, a pointer each cell.
"""

from t5suite.reporting.figures import shortened
from t5suite.reporting.html_parts import Markup, element

# Pixels: of a cell, of a letter, of what stands above the cells.
CELL_WIDTH, CELL_HEIGHT, LETTER, ABOVE = 104, 46, 7.4, 58
LONGEST, LONGEST_ABOVE = 20, 14
FAINTEST, STRONGEST = 0.02, 0.44


def confusion_picture(matrix: dict) -> Markup:
    """The `<svg>` element."""
    left = 14 + LETTER * max(len(shortened(label, LONGEST)) for label in [*matrix["labels"], "label"])
    width = round(left + CELL_WIDTH * len(matrix["answers"]) + 12)
    height = ABOVE + CELL_HEIGHT * len(matrix["labels"]) + 12
    parts = [
        _text("answer", left + CELL_WIDTH * len(matrix["answers"]) / 2, 18, "middle", "axis-name"),
        _text("label", left - 8, ABOVE - 12, "end", "axis-name"),
    ]
    for at, answer in enumerate(matrix["answers"]):
        parts.append(_text(answer, left + CELL_WIDTH * (at + 0.5), ABOVE - 12, "middle", most=LONGEST_ABOVE))
    for at, (label, counts) in enumerate(zip(matrix["labels"], matrix["counts"])):
        top = ABOVE + CELL_HEIGHT * at
        parts.append(_text(label, left - 8, top + CELL_HEIGHT / 2 + 5, "end", most=LONGEST))
        for across, (answer, count) in enumerate(zip(matrix["answers"], counts)):
            parts.append(_cell(label, answer, count, sum(counts), left + CELL_WIDTH * across, top))
    return element(
        "svg", parts, viewBox=f"0 0 {width} {height}", width=width, height=height, class_="heat", role="img",
        aria_label=in_words(matrix),
    )  # fmt: skip


def in_words(matrix: dict) -> str:
    """What the picture shows, row by row.

    >>> in_words({"task": "rte", "run": "s1", "labels": ["yes"], "answers": ["yes", "no"], "counts": [[3, 1]]})
    'Confusion matrix of rte, s1. Of 4 rows labelled yes, 3 were answered yes, 1 no.'
    """
    rows = []
    for label, counts in zip(matrix["labels"], matrix["counts"]):
        given = [(count, answer) for answer, count in zip(matrix["answers"], counts) if count]
        said = [f"{count} {'were answered ' * (at == 0)}{answer}" for at, (count, answer) in enumerate(given)]
        rows.append(f"Of {sum(counts)} rows labelled {label}, {', '.join(said) or 'none was answered'}.")
    return f"Confusion matrix of {matrix['task']}, {matrix['run']}. {' '.join(rows)}"


def _cell(label: str, answer: str, count: int, of_row: int, x: float, y: float) -> Markup:
    share = count / of_row if of_row else 0.0
    opacity = round(FAINTEST + (STRONGEST - FAINTEST) * share, 3)
    middle = x + CELL_WIDTH / 2
    return element(
        "g",
        element("title", f"{count} of {of_row} rows labelled {label} were answered {answer}"),
        element("rect", x=x, y=y, width=CELL_WIDTH, height=CELL_HEIGHT, fill_opacity=opacity),
        element("rect", x=x + 2, y=y + 2, width=CELL_WIDTH - 4, height=CELL_HEIGHT - 4, class_="frame")
        if answer == label
        else None,
        _text(count, middle, y + 21, "middle", "count"),
        _text(f"{100 * share:.0f} %", middle, y + 37, "middle", "share"),
    )


def _text(text, x: float, y: float, anchor: str, class_: str | None = None, most: int = LONGEST) -> Markup:
    whole = element("title", text) if len(str(text)) > most else None
    return element(
        "text", whole, shortened(text, most), x=round(x, 1), y=round(y, 1), text_anchor=anchor, class_=class_
    )
