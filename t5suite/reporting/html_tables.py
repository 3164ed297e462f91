"""The tables of the page.

>>> scores_table(data)[:70]
'<div class="scroll" tabindex="0" role="region" aria-label="Scores by t'
"""

from collections.abc import Callable
from typing import NamedTuple

from t5suite.reporting.cells import RATES, interval, points, short_number, significant
from t5suite.reporting.html_parts import Markup, element, number_cell, table, text_cell
from t5suite.reporting.markdown import hardware_of
from t5suite.tasks.metrics import METRICS
from t5suite.tracking.glossary import MEANINGS, explained

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
