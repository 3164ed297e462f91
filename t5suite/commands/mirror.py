"""`t5suite mirror`: a benchmark's rows from the hub, for machines without a network.

t5suite mirror --benchmark glue --dataset_name all --output_dir data
"""

from t5suite.base.lookup import find
from t5suite.commands.shared import add_json_flag, note, print_json


def mirror_flags(parser) -> None:
    """Flags of `t5suite mirror`."""
    add = parser.add_argument
    add("--benchmark", required=True, help="glue, super_glue, or one of your --task_file")
    add("--dataset_name", default="all", help="a task, several with commas, or all (default)")
    add("--task_file", help="YAML or Python file with tasks of your own")
    add("--output_dir", required=True, help="DIR: files are DIR/<benchmark>/<task>/<split>.jsonl")
    add(
        "--data_revision",
        help="branch, tag or commit of the hub's data set, or NAME=REVISION,... of several (default: main)",
    )
    add("--gzip", action="store_true", help="write .jsonl.gz")
    add("--force", action="store_true", help="write existing files again")
    add_json_flag(parser)


def run_mirror(arguments) -> None:
    """Downloads a benchmark for machines without a network."""
    from t5suite.data.rows.mirrors import write_mirror

    tasks = _tasks_to_mirror(arguments.benchmark, arguments.dataset_name, arguments.task_file)
    copies = write_mirror(tasks, arguments.output_dir, arguments.data_revision, arguments.gzip, arguments.force)
    for copy in copies:
        _print_copy(copy, arguments.json)
        if copy.differs:
            note(f"{copy.path} has {copy.rows} rows, but the official number is {copy.official}")


def _tasks_to_mirror(benchmark: str, dataset_name: str, task_file: str | None) -> list:
    """The tasks that the flags name, each set of rows once: `wnli_simple` reads `wnli`'s rows."""
    from t5suite.tasks.entries import load_registry
    from t5suite.tasks.registry import load_task, resolve_names

    registry = load_registry(task_file)
    entries = find(benchmark, registry, "benchmark", where="--benchmark")
    if dataset_name == "all":
        tasks = [load_task(benchmark, name, registry=registry) for name in entries]
        tasks = [task for task in tasks if task.entry.get("hub_path")] or tasks
    else:
        names, *_ = resolve_names(benchmark, dataset_name, registry, {})
        tasks = [load_task(benchmark, name, registry=registry) for name in names]
    names_of_rows = dict.fromkeys(task.rows_of if task.rows_of in entries else task.name for task in tasks)
    return [load_task(benchmark, name, registry=registry) for name in names_of_rows]


def _print_copy(copy, as_json: bool) -> None:
    """One line for each split: written now, or there before."""
    if as_json:
        print_json(
            {
                "benchmark": copy.task.benchmark,
                "dataset_name": copy.task.name,
                "split": copy.split,
                "path": str(copy.path),
                "status": copy.status,
                "rows": copy.rows,
                "official": copy.official,
            }
        )
    elif copy.status == "written":
        print(f"{copy.path}: {copy.rows} rows", flush=True)
    else:
        print(f"{copy.path}: exists already (--force writes it again)", flush=True)
