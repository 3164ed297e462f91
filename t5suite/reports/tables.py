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
from t5suite.reports.finished_runs import (
    averages_of_runs,
    changed_files,
    method_remarks,
    warn_of_lost_model,
    without_rates,
)
from t5suite.reports.formatting import average_title, choice_line, explained, is_plain_number, points
from t5suite.reports.next_commands import print_next_commands
from t5suite.reports.units import metric_text
from t5suite.runs.directory import read_results
from t5suite.tasks.entry_metrics import undefined_notes

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


def new_console(**options) -> Terminal:
    """The terminal in its own width; output that goes elsewhere has PLAIN_WIDTH columns."""
    if Terminal().is_terminal:
        return Terminal(**options)
    return Terminal(width=PLAIN_WIDTH, **options)


def new_table(title: str | None, columns: Iterable[str], right: Collection[str] = ()) -> Table:
    """A table for the terminal, the columns of `right` aligned to the right."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        side = "left"
        if name in right:
            side = "right"
        table.add_column(name, justify=side, overflow="fold")
    return table


def print_run_table(rows: list[dict]) -> None:
    """Rows as `rows_of_runs` has them, and their averages, as a table on standard output."""
    console = new_console()
    columns = ("task", "n", "metrics", "invalid %", "train s", "notes", "run")
    table = new_table(None, columns, right=("n", "invalid %", "train s"))
    has_long_metrics = any(len(_metrics_text(row["metrics"])) > LONG_METRICS for row in rows)
    for column in table.columns:
        # Scores are hard to read if they are wrapped: notes are wrapped first.
        column.no_wrap = column.header == "metrics" and not has_long_metrics
    for row in rows:
        table.add_row(*_cells_of_run(row))
    console.print(table)
    explained_columns = ["train s"]
    if any(row["invalid_rate"] for row in rows):
        explained_columns.insert(0, "invalid %")
    notes = []
    for row in rows:
        notes += row["notes"]
    _print_meanings(console, explained_columns, notes, [row["metrics"] for row in rows])
    for entry in averages_of_runs(rows):
        title = average_title(entry["benchmark"])
        if "run" in entry:
            title += f", {entry['run']}"
        console.print(f"{title}: {points(entry['average'], 'nan')}", highlight=False, soft_wrap=True)


def _cells_of_run(row: dict) -> list[str]:
    train_seconds = "-"
    if row["train_seconds"]:
        train_seconds = f"{row['train_seconds']:.0f}"
    return [
        f"{row['benchmark']}/{row['task']}",
        str(row["n"] or "-"),
        _metrics_text(row["metrics"]),
        _rate_text(row["invalid_rate"]),
        train_seconds,
        ", ".join(row["notes"]),
        row["run"],
    ]


def print_checkpoint_table(scores: dict[int, dict[str, float]], title: str) -> None:
    """Steps by tasks; each task's best step is marked with a star (the earliest of equals)."""
    names = []
    for scores_of_step in scores.values():
        names += scores_of_step
    tasks = list(dict.fromkeys(names))
    best_steps = {task: _best_step(scores, task) for task in tasks}
    columns = ("step", *tasks)
    table = new_table(title, columns, right=columns)
    for step, scores_of_step in scores.items():
        cells = [str(step)]
        for task in tasks:
            score = points(scores_of_step.get(task), "nan")
            mark = " "
            if best_steps[task] == step:
                mark = "*"
            cells.append(score + mark)
        table.add_row(*cells)
    Terminal().print(table)


def _best_step(scores: dict[int, dict[str, float]], task: str) -> int | None:
    """The earliest step of a task's best score; None if no step has a score of it."""
    defined = {}
    for step, scores_of_step in scores.items():
        score = scores_of_step.get(task, math.nan)
        if not math.isnan(score):
            defined[step] = score
    return max(defined, key=defined.get, default=None)


class SplitRow(NamedTuple):
    """One split's line in the table of a finished run: its cells by column, and the remarks in its notes."""

    cells: dict[str, str]
    remarks: list[str]


def print_results(directory, manifest: dict, results: dict) -> None:
    """Task, split, rows, metrics, rates and seconds of a finished run, as plain text if not on a terminal.

    Args:
      manifest: its `scored` has each split's facts, `marks` the notes; a column without values is omitted.
    """
    console = new_console()
    title = f"{manifest.get('title', 'results')}  ({directory})"
    rows = _rows_of_splits(manifest, results["tasks"])
    if not rows:
        for line in (title, NO_SCORES):  # long lines are not wrapped
            console.print(line, highlight=False, soft_wrap=True)
        return
    console.print(_table_of_splits(title, rows))
    for choice in manifest.get("choices", []):
        line = choice_line(choice, (manifest.get("training") or {}).get("steps"))
        console.print(line, highlight=False, soft_wrap=True)
    remarks = []
    for row in rows:
        remarks += row.remarks
    _print_meanings(console, _rates_above_zero(rows), remarks, results["tasks"].values())
    _print_averages(console, results["averages"])
    for name, tables in results.get("groups", {}).items():
        _print_groups(console, name, tables)


