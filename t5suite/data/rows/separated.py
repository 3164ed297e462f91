"""CSV and TSV: lines of bytes -> rows of text, with the delimiter that the file itself shows.

    >>> lines = [b"text;score\\n", b'"good; really";3,5\\n']
    >>> list(separated_rows(lines, "reviews.csv", "csv"))
    [('reviews.csv:2', {'text': 'good; really', 'score': '3,5'})]

The first line names the columns. CSV is quoted as in RFC 4180, and a quoted cell may contain line breaks; TSV has no
quoting. A delimiter of CSV is taken if it is the only one that gives every sampled record the same number of cells,
above one, or if no candidate divides the first line: the file has one column then.
"""

import csv
import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import first_repeated
from t5suite.base.text_encodings import problem_of_rows, utf8_problem
from t5suite.data.corpora.byte_files import BYTE_ORDER_MARK

logger = logging.getLogger(__name__)

# The delimiters that are tried, with their names in messages.
CANDIDATES = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
# A sample ends after so many records, or so many characters.
SAMPLED_RECORDS = 1000
SAMPLED_CHARACTERS = 4_000_000
LONGEST_CELL = 1 << 30
# So many characters of a cell stand in a message.
SHOWN_CELL = 40
MOST_EMPTY_LINES = 1_000_000
# Excel's note about the delimiter, before the line of names.
EXCEL_NOTE = "sep="
# Those that were warned of in this process: a run reads a file several times.
_FILES_WITH_QUOTES: set[str] = set()


def separated_rows(
    lines: Iterable[bytes], name: str, kind: str, delimiter: str | None = None
) -> Iterator[tuple[str, dict[str, str]]]:
    """`(place, row)` of every record after the first line, which names the columns.

    Args:
      name: the file's, for places and messages.
      kind: csv or tsv.
      delimiter: the user's; None: the file's own, of TSV the tab.

    Raises:
      DataError: a line that cannot be read, columns that are named twice, another number of cells than columns, no
        delimiter that fits.
    """
    names = None
    previous_cells: list[str] = []
    for place, cells in _records(lines, name, kind, delimiter):
        if names is None:
            names = cells
            check_column_names(names, place, kind, delimiter)
        elif len(cells) != len(names):
            cure = _cure_of_open_quote([*previous_cells, *cells]) if kind == "tsv" else ""
            raise DataError(f"{place}: {_ragged(len(cells), len(names), kind)}{cure}")
        else:
            if kind == "tsv" and any(map(_is_quoted, cells)):
                _warn_of_quotes(name, place)
            yield place, dict(zip(names, cells, strict=True))
        previous_cells = cells


def check_column_names(names: list[str], place: str, kind: str, delimiter: str | None) -> None:
    """Checks the first line's names of columns.

    Raises:
      DataError: a name comes twice, Excel's note, or a first line of TSV without a tab but with another delimiter.
    """
    if names.count("") > 1:
        raise DataError(f"{place}: {names.count('')} columns have no name; the first line names the columns")
    repeated = first_repeated(names)
    if repeated is not None:
        raise DataError(f"{place}: column {repeated!r} is given for the second time; the first line names the columns")
    if names[0].startswith(EXCEL_NOTE):
        raise DataError(f"{place}: {names[0]!r} is Excel's note about the delimiter; remove this line")
    elsewhere = [character for character in CANDIDATES if character in names[0]]
    if kind == "tsv" and delimiter is None and len(names) == 1 and elsewhere:
        raise DataError(
            f"{place}: the first line has no tab, but {_shown(elsewhere[0])}: is this a CSV file? Name it .csv, give "
            f"the format csv, or --delimiter {_shown(elsewhere[0])}"
        )


def delimiter_by_flag(value: str | None) -> str | None:
    """The character that `--delimiter` names: itself, or by one of the words for it.

    >>> delimiter_by_flag(";"), delimiter_by_flag("tab"), delimiter_by_flag(None)
    (';', '\\t', None)

    Raises:
      ConfigError: several characters, a quote, or a line break.
    """
    if value is None:
        return None
    by_name = {word: character for character, word in CANDIDATES.items()} | {r"\t": "\t"}
    character = by_name.get(value.lower(), value)
    if len(character) != 1 or character in '"\r\n\0':
        raise ConfigError(f"--delimiter {value!r}: one character other than a quote, or {', '.join(by_name)}")
    return character


