"""docs/metrics.md: every metric with its definition, a value worked out by its own function, and who is scored by it.

>>> worked("accuracy")
'66.67'
"""

import inspect
import math

from docs.builders.markdown import MADE, code, table
from t5suite.constants import DATASET_VALS, METRIC_GROUPS
from t5suite.tasks.entries import metric_functions
from t5suite.tasks.metrics import METRIC_ALIASES, METRICS, TEXT_METRICS

NAMED_TASKS = 6


def page() -> str:
    """The page's text."""
    kinds = {
        "Classes": lambda name: name not in TEXT_METRICS and name not in NUMBERS,
        "Numbers": lambda name: name in NUMBERS,
        "Texts": lambda name: name in TEXT_METRICS,
    }
    parts = [MADE.format(sources="t5suite/tasks/metrics.py and the registry"), INTRODUCTION]
    for title, belongs in kinds.items():
        parts += [f"## {title}", EXAMPLES[title], _table([name for name in METRICS if belongs(name)])]
    parts += ["## Other names", OTHER_NAMES, _aliases()]
    return "\n\n".join(parts) + "\n"


def worked(name: str) -> str:
    """The metric of the page's small example, in points with two decimals."""
    predictions, references = _example(name)
    points = METRICS[name](predictions, references, groups=["a", "a", "b"])
    return "nan" if math.isnan(points) else f"{points:.2f}"


def _table(names: list[str]) -> str:
    rows = [[code(name), definition(name), worked(name), _users(name)] for name in names]
    return table(["metric", "what it is", "of the example", "tasks"], rows)


def definition(name: str) -> str:
    """The first paragraph of the function's docstring."""
    return inspect.getdoc(METRICS[name]).split("\n\n")[0]


def _users(name: str) -> str:
    """The tasks that are scored by a metric, whatever they call it; the first few where there are many."""
    users = [
        f"{benchmark}/{task}"
        for benchmark, entries in DATASET_VALS.items()
        for task, entry in entries.items()
        if METRICS[name] in metric_functions(entry).values()
    ]
    more = len(users) - NAMED_TASKS
    return ", ".join(users[:NAMED_TASKS]) + (f" and {more} more" if more > 0 else "")


def _aliases() -> str:
    rows = [[code(alias), code(name)] for alias, name in METRIC_ALIASES.items()]
    rows += [[code(group), ", ".join(map(code, members))] for group, members in METRIC_GROUPS.items()]
    return table(["name", "stands for"], rows)


def _example(name: str) -> tuple[list, list]:
    if name in NUMBERS:
        return [1.0, 2.5, 5.0], [1.2, 3.0, 4.0]
    if name in TEXT_METRICS:
        return (
            ["the cat sat on the mat", "Paris", "he won"],
            ["the cat is on the mat", "paris.", ["she won", "he won it"]],
        )
    return [1, 0, -1], [1, 0, 1]


NUMBERS = {"pearson", "spearman"}

INTRODUCTION = """# Metrics

Every score is in points, 0 to 100 (correlations from -100 to 100), computed in process from the answers that were
written or chosen; nothing is fetched. A metric that is not a number is `nan` in Python, `null` with a note in JSON, and
counts as the worst when a checkpoint is selected. `t5suite score` computes the same from a file of rows and a file of
predictions. How answers become classes, numbers and texts is told in [tasks.md](tasks.md#how-answers-are-read).

A task names its metrics in `metric_names`, and in `metric_to_optimize` the one that selects checkpoints: a metric's
name, or `average`, the mean of all of them. Tasks with label words also report `invalid_rate`, the share of answers
that are none of them. A metric of your own is a function: [plug-ins](python.md)."""

EXAMPLES = {
    "Classes": "The example: predictions `[1, 0, -1]` (the last one was no label) of references `[1, 0, 1]`, in groups "
    "`a`, `a`, `b` where a metric asks for groups.",
    "Numbers": "The example: predictions `[1.0, 2.5, 5.0]` of references `[1.2, 3.0, 4.0]`. A text that is not a number "
    "counts as -1.",
    "Texts": "The example: `the cat sat on the mat`, `Paris`, `he won` against `the cat is on the mat`, `paris.`, and "
    "either of `she won` and `he won it`.",
}

OTHER_NAMES = """Other systems' names are understood and keep the name that was asked for. A group stands for its members
among `metric_names`, and for their mean as `metric_to_optimize`."""
