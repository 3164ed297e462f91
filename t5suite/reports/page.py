"""The report as one HTML file that needs nothing else, and all of a report's files.

>>> page = html_page(data, plots, {plot.name: render(plot) for plot in plots})
>>> page.startswith("<!doctype html>"), "http://" in page.replace("http://www.w3.org/", "")
(True, False)

A Content-Security-Policy in the page allows exactly its own style and script, by their hashes, and no network at all.
Texts of the data are escaped wherever they stand; examples are put into the page as text, never as HTML. Without
scripts everything can be read but the examples.
"""

import base64
import contextlib
import hashlib
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.files import whole_file
from t5suite.base.lookup import find
from t5suite.reports import page as tables
from t5suite.reports.markdown import hardware_of, markdown, summary
from t5suite.reports.plots import COLOURS, INK, Plot, colours_of, render, shortened, write_figures
from t5suite.reports.tables import MEANINGS, RATES, explained, interval, points, short_number, significant
from t5suite.runs.directory import read_json, write_json
from t5suite.tasks.metrics import METRICS


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
STYLE = re.compile(r'\sstyle="([^"]*)"')
# Attributes that SVG has for what a style says.
KNOWN = """fill fill-opacity fill-rule stroke stroke-width stroke-opacity stroke-dasharray stroke-dashoffset
stroke-linecap stroke-linejoin stroke-miterlimit opacity font-size font-weight font-style text-anchor
clip-rule""".split()


def inline(svg: bytes, label: str, name: str, themed: bool = True) -> str:
    """The `<svg>` element.

    Args:
      label: what a screen reader says.
      name: told apart from all others on the page, for the ids of clip paths and markers.
      themed: whether the plot is drawn in INK and COLOURS.
    """
    text = svg.decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.S)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    text = STYLE.sub(_as_attributes, text)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    safe = re.sub(r"[^A-Za-z0-9_-]", "-", name)
    text = re.sub(r'id="([^"]+)"', rf'id="{safe}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{safe}-\1)", text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{safe}-\1"', text)
    if themed:
        text = re.sub(INK, "currentColor", text, flags=re.I)
        for at, colour in enumerate(COLOURS):
            text = re.sub(colour, f"var(--s{at + 1})", text, flags=re.I)
    box = re.search(r'viewBox="([^"]+)"', text).group(1)
    body = text[text.index(">") + 1 :].strip()
    spoken = html.escape(label, quote=True)
    body = re.sub(r"\n\s*", "\n", body)
    return f'<svg viewBox="{box}" role="img" aria-label="{spoken}" xmlns:xlink="http://www.w3.org/1999/xlink">{body}'


def _as_attributes(match) -> str:
    kept = []
    for part in match.group(1).split(";"):
        name, _, value = part.partition(":")
        name, value = name.strip(), value.strip()
        if name == "font":
            size = re.search(r"([\d.]+)px", value)
            kept += [f'font-size="{size.group(1)}"'] if size else []
        elif name in KNOWN:
            value = value.removesuffix("px") if name in ("font-size", "stroke-width") else value
            kept.append(f'{name}="{value}"')
    return " " + " ".join(kept) if kept else ""


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


# Inside the small picture of a score, from 0 to 100 points.
WIDTH, HEIGHT = 132, 18


def scores_table(data: dict) -> Markup:
    """Every setting, task and metric; the rate of invalid answers beside them."""
    entries = with_rates(data)
    columns = [column for column in SCORE_COLUMNS if column.always or any(column.known(entry) for entry in entries)]
    heads = [(column.header, column.kind, column.explained) for column in columns]
    rows = [[column.cell(entry) for column in columns] for entry in entries]
    return table("Scores by task, in points (nll: nats per token)", heads, rows, class_="scores-table")


def with_rates(data: dict) -> list[dict]:
    """The scores without the rates, which stand beside those of their task."""
    invalid = {(e["setting"], e["benchmark"], e["task"]): e["mean"] for e in data["scores"] if e["metric"] in RATES}
    return [
        {**entry, "invalid": invalid.get((entry["setting"], entry["benchmark"], entry["task"]))}
        for entry in data["scores"]
        if entry["metric"] not in RATES
    ]


