"""`t5suite preview`: the text pairs that rows become.

t5suite preview --benchmark glue --dataset_name rte --rows rows.jsonl --json
"""

from t5suite.base.errors import ConfigError
from t5suite.commands.shared import (
    add_data_dir_flag,
    add_json_flag,
    add_task_flags,
    check_at_least,
    note,
    print_json,
    show_text,
)
from t5suite.commands.task_rows import read_task_rows, role_of

# Rows of the task's own split that are shown without --limit.
DEFAULT_LIMIT = 3


def preview_flags(parser) -> None:
    """Flags of `t5suite preview`."""
    add_task_flags(parser)
    add = parser.add_argument
    add("--rows", help="file of rows, JSON lines or Parquet; default: the first rows of the task's own split")
    add("--split", help="train, validation, test or a split of the source (default: validation)")
    add("--limit", type=int, help="show this many rows (default: 3, or all of --rows)")
    add("--task_lists", help="super_ni: the folder below DIR/splits with the lists of tasks (default)")
    add_data_dir_flag(parser)
    add_json_flag(parser)


def preview(arguments) -> None:
    """Prints what the model would read and write for each row."""
    check_at_least(arguments, limit=1)
    task = _task_by_flags(arguments)
    if arguments.rows:
        task_rows = read_task_rows(task, arguments.rows, role_of(task, arguments.split or "validation"))
        examples_by_row = [task_row.examples for task_row in task_rows[: arguments.limit]]
    else:
        limit = arguments.limit or DEFAULT_LIMIT
        examples_by_row = _source_examples(task, arguments.split, arguments.data_dir, limit)
    for row_index, examples in enumerate(examples_by_row):
        for example in examples:
            if arguments.json:
                print_json({"row": row_index, "inputs": example.inputs, "targets": example.targets})
            else:
                show_text(f"row {row_index}\n  inputs   {example.inputs}\n  targets  {example.targets}")
    if not any(examples_by_row):
        note("these rows give no examples")


def _task_by_flags(arguments):
    """The task that the flags name.

    Raises:
      ConfigError: --task_lists has no effect on this task, or on rows of a file.
    """
    from t5suite.tasks.registry import load_task

    task = load_task(arguments.benchmark, arguments.dataset_name, arguments.task_file)
    if arguments.task_lists is None:
        return task
    from t5suite.training.flags.data import with_instruction

    if not task.entry.get("instruction"):
        raise ConfigError(f"--task_lists is for super_ni's tasks, not for {task.benchmark}/{task.name}")
    if arguments.rows:
        raise ConfigError("--task_lists has no effect with --rows, which names the rows")
    return with_instruction(task, {"task_lists": arguments.task_lists})


def _source_examples(task, split: str | None, data_dir: str | None, limit: int) -> list[list]:
    """The examples of a split's first rows, from --data_dir, the bundled data or the hub."""
    from t5suite.data.rows.sources import DataOptions, load_split

    roles = [role for role in ("validation", "test", "train") if task.splits(role)]
    role = role_of(task, split or roles[0])
    split_names = list(task.splits(role).values())
    if not split_names:
        raise ConfigError(f"--split: {task.benchmark}/{task.name} has no {role} split; it has {', '.join(roles)}")
    split_name = split if split in split_names else split_names[0]
    loaded_split = load_split(task, role, split_name, DataOptions(data_dir=data_dir, rows_flag="--rows"))
    note(f"rows of {loaded_split.origin}")
    first_rows = loaded_split.rows.select(range(min(limit, len(loaded_split.rows))))
    return [task.examples(row, role) for row in first_rows]
