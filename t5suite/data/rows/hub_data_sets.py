"""Data sets of the hub, each read from one commit, with or without a network.

    >>> rows, commit = load_hub_data("nyu-mll/glue", "rte", "train", revisions="main")
    >>> len(rows), commit
    (2490, 'bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c')

`datasets` names the folder of its prepared rows after the commit that they were read from. Offline, and after a failed
request, `datasets` 5.2 takes the folder that was written last, whatever revision is asked for; so offline the commit's
own folder is opened here, and what came from another commit is refused.
"""

import contextlib
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError, TemporaryError
from t5suite.base.hub import prepare_hub
from t5suite.base.hub_commits import (
    LOOKUP_SECONDS,
    Request,
    ask_for_commit,
    commit_to_read,
    hub_reads,
    is_commit,
    is_repository,
    revision_of,
)
from t5suite.base.hub_failures import Reading, read_from_hub
from t5suite.data.rows.prepared_rows import prepared_folder, read_prepared


def load_hub_data(path: str, name: str | None, split: str | None, revisions: str | None):
    """`(rows, commit)` of a data set; the commit is None for a local folder, and where it is not known.

    Args:
      path: a repository, or a local folder that `datasets` can read.
      name: its configuration.
      split: None gives all splits, as a `DatasetDict`.
      revisions: as `commit_to_read` takes them.

    Raises:
      UserError: as `hub_failures.read_from_hub`.
      OSError, ValueError, RuntimeError: as `datasets.load_dataset`, for other causes.
      DataError: without a network, the local cache has another commit than the one that is asked for.
    """
    import datasets

    revision = revision_of(revisions, path)
    if not is_repository(path):
        return datasets.load_dataset(path, name, split=split, revision=revision), None
    commit = commit_to_read("dataset", path, revisions)
    request = Request("dataset", path, revision)
    if not prepare_hub():
        folder = prepared_folder(path, name, commit, is_asked_for=revision is not None)
        if folder is not None:
            rows = read_prepared(path, folder, split)
            commit_read = folder.name if is_commit(folder.name) else None
            hub_reads().note(request, commit_read)
            return rows, commit_read
    check_whole_name(path)
    reading = Reading("dataset", path, revision, name)
    try:
        rows = read_from_hub(
            reading, lambda: datasets.load_dataset(path, name, split=split, revision=commit or revision)
        )
    except datasets.exceptions.DatasetGenerationError as error:  # files of other columns or types, a damaged file
        raise DataError(f"{path} ({name}): its files cannot be read ({error.__cause__ or error})") from error
    commit_read = commit_of_rows(rows)
    if commit is not None and commit_read not in (None, commit):
        rows = _rows_of_commit(request, name, split, commit, commit_read)
        commit_read = commit
    hub_reads().note(request, commit_read)
    return rows, commit_read or commit


def _rows_of_commit(request: Request, name: str | None, split: str | None, commit: str, commit_read: str):
    """The rows of a commit from the local cache, where `datasets` has read another commit.

    It has fallen back to its own cache, and has told the cause only to its log.

    Raises:
      TemporaryError: the cache has no rows of this commit.
    """
    folder = prepared_folder(request.repository, name, commit, is_asked_for=False)
    if folder is None or folder.name != commit:
        ask_for_commit(request)  # if the hub still fails, this says how
        raise TemporaryError(
            f"{request.repository} ({name}): the hub did not give commit {commit}, and the local cache has "
            f"{commit_read} instead; it may pass: run the same command again later"
        )
    return read_prepared(request.repository, folder, split)


def check_whole_name(path: str) -> None:
    """Refuses the short name of a data set, such as imdb, with its whole name: libraries no longer read short ones.

    The hub itself redirects requests for the old names of 2020 to the new ones (huggingface_hub 1.x, datasets 5).

    Raises:
      ConfigError: the name has no owner.
    """
    if not is_repository(path) or "/" in path:
        return
    whole_name = None
    if prepare_hub():
        from huggingface_hub import HfApi

        with contextlib.suppress(OSError, ValueError):
            whole_name = HfApi().dataset_info(path, timeout=LOOKUP_SECONDS).id
    hint = f"give {whole_name}" if whole_name not in (None, path) else "give OWNER/NAME"
    raise ConfigError(f"{path}: a data set of the hub has an owner in its name; {hint}")


def commit_of_rows(rows) -> str | None:
    """The commit that a `Dataset`, or the first split of a `DatasetDict`, was read from, by the place of its files."""
    dataset = next(iter(rows.values()), None) if isinstance(rows, dict) else rows
    files = dataset.cache_files if dataset is not None else []
    folder = Path(files[0]["filename"]).parent.name if files else ""
    return folder if is_commit(folder) else None