def published_cell(entry: dict) -> Markup:
    """A published score with the size of its model."""
    if entry["published"] is None:
        return number_cell(None, "–")
    small = element("small", f" {entry['size']}")
    value = entry["published"]
    return element("td", points(value), small, class_="number", title=repr(value), data_value=value)


def interval_cell(found: dict | None, over: bool = False) -> Markup:
    """An interval; sorted by its lower end."""
    if not found:
        return number_cell(None, "–")
    said = element("small", f" {found['over']}") if over else ""
    whole = f"{found['low']!r} to {found['high']!r}"
    return element("td", interval(found), said, class_="number", title=whole, data_value=found["low"])


def score_picture(entry: dict) -> Markup:
    """Mean and interval as dot and line; a bar at the majority baseline, a diamond at the published score."""
    if entry["mean"] is None or entry["metric"] not in METRICS:
        return Markup("")
    at = lambda value: round(4 + (WIDTH - 8) * min(max(value, 0), 100) / 100, 2)
    middle = HEIGHT / 2
    parts = [element("line", x1=4, x2=WIDTH - 4, y1=middle, y2=middle, class_="axis")]
    if entry["interval"]:
        low, high = at(entry["interval"]["low"]), at(entry["interval"]["high"])
        parts.append(element("line", x1=low, x2=high, y1=middle, y2=middle, class_="range"))
    if entry["majority"] is not None:
        x = at(entry["majority"])
        parts.append(element("line", x1=x, x2=x, y1=2, y2=HEIGHT - 2, class_="majority"))
    if entry["published"] is not None:
        x = at(entry["published"])
        corners = f"M{x} {middle - 5}L{x + 5} {middle}L{x} {middle + 5}L{x - 5} {middle}Z"
        parts.append(element("path", d=corners, class_="published"))
    parts.append(element("circle", cx=at(entry["mean"]), cy=middle, r=4, class_="mean"))
    said = f"{points(entry['mean'])} of 100 points"
    return element("svg", parts, viewBox=f"0 0 {WIDTH} {HEIGHT}", class_="score", role="img", aria_label=said)


def averages_table(data: dict) -> Markup:
    """Suite averages."""
    columns = [("Suite", "text"), ("Setting", "text"), ("Mean", "number"), ("SD", "number"),
               ("95 % interval", "number"), ("Published", "number", "published T5, test set"),
               ("Runs", "number")]  # fmt: skip
    rows = [
        [text_cell(e["suite"], header=True), text_cell(e["setting"] or "–"), number_cell(e["mean"], points(e["mean"])),
         number_cell(e["std"], points(e["std"])), interval_cell(e["interval"], over=True), published_cell(e),
         number_cell(e["n"], str(e["n"]))]
        for e in data["averages"]
    ]  # fmt: skip
    return table("Suite averages, in points", columns, rows)


def runs_table(data: dict) -> Markup:
    """Every run's scores, each with its interval over rows."""
    shares = any(rate in scores for run in data["runs"] for scores in run["results"].values() for rate in RATES)
    columns = [("Run", "text"), ("Task", "text"), ("Metric", "text"), ("Score", "number"),
               ("95 % interval over rows", "number"), *([("Invalid %", "number", MEANINGS["invalid %"])] * shares),
               ("Seed", "number"), ("Notes", "text")]  # fmt: skip
    rows = []
    for run in data["runs"]:
        for task, scores in run["results"].items():
            rows += [
                _run_row(run, task, metric, shares) for metric in scores if metric not in RATES or len(scores) == 1
            ]
        if not run["results"]:
            empty = [number_cell(None, "–")] * (2 + shares)
            rows.append([
                text_cell(run["name"], header=True), text_cell(run["dataset_name"] or "–"), text_cell("–"), *empty,
                number_cell(run["seed"], str(run["seed"])), text_cell(f"{run['status']}, no results"),
            ])  # fmt: skip
    return table("Every run", columns, rows)


