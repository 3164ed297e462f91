"""A sweep's directory belongs to one sweep file.

>>> open_directory("runs/sweeps/rte", plan, resume=False)
ConfigError: --sweep_dir runs/sweeps/rte holds a sweep already; go on with it by --resume, or ...
"""

import os
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.files import named_errors
from t5suite.base.yaml_files import read_yaml
from t5suite.launch.sweep_plans import SweepPlan

SWEEP_FILE = "sweep.yaml"


def open_directory(directory: Path, plan: SweepPlan, resume: bool) -> None:
    """Makes a sweep's directory, or finds the same sweep there.

    Raises:
      ConfigError: another sweep's, or the same without `resume`, or files that are no sweep's.
    """
    path = directory / SWEEP_FILE
    if path.is_file() and not resume:
        raise ConfigError(
            f"--sweep_dir {directory} holds a sweep already; go on with it by --resume, or give another --sweep_dir"
        )
    if not path.is_file() and directory.is_dir():
        found = sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith("."))
        if found and not path.is_file():
            raise ConfigError(
                f"--sweep_dir {directory}: not empty ({', '.join(found[:3])}, ...) and no sweep's; give another one"
            )
    directory.mkdir(parents=True, exist_ok=True)
    _write_once(path, plan)
    changed = changes_between(read_yaml(path).content, plan.content)
    if changed:
        raise ConfigError(
            f"--sweep_dir {directory} holds a sweep of another file ({SWEEP_FILE} there): {'; '.join(changed[:6])}. "
            "Restore the file, or give another --sweep_dir"
        )


def _write_once(path: Path, plan: SweepPlan) -> None:
    """The file appears whole, and only if it is not there: two processes may begin a sweep in the same moment."""
    import yaml

    if path.is_file():
        return
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.tmp")
    text = plan.text or yaml.safe_dump(plan.content, sort_keys=False, allow_unicode=True)
    try:
        with named_errors(path, temporary):
            temporary.write_text(text, encoding="utf-8")
        os.link(temporary, path)
    except FileExistsError:
        pass
    finally:
        temporary.unlink(missing_ok=True)


def changes_between(there, here, path: str = "") -> list[str]:
    """What differs between two files' contents, in words.

    >>> changes_between({"metric": {"goal": "minimize"}}, {"metric": {"goal": "maximize"}})
    ["metric.goal 'minimize' there, 'maximize' here"]
    """
    if isinstance(there, dict) and isinstance(here, dict):
        names = [*there, *(name for name in here if name not in there)]
        parts = [changes_between(there.get(n), here.get(n), f"{path}.{n}" if path else str(n)) for n in names]
        return [change for part in parts for change in part]
    return [] if there == here and type(there) is type(here) else [f"{path} {there!r:.80} there, {here!r:.80} here"]
