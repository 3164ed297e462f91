"""The registry together with a user's own tasks (`--task_file`).

    >>> registry = load_registry("my_tasks.yaml")
    >>> sorted(registry)
    ['glue', 'mine', 'mini', 'super_glue']

A task file is `{benchmark: {task: entry}}` in YAML, or a Python file that defines `DATASET_VALS`; the Python file is
run, so give only files that you trust. Benchmarks, tasks and splits give folders and files their names, so none may
leave its folder (`t5suite.base.lookup`). An entry that cannot work, or redefines a shipped task, is refused when used.
"""

import runpy
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import check_name
from t5suite.base.yaml_files import YamlFile, read_yaml
from t5suite.constants import DATASET_VALS
from t5suite.tasks.entries import Refused, check_entry


def load_registry(task_file: str | None = None) -> dict:
    """`{benchmark: {task: entry}}`: the shipped tasks, and those of `task_file`, `Refused` where they cannot work.

    Raises:
      ConfigError: the file cannot be read, or is no table of tables.
    """
    registry = {benchmark: dict(tasks) for benchmark, tasks in DATASET_VALS.items()}
    if task_file is None:
        return registry
    content, lines = _read(task_file)
    for benchmark, tasks in content.items():
        place = _place(task_file, lines, benchmark)
        check_name(benchmark, "benchmark", place)
        if not isinstance(tasks, dict):
            raise ConfigError(f"{place}: {benchmark} must be a table of tasks, not {tasks!r:.200}")
        for name, entry in tasks.items():
            try:
                place = _place(task_file, lines, benchmark, name)
                check_name(name, "task", place)
                if name in DATASET_VALS.get(benchmark, {}):
                    raise ConfigError(f"{place}: {benchmark}/{name} is a shipped task; give yours another name")
                check_entry(f"{place}: {benchmark}/{name}", entry)
                _check_paths(f"{place}: {benchmark}/{name}", entry)
            except ConfigError as error:
                entry = Refused(error)
            registry.setdefault(benchmark, {})[name] = entry
    return registry


def _place(task_file, lines: dict, *keys) -> str:
    """`file:line` of a key, or the file where it has no line."""
    line = lines.get(tuple(map(str, keys)))
    return f"{task_file}:{line}" if line else str(task_file)


def _check_paths(where: str, entry: dict) -> None:
    """What an entry names that becomes part of a path: splits, and the task whose rows it reads."""
    if entry.get("rows_of") is not None:
        check_name(entry["rows_of"], "task", f"{where}: rows_of")
    for role, names in (entry.get("splits") or {}).items():
        for name in [names] if isinstance(names, str) else names:
            check_name(name, "split", f"{where}: splits: {role}")


def _read(task_file) -> YamlFile:
    """The file's content and its lines; those of a Python file are not known."""
    path = Path(task_file)
    if not path.is_file():
        raise ConfigError(f"--task_file: no file {str(path)!r}")
    if path.suffix == ".py":
        read = YamlFile(_run_python(path), {})
    elif path.suffix in (".yaml", ".yml"):
        read = read_yaml(path)
    else:
        raise ConfigError(f"--task_file: {path} must end in .yaml, .yml or .py")
    if not isinstance(read.content, dict):
        raise ConfigError(f"--task_file: {path} must hold {{benchmark: {{task: entry}}}} (in Python as DATASET_VALS)")
    return read


def _run_python(path: Path):
    try:
        return runpy.run_path(str(path)).get("DATASET_VALS")
    except Exception as error:
        raise ConfigError(f"--task_file: {path} does not run: {type(error).__name__}: {error}") from error
