"""The sections of a report, in order; the page and Markdown render them alike.

>>> [section.title for section in sections_of(data, plots)][:3]
['Scores', 'Learning curves', 'Runs']
"""

import json

from t5suite.launch.sweep_tables import best_lines, parameters_text
from t5suite.reports.finished_runs import RATES
from t5suite.reports.formatting import (
    MEANINGS,
    NOTHING,
    average_title,
    explained,
    is_plain_number,
    names_of_benchmarks,
    significant,
    task_title,
)
from t5suite.reports.learning_curves import MOST_CURVES, curves_of_report
from t5suite.reports.page_parts import (
    Cell,
    Column,
    Part,
    Section,
    Table,
    count_cell,
    head_cell,
    interval_cell,
    number_cell,
    rounded,
)
from t5suite.reports.plots import Plot
from t5suite.reports.seeds import label_of_runs, unnamed_settings
from t5suite.reports.sweeps import sweep_titles
from t5suite.reports.units import AS_RETURNED, metric_unit, other_units
from t5suite.tasks.entry_metrics import undefined_notes

# More averages or scores than this are only in their tables.
MOST_IN_HEADLINE = 4
SPEED_HEADINGS = {
    "tokens_per_second": "Tokens/s", "seconds_per_step": "Seconds/update", "mfu": "MFU %",
    "data_wait": "Waiting for data %", "peak_memory_gb": "Peak memory, GB", "train_runtime": "Training, s",
    "train_samples_per_second": "Examples/s", "train_steps_per_second": "Updates/s",
}  # fmt: skip
# Verdicts that a title says in more words.
KINDS_OF_ANSWERS = {
    "different": "different from the reference",
    "numeric": "numbers, the farthest from the truth first",
}


def sections_of(data: dict, plots: list[Plot]) -> list[Section]:
    """Every section that has content."""
    sections = [
        Section("scores", "Scores", _scores(data) + _plots_of(plots, "scores")),
        Section("averages", "Suite averages", _averages(data)),
    ]
    sweeps = data["sweeps"]
    for number, (sweep, title) in enumerate(zip(sweeps, sweep_titles(sweeps), strict=True), 1):
        parts = _sweep(sweep) + _plots_of(plots, "sweeps", number)
        sections.append(Section(f"sweep-{number}", f"Sweep {title}", parts))
    sections += [
        Section("curves", "Learning curves", _notes_on_curves(data) + _plots_of(plots, "curves")),
        Section("runs", "Every run", _runs(data)),
        Section("settings", "Settings", _settings(data)),
        Section("parts", "Parts of tasks", _groups(data)),
        Section("confusions", "Confusion matrices", [_confusion(matrix) for matrix in data["confusions"]]),
        Section("labels", "Scores by label", [_scores_by_label(entry) for entry in data["label_scores"]]),
        Section("examples", "Examples", _examples(data)),
        Section("speed", "Speed and memory", _speed(data)),
        Section("commands", "Commands and environment", [_run_facts(run) for run in data["runs"]]),
        Section("method", "How these numbers were made", [Part("facts", list(data["method"].items()))]),
    ]
    return [section for section in sections if section.parts]


def _plots_of(plots: list[Plot], section: str, sweep: int = 0) -> list[Part]:
    """The plots of a section; in that of a sweep, those of the sweep of this number."""
    plots = [plot for plot in plots if plot.section == section and plot.sweep == sweep]
    if not plots:
        return []
    return [Part("plots", plots)]


def _notes_on_curves(data: dict) -> list[Part]:
    """How many of the learning curves are drawn, if not all are."""
    num_curves = len(curves_of_report(data["runs"]))
    if num_curves <= MOST_CURVES:
        return []
    note = f"{MOST_CURVES} of {num_curves} learning curves are drawn; metrics.jsonl in a run's directory has them all."
    return [Part("note", note)]


def summary_line(data: dict) -> str:
    """How much there is, in one line."""
    num_runs = len(data["runs"])
    num_finished = sum(run["status"] == "finished" for run in data["runs"])
    num_trials = sum(len(sweep["trials"]) for sweep in data["sweeps"])
    parts = []
    if num_trials:
        parts.append(_plural(num_trials, "trial"))
    if num_runs:
        runs = _plural(num_runs, "run")
        if num_finished < num_runs:
            runs += f", {num_finished} finished"
        parts.append(runs)
        parts.append(_plural(len(data["settings"]), "setting"))
    return f"{'; '.join(parts)}. Made by t5suite {data['version']}."


