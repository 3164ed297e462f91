"""A report's files: one self-contained HTML page, Markdown, data and plots.

>>> page = html_page(data, plots, {plot.name: render(plot) for plot in plots})
>>> page.startswith("<!doctype html>"), "http://" in page
(True, False)
>>> [section.title for section in sections_of(data, plots)][:3]
['Scores', 'Learning curves', 'Runs']

A Content-Security-Policy in the page allows exactly its own style and script, by their hashes, and no network at all.
Texts of the data are escaped everywhere; examples are put into the page as text, never as HTML. Without scripts
everything except the examples can be read.
"""

import base64
import hashlib
import json
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from t5suite.base.errors import ConfigError
from t5suite.base.files import whole_file
from t5suite.base.lookup import find, listed
from t5suite.base.redaction import printable
from t5suite.launch.sweep_tables import best_lines, parameters_text
from t5suite.reports.finished_runs import RATES
from t5suite.reports.formatting import MEANINGS, NOTHING, average_title, explained, is_plain_number, points, significant
from t5suite.reports.markdown import block, escaped, escaped_table
from t5suite.reports.plots import Plot, render_plot
from t5suite.runs.directory import read_json, write_json

FORMATS = ("html", "md", "json")
PLOTS_FOLDER = "plots"
LIST = ".report_files.json"
# More averages or scores than this are only in their tables.
MOST_IN_HEADLINE = 4


