"""Files with rows: which files of a folder belong to which split.

    >>> split_files("reviews", (".csv",))
    {'train': (PosixPath('reviews/train/a.csv'), PosixPath('reviews/train/b.csv')), 'test': (...,)}

A split is a folder (`train/*.jsonl`) or files named after it (`train.jsonl`, `train-00000-of-00002.parquet`), in small
letters or capitals; its files are read in the order of their names. A folder without split names has only training
rows. `file_rows` reads the files.
"""

import glob
import logging
import re
from collections.abc import Iterable
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.file_names import FORMATS_BY_SUFFIX, unpacked_suffix, without_compression
from t5suite.base.lookup import listed
from t5suite.data.corpora.byte_files import NO_PLAIN_FILE, NO_TARGET

logger = logging.getLogger(__name__)

# Names of a split's folders and files.
SPLIT_NAMES = {"train": ("train", "training"), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
# Words of a file's name that say that its rows are not for training.
HELD_OUT_WORDS = {*SPLIT_NAMES["validation"], *SPLIT_NAMES["test"]}
SPLIT_WORDS = {*SPLIT_NAMES["train"], *HELD_OUT_WORDS}
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def split_files(
    folder, suffixes: tuple[str, ...], flag: str = "--train_dir", files_of_flags: tuple[Path, ...] = ()
) -> dict[str, tuple[Path, ...]]:
    """`{role: files}` for the splits in a folder.

    Args:
      files_of_flags: files that other flags name; they belong to no split of the folder.

    Raises:
      ConfigError: no such folder.
      DataError: no file with such a suffix, or a split that exists in two forms.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ConfigError(f"{flag} {str(folder)!r}: no such folder")
    splits = files_of_splits(root, suffixes)
    everything = with_suffix(root, suffixes)
    if splits:
        _warn_of_unread_files(root, [*splits.values(), files_of_flags], everything, flag)
        return _without_files(splits, files_of_flags)
    if not everything:
        names = ", ".join(sorted(path.name for path in root.iterdir())[:8]) or "nothing"
        raise DataError(f"{flag} {folder}: no {' or '.join(suffixes)} file there, nor in train/ (there: {names})")
    return _without_files({"train": everything}, files_of_flags)


def _without_files(splits: dict[str, tuple[Path, ...]], left_out: tuple[Path, ...]) -> dict[str, tuple[Path, ...]]:
    """The splits without some files, and without those splits of which no file remains."""
    paths_left_out = {path.resolve() for path in left_out}
    remaining_splits = {}
    for role, files in splits.items():
        remaining_files = tuple(path for path in files if path.resolve() not in paths_left_out)
        if remaining_files:
            remaining_splits[role] = remaining_files
    return remaining_splits


def _warn_of_unread_files(root: Path, splits: list[tuple[Path, ...]], everything: tuple[Path, ...], flag: str):
    """Warns of the files of a folder that belong to none of the splits: `train_2.csv` beside `train.csv`."""
    files_read = {path.resolve() for files in splits for path in files}
    unread_names = [path.name for path in everything if path.resolve() not in files_read]
    if unread_names:
        logger.warning(
            "%s %s: not read, because no split is named so: %s; several files of a split are train-1.csv, train-2.csv, "
            "or stand in a folder train/",
            flag,
            root,
            listed(unread_names),
        )


def files_of_splits(root: Path, suffixes: tuple[str, ...]) -> dict[str, tuple[Path, ...]]:
    """`{role: files}` of the splits that a folder has by name; empty if it has none.

    Raises:
      DataError: a split that exists in two forms.
    """
    by_role = {role: _files_of(root, names, suffixes) for role, names in SPLIT_NAMES.items()}
    return {role: files for role, files in by_role.items() if files}


def named_files(pattern: str, flag: str) -> tuple[Path, ...]:
    """The files that a flag names: one, or those of a pattern (`part-*.csv`), in the order of their names.

    Raises:
      ConfigError: no file matches.
    """
    if Path(pattern).is_file():
        return (Path(pattern),)
    check_no_folder(pattern, flag)
    files = tuple(Path(name) for name in sorted(glob.glob(pattern, recursive=True)) if Path(name).is_file())
    if not files:
        raise ConfigError(f"{flag} {pattern!r}: {_why_no_file(pattern)}")
    return files


def _why_no_file(pattern: str) -> str:
    """What a pattern is that no file matches."""
    if Path(pattern).exists():
        return NO_PLAIN_FILE
    if Path(pattern).is_symlink():
        return NO_TARGET
    if ADDRESS.match(pattern):
        return "an address, which is not read; download the file, and name it"
    return "no such file"


def check_no_folder(name: str, flag: str) -> None:
    """Rejects a folder where a file is required.

    Raises:
      ConfigError: it is one; the message names the flag for folders.
    """
    if Path(name).is_dir():
        raise ConfigError(f"{flag} {name!r} is a folder; name a file, or the folder by --train_dir with --data_format")


def check_benchmark_file(name: str, flag: str) -> None:
    """Checks a file that replaces a benchmark's split, before a model is loaded: it must exist and be JSON lines.

    Raises:
      ConfigError: a folder, or a file in another format, which needs `--data_format`.
      DataError: no such file.
    """
    check_no_folder(name, flag)
    form = FORMATS_BY_SUFFIX.get(unpacked_suffix(name), "jsonl")
    if form not in ("jsonl", "text"):
        raise ConfigError(
            f"{flag} {name}: a benchmark's rows are JSON lines; for rows of your own in a file like this give "
            f"--data_format {form} with --text_column and --target_column, and neither --benchmark nor --task_file"
        )
    if Path(name).is_file():
        return
    if Path(name).exists():
        raise DataError(f"{flag} {name}: {NO_PLAIN_FILE}")
    raise DataError(f"{name}: no such file; {flag} is relative to the current directory")


def _files_of(root: Path, names: tuple[str, ...], suffixes) -> tuple[Path, ...]:
    """The files of a split, which must exist under one name and in one form."""
    forms: dict[str, list[Path]] = {}
    for folder in folders_of_split(root, names):
        files = with_suffix(folder, suffixes)
        if files:
            forms[f"{folder.name}/"] = list(files)
    for path in with_suffix(root, suffixes):
        name = _split_name(path)
        if name.lower() in names:
            forms.setdefault(f"{name}.*", []).append(path)
    if len(forms) > 1:
        raise DataError(f"{root} has one split as {' and '.join(forms)}; keep one")
    return tuple(next(iter(forms.values()), ()))


def folders_of_split(root: Path, names: tuple[str, ...]) -> list[Path]:
    """The folders in a folder that are named after a split, in small letters or capitals."""
    return sorted(path for path in root.iterdir() if path.name.lower() in names and path.is_dir())


def held_out_names(files: Iterable[Path]) -> list[str]:
    """The names of those files that say that their rows are not for training.

    >>> held_out_names([Path("reviews_test.csv"), Path("val2.csv"), Path("testimonials.csv")])
    ['reviews_test.csv', 'val2.csv']
    """
    return [path.name for path in files if HELD_OUT_WORDS & set(re.findall("[a-z]+", path.name.lower()))]


def names_a_split(stem: str) -> bool:
    """Whether a file's or folder's name is that of a split and no more.

    >>> names_a_split("Train"), names_a_split("dev-00000-of-00002"), names_a_split("dev-tickets")
    (True, True, False)
    """
    word = re.sub(r"(-\d+)?(-of-\d+)?([-_.]?\*)?$", "", stem).lower()
    return word in SPLIT_WORDS


def _split_name(path: Path) -> str:
    """What a file is named after: `train` of `train-00000-of-00002.parquet.gz`, `Train` of `Train.csv`."""
    return Path(without_compression(path.name)).stem.split("-")[0]


def with_suffix(folder: Path, suffixes: tuple[str, ...]) -> tuple[Path, ...]:
    """A folder's files whose names, when unpacked, end so, in the order of their names."""
    files = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return tuple(sorted(path for path in files if unpacked_suffix(path.name) in suffixes))
