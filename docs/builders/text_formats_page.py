"""docs/text_formats.md: what a model reads and writes for every task, made by the code that training calls.

>>> print(section("glue", "rte"))
### rte
<BLANKLINE>
...
"""

import json

from docs.builders.markdown import MADE, code, table
from t5suite.commands.tasks import example_row
from t5suite.constants import DATASET_VALS, MIXTURES
from t5suite.tasks.registry import Task, load_task


def page() -> str:
    """The page's text."""
    parts = [MADE.format(sources="the registry (t5suite/constants.py)"), INTRODUCTION, "## In short", _overview()]
    for benchmark, entries in DATASET_VALS.items():
        parts.append(f"## {benchmark}")
        parts += [_mixture(name, mixture) for name, mixture in MIXTURES.get(benchmark, {}).items()]
        parts += [section(benchmark, name) for name in entries]
    return "\n\n".join(parts) + "\n"


def section(benchmark: str, name: str) -> str:
    """One task: a made-up row, the text made of it, the answer, and how the answer is read."""
    task = load_task(benchmark, name)
    row = example_row(task)
    examples = task.examples(row)
    shown = "\n".join(f"inputs:  {example.inputs}\ntargets: {example.targets}" for example in examples)
    return "\n\n".join(
        [f"### {name}", f"Row: {code(json.dumps(row, ensure_ascii=False))}", f"```text\n{shown}\n```", _answer(task)]
    )


def _overview() -> str:
    rows = [
        [benchmark, str(len(entries)), ", ".join(map(code, entries))] for benchmark, entries in DATASET_VALS.items()
    ]
    return table(["benchmark", "tasks", ""], rows)


def _mixture(name: str, mixture: dict) -> str:
    only = [task for task in mixture["evaluate"] if task not in mixture["train"]]
    unscored = [task for task in mixture["train"] if task not in mixture["evaluate"]]
    parts = [f"The mixture {code(name)} trains on {', '.join(mixture['train'])}"]
    parts += [f"evaluates {', '.join(only)} besides"] if only else []
    parts += [f"does not evaluate {', '.join(unscored)}"] if unscored else []
    return "; ".join(parts) + f". Its average is over {', '.join(mixture['average'])}."


def _answer(task: Task) -> str:
    """How a written answer is read, what it is scored by, and which rows there are, as a list."""
    kinds = {
        "class": f"{', '.join(f'{i} {code(word)}' for i, word in enumerate(task.label_words or []))}",
        "number": "a number as text",
        "text": "free text",
    }
    metrics = ", ".join(task.entry["metric_names"]) or "none"
    selected = task.entry["metric_to_optimize"]
    lines = [f"* Answers: {kinds[task.value_kind]}", f"* Metrics: {metrics}"]
    if selected and selected != metrics:
        lines[-1] += f"; selected by {selected}"
    if task.has_candidates and task.value_kind != "class":
        lines[0] += "; `--eval_method score` chooses among candidates"
    elif not task.has_candidates:
        lines[0] += "; `--eval_method score` has nothing to choose among"
    lines.append(f"* Rows: {_rows(task)}")
    return "\n".join(lines)


def _rows(task: Task) -> str:
    counts = task.entry.get("num_examples") or {}
    names = [name for role in ("train", "validation", "test") for name in task.splits(role).values()]
    hub = " ".join(filter(None, [task.entry.get("hub_path"), task.entry.get("hub_name")]))
    splits = ", ".join(f"{name} {counts[name]:,}" if name in counts else name for name in names)
    own = f"those of {task.rows_of}: " if task.rows_of != task.name else ""
    return own + splits + (f" ({code(hub)} on the hub)" if hub else "")


INTRODUCTION = """# Text formats

What a model reads and writes for every shipped task. Each example is made by the functions that training and evaluation
call, from a made-up row whose texts are named after their columns; `t5suite preview` shows the same for rows of yours.
What the forms go back to, and how answers are read, is told in [tasks.md](tasks.md); the metrics in
[metrics.md](metrics.md)."""
