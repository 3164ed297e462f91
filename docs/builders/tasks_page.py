"""docs/tasks.md: its tables of tasks and metrics, generated from the registry by the code that training uses.

>>> section("glue", "cola").split(" | ")[1]
'`cola sentence: <sentence>`'
>>> worked("accuracy")
'66.67'
"""

import inspect
import math
import re
from pathlib import Path

from docs.builders.markdown import code, table
from t5suite.commands.tasks import made_up_row
from t5suite.constants import DATASET_VALS, METRIC_GROUPS, MIXTURES
from t5suite.tasks.metrics import METRIC_ALIASES, METRICS, NUMBER_METRICS, TEXT_METRICS, TOKEN_METRICS
from t5suite.tasks.registry import Task, load_task

PAGE = Path(__file__).resolve().parent.parent / "tasks.md"
# The text between these two is generated; the name is a benchmark's or one of `METRIC_TABLES`.
MADE = re.compile(r"(<!-- made by docs/builders/tasks_page.py: (\w+) -->\n).*?(<!-- end -->)", re.S)
HEADS = ["task", "input", "target", "metrics", "train / validation / test rows"]


def page() -> str:
    """The page's expected text: its own words around the tables."""
    return MADE.sub(lambda made: f"{made[1]}\n{_made(made[2])}\n\n{made[3]}", PAGE.read_text(encoding="utf-8"))


def _made(name: str) -> str:
    if name == "aliases":
        rows = [[code(alias), code(metric)] for alias, metric in METRIC_ALIASES.items()]
        rows += [[code(group), ", ".join(map(code, members))] for group, members in METRIC_GROUPS.items()]
        return table(["name", "stands for"], rows)
    if name in METRIC_TABLES:
        rows = [[code(metric), definition(metric), worked(metric)] for metric in METRICS if METRIC_TABLES[name](metric)]
        return table(["metric", "what it is", "of the example"], rows)
    tasks = table(HEADS, [_row(load_task(name, task)) for task in DATASET_VALS[name]])
    return "\n\n".join([tasks, *(_mixture(*item) for item in MIXTURES.get(name, {}).items()), _hub(name)]).rstrip()


def section(benchmark: str, name: str) -> str:
    """A task's line of its benchmark's table: the text of an invented row, the answers, the metrics, the numbers of rows."""
    return table(HEADS, [_row(load_task(benchmark, name))]).splitlines()[-1]


def _row(task: Task) -> list[str]:
    example = task.examples(made_up_row(task))[0]
    target = ", ".join(map(code, task.label_words)) if task.value_kind == "class" else code(example.targets)
    metrics = ", ".join(task.entry["metric_names"]) or "none"
    selected = task.entry["metric_to_optimize"]
    metrics += f" (chosen by {selected})" if selected and selected != metrics else ""
    return [task.name, code(" ".join(example.inputs.split())), target, metrics, _rows(task)]


def _rows(task: Task) -> str:
    counts = task.entry.get("num_examples") or {}
    roles = [task.splits(role).values() for role in ("train", "validation", "test")]
    numbers = [" + ".join(f"{counts[name]:,}" if name in counts else name for name in names) or "–" for names in roles]
    return " / ".join(numbers) + (f" (of {task.rows_of})" if task.rows_of != task.name else "")


def _mixture(name: str, mixture: dict) -> str:
    only = [task for task in mixture["evaluate"] if task not in mixture["train"]]
    unscored = [task for task in mixture["train"] if task not in mixture["evaluate"]]
    parts = [f"The mixture {code(name)} trains on {', '.join(mixture['train'])}"]
    parts += [f"also evaluates {', '.join(only)}"] if only else []
    parts += [f"does not evaluate {', '.join(unscored)}"] if unscored else []
    over = "these" if mixture["average"] == mixture["train"] else ", ".join(mixture["average"])
    return "; ".join(parts) + f". Its average is over {over}."


def _hub(benchmark: str) -> str:
    paths = dict.fromkeys(entry.get("hub_path") for entry in DATASET_VALS[benchmark].values())
    return "On the hub: " + ", ".join(map(code, filter(None, paths))) + "." if any(paths) else ""


def definition(name: str) -> str:
    """The first paragraph of the function's docstring, or of the function that a partial wraps."""
    function = METRICS[name]
    return inspect.getdoc(getattr(function, "func", function)).split("\n\n")[0]


def worked(name: str) -> str:
    """The metric of the page's small example, in points with two decimals."""
    predictions, references = _example(name)
    points = METRICS[name](predictions, references, groups=["a", "a", "b"])
    return "nan" if math.isnan(points) else f"{points:.2f}"


def _example(name: str) -> tuple[list, list]:
    if name in NUMBERS:
        return [1.0, 2.5, 5.0], [1.2, 3.0, 4.0]
    if name in TEXT_METRICS:
        return (
            ["the cat sat on the mat", "Paris", "he won"],
            ["the cat is on the mat", "paris.", ["she won", "he won it"]],
        )
    if name in TOKEN_METRICS:
        return [["O", "B-A", "I-A"], ["O"]], [["O", "B-A", "I-A"], ["B-A"]]
    return [1, 0, -1], [1, 0, 1]


NUMBERS = NUMBER_METRICS & METRICS.keys()
# {table: which metrics it contains}
METRIC_TABLES = {
    "classes": lambda name: name not in TEXT_METRICS | TOKEN_METRICS | NUMBERS,
    "numbers": lambda name: name in NUMBERS,
    "texts": lambda name: name in TEXT_METRICS,
    "words": lambda name: name in TOKEN_METRICS,
}
