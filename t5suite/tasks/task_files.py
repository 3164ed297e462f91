"""The registry together with a user's own tasks (`--task_file`).

    >>> registry = load_registry("my_tasks.yaml")
    >>> sorted(registry)
    ['glue', 'mine', 'mini', 'super_glue']

A task file is `{benchmark: {task: entry}}` in YAML, or a Python file that defines `DATASET_VALS`; the Python file is
run, so give only files that you trust. Redefining a shipped task is an error.
"""

import runpy
from pathlib import Path

from t5suite.constants import DATASET_VALS
from t5suite.errors import ConfigError
from t5suite.tasks.entries import check_entry


def load_registry(task_file: str | None = None) -> dict:
    """`{benchmark: {task: entry}}`: the shipped tasks, and those of `task_file`.

    Raises:
      ConfigError: the file cannot be read, an entry is malformed, or a shipped task is redefined.
    """
    registry = {benchmark: dict(tasks) for benchmark, tasks in DATASET_VALS.items()}
    if task_file is None:
        return registry
    for benchmark, tasks in _read(Path(task_file)).items():
        if not isinstance(tasks, dict):
            raise ConfigError(f"{task_file}: {benchmark} must be a table of tasks, not {tasks!r}")
        for name, entry in tasks.items():
            if name in DATASET_VALS.get(benchmark, {}):
                raise ConfigError(f"{task_file}: {benchmark}/{name} is a shipped task; give yours another name")
            check_entry(f"{task_file}: {benchmark}/{name}", entry)
            registry.setdefault(benchmark, {})[name] = entry
    return registry


def _read(path: Path) -> dict:
    if not path.is_file():
        raise ConfigError(f"--task_file: no file {str(path)!r}")
    if path.suffix == ".py":
        content = _run_python(path)
    elif path.suffix in (".yaml", ".yml"):
        content = _read_yaml(path)
    else:
        raise ConfigError(f"--task_file: {path} must end in .yaml, .yml or .py")
    if not isinstance(content, dict):
        raise ConfigError(f"--task_file: {path} must hold {{benchmark: {{task: entry}}}} (in Python as DATASET_VALS)")
    return content


def _run_python(path: Path):
    try:
        return runpy.run_path(str(path)).get("DATASET_VALS")
    except Exception as error:
        raise ConfigError(f"--task_file: {path} does not run: {type(error).__name__}: {error}") from error


def _read_yaml(path: Path):
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{place}: {getattr(error, 'problem', None) or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text ({error})") from None
