"""Scores of the parts of a task, beside those of the whole: Super-NaturalInstructions by category and by task.

    >>> group_scores(report, eval_sets)["english"]["category"]["Title Generation"]
    {'rougeL': 31.2, 'exact_match': 4.0, 'n': 1784}

A task's entry names the columns in `report_by`. `results.json` holds the scores under `groups`, where nothing averages
them.
"""

from rich import box
from rich.table import Table

from t5suite.base.terminal import Terminal
from t5suite.training.eval_results import Report
from t5suite.training.eval_sets import EvalSet

# More parts than this stand in results.json alone.
MOST_SHOWN = 40


def group_scores(report: Report, eval_sets: list[EvalSet]) -> dict:
    """`{task: {column: {value: {metric: points, ..., "n": rows}}}}` of the tasks that are reported in parts."""
    found = {}
    for eval_set in eval_sets:
        predictions = report.results[eval_set.name].predictions
        groups = eval_set.task.score_groups(eval_set.rows, predictions, eval_set.role)
        if groups:
            found[eval_set.name] = groups
    return found


def print_groups(groups: dict, file=None) -> None:
    """A table of each task and column that has few enough values to be read."""
    console = Terminal(file=file)
    for name, tables in groups.items():
        for column, scores in tables.items():
            if len(scores) > MOST_SHOWN:
                console.print(f"{name} by {column}: {len(scores)} of them, in results.json", highlight=False)
                continue
            table = Table(title=f"{name} by {column}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
            metrics = [metric for metric in next(iter(scores.values())) if metric != "n"]
            for header in (column, "n", *metrics):
                table.add_column(header, justify="left" if header == column else "right")
            for value, row in scores.items():
                table.add_row(value, str(row["n"]), *(f"{row[metric]:.2f}" for metric in metrics))
            console.print(table)
