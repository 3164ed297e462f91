"""The results as sections of tables, notes and plots, which the page and Markdown render alike.

>>> sections = sections_of(data, plots)
>>> [section.title for section in sections][:3]
['Scores', 'Learning curves', 'Runs']
>>> sections[0].parts[1].content.rows[0][2]
Cell(text='53.33', value=53.333333333333336, kind='number', small='', note=None, style='')
"""

import json
from typing import NamedTuple

from t5suite.reports.plots import Plot
from t5suite.reports.tables import MEANINGS, NOTHING, RATES, explained, interval, points, short_number, significant


class Cell(NamedTuple):
    """A table's cell.

    Attributes:
      value: what stands behind a rounded number: the page shows all of its digits, and sorts by it.
      kind: `text`, `number`, or `head` for what names the row.
      small: what stands behind the text in small letters.
      note: an explanation, or the whole of a text that is shortened.
      style: a class of the page's style.
    """

    text: str
    value: object = None
    kind: str = "text"
    small: str = ""
    note: str | None = None
    style: str = ""


class Column(NamedTuple):
    """A table's column: its header, whether it holds `text` or `number`, and what it means."""

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
    """Every section that there is something for, in order."""
    drawn = lambda name, title="": [plot for plot in plots if plot.section == name and plot.title.startswith(title)]
    sections = [
        Section("scores", "Scores", _scores(data, drawn("scores"))),
        Section("averages", "Suite averages", [_averages(data)] if data["averages"] else []),
        *(
            Section(f"sweep-{at + 1}", f"Sweep {sweep['name']}", _sweep(sweep, drawn("sweeps", f"{sweep['name']}: ")))
            for at, sweep in enumerate(data["sweeps"])
        ),
        Section("curves", "Learning curves", _curves(data, drawn("curves"))),
        Section("runs", "Runs", _runs(data)),
        Section("parts", "Parts of tasks", _groups(data)),
        Section("confusions", "Confusion matrices", [*map(_confusion, data["confusions"])]),
        Section("examples", "Examples", _examples(data)),
        Section("speed", "Speed and memory", _speed(data)),
        Section("commands", "Commands and environment", [_run_facts(run) for run in data["runs"]]),
        Section("method", "How these numbers were made", [Part("facts", _method(data))]),
    ]
    return [section for section in sections if section.parts]


def summary(data: dict) -> str:
    """How much there is, in one line."""
    plural = lambda count, word: f"{count} {word}{'s' * (count != 1)}"
    finished, runs = sum(run["status"] == "finished" for run in data["runs"]), len(data["runs"])
    trials = sum(len(sweep["trials"]) for sweep in data["sweeps"])
    parts = [plural(trials, "trial")] if trials else []
    if runs:
        parts.append(plural(runs, "run") + (f", {finished} finished" if finished < runs else ""))
        parts.append(plural(len(data["settings"]), "setting"))
    return f"{'; '.join(parts)}. Made by t5suite {data['version']}."


def head(text) -> Cell:
    """What names a row."""
    return Cell(str(text), kind="head")


def number(value, shown: str | None = None, small: str = "") -> Cell:
    """A number, by default with two decimals."""
    known = value is not None and value == value
    return Cell(points(value) if shown is None else shown, value if known else None, "number", small)


def span(found: dict | None, over: bool = False) -> Cell:
    """An interval, with what it is over; sorted by its lower end."""
    if not found:
        return Cell(NOTHING, kind="number")
    whole = f"{found['low']!r} to {found['high']!r}"
    return Cell(interval(found), found["low"], "number", f" {found['over']}" if over else "", whole)


def published(entry: dict) -> Cell:
    """A published score with the size of its model."""
    return number(entry["published"], small=f" {entry['size']}" if entry["published"] is not None else "")


def _scores(data: dict, plots: list[Plot]) -> list[Part]:
    """Every setting, task and metric; the rate of invalid answers stands beside its task's scores."""
    if not data["scores"]:
        return []
    place = lambda entry: (entry["setting"], entry["benchmark"], entry["task"])
    invalid = {place(entry): entry["mean"] for entry in data["scores"] if entry["metric"] in RATES}
    entries = [{**e, "invalid": invalid.get(place(e))} for e in data["scores"] if e["metric"] not in RATES]
    columns = [
        (column, cell)
        for column, cell, name in SCORE_COLUMNS
        if not name or any(e[name] not in (None, "") for e in entries)
    ]
    rows = [[cell(entry) for _, cell in columns] for entry in entries]
    meanings = [(column.header, column.meaning) for column, _ in columns if column.meaning]
    table = Table("Scores by task, in points (nll: nats per token)", [column for column, _ in columns], rows)
    parts = [Part("note", "Points, 0 to 100 (nll: nats per token)."), Part("table", table)]
    return [*parts, Part("words", meanings, "What the columns mean"), *_plots(plots)]


