"""`checkpoint.json`: the files of a checkpoint, with their sizes and SHA-256 hashes.

    >>> Manifest(400, "5f3a9c01", 1, {"config.json": record}).write("runs/x/.saving-checkpoint-400")
    >>> damage("runs/x/checkpoint-400") is None
    True
    >>> damage("runs/x/checkpoint-200")
    'optimizer.pt: 4096 bytes of 8192 (cut short?)'

    {"format": 2, "step": 400, "run_id": "5f3a9c01", "world_size": 1,
     "files": {"model.safetensors": {"size": 242043056, "sha256": "..."}, ...}, "details": {}, "sha256": "..."}

It is the last file written, and its own `sha256` covers the rest of its content. Each name is a regular file inside
the checkpoint: no link, no `..`, no absolute path. `format` defines the names and contents of the other files.
"""

import hashlib
import json
import logging
import os
import re
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from t5suite.base.errors import CheckpointError
from t5suite.base.files import write_json

logger = logging.getLogger(__name__)

MANIFEST_FILE = "checkpoint.json"
# Format 1 (up to t5suite 0.1.0) has states in safetensors and JSON, format 2 in files of `torch.save`.
FORMAT = 2
# The version of t5suite that wrote each format.
FORMATS = {1: "0.1.0", 2: "0.2.0"}
LARGEST_MANIFEST = 64 << 20  # bytes; enough for about 400,000 files
HASHERS = min(2, os.cpu_count() or 1)
# Libraries find and load such files by name, so one that the manifest does not list counts as damage.
LOADED_BY_NAME = (".safetensors", ".bin", ".pt", ".pth", ".pkl", ".ckpt", ".distcp", ".metadata", ".index.json", ".py")
# Hugging Face's trainer loads such a file where there is one; no checkpoint of ours has one (`rank-0.json`).
RANDOM_STATES_OF_TRAINER = re.compile(r"rng_state(_\d+)?\.pth")


@dataclass(frozen=True)
class Record:
    """A file's size in bytes and the SHA-256 of its content, in hexadecimal."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The content of `checkpoint.json`.

    Attributes:
      world_size: number of ranks that wrote the checkpoint.
      files: records by name, relative to the checkpoint.
      details: anything else that is plain JSON.
      format: one of FORMATS.
    """

    step: int
    run_id: str
    world_size: int
    files: dict[str, Record] = field(default_factory=dict)
    details: dict = field(default_factory=dict)
    format: int = FORMAT

    def write(self, folder) -> None:
        """Writes `checkpoint.json` and flushes it to disk."""
        for name in self.files:
            check_file_name(name)
        content = json.loads(json.dumps(asdict(self), allow_nan=False))
        write_json(Path(folder) / MANIFEST_FILE, {**content, "sha256": _own_hash(content)})

    @classmethod
    def read(cls, folder) -> "Manifest":
        """Reads and checks a checkpoint's manifest; does not read the other files.

        Raises:
          CheckpointError: it is missing, damaged or of an unknown format.
        """
        path = Path(folder) / MANIFEST_FILE
        try:
            _plain_file_size(Path(folder), MANIFEST_FILE)
            with open(path, "rb") as file:
                text = file.read(LARGEST_MANIFEST + 1)
            if len(text) > LARGEST_MANIFEST:
                raise ValueError(f"larger than {LARGEST_MANIFEST} bytes")
            content = json.loads(text.decode("utf-8"))
            number = content["format"]
            if type(number) is not int or number not in FORMATS:
                raise ValueError(f"format {number!r:.60}; this version reads format {FORMAT}")
            if content.pop("sha256") != _own_hash(content):
                raise ValueError("its content does not have the SHA-256 that it states")
            for name, record in content["files"].items():
                check_file_name(name)
                _check_record(name, record)
            records = {name: Record(**record) for name, record in content["files"].items()}
            return cls(**{**content, "files": records})
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing") from None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CheckpointError(f"{path} is damaged ({error})") from None


def _check_record(name: str, record: dict) -> None:
    size = record["size"]
    is_size = type(size) is int and size >= 0
    if not is_size or not re.fullmatch("[0-9a-f]{64}", record["sha256"]) or len(record) != 2:
        raise ValueError(f"{name}: {record!r:.60} is no record")


