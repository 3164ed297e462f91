"""What a finished run leaves behind: results, predictions, a table, a model card.

>>> results = build_results(report, eval_sets, benchmark="glue", average_over=["cola", "rte"])
>>> results["tasks"]["rte"]
{'accuracy': 71.1, 'invalid_rate': 0.0}
"""

import logging
import math
from pathlib import Path

from rich import box
from rich.table import Table

from t5suite.base.terminal import Terminal
from t5suite.data.formats.from_settings import rows_stay
from t5suite.data.jsonl import without_nan, write_jsonl
from t5suite.model_cards.fine_tuned import write_fine_tuned_card
from t5suite.runs.directory import RESULTS, read_results, write_json
from t5suite.tracking.glossary import one_line
from t5suite.tracking.group_reports import group_scores, print_groups
from t5suite.tracking.hints import give_hints, warn_of_changed_files
from t5suite.tracking.plots import learning_curves
from t5suite.tracking.points import average_title, format_points
from t5suite.training.eval_results import Report, Result
from t5suite.training.eval_sets import EvalSet

logger = logging.getLogger(__name__)

RATES = ("invalid_rate",)
# In place of a table without lines.
NO_SCORES = "no scores: nothing with labels was evaluated; with --eval_only a model is scored by itself"


def print_finished(run, is_main: bool = True) -> dict:
    """The results of a run that was finished before, shown again."""
    logger.info("run %s in %s was finished before; these are its results", run.run_id, run.directory)
    warn_of_changed_files(run)
    return print_results(read_results(run.directory), str(run.directory), is_main)


def build_results(
    report: Report, benchmark: str, average_over: list[str], eval_sets: list[EvalSet], published: bool
) -> dict:
    """`{"tasks": {task: {metric: points}}, "averages": {suite: points}}`; a score that is no number stays NaN.

    A task that is reported in parts (`report_by`) has them under `groups`.

    Args:
      average_over: the tasks whose mean is the average; a task's own metrics, and MNLI's halves, are averaged first.
        Test splits count only where nothing else was scored.
      published: the average is the benchmark's published one and carries its name, if no task or half is missing.
    """
    tasks = {name: dict(result.metrics) for name, result in report.results.items() if result.metrics}
    values = _task_means(
        report, [eval_set for eval_set in eval_sets if not eval_set.name.endswith(".test")] or eval_sets
    )
    present = [values[name] for name in average_over if name in values]
    averages = {}
    if len(average_over) > 1 and present:
        complete = len(present) == len(average_over)
        name = benchmark if published and complete else "average"
        if not complete:
            name = f"{benchmark} ({len(present)} of {len(average_over)} tasks)"
        averages[name] = sum(present) / len(present)
    groups = group_scores(report, eval_sets)
    return {"tasks": tasks, "averages": averages, **({"groups": groups} if groups else {})}


def _task_means(report: Report, eval_sets: list[EvalSet]) -> dict[str, float]:
    """Each task's one number (its `metric_to_optimize`), the mean over its splits; none where a split is missing."""
    of_task: dict[str, list[float]] = {}
    num_splits = {eval_set.task.name: len(eval_set.task.splits(eval_set.role)) for eval_set in eval_sets}
    for eval_set in eval_sets:
        metrics = report.results[eval_set.name].metrics
        if any(name not in (*RATES, "loss") for name in metrics):
            of_task.setdefault(eval_set.task.name, []).append(eval_set.optimised(metrics))
    return {name: sum(values) / len(values) for name, values in of_task.items() if len(values) == num_splits[name]}


def write_results(directory, results: dict) -> None:
    """`results.json`: no timings and no paths in it; a NaN becomes null, with a note that says so."""
    notes = [
        f"{section}.{name}.{metric} is not a number (a correlation of constants, or of a prediction that is nan)"
        for section in ("tasks",)
        for name, metrics in results[section].items()
        for metric, value in metrics.items()
        if not math.isfinite(value)
    ]
    notes += [
        f"averages.{name} is not a number" for name, value in results["averages"].items() if not math.isfinite(value)
    ]
    content = without_nan(results)
    write_json(Path(directory) / RESULTS, {**content, "notes": notes} if notes else content)


def write_predictions(directory, eval_sets: list[EvalSet], report: Report, keeps_texts: bool = False) -> None:
    """`predictions/<task>.<split>.jsonl`: one line an example, with its row's number (and `idx`) and its own.

    Args:
      keeps_texts: the lines hold the input texts, too, for rows that cannot be read again (`rows_stay`).
    """
    for eval_set in eval_sets:
        path = Path(directory) / "predictions" / f"{eval_set.task.name}.{eval_set.split}.jsonl"
        write_jsonl(path, prediction_lines(eval_set, report.results[eval_set.name].predictions, keeps_texts))


def prediction_lines(eval_set: EvalSet, predictions: list[str], keeps_texts: bool = False):
    """The lines of a predictions file."""
    seen: dict[int, int] = {}
    for row, example, prediction in zip(eval_set.row_of_example, eval_set.examples, predictions, strict=True):
        line = {"row": row, "example": seen.setdefault(row, 0), "prediction": prediction}
        seen[row] += 1
        if "idx" in eval_set.rows[row]:
            line["idx"] = eval_set.rows[row]["idx"]
        if eval_set.task.entry.get("postprocess") == "wsc_verdict":
            line["candidate"] = example.targets
        elif eval_set.labelled:
            line["target"] = example.targets
        if keeps_texts:
            line["inputs"] = example.inputs
        yield line


