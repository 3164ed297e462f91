"""Tables on the terminal, and how numbers and remarks are written everywhere.

>>> print_run_table(read_runs(["runs/mini-sentiment", "runs/mini-entailment"]))

The tables of runs read `results.json` and `manifest.json` alone, so they need neither the models nor torch.
"""

import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich import box
from rich.table import Table

from t5suite.base.errors import DataError
from t5suite.base.terminal import Terminal
from t5suite.constants import DATASET_VALS, MIXTURES
from t5suite.runs.directory import MANIFEST, RESULTS, read_manifest, read_results, tasks_named
from t5suite.tasks.entries import task_figure

if TYPE_CHECKING:  # they need torch
    from t5suite.training.eval_sets import EvalSet, Report, Result


def format_points(value: float | None) -> str:
    """Two decimals, or `nan`.

    >>> format_points(None)
    'nan'
    """
    return "nan" if value is None or math.isnan(value) else f"{value:.2f}"


def average_title(name: str) -> str:
    """What an average is called: the tasks' own, of no published suite, has no name besides.

    >>> average_title("glue"), average_title("average")
    ('average glue', 'average')
    """
    return "average" if name == "average" else f"average {name}"


NOTHING = "–"
# Metrics that stand in a column beside the others.
RATES = ("invalid_rate",)


def points(value) -> str:
    """A score with two decimals."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.2f}"


def interval(found: dict | None) -> str:
    """An interval with what it is over.

    >>> interval({"low": 47.5, "high": 53.3, "over": "seeds"})
    '47.50 to 53.30'
    """
    return NOTHING if not found else f"{points(found['low'])} to {points(found['high'])}"


def significant(value, digits: int = 4) -> str:
    """A number of any size.

    >>> significant(0.00031234), significant(117028.6)
    ('0.0003123', '117,029')
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def short_number(value) -> str:
    """A count in thousands, millions or billions."""
    if value is None:
        return NOTHING
    for limit, word in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            scaled = value / limit
            return f"{scaled:.0f} {word}" if scaled >= 100 else f"{scaled:.1f} {word}"
    return f"{value:g}"


def explained(columns: Iterable[str], remarks: Iterable[str]) -> list[tuple[str, str]]:
    """`(word, what it means)` of those that there is something to say of, each once."""
    words = [*columns, *("step N" if remark.startswith("step ") else remark for remark in remarks)]
    return [(word, MEANINGS[word]) for word in dict.fromkeys(words) if word in MEANINGS]


def one_line(columns: Iterable[str], remarks: Iterable[str]) -> str:
    """The same for a terminal.

    >>> one_line(["seconds"], ["subset"])
    'subset: not all rows were scored'
    """
    return "; ".join(f"{word}: {meaning}" for word, meaning in explained(columns, remarks))


MEANINGS = {
    "invalid %": "answers that are no label of the task, and count as wrong",
    "cut off %": "answers without an end at the greatest length",
    "train s": "seconds of training",
    "scored labels": "the likeliest label is the answer",
    "selected on": "these rows chose the checkpoint, too",
    "subset": "not all rows were scored",
    "train subset": "not all training rows were used",
    "step N": "with the weights of that update, the task's best",
}
# Characters of a directory; where there is a longer one, all are shown by their ends that tell them apart.
LONGEST_RUN = 20
HEADER = ("task", "n", "metrics", "invalid %", "train s", "notes", "run")


class RunResults(NamedTuple):
    """A finished run: where it is, which benchmark it is about, and its results."""

    directory: Path
    benchmark: str
    results: dict
    manifest: dict


def read_runs(directories) -> list[RunResults]:
    """The finished runs in these directories, in order.

    Raises:
      DataError: a directory holds no finished run.
    """
    runs = []
    for directory in map(Path, directories):
        missing = [name for name in (MANIFEST, RESULTS) if not (directory / name).is_file()]
        if missing:
            raise DataError(f"{directory}: no finished run ({', '.join(missing)} missing)")
        manifest = read_manifest(directory)
        benchmark = tasks_named(manifest)[0] or "-"
        runs.append(RunResults(directory, benchmark, read_results(directory), manifest))
    return runs


def rows_of_runs(runs: list[RunResults]) -> list[dict]:
    """One row a run and task: benchmark, task, rows, metrics, invalid_rate, seconds of training, notes, run."""
    rows = []
    for run in runs:
        for task, scores in run.results["tasks"].items():
            data = [v for k, v in run.manifest.get("data", {}).items() if k.split(".")[0] == task.split("_m")[0]]
            evaluated = [part["used"] for part in data if "kept_for_selection" not in part]
            rows.append(
                {
                    "benchmark": run.benchmark,
                    "task": task,
                    "n": evaluated[0] if evaluated else None,
                    "metrics": {name: value for name, value in scores.items() if name not in RATES},
                    "invalid_rate": scores.get("invalid_rate"),
                    "train_seconds": run.manifest.get("training", {}).get("train_runtime"),
                    "notes": run.manifest.get("marks", {}).get(task, []),
                    "run": str(run.directory),
                }
            )
    return rows


def averages_of_runs(runs: list[RunResults]) -> dict[str, float]:
    """Each benchmark's published average where the runs cover all of its tasks, one run a task."""
    means: dict[str, dict[str, float]] = {}
    for row in rows_of_runs(runs):
        if row["metrics"]:
            figure = task_figure(row["metrics"], DATASET_VALS.get(row["benchmark"], {}).get(row["task"]))
            means.setdefault(row["benchmark"], {})[row["task"]] = math.nan if figure is None else figure
    averages = {}
    for benchmark, found in means.items():
        wanted = MIXTURES.get(benchmark, {}).get("all", {}).get("average", [])
        values = [_group_mean(found, task) for task in wanted]
        if wanted and None not in values:
            averages[benchmark] = sum(values) / len(values)
    return averages


