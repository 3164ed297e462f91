"""`t5suite tasks`: what there is to fine-tune on.

t5suite tasks --benchmark super_glue --dataset_name copa
"""

import json

from t5suite.base.lookup import find
from t5suite.commands.shared import ROLES, add_json_flag, add_task_flags, print_json, show_text


def tasks_flags(parser) -> None:
    """Flags of `t5suite tasks`."""
    add_task_flags(parser, required=False)
    add_json_flag(parser)


def show_tasks(arguments) -> None:
    """Lists the registry, or describes one task with an example."""
    from t5suite.tasks.entries import Refused, load_registry
    from t5suite.tasks.registry import load_task

    registry = load_registry(arguments.task_file)
    if arguments.benchmark:
        registry = {arguments.benchmark: find(arguments.benchmark, registry, "benchmark", where="--benchmark")}
    names = {task: task for tasks in registry.values() for task in tasks}
    if arguments.dataset_name:
        find(arguments.dataset_name, names, "task", where="--dataset_name")
    for benchmark, entries in registry.items():
        wanted = [name for name in entries if arguments.dataset_name in (None, name)]
        refused = {name: entries[name] for name in wanted if isinstance(entries[name], Refused)}
        shown = [name for name in wanted if arguments.dataset_name or name not in refused]
        tasks = [load_task(benchmark, name, registry=registry) for name in shown]
        if arguments.json:
            for name, reason in refused.items():
                print_json({"benchmark": benchmark, "dataset_name": name, "refused": reason})
            for task in tasks:
                example = {"example": _example_facts(task)} if arguments.dataset_name else {}
                print_json({**_task_facts(task), **example})
        elif arguments.dataset_name:
            for task in tasks:
                _print_task(task)
        else:
            _print_task_list(benchmark, tasks)
            for name, reason in refused.items():
                print(f"  {name:<12}  refused: {reason}")


def _task_facts(task) -> dict:
    """What `tasks --json` says of a task."""
    from t5suite.tasks.entries import metric_functions

    return {
        "benchmark": task.benchmark,
        "dataset_name": task.name,
        "splits": {role: list(task.splits(role).values()) for role in ROLES if task.splits(role)},
        "num_examples": task.entry.get("num_examples"),
        "metrics": list(metric_functions(task.entry)),
        "metric_to_optimize": task.entry["metric_to_optimize"],
        "prefix": task.entry["prefix"],
        "text_column_name": task.entry["text_column_name"],
        "label_column_name": task.entry["label_column_name"],
        "labels": task.label_words,
        "hub_path": task.entry.get("hub_path"),
        "hub_name": task.entry.get("hub_name"),
    }


def _example_facts(task) -> dict:
    """A made-up row and the texts that it becomes."""
    row = example_row(task)
    example = task.examples(row)[0]
    return {"row": row, "inputs": example.inputs, "targets": example.targets}


def _split_counts(facts: dict) -> str:
    """`train 2490, validation 277, test 3000`; only names where the counts are not known."""
    counts = facts["num_examples"] or {}
    names = [name for of_role in facts["splits"].values() for name in of_role]
    return ", ".join(f"{name} {counts[name]}" if name in counts else name for name in names)


def _print_task_list(benchmark: str, tasks: list) -> None:
    print(benchmark)
    lines = [
        (task.name, ", ".join(facts["metrics"]) or "-", _split_counts(facts)) for task, facts in _with_facts(tasks)
    ]
    name_width = max([12, *(len(line[0]) for line in lines)])
    metrics_width = max([28, *(len(line[1]) for line in lines)])
    for name, metrics, counts in lines:
        print(f"  {name:<{name_width}}  {metrics:<{metrics_width}}  {counts}")


def _with_facts(tasks: list) -> list[tuple]:
    return [(task, _task_facts(task)) for task in tasks]


def _print_task(task) -> None:
    facts, example = _task_facts(task), _example_facts(task)
    columns = facts["text_column_name"]
    selected = facts["metric_to_optimize"]
    hub = " ".join(filter(None, [facts["hub_path"], facts["hub_name"]]))
    lines = {
        "rows": f"{hub + ', or ' if hub else ''}DIR/{task.benchmark}/{task.rows_of}/<split>.jsonl with --data_dir DIR",
        "splits": _split_counts(facts),
        "prefix": json.dumps(facts["prefix"]),
        "columns": ", ".join([columns] if isinstance(columns, str) else columns),
        "label": facts["label_column_name"],
        "labels": ", ".join(facts["labels"]) if facts["labels"] else f"({task.value_kind})",
        "metrics": f"{', '.join(facts['metrics']) or 'none'}" + (f" (selected by {selected})" if selected else ""),
        "row": json.dumps(example["row"], ensure_ascii=False),
        "inputs": example["inputs"],
        "targets": example["targets"],
    }
    print(f"{task.benchmark}/{task.name}")
    for name, value in lines.items():
        show_text(f"  {name:<8}  {value}")


def example_row(task) -> dict:
    """A made-up row of a task, its texts named after their columns.

    >>> example_row(load_task("glue", "qnli"))
    {'question': '<question>', 'sentence': '<sentence>', 'label': 0}
    """
    formatter = task.entry.get("formatter")
    if formatter in EXAMPLE_ROWS:
        return EXAMPLE_ROWS[formatter]
    label = {"class": 0, "number": 3.8, "text": f"<{task.entry['label_column_name']}>"}[task.value_kind]
    row: dict = {}
    for column in task.text_columns:
        _set_at(row, column, f"<{column}>")
    _set_at(row, task.entry["label_column_name"], label)
    return row


def _set_at(row: dict, column: str, value) -> None:
    """Sets what a column's name, or a dotted one, reaches."""
    *outer, last = column.split(".")
    for name in outer:
        row = row.setdefault(name, {})
    row[last] = value


# Rows for `t5suite tasks --dataset_name`, by formatter, where texts named after their columns would not do.
EXAMPLE_ROWS = {
    "record": {
        "query": "@placeholder won the cup.",
        "entities": ["Anna", "Ben"],
        "passage": "Anna beat Ben.\n@highlight\nIt rained",
        "answers": ["Anna"],
    },
    "wsc": {
        "text": "Mark told Pete that he won .",
        "span1_text": "Mark",
        "span2_index": 4,
        "span2_text": "he",
        "label": 1,
    },
    "wnli_simple": {"sentence1": "The cup fell, so it broke.", "sentence2": "The cup broke.", "label": 1},
    "squad": {
        "question": "Who won?",
        "context": "Anna (1990) beat Ben.",
        "answers": {"text": ["Anna"], "answer_start": [0]},
    },
    "super_ni": {
        "task": "task1146_country_capital",
        "definition": "You are given a country, and you need to return its capital",
        "positive_examples": [{"input": "India", "output": "New Delhi", "explanation": "It is the capital of India."}],
        "negative_examples": [{"input": "Italy", "output": "Beijing", "explanation": "It is the capital of China."}],
        "input": "Peru",
        "output": ["Lima"],
    },
    "dpr": {"sentence": "Bees sting as they fly.", "pronoun": "they", "candidates": ["Bees", "Wasps"], "label": 0},
}
