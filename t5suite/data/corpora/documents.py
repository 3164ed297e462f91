"""Files, folders, patterns and data sets of the hub -> documents; everything skipped is counted and named.

    >>> list(read_documents("articles.txt.gz"))
    ['The centre of the city is old.', 'A second article.']
    >>> documents = read_documents(["crawl/*.jsonl.zst", "books/", "hub:allenai/c4:en:train"], bad_lines="skip")

`t5suite.data.corpora.readers` defines what a document is in each kind of file.
"""

import glob
import hashlib
import logging
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError, UserError
from t5suite.base.hub import absent, prepare_hub
from t5suite.base.hub_commits import commit_to_read, revision_to_read
from t5suite.base.hub_failures import (
    ATTEMPTS,
    HubFailure,
    Reading,
    failure_of,
    hub_error,
    pause_before_retry,
    read_from_hub,
)
from t5suite.data.corpora.readers import (
    NO_PLAIN_FILE,
    READERS,
    BadLine,
    Document,
    TextOptions,
    file_records,
    lines_before,
    no_column,
    record_of_value,
    text_suffix,
    without_compression,
)
from t5suite.data.rows.hub_data_sets import check_whole_name

logger = logging.getLogger(__name__)

MINI_TEXT = Path(__file__).parent.parent / "mini" / "text"


def bundled_text(split: str) -> Path:
    """The file of a split of the bundled text: "train" or "validation"."""
    return MINI_TEXT / f"{split}.txt.gz"


# ---------------------------------------------------------------------------------------------------------------------
# What is skipped


EMPTY = "empty"
NUM_NAMED = 10


@dataclass
class Tally:
    """Counts of a source's lines: documents, those without text, and bad lines by kind; the first ten are named.

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
        self.add(Tally(0, {kind: 1}, {kind: [place]}))

    def wants_name(self, kind: str) -> bool:
        """Whether the next one of this kind will be named: finding its line may require reading the whole file."""
        return len(self.named.get(kind, [])) < NUM_NAMED

    def add(self, other: "Tally") -> None:
        """Adds the counts of a later part of the text."""
        self.documents += other.documents
        for kind, number in other.left_out.items():
            self.left_out[kind] = self.left_out.get(kind, 0) + number
            places = self.named.setdefault(kind, [])
            places.extend(other.named.get(kind, [])[: NUM_NAMED - len(places)])

    def summary(self) -> str:
        """The kinds, each with its number and its first places; '' if nothing was skipped."""
        parts = []
        for kind, number in self.left_out.items():
            plural = "" if number == 1 else "s"
            what = f"document{plural} without text" if kind == EMPTY else f"line{plural}: {kind}"
            parts.append(f"{number} {what} ({', '.join(self.named[kind][:3])}{', ...' if number > 3 else ''})")
        return "; ".join(parts)


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
    counted, sources = Tally() if tally is None else tally, list_sources(inputs)
    for source in sources:
        for document in kept_documents(source, options, counted):
            yield document.text
    refuse_no_documents(sources, counted)
    if tally is None and counted.left_out:
        level = logging.INFO if list(counted.left_out) == [EMPTY] else logging.WARNING
        logger.log(level, "skipped: %s", counted.summary())


def refuse_no_documents(sources: list[str], tally: Tally) -> None:
    """Raises DataError if the sources held no document at all."""
    if tally.documents == 0:
        others = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
        raise DataError(f"{sources[0]}{others}: no document in it{f' ({tally.summary()})' if tally.left_out else ''}")


def kept_documents(
    source: str, options: TextOptions, tally: Tally, start: int = 0, end: int | None = None
) -> Iterator[Document]:
    """The documents of a source, or of one part of it, that have text; the others are counted.

    `start` and `end` count bytes or row groups of a file (`file_records`), or files of a data set of the hub.
    Raises DataError as `file_records` and `hub_records` do; with `bad_lines="error"`, the first bad line (named).
    """
    if is_hub_name(source):
        dataset = open_stream(source)
        parts = range(dataset.num_shards)[start:end]
        records = ((part, record) for part in parts for record in hub_records(source, dataset, part, options))
    else:
        records = ((start, record) for record in file_records(Path(source), options, start, end))
    for first, record in records:
        if isinstance(record, Document) and record.text and not record.text.isspace():
            tally.documents += 1
            yield record
            continue
        kind, problem = (record.kind, f": {record.problem}") if isinstance(record, BadLine) else (EMPTY, "")
        stops = problem and options.bad_lines == "error"
        place = place_of(source, record.line, first) + problem if stops or tally.wants_name(kind) else ""
        if stops:
            raise DataError(place)
        tally.count(kind, place)


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
    sorted by name; hidden files are ignored. Raises DataError for a missing file, a folder or pattern without a text
    file, and a file that is named twice or exists in two forms.
    """
    inputs = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)
    if not inputs:
        raise ConfigError("no text is given: name a file, folder, pattern or hub:PATH")
    seen = {}
    for source in (source for given in inputs for source in _sources_of(str(given))):
        name = source if is_hub_name(source) else without_compression(str(Path(source).resolve()))
        if name in seen:
            both = "is given twice" if seen[name] == source else f"and {seen[name]} hold the same text; keep one"
            raise DataError(f"{source} {both}")
        seen[name] = source
    return list(seen.values())