def _plural(count: int, word: str) -> str:
    if count == 1:
        return f"{count} {word}"
    return f"{count} {word}s"


def headline(data: dict) -> list[tuple[str, str]]:
    """What a reader looks for first: the averages (without one: the scores), the model, the day.

    >>> headline(data)
    [('average glue', '77.4'), ('model', 'google-t5/t5-small'), ('date', '2026-11-23')]
    """
    lines = _headline_figures(data)
    models = _model_names(data["runs"])
    if models:
        lines.append(("model", models))
    days = _days(data["runs"])
    if days:
        lines.append(("date", days))
    return lines


def _headline_figures(data: dict) -> list[tuple[str, str]]:
    """The averages (without one: the scores) with their settings; none if there are too many."""
    entries = [
        {**entry, "metric": "average", "title": average_title(entry["suite"])} for entry in _titled_averages(data)
    ]
    if not entries:
        entries = [{**entry, "title": f"{entry['task']} {entry['metric']}"} for entry in _titled_scores(data)]
    if len(entries) > MOST_IN_HEADLINE:
        return []
    figures = []
    for entry in entries:
        title = entry["title"]
        if entry["setting"]:
            title += f", {entry['setting']}"
        figures.append((title, rounded(entry["mean"], entry["metric"])))
    return figures


def _titled_averages(data: dict) -> list[dict]:
    """The averages; where one name stands for several lists of tasks, each has its list behind it.

    So `average of glue/cola,rte` stands beside `average of glue/mrpc,sst2`.
    """
    tasks_of_suite: dict[str, set[str]] = {}
    for entry in data["averages"]:
        tasks_of_suite.setdefault(entry["suite"], set()).add(entry["tasks"])
    entries = []
    for entry in data["averages"]:
        title = entry["suite"]
        if len(tasks_of_suite[title]) > 1:
            title += f" of {entry['tasks']}"
        entries.append({**entry, "suite": title})
    return entries


def _titled_scores(data: dict) -> list[dict]:
    """The scores without rates, each with its task's title and its rate of invalid answers."""
    invalid_rates = {}
    for entry in data["scores"]:
        if entry["metric"] in RATES:
            invalid_rates[_place_of_score(entry)] = entry["mean"]
    benchmarks = names_of_benchmarks(data["runs"])
    entries = []
    for entry in data["scores"]:
        if entry["metric"] in RATES:
            continue
        title = task_title(entry["benchmark"], entry["task"], benchmarks)
        invalid_rate = invalid_rates.get(_place_of_score(entry))
        entries.append({**entry, "task": title, "invalid": invalid_rate})
    return entries


def _model_names(runs: list[dict]) -> str:
    names = [str(run["model"]["name"]) for run in runs]
    return ", ".join(dict.fromkeys(names))


def _days(runs: list[dict]) -> str:
    """The day on which the runs ended, or the first and the last."""
    days = set()
    for run in runs:
        environment = run["environment"]
        time = environment["finished"] or environment["started"]
        if time:
            days.add(time[:10])
    if not days:
        return ""
    first = min(days)
    last = max(days)
    if first == last:
        return first
    return f"{first} to {last}"


def _published(entry: dict) -> Cell:
    """The published score, and the size of the T5 that it is of."""
    size = ""
    if entry["published"] is not None:
        size = f" {entry['size']}"
    return number_cell(entry["published"], small=size)


def _setting_cell(entry: dict) -> Cell:
    """A setting, and its runs where it is not called by them."""
    runs = label_of_runs(list(entry["values"]))
    if runs == entry["setting"]:
        return Cell(runs, style="wide")
    return Cell(entry["setting"], small=f" ({runs})", style="wide")


