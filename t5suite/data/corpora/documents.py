"""Files, folders, patterns and data sets of the hub -> documents; everything skipped is counted and named.

    >>> list(read_documents("articles.txt.gz"))
    ['The centre of the city is old.', 'A second article.']
    >>> documents = read_documents(["crawl/*.jsonl.zst", "books/", "hub:allenai/c4:en:train"], bad_lines="skip")

`t5suite.data.corpora.readers` defines what a document is in each kind of file.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.data.corpora.byte_files import lines_before
from t5suite.data.corpora.hub_documents import hub_records, open_stream
from t5suite.data.corpora.readers import BadLine, Document, TextOptions, file_records, text_suffix
from t5suite.data.corpora.sources import is_hub_name, list_sources
from t5suite.data.corpora.tally import EMPTY, Tally

logger = logging.getLogger(__name__)
# So many files are opened before the reading of all.
MOST_FIRST_DOCUMENTS = 20
MINI_TEXT = Path(__file__).parent.parent / "mini" / "text"


def bundled_text(split: str) -> Path:
    """The file of a split of the bundled text: "train" or "validation"."""
    return MINI_TEXT / f"{split}.txt.gz"


def read_documents(
    inputs,
    text_column_name: str = "text",
    *,
    text_unit: str = "line",
    bad_lines: str = "error",
    tally: Tally | None = None,
) -> Iterator[str]:
    """The documents of files, folders, patterns and data sets of the hub, in order; those without text are skipped.

    Args:
      inputs: one, or several of them (`list_sources`).
      tally: counts what was skipped; if None, it is logged at the end.

    Raises:
      ConfigError: an unknown `text_unit` or `bad_lines`.
      DataError: no such file, an unknown file name ending, no document at all, a damaged compressed file; with
        `bad_lines="error"`, a line (named) that is not UTF-8, not JSON, or has no text in the column.
    """
    options = TextOptions(text_column_name, text_unit, bad_lines)
    is_logged = tally is None
    if tally is None:
        tally = Tally()
    sources = list_sources(inputs)
    for source in sources:
        for document in documents_with_text(source, options, tally):
            yield document.text
    refuse_no_documents(sources, tally)
    if is_logged and tally.left_out:
        level = logging.INFO if list(tally.left_out) == [EMPTY] else logging.WARNING
        logger.log(level, "skipped: %s", tally.summary())


def check_first_documents(inputs, options: TextOptions) -> None:
    """Reads the first document of every file: a missing file or a wrong column is known at once.

    The hub's data sets, and lines that may be bad (`bad_lines="skip"`), are left to the reading of all documents.

    Raises:
      ConfigError, DataError: as `read_documents`, of the names of all files and the first lines of the first ones.
    """
    files = [source for source in list_sources(inputs, logs_skipped=False) if not is_hub_name(source)]
    if options.bad_lines == "error":
        for file in files[:MOST_FIRST_DOCUMENTS]:
            next(documents_with_text(file, options, Tally()), None)


def refuse_no_documents(sources: list[str], tally: Tally) -> None:
    """Raises DataError if the sources held no document at all."""
    if tally.documents == 0:
        further_sources = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
        skipped = f" ({tally.summary()})" if tally.left_out else ""
        raise DataError(f"{sources[0]}{further_sources}: no document in it{skipped}")


def documents_with_text(
    source: str, options: TextOptions, tally: Tally, start: int = 0, end: int | None = None
) -> Iterator[Document]:
    """The documents of a source, or of one part of it, that have text; what has none is counted.

    `start` and `end` count bytes or row groups of a file (`file_records`), or files of a data set of the hub.
    Raises DataError as `file_records` and `hub_records` do; with `bad_lines="error"`, the first bad line (named).
    """
    for first, record in _records_of_source(source, options, start, end):
        if isinstance(record, BadLine):
            if options.bad_lines == "error":
                raise DataError(f"{place_of(source, record.line, first)}: {record.problem}")
            kind = record.kind
            problem = f": {record.problem}"
        elif not record.text or record.text.isspace():
            kind = EMPTY
            problem = ""
        else:
            tally.documents += 1
            yield record
            continue
        place = place_of(source, record.line, first) + problem if tally.wants_name(kind) else ""
        tally.count(kind, place)


def _records_of_source(
    source: str, options: TextOptions, start: int, end: int | None
) -> Iterator[tuple[int, Document | BadLine]]:
    """`(what its line is counted from, record)` of each record of a part of a source."""
    if not is_hub_name(source):
        for record in file_records(Path(source), options, start, end):
            yield start, record
        return
    dataset = open_stream(source)
    for part in range(dataset.num_shards)[start:end]:
        for record in hub_records(source, dataset, part, options):
            yield part, record


def place_of(source: str, line: int, start: int = 0) -> str:
    """`file:line` of a record that was read with this `start`.

    >>> place_of("rows.jsonl", 7)
    'rows.jsonl:7'
    >>> place_of("hub:allenai/c4:en:train", 7, start=3)
    'hub:allenai/c4:en:train, file 3:7'
    """
    if is_hub_name(source):
        return f"{source}, file {start}:{line}"
    if start > 0 and text_suffix(Path(source)) != ".parquet":  # its rows are counted from the file's first
        line += lines_before(Path(source), start)
    return f"{source}:{line}"
