"""Where `torch.compile` keeps what it has made, so that the next run and the other ranks need not make it again.

    >>> compile_cache_folder({"XDG_CACHE_HOME": "/scratch/ann"})
    PosixPath('/scratch/ann/t5suite/compiled')

torch's own place is in the temporary folder, which a restart of the machine, or a cluster's next job, finds empty.
Compiling the bundled tiny T5 takes 58 processor seconds, starting from what a run before has kept 12. What is kept is
found by the code, the shapes, the device and the versions that it was made for; several processes may write at once.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

logger = logging.getLogger(__name__)

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
NONE = "none"


def compile_cache_folder(environ: Mapping[str, str]) -> Path:
    """The folder that is used unless `--compile_cache` names another."""
    if environ.get(VARIABLE):
        return Path(environ[VARIABLE])
    return Path(environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "t5suite" / "compiled"


def keep_compiled(folder: str | None = None) -> Path | None:
    """Has this process, and those that it starts, keep compiled code; None where torch's own place stays.

    Args:
      folder: `--compile_cache`: a folder, "none" for torch's own place, None for `compile_cache_folder`.
    """
    if folder == NONE:
        return None
    place = Path(folder).expanduser().absolute() if folder else compile_cache_folder(os.environ)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logger.warning("compiled code is not kept in %s: %s", place, error)
        return None
    if not os.access(place, os.W_OK):
        logger.warning("compiled code is not kept in %s: it cannot be written", place)
        return None
    os.environ[VARIABLE] = str(place)
    return place


def folder_bytes(folder: Path) -> int:
    """The sizes of all files below a folder; files that go meanwhile count for nothing."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.lstat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue
    return total
