"""Rows of a user's files: what a task reads of each row, where it stands, and tables in JSON, CSV, TSV or parquet.

    >>> FileRows({"train": (Path("reviews.csv"),)}, "csv", Columns(("text",), "label")).read("train")
    Rows(rows=[{'text': 'a', 'label': 'b'}], places=['reviews.csv:2'], origin='reviews.csv', ...)
    >>> list(table_rows(Path("reviews/train/a.csv"), "csv"))
    [('reviews/train/a.csv:2', {'text': 'It is good.', 'label': 'positive'})]

Files are JSON lines, JSON arrays, CSV, TSV (`separated`) or parquet, and may be compressed (`.gz`, `.zst`).
"""

import functools
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.base.file_names import FORMATS_BY_SUFFIX, unpacked_suffix
from t5suite.base.files import file_sha256
from t5suite.base.lookup import first_repeated
from t5suite.data.corpora.byte_files import BYTE_ORDER_MARK, all_bytes, byte_lines, filled_lines
from t5suite.data.corpora.readers import parquet_error, parquet_file
from t5suite.data.rows.decimals import as_decimals, narrow_columns
from t5suite.data.rows.jsonl import numbered_lines, parse_line
from t5suite.data.rows.own_rows import MOST_COLUMNS, Columns, Rows, RowSource, check_columns, column_suggestion
from t5suite.data.rows.separated import separated_rows
from t5suite.tasks.cells import outermost, value_at
from t5suite.tasks.targets import with_words_of_ids, words_of_ids

logger = logging.getLogger(__name__)

# Formats without types: every cell is text.
TYPELESS = ("csv", "tsv")
# Where `datasets` writes the types of columns, in the metadata of a parquet file.
FEATURES_OF_DATASETS = b"huggingface"


@dataclass(frozen=True)
class FileRows:
    """Rows of files; the files of a split are read one after the other.

    Attributes:
      files: the files of each split, in order.
      kind: a name in TABLES.
      unwrap: a row of the file -> the row whose columns are used.
      delimiter: of CSV and TSV, if it is not the file's own.
      unread_columns: those of which a message was logged: held-out rows are read twice.
    """

    files: dict[str, tuple[Path, ...]]
    kind: str
    columns: Columns
    unwrap: Callable[[dict], dict] | None = None
    delimiter: str | None = None
    unread_columns: set[str] = field(default_factory=set, compare=False, repr=False)

    @property
    def roles(self) -> tuple[str, ...]:
        """The splits that have files."""
        return tuple(self.files)

    def read(self, role: str, tokenizer=None) -> Rows:
        """All rows of a split.

        Raises:
          DataError: a line cannot be read, or is not such a row; the message names it.
        """
        rows: list[dict] = []
        places: list[str] = []
        unused: set[str] = set()
        first_incomplete: tuple[str, dict] | None = None
        for place, row in self._unwrapped_rows(role):
            shaped = self.columns.shaped(row, self.kind in TYPELESS)
            rows.append(shaped)
            places.append(place)
            unused |= row.keys() - shaped.keys()
            if first_incomplete is None and self.columns.missing_text(row) is not None:
                first_incomplete = (place, row)
        check_columns(self.columns, role, rows, places[0], unused)
        if first_incomplete is not None:
            place, row = first_incomplete
            column = self.columns.missing_text(row)
            raise DataError(
                f"{place}: no column {column!r}, which other rows have; {column_suggestion(column, list(row))}"
            )
        self._log_unread(unused, places[0])
        return rows_of_files(self.files[role], rows, places)

    def check_first_row(self, role: str) -> None:
        """Rejects columns that the first row of a split lacks, without reading the others.

        Raises:
          DataError: a text column is not there or, in training rows, the target.
        """
        place, row = next(self._unwrapped_rows(role))
        for column in self.columns.needed(role):
            if outermost(column, row) not in row:
                problem = self._no_column(column, place)
                raise DataError(f"{problem}{self.columns.remedy(column, list(row))}")

    def _no_column(self, column: str, place: str) -> str:
        """The beginning of a message about a column that the first row of a split, at `place`, lacks."""
        if self.kind in TYPELESS:
            return f"{place.rpartition(':')[0]}: the first line names no column {column!r}"
        if self.kind == "jsonl":
            return f"{place}: no column {column!r}"
        return f"{place}: no row has anything in column {column!r}"

    def _unwrapped_rows(self, role: str) -> Iterator[tuple[str, dict]]:
        for path in self.files[role]:
            words = words_of_class_ids(path, self.kind, self.columns)
            for place, row in table_rows(path, self.kind, self.delimiter):
                if self.unwrap is not None:
                    row = _unwrapped(row, self.unwrap, place)
                if words:
                    row = with_words_of_ids(row, self.columns.target, words)
                yield place, row

    def _log_unread(self, columns: set[str], place: str) -> None:
        """Logs the columns that are not read, unless all of them have been logged."""
        if columns <= self.unread_columns:
            return
        names = sorted(columns)
        first_names = ", ".join(names[:MOST_COLUMNS])
        other_columns = f" and {len(names) - MOST_COLUMNS:,} more" if len(names) > MOST_COLUMNS else ""
        logger.info("%s: columns that no flag names are not read: %s%s", place, first_names, other_columns)
        self.unread_columns.update(columns)


