"""A sweep's directory: created for one sweep, and shared by the processes that run it.

>>> open_directory(Path("runs/sweeps/rte"), plan, resume=True)
>>> with locked(Path("runs/sweeps/rte")):
...     write_summary()
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.files import whole_file
from t5suite.base.yaml_files import read_yaml
from t5suite.launch.sweep_plans import SweepPlan
from t5suite.runs.lock import WITHOUT_LOCKS
from t5suite.runs.settings import without_secrets

SWEEP_FILE = "sweep.yaml"
# As many differences of two sweep files, or files that are not a sweep's, are named.
MAX_CHANGES = 6
MAX_FILES = 3


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Excludes other processes that run the sweep from its directory.

    It is a kernel lock, which ends with its owner, or a link next to the file if the file system has no locks.
    """
    from optuna.storages.journal import JournalFileSymlinkLock

    path = directory.absolute() / ".claims"
    link = None
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in WITHOUT_LOCKS:
                raise
            link = JournalFileSymlinkLock(str(path))
            link.acquire()
        yield
    finally:
        if link is not None:
            link.release()
        os.close(descriptor)


def open_directory(directory: Path, plan: SweepPlan, resume: bool) -> None:
    """Creates a sweep's directory, or finds the same sweep there.

    Raises:
      ConfigError: it holds another sweep, or the same one without `resume`, or files that are not a sweep's.
    """
    path = directory / SWEEP_FILE
    entries = sorted(directory.glob("[!.]*"))
    has_begun = path.is_file()
    if entries and not path.is_file():  # another process may have written it meanwhile
        names = ", ".join(entry.name for entry in entries[:MAX_FILES])
        raise ConfigError(f"--sweep_dir {directory}: not empty ({names}, ...) and not a sweep's; give another one")
    directory.mkdir(parents=True, exist_ok=True)
    _write_sweep_file(directory, plan)
    changes = changes_between(read_yaml(path).content, content_without_secrets(plan))
    if changes:
        raise ConfigError(
            f"--sweep_dir {directory} holds a sweep of another file ({SWEEP_FILE} there): "
            f"{'; '.join(changes[:MAX_CHANGES])}. Restore the file, or give another --sweep_dir"
        )
    if has_begun and not resume:
        raise ConfigError(
            f"--sweep_dir {directory} holds this sweep already; continue it with --resume, or give another --sweep_dir"
        )


def _write_sweep_file(directory: Path, plan: SweepPlan) -> None:
    """Writes the sweep file unless another process has."""
    import yaml

    path = directory / SWEEP_FILE
    text = plan.text
    if text is None:
        text = yaml.safe_dump(content_without_secrets(plan), sort_keys=False, allow_unicode=True)
    with locked(directory):
        if not path.is_file():
            with whole_file(path) as temporary:
                temporary.write_text(text, encoding="utf-8")


def content_without_secrets(plan: SweepPlan) -> dict:
    """The content of a sweep file as it is; of a grid, whose command is from the command line, without its secrets."""
    if plan.text is not None or plan.command is None:
        return plan.content
    return {**plan.content, "command": without_secrets(plan.command)}


def changes_between(old, new, path: str = "") -> list[str]:
    """What differs between the content of a directory's sweep file and another's, in words.

    >>> changes_between({"metric": {"goal": "minimize"}}, {"metric": {"goal": "maximize"}})
    ["metric.goal 'minimize' there, 'maximize' here"]
    """
    if isinstance(old, dict) and isinstance(new, dict):
        changes = []
        for name in dict.fromkeys([*old, *new]):
            inner_path = str(name)
            if path:
                inner_path = f"{path}.{name}"
            changes += changes_between(old.get(name), new.get(name), inner_path)
        return changes
    if old == new and type(old) is type(new):
        return []
    return [f"{path} {_text_of_setting(path, old)} there, {_text_of_setting(path, new)} here"]


def _text_of_setting(path: str, value) -> str:
    """The beginning of a setting's value, without the secrets of a command."""
    if path == "command" and isinstance(value, list):
        value = without_secrets(value)
    return f"{value!r:.80}"
