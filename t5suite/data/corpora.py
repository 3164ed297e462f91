"""Text files -> documents.

    >>> list(read_documents("articles.txt.gz"))
    ['The centre of the city is old.', 'A second article.']

A `.txt` file holds one document a line; blank lines are passed over. A `.jsonl` file holds one object a line, whose
text column is the document. Either may be gzipped (`.gz`). Files are read line by line, as UTF-8.
"""

from collections.abc import Iterator
from pathlib import Path

from t5suite.data.compressed import byte_lines
from t5suite.data.jsonl import numbered_lines
from t5suite.errors import DataError
from t5suite.lookup import suggestion

MINI_TEXT = Path(__file__).parent / "mini" / "text"
BYTE_ORDER_MARK = "\ufeff"


def bundled_text(split: str) -> Path:
    """The file of a split of the bundled text.

    >>> bundled_text("validation").name
    'validation.txt.gz'
    """
    return MINI_TEXT / f"{split}.txt.gz"


def read_documents(path, text_column_name: str = "text") -> Iterator[str]:
    """The documents of a file, in order; those without text are passed over.

    Raises:
      DataError: no such file, a name that ends otherwise, no document in it, a line (named) that is not UTF-8, not
        JSON, or has no text in the column; a gzip file that ends too early.
    """
    path, found = Path(path), False
    for document in _reader(path)(path, text_column_name):
        if document.strip():
            found = True
            yield document
    if not found:
        raise DataError(f"{path}: no document in the file")


def _text_documents(path: Path, _column) -> Iterator[str]:
    for number, line in enumerate(byte_lines(path), start=1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = line[error.start]
            raise DataError(f"{path}:{number}: not UTF-8 (byte {error.start} is 0x{byte:02x})") from None
        yield (text.removeprefix(BYTE_ORDER_MARK) if number == 1 else text).rstrip("\r\n")


def _json_documents(path: Path, column: str) -> Iterator[str]:
    for number, row in numbered_lines(path):
        if column not in row:
            raise DataError(f"{path}:{number}: no column {column!r} (--text_column_name); {suggestion(column, row)}")
        if not isinstance(row[column], str):
            kind = type(row[column]).__name__
            raise DataError(f"{path}:{number}: column {column!r} holds {row[column]!r:.60} ({kind}), not text")
        yield row[column]


def _reader(path: Path):
    for suffix, reader in READERS.items():
        if path.name.removesuffix(".gz").endswith(suffix):
            return reader
    endings = ", ".join(f"{suffix}, {suffix}.gz" for suffix in READERS)
    raise DataError(f"{path}: a text file's name ends in one of {endings}")


READERS = {
    ".txt": _text_documents,
    ".jsonl": _json_documents,
}
