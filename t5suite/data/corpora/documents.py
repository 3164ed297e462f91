"""Files, folders, patterns and data sets of the hub -> documents; whatever is left out is counted and named.

    >>> list(read_documents("articles.txt.gz"))
    ['The centre of the city is old.', 'A second article.']
    >>> documents = read_documents(["crawl/*.jsonl.zst", "books/", "hub:allenai/c4:en:train"], bad_lines="skip")

`t5suite.data.corpora.readers` says what a document of each kind of file is.
"""

import glob
import hashlib
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.hub import prepare_hub
from t5suite.base.lookup import suggestion
from t5suite.data.corpora.readers import (
    READERS,
    BadLine,
    Document,
    TextOptions,
    file_records,
    lines_before,
    record_of_value,
    text_suffix,
    without_compression,
)

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


# ---------------------------------------------------------------------------------------------------------------------
# A data set of the Hugging Face hub as a source of documents, read as a stream.
#
# Nothing is downloaded beforehand: `datasets` streams the data set's files. Its parts are those files, in their order.


PREFIX = "hub:"


class HubName(NamedTuple):
    """A data set by its place on the hub, or in a local folder that is laid out like one."""

    path: str
    config: str | None = None
    split: str = "train"
    revision: str | None = None

    @classmethod
    def parse(cls, name: str) -> "HubName":
        """`hub:PATH[@REVISION][:CONFIG[:SPLIT]]`; the split is train unless given."""
        path, config, split, *more = [*name.removeprefix(PREFIX).split(":"), "", ""]
        path, _, revision = path.partition("@")
        if not path or any(more):
            raise ConfigError(f"{name}: a data set is named hub:PATH[:CONFIG[:SPLIT]], such as hub:allenai/c4:en:train")
        return cls(path, config or None, split or "train", revision or None)


def is_hub_name(source) -> bool:
    """Whether a source is a data set of the hub, and not a file."""
    return str(source).startswith(PREFIX)


def open_stream(name: str):
    """The `datasets.IterableDataset` of a source.

    Raises:
      DataError: the hub cannot be reached, or has no such data set, configuration or split.
    """
    import datasets

    hub = HubName.parse(name)
    prepare_hub()
    try:
        return datasets.load_dataset(hub.path, hub.config, split=hub.split, revision=hub.revision, streaming=True)
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{name}: cannot be read ({type(error).__name__}: {reason:.300})") from None


def hub_records(name: str, options: TextOptions, start: int = 0, end: int | None = None) -> Iterator:
    """The documents and bad rows of the parts (files) from `start` to `end`; rows are numbered within a part."""
    stream = open_stream(name)
    for part in range(stream.num_shards)[start:end]:
        yield from _part_records(name, stream, part, options)


def _part_records(name, stream, part: int, options: TextOptions) -> Iterator[Document | BadLine]:
    column = options.text_column_name
    rows = iter(stream.shard(num_shards=stream.num_shards, index=part))
    for number, row in enumerate(_readable(name, part, rows), start=1):
        if column not in row:
            raise DataError(f"{name}: no column {column!r} (--text_column_name); {suggestion(column, row)}")
        yield record_of_value(row[column], column, number)


def _readable(name: str, part: int, rows: Iterator) -> Iterator[dict]:
    import pyarrow

    number = 0
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except (OSError, ValueError, EOFError, pyarrow.ArrowException) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DataError(f"{name}: part {part} cannot be read after row {number} ({reason:.300})") from None
        number += 1
        yield row


# ---------------------------------------------------------------------------------------------------------------------
# Which documents are held out for validation: a function of their text alone.
#
# A document is held out iff its hash, a number uniform on 0 .. 2**64 - 1, lies below `fraction * 2**64`. Equal
# documents therefore never stand on both sides, and neither their order nor the files, workers or machines that they
# are spread over change the sides. A larger fraction holds out the same documents and more.


NUM_HASHES = 2**64


def document_hash(text: str) -> int:
    """BLAKE2b (RFC 7693) of the UTF-8 text, 8 bytes, little endian; white space at both ends does not count.

    >>> document_hash("It rains.") == document_hash("It rains. ")
    True

    Raises UnicodeEncodeError for half a surrogate pair.
    """
    return int.from_bytes(hashlib.blake2b(text.strip().encode("utf-8"), digest_size=8).digest(), "little")


def held_out_below(fraction: float, flag: str = "--validation_fraction") -> int:
    """The number below which a hash means held out; 0 holds out nothing, 1 everything.

    >>> held_out_below(0.25) == 2**62
    True

    Raises:
      ConfigError: the fraction is not within 0 and 1.
    """
    if not 0 <= fraction <= 1:
        raise ConfigError(f"{flag} {fraction}: must be a fraction between 0 and 1, such as 0.01")
    return math.ceil(fraction * NUM_HASHES)


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a document belongs to the validation split."""
    return document_hash(text) < held_out_below(fraction)


# ---------------------------------------------------------------------------------------------------------------------
# A text -> its sentences.
#
# The rules are those of `sentencex` (Wikimedia, MIT licence), which has some 300 languages and needs no model. Of eight
# sentences of QNLI in a row it finds 98.8% of the boundaries and 99.4% of those that it finds are right, at 19 MB a
# second; syntok 1.4.4: 99.1% and 98.1% at 1.6 MB, punkt trained on 1.5 MB of news: 99.7% and 96.1% at 5 MB, a regular
# expression: 98.3% and 96.5%.


def split_sentences(text: str, language: str = "en") -> list[str]:
    """The sentences of a text in order, without the white space between them; none for a text without characters.

    Args:
      language: an ISO 639-1 code; for one that is not known, English rules count.
    """
    return [sentence for part in _sentencex().segment(language, text) if (sentence := part.strip())]


def require_splitter() -> None:
    """Raises ConfigError, with the line that installs it, where the splitter is not installed."""
    _sentencex()


def _sentencex():
    try:
        import sentencex
    except ImportError:
        raise ConfigError("--split_sentences needs the package sentencex: pip install 't5suite[sentences]'") from None
    return sentencex
