"""Tables on the terminal and in Markdown, and how numbers and remarks are written everywhere.

>>> print_run_table(read_runs(["runs/mini-sentiment", "runs/mini-entailment"]))

The tables of runs read `results.json` and `manifest.json` alone, so they need neither the models nor torch.
"""

import logging
import math
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from rich import box
from rich.table import Table

from t5suite.base.errors import DataError
from t5suite.base.terminal import Terminal
from t5suite.constants import DATASET_VALS, MIXTURES
from t5suite.data.rows.jsonl import file_sha256
from t5suite.runs.directory import MANIFEST, RESULTS, read_manifest, read_results, tasks_named
from t5suite.tasks.entries import task_figure

logger = logging.getLogger(__name__)
NOTHING = "–"
# One of them holds the weights of a finished run's model.
WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors")
# Metrics that have their own column.
RATES = ("invalid_rate",)
# Printed instead of an empty table.
NO_SCORES = "no scores: nothing with labels was evaluated; with --eval_only a model is scored by itself"
# More parts of a task than this are only in results.json.
MOST_SHOWN = 40
# Longer metrics may be broken into lines.
LONG_METRICS = 40
MEANINGS = {
    "invalid %": "answers that are not a label of the task, and count as wrong",
    "cut off %": "answers that reach the greatest length without an end",
    "train s": "seconds of training",
    "scored labels": "the likeliest label is the answer",
    "chosen on these rows": "the checkpoint is the one that scored best on them",
    "nothing selected": "no evaluation during training gave a number: these are the last weights",
    "subset": "not all rows were scored",
    "different rows": "the runs were scored on different rows (each seed draws its own): the mean is over rows, too",
    "train subset": "not all training rows were used",
    "step N": "with the weights of that update, the task's best",
}


def points(value, unknown: str = NOTHING, digits: int = 2) -> str:
    """Two decimals; `unknown` for NaN and None."""
    return unknown if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def is_number(value) -> bool:
    """Whether a value is a finite number (True is not)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def significant(value, digits: int = 4) -> str:
    """A number of any size.

    >>> significant(0.00031234), significant(117028.6)
    ('0.0003123', '117,000')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    rounded = f"{value:.{digits}g}"
    return f"{float(rounded):,.0f}" if abs(value) >= 1000 else rounded


