"""Files, folders, patterns and data sets of the hub -> documents; whatever is left out is counted and named.

    >>> list(read_documents("articles.txt.gz"))
    ['The centre of the city is old.', 'A second article.']
    >>> documents = read_documents(["crawl/*.jsonl.zst", "books/", "hub:allenai/c4:en:train"], bad_lines="skip")

`t5suite.data.text.readers` says what a document of each kind of file is.
"""

import glob
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.data.text.compressed import without_compression
from t5suite.data.text.hub import HubName, hub_records, is_hub_name, open_stream
from t5suite.data.text.readers import READERS, BadLine, Document, TextOptions, file_records, lines_before, text_suffix

logger = logging.getLogger(__name__)

MINI_TEXT = Path(__file__).parent.parent / "mini" / "text"
NUM_NAMED = 10


def bundled_text(split: str) -> Path:
    """The file of a split of the bundled text.

    >>> bundled_text("validation").name
    'validation.txt.gz'
    """
    return MINI_TEXT / f"{split}.txt.gz"


# ---------------------------------------------------------------------------------------------------------------------
# What is left out


@dataclass
class Tally:
    """What became of a source's lines: documents, those without text, and bad lines by kind; the first ten are named.

    >>> tally = Tally(documents=98)
    >>> tally.count("not JSON", "rows.jsonl:7: not JSON (Expecting value at column 1)")
    >>> tally.summary()
    '1 line: not JSON (rows.jsonl:7: not JSON (Expecting value at column 1))'
    """

    documents: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    named: dict[str, list[str]] = field(default_factory=dict)

    def count(self, kind: str, place: str) -> None:
        """One more of a kind."""
        self.left_out[kind] = self.left_out.get(kind, 0) + 1
        places = self.named.setdefault(kind, [])
        if len(places) < NUM_NAMED:
            places.append(place)

    def wants_name(self, kind: str) -> bool:
        """Whether the next one of this kind will be named: to find out its line may take a look at the whole file."""
        return len(self.named.get(kind, [])) < NUM_NAMED

    def add(self, other: "Tally") -> None:
        """Takes in what was counted elsewhere, later in the text."""
        self.documents += other.documents
        for kind, number in other.left_out.items():
            self.left_out[kind] = self.left_out.get(kind, 0) + number
            places = self.named.setdefault(kind, [])
            places.extend(other.named.get(kind, [])[: NUM_NAMED - len(places)])

    def summary(self) -> str:
        """The kinds, each with its number and its first places; '' where nothing was left out."""
        parts = []
        for kind, number in self.left_out.items():
            places = self.named[kind]
            more = ", ..." if number > len(places[:3]) else ""
            parts.append(f"{number} {_said(kind, number)} ({', '.join(places[:3])}{more})")
        return "; ".join(parts)


EMPTY = "empty"


def _said(kind: str, number: int) -> str:
    if kind == EMPTY:
        return "document without text" if number == 1 else "documents without text"
    return f"line: {kind}" if number == 1 else f"lines: {kind}"


# ---------------------------------------------------------------------------------------------------------------------
# Documents


def read_documents(
    inputs,
    text_column_name: str = "text",
    *,
    text_unit: str = "line",
    bad_lines: str = "error",
    tally: Tally | None = None,
) -> Iterator[str]:
    """The documents of files, folders, patterns and data sets of the hub, in order; those without text are left out.

    Args:
      inputs: one, or several of them (`list_sources`).
      tally: counts what was left out; where none is given, the log says it at the end.

    Raises:
      ConfigError: an unknown `text_unit` or `bad_lines`.
      DataError: no such file, a name that ends otherwise, no document at all, a torn compressed file; with
        `bad_lines="error"`, a line (named) that is not UTF-8, not JSON, or has no text in the column.
    """
    options = TextOptions(text_column_name, text_unit, bad_lines)
    counted, sources = Tally(), list_sources(inputs)
    for source in sources:
        before = counted.documents
        for start, end in source_parts(source):
            for document in kept_documents(source, options, counted, start, end):
                yield document.text
        if counted.documents == before:
            logger.warning("%s: no document in it", source)
    refuse_no_documents(sources, counted)
    if tally is not None:
        tally.add(counted)
    elif counted.left_out:
        level = logging.INFO if list(counted.left_out) == [EMPTY] else logging.WARNING
        logger.log(level, "left out: %s", counted.summary())


def refuse_no_documents(sources: list[str], tally: Tally) -> None:
    """Raises DataError where the sources held no document at all."""
    if tally.documents == 0:
        others = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
        raise DataError(f"{sources[0]}{others}: no document in it{f' ({tally.summary()})' if tally.left_out else ''}")


