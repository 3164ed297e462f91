"""`t5suite tasks`: the tasks of every benchmark, or one task with an example.

t5suite tasks --benchmark super_glue --dataset_name copa
"""

import json

from t5suite.base.lookup import find
from t5suite.commands.shared import add_json_flag, add_task_flags, print_json, show_text
from t5suite.commands.task_rows import ROLES

# Rows for `t5suite tasks --dataset_name`, by formatter, where texts named after their columns do not work.
EXAMPLE_ROWS = {
    "record": {"query": "@placeholder won the cup.", "entities": ["Anna", "Ben"],
        "passage": "Anna beat Ben.\n@highlight\nIt rained", "answers": ["Anna"]},
    "wsc": {"text": "Mark told Pete that he won .", "span1_text": "Mark", "span2_index": 4, "span2_text": "he",
        "label": 1},
    "wnli_simple": {"sentence1": "The cup fell, so it broke.", "sentence2": "The cup broke.", "label": 1},
    "squad": {"question": "Who won?", "context": "Anna (1990) beat Ben.", "answers": {"text": ["Anna"],
        "answer_start": [0]}},
    "super_ni": {"task": "task1146_country_capital",
        "definition": "You are given a country, and you need to return its capital",
        "positive_examples": [{"input": "India", "output": "New Delhi", "explanation": "It is the capital of India."}],
        "negative_examples": [{"input": "Italy", "output": "Beijing", "explanation": "It is the capital of China."}],
        "input": "Peru", "output": ["Lima"]},
    "dpr": {"sentence": "Bees sting as they fly.", "pronoun": "they", "candidates": ["Bees", "Wasps"], "label": 0},
}  # fmt: skip
# The columns of these rows for which an entry may have its own names: the texts that are read by them, and the label.
EXAMPLE_COLUMNS = {
    "record": ([], "answers"), "wsc": ([], "label"), "wnli_simple": (["sentence1", "sentence2"], "label"),
    "squad": (["question", "context"], "answers.text"), "super_ni": ([], "output"), "dpr": ([], "label"),
}  # fmt: skip


def tasks_flags(parser) -> None:
    """Flags of `t5suite tasks`."""
    add_task_flags(parser, required=False)
    add_json_flag(parser)


def show_tasks(arguments) -> None:
    """Lists the registry, or describes one task with an example."""
    from t5suite.tasks.entries import load_registry

    registry = load_registry(arguments.task_file)
    if arguments.benchmark:
        entries = find(arguments.benchmark, registry, "benchmark", where="--benchmark")
        registry = {arguments.benchmark: entries}
    if arguments.dataset_name:
        task_names = {name: name for entries in registry.values() for name in entries}
        find(arguments.dataset_name, task_names, "task", where="--dataset_name")
    for benchmark, entries in registry.items():
        if arguments.dataset_name is None:
            _list_benchmark(registry, benchmark, arguments.json)
        elif arguments.dataset_name in entries:
            _describe_task(registry, benchmark, arguments.dataset_name, arguments.json)


def _list_benchmark(registry: dict, benchmark: str, as_json: bool) -> None:
    """Prints one line for each task: metrics and splits, or why it is refused."""
    from t5suite.tasks.registry import load_task

    entries = registry[benchmark]
    refused_names = [name for name, entry in entries.items() if _is_refused(entry)]
    tasks = [load_task(benchmark, name, registry=registry) for name in entries if name not in refused_names]
    descriptions = [_task_description(task) for task in tasks]
    if as_json:
        for name in refused_names:
            _print_refusal_json(benchmark, name, entries[name])
        for description in descriptions:
            print_json(description)
        return
    print(benchmark)
    metrics = [", ".join(description["metrics"]) or "-" for description in descriptions]
    name_width = max([12, *(len(task.name) for task in tasks)])
    metrics_width = max([28, *map(len, metrics)])
    for task, description, metric_names in zip(tasks, descriptions, metrics):
        print(f"  {task.name:<{name_width}}  {metric_names:<{metrics_width}}  {_split_counts(description)}")
    for name in refused_names:
        print(f"  {name:<12}  refused: {entries[name]}")


def _describe_task(registry: dict, benchmark: str, name: str, as_json: bool) -> None:
    """Prints all about one task, with an example."""
    from t5suite.tasks.registry import load_task

    entry = registry[benchmark][name]
    if as_json and _is_refused(entry):
        _print_refusal_json(benchmark, name, entry)
    task = load_task(benchmark, name, registry=registry)
    row = made_up_row(task)
    description = _task_description(task)
    description["example"] = {"row": row, **task.examples(row)[0]._asdict()}
    if as_json:
        print_json(description)
    else:
        _print_task(task, description)