def _count(value) -> Cell:
    return number(value, NOTHING if value is None else f"{value:,}")


# (column, its cell of an entry, the entry's name without which in all rows it is left out)
SCORE_COLUMNS = (
    (Column("Task"), lambda e: head(e["task"]), None),
    (Column("Metric"), lambda e: Cell(e["metric"]), None),
    (Column("Mean", "number", "mean over the runs (seeds)"), lambda e: number(e["mean"]), None),
    (Column("SD", "number", "sample standard deviation over the runs (n - 1)"), lambda e: number(e["std"]), "std"),
    (Column("95 % interval", "number", "by bootstrap, over the runs' seeds or, of one run, over its rows"),
     lambda e: span(e["interval"], over=True), "interval"),
    (Column("Majority", "number", "what always answering the most frequent label would score"),
     lambda e: number(e["majority"]), "majority"),
    (Column("Published", "number", "published T5, test set"), published, "published"),
    (Column("Invalid %", "number", MEANINGS["invalid %"]), lambda e: number(e["invalid"]), "invalid"),
    (Column("Runs", "number", "runs that the mean is over"), lambda e: _count(e["n"]), None),
    (Column("Rows", "number", "rows that each run was scored on"), lambda e: _count(e["rows"]), "rows"),
    (Column("Setting", "text", "what these runs have set otherwise than others"),
     lambda e: Cell(e["setting"], style="wide"), "setting"),
)  # fmt: skip


def _averages(data: dict) -> Part:
    columns = [Column("Suite"), Column("Setting"), Column("Mean", "number"), Column("SD", "number"),
               Column("95 % interval", "number"), Column("Published", "number", "published T5, test set"),
               Column("Runs", "number")]  # fmt: skip
    rows = [
        [head(e["suite"]), Cell(e["setting"] or NOTHING), number(e["mean"]), number(e["std"]),
         span(e["interval"], over=True), published(e), _count(e["n"])]
        for e in data["averages"]
    ]  # fmt: skip
    return Part("table", Table("Suite averages, in points", columns, rows))


def _sweep(sweep: dict, plots: list[Plot]) -> list[Part]:
    """A sweep's trials, the best first, what its parameters matter, its plots, its best command."""
    values = {name: [trial["parameters"].get(name) for trial in sweep["trials"]] for name in sweep["varied"]}
    numeric = {name: all(isinstance(v, (int, float)) for v in of if v is not None) for name, of in values.items()}
    columns = [Column("Trial", "number"), Column(sweep["metric"], "number")]
    columns += [Column(name, "number" if numeric[name] else "text") for name in sweep["varied"]]
    columns += [Column("State"), Column("Step", "number"), Column("Seconds", "number")]
    rows = [
        [
            Cell(f"{trial['number']}{' ★' if trial['number'] == sweep['best'] else ''}", trial["number"], "head"),
            number(trial["value"], significant(trial["value"])),
            *(_parameter(trial["parameters"].get(name)) for name in sweep["varied"]),
            Cell(trial["state"], note=trial["why"] or None),
            _count(trial["last_step"]),
            number(trial["seconds"], significant(trial["seconds"], 3)),
        ]
        for trial in sweep["trials"]
    ]
    said = f"{sweep['method']}, {sweep['goal']} {sweep['metric']}, {len(sweep['trials'])} trials."
    parts = [Part("note", said), Part("table", Table(f"Trials of {sweep['name']}, the best first", columns, rows))]
    parts += [Part("note", note) for note in sweep["notes"]]
    if sweep["importances"]:
        shares = [
            [head(name), number(100 * share, f"{100 * share:.0f} %")] for name, share in sweep["importances"].items()
        ]
        columns = [Column("Parameter"), Column("Share of the variance", "number", "by fANOVA")]
        parts.append(Part("table", Table(f"Importance of the parameters of {sweep['name']}", columns, shares)))
    if sweep["command"]:
        parts.append(Part("code", sweep["command"], f"The best trial's command (trial {sweep['best']})"))
    return [*parts, *_plots(plots)]