class Trial(NamedTuple):
    """What a candidate makes of the sample: `(line, number of cells)` of each record; where it breaks, and why."""

    delimiter: str
    records: list[tuple[int, int]]
    broken_line: int | None = None
    problem: str | None = None

    @property
    def first_count(self) -> int:
        """Cells of the first line."""
        return self.records[0][1] if self.records else 0

    @property
    def ragged_record(self) -> tuple[int, int] | None:
        """The first record with another number of cells than the first line; None if there is none."""
        return next((record for record in self.records if record[1] != self.first_count), None)

    @property
    def is_even(self) -> bool:
        """Whether every record has the same number of cells."""
        return self.problem is None and self.ragged_record is None

    @property
    def fits(self) -> bool:
        """Whether every record has the same number of cells, above one."""
        return self.is_even and self.first_count > 1

    def __str__(self):
        name = _shown(self.delimiter)
        if self.ragged_record is not None:
            line, count = self.ragged_record
            return f"{name} {self.first_count} in line {self.records[0][0]}, {count} in line {line}"
        if self.problem is not None:
            return f"{name} breaks in line {self.broken_line}"
        return f"{name} {self.first_count} in each"


def chosen_delimiter(lines: Iterator[str], name: str) -> tuple[str, Iterator[str]]:
    """`(delimiter, lines)`: what separates the cells of CSV, and all its lines again.

    Raises:
      DataError: no candidate fits or several do; the message says what each gives.
    """
    lines, *samples = itertools.tee(lines, 1 + len(CANDIDATES))
    trials = [_trial(sample, delimiter) for sample, delimiter in zip(samples, CANDIDATES, strict=True)]
    fitting = [trial for trial in trials if trial.fits]
    if len(fitting) == 1:
        return fitting[0].delimiter, lines
    dividing = [trial for trial in trials if trial.first_count > 1]
    if not dividing and trials[0].is_even:
        return trials[0].delimiter, lines  # one column, or no line at all
    raise _undecided(name, trials, fitting, dividing)


def _undecided(name: str, trials: list[Trial], fitting: list[Trial], dividing: list[Trial]) -> DataError:
    """The error for a file with no delimiter that fits, or with several; it says what each gives.

    Args:
      dividing: the trials with several cells in the first line.
    """
    results = "; ".join(map(str, trials))
    if fitting:
        names = " and ".join(_shown(trial.delimiter) for trial in fitting)
        return DataError(f"{name}: both {names} may separate its cells ({results}); name one by --delimiter")
    cure = "fix the file (a cell that contains the delimiter is quoted), or name the delimiter by --delimiter"
    if not dividing:
        cure += " (--delimiter tab: each line is one cell)"
    summary = f"no delimiter gives every record the same number of cells, above one: {results}; {cure}"
    if len(dividing) > 1:
        return DataError(f"{name}: {summary}")
    likeliest = dividing[0] if dividing else trials[0]
    if likeliest.ragged_record is None:
        return DataError(f"{name}:{likeliest.broken_line}: {likeliest.problem}; {summary}")
    line, count = likeliest.ragged_record
    return DataError(f"{name}:{line}: {_ragged(count, likeliest.first_count, 'tsv')}; {summary}")