def _is_refused(entry) -> bool:
    """Whether the registry has a reason instead of a task."""
    from t5suite.tasks.entry_checks import Refused

    return isinstance(entry, Refused)


def _print_refusal_json(benchmark: str, name: str, reason: str) -> None:
    print_json({"benchmark": benchmark, "dataset_name": name, "refused": reason})


def _task_description(task) -> dict:
    """What `tasks --json` prints about a task."""
    from t5suite.tasks.entry_metrics import metric_functions
    from t5suite.tasks.evaluate_metrics import evaluate_names

    entry = task.entry
    return {
        "benchmark": task.benchmark,
        "dataset_name": task.name,
        "splits": {role: list(task.splits(role).values()) for role in ROLES if task.splits(role)},
        "num_examples": entry.get("num_examples"),
        "metrics": [*metric_functions(entry), *evaluate_names(entry)],
        **{name: entry[name] for name in ("metric_to_optimize", "prefix", "text_column_name", "label_column_name")},
        "labels": task.label_words,
        "hub_path": entry.get("hub_path"),
        "hub_name": entry.get("hub_name"),
    }


def _split_counts(description: dict) -> str:
    """`train 2490, validation 277, test 3000`; only names if the counts are unknown."""
    counts = description["num_examples"] or {}
    names = [name for role_names in description["splits"].values() for name in role_names]
    return ", ".join(f"{name} {counts[name]}" if name in counts else name for name in names)


def _print_task(task, description: dict) -> None:
    columns = description["text_column_name"]
    hub_name = " ".join(filter(None, [description["hub_path"], description["hub_name"]]))
    local_files = f"DIR/{task.benchmark}/{task.rows_of}/<split>.jsonl with --data_dir DIR"
    metrics = ", ".join(description["metrics"]) or "none"
    if description["metric_to_optimize"]:
        metrics += f" (selected by {description['metric_to_optimize']})"
    lines = {
        "rows": f"{hub_name}, or {local_files}" if hub_name else local_files,
        "splits": _split_counts(description),
        "prefix": json.dumps(description["prefix"]),
        "columns": columns if isinstance(columns, str) else ", ".join(columns),
        "label": description["label_column_name"],
        "labels": ", ".join(description["labels"]) if description["labels"] else f"({task.value_kind})",
        "metrics": metrics,
        "row": json.dumps(description["example"]["row"], ensure_ascii=False),
        "inputs": description["example"]["inputs"],
        "targets": description["example"]["targets"],
    }
    print(f"{task.benchmark}/{task.name}")
    for heading, text in lines.items():
        show_text(f"  {heading:<8}  {text}")


def made_up_row(task) -> dict:
    """A made-up row of a task, its texts named after their columns.

    >>> made_up_row(load_task("glue", "qnli"))
    {'question': '<question>', 'sentence': '<sentence>', 'label': 0}
    """
    if task.entry.get("formatter") in EXAMPLE_ROWS:
        cells = _cells_of_example(task)
    else:
        label_column = task.entry["label_column_name"]
        label = {"class": 0, "labels": [0], "number": 3.8, "text": f"<{label_column}>"}[task.value_kind]
        cells = {column: f"<{column}>" for column in task.text_columns}
        cells[label_column] = label
    row: dict = {}
    for column, cell in cells.items():
        # A dotted name reaches into a nested dict.
        *table_names, last_name = column.split(".")
        table = row
        for name in table_names:
            table = table.setdefault(name, {})
        table[last_name] = cell
    return row


def _cells_of_example(task) -> dict:
    """The example row of the task's formatter, by the columns of the task's own entry."""
    from t5suite.tasks.cells import as_list, value_at

    formatter = task.entry["formatter"]
    row = EXAMPLE_ROWS[formatter]
    label_column = task.entry["label_column_name"]
    if all(value_at(row, column) is not None for column in [*task.text_columns, label_column]):
        return row
    example_texts, example_label = EXAMPLE_COLUMNS[formatter]
    own_names = dict(zip(example_texts, as_list(task.entry["text_column_name"])))
    label_cell = example_label.partition(".")[0]
    cells = {own_names.get(column, column): cell for column, cell in row.items() if column != label_cell}
    for column in task.text_columns:
        cells.setdefault(column, f"<{column}>")
    cells[label_column] = value_at(row, example_label)
    return cells