def shortened(text, most: int) -> str:
    """The beginning of a long text.

    >>> shortened("It rains.", 6)
    'It ra…'
    """
    text = str(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def average_title(name: str) -> str:
    """An average's name; for tasks of no published suite it is just 'average'.

    >>> average_title("glue"), average_title("average")
    ('average glue', 'average')
    """
    return "average" if name == "average" else f"average {name}"


def explained(columns: Iterable[str], remarks: Iterable[str]) -> list[tuple[str, str]]:
    """`(word, its meaning)` of the columns and remarks that MEANINGS has, each once."""
    words = [*columns, *("step N" if remark.startswith("step ") else remark for remark in remarks)]
    return [(word, MEANINGS[word]) for word in dict.fromkeys(words) if word in MEANINGS]


def named(directories) -> dict[str, str]:
    """`{directory: a name for it}`: its last part, and as many before it as distinguish it from the others.

    >>> named(["runs/a/s1", "runs/b/s1", "runs/c"])
    {'runs/a/s1': 'a/s1', 'runs/b/s1': 'b/s1', 'runs/c': 'c'}
    """
    parts = {str(directory): Path(directory).resolve().parts for directory in directories}
    names = {}
    for directory, own in parts.items():
        others = [other for other in parts.values() if other != own]
        depth = next(d for d in range(1, len(own) + 1) if d == len(own) or all(o[-d:] != own[-d:] for o in others))
        names[directory] = "/".join(own[-depth:])
    return names


def new_table(title: str | None, columns: Iterable[str], right: Collection[str] = ()) -> Table:
    """A table for the terminal, the columns of `right` aligned to the right."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    return table


def rows_of_runs(directories) -> list[dict]:
    """One row per finished run and task: benchmark, task, rows, metrics, invalid_rate, seconds of training, notes, run.

    Raises:
      DataError: a directory holds no finished run.
    """
    rows = []
    for directory in map(Path, directories):
        missing = [name for name in (MANIFEST, RESULTS) if not (directory / name).is_file()]
        if missing:
            raise DataError(f"{directory}: no finished run ({', '.join(missing)} missing)")
        manifest = read_manifest(directory)
        for task, scores in read_results(directory)["tasks"].items():
            rows.append(
                {
                    "benchmark": tasks_named(manifest)[0] or "-",
                    "task": task,
                    "n": rows_scored(manifest, task),
                    "metrics": {name: value for name, value in scores.items() if name not in RATES},
                    "invalid_rate": scores.get("invalid_rate"),
                    "train_seconds": manifest.get("training", {}).get("train_runtime"),
                    "notes": manifest.get("marks", {}).get(task, []),
                    "run": str(directory),
                }
            )
    return rows


def rows_scored(manifest: dict, result: str) -> int | None:
    """The number of rows that a result (`mnli_matched`, `rte.test`) was scored on, where the manifest has it."""
    found = {}
    for name, part in (manifest.get("data") or {}).items():
        task, _, split = name.rpartition(".")
        for role in ("validation", "test"):
            if split.startswith(role) and task + split.removeprefix(role) == result.removesuffix(".test"):
                found[role] = part.get("used")
    return found.get("test") if result.endswith(".test") else found.get("validation", found.get("test"))


def suite_averages(rows: Iterable[dict]) -> dict[str, float]:
    """Each benchmark's published average if the rows cover all of its tasks; MNLI's halves are averaged first.

    Args:
      rows: `{"benchmark", "task", "metrics"}`.
    """
    means: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["metrics"]:
            figure = task_figure(row["metrics"], DATASET_VALS.get(row["benchmark"], {}).get(row["task"]))
            means.setdefault(row["benchmark"], {})[row["task"]] = math.nan if figure is None else figure
    averages = {}
    for benchmark, found in means.items():
        values = []
        for task in MIXTURES.get(benchmark, {}).get("all", {}).get("average", []):
            halves = [found[name] for name in (f"{task}_matched", f"{task}_mismatched") if name in found]
            values.append(sum(halves) / 2 if len(halves) == 2 else found.get(task))
        if values and None not in values:
            averages[benchmark] = sum(values) / len(values)
    return averages


def print_run_table(rows: list[dict]) -> None:
    """Rows as `rows_of_runs` has them, and their averages, as a table on standard output."""
    console = Terminal(width=None if Terminal().is_terminal else 118)
    columns = ("task", "n", "metrics", "invalid %", "train s", "notes", "run")
    table = new_table(None, columns, right=("n", "invalid %", "train s"))
    long = any(len(_scores(row["metrics"])) > LONG_METRICS for row in rows)
    for column in table.columns:
        # Scores are hard to read if they are wrapped: notes are wrapped first.
        column.overflow, column.no_wrap = "fold", column.header == "metrics" and not long
    for row in rows:
        invalid = "-" if row["invalid_rate"] is None else points(row["invalid_rate"])
        seconds = f"{row['train_seconds']:.0f}" if row["train_seconds"] else "-"
        table.add_row(
            f"{row['benchmark']}/{row['task']}",
            str(row["n"] or "-"),
            _scores(row["metrics"]),
            invalid,
            seconds,
            ", ".join(row["notes"]),
            row["run"],
        )
    console.print(table)
    columns = ["invalid %"] if any(row["invalid_rate"] for row in rows) else []
    _print_meanings(console, [*columns, "train s"], [note for row in rows for note in row["notes"]])
    _print_averages(console, suite_averages(rows))


def _scores(metrics: dict) -> str:
    return "  ".join(f"{name} {points(value, 'nan')}" for name, value in metrics.items())


def _print_meanings(console: Terminal, columns: Iterable[str], remarks: Iterable[str]) -> None:
    said = "; ".join(f"{word}: {meaning}" for word, meaning in explained(columns, remarks))
    if said:
        console.print(said, style="dim", highlight=False)


def _print_averages(console: Terminal, averages: dict[str, float]) -> None:
    for name, value in averages.items():
        console.print(f"{average_title(name)}: {points(value, 'nan')}", highlight=False)


def print_checkpoint_table(scores: dict[int, dict[str, float]], title: str) -> None:
    """Steps by tasks; each task's best step is marked with a star (the earliest of equals)."""
    tasks = list(dict.fromkeys(name for by_task in scores.values() for name in by_task))
    best = {}
    for task in tasks:
        known = {step: by_task[task] for step, by_task in scores.items() if not math.isnan(by_task.get(task, math.nan))}
        best[task] = max(known, key=known.get) if known else None
    columns = ("step", *tasks)
    table = new_table(title, columns, right=columns)
    for step, by_task in scores.items():
        cells = [points(by_task.get(task), "nan") + ("*" if best[task] == step else " ") for task in tasks]
        table.add_row(str(step), *cells)
    Terminal().print(table)


def print_results(directory, manifest: dict, results: dict, file=None) -> None:
    """Task, split, rows, metrics, rates and seconds of a finished run, as plain text if not on a terminal.

    Args:
      manifest: its `scored` has each split's facts, `marks` the notes; a column without values is omitted.
    """
    console = Terminal(file=file, width=None if (file is None and Terminal().is_terminal) else 118)
    title, scored = f"{manifest.get('title', 'results')}  ({directory})", manifest.get("scored", {})
    rows, notes = [], []
    for name, facts in (scored or {name: {} for name in results["tasks"]}).items():
        metrics, remarks = results["tasks"].get(name, {}), manifest.get("marks", {}).get(name, [])
        remarks = [*(["scored labels"] if facts.get("method") == "score" else []), *remarks]
        rates = {"invalid %": metrics.get("invalid_rate"), "cut off %": facts.get("cut_off")}
        rows.append(
            {
                "task": name,
                "split": facts.get("split", ""),
                "n": str(facts.get("n", "")),
                "metrics": _scores({name: value for name, value in metrics.items() if name not in RATES})
                or ("-" if facts.get("labelled", True) else "(no labels: predictions only)"),
                **{rate: "-" if value is None else points(value) for rate, value in rates.items()},
                "seconds": f"{facts['seconds']:.1f}" if "seconds" in facts else "",
                "notes": ", ".join(remarks),
            }
        )
        notes += remarks
    if not rows:
        for line in (title, NO_SCORES):  # a path's brackets are not markup, and long lines are not wrapped
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    empty = {"cut off %": ("-", points(0.0))}
    columns = [name for name in rows[0] if any(row[name] not in empty.get(name, ("", "-")) for row in rows)]
    table = new_table(title, columns, right=("n", "invalid %", "cut off %", "seconds"))
    long = ["notes", *(["metrics"] if any(len(row["metrics"]) > LONG_METRICS for row in rows) else [])]
    for column in table.columns:
        column.no_wrap = column.header not in long
    for row in rows:
        table.add_row(*(row[name] for name in columns))
    console.print(table)
    _print_meanings(console, [rate for rate in rates if any(float(row[rate].strip("-") or 0) for row in rows)], notes)
    _print_averages(console, results["averages"])
    for name, tables in results.get("groups", {}).items():
        _print_groups(console, name, tables)


def print_finished(run, is_main: bool = True) -> dict:
    """The results of a run that was finished before, shown again; warns of files that have changed since."""
    logger.info("run %s in %s has already finished; these are its results", run.run_id, run.directory)
    changed = changed_files(run.manifest)
    if changed:
        cure = "these results are of the earlier rows; to train on the current ones give a new --output_dir"
        logger.warning("%s changed since: %s", " and ".join(changed), cure)
    warn_of_lost_model(run.directory, run.manifest)
    results = read_results(run.directory)
    if is_main:
        print_results(run.directory, run.manifest, results)
    return results


def warn_of_lost_model(directory, manifest: dict) -> None:
    """Says that the model of a finished run is gone, and where weights of it are left."""
    directory = Path(directory)
    if "training" not in manifest or any((directory / name).is_file() for name in WEIGHTS):
        return
    left = [path.name for path in sorted(directory.glob("checkpoint-*"))]
    cure = f"{', '.join(left)} may still have weights" if left else "train it again with another --output_dir"
    logger.warning("the model of the run is gone: %s has no %s; %s", directory, WEIGHTS[0], cure)


def changed_files(manifest: dict) -> list[str]:
    """Files of rows whose content differs from what a finished run read.

    >>> changed_files(manifest)                              # a row was added to it since
    ['reviews.csv']
    """
    known = {facts.get("fingerprint") for facts in (manifest.get("data") or {}).values()}
    if not any(str(fingerprint).startswith("sha256:") for fingerprint in known):
        return []
    named = dict.fromkeys(manifest["settings"].get(name) for name in ("train_file", "validation_file", "test_file"))
    # Several files (a pattern) have one fingerprint together, and are not checked.
    files = [name for name in named if isinstance(name, str) and Path(name).is_file()]
    return [name for name in files if f"sha256:{file_sha256(name)}" not in known]


def _print_groups(console: Terminal, name: str, tables: dict) -> None:
    """A table of each column (`report_by`) of a task that has few enough values to be read."""
    for column, scores in tables.items():
        if len(scores) > MOST_SHOWN:
            console.print(f"{name} by {column}: {len(scores)} of them, in results.json", highlight=False)
            continue
        metrics = [metric for metric in next(iter(scores.values())) if metric != "n"]
        table = new_table(f"{name} by {column}", (column, "n", *metrics), right=("n", *metrics))
        for value, row in scores.items():
            table.add_row(value, str(row["n"]), *(points(row[metric], "nan") for metric in metrics))
        console.print(table)


def code(text: str) -> str:
    """Inline code in Markdown.

    >>> code("a `b` c")
    '`` a `b` c ``'
    """
    text = re.sub(r"\s+", " ", text).strip()
    if "`" not in text:
        return f"`{text}`"
    fence = "`" * (1 + max(map(len, re.findall("`+", text))))
    return f"{fence} {text} {fence}"


def block(language: str, lines: Iterable[str]) -> list[str]:
    """A Markdown code block, with a fence that its lines cannot close."""
    lines = list(lines)
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))
    return [fence + language, *lines, fence]


def escaped(text) -> str:
    """Text in which nothing is Markdown or HTML.

    >>> escaped("a|b <i>")
    'a\\\\|b &lt;i&gt;'
    """
    text = str(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return " ".join(re.sub(r"([\\|*_`\[\]])", r"\\\1", text).split())


def escaped_table(header: list[str], rows: Iterable[list]) -> list[str]:
    """A Markdown table; the first column is text, the others are numbers if they look like numbers."""
    rows = [list(map(str, row)) for row in rows]
    right = [at > 0 and all(re.fullmatch("[0-9.,– -]*", row[at]) for row in rows) for at in range(len(header))]
    rule = ["---:" if is_right else "---" for is_right in right]
    lines = [map(escaped, header), rule, *(map(escaped, row) for row in rows)]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]