def _run_row(run: dict, task: str, metric: str, shares: bool) -> list[Markup]:
    scores = run["results"][task]
    rate = scores.get("invalid_rate")
    return [
        text_cell(run["name"], header=True), text_cell(task), text_cell(metric),
        number_cell(scores[metric], points(scores[metric])),
        interval_cell(run["intervals"].get(task, {}).get(metric)), *([number_cell(rate, points(rate))] * shares),
        number_cell(run["seed"], str(run["seed"])),
        text_cell(notes_of(run["marks"].get(task, [])), class_="text notes"),
    ]  # fmt: skip


def notes_of(marks: list[str]) -> list:
    """Remarks with commas between; each says what it means when the pointer rests on it."""
    said = [element("abbr", mark, title=meaning) if (meaning := meaning_of(mark)) else mark for mark in marks]
    return [part for mark in said for part in (", ", mark)][1:]


def meaning_of(mark: str) -> str | None:
    """What a remark means, if it does not say so itself."""
    return next((meaning for _, meaning in explained([], [mark])), None)


def run_words(data: dict) -> Markup | None:
    """What the notes in the table of runs mean, for those without a pointer."""
    marks = [mark for run in data["runs"] for of_task in run["marks"].values() for mark in of_task]
    return words("What the notes mean", explained([], marks))


def score_words(data: dict) -> Markup | None:
    """What the columns of the table of scores mean."""
    there = [column for column in SCORE_COLUMNS if column.always or any(map(column.known, with_rates(data)))]
    return words("What the columns mean", [(c.header, c.explained) for c in there if c.explained])


def words(title: str, meanings: list[tuple[str, str]]) -> Markup | None:
    """A list of words that opens at a key or a touch; None of none."""
    rows = [[element("dt", word), element("dd", meaning)] for word, meaning in meanings]
    return element("details", element("summary", title), element("dl", rows), class_="words") if rows else None


def groups_tables(data: dict) -> list[Markup]:
    """Scores of parts of a task (`report_by`), where a run has them."""
    tables = []
    for run in data["runs"]:
        for task, by_column in run["groups"].items():
            for column, parts in by_column.items():
                metrics = [name for name in next(iter(parts.values()), {}) if name != "n"]
                rows = [
                    [text_cell(part, header=True), number_cell(scores["n"], str(scores["n"])),
                     *(number_cell(scores[m], points(scores[m])) for m in metrics)]
                    for part, scores in parts.items()
                ]  # fmt: skip
                columns = [(column, "text"), ("Rows", "number"), *((m, "number") for m in metrics)]
                tables.append(table(f"{task} by {column}, {run['name']}", columns, rows))
    return tables


def speed_table(data: dict) -> Markup | None:
    """Medians of what was logged of time, throughput and memory; None where nothing was."""
    names = list(dict.fromkeys(name for run in data["runs"] for name in run["speed"]))
    if not names:
        return None
    columns = [("Run", "text"), ("Model", "text"), ("Parameters", "number"), ("Updates", "number"),
               *((heading_of(name), "number", name) for name in names), ("Machine", "text")]  # fmt: skip
    rows = []
    for run in data["runs"]:
        medians = [(run["speed"].get(name) or {}).get("median") for name in names]
        rows.append([
            text_cell(run["name"], header=True), text_cell(run["model"]["name"], class_="text model"),
            number_cell(run["model"]["parameters"], short_number(run["model"]["parameters"])),
            number_cell(run["last_step"], "–" if run["last_step"] is None else f"{run['last_step']:,}"),
            *(number_cell(value, significant(value)) for value in medians),
            _machine_cell(run["environment"]),
        ])  # fmt: skip
    return table("Speed and memory", columns, rows)


def _machine_cell(environment: dict) -> Markup:
    """The machine with its system's bare name; the whole one is the cell's title."""
    hardware = environment["hardware"]
    short = {**hardware, "platform": str(hardware.get("platform") or "").split("-")[0]}
    shown, whole = (hardware_of({"hardware": known, "commit": {}}) for known in (short, hardware))
    return text_cell(shown, class_="text machine", title=whole)


