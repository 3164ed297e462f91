"""The rows of a recorded split, fetched again: from where the run read them, or those that its author has shared.

>>> rows = rows_of_split(record, split)
>>> len(rows.rows), rows.problem
(400, '')

A run records a hash of its rows as such (`rows_sha256`), so that rows of the hub, of a mirror and of a shared file are
the same rows. Earlier versions recorded only a fingerprint of files.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from t5suite.base.errors import DataError
from t5suite.data.rows.formats import rows_stay
from t5suite.data.rows.jsonl import read_jsonl
from t5suite.data.rows.own_rows import rows_fingerprint
from t5suite.data.rows.sources import LoadedSplit
from t5suite.reports.evaluated_rows import (
    FILES,
    EvaluatedRows,
    has_fingerprint_of_run,
    read_rows_again,
    settings_by_place,
    settings_in_folder,
)
from t5suite.reports.run_records import RecordedSplit, RunRecord
from t5suite.reports.shared_files import ROWS


@dataclass(frozen=True)
class RecordedRows:
    """The rows of a split.

    Attributes:
      rows: none if their number is another one, so that answers cannot be compared row by row.
      problem: how they differ from those of the run; empty if they are the same.
      data_dir: the folder that they were fetched with.
    """

    rows: list[dict]
    problem: str = ""
    data_dir: str | None = None


def rows_of_split(record: RunRecord, split: RecordedSplit, data_dir: str | None = None) -> RecordedRows:
    """The rows of a split: the same ones if they can be found, else those that are there now.

    The author's own rows are those in `data_dir`, if it has their file, or else those with the record; other places
    count only without both.

    Args:
      data_dir: where to look first.

    Raises:
      DataError: there are none; names the files and the reason.
    """
    shared = shared_rows(record, split)
    if shared is None:
        return fetched_rows(record, split, settings_by_place(record.manifest, data_dir))
    if data_dir:
        settings = settings_in_folder(record.settings, data_dir)
        try:
            return fetched_rows(record, split, [settings])
        except DataError:
            if has_rows_file(settings):
                raise
    return shared


def has_rows_file(settings: dict) -> bool:
    """Whether a file of rows that settings name is there, readable or not."""
    return any(Path(settings[name]).is_file() for name in FILES if settings.get(name))


def shared_rows(record: RunRecord, split: RecordedSplit) -> RecordedRows | None:
    """The author's own rows that are with the record, if there are any; rows of a benchmark never come from there."""
    path = record.folder / ROWS / f"{split.scored.key}.jsonl"
    if not record.has_own_rows(split) or not path.is_file():
        return None
    rows = read_jsonl(path)
    if is_hash_of_run(rows, split):
        return RecordedRows(rows)
    return changed_rows(rows, split, f"{ROWS}/{path.name}")


def fetched_rows(record: RunRecord, split: RecordedSplit, places: Iterable[dict]) -> RecordedRows:
    """The rows from where the run has read them.

    Args:
      places: as `evaluated_rows.settings_by_place`.

    Raises:
      DataError: there are none; names the files and the reason.
    """
    if not rows_stay(record.settings):
        raise DataError(
            f"the rows of {split.name} cannot be fetched: they were in memory, or made by code or a tokenizer, and "
            f"{ROWS}/{split.scored.key}.jsonl is missing (--share_rows keeps them)"
        )
    again = read_rows_again(split.scored, record.manifest, places, partial(are_rows_of_split, split))
    if again.rows is None:
        raise DataError(
            f"the rows of {split.name} ({split.scored.split}) cannot be fetched: {again.error}"
            f"{cure_of_rows(record, split)}"
        )
    if again.changed_source:
        return replace(changed_rows(again.rows.rows, split, again.changed_source), data_dir=again.data_dir)
    return RecordedRows(again.rows.rows, data_dir=again.data_dir)


def cure_of_rows(record: RunRecord, split: RecordedSplit) -> str:
    """What to do about rows that are nowhere."""
    if not record.has_own_rows(split):
        return "; --data_dir DIR says where a copy is"
    file = f"{ROWS}/{split.scored.key}.jsonl"
    if (record.folder / file).is_file():
        return f"; without --data_dir, {file} of the record is read"
    return f". They are the author's own, and {file} is missing; if you have them, give --data_dir DIR"


def are_rows_of_split(split: RecordedSplit, loaded: LoadedSplit, rows: EvaluatedRows, facts: dict) -> bool:
    """Whether rows are those of the run, by their hash; in runs of earlier versions by the fingerprint of their source.

    Args:
      facts: what the manifest's `data` says of the split.
    """
    if split.facts.get("rows_sha256") is None:
        return has_fingerprint_of_run(loaded, rows, facts)
    return is_hash_of_run(rows.rows, split)


def is_hash_of_run(rows: list[dict], split: RecordedSplit) -> bool:
    """Whether the hash of rows is the recorded one; true if none was recorded."""
    return split.facts.get("rows_sha256") in (None, rows_fingerprint(rows))


def changed_rows(rows: list[dict], split: RecordedSplit, source: str) -> RecordedRows:
    """Rows that are not those of the run."""
    count = split.facts.get("n")
    problem = f"{split.name}: its rows are not those that the run was scored on: {source} has changed"
    if len(rows) != count:
        return RecordedRows([], f"{problem} ({count} rows then, {len(rows)} now)")
    return RecordedRows(rows, problem)