def damage(folder, hashed: bool = True) -> str | None:
    """What is wrong with a checkpoint, beginning with the file's name; None if it is unchanged since it was written.

    Args:
      hashed: False compares only names and sizes, which is fast.
    """
    folder = Path(folder)
    checks = [_wrong_step, _wrong_size, _unlisted_file, _foreign_file]
    if hashed:
        checks.append(_wrong_content)
    try:
        manifest = Manifest.read(folder)
        for check in checks:
            reason = check(folder, manifest)
            if reason is not None:
                return reason
        return None
    except CheckpointError as error:
        return str(error).removeprefix(f"{folder}{os.sep}")
    except OSError as error:
        return f"{error.filename or folder}: {error.strerror or error}"


def _wrong_step(folder: Path, manifest: Manifest) -> str | None:
    if folder.name.startswith("checkpoint-") and folder.name != f"checkpoint-{manifest.step}":
        return f"{MANIFEST_FILE}: says step {manifest.step}"
    return None


def _wrong_size(folder: Path, manifest: Manifest) -> str | None:
    """The first file that is missing, no plain file, or of another size than the manifest's."""
    for name, record in manifest.files.items():
        try:
            size = _plain_file_size(folder, name)
        except (FileNotFoundError, NotADirectoryError):
            return f"{name}: is missing"
        except ValueError as error:
            return f"{name}: {error}"
        if size < record.size:
            return f"{name}: {size} bytes of {record.size} (cut short?)"
        if size > record.size:
            return f"{name}: {size} bytes instead of {record.size}"
    return None


def _unlisted_file(folder: Path, manifest: Manifest) -> str | None:
    """A file that libraries would load, though the manifest does not list it; others are only logged."""
    unlisted = [name for name in files_below(folder) if name not in manifest.files and name != MANIFEST_FILE]
    for name in unlisted:
        if name.endswith(LOADED_BY_NAME):
            return f"{name}: not in {MANIFEST_FILE}, and libraries would load it"
    if unlisted:
        logger.warning("%s: not in %s, so never read: %s", folder, MANIFEST_FILE, ", ".join(unlisted[:5]))
    return None


def _foreign_file(folder: Path, manifest: Manifest) -> str | None:
    """A file that the manifest lists, and that no run of ours has written."""
    for name in manifest.files:
        if RANDOM_STATES_OF_TRAINER.fullmatch(name):
            return f"{name}: not a file of this suite's checkpoints, and the trainer would load it"
    return None


def _wrong_content(folder: Path, manifest: Manifest) -> str | None:
    """The first file whose hash differs, the largest first."""
    largest_first = sorted(manifest.files, key=lambda name: -manifest.files[name].size)
    for name, record in hash_files(folder, largest_first).items():
        expected = manifest.files[name]
        if record != expected:
            return f"{name}: SHA-256 is {record.sha256[:12]}.. instead of {expected.sha256[:12]}.."
    return None


def hash_file(path) -> Record:
    """The record of an existing file."""
    with open(path, "rb", buffering=0) as file:
        return Record(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())


def hash_files(folder, names: Iterable[str]) -> dict[str, Record]:
    """The records of files below a folder, computed in a few threads: hashing releases the GIL."""
    names = list(names)
    with ThreadPoolExecutor(HASHERS, thread_name_prefix="hash") as hashers:
        return dict(zip(names, hashers.map(hash_file, [Path(folder) / name for name in names]), strict=True))


def files_below(folder) -> list[str]:
    """Relative paths of all files and links below a folder, with / as separator, sorted."""
    paths = []
    for directory, _, names in os.walk(folder):
        paths += [Path(directory) / name for name in names]
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def check_file_name(name) -> None:
    """Raises ValueError for a name that could point outside the checkpoint, or is the manifest's own.

    >>> check_file_name("../model.safetensors")
    Traceback (most recent call last):
    ValueError: '../model.safetensors' is no name of a file inside the checkpoint
    """
    parts = name.split("/") if isinstance(name, str) else [""]
    plain = all(part not in ("", ".", "..") for part in parts) and "\\" not in name and name.isprintable()
    if not plain or name == MANIFEST_FILE:
        raise ValueError(f"{name!r} is no name of a file inside the checkpoint")


def _own_hash(content: dict) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _plain_file_size(folder: Path, name: str) -> int:
    """The size of a regular file; raises ValueError for anything else, or if its path contains a link."""
    path = folder
    for part in name.split("/"):
        path = path / part
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise ValueError("is a link")
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("is no plain file")
    return status.st_size
