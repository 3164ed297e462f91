"""Splits of a data set that the hub keeps as JSON lines in zip files, which `datasets` would need a script to read.

    >>> columns = ("id", "pid", "input", "output")
    >>> rows, commit = load_hub_archive("tau/scrolls", "qasper.zip", "validation", columns)
    >>> rows.column_names, len(commit)
    (['id', 'pid', 'input', 'output'], 40)

The archive is downloaded once, into the cache of the hub's client, and its rows are written to the cache of `datasets`.
"""

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Sequence

from t5suite.base.errors import DataError
from t5suite.base.hub_commits import commit_to_read, revision_of
from t5suite.base.hub_failures import Reading, read_from_hub

DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError)


def load_hub_archive(path: str, archive: str, split: str, columns: Sequence[str], revisions: str | None = None):
    """`(rows, commit)` of a split: the lines of `<split>.jsonl` in a zip file; the commit is None where it is unknown.

    Args:
      path: a repository of data.
      archive: the zip file's place in it.
      columns: text columns that a row has; one that a line lacks is None, as where the answers are hidden.
      revisions: as `commit_to_read` takes them.

    Raises:
      DataError: the archive is damaged, has no such split, or a line is no row (named).
      UserError: as `hub_failures.read_from_hub`.
      OSError, ValueError: as `hf_hub_download`, for other causes.
    """
    import datasets
    from huggingface_hub import hf_hub_download

    commit = commit_to_read("dataset", path, revisions)
    revision = commit or revision_of(revisions, path)
    reading = Reading("dataset", path, revision, archive)
    file = read_from_hub(reading, lambda: hf_hub_download(path, archive, repo_type="dataset", revision=revision))
    place = f"{path}/{archive}"
    member = split_in_archive(file, split, place)

    def write_rows_to_cache():
        return datasets.Dataset.from_generator(
            rows_of_member,
            features=datasets.Features({column: datasets.Value("string") for column in columns}),
            gen_kwargs={"file": file, "member": member, "place": place, "columns": tuple(columns)},
            fingerprint=hashlib.sha256(f"{place} {member} {commit or file}".encode()).hexdigest()[:16],
        )

    try:
        rows = read_from_hub(reading, write_rows_to_cache)
    except datasets.exceptions.DatasetGenerationError as error:
        raise error.__cause__ or error from None
    return rows, commit


def split_in_archive(file: str, split: str, place: str) -> str:
    """The name of the archive's member `<split>.jsonl`, in whatever folder.

    Raises:
      DataError: there is none, or the file is no zip file.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except DAMAGE as error:
        raise _damaged_archive(place, file, error) from None
    for name in names:
        if name.rpartition("/")[2] == f"{split}.jsonl" and not name.startswith("__MACOSX/"):
            return name
    raise DataError(f"{place}: no {split}.jsonl in it; it has {', '.join(names):.300}")


def rows_of_member(file: str, member: str, place: str, columns: Sequence[str]) -> Iterator[dict]:
    """The rows of one JSON lines file of an archive."""
    try:
        with zipfile.ZipFile(file) as archive, archive.open(member) as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _row_of_line(line, columns, f"{place}, {member}:{number}")
    except DAMAGE as error:
        raise _damaged_archive(place, file, error) from None


def _row_of_line(line: bytes, columns: Sequence[str], place: str) -> dict:
    try:
        row = json.loads(line.decode("utf-8"))
        return {column: row.get(column) for column in columns}
    except (ValueError, AttributeError) as error:
        raise DataError(f"{place}: not a row ({error})") from None


def _damaged_archive(place: str, file: str, error: Exception) -> DataError:
    """The error names the file itself, not the link to it, which the hub's client would make anew."""
    return DataError(f"{place}: not a whole zip file ({error}); delete {os.path.realpath(file)} and start again")