def _sources_of(given: str) -> list[str]:
    path = Path(given)
    if is_hub_name(given):
        hub_arguments(given)
        return [given]
    if path.is_file():
        text_suffix(path)
        return [given]
    if path.is_dir():
        files = [file for file in path.rglob("*") if not any(p.startswith(".") for p in file.relative_to(path).parts)]
    elif glob.has_magic(given):
        files = map(Path, glob.glob(given, recursive=True))
    elif path.exists():
        raise DataError(f"{given}: {NO_PLAIN_FILE}")
    else:
        raise DataError(f"{given}: no such file")
    files = sorted(str(file) for file in files if file.is_file())
    chosen = [file for file in files if Path(without_compression(file)).suffix in READERS]
    if not chosen:
        among = f" among {len(files)} files" if files else ""
        raise DataError(f"{given}: no text file{among}; their names end in {', '.join(READERS)}")
    if len(chosen) < len(files):
        others = sorted(set(files) - set(chosen))
        logger.warning("%s: skipped %d files that are not text files (%s, ...)", given, len(others), others[0])
    return chosen


# ---------------------------------------------------------------------------------------------------------------------
# A data set of the Hugging Face hub as a source of documents: `datasets` streams its files without
# downloading them first. Its parts are those files, in order.


PREFIX = "hub:"
ROWS_AT_ONCE = 64


def hub_arguments(name: str) -> dict:
    """`hub:PATH[@REVISION][:CONFIG[:SPLIT]]` -> the arguments of `load_dataset`; PATH may be a local folder."""
    path, config, split, *more = [*name.removeprefix(PREFIX).split(":"), "", ""]
    path, _, revision = path.partition("@")
    if not path or any(more):
        raise ConfigError(f"{name}: a data set is named hub:PATH[:CONFIG[:SPLIT]], such as hub:allenai/c4:en:train")
    return {"path": path, "name": config or None, "split": split or "train", "revision": revision or None}


def commit_of_source(name: str) -> str | None:
    """The commit that a data set of the hub is read from; None for a local folder, or if it is not known."""
    arguments = hub_arguments(name)
    try:
        return commit_to_read("dataset", arguments["path"], arguments["revision"])
    except UserError:
        raise
    except (OSError, ValueError):  # opening it says more
        return None


def at_commit(name: str, commit: str | None) -> str:
    """The name of a data set of the hub with its commit as the revision, for a process that reads a part of it.

    >>> at_commit("hub:allenai/c4:en:train", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2")
    'hub:allenai/c4@1588ec454efa1a09f29cd18ddd04fe05fc8653a2:en:train'
    """
    if commit is None:
        return name
    place, separator, rest = name.removeprefix(PREFIX).partition(":")
    return f"{PREFIX}{place.partition('@')[0]}@{commit}{separator}{rest}"


def is_hub_name(source) -> bool:
    """Whether a source is a data set of the hub rather than a file."""
    return str(source).startswith(PREFIX)


def open_stream(name: str):
    """The `datasets.IterableDataset` of a source."""
    import datasets

    arguments = hub_arguments(name)
    is_online = Path(arguments["path"]).exists() or prepare_hub()
    try:
        check_whole_name(arguments["path"])
        arguments["revision"] = revision_to_read("dataset", arguments["path"], arguments["revision"])
        return read_from_hub(_reading_of(name), lambda: datasets.load_dataset(**arguments, streaming=True))
    except UserError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        message = f"{name}: cannot be read ({type(error).__name__}: {reason:.300})"
        raise (DataError(message) if is_online else absent(message, DataError)) from None


def _reading_of(name: str, part: str | None = None) -> Reading:
    arguments = hub_arguments(name)
    return Reading("dataset", arguments["path"], arguments["revision"], part or arguments["name"])