def _parameter(value) -> Cell:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return number(value, significant(value) if isinstance(value, float) else str(value))
    return Cell(NOTHING if value is None else str(value))


def _plots(plots: list[Plot]) -> list[Part]:
    return [Part("plots", plots)] if plots else []


def _curves(data: dict, plots: list[Plot]) -> list[Part]:
    if not plots:
        return []
    seeds = any(len(setting["runs"]) > 1 for setting in data["settings"])
    said = "Thin lines are runs, thick ones the mean of a setting's finished runs." if seeds else "Each line is a run."
    return [Part("note", f"{said} Every point is a line of metrics.jsonl."), *_plots(plots)]


def _runs(data: dict) -> list[Part]:
    """Every run's scores, each with its interval over rows."""
    if not data["runs"]:
        return []
    shares = any(rate in scores for run in data["runs"] for scores in run["results"].values() for rate in RATES)
    columns = [Column("Run"), Column("Task"), Column("Metric"), Column("Score", "number"),
               Column("95 % interval over rows", "number"),
               *([Column("Invalid %", "number", MEANINGS["invalid %"])] * shares),
               Column("Seed", "number"), Column("Notes")]  # fmt: skip
    rows = []
    for run in data["runs"]:
        for task, scores in run["results"].items():
            for metric in (name for name in scores if name not in RATES or len(scores) == 1):
                marks = run["marks"].get(task, [])
                meanings = "; ".join(f"{mark}: {meaning}" for mark, meaning in explained([], marks))
                rows.append([
                    head(run["name"]), Cell(task), Cell(metric), number(scores[metric]),
                    span(run["intervals"].get(task, {}).get(metric)), *([number(scores.get(RATES[0]))] * shares),
                    number(run["seed"], str(run["seed"])), Cell(", ".join(marks), note=meanings or None, style="wide"),
                ])  # fmt: skip
        if not run["results"]:
            rows.append([
                head(run["name"]), Cell(run["dataset_name"] or NOTHING), Cell(NOTHING),
                *([number(None)] * (2 + shares)), number(run["seed"], str(run["seed"])),
                Cell(f"{run['status']}, no results", style="wide"),
            ])  # fmt: skip
    marks = [mark for run in data["runs"] for of_task in run["marks"].values() for mark in of_task]
    words = [Part("words", explained([], marks), "What the notes mean")] if explained([], marks) else []
    return [Part("table", Table("Every run", columns, rows)), *words]


def _groups(data: dict) -> list[Part]:
    """Scores of parts of a task (`report_by`), where a run has them."""
    found = []
    for run in data["runs"]:
        for task, by_column in run["groups"].items():
            for column, parts in by_column.items():
                metrics = [name for name in next(iter(parts.values()), {}) if name != "n"]
                rows = [[head(part), _count(of["n"]), *(number(of[m]) for m in metrics)] for part, of in parts.items()]
                columns = [Column(column), Column("Rows", "number"), *(Column(m, "number") for m in metrics)]
                found.append(Part("table", Table(f"{task} by {column}, {run['name']}", columns, rows)))
    return found


def _confusion(matrix: dict) -> Part:
    """Labels down, answers across; a cell's shade is its share of its row, in ten steps, right answers are marked."""
    rows = []
    for label, counts in zip(matrix["labels"], matrix["counts"]):
        cells, whole = [head(label)], sum(counts)
        for answer, count in zip(matrix["answers"], counts):
            share = count / whole if whole else 0.0
            note = f"{count} of {whole} rows labelled {label} were answered {answer}"
            style = f"shade{round(share * 10)}" + (" hit" if answer == label else "")
            cells.append(Cell(str(count), count, "number", f" {100 * share:.0f} %", note, style))
        rows.append(cells)
    columns = [Column("label ↓ answer →"), *(Column(answer, "number") for answer in matrix["answers"])]
    return Part("table", Table(f"{matrix['task']}, {matrix['run']}", columns, rows, "confusion"))


