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
        facts = [_task_facts(task) for task in tasks]
        if arguments.json:
            for name, reason in refused.items():
                print_json({"benchmark": benchmark, "dataset_name": name, "refused": reason})
        if arguments.dataset_name:
            for task, of_task in zip(tasks, facts):
                row = example_row(task)
                of_task["example"] = {"row": row, **task.examples(row)[0]._asdict()}
                print_json(of_task) if arguments.json else _print_task(task, of_task)
        elif arguments.json:
            for of_task in facts:
                print_json(of_task)
        else:
            print(benchmark)
            metrics = [", ".join(of_task["metrics"]) or "-" for of_task in facts]
            width, metrics_width = max([12, *map(len, shown)]), max([28, *map(len, metrics)])
            for name, of_task, text in zip(shown, facts, metrics):
                print(f"  {name:<{width}}  {text:<{metrics_width}}  {_split_counts(of_task)}")
            for name, reason in refused.items():
                print(f"  {name:<12}  refused: {reason}")


def _task_facts(task) -> dict:
    """What `tasks --json` says of a task."""
    from t5suite.tasks.entries import metric_functions

    entry = task.entry
    return {
        "benchmark": task.benchmark,
        "dataset_name": task.name,
        "splits": {role: list(task.splits(role).values()) for role in ROLES if task.splits(role)},
        "num_examples": entry.get("num_examples"),
        "metrics": list(metric_functions(entry)),
        **{name: entry[name] for name in ("metric_to_optimize", "prefix", "text_column_name", "label_column_name")},
        "labels": task.label_words,
        "hub_path": entry.get("hub_path"),
        "hub_name": entry.get("hub_name"),
    }


def _split_counts(facts: dict) -> str:
    """`train 2490, validation 277, test 3000`; only names where the counts are not known."""
    counts = facts["num_examples"] or {}
    names = [name for of_role in facts["splits"].values() for name in of_role]
    return ", ".join(f"{name} {counts[name]}" if name in counts else name for name in names)


def _print_task(task, facts: dict) -> None:
    columns, example = facts["text_column_name"], facts["example"]
    hub = " ".join(filter(None, [facts["hub_path"], facts["hub_name"]]))
    selected = f" (selected by {facts['metric_to_optimize']})" if facts["metric_to_optimize"] else ""
    lines = {
        "rows": f"{hub + ', or ' if hub else ''}DIR/{task.benchmark}/{task.rows_of}/<split>.jsonl with --data_dir DIR",
        "splits": _split_counts(facts),
        "prefix": json.dumps(facts["prefix"]),
        "columns": ", ".join([columns] if isinstance(columns, str) else columns),
        "label": facts["label_column_name"],
        "labels": ", ".join(facts["labels"]) if facts["labels"] else f"({task.value_kind})",
        "metrics": f"{', '.join(facts['metrics']) or 'none'}{selected}",
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
    values = {**{column: f"<{column}>" for column in task.text_columns}, task.entry["label_column_name"]: label}
    for column, value in values.items():  # a dotted name reaches into a table
        table, (*outer, last) = row, column.split(".")
        for name in outer:
            table = table.setdefault(name, {})
        table[last] = value
    return row


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