def heading_of(name: str) -> str:
    """A logged name as a column's header.

    >>> heading_of("train/tokens_per_second"), heading_of("train/mfu")
    ('Tokens/s', 'MFU %')
    """
    leaf = name.removeprefix("train/")
    return HEADINGS.get(leaf, leaf.replace("_", " "))


def confusion_table(matrix: dict) -> Markup:
    """One matrix; a cell's shade is the share of its row, in ten steps."""
    total = [sum(counts) for counts in matrix["counts"]]
    rows = []
    for label, counts, of_row in zip(matrix["labels"], matrix["counts"], total):
        cells = [text_cell(label, header=True)]
        for answer, count in zip(matrix["answers"], counts):
            share = count / of_row if of_row else 0.0
            shade = f"number shade{round(share * 10)}" + (" hit" if answer == label else "")
            percent = element("small", f"{100 * share:.0f} %")
            cells.append(
                element("td", count, percent, class_=shade, title=f"{count} of {of_row} rows labelled {label}")
            )
        rows.append(cells)
    columns = [("label ↓ answer →", "text"), *((answer, "number") for answer in matrix["answers"])]
    return table(f"{matrix['task']}, {matrix['run']}", columns, rows, sortable=False, class_="confusion")


def trials_table(sweep: dict) -> Markup:
    """A sweep's trials, the best first."""
    parameters = [(name, _kind_of(sweep, name)) for name in sweep["varied"]]
    columns = [("Trial", "number"), (sweep["metric"], "number"), *parameters]
    columns += [("State", "text"), ("Step", "number"), ("Seconds", "number")]
    rows = []
    for trial in sweep["trials"]:
        best = " ★" if trial["number"] == sweep["best"] else ""
        number = element("th", f"{trial['number']}{best}", scope="row", class_="text", data_value=trial["number"])
        rows.append([
            number, number_cell(trial["value"], significant(trial["value"])),
            *(_parameter_cell(trial["parameters"].get(name)) for name in sweep["varied"]),
            text_cell(trial["state"], title=trial["why"] or None),
            number_cell(trial["last_step"], "–" if trial["last_step"] is None else str(trial["last_step"])),
            number_cell(trial["seconds"], significant(trial["seconds"], 3)),
        ])  # fmt: skip
    return table(f"Trials of {sweep['name']}, the best first", columns, rows)


def _kind_of(sweep: dict, name: str) -> str:
    values = [trial["parameters"].get(name) for trial in sweep["trials"]]
    return "number" if all(isinstance(value, (int, float)) for value in values if value is not None) else "text"


def _parameter_cell(value) -> Markup:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return number_cell(value, significant(value) if isinstance(value, float) else str(value))
    return text_cell("–" if value is None else str(value), data_value=None if value is None else str(value))


HEADINGS = {
    "tokens_per_second": "Tokens/s",
    "seconds_per_step": "Seconds/update",
    "mfu": "MFU %",
    "data_wait": "Waiting for data %",
    "peak_memory_gb": "Peak memory, GB",
    "train_runtime": "Training, s",
    "train_samples_per_second": "Examples/s",
    "train_steps_per_second": "Updates/s",
}


class Column(NamedTuple):
    """A column of the table of scores; one that no entry has anything for is left out."""

    header: str
    kind: str
    cell: Callable
    explained: str | None = None
    known: Callable | None = None

    @property
    def always(self) -> bool:
        """Whether it is there whatever the entries hold."""
        return self.known is None


def _points_of(name: str) -> Callable:
    return lambda entry: number_cell(entry[name], points(entry[name]))


def _has(name: str) -> Callable:
    return lambda entry: entry[name] not in (None, "")


def _rows_cell(entry: dict) -> Markup:
    return number_cell(entry["rows"], "–" if entry["rows"] is None else f"{entry['rows']:,}")


