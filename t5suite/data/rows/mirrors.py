"""Copies of the hub's data sets, one file a split: `DIR/<benchmark>/<task>/<split>.jsonl`, for `--data_dir DIR`.

>>> for copy in write_mirror([load_task("glue", "rte")], "data"):
...     print(copy.path, copy.status, copy.rows, copy.official)
data/glue/rte/train.jsonl written 2490 2490
data/glue/rte/validation.jsonl written 277 277
data/glue/rte/test.jsonl written 3000 3000
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.base.hub_commits import check_revisions
from t5suite.base.lookup import path_inside
from t5suite.data.rows.jsonl import without_nan, write_jsonl
from t5suite.data.rows.sources import DataOptions, load_hub
from t5suite.tasks.registry import Task


class MirroredSplit(NamedTuple):
    """One file of a mirror; `status` is 'written', or 'kept' for one that existed (its `rows` are not counted)."""

    task: Task
    split: str
    path: Path
    status: str
    rows: int | None
    official: int | None

    @property
    def differs(self) -> bool:
        """Whether the number of rows written differs from the official number in the registry."""
        return None not in (self.rows, self.official) and self.rows != self.official


def write_mirror(
    tasks: Iterable[Task], output_dir, revision: str | None = None, gzipped: bool = False, force: bool = False
) -> Iterator[MirroredSplit]:
    """Downloads every split that the registry lists for `tasks`, one file after the other.

    Rows are those that `load_split` would read from the hub, columns and order included, so `--data_dir DIR` gives the
    same examples. A file appears under its name only when it is complete.

    Args:
      revision: the hub data set's branch, tag or commit, or a list of them by repository; None for its newest.
      force: overwrite existing files.

    Raises:
      ConfigError: a task has no hub path, its folder is a link to a place outside `output_dir`, or `revision` names a
        repository that no task is in.
      DataError: the hub cannot be reached, or a row is wrong.
    """
    tasks = list(tasks)
    for task in tasks:
        if not task.entry.get("hub_path"):
            raise ConfigError(f"{task.benchmark}/{task.name} has no hub_path: there is nothing to download")
    check_revisions(revision, "--data_revision", [task.entry["hub_path"] for task in tasks])
    for task in tasks:
        for role in ("train", "validation", "test"):
            for split in task.splits(role).values():
                yield mirror_split(task, role, split, output_dir, revision, gzipped, force)


def mirror_split(task: Task, role: str, split: str, output_dir, revision, gzipped: bool, force: bool) -> MirroredSplit:
    """One split as one file; see `write_mirror`."""
    stem = path_inside(output_dir, task.benchmark, task.rows_of, split, where="--output_dir")
    plain = Path(f"{stem}.jsonl")
    compressed = Path(f"{stem}.jsonl.gz")
    path, path_of_other_form = (compressed, plain) if gzipped else (plain, compressed)
    official = (task.entry.get("num_examples") or {}).get(split)
    present = [file for file in (path, path_of_other_form) if file.exists()]
    if present and not force:
        return MirroredSplit(task, split, present[0], "kept", None, official)
    rows = load_hub(task, role, split, DataOptions(data_revision=revision)).rows
    count = write_jsonl(path, map(without_nan, rows))
    path_of_other_form.unlink(missing_ok=True)  # reading rejects a split that exists in both forms
    return MirroredSplit(task, split, path, "written", count, official)
