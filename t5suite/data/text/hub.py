"""A data set of the Hugging Face hub as a source of documents, read as a stream.

    >>> name = HubName.parse("hub:allenai/c4@main:en:train")
    >>> name.path, name.revision, name.config, name.split
    ('allenai/c4', 'main', 'en', 'train')

Nothing is downloaded beforehand: `datasets` streams the data set's files. Its parts are those files, in their order.
"""

from collections.abc import Iterator
from typing import NamedTuple

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.hub import prepare_hub
from t5suite.base.lookup import suggestion
from t5suite.data.text.readers import BadLine, Document, TextOptions, record_of_value

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