def print_run_table(runs: list[RunResults]) -> None:
    """The rows and averages as a table on standard output."""
    console = Terminal(width=None if Terminal().is_terminal else 118)
    rows = rows_of_runs(runs)
    names = {row["run"]: row["run"] for row in rows}
    if any(len(name) > LONGEST_RUN for name in names):
        names = {run: f"…/{name}" for run, name in named(names).items()}
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in HEADER:
        justify = "right" if name in ("n", "invalid %", "train s") else "left"
        # Scores are hard to read when they are broken: notes are broken first.
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name == "metrics")
    for row in rows:
        table.add_row(*_cells(row, names))
    console.print(table)
    columns = ["invalid %"] if any(row["invalid_rate"] for row in rows) else []
    said = one_line([*columns, "train s"], [note for row in rows for note in row["notes"]])
    console.print(said, style="dim", highlight=False)
    for benchmark, value in averages_of_runs(runs).items():
        console.print(f"average {benchmark}: {format_points(value)}", highlight=False)


def named(directories) -> dict[str, str]:
    """`{directory: a name for it}`: its last part, and as many before it as tell it from the others.

    >>> named(["runs/a/s1", "runs/b/s1", "runs/c"])
    {'runs/a/s1': 'a/s1', 'runs/b/s1': 'b/s1', 'runs/c': 'c'}
    """
    kept = list(dict.fromkeys(str(directory) for directory in directories))
    parts = {directory: Path(directory).resolve().parts for directory in kept}
    names = {}
    for directory in kept:
        depth = 1
        tail = parts[directory][-depth:]
        while depth < len(parts[directory]) and any(
            parts[other][-depth:] == tail and parts[other] != parts[directory] for other in kept
        ):
            depth += 1
            tail = parts[directory][-depth:]
        names[directory] = "/".join(tail)
    return names


def _cells(row: dict, names: dict[str, str]) -> list[str]:
    """One line of the table."""
    return [
        f"{row['benchmark']}/{row['task']}",
        str(row["n"] or "-"),
        "  ".join(f"{name} {format_points(value)}" for name, value in row["metrics"].items()),
        format_points(row["invalid_rate"]) if row["invalid_rate"] is not None else "-",
        f"{row['train_seconds']:.0f}" if row["train_seconds"] else "-",
        ", ".join(row["notes"]),
        names[row["run"]],
    ]


def _group_mean(found: dict[str, float], task: str) -> float | None:
    """A task's mean, MNLI's halves averaged first."""
    halves = [found[name] for name in (f"{task}_matched", f"{task}_mismatched") if name in found]
    if len(halves) == 2:
        return sum(halves) / 2
    return found.get(task)


# In place of a table without lines.
NO_SCORES = "no scores: nothing with labels was evaluated; with --eval_only a model is scored by itself"


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


def print_table(report: "Report", eval_sets: "list[EvalSet]", results: dict, title: str, file=None) -> None:
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


def print_meanings(console: Terminal, eval_sets: "list[EvalSet]", report: "Report") -> None:
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


def notes_of(result: "Result") -> list[str]:
    """What must be said of a score."""
    return [*(["scored labels"] if result.method == "score" else []), *result.marks]


def table_row(eval_set: "EvalSet", result: "Result") -> list[str]:
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


# More parts than this stand in results.json alone.
MOST_SHOWN = 40


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


def table(head: Sequence[str], rows: Iterable[Sequence]) -> list[str]:
    """The lines of a table; bars and line ends in cells do not end them."""
    rule = f"|{'---|' * len(head)}"
    above, *below = [f"| {' | '.join(map(cell, line))} |" for line in [head, *rows]]
    return [above, rule, *below]


def cell(value) -> str:
    """A table's cell.

    >>> cell("a | b\\nc")
    'a \\\\| b c'
    """
    return re.sub(r"\s+", " ", str(value)).strip().replace("|", "\\|")


def code(text: str) -> str:
    """Text in a line, as it stands.

    >>> code("a `b` c")
    '`` a `b` c ``'
    """
    text = re.sub(r"\s+", " ", text).strip()
    if "`" not in text:
        return f"`{text}`"
    fence = "`" * (1 + max(map(len, re.findall("`+", text))))
    return f"{fence} {text} {fence}"


def block(language: str, lines: Iterable[str]) -> list[str]:
    """A block of code, behind a fence that its lines do not end."""
    lines = list(lines)
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in re.findall("`+", line)), default=0))
    return [fence + language, *lines, fence]


def shortened(text, most: int) -> str:
    """The beginning of a long text.

    >>> shortened("It rains.", 6)
    'It ra…'
    """
    text = str(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def escaped(text) -> str:
    """Text in which nothing is Markdown or HTML.

    >>> escaped("a|b <i>")
    'a\\\\|b &lt;i&gt;'
    """
    text = str(text).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for mark in "|*_`[]":
        text = text.replace(mark, "\\" + mark)
    return " ".join(text.split())


def escaped_table(header: list[str], rows: list[list]) -> list[str]:
    """A Markdown table; the first column is text, the others are numbers where they look like it."""
    cells = [[escaped(cell) for cell in row] for row in rows]
    right = [at > 0 and all(_is_number(row[at]) for row in rows) for at in range(len(header))]
    rule = ["---:" if is_right else "---" for is_right in right]
    return ["| " + " | ".join(line) + " |" for line in ([escaped(name) for name in header], rule, *cells)] + [""]


def _is_number(cell) -> bool:
    return all(letter in "0123456789.,-– " for letter in str(cell))