def finish_run(run, data, report: Report, results: dict, best: dict, title: str, is_model: bool) -> None:
    """Writes what a run leaves behind, in the order that makes it finished last, and shows the table."""
    write_predictions(run.directory, data.scored, report, not rows_stay(run.manifest["settings"]))
    run.update(
        best_per_task=without_nan(best),
        seconds={name: round(result.seconds, 3) for name, result in report.results.items()},
        cut_off={name: result.truncated for name, result in report.results.items() if result.method == "generate"},
        eval_methods={name: result.method for name, result in report.results.items()},
        marks={name: result.marks for name, result in report.results.items() if result.marks},
    )
    if is_model:
        learning_curves(run.directory, title)
        write_fine_tuned_card(run.directory, title, run.manifest, results, data.scored, report)
    write_results(run.directory, results)
    run.finish()
    print_table(report, data.scored, results, f"{title}  ({run.directory})")
    print_groups(results.get("groups", {}))
    give_hints(report, data.scored, run)


def print_results(results: dict, title: str, is_main: bool = True) -> dict:
    """The table of a run that was finished before, from its `results.json`; returns the results."""
    if not is_main:
        return results
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("task")
    table.add_column("metrics")
    for name, metrics in results["tasks"].items():
        table.add_row(name, "  ".join(f"{metric} {format_points(value)}" for metric, value in metrics.items()))
    console = Terminal()
    if not results["tasks"]:
        print_lines(console, title, NO_SCORES)
        return results
    console.print(table)
    print_averages(console, results["averages"])
    return results


def print_checkpoint_table(scores: dict[int, dict[str, float]], title: str) -> None:
    """Steps by tasks; each task's best step is marked with a star (the earliest of equals)."""
    tasks = list(dict.fromkeys(name for by_task in scores.values() for name in by_task))
    best = {}
    for task in tasks:
        known = {step: by_task[task] for step, by_task in scores.items() if not math.isnan(by_task.get(task, math.nan))}
        best[task] = max(known, key=known.get) if known else None
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("step", *tasks):
        table.add_column(name, justify="right")
    for step, by_task in scores.items():
        cells = [format_points(by_task.get(task, math.nan)) + ("*" if best[task] == step else " ") for task in tasks]
        table.add_row(str(step), *cells)
    Terminal().print(table)


def print_table(report: Report, eval_sets: list[EvalSet], results: dict, title: str, file=None) -> None:
    """Task, split, rows, metrics, rates and seconds, as a table on the terminal (plain text elsewhere)."""
    console = Terminal(file=file, width=None if (file is None and Terminal().is_terminal) else 118)
    if not eval_sets:
        print_lines(console, title, NO_SCORES)
        return
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name, justify in (("task", "left"), ("split", "left"), ("n", "right"), ("metrics", "left")):
        table.add_column(name, justify=justify)
    for name in ("invalid %", "cut off %", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("notes", justify="left")
    for eval_set in eval_sets:
        table.add_row(*table_row(eval_set, report.results[eval_set.name]))
    console.print(table)
    print_meanings(console, eval_sets, report)
    print_averages(console, results["averages"])


def print_lines(console: Terminal, *lines: str) -> None:
    """Lines as they stand: brackets in a path are no markup, and what is long is not broken."""
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def print_averages(console: Terminal, averages: dict[str, float]) -> None:
    """A line for each."""
    for name, value in averages.items():
        console.print(f"{average_title(name)}: {format_points(value)}", highlight=False)


def print_meanings(console: Terminal, eval_sets: list[EvalSet], report: Report) -> None:
    """A line below the table for what its columns and notes do not say by themselves."""
    results = [report.results[eval_set.name] for eval_set in eval_sets]
    columns = {
        "invalid %": any(result.metrics.get("invalid_rate") for result in results),
        "cut off %": any(result.method == "generate" for result in results),
    }
    notes = [note for result in results for note in notes_of(result)]
    said = one_line([name for name, is_there in columns.items() if is_there], notes)
    if said:
        console.print(said, style="dim", highlight=False)


def notes_of(result: Result) -> list[str]:
    """What must be said of a score."""
    return [*(["scored labels"] if result.method == "score" else []), *result.marks]


def table_row(eval_set: EvalSet, result: Result) -> list[str]:
    """One line of the table."""
    scores = [f"{name} {format_points(value)}" for name, value in result.metrics.items() if name not in RATES]
    cut_off = 100 * result.truncated / max(1, len(result.predictions))
    return [
        result.name,
        eval_set.split,
        str(result.num_rows),
        "  ".join(scores) or "(no labels: predictions only)" if not result.labelled else "  ".join(scores) or "-",
        format_points(result.metrics["invalid_rate"]) if "invalid_rate" in result.metrics else "-",
        format_points(cut_off) if result.method == "generate" else "-",
        f"{result.seconds:.1f}",
        ", ".join(notes_of(result)),
    ]
