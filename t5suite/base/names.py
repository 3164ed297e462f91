"""Names that become parts of paths, and paths that stay below a folder.

    >>> check_name("topics", "task")
    'topics'
    >>> check_name("../topics", "task", where="tasks.yaml:2")
    ConfigError: tasks.yaml:2: the task name '../topics' cannot be part of a path ('/' in it); ...

Tasks, splits and runs give files their names. A name that is one component of a path can leave no folder, whatever it
is joined to.
"""

import os
from pathlib import Path

from t5suite.base.errors import ConfigError

# Files are called `<task>.<split>.jsonl.gz`, and file systems take 255 bytes.
MAX_NAME_BYTES = 100


def check_name(name, what: str, where: str = "", error=ConfigError) -> str:
    """The name as it is.

    Args:
      what: what it names, for the message.
      where: the flag or file:line that it was given by.
      error: the UserError to raise.

    Raises:
      ConfigError: it is no text, empty, longer than MAX_NAME_BYTES, begins with a dot, or holds a slash, a backslash
        or a control character.
    """
    reason = _why_not(name)
    if reason:
        place = f"{where}: " if where else ""
        raise error(
            f"{place}the {what} name {name!r:.120} cannot be part of a path ({reason}); "
            "take letters, digits, '-', '_', '.', and the like"
        )
    return name


def _why_not(name) -> str | None:
    if not isinstance(name, str):
        return f"it is no text but {type(name).__name__}"
    if not name.strip():
        return "it is empty"
    for character in name:
        if character in "/\\" or not character.isprintable():
            return f"{character!r} in it"
    if name.startswith("."):
        return "it begins with a dot"
    if len(name.encode("utf-8")) > MAX_NAME_BYTES:
        return f"longer than {MAX_NAME_BYTES} bytes"
    return None


def path_inside(root, *parts, where: str = "", error=ConfigError) -> Path:
    """`root/part/part`, which lies below `root` even where parts are links, absolute or hold `..`.

    >>> path_inside("runs/x", "predictions", "rte.validation.jsonl")
    PosixPath('runs/x/predictions/rte.validation.jsonl')

    Raises:
      ConfigError: it lies elsewhere, or is `root` itself; the message says where a link leads.
    """
    path, place = Path(root, *map(str, parts)), f"{where}: " if where else ""
    if "\0" in str(path):
        raise error(f"{place}{str(path)!r:.200} is no path")
    real_root, real = os.path.realpath(root), os.path.realpath(path)
    if not real.startswith(real_root.rstrip(os.sep) + os.sep):
        raise error(f"{place}{path} does not lie below {root}: it leads to {real}")
    return path


def refuse_links_out(folder, where: str = "") -> None:
    """Refuses a folder that is to be written to, but whose own entries lead elsewhere (`predictions -> /home/other`).

    Raises:
      ConfigError: an entry is a link to a place outside the folder; a link within it (`best -> checkpoint-400`) may be.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_symlink():
                path_inside(folder, entry.name, where=where)
