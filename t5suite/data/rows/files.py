"""Files with rows: which files of a folder belong to which split, and the rows of each file with their locations.

    >>> split_files("reviews", (".csv",))
    {'train': (PosixPath('reviews/train/a.csv'), PosixPath('reviews/train/b.csv')), 'test': (...,)}
    >>> list(table_rows(Path("reviews/train/a.csv"), "csv"))
    [('reviews/train/a.csv:2', {'text': 'It is good.', 'label': 'positive'})]

A split is a folder (`train/*.jsonl`) or files named after it (`train.jsonl`, `train-00000-of-00002.parquet`), in small
letters or capitals; its files are read in the order of their names. A folder without split names has only training
rows. Files are JSON lines, JSON arrays, CSV, TSV (`separated`) or parquet, and may be compressed (`.gz`, `.zst`).
"""

import functools
import glob
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.file_names import FORMATS_BY_SUFFIX, unpacked_suffix, without_compression
from t5suite.base.lookup import first_repeated, listed
from t5suite.data.corpora.byte_files import NO_PLAIN_FILE, NO_TARGET, all_bytes, byte_lines, filled_lines
from t5suite.data.corpora.readers import parquet_file
from t5suite.data.rows.decimals import as_decimals, narrow_columns
from t5suite.data.rows.jsonl import numbered_lines, parse_line
from t5suite.data.rows.separated import separated_rows

logger = logging.getLogger(__name__)

# Names of a split's folders and files.
SPLIT_NAMES = {"train": ("train", "training"), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
# Words of a file's name that say that its rows are not for training.
HELD_OUT_WORDS = {*SPLIT_NAMES["validation"], *SPLIT_NAMES["test"]}
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Formats without types: every cell is text.
TYPELESS = ("csv", "tsv")


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
            f"--data_format {form} with --text_column and --target_column"
        )
    if Path(name).exists() and not Path(name).is_file():
        raise DataError(f"{flag} {name}: {NO_PLAIN_FILE}")
    if not Path(name).is_file():
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


def _split_name(path: Path) -> str:
    """What a file is named after: `train` of `train-00000-of-00002.parquet.gz`, `Train` of `Train.csv`."""
    return Path(without_compression(path.name)).stem.split("-")[0]


def with_suffix(folder: Path, suffixes: tuple[str, ...]) -> tuple[Path, ...]:
    """A folder's files whose names, when unpacked, end so, in the order of their names."""
    files = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    return tuple(sorted(path for path in files if unpacked_suffix(path.name) in suffixes))


def format_by_name(path) -> str:
    """The format of a table by the file's name, compressed or not; JSON lines for other names.

    >>> format_by_name("reviews.csv.gz"), format_by_name("answers")
    ('csv', 'jsonl')
    """
    kind = FORMATS_BY_SUFFIX.get(unpacked_suffix(str(path)), "jsonl")
    return kind if kind in TABLES else "jsonl"


def table_rows(path: Path, kind: str, delimiter: str | None = None) -> Iterator[tuple[str, dict]]:
    """`(place, row)` of every row, in the file's order.

    Args:
      kind: a name in TABLES.
      delimiter: of CSV and TSV, if it is not the file's own (`separated`).

    Raises:
      DataError: a line that cannot be read (named), or a file without rows.
    """
    empty = True
    options = {"delimiter": delimiter} if kind in TYPELESS else {}
    for place, row in TABLES[kind](Path(path), **options):
        empty = False
        yield place, row
    if empty:
        raise DataError(f"{path}: the file has no rows")


def json_rows(path: Path) -> Iterator[tuple[str, dict]]:
    """JSON lines, or one array of objects (as Alpaca's file is)."""
    if not is_json_array(path):
        for number, row in numbered_lines(path, whole_characters=True):
            yield f"{path}:{number}", row
        return
    try:
        rows = parse_line(all_bytes(path).removeprefix(BYTE_ORDER_MARK), whole_characters=True)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise DataError(f"{path}: entry {index} of the array is {json.dumps(row)[:60]}, not an object")
        yield f"{path} entry {index}", row


def is_json_array(path: Path) -> bool:
    """Whether a file's first character begins an array."""
    lines = (line.removeprefix(BYTE_ORDER_MARK).strip() for _, line in filled_lines(path))
    return next(filter(None, lines), b"").startswith(b"[")


def parquet_rows(path: Path) -> Iterator[tuple[str, dict]]:
    """The rows of a parquet file, counted from 1."""
    import pyarrow

    number = 0
    try:
        file = parquet_file(path)
        names = file.schema_arrow.names
        repeated = first_repeated(names)
        if repeated is not None:
            raise DataError(f"{path}: column {repeated!r} is there for the second time; each column has its name")
        for batch in file.iter_batches():
            columns = narrow_columns(dict(zip(batch.schema.names, batch.schema.types, strict=True)))
            for row in _rows_of_batch(batch, path, number):
                number += 1
                yield f"{path} row {number}", as_decimals(row, columns)
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path}: not a sound parquet file after row {number} ({error})") from None


def _rows_of_batch(batch, path: Path, num_rows_before: int) -> list[dict]:
    """The rows of a batch of a parquet file.

    Raises:
      DataError: a value is too large for Python, as a date after the year 9999 is; names its row and column.
    """
    try:
        return batch.to_pylist()
    except OverflowError:
        row, column, error = _first_overflow(batch)
        raise DataError(
            f"{path} row {num_rows_before + row + 1}: column {column!r} holds a value of type "
            f"{batch.schema.field(column).type} that is too large ({error}); correct it, or leave the column out"
        ) from None


def _first_overflow(batch) -> tuple[int, str, OverflowError]:
    """The row (from 0) and column of the first value of a batch that is too large for Python, and what Python says."""
    for row in range(batch.num_rows):
        for column in batch.schema.names:
            try:
                batch.column(column)[row].as_py()
            except OverflowError as error:
                return row, column, error
    raise ValueError("no value of the batch is too large")


def _separated_rows(path: Path, kind: str, delimiter: str | None = None) -> Iterator[tuple[str, dict]]:
    """CSV or TSV."""
    return separated_rows(byte_lines(path), str(path), kind, delimiter)


TABLES: dict[str, Callable] = {
    "jsonl": json_rows,
    "csv": functools.partial(_separated_rows, kind="csv"),
    "tsv": functools.partial(_separated_rows, kind="tsv"),
    "parquet": parquet_rows,
}