def parse_formats(text: str) -> list[str]:
    """`--format html,md` as a list; `none` writes no file.

    Raises:
      ConfigError: no such format.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        find(name, dict.fromkeys((*FORMATS, "none")), "format", where="--format")
    return [name for name in names if name != "none"]


def write_report(data: dict, plots: list[Plot], directory, formats: list[str]) -> list[Path]:
    """Writes the files of these formats, and the plots, replacing an earlier report's; returns their paths.

    Raises:
      ConfigError: the directory is a file, or holds files that no report wrote.
    """
    directory = Path(directory)
    before, rendered = files_of_report(directory), {plot.name: render_plot(plot) for plot in plots}
    files = {}
    for name in formats:
        if name == "html":
            text = html_page(data, plots, rendered)
        elif name == "md":
            text = markdown(data, plots, PLOTS_FOLDER)
        else:
            text = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
        files[f"report.{name}"] = text.encode()
    for plot, forms in rendered.items():
        files |= {f"{PLOTS_FOLDER}/{plot}.{form}": content for form, content in forms.items()}
    directory.mkdir(parents=True, exist_ok=True)
    # If this is interrupted, the next report still knows these files.
    write_json(directory / LIST, {"files": sorted({*before, *files})})
    for name, content in files.items():
        (directory / name).parent.mkdir(exist_ok=True)
        with whole_file(directory / name) as temporary:
            temporary.write_bytes(content)
    for name in before:
        if name not in files:
            (directory / name).unlink(missing_ok=True)
    write_json(directory / LIST, {"files": sorted(files)})
    return [directory / name for name in files]


def files_of_report(directory) -> list[str]:
    """The files in a folder that a report wrote, relative to it; none if it is new or empty.

    Raises:
      ConfigError: it is a file, or holds files that no report wrote.
    """
    directory = Path(directory)
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"--output {directory}: there is a file of that name; give a directory")
    there = [path.relative_to(directory).as_posix() for path in sorted(directory.rglob("*")) if not path.is_dir()]
    there = [name for name in there if not any(part.startswith(".") for part in name.split("/"))]
    try:
        own = {str(name) for name in read_json(directory / LIST)["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        own = set()
    foreign = [name for name in there if name not in own]
    if foreign:
        raise ConfigError(
            f"--output {directory}: {listed(foreign)} in it was not written by a report (its list is {LIST}); "
            "give another --output, or move it away"
        )
    return there


def html_page(data: dict, plots: list[Plot], rendered: dict[str, dict[str, bytes]]) -> str:
    """The whole page.

    Args:
      rendered: plot's name -> what `plots.render_plot` made of it.

    Raises:
      ValueError: a NaN or infinity, which JSON does not have.
    """
    folder = Path(__file__).parent
    pages = Environment(
        loader=FileSystemLoader(folder), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    pages.policies["json.dumps_kwargs"] = {"allow_nan": False, "ensure_ascii": False, "separators": (",", ":")}
    style, script = ((folder / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    base64_of = lambda content: base64.b64encode(content).decode()
    hash_of = lambda text: f"sha256-{base64_of(hashlib.sha256(text.encode('utf-8')).digest())}"
    policy = (
        f"default-src 'none'; style-src '{hash_of(style)}'; script-src '{hash_of(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return pages.get_template("page.html.jinja").render(
        data=data,
        sections=sections_of(data, plots),
        summary=_summary(data),
        headline=headline(data),
        pictures={name: f"data:image/svg+xml;base64,{base64_of(forms['svg'])}" for name, forms in rendered.items()},
        policy=policy,
        style=Markup(style),
        script=Markup(script),
        repr=repr,
    )


def markdown(data: dict, plots: list[Plot], folder: str) -> str:
    """The whole report, except the individual answers; `folder` has the plots' files."""
    lines = [f"# {escaped(data['title'])}", ""]
    lines += [*(f"- {escaped(name)}: **{escaped(text)}**" for name, text in headline(data)), "", _summary(data), ""]
    for section in sections_of(data, plots):
        if section.id == "examples":
            continue
        lines += [f"## {escaped(section.title)}", ""]
        for part in section.parts:
            facts = part.content if part.kind == "facts" else part.content["facts"] if part.kind == "run" else []
            if part.kind == "note":
                lines += [escaped(part.content), ""]
            elif part.kind == "table":
                cells = [[f"{cell.text}{cell.small}" for cell in row] for row in part.content.rows]
                lines += [f"**{escaped(part.content.caption)}**", ""] if part.content.caption != section.title else []
                lines += escaped_table([column.header for column in part.content.columns], cells)
            elif part.kind == "plots":
                lines += [*(f"![{escaped(plot.title)}]({folder}/{plot.name}.png)" for plot in part.content), ""]
            elif part.kind == "code":
                lines += [part.title, "", *block("", [part.content]), ""]
            elif part.kind == "run":
                lines += [f"### {escaped(part.title)}", "", *block("", [part.content["command"]]), ""]
            lines += [*(f"- {escaped(name)}: {escaped(text)}" for name, text in facts), *([""] if facts else [])]
    return printable("\n".join(lines).rstrip()) + "\n"


def _summary(data: dict) -> str:
    """How much there is, in one line."""
    plural = lambda count, word: f"{count} {word}{'s' * (count != 1)}"
    finished, runs = sum(run["status"] == "finished" for run in data["runs"]), len(data["runs"])
    trials = sum(len(sweep["trials"]) for sweep in data["sweeps"])
    parts = [plural(trials, "trial")] if trials else []
    if runs:
        parts.append(plural(runs, "run") + (f", {finished} finished" if finished < runs else ""))
        parts.append(plural(len(data["settings"]), "setting"))
    return f"{'; '.join(parts)}. Made by t5suite {data['version']}."