def _examples(data: dict) -> list[Part]:
    """What the page filters."""
    parts = data["examples"]
    if not parts:
        return []
    shown, total = (sum(part[name] for part in parts) for name in ("shown", "total"))
    said = f"All {total:,} answers."
    if shown < total:
        said = f"{shown:,} of {total:,} answers are in this page; invalid and wrong ones come first."
    notes = [f"{part['run']}, {part['task']}, without texts: {part['note']}" for part in parts if part["note"]]
    choices = {
        "task": list(dict.fromkeys(part["task"] for part in parts)),
        "run": list(dict.fromkeys(part["run"] for part in parts)),
        "verdict": list(dict.fromkeys(verdict for part in parts for verdict in part["verdicts"])),
    }
    said += " predictions/ in the run's directory has them all."
    return [*(Part("note", text) for text in (said, *notes)), Part("examples", choices)]


def _speed(data: dict) -> list[Part]:
    """Medians of what was logged of time, throughput and memory; nothing where nothing was."""
    names = list(dict.fromkeys(name for run in data["runs"] for name in run["speed"]))
    if not names:
        return []
    columns = [Column("Run"), Column("Model"), Column("Parameters", "number"), Column("Updates", "number"),
               *(Column(heading_of(name), "number", name) for name in names), Column("Machine")]  # fmt: skip
    rows = []
    for run in data["runs"]:
        medians = [(run["speed"].get(name) or {}).get("median") for name in names]
        size, machine = run["model"]["parameters"], run["environment"]["hardware"]
        short = {**machine, "platform": str(machine.get("platform") or "").split("-")[0]}
        shown, whole = (hardware_of({"hardware": known, "commit": {}}) for known in (short, machine))
        rows.append([
            head(run["name"]), Cell(run["model"]["name"], style="wide"), number(size, short_number(size)),
            _count(run["last_step"]), *(number(value, significant(value)) for value in medians),
            Cell(shown, note=whole, style="wide"),
        ])  # fmt: skip
    return [Part("table", Table("Speed and memory", columns, rows)), Part("note", data["method"]["speed"])]


def heading_of(name: str) -> str:
    """A logged name as a column's header.

    >>> heading_of("train/tokens_per_second"), heading_of("train/mfu")
    ('Tokens/s', 'MFU %')
    """
    leaf = name.removeprefix("train/")
    return HEADINGS.get(leaf, leaf.replace("_", " "))


def hardware_of(environment: dict) -> str:
    """The machine in one line.

    >>> hardware_of({"hardware": {"platform": "Linux", "cores": 2, "gpus": ["NVIDIA H200"]}, "commit": {}})
    '2 cores, NVIDIA H200, Linux'
    """
    hardware, commit = environment["hardware"], environment["commit"].get("commit")
    cores = f"{hardware['cores']} cores" if hardware.get("cores") else ""
    gpus = ", ".join(gpu if isinstance(gpu, str) else str(gpu.get("name", gpu)) for gpu in hardware.get("gpus") or [])
    parts = [cores, gpus, hardware.get("platform"), f"commit {commit[:12]}" if commit else ""]
    return ", ".join(part for part in parts if part)


def _run_facts(run: dict) -> Part:
    """A run's command, machine, versions and settings."""
    environment, model = run["environment"], run["model"]
    facts = {
        "Setting": run["setting"],
        "Status": run["status"],
        "Model": ", ".join(filter(None, [model["name"], model["class"]])),
        "Adapter": json.dumps(model["adapter"]) if model["adapter"] else None,
        "Machine": hardware_of(environment),
        "Versions": ", ".join(f"{name} {version}" for name, version in environment["versions"].items()),
        "Started": environment["started"],
        "Finished": environment["finished"],
        "Directory": run["directory"],
        "Notes": "; ".join(run["notes"]),
    }
    settings = {name: value for name, value in run["settings"].items() if value not in (None, False, [], {}, "")}
    content = {
        "command": environment["command"] or "(not recorded)",
        "facts": [(name, value) for name, value in facts.items() if value],
        "settings": json.dumps(settings, indent=1),
    }
    return Part("run", content, run["name"])


def _method(data: dict) -> list[tuple[str, str]]:
    names = {"interval": "Intervals", "std": "Standard deviation", "majority": "Majority baseline",
             "published": "Published scores", "speed": "Speed"}  # fmt: skip
    return [(names.get(name, name), text) for name, text in data["method"].items()]


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
