"""Files with columns: JSON lines, JSON arrays, CSV, TSV and parquet, each row with the place where it stands.

    >>> list(table_rows(Path("reviews.csv"), "csv"))
    [('reviews.csv:2', {'text': 'It is good.', 'label': 'positive'})]

CSV is quoted as RFC 4180 says, and a quoted cell may hold line ends; TSV knows no quotes. Both begin with a line of
column names. Files may be compressed (`.gz`, `.zst`).
"""

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.data.jsonl import numbered_lines, parse_line
from t5suite.data.text.compressed import all_bytes, byte_lines
from t5suite.data.text.readers import parquet_file

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
LONGEST_CELL = 1 << 30


def table_rows(path: Path, kind: str) -> Iterator[tuple[str, dict]]:
    """`(place, row)` of every row, in the file's order.

    Raises:
      DataError: a line that cannot be read (named), or a file without rows.
    """
    empty = True
    for place, row in TABLES[kind](Path(path)):
        empty = False
        yield place, row
    if empty:
        raise DataError(f"{path}: the file has no rows")


def json_rows(path: Path) -> Iterator[tuple[str, dict]]:
    """JSON lines, or one array of objects (as Alpaca's file is)."""
    if _first_byte(path) != b"[":
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


def csv_rows(path: Path) -> Iterator[tuple[str, dict]]:
    """Cells between commas, quoted where they hold one."""
    return _separated(path, {"strict": True})


def tsv_rows(path: Path) -> Iterator[tuple[str, dict]]:
    """Cells between tabulators, quotes being characters like others."""
    return _separated(path, {"delimiter": "\t", "quoting": csv.QUOTE_NONE})


def parquet_rows(path: Path) -> Iterator[tuple[str, dict]]:
    """The rows of a parquet file, counted from 1."""
    import pyarrow

    number = 0
    try:
        for batch in parquet_file(path).iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield f"{path} row {number}", row
    except (pyarrow.ArrowException, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{path}: not a sound parquet file after row {number} ({error})") from None


def _separated(path: Path, dialect: dict) -> Iterator[tuple[str, dict]]:
    csv.field_size_limit(LONGEST_CELL)
    reader = csv.reader(_text_lines(path), **dialect)
    names, start = None, 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{path}:{start}: {error}") from None
        place, start = f"{path}:{start}", reader.line_num + 1
        if not cells:
            continue
        if names is None:
            names = cells
            _check_names(place, names)
        elif len(cells) != len(names):
            raise DataError(f"{place}: {len(cells)} cells, but the first line names {len(names)} columns")
        else:
            yield place, dict(zip(names, cells, strict=True))


def _check_names(place: str, names: list[str]) -> None:
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise DataError(f"{place}: column {twice!r} stands there for the second time; the first line names the columns")


def _text_lines(path: Path) -> Iterator[str]:
    for number, line in enumerate(byte_lines(path), start=1):
        line = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
        if b"\0" in line:
            raise DataError(f"{path}:{number}: NUL bytes: a file with a hole in it, or one in UTF-16")
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}:{number}: not UTF-8 (byte {error.start} is 0x{line[error.start]:02x})") from None


def _first_byte(path: Path) -> bytes:
    for line in byte_lines(path):
        line = line.removeprefix(BYTE_ORDER_MARK).strip()
        if line:
            return line[:1]
    return b""


TABLES: dict[str, Callable] = {
    "jsonl": json_rows,
    "csv": csv_rows,
    "tsv": tsv_rows,
    "parquet": parquet_rows,
}
