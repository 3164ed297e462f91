"""A folder that is there as a whole or not at all, and `export.json` in it.

>>> with new_folder("exported") as folder:
...     write_json(folder / "export.json", {"format": 1})
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from t5suite.base.errors import ConfigError

STAGING = ".exporting-"
CARD = "export.json"


@contextlib.contextmanager
def new_folder(path) -> Iterator[Path]:
    """A folder beside `path` to write into, which becomes `path` at the end of the block, or goes if the block fails.

    Raises:
      ConfigError: there is a file of that name, or a folder that is not empty.
    """
    path = Path(path)
    check_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.parent / f"{STAGING}{path.name}"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        yield staging
        if path.is_dir():
            path.rmdir()
        os.replace(staging, path)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def check_free(path: Path) -> None:
    """Refuses a place where something is."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists() or path.is_symlink():
        what = "is not empty" if path.is_dir() else "is a file"
        raise ConfigError(f"--output_dir {str(path)!r} {what}; give a new folder, or an empty one")


def sizes_of(folder) -> dict[str, int]:
    """Every file and its bytes, by name.

    >>> sizes_of("exported")
    {'config.json': 1469, 'model.safetensors': 1257488, ...}
    """
    folder = Path(folder)
    return {
        file.relative_to(folder).as_posix(): file.stat().st_size
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.name != CARD
    }