def hub_records(name: str, dataset, part: int, options: TextOptions, row: int = 0) -> Iterator[Document | BadLine]:
    """The documents and bad rows of one file of a data set, from a row on; rows are numbered within the file."""
    column, rows = options.text_column_name, dataset.shard(num_shards=dataset.num_shards, index=part)
    if dataset.column_names:  # known before reading
        if column not in dataset.column_names:
            raise DataError(f"{name}: {no_column(column, dataset.column_names)}")
        rows = rows.select_columns([column])
    attempt = 1
    while True:
        try:
            # By `iter`: in a DataLoader worker, plain iteration would split the files over the workers once more.
            for batch in (rows.skip(row) if row else rows).iter(batch_size=ROWS_AT_ONCE):
                if column not in batch:
                    raise DataError(f"{name}: {no_column(column, batch)}")
                for value in batch[column]:
                    row += 1
                    attempt = 1
                    yield record_of_value(value, column, row)
            return
        except UserError:
            raise
        except Exception as error:  # the libraries for HTTP have their own errors
            failure = _failure_to_pass(error, name, part, row, attempt)
            pause_before_retry(failure, _reading_of(name, _position(part, row)), attempt)
            attempt += 1


def _position(part: int, row: int) -> str:
    return f"file {part} after row {row}"


def _failure_to_pass(error: Exception, name: str, part: int, row: int, attempt: int) -> HubFailure:
    """The failure after which a file is read on from the same row.

    Raises:
      UserError: it does not pass, or has not within the attempts; or the file is wrong.
    """
    import pyarrow

    failure = failure_of(error)
    if failure is None and not isinstance(error, (OSError, ValueError, EOFError, pyarrow.ArrowException)):
        raise error
    if failure is None:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{name}: file {part} cannot be read after row {row} ({reason:.300})") from error
    if not failure.may_pass or attempt == ATTEMPTS:
        raise hub_error(failure, _reading_of(name, _position(part, row))) from error
    return failure


# ---------------------------------------------------------------------------------------------------------------------
# Which documents are held out for validation: a function of their text alone.
#
# A document is held out iff its hash, a number uniform on 0 .. 2**64 - 1, is below `fraction * 2**64`. Equal
# documents are therefore always on the same side, whatever their order and the files, workers or machines that they
# are spread over. A larger fraction holds out the same documents and more.


def document_hash(text: str) -> int:
    """BLAKE2b (RFC 7693) of the UTF-8 text, 8 bytes, little endian; white space at both ends is ignored."""
    return int.from_bytes(hashlib.blake2b(text.strip().encode("utf-8"), digest_size=8).digest(), "little")


def held_out_below(fraction: float) -> int:
    """The number below which a hash means held out; a fraction of 0 holds out nothing, 1 everything."""
    if not 0 <= fraction <= 1:
        raise ConfigError(f"--validation_fraction {fraction}: must be a fraction between 0 and 1, such as 0.01")
    return math.ceil(fraction * 2**64)


def is_held_out(text: str, fraction: float) -> bool:
    """Whether a document belongs to the validation split."""
    return document_hash(text) < held_out_below(fraction)


def fitting_fraction(inputs, options: TextOptions, fraction: float) -> float:
    """The fraction itself; or, if a side of a small text would be empty, one that holds out only the document with the
    lowest hash, or trains only on the one with the highest; 0 and 1 are kept.

    >>> fitting_fraction(["three_lines.txt"], TextOptions(), 0.05)
    0.2731
    """
    below, ends = held_out_below(fraction), []
    for text in read_documents(inputs, **asdict(options), tally=Tally()) if 0 < fraction < 1 else ():
        ends = sorted({*ends[:2], *ends[-2:], document_hash(text)})  # the two lowest and the two highest so far
        if ends[0] < below <= ends[-1]:
            return fraction
    if len(ends) < 2:  # equal documents are on one side
        return fraction
    return sum(ends[:2] if ends[0] >= below else ends[-2:]) / 2 / 2**64


def split_sentences(text: str, language: str = "en") -> list[str]:
    """The sentences of a text in order, without the white space between them; none for a text without characters.

    The rules are those of `sentencex` (Wikimedia), which needs no model: of eight sentences of QNLI in a row it finds
    98.8% of the boundaries and 99.4% of those that it finds are right, at 19 MB a second. `language` is an ISO 639-1
    code; an unknown one gets the English rules.
    """
    try:
        import sentencex
    except ImportError:
        raise ConfigError("--split_sentences needs the package sentencex: pip install 't5suite[sentences]'") from None
    return [sentence for part in sentencex.segment(language, text) if (sentence := part.strip())]
