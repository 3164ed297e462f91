"""The rows of a recorded split, fetched again: those that its author has shared, or from where the run read them.

>>> rows = rows_of_split(record, split)
>>> len(rows.rows), rows.problem
(400, '')

A run records a hash of its rows as such (`rows_sha256`), so that rows of the hub, of a mirror and of a shared file are
the same rows. Earlier versions recorded only a fingerprint of files.
"""

from dataclasses import dataclass

from t5suite.base.errors import DataError, UserError
from t5suite.data.rows.formats import rows_stay
from t5suite.data.rows.jsonl import read_jsonl
from t5suite.data.rows.own_rows import rows_fingerprint
from t5suite.reports.evaluated_rows import (
    LONGEST_ERROR,
    EvaluatedRows,
    changed_source,
    data_revisions,
    drawn_rows,
    is_changed,
    load_evaluated_rows,
    settings_by_place,
)
from t5suite.reports.finished_runs import data_facts
from t5suite.reports.run_records import RecordedSplit, RunRecord
from t5suite.reports.shared_files import ROWS


@dataclass(frozen=True)
class RecordedRows:
    """The rows of a split.

    Attributes:
      rows: none if their number is another one, so that answers cannot be compared_rows row by row.
      problem: how they differ from those of the run; empty if they are the same.
    """

    rows: list[dict]
    problem: str = ""


def rows_of_split(record: RunRecord, split: RecordedSplit, data_dir: str | None = None) -> RecordedRows:
    """The rows of a split: the same ones if they can be found, else those that are there now.

    Args:
      data_dir: where to look first.

    Raises:
      DataError: there are none; names the files and the reason.
    """
    shared = record.folder / ROWS / f"{split.scored.key}.jsonl"
    if shared.is_file():
        rows = read_jsonl(shared)
        return compared_rows(EvaluatedRows(rows, list(range(len(rows))), []), split, f"{ROWS}/{shared.name}")
    if not rows_stay(record.settings):
        raise DataError(
            f"the rows of {split.name} cannot be fetched: they were in memory, or made by code or a tokenizer, and "
            f"{ROWS}/{shared.name} is missing (--share_rows keeps them)"
        )
    different_rows = []
    reasons = []
    facts = data_facts(record.manifest).get(split.scored.key) or {}
    for settings in settings_by_place(record.manifest, data_dir):
        try:
            loaded, places = load_evaluated_rows(split.scored, settings, data_revisions(record.manifest))
            rows = drawn_rows(split.scored, loaded, places, settings)
        except (UserError, OSError, ImportError) as error:
            reasons.append(str(error)[:LONGEST_ERROR])
            continue
        recorded = compared_rows(rows, split, changed_source(loaded, facts))
        if not split.facts.get("rows_sha256") and is_changed(loaded, facts):
            recorded = changed(rows, split, changed_source(loaded, facts))
        if not recorded.problem:
            return recorded
        different_rows.append(recorded)
    if different_rows:
        return different_rows[0]
    raise DataError(
        f"the rows of {split.name} ({split.scored.split}) cannot be fetched: {reasons[0]}{cure_of_rows(split)}"
    )


def cure_of_rows(split: RecordedSplit) -> str:
    """What to do about rows that are nowhere."""
    if split.facts.get("own_rows"):
        file = f"{ROWS}/{split.scored.key}.jsonl"
        return f". They are the author's own, and {file} is missing; if you have them, give --data_dir DIR"
    return "; --data_dir DIR says where a copy is"


def compared_rows(rows: EvaluatedRows, split: RecordedSplit, source: str) -> RecordedRows:
    """The rows, and whether they are those of the run."""
    expected = split.facts.get("rows_sha256")
    if expected not in (None, rows_fingerprint(rows.rows)):
        return changed(rows, split, source)
    return RecordedRows(rows.rows)


def changed(rows: EvaluatedRows, split: RecordedSplit, source: str) -> RecordedRows:
    """Rows that are not those of the run."""
    count = split.facts.get("n")
    problem = f"{split.name}: its rows are not those of the run: {source} has changed"
    if len(rows.rows) != count:
        return RecordedRows([], f"{problem} ({count} rows then, {len(rows.rows)} now)")
    return RecordedRows(rows.rows, problem)
