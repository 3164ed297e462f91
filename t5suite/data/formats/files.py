"""Which files of a folder make up which split.

    >>> split_files("reviews", (".jsonl",))
    {'train': (PosixPath('reviews/train/a.jsonl'), PosixPath('reviews/train/b.jsonl')), 'test': (...,)}

A split is a folder (`train/*.jsonl`) or files named after it (`train.jsonl`, `train-00000-of-00002.parquet`); its files
follow each other in the order of their names. A folder that names no split holds training rows alone.
"""

import glob
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.text.compressed import without_compression

# What `--data_format` a file's name tells.
FORMATS_BY_SUFFIX = {
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".txt": "text",
}
# What folders and files of a split may be called.
SPLIT_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test",),
}


def split_files(folder, suffixes: tuple[str, ...], flag: str = "--train_dir") -> dict[str, tuple[Path, ...]]:
    """`{role: files}` of the splits that a folder has.

    Raises:
      ConfigError: no such folder.
      DataError: no file with such an ending, or a split that is there in two forms.
    """
    root = Path(folder)
    if not root.is_dir():
        raise ConfigError(f"{flag} {str(folder)!r}: no such folder")
    found = {role: _files_of(root, names, suffixes) for role, names in SPLIT_NAMES.items()}
    found = {role: files for role, files in found.items() if files}
    if not found:
        everything = _with_suffix(root, suffixes)
        if not everything:
            there = ", ".join(sorted(path.name for path in root.iterdir())[:8]) or "nothing"
            raise DataError(f"{flag} {folder}: no {' or '.join(suffixes)} file there, nor in train/ (there: {there})")
        found = {"train": everything}
    return found


def named_files(pattern: str, flag: str) -> tuple[Path, ...]:
    """The files that a flag names: one, or those of a pattern (`part-*.csv`), in the order of their names.

    Raises:
      ConfigError: there is none.
    """
    if Path(pattern).is_file():
        return (Path(pattern),)
    check_no_folder(pattern, flag)
    files = tuple(Path(name) for name in sorted(glob.glob(pattern, recursive=True)) if Path(name).is_file())
    if not files:
        raise ConfigError(f"{flag} {pattern!r}: no such file")
    return files


def check_no_folder(name: str, flag: str) -> None:
    """Refuses a folder where a file is to be named.

    Raises:
      ConfigError: it is one; the message names the flag for folders.
    """
    if Path(name).is_dir():
        raise ConfigError(f"{flag} {name!r} is a folder; name a file, or the folder by --train_dir with --data_format")


def check_benchmark_file(name: str, flag: str) -> None:
    """A file that takes the place of a benchmark's split: JSON lines, found before a model is loaded.

    Raises:
      ConfigError: a folder, or a file in another form, which `--data_format` reads.
      DataError: there is none.
    """
    check_no_folder(name, flag)
    form = FORMATS_BY_SUFFIX.get(Path(without_compression(name)).suffix, "jsonl")
    if form not in ("jsonl", "text"):
        raise ConfigError(
            f"{flag} {name}: a benchmark's rows are JSON lines; for rows of your own in a file like this give "
            f"--data_format {form} with --text_column and --target_column"
        )
    if not Path(name).is_file():
        raise DataError(f"{name}: no such file; {flag} is looked for from where the command runs")


def _files_of(root: Path, names: tuple[str, ...], suffixes) -> tuple[Path, ...]:
    """The files of a split, which is there under one name and in one form."""
    forms = {}
    for name in names:
        if (root / name).is_dir():
            forms[f"{name}/"] = _with_suffix(root / name, suffixes)
        beside = tuple(path for path in _with_suffix(root, suffixes) if _stem(path).split("-")[0] == name)
        forms[f"{name}.*"] = beside
    forms = {form: files for form, files in forms.items() if files}
    if len(forms) > 1:
        raise DataError(f"{root} has one split as {' and '.join(forms)}; keep one")
    return next(iter(forms.values()), ())


def _with_suffix(folder: Path, suffixes) -> tuple[Path, ...]:
    files = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return tuple(sorted(path for path in files if Path(without_compression(path.name)).suffix in suffixes))


def _stem(path: Path) -> str:
    return Path(without_compression(path.name)).stem