def headline(data: dict) -> list[tuple[str, str]]:
    """What a reader looks for first: the averages (without one: the scores), the model, the day.

    >>> headline(data)
    [('average glue', '77.4'), ('model', 'google-t5/t5-small'), ('date', '2026-11-23')]
    """
    averages = [(average_title(entry["suite"]), entry) for entry in data["averages"]]
    scores = [(f"{e['task']} {e['metric']}", e) for e in data["scores"] if e["metric"] not in RATES]
    found = [
        (", ".join(filter(None, [name, entry["setting"]])), _number(entry["mean"], metric=name).text)
        for name, entry in averages or scores
    ]
    times = [run["environment"]["finished"] or run["environment"]["started"] or "" for run in data["runs"]]
    days = sorted({time[:10] for time in times if time})
    models = ", ".join(dict.fromkeys(str(run["model"]["name"]) for run in data["runs"]))
    also = {"model": models, "date": " to ".join(dict.fromkeys([*days[:1], *days[-1:]]))}
    return [*found * (len(found) <= MOST_IN_HEADLINE), *((name, text) for name, text in also.items() if text)]


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


def sections_of(data: dict, plots: list[Plot]) -> list[Section]:
    """Every section that has content, in order; the page and Markdown render them alike."""

    def drawn(name: str, title: str = "") -> list[Part]:
        found = [plot for plot in plots if plot.section == name and plot.title.startswith(title)]
        return [Part("plots", found)] if found else []

    sweeps = data["sweeps"]
    sections = [
        Section("scores", "Scores", _scores(data) + drawn("scores")),
        Section("averages", "Suite averages", _averages(data)),
        *(
            Section(f"sweep-{at}", f"Sweep {one['name']}", _sweep(one, data) + drawn("sweeps", f"{one['name']}: "))
            for at, one in enumerate(sweeps, 1)
        ),
        Section("curves", "Learning curves", drawn("curves")),
        Section("runs", "Every run", _runs(data)),
        Section("parts", "Parts of tasks", _groups(data)),
        Section("confusions", "Confusion matrices", [*map(_confusion, data["confusions"])]),
        Section("examples", "Examples", _examples(data)),
        Section("speed", "Speed and memory", _speed(data)),
        Section("commands", "Commands and environment", [*map(_run_facts, data["runs"])]),
        Section("method", "How these numbers were made", [Part("facts", list(data["method"].items()))]),
    ]
    return [section for section in sections if section.parts]


def _head(text) -> Cell:
    """A row's name."""
    return Cell(str(text), kind="head")


def _number(value, shown: str | None = None, small: str = "", metric: str = "") -> Cell:
    """A number, by default with one decimal, as papers print points; nats have three."""
    known = value is not None and value == value
    return Cell(_rounded(value, metric) if shown is None else shown, value if known else None, "number", small)


def _rounded(value, metric: str = "") -> str:
    return points(value, digits=3 if "nll" in metric else 1)


def _count(value) -> Cell:
    return _number(value, NOTHING if value is None else f"{value:,}")


def _interval(found: dict | None, metric: str, over: bool = False) -> Cell:
    """An interval, with what it is over; sorted by its lower end."""
    if not found:
        return Cell(NOTHING, kind="number")
    whole = f"{found['low']!r} to {found['high']!r}"
    shown = f"{_rounded(found['low'], metric)} to {_rounded(found['high'], metric)}"
    return Cell(shown, found["low"], "number", f" {found['over']}" if over else "", whole)


def _published(entry: dict) -> Cell:
    return _number(entry["published"], small=f" {entry['size']}" if entry["published"] is not None else "")


# (column, its cell of an entry, the entry's key; the column is omitted if all entries lack it)
SCORE_COLUMNS = (
    (Column("Task"), lambda e: _head(e["task"]), None),
    (Column("Metric"), lambda e: Cell(e["metric"]), None),
    (Column("Mean", "number", "mean over the runs (seeds)"), lambda e: _number(e["mean"], metric=e["metric"]), None),
    (Column("SD", "number", "sample standard deviation over the runs (n - 1)"), lambda e: _number(e["std"]), "std"),
    (Column("95 % interval", "number", "by bootstrap, over the runs' seeds or, of one run, over its rows"),
     lambda e: _interval(e["interval"], e["metric"], over=True), "interval"),
    (Column("Majority", "number", "what always answering the most frequent label would score"),
     lambda e: _number(e["majority"]), "majority"),
    (Column("Published", "number", "published T5, test set"), _published, "published"),
    (Column("Invalid %", "number", MEANINGS["invalid %"]), lambda e: _number(e["invalid"]), "invalid"),
    (Column("Runs", "number", "runs that the mean is over"), lambda e: _count(e["n"]), None),
    (Column("Rows", "number", "rows that each run was scored on"), lambda e: _count(e["rows"]), "rows"),
    (Column("Setting", "text", "what differs from the other runs' settings"),
     lambda e: Cell(e["setting"], style="wide"), "setting"),
    (Column("Notes"), lambda e: _notes(e["marks"]), "marks"),
)  # fmt: skip