# (column, its cell of an entry, the entry's key; the column is omitted if all entries lack it)
SCORE_COLUMNS = (
    (Column("Task"), lambda e: head_cell(e["task"]), None),
    (Column("Metric"), lambda e: Cell(e["metric"]), None),
    (Column("Mean", "number", "mean over the runs (seeds)"),
     lambda e: number_cell(e["mean"], metric=e["metric"]), None),
    (Column("SD", "number", "sample standard deviation over the runs (n - 1)"),
     lambda e: number_cell(e["std"], metric=e["metric"]), "std"),
    (Column("95 % interval", "number", "over the runs' seeds or, of one run, over its rows"),
     lambda e: interval_cell(e["interval"], e["metric"], names_source=True), "interval"),
    (Column("Majority", "number", "what always answering the most frequent label, or set of labels, would score"),
     lambda e: number_cell(e["majority"], metric=e["metric"]), "majority"),
    (Column("Published", "number", "published T5, test set"), _published, "published"),
    (Column("Invalid %", "number", MEANINGS["invalid %"]), lambda e: number_cell(e["invalid"]), "invalid"),
    (Column("Runs", "number", "runs that the mean is over"), lambda e: count_cell(e["n"]), None),
    (Column("Rows", "number", "rows that each run was scored on"), lambda e: count_cell(e["rows"]), "rows"),
    (Column("Setting", "text", "what differs from the other runs' settings, and the runs"), _setting_cell, "setting"),
    (Column("Notes"), lambda e: _notes(e["marks"]), "marks"),
)  # fmt: skip


def _scores(data: dict) -> list[Part]:
    """Every setting, task and metric, and why means are missing."""
    entries = _titled_scores(data)
    caption = "In points"
    units = other_units(entry["metric"] for entry in entries)
    if units:
        caption += f" ({units})"
    undefined = [entry["metric"] for entry in entries if entry["mean"] is None]
    notes = [*undefined_notes(undefined), *_notes_on_own_metrics(entries)]
    return _score_table(caption, entries) + [Part("note", note) for note in notes]


def _notes_on_own_metrics(entries: list[dict]) -> list[str]:
    """Why values of metrics of the user's have no interval over rows, if there are such values."""
    names = [
        entry["metric"]
        for entry in entries
        if metric_unit(entry["metric"]) == AS_RETURNED and not entry["interval"] and entry["mean"] is not None
    ]
    if not names:
        return []
    return [
        f"{', '.join(dict.fromkeys(names))}: no interval over rows, as a report does not run the code of your metrics"
    ]


def _place_of_score(entry: dict) -> tuple[str, str, str]:
    return entry["setting"], entry["benchmark"], entry["task"]


def _averages(data: dict) -> list[Part]:
    """Every suite's average; empty if the headline says all that there is to say."""
    averages = _titled_averages(data)
    is_in_headline = len(averages) <= MOST_IN_HEADLINE
    is_mean_alone = all(entry["n"] == 1 and not entry["published"] for entry in averages)
    if is_in_headline and is_mean_alone:
        return []
    missing = {"metric": "average", "majority": None, "invalid": None, "rows": None, "marks": []}
    entries = [{**entry, "task": entry["suite"], **missing} for entry in averages]
    return _score_table("Means of tasks, in points", entries)


def _score_table(caption: str, entries: list[dict]) -> list[Part]:
    """A table of scores, and what its columns and notes mean; empty without entries."""
    if not entries:
        return []
    columns = []
    cell_makers = []
    for column, make_cell, key in SCORE_COLUMNS:
        if key is None or _any_has(entries, key):
            columns.append(column)
            cell_makers.append(make_cell)
    rows = []
    marks = []
    for entry in entries:
        rows.append([make_cell(entry) for make_cell in cell_makers])
        marks += entry["marks"]
    meanings = [(column.header, column.meaning) for column in columns if column.meaning]
    table = Part("table", Table(caption, columns, rows))
    return [table, Part("words", meanings, "What the columns mean"), *_note_words(marks)]


def _any_has(entries: list[dict], key: str) -> bool:
    """Whether an entry has a value for a key; 0 is one."""
    return any(entry[key] not in (None, "", []) for entry in entries)


def _notes(marks: list[str]) -> Cell:
    """Remarks on a score, explained on hover."""
    meanings = "; ".join(f"{mark}: {meaning}" for mark, meaning in explained([], marks))
    return Cell(", ".join(marks), note=meanings or None)


def _note_words(marks: list[str]) -> list[Part]:
    """The same explanations, readable without hovering."""
    words = explained([], marks)
    if not words:
        return []
    return [Part("words", words, "What the notes mean")]