SCORE_COLUMNS = (
    Column("Task", "text", lambda entry: text_cell(entry["task"], header=True)),
    Column("Metric", "text", lambda entry: text_cell(entry["metric"])),
    Column("Mean", "number", _points_of("mean"), "mean over the runs (seeds)"),
    Column("SD", "number", _points_of("std"), "standard deviation over the runs, of a sample (n - 1)", _has("std")),
    Column("95 % interval", "number", lambda e: interval_cell(e["interval"], over=True),
           "by bootstrap, over the runs' seeds or, of one run, over its rows", _has("interval")),
    Column("0 to 100", "picture", lambda entry: element("td", score_picture(entry), class_="picture")),
    Column("Majority", "number", _points_of("majority"),
           "what always answering the most frequent label would score", _has("majority")),
    Column("Published", "number", published_cell, "published T5, test set", _has("published")),
    Column("Invalid %", "number", _points_of("invalid"), MEANINGS["invalid %"], _has("invalid")),
    Column("Runs", "number", lambda entry: number_cell(entry["n"], str(entry["n"])), "runs that the mean is over"),
    Column("Rows", "number", _rows_cell, "rows that each run was scored on", _has("rows")),
    Column("Setting", "text", lambda e: text_cell(e["setting"], class_="text setting"),
           "what these runs have set otherwise than others", _has("setting")),
)  # fmt: skip