def _scores(data: dict) -> list[Part]:
    """Every setting, task and metric; the rate of invalid answers is next to its task's scores."""
    place = lambda entry: (entry["setting"], entry["benchmark"], entry["task"])
    invalid = {place(entry): entry["mean"] for entry in data["scores"] if entry["metric"] in RATES}
    entries = [{**e, "invalid": invalid.get(place(e))} for e in data["scores"] if e["metric"] not in RATES]
    return _score_table("In points (nll: nats per token)", entries)


def _averages(data: dict) -> list[Part]:
    if len(data["averages"]) <= MOST_IN_HEADLINE and all(e["n"] == 1 and not e["published"] for e in data["averages"]):
        return []  # the headline says it
    lacking = {"metric": "average", "majority": None, "invalid": None, "rows": None, "marks": []}
    return _score_table("Means of tasks, in points", [{**e, "task": e["suite"], **lacking} for e in data["averages"]])


def _score_table(caption: str, entries: list[dict]) -> list[Part]:
    if not entries:
        return []
    chosen = [
        (column, cell)
        for column, cell, name in SCORE_COLUMNS
        if not name or any(e[name] not in (None, "", []) for e in entries)
    ]
    table = Table(caption, [column for column, _ in chosen], [[cell(entry) for _, cell in chosen] for entry in entries])
    meanings = [(column.header, column.meaning) for column, _ in chosen if column.meaning]
    marks = [mark for entry in entries for mark in entry["marks"]]
    return [Part("table", table), Part("words", meanings, "What the columns mean"), *_note_words(marks)]


def _notes(marks: list[str]) -> Cell:
    """Remarks on a score, explained on hover."""
    meanings = "; ".join(f"{mark}: {meaning}" for mark, meaning in explained([], marks))
    return Cell(", ".join(marks), note=meanings or None)


def _note_words(marks: list[str]) -> list[Part]:
    """The same explanations, readable without hovering."""
    words = explained([], marks)
    return [Part("words", words, "What the notes mean")] if words else []


def _sweep(sweep: dict, data: dict) -> list[Part]:
    """A sweep's settings over their seeds, its trials (the best first), and a command."""

    def parameter(value) -> Cell:
        said = significant(value) if isinstance(value, float) else NOTHING if value is None else str(value)
        return _number(value, said) if is_plain_number(value) else Cell(said, value)

    groups, star = sweep["groups"], None if sweep["groups"] else sweep["best"]
    said = f"{sweep['method']}, {sweep['goal']} {sweep['metric']}, {len(sweep['trials'])} trials."
    parts = [Part("note", note) for note in [said, *best_lines(groups, sweep["goal"], sweep["name"])]]
    if groups:
        columns = [Column("Setting"), Column("Task"), *(Column(name, "number") for name in ("Mean", "SD", "Seeds"))]
        rows = [
            [
                _head(parameters_text(group["parameters"]) or "as given"),
                Cell(group["task"] or NOTHING),
                _number(group["mean"]),
                _number(group["std"]),
                _count(group["n"]),
            ]
            for group in groups
        ]
        parts.append(Part("table", Table(f"{sweep['metric']} over the seeds", columns, rows)))
    values = {name: [trial["parameters"].get(name) for trial in sweep["trials"]] for name in sweep["varied"]}
    columns = [Column("Trial"), Column(sweep["metric"], "number")]
    columns += [
        Column(name, "number" if all(map(is_plain_number, column)) else "text") for name, column in values.items()
    ]
    columns += [Column("State"), Column("Step", "number"), Column("Seconds", "number")]
    rows = [
        [
            Cell(f"{trial['number']}{' ★' * (trial['number'] == star)}", trial["number"], "head"),
            _number(trial["value"], significant(trial["value"])),
            *(parameter(trial["parameters"].get(name)) for name in sweep["varied"]),
            Cell(trial["state"], note=trial["why"] or None),
            _count(trial["last_step"]),
            _number(trial["seconds"], significant(trial["seconds"], 3)),
        ]
        for trial in sweep["trials"]
    ]
    parts.append(Part("table", Table("Trials, the best first", columns, rows)))
    if sweep["command"]:
        parts.append(Part("code", sweep["command"], f"Command of trial {sweep['best']}, the best single score"))
    return parts