def _sweep(sweep: dict) -> list[Part]:
    """A sweep's settings over their seeds, its trials (the best first), and a command."""
    groups = sweep["groups"]
    description = f"{sweep['method']}, {sweep['goal']} {sweep['metric']}, {len(sweep['trials'])} trials."
    notes = [description, *best_lines(groups, sweep["goal"], sweep["name"])]
    parts = [Part("note", note) for note in notes]
    if groups:
        parts.append(_sweep_settings(sweep))
    parts.append(_trials(sweep))
    if sweep["command"]:
        parts.append(Part("code", sweep["command"], f"Command of trial {sweep['best']}, the best single score"))
    return parts


def _sweep_settings(sweep: dict) -> Part:
    """Every setting of a sweep, with its mean over the seeds."""
    columns = [
        Column("Setting"),
        Column("Task"),
        Column("Mean", "number"),
        Column("SD", "number"),
        Column("Seeds", "number"),
    ]
    metric = sweep["metric"].rpartition("/")[2]
    rows = []
    for group in sweep["groups"]:
        setting = parameters_text(group["parameters"]) or "as given"
        row = [
            head_cell(setting),
            Cell(group["task"] or NOTHING),
            number_cell(group["mean"], metric=metric),
            number_cell(group["std"], metric=metric),
            count_cell(group["n"]),
        ]
        rows.append(row)
    return Part("table", Table(f"{sweep['metric']} over the seeds", columns, rows))


def _trials(sweep: dict) -> Part:
    """Every trial of a sweep; a star marks the best, unless settings over seeds decide."""
    varied = sweep["varied"]
    columns = [Column("Trial"), Column(sweep["metric"], "number")]
    columns += [_parameter_column(name, sweep["trials"]) for name in varied]
    columns += [Column("State"), Column("Step", "number"), Column("Seconds", "number")]
    rows = []
    for trial in sweep["trials"]:
        is_best = not sweep["groups"] and trial["number"] == sweep["best"]
        rows.append(_trial_row(trial, varied, is_best))
    return Part("table", Table("Trials, the best first", columns, rows))


def _trial_row(trial: dict, varied: list[str], is_best: bool) -> list[Cell]:
    number = trial["number"]
    title = str(number)
    if is_best:
        title += " ★"
    parameter_cells = [_parameter_cell(trial["parameters"].get(name)) for name in varied]
    return [
        Cell(title, number, "head"),
        number_cell(trial["value"], significant(trial["value"])),
        *parameter_cells,
        Cell(trial["state"], note=trial["why"]),
        count_cell(trial["last_step"]),
        number_cell(trial["seconds"], significant(trial["seconds"], 3)),
    ]


def _parameter_column(name: str, trials: list[dict]) -> Column:
    are_numbers = all(is_plain_number(trial["parameters"].get(name)) for trial in trials)
    if are_numbers:
        return Column(name, "number")
    return Column(name)


def _parameter_cell(value) -> Cell:
    """A trial's parameter."""
    if value is None:
        text = NOTHING
    elif isinstance(value, float):
        text = significant(value)
    else:
        text = str(value)
    if is_plain_number(value):
        return number_cell(value, text)
    return Cell(text, value)


def _runs(data: dict) -> list[Part]:
    """Every run's scores, each with its interval over rows; empty if every score is of a single run."""
    all_have_results = all(run["results"] for run in data["runs"])
    are_scores_of_single_runs = all(entry["n"] == 1 for entry in data["scores"])
    if all_have_results and are_scores_of_single_runs:
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
    rows = []
    all_marks = []
    for run in data["runs"]:
        for task, scores in run["results"].items():
            all_marks += run["marks"].get(task, [])
            rows += _rows_of_task(run, task, scores)
        if not run["results"]:
            rows.append(_row_without_results(run))
    return [Part("table", Table("Every run", columns, rows)), *_note_words(all_marks)]