def _rows_of_splits(manifest: dict, scores_of_tasks: dict[str, dict]) -> list[SplitRow]:
    """The lines of the splits that were scored; without facts of these, of all that have scores."""
    facts_of_splits = manifest.get("scored") or {name: {} for name in scores_of_tasks}
    marks = manifest.get("marks", {})
    rows = []
    for name, facts in facts_of_splits.items():
        scores = scores_of_tasks.get(name, {})
        rows.append(_row_of_split(name, facts, scores, marks.get(name, [])))
    return rows


def _rates_above_zero(rows: list[SplitRow]) -> list[str]:
    """The columns of rates in which a row has more than zero, as it is shown."""
    columns = []
    for column in ("invalid %", "cut off %"):
        if any(_is_above_zero(row.cells[column]) for row in rows):
            columns.append(column)
    return columns


def _row_of_split(name: str, facts: dict, scores: dict, marks: list[str]) -> SplitRow:
    """The line of one split.

    Args:
      facts: what the manifest says of it: split, n, method, labelled, cut_off, seconds.
      scores: its metrics and rates in points.
    """
    remarks = [*method_remarks(facts), *marks]
    seconds = ""
    if "seconds" in facts:
        seconds = f"{facts['seconds']:.1f}"
    cells = {
        "task": name,
        "split": facts.get("split", ""),
        "n": str(facts.get("n", "")),
        "metrics": _metrics_or_why_none(scores, is_labelled=facts.get("labelled", True)),
        "invalid %": _rate_text(scores.get("invalid_rate")),
        "cut off %": _rate_text(facts.get("cut_off")),
        "seconds": seconds,
        "notes": ", ".join(remarks),
    }
    return SplitRow(cells, remarks)


def _metrics_or_why_none(scores: dict, is_labelled: bool) -> str:
    metrics = without_rates(scores)
    if metrics:
        return _metrics_text(metrics)
    if is_labelled:
        return "-"
    return "(no labels: predictions only)"


def _table_of_splits(title: str, rows: list[SplitRow]) -> Table:
    """The table of a finished run, without the columns in which no row has a value."""
    columns = [column for column in rows[0].cells if _has_values(column, rows)]
    table = new_table(title, columns, right=("n", "invalid %", "cut off %", "seconds"))
    wrapped = ["notes"]
    if any(len(row.cells["metrics"]) > LONG_METRICS for row in rows):
        wrapped.append("metrics")
    for column in table.columns:
        column.no_wrap = column.header not in wrapped
    for row in rows:
        cells = [row.cells[column] for column in columns]
        table.add_row(*cells)
    return table


def _has_values(column: str, rows: list[SplitRow]) -> bool:
    """Whether a column says something of a row."""
    empty_cells = EMPTY_CELLS
    if column == "cut off %":
        empty_cells = NOTHING_CUT_OFF
    return any(row.cells[column] not in empty_cells for row in rows)


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
        print_next_commands(run.directory, run.manifest)
    return results


def _metrics_text(metrics: dict) -> str:
    return "  ".join(f"{name} {metric_text(value, name, 'nan')}" for name, value in metrics.items())


def _rate_text(rate: float | None) -> str:
    if rate is None:
        return "-"
    return points(rate)


def _is_above_zero(rate_text: str) -> bool:
    """Whether a rate is above zero as it is shown."""
    if rate_text == "-":
        return False
    return float(rate_text) > 0


def _print_meanings(
    console: Terminal, columns: Iterable[str], remarks: Iterable[str], scores_of_rows: Iterable[dict]
) -> None:
    """Why scores are NaN, and what the columns and remarks mean."""
    undefined = []
    for scores in scores_of_rows:
        undefined += [metric for metric, score in scores.items() if not is_plain_number(score)]
    meanings = undefined_notes(undefined)
    meanings += [f"{word}: {meaning}" for word, meaning in explained(columns, remarks)]
    if meanings:
        console.print("; ".join(meanings), style="dim", highlight=False)


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
            cells = [metric_text(row[metric], metric, "nan") for metric in metrics]
            table.add_row(group, str(row["n"]), *cells)
        console.print(table)