def _runs(data: dict) -> list[Part]:
    """Every run's scores, each with its interval over rows; empty if every score is of a single run."""
    if all(run["results"] for run in data["runs"]) and all(entry["n"] == 1 for entry in data["scores"]):
        return []
    columns = [
        Column("Run"),
        Column("Task"),
        Column("Metric"),
        Column("Score", "number"),
        Column("95 % interval over rows", "number"),
        Column("Invalid %", "number", MEANINGS["invalid %"]),
        Column("Seed", "number"),
        Column("Notes"),
    ]
    rows, all_marks = [], []
    for run in data["runs"]:
        name, seed = _head(run["name"]), _number(run["seed"], str(run["seed"]))
        for task, scores in run["results"].items():
            marks = run["marks"].get(task, [])
            all_marks += marks
            for metric in (metric for metric in scores if metric not in RATES or len(scores) == 1):
                interval = _interval(run["intervals"].get(task, {}).get(metric), metric)
                rows.append(
                    [
                        name,
                        Cell(task),
                        Cell(metric),
                        _number(scores[metric], metric=metric),
                        interval,
                        _number(scores.get(RATES[0])),
                        seed,
                        _notes(marks),
                    ]
                )
        if not run["results"]:
            rows.append(
                [
                    name,
                    Cell(run["dataset_name"] or NOTHING),
                    Cell(NOTHING),
                    *([_number(None)] * 3),
                    seed,
                    Cell(f"{run['status']}, no results", style="wide"),
                ]
            )
    return [Part("table", Table("Every run", columns, rows)), *_note_words(all_marks)]


def _groups(data: dict) -> list[Part]:
    """Scores of parts of a task (`report_by`), if a run has them."""
    found = []
    for run in data["runs"]:
        for task, by_column in run["groups"].items():
            for column, parts in by_column.items():
                metrics = [name for name in next(iter(parts.values()), {}) if name != "n"]
                rows = [
                    [_head(name), _count(of["n"]), *(_number(of[metric], metric=metric) for metric in metrics)]
                    for name, of in parts.items()
                ]
                columns = [Column(column), Column("Rows", "number"), *(Column(m, "number") for m in metrics)]
                found.append(Part("table", Table(f"{task} by {column}, {run['name']}", columns, rows)))
    return found


def _confusion(matrix: dict) -> Part:
    """Labels down, answers across; a cell's shade is its share of its row, in ten steps, right answers are marked."""
    rows = []
    for label, counts in zip(matrix["labels"], matrix["counts"]):
        cells, whole = [_head(label)], sum(counts)
        for answer, count in zip(matrix["answers"], counts):
            share = count / whole if whole else 0.0
            note = f"{count} of {whole} rows labelled {label} were answered {answer}"
            style = f"shade{round(share * 10)}" + (" hit" if answer == label else "")
            cells.append(Cell(str(count), count, "number", f" {100 * share:.0f} %", note, style))
        rows.append(cells)
    columns = [Column("label ↓ answer →"), *(Column(answer, "number") for answer in matrix["answers"])]
    caption = ", ".join(dict.fromkeys((matrix["task"], matrix["run"])))
    return Part("table", Table(caption, columns, rows, "confusion"))


