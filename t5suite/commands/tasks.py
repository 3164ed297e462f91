"""`t5suite tasks`, `preview`, `score` and `submit`: tasks, the texts that rows become, points, leaderboards' files.

t5suite tasks --benchmark super_glue --dataset_name copa
t5suite preview --benchmark glue --dataset_name rte --rows rows.jsonl --json
"""

import json
import sys
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import find
from t5suite.commands.shared import (
    ROLES,
    add_data_dir_flag,
    add_json_flag,
    add_task_flags,
    check_at_least,
    note,
    print_json,
    read_rows,
    role_of,
    show_text,
)


def tasks_flags(parser) -> None:
    """Flags of `t5suite tasks`."""
    add_task_flags(parser, required=False)
    add_json_flag(parser)


def show_tasks(arguments) -> None:
    """Lists the registry, or describes one task with an example."""
    from t5suite.tasks.entries import load_registry
    from t5suite.tasks.entry_checks import Refused
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


def _split_counts(facts: dict) -> str:
    """`train 2490, validation 277, test 3000`; only names if the counts are unknown."""
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
    label = {"class": 0, "labels": [0], "number": 3.8, "text": f"<{task.entry['label_column_name']}>"}[task.value_kind]
    row: dict = {}
    values = {**{column: f"<{column}>" for column in task.text_columns}, task.entry["label_column_name"]: label}
    for column, value in values.items():  # a dotted name reaches into a nested dict
        table, (*outer, last) = row, column.split(".")
        for name in outer:
            table = table.setdefault(name, {})
        table[last] = value
    return row


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


def preview_flags(parser) -> None:
    """Flags of `t5suite preview`."""
    add_task_flags(parser)
    add = parser.add_argument
    add("--rows", help="JSONL file of rows; default: the first rows of the task's own split")
    add("--split", help="train, validation, test or a split of the source (default: validation)")
    add("--limit", type=int, help="show this many rows (default: 3, or all of --rows)")
    add("--task_lists", help="super_ni: the folder below DIR/splits with the lists of tasks (default)")
    add_data_dir_flag(parser)
    add_json_flag(parser)


def preview(arguments) -> None:
    """Prints what the model would read and write for each row."""
    from t5suite.tasks.registry import load_task

    check_at_least(arguments, limit=1)
    task = load_task(arguments.benchmark, arguments.dataset_name, arguments.task_file)
    if arguments.task_lists is not None:
        from t5suite.training.flags.data import with_instruction

        if not task.entry.get("instruction"):
            raise ConfigError(f"--task_lists is for super_ni's tasks, not for {task.benchmark}/{task.name}")
        if arguments.rows:
            raise ConfigError("--task_lists has no effect with --rows, which names the rows")
        task = with_instruction(task, {"task_lists": arguments.task_lists})
    if arguments.rows:
        _, _, examples = read_rows(task, arguments.rows, role_of(task, arguments.split or "validation"))
        examples = examples[: arguments.limit]
    else:
        examples = _source_examples(task, arguments.split, arguments.data_dir, arguments.limit or 3)
    for i, of_row in enumerate(examples):
        for example in of_row:
            if arguments.json:
                print_json({"row": i, "inputs": example.inputs, "targets": example.targets})
            else:
                show_text(f"row {i}\n  inputs   {example.inputs}\n  targets  {example.targets}")
    if not any(examples):
        note("these rows give no examples")


def _source_examples(task, split: str | None, data_dir: str | None, limit: int) -> list[list]:
    """The examples of a split's first rows, from --data_dir, the bundled data or the hub."""
    from t5suite.data.rows.sources import DataOptions, load_split

    available = [role for role in ("validation", "test", "train") if task.splits(role)]
    role = role_of(task, split or available[0])
    names = list(task.splits(role).values())
    if not names:
        raise ConfigError(f"--split: {task.benchmark}/{task.name} has no {role} split; it has {', '.join(available)}")
    loaded = load_split(task, role, split if split in names else names[0], DataOptions(data_dir=data_dir))
    note(f"rows of {loaded.origin}")
    return [task.examples(row, role) for row in loaded.rows.select(range(min(limit, len(loaded.rows))))]


