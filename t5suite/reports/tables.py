"""Tables on the terminal: of runs, of checkpoints, and of one run that has finished.

>>> print_run_table(rows_of_runs(["runs/mini-sentiment", "runs/mini-entailment"]))
"""

import logging
import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from rich import box
from rich.table import Table

from t5suite.base.terminal import PLAIN_WIDTH, Terminal
from t5suite.reports.finished_runs import RATES, changed_files, suite_averages, warn_of_lost_model
from t5suite.reports.formatting import average_title, explained, points
from t5suite.runs.directory import read_results

logger = logging.getLogger(__name__)

# Printed instead of an empty table.
NO_SCORES = "no scores: nothing with labels was evaluated; with --eval_only a model is scored by itself"
# More parts of a task than this are only in results.json.
MOST_SHOWN = 40
# Longer metrics may be broken into lines.
LONG_METRICS = 40
# Columns of a finished run's table that say nothing where every row has one of these.
EMPTY_CELLS = ("", "-")
NOTHING_CUT_OFF = ("-", points(0.0))


def new_console(file=None, **options) -> Terminal:
    """The terminal in its own width; a file, or output that goes elsewhere, has PLAIN_WIDTH columns."""
    is_terminal = file is None and Terminal().is_terminal
    return Terminal(file=file, width=None if is_terminal else PLAIN_WIDTH, **options)


def new_table(title: str | None, columns: Iterable[str], right: Collection[str] = ()) -> Table:
    """A table for the terminal, the columns of `right` aligned to the right."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    return table


def print_run_table(rows: list[dict]) -> None:
    """Rows as `rows_of_runs` has them, and their averages, as a table on standard output."""
    console = new_console()
    columns = ("task", "n", "metrics", "invalid %", "train s", "notes", "run")
    table = new_table(None, columns, right=("n", "invalid %", "train s"))
    has_long_metrics = any(len(_metrics_text(row["metrics"])) > LONG_METRICS for row in rows)
    for column in table.columns:
        column.overflow = "fold"
        # Scores are hard to read if they are wrapped: notes are wrapped first.
        column.no_wrap = column.header == "metrics" and not has_long_metrics
    for row in rows:
        table.add_row(*_cells_of_run(row))
    console.print(table)
    explained_columns = ["train s"]
    if any(row["invalid_rate"] for row in rows):
        explained_columns.insert(0, "invalid %")
    notes = [note for row in rows for note in row["notes"]]
    _print_meanings(console, explained_columns, notes)
    _print_averages(console, suite_averages(rows))


def _cells_of_run(row: dict) -> list[str]:
    return [
        f"{row['benchmark']}/{row['task']}",
        str(row["n"] or "-"),
        _metrics_text(row["metrics"]),
        "-" if row["invalid_rate"] is None else points(row["invalid_rate"]),
        f"{row['train_seconds']:.0f}" if row["train_seconds"] else "-",
        ", ".join(row["notes"]),
        row["run"],
    ]


def print_checkpoint_table(scores: dict[int, dict[str, float]], title: str) -> None:
    """Steps by tasks; each task's best step is marked with a star (the earliest of equals)."""
    tasks = list(dict.fromkeys(task for scores_of_step in scores.values() for task in scores_of_step))
    best_steps = {task: _best_step(scores, task) for task in tasks}
    columns = ("step", *tasks)
    table = new_table(title, columns, right=columns)
    for step, scores_of_step in scores.items():
        cells = [str(step)]
        for task in tasks:
            star = "*" if best_steps[task] == step else " "
            cells.append(points(scores_of_step.get(task), "nan") + star)
        table.add_row(*cells)
    Terminal().print(table)


def _best_step(scores: dict[int, dict[str, float]], task: str) -> int | None:
    """The earliest step of a task's best score; None if no step has a score of it."""
    by_step = {step: scores_of_step.get(task, math.nan) for step, scores_of_step in scores.items()}
    defined = {step: score for step, score in by_step.items() if not math.isnan(score)}
    return max(defined, key=defined.get, default=None)


class SplitRow(NamedTuple):
    """One split's line in the table of a finished run: its cells by column, and the remarks in its notes."""

    cells: dict[str, str]
    remarks: list[str]