def source_parts(source: str) -> list[tuple[int, int | None]]:
    """`(start, end)` of what is read in one go: a file as a whole, a data set of the hub part by part."""
    if not is_hub_name(source):
        return [(0, None)]
    return [(part, part + 1) for part in range(open_stream(source).num_shards)]


def kept_documents(
    source: str, options: TextOptions, tally: Tally, start: int = 0, end: int | None = None
) -> Iterator[Document]:
    """The documents of a source, or of one part of it, that have text; the others are counted.

    Raises:
      DataError: as `file_records` and `hub_records` do; with `bad_lines="error"`, the first bad line (named).
    """
    read, where = (hub_records, source) if is_hub_name(source) else (file_records, Path(source))
    for record in read(where, options, start, end):
        if isinstance(record, BadLine):
            _count_bad(record, source, options, tally, start)
        elif record.text and not record.text.isspace():
            tally.documents += 1
            yield record
        else:
            tally.count(EMPTY, place_of(source, record.line, start) if tally.wants_name(EMPTY) else "")


def _count_bad(bad: BadLine, source: str, options: TextOptions, tally: Tally, start: int) -> None:
    if options.bad_lines == "skip" and not tally.wants_name(bad.kind):
        tally.count(bad.kind, "")
        return
    problem = f"{place_of(source, bad.line, start)}: {bad.problem}"
    if options.bad_lines == "error":
        raise DataError(problem)
    tally.count(bad.kind, problem)


def place_of(source: str, line: int, start: int = 0) -> str:
    """`file:line` of a record that was read with this `start`.

    >>> place_of("rows.jsonl", 7)
    'rows.jsonl:7'
    >>> place_of("hub:allenai/c4:en:train", 7, start=3)
    'hub:allenai/c4:en:train, file 3:7'
    """
    if is_hub_name(source):
        return f"{source}, file {start}:{line}"
    in_rows = start == 0 or text_suffix(Path(source)) == ".parquet"
    return f"{source}:{line if in_rows else lines_before(Path(source), start) + line}"


# ---------------------------------------------------------------------------------------------------------------------
# Sources


def list_sources(inputs) -> list[str]:
    """The files and data sets that inputs stand for, in order.

    >>> list_sources(["books/", "crawl/*.jsonl.gz"])
    ['books/emma.txt', 'books/ulysses.txt', 'crawl/0.jsonl.gz', 'crawl/1.jsonl.gz']

    A folder stands for every text file below it, a pattern (`*`, `?`, `[...]`, `**`) for the files that match, both
    sorted by name; hidden files do not count.

    Raises:
      ConfigError: no input at all.
      DataError: nothing of that name, a folder or pattern without a text file, a file that is named twice or is there
        in two forms.
    """
    inputs = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)
    if not inputs:
        raise ConfigError("no text is given: name a file, folder, pattern or hub:PATH")
    sources = [source for given in inputs for source in _sources_of(str(given))]
    _refuse_repeated(sources)
    return sources


def _sources_of(given: str) -> Iterable[str]:
    if is_hub_name(given):
        HubName.parse(given)
        return [given]
    path = Path(given)
    if path.is_dir():
        found = [str(file) for file in path.rglob("*") if file.is_file()]
        return _text_files(given, [file for file in found if not _is_hidden(file, given)])
    if path.is_file():
        text_suffix(path)
        return [given]
    if glob.has_magic(given):
        return _text_files(given, [file for file in glob.glob(given, recursive=True) if Path(file).is_file()])
    raise DataError(f"{given}: no such file")


def _is_hidden(file: str, folder: str) -> bool:
    return any(part.startswith(".") for part in Path(file).relative_to(folder).parts)


def _text_files(given: str, files: list[str]) -> list[str]:
    chosen = sorted(file for file in files if Path(without_compression(file)).suffix in READERS)
    others = sorted(set(files) - set(chosen))
    if not chosen:
        among = f" among {len(files)} files" if files else ""
        raise DataError(f"{given}: no text file{among}; their names end in {', '.join(READERS)}")
    if others:
        logger.warning("%s: %d files are no text files and left out (%s, ...)", given, len(others), others[0])
    return chosen


def _refuse_repeated(sources: list[str]) -> None:
    seen = {}
    for source in sources:
        name = source if is_hub_name(source) else without_compression(str(Path(source).resolve()))
        if name in seen:
            both = "is given twice" if seen[name] == source else f"and {seen[name]} hold the same text; keep one"
            raise DataError(f"{source} {both}")
        seen[name] = source