def score_flags(parser) -> None:
    """Flags of `t5suite score`."""
    add_task_flags(parser)
    add = parser.add_argument
    add("--rows", required=True, help="JSONL file of labelled rows")
    predictions = 'JSONL file: a string or {"prediction": ...} per example, in order'
    add("--predictions", required=True, help=predictions)
    add("--split", default="validation", help="the split of the rows (default: validation)")
    add_json_flag(parser)


def score(arguments) -> None:
    """Prints the metrics of predictions, in points."""
    from t5suite.data.rows.jsonl import numbered_lines, without_nan
    from t5suite.tasks.registry import load_task

    task = load_task(arguments.benchmark, arguments.dataset_name, arguments.task_file)
    role = role_of(task, arguments.split)
    numbers, rows, _ = read_rows(task, arguments.rows, role)
    _check_labels(task, arguments.rows, numbers, rows)
    predictions, previous_row = [], -1
    for number, line in numbered_lines(arguments.predictions, (str, dict)):
        previous_row = _next_row(line, previous_row, f"{arguments.predictions}:{number}")
        text = line.get("prediction") if isinstance(line, dict) else line
        if not isinstance(text, str):
            found = "no 'prediction'" if "prediction" not in line else f"prediction {text!r}"
            expected = 'expected "text" or {"prediction": "text"}'
            raise DataError(f"{arguments.predictions}:{number}: {expected}, found {found}")
        predictions.append(text)
    scores = task.score(rows, predictions, role)
    for name, value in without_nan(scores).items():
        if value is None:
            note(f"{name} is not a number (a correlation of constants, or a prediction that is nan)")
    if not scores:
        why = "the task has no metrics" if not task.entry["metric_names"] else "the rows have no labels"
        note(f"nothing to score: {why}")
    if arguments.json:
        print_json(without_nan(scores))
    else:
        for name, value in scores.items():
            print(f"{name:<22} {value:.4f}")


def _next_row(line: str | dict, previous_row: int, place: str) -> int:
    """The number of the row that a prediction answers, where it has one, else the previous one.

    Raises:
      DataError: an earlier row's; predictions are paired with rows by their order alone.
    """
    row = line.get("row") if isinstance(line, dict) else None
    if not isinstance(row, int):
        return previous_row
    if row < previous_row:
        raise DataError(f"{place}: row {row} after row {previous_row}; predictions stand in the rows' order: sort them")
    return row


def _check_labels(task, path: str, numbers: list[int], rows: list[dict]) -> None:
    """Checks that all rows are labelled or none, with the columns that metrics read; errors have file and line."""
    from t5suite.tasks.postprocessors import cell_at

    labelled = [task.is_labelled(row) for row in rows]
    if any(labelled) and not all(labelled):
        without, with_one = (numbers[labelled.index(value)] for value in (False, True))
        raise DataError(f"{path}:{without}: no label, but line {with_one} has one; score only labelled rows")
    column, group_by = task.entry["label_column_name"], task.entry.get("group_by")
    for number, row in zip(numbers, rows, strict=True) if all(labelled) else ():
        if task.entry.get("postprocess") == "wsc_verdict" and row[column] not in (0, 1):
            raise DataError(f"{path}:{number}: label {row[column]!r} in column {column!r} is none of 0, 1")
        try:
            cell_at(row, group_by) if group_by else None
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from None


def submit_flags(parser) -> None:
    """Flags of `t5suite submit`."""
    add = parser.add_argument
    add("--benchmark", required=True, choices=["glue", "super_glue"])
    add("--run_dir", nargs="+", default=[], help="run directories with predictions/<task>.<split>.jsonl")
    add("--predictions_dir", nargs="+", default=[], help="directories with <task>.<split>.jsonl")
    add("--output_dir", required=True, help="where the files and their zip go")
    add("--allow_missing_tasks", action="store_true", help="skip tasks without predictions")
    add("--allow_partial", action="store_true", help="write files that lack some of the test rows")
    add_data_dir_flag(parser)
    add_json_flag(parser)