def html_page(data: dict, plots: list[Plot], rendered: dict[str, dict[str, bytes]]) -> str:
    """The whole page.

    Args:
      rendered: plot's name -> what `figures.render` made of it.
    """
    style, script = (_asset(name) for name in ("page.css", "page.js"))
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    sections = [section for section in _sections(data, _Figures(plots, rendered)) if section is not None]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{data['title']} · t5suite report"),
        element("style", Markup(style)),
    )
    body = element(
        "body",
        element("a", "Skip to the scores", href="#main", class_="skip"),
        _header(data),
        element(
            "nav",
            [element("a", IN_NAV.get(title, title), href=f"#{id_}") for id_, title, _ in sections],
            aria_label="Sections",
        ),
        element("main", [_section(*section) for section in sections], id="main", tabindex="-1"),
        element("footer", f"Made by t5suite {data['version']}. ", "Everything on this page is inside this file."),
        embedded_json(data, "report-data"),
        element("script", Markup(script)),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """A CSP source expression."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode()}"


def _header(data: dict) -> Markup:
    buttons = [
        element("button", word, type="button", data_theme_choice=word.lower(), aria_pressed=str(word == "Auto").lower())
        for word in ("Auto", "Light", "Dark")
    ]
    theme = element("div", buttons, class_="theme", role="group", aria_label="Colours", hidden=True)
    title = element("div", element("h1", data["title"]), element("p", summary(data)))
    return element("header", title, theme)


def _section(id_: str, title: str, content) -> Markup:
    return element("section", element("h2", title, id=f"{id_}-title"), content, id=id_, aria_labelledby=f"{id_}-title")


class _Figures:
    """The plots by section, as elements."""

    def __init__(self, plots: list[Plot], rendered: dict[str, dict[str, bytes]]):
        self.plots, self.rendered = plots, rendered

    def of(self, section: str, title: str = "", wide: bool = False) -> list[Markup]:
        """Those of a section whose title begins so."""
        mine = [plot for plot in self.plots if plot.section == section and plot.title.startswith(title)]
        return [_figure(plot, self.rendered[plot.name]["inline"], wide) for plot in mine]


def _sections(data: dict, figures: _Figures) -> list:
    """`(id, title, content)` of each section that there is something for."""
    curves = figures.of("curves")
    speed = tables.speed_table(data)
    groups = tables.groups_tables(data)
    return [
        ("scores", "Scores", [_scores_key(data), tables.scores_table(data), tables.score_words(data)])
        if data["scores"]
        else None,
        ("averages", "Suite averages", tables.averages_table(data)) if data["averages"] else None,
        *(_sweep_section(at, sweep, figures) for at, sweep in enumerate(data["sweeps"])),
        ("curves", "Learning curves", _curves(data, curves)) if curves else None,
        ("runs", "Runs", [tables.runs_table(data), tables.run_words(data)]) if data["runs"] else None,
        ("parts", "Parts of tasks", groups) if groups else None,
        ("confusions", "Confusion matrices", _confusions(data)) if data["confusions"] else None,
        ("examples", "Examples", _examples(data)) if data["examples"] else None,
        ("speed", "Speed and memory", [speed, _para(data["method"]["speed"])]) if speed else None,
        ("commands", "Commands and environment", _commands(data)) if data["runs"] else None,
        ("method", "How these numbers were made", _method(data)),
    ]


def _para(text: str) -> Markup:
    return element("p", text, class_="note")


def _scores(data: dict) -> list:
    return [_scores_key(data), tables.scores_table(data), tables.score_words(data)]


def _scores_key(data: dict) -> Markup:
    """What the small pictures show."""
    draw = lambda inner: element("svg", inner, viewBox="0 0 16 16", class_="key", aria_hidden="true")
    mean = [element("line", x1=0, x2=16, y1=8, y2=8, class_="range"), element("circle", cx=8, cy=8, r=4, class_="mean")]
    keys = [(mean, "mean and 95 % interval")]
    if any(entry["majority"] is not None for entry in data["scores"]):
        keys.append((element("line", x1=8, x2=8, y1=2, y2=14, class_="majority"), "majority label"))
    if any(entry["published"] is not None for entry in data["scores"]):
        keys.append((element("path", d="M8 3L13 8L8 13L3 8Z", class_="published"), "published T5 (test set)"))
    said = [element("span", draw(inner), words) for inner, words in keys]
    return element("p", said, " Hold the pointer over a number for all of its digits.", class_="note keys")


def _curves(data: dict, figures: list[Markup]) -> list:
    colours = colours_of(data)
    several = len(data["settings"]) > 1
    keys = [
        element("li", element("span", _dash(at), class_=f"swatch s{at + 1}"), label)
        for label, (at, _, _) in colours.items()
    ]
    others = len(data["settings"]) - len(colours)
    if others:
        keys.append(element("li", element("span", _dash(0), class_="swatch grey"), f"{others} others"))
    seeds = any(len(setting["runs"]) > 1 for setting in data["settings"])
    note = "Thin lines are runs, thick ones the mean of a setting's finished runs." if seeds else "Each line is a run."
    return [
        _para(f"{note} Every point is a line of metrics.jsonl."),
        element("ul", keys, class_="legend") if several else None,
        element("div", figures, class_="panels"),
    ]


def _dash(at: int) -> Markup:
    """A piece of line as the plots draw it."""
    dashes = (None, "6 3", "6 2 1.5 2", "1.5 2", "8 2", "4 1.5 1.5 1.5", "1.5 1.5")
    line = element("line", x1=0, x2=28, y1=5, y2=5, stroke="currentColor", stroke_width=3, stroke_dasharray=dashes[at])
    return element("svg", line, viewBox="0 0 28 10", aria_hidden="true")


def _figure(plot: Plot, svg: bytes, wide: bool = False) -> Markup:
    svg = inline(svg, plot.title, plot.name, themed=plot.ink)
    frame = element("div", Markup(svg), class_="plot" if plot.ink else "plot drawn", tabindex="0" if wide else None)
    said = [element("b", plot.title.rpartition(": ")[2]), f" plots/{plot.name}.svg, .png"]
    caption = element("figcaption", said) if wide else None
    return element("figure", frame, caption, class_="wide" if wide else None)


def _confusions(data: dict) -> Markup:
    made = [_confusion(matrix) for matrix in data["confusions"]]
    shown, others = made[:MOST_OPEN], made[MOST_OPEN:]
    more = element("summary", f"{len(others)} more")
    folded = element("details", more, element("div", others, class_="matrices"), class_="more-matrices")
    return element("div", shown, folded if others else None, class_="matrices")


def _confusion(matrix: dict) -> Markup:
    """The picture, and its numbers as a table for those who want them so."""
    picture = element("div", confusion_picture(matrix), class_="plot", tabindex="0", role="group")
    rows = element("details", element("summary", "as a table"), tables.confusion_table(matrix))
    return element("figure", element("figcaption", f"{matrix['task']}, {matrix['run']}"), picture, rows)


def _sweep_section(at: int, sweep: dict, figures: _Figures):
    mine = figures.of("sweeps", f"{sweep['name']}: ", wide=True)
    content = [
        _para(f"{sweep['method']}, {sweep['goal']} {sweep['metric']}, {len(sweep['trials'])} trials."),
        tables.trials_table(sweep),
        [_para(note) for note in sweep["notes"]],
        element("div", mine, class_="wides"),
        [element("h3", f"The best trial's command (trial {sweep['best']})"), _code(sweep["command"])]
        if sweep["command"]
        else None,
    ]
    return f"sweep-{at + 1}", f"Sweep {sweep['name']}", content


def _examples(data: dict) -> list:
    runs = list(dict.fromkeys(part["run"] for part in data["examples"]))
    tasks = list(dict.fromkeys(part["task"] for part in data["examples"]))
    shown = sum(part["shown"] for part in data["examples"])
    total = sum(part["total"] for part in data["examples"])
    verdicts = list(dict.fromkeys(verdict for part in data["examples"] for verdict in part["verdicts"]))
    said = f"{shown:,} of {total:,} answers are in this page" if shown < total else f"All {total:,} answers"
    kinds = "; invalid and wrong ones come first." if shown < total else "."
    controls = [
        _select("filter-task", "Task", tasks),
        _select("filter-run", "Run", runs),
        _select("filter-verdict", "Verdict", verdicts),
        element("label", "Text ", element("input", type="search", id="filter-text", placeholder="in input or answer")),
    ]
    without = [
        f"{part['run']}, {part['task']}, without texts: {part['note']}" for part in data["examples"] if part["note"]
    ]
    return [
        _para(said + kinds + " predictions/ in the run's directory has them all."),
        *map(_para, without),
        element("div", controls, class_="filters", role="search", aria_label="Filter examples"),
        element("p", "", id="examples-count", class_="note", role="status", aria_live="polite"),
        element("ol", id="examples-list", class_="examples"),
        element("button", "Show more", type="button", id="examples-more", class_="more", hidden=True),
        element("noscript", element("p", "Examples are filtered by a script, which this browser does not run.")),
    ]


def _select(id_: str, label: str, choices: list[str]) -> Markup:
    options = [element("option", "all", value=""), *(element("option", c, value=c) for c in choices)]
    return element("label", f"{label} ", element("select", options, id=id_))


def _code(text: str) -> Markup:
    copy = element("button", "Copy", type="button", class_="copy", hidden=True)
    return element("div", copy, element("pre", element("code", text), tabindex="0"), class_="code")


def _commands(data: dict) -> list:
    return [_run_details(run, is_open=len(data["runs"]) <= 2) for run in data["runs"]]


def _run_details(run: dict, is_open: bool) -> Markup:
    environment = run["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    model = run["model"]
    facts = {
        "Status": run["status"],
        "Model": ", ".join(filter(None, [model["name"], model["class"]])),
        "Adapter": json.dumps(model["adapter"]) if model["adapter"] else None,
        "Machine": hardware_of(environment),
        "Versions": versions,
        "Started": environment["started"],
        "Finished": environment["finished"],
        "Directory": run["directory"],
        "Notes": "; ".join(run["notes"]),
    }
    rows = [[element("dt", name), element("dd", value)] for name, value in facts.items() if value]
    settings = {name: value for name, value in run["settings"].items() if value not in (None, False, [], {}, "")}
    given = element("details", element("summary", f"{len(settings)} settings"), _code(json.dumps(settings, indent=1)))
    summary_line = element("summary", element("b", run["name"]), f" {run['setting']}" if run["setting"] else "")
    return element(
        "details", summary_line, _code(environment["command"] or "(not recorded)"), element("dl", rows), given,
        open=is_open or None, class_="run",
    )  # fmt: skip


def _method(data: dict) -> Markup:
    names = {"interval": "Intervals", "std": "Standard deviation", "majority": "Majority baseline",
             "published": "Published scores", "speed": "Speed"}  # fmt: skip
    rows = [[element("dt", names.get(name, name)), element("dd", text)] for name, text in data["method"].items()]
    return element("dl", rows)


# Confusion matrices that are not folded away.
MOST_OPEN = 12
# Shorter words for the bar at the top.
IN_NAV = {
    "Suite averages": "Averages",
    "Learning curves": "Curves",
    "Confusion matrices": "Confusions",
    "Speed and memory": "Speed",
    "Commands and environment": "Commands",
    "How these numbers were made": "Method",
}
assert len(COLOURS) == 7, "page.css has a variable for each colour, and `_dash` a dash"
FORMATS = ("html", "md", "json")


def parse_formats(text: str) -> list[str]:
    """`--format` as a list; `none` is no file at all.

    Raises:
      ConfigError: no such format, or none beside others.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ConfigError(f"--format is empty; name some of {', '.join(FORMATS)}, or none")
    for name in names:
        find(name, {known: known for known in (*FORMATS, "none")}, "format", where="--format")
    if "none" in names and len(names) > 1:
        raise ConfigError(f"--format {text}: none stands alone")
    return [name for name in names if name != "none"]


PLOTS_FOLDER = "plots"
LIST = ".report_files.json"


class Written(NamedTuple):
    """The files of a report, and those of an earlier one in its place that are gone."""

    paths: list[Path]
    removed: list[Path]


def write_report(data: dict, plots: list[Plot], directory, formats: list[str]) -> Written:
    """Writes the files of these formats, and the plots.

    Raises:
      ConfigError: the directory is a file, or holds what no report wrote.
    """
    directory = Path(directory)
    before = files_of_report(directory)
    directory.mkdir(parents=True, exist_ok=True)
    names = [*(f"report.{name}" for name in formats)]
    names += [f"{PLOTS_FOLDER}/{plot.name}.{form}" for plot in plots for form in ("png", "svg")]
    # Whatever happens from here on, the next report knows all of this for a report's.
    write_json(directory / LIST, {"files": sorted({*before, *names})})
    rendered = {plot.name: render(plot) for plot in plots}
    drawn = write_figures(rendered, directory / PLOTS_FOLDER) if plots else []
    paths = []
    for name in formats:
        path = directory / f"report.{name}"
        with whole_file(path) as temporary:
            temporary.write_text(WRITERS[name](data, plots, rendered), encoding="utf-8")
        paths.append(path)
    removed = _remove(directory, [name for name in before if name not in names])
    write_json(directory / LIST, {"files": sorted(names)})
    return Written([*paths, *drawn], removed)


def files_of_report(directory) -> list[str]:
    """The files in a folder that a report wrote, relative to it; none where it is new or empty.

    Raises:
      ConfigError: it is a file, or holds what no report wrote.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"--output {directory}: there is a file of that name; give a directory")
    if not directory.is_dir():
        return []
    there = [path.relative_to(directory).as_posix() for path in sorted(directory.rglob("*")) if not path.is_dir()]
    there = [name for name in there if not any(part.startswith(".") for part in name.split("/"))]
    listed = _listed(directory / LIST)
    foreign = [name for name in there if name not in listed]
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise ConfigError(
            f"--output {directory}: {', '.join(foreign[:3])}{more} in it is of no report that {directory / LIST} "
            "knows, and nothing is written over or beside it; give another --output, or move it away"
        )
    return there


def _listed(path: Path) -> set[str]:
    """The names in a list that is there and whole; a broken one knows nothing."""
    try:
        names = read_json(path)["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return set()
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def _remove(directory: Path, names: list[str]) -> list[Path]:
    removed = [directory / name for name in names]
    for path in removed:
        path.unlink(missing_ok=True)
    for folder in {path.parent for path in removed} - {directory}:
        with contextlib.suppress(OSError):  # others are in it
            folder.rmdir()
    return removed


def _markdown(data: dict, plots: list[Plot], rendered) -> str:
    pictures = [(plot.title, f"{PLOTS_FOLDER}/{plot.name}.png") for plot in plots if plot.section != "confusions"]
    return markdown(data, pictures)


# The names are those of `formats.FORMATS`.
WRITERS = {
    "html": html_page,
    "md": _markdown,
    "json": lambda data, plots, rendered: json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n",
}