def print_results(directory, manifest: dict, results: dict, file=None) -> None:
    """Task, split, rows, metrics, rates and seconds of a finished run, as plain text if not on a terminal.

    Args:
      manifest: its `scored` has each split's facts, `marks` the notes; a column without values is omitted.
    """
    console = new_console(file)
    title = f"{manifest.get('title', 'results')}  ({directory})"
    facts_of_splits = manifest.get("scored", {}) or {name: {} for name in results["tasks"]}
    marks = manifest.get("marks", {})
    rows = [
        _row_of_split(name, facts, results["tasks"].get(name, {}), marks.get(name, []))
        for name, facts in facts_of_splits.items()
    ]
    if not rows:
        for line in (title, NO_SCORES):  # a path's brackets are not markup, and long lines are not wrapped
            console.print(line, highlight=False, markup=False, soft_wrap=True)
        return
    console.print(_table_of_splits(title, rows))
    rates = [column for column in ("invalid %", "cut off %") if any(_is_above_zero(row.cells[column]) for row in rows)]
    _print_meanings(console, rates, [remark for row in rows for remark in row.remarks])
    _print_averages(console, results["averages"])
    for name, tables in results.get("groups", {}).items():
        _print_groups(console, name, tables)


def _row_of_split(name: str, facts: dict, scores: dict, marks: list[str]) -> SplitRow:
    """The line of one split.

    Args:
      facts: what the manifest says of it: split, n, method, labelled, cut_off, seconds.
      scores: its metrics and rates in points.
    """
    remarks = ["scored labels", *marks] if facts.get("method") == "score" else list(marks)
    metrics = _metrics_text({metric: score for metric, score in scores.items() if metric not in RATES})
    without_metrics = "-" if facts.get("labelled", True) else "(no labels: predictions only)"
    cells = {
        "task": name,
        "split": facts.get("split", ""),
        "n": str(facts.get("n", "")),
        "metrics": metrics or without_metrics,
        "invalid %": _rate_text(scores.get("invalid_rate")),
        "cut off %": _rate_text(facts.get("cut_off")),
        "seconds": f"{facts['seconds']:.1f}" if "seconds" in facts else "",
        "notes": ", ".join(remarks),
    }
    return SplitRow(cells, remarks)


def _table_of_splits(title: str, rows: list[SplitRow]) -> Table:
    """The table of a finished run, without the columns in which no row has a value."""
    empty_cells = {"cut off %": NOTHING_CUT_OFF}
    columns = [
        column
        for column in rows[0].cells
        if any(row.cells[column] not in empty_cells.get(column, EMPTY_CELLS) for row in rows)
    ]
    table = new_table(title, columns, right=("n", "invalid %", "cut off %", "seconds"))
    wrapped = ["notes"]
    if any(len(row.cells["metrics"]) > LONG_METRICS for row in rows):
        wrapped.append("metrics")
    for column in table.columns:
        column.no_wrap = column.header not in wrapped
    for row in rows:
        table.add_row(*(row.cells[column] for column in columns))
    return table


def print_finished(run, is_main: bool = True) -> dict:
    """The results of a run that was finished before, shown again; warns of files that have changed since."""
    logger.info("run %s in %s has already finished; these are its results", run.run_id, run.directory)
    changed = changed_files(run.manifest)
    if changed:
        logger.warning(
            "%s changed since: these results are of the earlier rows; to train on the current ones give a new "
            "--output_dir",
            " and ".join(changed),
        )
    warn_of_lost_model(run.directory, run.manifest)
    results = read_results(run.directory)
    if is_main:
        print_results(run.directory, run.manifest, results)
    return results


def _metrics_text(metrics: dict) -> str:
    return "  ".join(f"{name} {points(value, 'nan')}" for name, value in metrics.items())


def _rate_text(rate: float | None) -> str:
    return "-" if rate is None else points(rate)


def _is_above_zero(rate_text: str) -> bool:
    """Whether a rate is above zero as it is shown."""
    return rate_text != "-" and float(rate_text) > 0


def _print_meanings(console: Terminal, columns: Iterable[str], remarks: Iterable[str]) -> None:
    meanings = "; ".join(f"{word}: {meaning}" for word, meaning in explained(columns, remarks))
    if meanings:
        console.print(meanings, style="dim", highlight=False)


def _print_averages(console: Terminal, averages: dict[str, float]) -> None:
    for name, average in averages.items():
        console.print(f"{average_title(name)}: {points(average, 'nan')}", highlight=False)


def _print_groups(console: Terminal, name: str, tables: dict) -> None:
    """A table of each column (`report_by`) of a task that has few enough values to be read."""
    for column, scores in tables.items():
        if len(scores) > MOST_SHOWN:
            console.print(f"{name} by {column}: {len(scores)} of them, in results.json", highlight=False)
            continue
        first_row = next(iter(scores.values()))
        metrics = [metric for metric in first_row if metric != "n"]
        table = new_table(f"{name} by {column}", (column, "n", *metrics), right=("n", *metrics))
        for group, row in scores.items():
            table.add_row(group, str(row["n"]), *(points(row[metric], "nan") for metric in metrics))
        console.print(table)