def _rows_of_task(run: dict, task: str, scores: dict) -> list[list[Cell]]:
    """A run's scores on a task, a row each; a rate has a row only where it is all that there is."""
    intervals = run["intervals"].get(task, {})
    rows = []
    for metric, score in scores.items():
        if metric in RATES and len(scores) > 1:
            continue
        row = [
            head_cell(run["name"]),
            Cell(task),
            Cell(metric),
            number_cell(score, metric=metric),
            interval_cell(intervals.get(metric), metric),
            number_cell(scores.get(RATES[0])),
            number_cell(run["seed"], str(run["seed"])),
            _notes(run["marks"].get(task, [])),
        ]
        rows.append(row)
    return rows


def _row_without_results(run: dict) -> list[Cell]:
    """The row of a run that has no score, with its status."""
    nothing = number_cell(None)
    return [
        head_cell(run["name"]),
        Cell(run["dataset_name"] or NOTHING),
        Cell(NOTHING),
        nothing,
        nothing,
        nothing,
        number_cell(run["seed"], str(run["seed"])),
        Cell(f"{run['status']}, no results", style="wide"),
    ]


def _settings(data: dict) -> list[Part]:
    """The settings whose names say only how many more differ, with these."""
    unnamed = unnamed_settings(data["settings"])
    if not unnamed:
        return []
    rows = [[head_cell(label), Cell(text, style="wide")] for label, text in unnamed]
    return [Part("table", Table("What the names of settings leave out", [Column("Setting"), Column("And")], rows))]


def _groups(data: dict) -> list[Part]:
    """Scores of parts of a task (`report_by`), if a run has them."""
    tables = []
    for run in data["runs"]:
        for task, groups_by_column in run["groups"].items():
            for column, groups in groups_by_column.items():
                tables.append(_table_of_groups(f"{task} by {column}, {run['name']}", column, groups))
    return tables


def _table_of_groups(caption: str, column: str, groups: dict[str, dict]) -> Part:
    """Each group's rows and metrics; all groups have those of the first."""
    first_scores = next(iter(groups.values()), {})
    metrics = [name for name in first_scores if name != "n"]
    columns = [Column(column), Column("Rows", "number")]
    columns += [Column(metric, "number") for metric in metrics]
    rows = []
    for name, scores in groups.items():
        cells = [number_cell(scores[metric], metric=metric) for metric in metrics]
        rows.append([head_cell(name), count_cell(scores["n"]), *cells])
    return Part("table", Table(caption, columns, rows))


def _confusion(matrix: dict) -> Part:
    """Labels down, answers across."""
    answers = matrix["answers"]
    rows = [_confusion_row(label, answers, counts) for label, counts in zip(matrix["labels"], matrix["counts"])]
    columns = [Column("label ↓ answer →")]
    columns += [Column(answer, "number") for answer in answers]
    caption = ", ".join(dict.fromkeys((matrix["task"], matrix["run"])))
    return Part("table", Table(caption, columns, rows, "confusion"))


def _confusion_row(label: str, answers: list[str], counts: list[int]) -> list[Cell]:
    """How often each answer was given to a label; its shade is its share, in ten steps, the right answer is marked."""
    num_rows = sum(counts)
    cells = [head_cell(label)]
    for answer, count in zip(answers, counts):
        share = 0.0
        if num_rows:
            share = count / num_rows
        note = f"{count} of {num_rows} rows labelled {label} were answered {answer}"
        style = f"shade{round(share * 10)}"
        if answer == label:
            style += " hit"
        cells.append(Cell(str(count), count, "number", f" {100 * share:.0f} %", note, style))
    return cells


def _scores_by_label(entry: dict) -> Part:
    """A label a row: how many words, spans or rows have it, and its scores."""
    columns = [Column("Label"), Column(entry["of"].capitalize(), "number")]
    columns += [Column(name, "number") for name in ("Precision", "Recall", "F1")]
    rows = []
    for scores in entry["labels"]:
        cells = [number_cell(scores[name]) for name in ("precision", "recall", "f1")]
        rows.append([head_cell(scores["label"]), count_cell(scores["count"]), *cells])
    caption = f"{entry['task']} by label, {entry['run']}"
    if entry["other_answers"]:
        caption += f" (other answers, which are no label: {entry['other_answers']:,})"
    return Part("table", Table(caption, columns, rows))


def _examples(data: dict) -> list[Part]:
    """Every run's answers to every task, by verdict; the first group is open."""
    evaluations = data["examples"]
    if not evaluations:
        return []
    parts = [Part("note", note) for note in _notes_on_examples(evaluations)]
    groups = []
    for evaluation in evaluations:
        groups += _examples_by_verdict(evaluation)
    for number, (title, examples) in enumerate(groups):
        parts.append(Part("examples", {"examples": examples, "is_open": number == 0}, title))
    return parts


