"""A data set of the Hugging Face hub as a source of documents: `datasets` streams its files without downloading them.

Its parts are those files, in order.
"""

from collections.abc import Iterator
from pathlib import Path

from t5suite.base.errors import DataError, UserError, first_line
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
from t5suite.data.corpora.readers import BadLine, Document, TextOptions, no_column, record_of_value
from t5suite.data.corpora.sources import hub_arguments
from t5suite.data.rows.hub_data_sets import check_whole_name

ROWS_AT_ONCE = 64


def commit_of_source(name: str) -> str | None:
    """The commit that a data set of the hub is read from; None for a local folder, or if it is not known."""
    arguments = hub_arguments(name)
    try:
        return commit_to_read("dataset", arguments["path"], arguments["revision"])
    except UserError:
        raise
    except (OSError, ValueError):  # opening it says more
        return None


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
        message = f"{name}: cannot be read ({type(error).__name__}: {first_line(error):.300})"
        if is_online:
            raise DataError(message) from None
        raise absent(message, DataError) from None


def _reading_of(name: str, part: str | None = None) -> Reading:
    arguments = hub_arguments(name)
    return Reading("dataset", arguments["path"], arguments["revision"], part or arguments["name"])


def hub_records(name: str, dataset, part: int, options: TextOptions, row: int = 0) -> Iterator[Document | BadLine]:
    """The documents and bad rows of one file of a data set, from a row on; rows are numbered within the file."""
    column = options.text_column_name
    rows = dataset.shard(num_shards=dataset.num_shards, index=part)
    if dataset.column_names:  # known before reading
        if column not in dataset.column_names:
            raise DataError(f"{name}: {no_column(options, dataset.column_names)}")
        rows = rows.select_columns([column])
    attempt = 1
    while True:
        try:
            unread_rows = rows.skip(row) if row else rows
            # By `iter`: in a DataLoader worker, plain iteration would split the files over the workers once more.
            for batch in unread_rows.iter(batch_size=ROWS_AT_ONCE):
                if column not in batch:
                    raise DataError(f"{name}: {no_column(options, batch)}")
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
        raise DataError(f"{name}: file {part} cannot be read after row {row} ({first_line(error):.300})") from error
    if not failure.may_pass or attempt == ATTEMPTS:
        raise hub_error(failure, _reading_of(name, _position(part, row))) from error
    return failure
