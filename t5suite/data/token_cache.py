"""Tokenized examples on disk, found again by what they were made of: the next run, and every rank, maps them.

>>> cache = TokenCache("/home/ann/.cache/huggingface/datasets/t5suite")
>>> cache.get("5f0c...e1", make=lambda: tokenized(rows))        # 61 s, then 5 ms
TokenArrays(...)

`datasets` keeps what it maps of the hub's data sets; rows of local files (`--data_dir`, `--train_file`) are in memory
to it, and were tokenized anew by every run and rank. The key covers rows, task, tokenizer, lengths and encoding, and
the code that makes texts of rows. A folder of `.npy` files is written beside its place and renamed; the first process
makes it while the others wait at a lock. Files are mapped, not read: ranks and workers of a machine share the memory.
Each process compares their CRC-32 once (1.9 GB/s: 40 ms for 72 MB, MNLI's size), and a damaged folder is made anew.
"""

import functools
import hashlib
import importlib.metadata
import json
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from t5suite.data.features import COLUMNS, Ragged, TokenArrays
from t5suite.runs.directory import write_json
from t5suite.tasks.formatters import FORMATTERS

logger = logging.getLogger(__name__)

# Fewer rows are tokenized in about a second, and leave nothing behind.
FEWEST_ROWS = 5000
NONE = "none"
SUMS = "crc32.json"


class TokenCache:
    """A folder of tokenized data sets.

    Args:
      folder: None for the cache of `datasets`; "none" for no cache.
    """

    def __init__(self, folder: str | None = None):
        self.folder = None if folder == NONE else Path(folder) if folder else _library_folder()

    def serves(self, task, num_rows: int) -> bool:
        """Whether it is worth keeping; what a formatter of the user's own makes of rows may change unseen."""
        formatter = FORMATTERS[task.entry.get("formatter") or "columns"]
        return self.folder is not None and num_rows >= FEWEST_ROWS and formatter.__module__.startswith("t5suite.")

    def get(self, key: str, make: Callable[[], TokenArrays]) -> TokenArrays:
        """What is kept under a key, else what `make` makes, which is then kept."""
        from filelock import FileLock

        place = self.folder / hashlib.sha256(f"{key} {code_digest()}".encode()).hexdigest()[:32]
        try:
            found = read_arrays(place)  # by all ranks at once
            if found is not None:
                return found
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{place}.lock"):
                found = read_arrays(place)
                if found is None:
                    if place.is_dir():
                        logger.warning("the tokenized data in %s are damaged, and are made anew", place)
                    write_arrays(place, make())
                    found = read_arrays(place)
                if found is None:
                    raise OSError(f"{place}: what is read is not what was written")
        except OSError as error:  # a cache that is full or read-only costs time, and nothing else
            logger.warning("tokenized data are not kept in %s: %s", self.folder, error)
            return make()
        return found


def _library_folder() -> Path | None:
    import datasets

    return Path(datasets.config.HF_DATASETS_CACHE) / "t5suite" if datasets.is_caching_enabled() else None


@functools.cache
def code_digest() -> str:
    """A hash of the code that makes texts of rows and ids of texts: what an older one made is not taken.

    The key has the tokenizer's own settings beside it; this has the version of the library that heeds them.
    """
    root = Path(__file__).resolve().parent.parent
    files = [*sorted((root / "tasks").rglob("*.py")), root / "data" / "encodings.py"]
    parts = [path.read_bytes() for path in files] + [importlib.metadata.version("tokenizers").encode()]
    return hashlib.sha256(b"\x00".join(parts)).hexdigest()


def write_arrays(place: Path, arrays: TokenArrays) -> None:
    """Writes a folder of flat arrays and their checksums, all of it or nothing."""
    working = Path(tempfile.mkdtemp(prefix=".", dir=place.parent))
    try:
        for name in COLUMNS:
            ragged = getattr(arrays, name)
            if ragged is not None:
                for part in ("values", "offsets"):
                    with open(working / f"{name}.{part}.npy", "wb") as file:
                        np.save(file, getattr(ragged, part), allow_pickle=False)
                        file.flush()
                        os.fsync(file.fileno())
        write_json(working / SUMS, {path.name: _crc32(path) for path in working.iterdir()})
        shutil.rmtree(place, ignore_errors=True)  # what was damaged
        working.rename(place)
    finally:
        shutil.rmtree(working, ignore_errors=True)


def read_arrays(place: Path) -> TokenArrays | None:
    """The arrays of a folder, mapped; None where there are none, or they are not what was written."""
    try:
        sums = json.loads((place / SUMS).read_bytes())
        if sums != {name: _crc32(place / name) for name in sums}:
            return None
        parts = {name.removesuffix(".npy"): _mapped(place / name) for name in sums}
        columns = [name for name in COLUMNS if f"{name}.values" in parts]
        return TokenArrays(**{name: Ragged(parts[f"{name}.values"], parts[f"{name}.offsets"]) for name in columns})
    except (OSError, ValueError, TypeError, LookupError):
        return None


def _crc32(path: Path) -> int:
    total = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            total = zlib.crc32(block, total)
    return total


def _mapped(path: Path) -> np.ndarray:
    """A file's array; a plain one, whose slices are quicker than a `numpy.memmap`'s."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    return np.asarray(array)
