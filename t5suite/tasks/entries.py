"""The registry: the shipped entries together with a user's own (`--task_file`).

>>> sorted(load_registry("my_tasks.yaml"))
['glue', 'mine', 'mini', 'super_glue', ...]

A task file is `{benchmark: {task: entry}}` in YAML, or a Python file that defines `DATASET_VALS`; the Python file is
run, so give only files that you trust. Benchmarks, tasks and splits name folders and files, so none may point outside
its folder. An entry that is invalid, or redefines a shipped task, is refused when it is used.
"""

import runpy
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import check_name, search_current_folder
from t5suite.base.yaml_files import YamlFile, read_yaml
from t5suite.constants import DATASET_VALS
from t5suite.tasks.cells import as_list
from t5suite.tasks.entry_checks import Refused, check_entry, check_training_split


def load_registry(task_file: str | None = None) -> dict:
    """`{benchmark: {task: entry}}`: the shipped tasks, and those of `task_file`, `Refused` if invalid.

    Raises:
      ConfigError: the file cannot be read, or is not a table of tables.
    """
    registry = {benchmark: dict(tasks) for benchmark, tasks in DATASET_VALS.items()}
    if task_file is None:
        return registry
    content, lines = _read_task_file(task_file)

    def place_of(*keys) -> str:
        line = lines.get(tuple(map(str, keys)))
        return f"{task_file}:{line}" if line else str(task_file)

    for benchmark, tasks in content.items():
        place = place_of(benchmark)
        check_name(benchmark, "benchmark", place)
        if not isinstance(tasks, dict):
            raise ConfigError(f"{place}: {benchmark} must be a table of tasks, not {tasks!r:.200}")
        for name, entry in tasks.items():
            checked_entry = _checked_or_refused(benchmark, name, entry, place_of(benchmark, name))
            # A number as a name, which is refused, is found by the text that a flag gives.
            registry.setdefault(benchmark, {})[str(name)] = checked_entry
    return registry


def benchmarks_of_task_file(task_file: str) -> list[str]:
    """The names of the benchmarks that a task file has tasks of.

    Raises:
      ConfigError: as `load_registry`.
    """
    return [str(benchmark) for benchmark in _read_task_file(task_file).content]


def _checked_or_refused(benchmark: str, name: str, entry, place: str):
    """An entry of a task file, or why it cannot be used.

    Args:
      place: the file and line of the entry, for messages.
    """
    try:
        check_name(name, "task", place)
        if name in DATASET_VALS.get(benchmark, {}):
            raise ConfigError(f"{place}: {benchmark}/{name} is a shipped task; give yours another name")
        check_entry(f"{place}: {benchmark}/{name}", entry)
        check_training_split(f"{place}: {benchmark}/{name}", entry)
        if entry.get("rows_of") is not None:
            check_name(entry["rows_of"], "task", f"{place}: {benchmark}/{name}: rows_of")
        for role, names in (entry.get("splits") or {}).items():
            for split in as_list(names):
                check_name(split, "split", f"{place}: {benchmark}/{name}: splits: {role}")
    except ConfigError as error:
        return Refused(error)
    return entry


def _read_task_file(task_file) -> YamlFile:
    """The file's content and line numbers; a Python file has no line numbers."""
    path = Path(task_file)
    if not path.is_file():
        raise ConfigError(f"--task_file: no file {str(path)!r}")
    if path.suffix == ".py":
        read = YamlFile(_registry_of_python_file(path), {})
    elif path.suffix in (".yaml", ".yml"):
        read = read_yaml(path)
    else:
        hint = f"; a model's task is read by --model_name_or_path {path.parent}" if path.suffix == ".json" else ""
        raise ConfigError(f"--task_file: {path} must end in .yaml, .yml or .py{hint}")
    if not isinstance(read.content, dict):
        raise ConfigError(f"--task_file: {path} must hold {{benchmark: {{task: entry}}}} (in Python as DATASET_VALS)")
    return read


def _registry_of_python_file(path: Path):
    """`DATASET_VALS` of a Python file, which is run; it may import modules of the current folder."""
    search_current_folder()
    try:
        return runpy.run_path(str(path)).get("DATASET_VALS")
    except SystemExit as error:
        raise ConfigError(
            f"--task_file: {path} ends the program (SystemExit: {error}); it must only define tasks"
        ) from None
    except Exception as error:
        raise ConfigError(f"--task_file: {path} does not run: {type(error).__name__}: {error}") from error
