"""Tables on the terminal: of runs, of checkpoints, and of one run that has finished.

>>> print_run_table(rows_of_runs(["runs/mini-sentiment", "runs/mini-entailment"]))
"""

import logging
import math
from collections.abc import Collection, Iterable

from rich import box
from rich.table import Table

from t5suite.base.terminal import Terminal
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


def new_table(title: str | None, columns: Iterable[str], right: Collection[str] = ()) -> Table:
    """A table for the terminal, the columns of `right` aligned to the right."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left")
    return table


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


def _scores(metrics: dict) -> str:
    return "  ".join(f"{name} {points(value, 'nan')}" for name, value in metrics.items())


def _print_meanings(console: Terminal, columns: Iterable[str], remarks: Iterable[str]) -> None:
    said = "; ".join(f"{word}: {meaning}" for word, meaning in explained(columns, remarks))
    if said:
        console.print(said, style="dim", highlight=False)


def _print_averages(console: Terminal, averages: dict[str, float]) -> None:
    for name, value in averages.items():
        console.print(f"{average_title(name)}: {points(value, 'nan')}", highlight=False)


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