def _examples(data: dict) -> list[Part]:
    """The choices of the page's filters."""
    parts = data["examples"]
    if not parts:
        return []
    shown, total = (sum(part[name] for part in parts) for name in ("shown", "total"))
    said = f"All {total:,} answers."
    if shown < total:
        said = f"{shown:,} of {total:,} answers are in this page; invalid and wrong ones come first."
    said += " predictions/ in the run's directory has them all."
    notes = [f"{part['run']}, {part['task']}, without texts: {part['note']}" for part in parts if part["note"]]
    choices = {name: list(dict.fromkeys(part[name] for part in parts)) for name in ("task", "run")}
    choices["verdict"] = list(dict.fromkeys(verdict for part in parts for verdict in part["verdicts"]))
    return [*(Part("note", text) for text in (said, *notes)), Part("examples", choices)]


def _speed(data: dict) -> list[Part]:
    """Medians of the logged time, throughput and memory."""
    names = list(dict.fromkeys(name for run in data["runs"] for name in run["speed"]))
    if not names:
        return []
    headings = {name: name.removeprefix("train/") for name in names}
    columns = [
        Column("Run"),
        Column("Updates", "number"),
        *(Column(HEADINGS.get(leaf, leaf.replace("_", " ")), "number", name) for name, leaf in headings.items()),
        Column("Machine"),
    ]
    rows = []
    for run in data["runs"]:
        medians = [_number(value, significant(value, 3)) for value in map(run["speed"].get, names)]
        machine = Cell(_machine(run["environment"]), style="wide")
        rows.append([_head(run["name"]), _count(run["last_step"]), *medians, machine])
    return [Part("table", Table("Speed and memory", columns, rows)), Part("note", data["method"]["Speed"])]


def _machine(environment: dict) -> str:
    """'2 cores, NVIDIA H200, Linux'."""
    hardware = environment["hardware"]
    cores = f"{hardware['cores']} cores" if hardware.get("cores") else ""
    return ", ".join(filter(None, (cores, *hardware.get("gpus", []), hardware.get("platform"))))


def _run_facts(run: dict) -> Part:
    """A run's command, machine, versions and settings."""
    environment, model = run["environment"], run["model"]
    facts = {
        "Setting": run["setting"],
        "Status": run["status"],
        "Model": ", ".join(filter(None, [model["name"], model["class"]])),
        "Adapter": json.dumps(model["adapter"]) if model["adapter"] else None,
        "Machine": _machine(environment),
        "Commit": environment["commit"].get("commit"),
        "Versions": ", ".join(f"{name} {version}" for name, version in environment["versions"].items()),
        "Started": environment["started"],
        "Finished": environment["finished"],
        "Directory": run["directory"],
        "Notes": "; ".join(run["notes"]),
    }
    settings = {name: value for name, value in run["settings"].items() if value not in (None, False, [], {}, "")}
    return Part(
        "run",
        {
            "command": environment["command"] or "(not recorded)",
            "facts": [(name, value) for name, value in facts.items() if value],
            "settings": json.dumps(settings, indent=1),
        },
        run["name"],
    )


HEADINGS = {
    "tokens_per_second": "Tokens/s", "seconds_per_step": "Seconds/update", "mfu": "MFU %",
    "data_wait": "Waiting for data %", "peak_memory_gb": "Peak memory, GB", "train_runtime": "Training, s",
    "train_samples_per_second": "Examples/s", "train_steps_per_second": "Updates/s",
}  # fmt: skip