def _trial(lines: Iterator[str], delimiter: str) -> Trial:
    """Reads a sample with a candidate."""
    records: list[tuple[int, int]] = []
    size = 0
    start = 1

    def counted():
        nonlocal size
        for line in lines:
            size += len(line)
            yield line

    reader = csv.reader(counted(), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            if cells:
                records.append((start, len(cells)))
            start = reader.line_num + 1
            if len(records) >= SAMPLED_RECORDS or (size >= SAMPLED_CHARACTERS and len(records) > 1):
                break
    except csv.Error as error:
        return Trial(delimiter, records, start, _csv_problem(error))
    return Trial(delimiter, records)


def _is_quoted(cell: str) -> bool:
    """Whether a cell has the quotes of CSV, which doubles those that are part of the text."""
    return cell[:1] == cell[-1:] == '"' and '""' in cell[1:-1]


def _warn_of_quotes(name: str, place: str) -> None:
    """Warns once of a TSV file with the quotes of CSV, such as pandas writes, where quotes have no meaning."""
    if name in _FILES_WITH_QUOTES:
        return
    _FILES_WITH_QUOTES.add(name)
    logger.warning(
        "%s: a text is quoted as in CSV, and its quotes are read as part of it. A TSV file that pandas has written is "
        "read as it was meant under a name that ends in .csv, or by `t5suite predict --input_type csv`",
        place,
    )


def _records(lines: Iterable[bytes], name: str, kind: str, delimiter: str | None) -> Iterator[tuple[str, list[str]]]:
    """`(place, cells)` of every line or quoted record that is not empty."""
    csv.field_size_limit(LONGEST_CELL)
    texts = text_lines(lines, name)
    if kind == "tsv":
        reader = csv.reader(texts, delimiter=delimiter or "\t", quoting=csv.QUOTE_NONE)
    else:
        if delimiter is None:
            delimiter, texts = chosen_delimiter(texts, name)
        reader = csv.reader(texts, delimiter=delimiter, strict=True)
    start = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{name}:{start}: {_csv_problem(error)}") from None
        place = f"{name}:{start}"
        start = reader.line_num + 1
        if cells:
            yield place, cells


def text_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Lines as text, without a byte-order mark.

    Raises:
      DataError: a line that is not UTF-8, or more than MOST_EMPTY_LINES empty ones in a row.
    """
    empty_count = 0
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = _without_marks(line)
        is_empty = len(line) <= 2 and not line.strip()
        empty_count = empty_count + 1 if is_empty else 0
        if empty_count > MOST_EMPTY_LINES:
            raise DataError(f"{name}:{number}: {empty_count:,} empty lines follow each other: the file is damaged")
        problem = _line_problem(line, number)
        if problem is not None:
            raise DataError(f"{name}:{number}: {problem}")
        yield line.decode("utf-8")


def _without_marks(line: bytes) -> bytes:
    """The first line without byte-order marks: there are two if a program added one to a file that had it."""
    while line.startswith(BYTE_ORDER_MARK):
        line = line.removeprefix(BYTE_ORDER_MARK)
    return line


def _line_problem(line: bytes, number: int) -> str | None:
    """Why a line is no text; most lines are ASCII, which needs no further look."""
    if number == 1:
        return problem_of_rows(line)
    if line.isascii() and b"\0" not in line:
        return None
    return utf8_problem(line)


def _csv_problem(error: csv.Error) -> str:
    """The module's message in words that say what to look for."""
    message = str(error)
    if message == "unexpected end of data":
        return "a quote that opens here is not closed before the file ends"
    if message.startswith("new-line character seen"):
        return "a carriage return alone, as old Macs ended lines; convert it: tr '\\r' '\\n' < FILE > NEW"
    if "expected after" in message:
        return f"{message}: a quote within a quoted cell is written twice"
    return message


def _ragged(count: int, column_count: int, kind: str) -> str:
    cure = "" if kind == "tsv" else " (a cell that contains the delimiter is quoted)"
    return f"{count} cells, but the first line names {column_count} columns{cure}"


def _cure_of_open_quote(cells: list[str]) -> str:
    """How to read a TSV file that is quoted as in CSV, if one of its cells opens a quote and does not close it."""
    for cell in cells:
        if cell.startswith('"') and cell.count('"') % 2:
            beginning = cell if len(cell) <= SHOWN_CELL else f"{cell[:SHOWN_CELL]}..."
            return (
                f"; {beginning!r} opens a quote, which has no meaning in TSV: a file whose quoted cells hold line "
                "breaks or tabs is read as it was meant by --data_format csv (predict: --input_type csv), or, by every "
                "command, under a name that ends in .csv"
            )
    return ""


def _shown(delimiter: str) -> str:
    return "tab" if delimiter == "\t" else repr(delimiter)