def _notes_on_examples(evaluations: list[dict]) -> list[str]:
    """How many answers the page has, and why some have no texts."""
    num_shown = sum(evaluation["shown"] for evaluation in evaluations)
    num_answers = sum(evaluation["total"] for evaluation in evaluations)
    count = f"All {num_answers:,} answers."
    if num_shown < num_answers:
        count = (
            f"{num_shown:,} of {num_answers:,} answers are in this page; invalid, wrong and different ones come "
            "first, and of numbers those that are farthest from the truth."
        )
    notes = [f"{count} predictions/ in the run's directory has them all."]
    for evaluation in evaluations:
        if evaluation["note"]:
            notes.append(f"{evaluation['run']}, {evaluation['task']}, without texts: {evaluation['note']}")
    return notes


def _examples_by_verdict(evaluation: dict) -> list[tuple[str, list[dict]]]:
    """`(title, examples)` of each verdict on the answers of one run to one task."""
    place = " · ".join(dict.fromkeys((evaluation["task"], evaluation["run"])))
    groups = []
    for verdict, count in evaluation["verdicts"].items():
        examples = [example for example in evaluation["examples"] if example["verdict"] == verdict]
        if not examples:
            continue
        number = f"{count:,}"
        if len(examples) < count:
            number = f"{len(examples):,} of {count:,}"
        groups.append((f"{place}: {number} {KINDS_OF_ANSWERS.get(verdict, verdict)}", examples))
    return groups


def _speed(data: dict) -> list[Part]:
    """Medians of the logged time, throughput and memory."""
    runs = data["runs"]
    names = _names_of_speeds(runs)
    if not names:
        return []
    columns = [Column("Run"), Column("Updates", "number")]
    columns += [_speed_column(name) for name in names]
    columns.append(Column("Machine"))
    rows = []
    for run in runs:
        medians = [run["speed"].get(name) for name in names]
        cells = [number_cell(median, significant(median, 3)) for median in medians]
        machine = Cell(_machine(run["environment"]), style="wide")
        rows.append([head_cell(run["name"]), count_cell(run["last_step"]), *cells, machine])
    return [Part("table", Table("Speed and memory", columns, rows)), Part("note", data["method"]["Speed"])]


def _names_of_speeds(runs: list[dict]) -> list[str]:
    """What any of the runs has a median of."""
    names = []
    for run in runs:
        names += run["speed"]
    return list(dict.fromkeys(names))


def _speed_column(name: str) -> Column:
    short_name = name.removeprefix("train/")
    heading = SPEED_HEADINGS.get(short_name, short_name.replace("_", " "))
    return Column(heading, "number", name)


def _machine(environment: dict) -> str:
    """'2 cores, NVIDIA H200, Linux'."""
    hardware = environment["hardware"]
    parts = []
    if hardware.get("cores"):
        parts.append(f"{hardware['cores']} cores")
    parts += hardware.get("gpus", [])
    parts.append(hardware.get("platform"))
    return ", ".join(filter(None, parts))


def _run_facts(run: dict) -> Part:
    """A run's command, machine, versions and settings."""
    environment = run["environment"]
    model = run["model"]
    model_names = filter(None, [model["name"], model["class"]])
    adapter = None
    if model["adapter"]:
        adapter = json.dumps(model["adapter"])
    versions = [f"{name} {version}" for name, version in environment["versions"].items()]
    facts = {
        "Setting": run["setting"],
        "Status": run["status"],
        "Model": ", ".join(model_names),
        "Adapter": adapter,
        "Machine": _machine(environment),
        "Commit": environment["commit"].get("commit"),
        "Versions": ", ".join(versions),
        "Started": environment["started"],
        "Finished": environment["finished"],
        "Directory": run["directory"],
        "Notes": "; ".join(run["notes"]),
    }
    content = {
        "command": environment["command"] or "(not recorded)",
        "facts": [(name, value) for name, value in facts.items() if value],
        "settings": json.dumps(run["settings"], indent=1),
    }
    return Part("run", content, run["name"])