def _unwrapped(row: dict, unwrap: Callable[[dict], dict], place: str) -> dict:
    try:
        return unwrap(row)
    except DataError as error:
        raise DataError(f"{place}: {error}") from None


def check_columns_of_files(source: RowSource, evaluates: bool) -> None:
    """Rejects columns that the first row of the training or validation files lacks, before anything is loaded or made.

    >>> check_columns_of_files(FileRows({"train": (Path("a.csv"),)}, "csv", Columns(("txet",))), evaluates=True)
    DataError: a.csv: the first line names no column 'txet' (--text_column); did you mean text?

    Args:
      evaluates: whether the run reads validation rows.

    Raises:
      DataError: names the column, the row, and the column that was probably meant.
    """
    if not isinstance(source, FileRows):
        return
    for role in ("train", "validation") if evaluates else ("train",):
        if role in source.roles:
            source.check_first_row(role)


def rows_of_files(paths: Sequence[Path], rows: list[dict], places: list[str]) -> Rows:
    """Rows of files: the origin of several is their folder, their fingerprint a hash of their hashes, in order."""
    hashes = {str(path): f"sha256:{file_sha256(path)}" for path in paths}
    if len(paths) == 1:
        return Rows(rows, places, str(paths[0]), *hashes.values(), hashes)
    fingerprint = f"sha256:{hashlib.sha256(' '.join(hashes.values()).encode()).hexdigest()}"
    return Rows(rows, places, f"{paths[0].parent} ({len(paths)} files)", fingerprint, hashes)


def places_without_folders(places: Sequence[str]) -> list[str]:
    """The location of each row, with the file's name alone.

    >>> places_without_folders(["/data/reviews.csv:2"])
    ['reviews.csv:2']
    """
    return [place.rpartition("/")[2] for place in places]


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
        raise parquet_error(path, error, f" after row {number}") from None


def words_of_class_ids(path: Path, kind: str, columns: Columns) -> list[str]:
    """The label words of class ids, whose names `datasets` writes into its parquet files; [] for other files."""
    import pyarrow

    if kind != "parquet":
        return []
    try:
        schema = parquet_file(path).schema_arrow
    except (pyarrow.ArrowException, OSError):
        return []  # `parquet_rows` names the fault
    names = _class_names_in_metadata(schema.metadata or {}, columns.target)
    if not names:
        return []
    return words_of_ids(names, columns.labels)


def _class_names_in_metadata(metadata: Mapping[bytes, bytes], column: str) -> list[str]:
    """The names of the classes of a column, or of its lists; types of other columns may be unknown here.

    >>> features = {"label": {"names": ["neg", "pos"], "_type": "ClassLabel"}}
    >>> _class_names_in_metadata({b"huggingface": json.dumps({"info": {"features": features}}).encode()}, "label")
    ['neg', 'pos']
    """
    if FEATURES_OF_DATASETS not in metadata:
        return []
    features = json.loads(metadata[FEATURES_OF_DATASETS]).get("info", {}).get("features") or {}
    feature = value_at(features, column)
    if isinstance(feature, Mapping) and isinstance(feature.get("feature"), Mapping):
        feature = feature["feature"]
    if isinstance(feature, Mapping) and feature.get("_type") == "ClassLabel":
        return list(feature["names"])
    return []


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
