"""`t5suite preview` and `t5suite score`: the texts that rows become, and the points of predictions.

t5suite preview --benchmark glue --dataset_name rte --rows rows.jsonl --json
"""

from t5suite.base.errors import ConfigError, DataError
from t5suite.commands.shared import (
    add_data_dir_flag,
    add_json_flag,
    add_task_flags,
    note,
    print_json,
    read_rows,
    role_of,
    show_text,
)


def preview_flags(parser) -> None:
    """Flags of `t5suite preview`."""
    add_task_flags(parser)
    parser.add_argument("--rows", help="JSONL file of rows; default: the first rows of the task's own split")
    parser.add_argument("--split", help="train, validation, test or a split of the source (default: validation)")
    parser.add_argument("--limit", type=int, help="show this many rows (default: 3, or all of --rows)")
    parser.add_argument("--task_lists", help="super_ni: the folder below DIR/splits with the lists of tasks (default)")
    add_data_dir_flag(parser)
    add_json_flag(parser)


def preview(arguments) -> None:
    """Prints what the model would read and write for each row."""
    from t5suite.tasks.registry import load_task

    if arguments.limit is not None and arguments.limit < 1:
        raise ConfigError(f"--limit {arguments.limit}: must be at least 1")
    task = load_task(arguments.benchmark, arguments.dataset_name, arguments.task_file)
    if arguments.task_lists is not None:
        task = _with_lists(task, arguments)
    if arguments.rows:
        _, _, examples = read_rows(task, arguments.rows, role_of(task, arguments.split or "validation"))
        limit = arguments.limit or len(examples)
    else:
        limit = arguments.limit or 3
        examples = _source_examples(task, arguments.split, arguments.data_dir, limit)
    for i, of_row in enumerate(examples[:limit]):
        for example in of_row:
            if arguments.json:
                print_json({"row": i, "inputs": example.inputs, "targets": example.targets})
            else:
                show_text(f"row {i}\n  inputs   {example.inputs}\n  targets  {example.targets}")
    if not any(examples[:limit]):
        note("no examples come of these rows")


def _with_lists(task, arguments):
    """The task, its rows those of other lists of tasks."""
    from t5suite.training.flags.instructions import with_instruction

    if not task.entry.get("instruction"):
        raise ConfigError(f"--task_lists is for super_ni's tasks, not for {task.benchmark}/{task.name}")
    if arguments.rows:
        raise ConfigError("--task_lists has no effect beside --rows, which names the rows")
    return with_instruction(task, {"task_lists": arguments.task_lists})


def _source_examples(task, split: str | None, data_dir: str | None, limit: int) -> list[list]:
    """The examples of a split's first rows, from --data_dir, the bundled data or the hub."""
    from t5suite.data.rows.sources import DataOptions, load_split

    available = [role for role in ("validation", "test", "train") if task.splits(role)]
    role = role_of(task, split or available[0])
    names = list(task.splits(role).values())
    if not names:
        raise ConfigError(f"--split: {task.benchmark}/{task.name} has no {role} split; it has {', '.join(available)}")
    name = split if split in names else names[0]
    loaded = load_split(task, role, name, DataOptions(data_dir=data_dir))
    note(f"rows of {loaded.origin}")
    return [task.examples(row, role) for row in loaded.rows.select(range(min(limit, len(loaded.rows))))]


def score_flags(parser) -> None:
    """Flags of `t5suite score`."""
    add_task_flags(parser)
    parser.add_argument("--rows", required=True, help="JSONL file of labelled rows")
    parser.add_argument(
        "--predictions", required=True, help='JSONL file: a string or {"prediction": ...} per example, in order'
    )
    parser.add_argument("--split", default="validation", help="the split that the rows are of (default: validation)")
    add_json_flag(parser)


def score(arguments) -> None:
    """Prints the metrics of predictions, in points."""
    from t5suite.data.rows.jsonl import without_nan
    from t5suite.tasks.registry import load_task

    task = load_task(arguments.benchmark, arguments.dataset_name, arguments.task_file)
    role = role_of(task, arguments.split)
    numbers, rows, _ = read_rows(task, arguments.rows, role)
    _check_labels(task, arguments.rows, numbers, rows)
    scores = task.score(rows, _read_predictions(arguments.predictions), role)
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


def _check_labels(task, path: str, numbers: list[int], rows: list[dict]) -> None:
    """All rows labelled or none, with what the metrics read besides; else an error with file and line."""
    from t5suite.tasks.postprocessors import cell_at

    labelled = [task.is_labelled(row) for row in rows]
    if any(labelled) and not all(labelled):
        raise DataError(
            f"{path}:{numbers[labelled.index(False)]}: no label, but line {numbers[labelled.index(True)]} has one; "
            "score labelled rows alone"
        )
    column, group_by = task.entry["label_column_name"], task.entry.get("group_by")
    for number, row in zip(numbers, rows, strict=True) if all(labelled) else ():
        if task.entry.get("postprocess") == "wsc_verdict" and row[column] not in (0, 1):
            raise DataError(f"{path}:{number}: label {row[column]!r} in column {column!r} is none of 0, 1")
        if not group_by:
            continue
        try:
            cell_at(row, group_by)
        except DataError as error:
            raise DataError(f"{path}:{number}: {error}") from None


def _read_predictions(path: str) -> list[str]:
    from t5suite.data.rows.jsonl import numbered_lines

    texts = []
    for number, line in numbered_lines(path, (str, dict)):
        text = line.get("prediction") if isinstance(line, dict) else line
        if not isinstance(text, str):
            found = "no 'prediction'" if "prediction" not in line else f"prediction {text!r}"
            raise DataError(f'{path}:{number}: expected "text" or {{"prediction": "text"}}, found {found}')
        texts.append(text)
    return texts