def submit(arguments) -> None:
    """Writes the leaderboard's files of a benchmark, and a zip of them."""
    from t5suite.tasks.registry import load_task
    from t5suite.tasks.submissions import BOARDS, board_file, check_count, write_submission

    folders = [Path(run_dir) / "predictions" for run_dir in arguments.run_dir] + [
        Path(folder) for folder in arguments.predictions_dir
    ]
    found = _prediction_files(BOARDS[arguments.benchmark], folders, arguments.allow_missing_tasks)
    contents, reports = {}, []
    for board, (name, path) in found.items():
        task = load_task(arguments.benchmark, name)
        made = board_file(board, task, _submitted(task, board.split, path, arguments.data_dir))
        check_count(board, task, made.rows, arguments.allow_partial)
        contents[board.file] = made.content
        reports.append({"file": board.file, "task": name, "rows": made.rows, "unparsable": made.unparsable})
    archive = write_submission(arguments.output_dir, arguments.benchmark, contents)
    for report in reports:
        if report["unparsable"]:
            note(
                f"{report['file']}: {report['unparsable']} of {report['rows']} predictions of {report['task']} are not "
                f"valid; {STAND_INS.get(report['file'], 'the last label replaces them, as the board needs one')}"
            )
        if arguments.json:
            print_json(report)
        else:
            print(f"{report['file']:<14} {report['rows']:>7} rows of {report['task']}")
    print(archive, file=sys.stderr if arguments.json else sys.stdout)


def _prediction_files(boards, folders: list[Path], allow_missing: bool) -> dict:
    """`{board: (task's name, file of predictions)}`.

    Raises:
      ConfigError: no folder given, or one that does not exist.
      DataError: no predictions for a board's file, or more than one file of them.
    """
    if not folders:
        raise ConfigError("give --run_dir DIR, or --predictions_dir DIR with <task>.<split>.jsonl files")
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"no directory {str(folder)!r}; a run with --do_predict writes one")
    found, missing = {}, []
    for board in boards:
        stems = [(name, f"{name}.{board.split}.jsonl") for name in board.tasks]
        files = [(name, folder / stem) for folder in folders for name, stem in stems if (folder / stem).is_file()]
        if len(files) > 1:
            named = " and ".join(str(path) for _, path in files)
            raise DataError(f"{board.file}: {named} both have predictions; keep one")
        if files:
            found[board] = files[0]
        else:
            missing.append(f"{board.file} ({' or '.join(stem for _, stem in stems)})")
    place = ", ".join(map(str, folders))
    if missing and not (found and allow_missing):
        hint = "; --allow_missing_tasks skips them" if found else ""
        raise DataError(f"no test predictions in {place} for {', '.join(missing)}{hint}")
    if missing:
        note(f"skipped, as they have no predictions in {place}: {', '.join(missing)}")
    return found


def _submitted(task, split: str, path: Path, data_dir: str | None) -> list:
    """A file's `submissions.Prediction`s; WSC's without a candidate get that of the row with the same `idx`."""
    from t5suite.data.rows.jsonl import numbered_lines
    from t5suite.data.rows.sources import DataOptions, load_split
    from t5suite.tasks.submissions import Prediction

    predictions = []
    for number, line in numbered_lines(path):
        place = f"{path}:{number}"
        text, idx, candidate = line.get("prediction"), line.get("idx", line.get("row")), line.get("candidate")
        if not isinstance(text, str):
            raise DataError(f"{place}: 'prediction' must be a text, not {text!r}")
        if idx is None:
            raise DataError(f"{place}: no 'idx' or 'row' that says which row was predicted")
        predictions.append(Prediction(place, idx, text, candidate))
    lacking = [i for i, prediction in enumerate(predictions) if prediction.candidate is None]
    if task.entry.get("postprocess") == "wsc_verdict" and lacking:
        rows = load_split(task, "test", split, DataOptions(data_dir=data_dir)).rows
        candidates = {row.get("idx", i): task.target_text(row) for i, row in enumerate(rows)}
        for i in lacking:
            place, idx, *_ = predictions[i]
            if idx not in candidates:
                raise DataError(f"{place}: no row of {task.benchmark}/{task.name} has idx {idx!r}")
            predictions[i] = predictions[i]._replace(candidate=candidates[idx])
    return predictions


# What a board gets for an invalid prediction, if not the last label.
STAND_INS = {"STS-B.tsv": "-1.0 replaces them", "ReCoRD.jsonl": "they are empty"}
