"""Data sets of the hub, each read from one commit, with or without a network.

    >>> rows, commit = load_hub_data("nyu-mll/glue", "rte", "train", revisions="main")
    >>> len(rows), commit
    (2490, 'bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c')

`datasets` names the folder of its prepared rows after the commit that they were read from
(<owner>___<name>/<configuration>/<version>/<commit> in its cache). Offline, and after a failed request, `datasets` 5.2
takes the folder that was written last, whatever revision is asked for; so offline the commit's own folder is opened
here, and what came from another commit is refused.
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
      DataError: files of different columns or types, or damaged ones; without a network, the local cache has another
        commit than the one that is asked for.
    """
    revision = revision_of(revisions, path)
    reading = Reading("dataset", path, revision, name)
    if not is_repository(path):
        return _load_with_datasets(reading, split, revision), None
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
    rows = _load_with_datasets(reading, split, commit or revision)
    commit_read = commit_of_rows(rows)
    if commit is not None and commit_read not in (None, commit):
        rows = _rows_of_commit(request, name, split, commit, commit_read)
        commit_read = commit
    hub_reads().note(request, commit_read)
    return rows, commit_read or commit


def _load_with_datasets(reading: Reading, split: str | None, revision: str | None):
    """The rows of a repository or a local folder, which `datasets` writes to its cache."""
    import datasets

    path = reading.repository
    name = reading.part
    try:
        return read_from_hub(reading, lambda: datasets.load_dataset(path, name, split=split, revision=revision))
    except datasets.exceptions.DatasetGenerationError as error:  # files of other columns or types, a damaged file
        place = path if name is None else f"{path} ({name})"
        problem = " ".join(str(error.__cause__ or error).split())
        raise DataError(f"{place}: its files cannot be read ({problem})") from error


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


def prepared_folder(path: str, name: str | None, commit: str | None, is_asked_for: bool) -> Path | None:
    """The folder of a configuration's rows in the cache of `datasets`; None if there is none.

    >>> prepared_folder("nyu-mll/glue", "rte", commit=None, is_asked_for=False).name
    'bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c'

    Args:
      commit: the one to read, if it is known.
      is_asked_for: the user names a revision; without one, the commit that was prepared last will do.

    Raises:
      DataError: the revision that is asked for is not there, but others are.
    """
    folders = _prepared_folders(path, name)
    if not folders:
        return None
    matching = [folder for folder in folders if folder.name == commit]
    if matching:
        return matching[-1]
    if is_asked_for:
        listed = ", ".join(folder.name for folder in folders)
        raise DataError(
            f"{path} ({name or 'default'}): there is no network, and the local cache lacks the revision that is asked "
            f"for ({commit or 'its commit is not known'}); it has {listed}"
        )
    return folders[-1]


def _prepared_folders(path: str, name: str | None) -> list[Path]:
    """The folders of all commits, the one that was prepared last at the end."""
    import datasets
    from datasets.naming import camelcase_to_snakecase

    owner, _, title = path.rpartition("/")
    root = Path(datasets.config.HF_DATASETS_CACHE) / "___".join(filter(None, (owner, camelcase_to_snakecase(title))))
    folders = [file.parent for file in root.glob(f"{name or '*'}/*/*/dataset_info.json")]
    if len({folder.parts[-3] for folder in folders}) > 1:
        return []  # several configurations, and none is named: `datasets` says so
    return sorted(folders, key=lambda folder: folder.stat().st_mtime)


def read_prepared(path: str, folder: Path, split: str | None):
    """The rows of such a folder, with the fingerprint that they had when they were prepared."""
    from datasets.packaged_modules.cache.cache import Cache

    configuration, version, commit = folder.parts[-3:]
    title = path.rpartition("/")[2]
    builder = Cache(dataset_name=title, repo_id=path, config_name=configuration, version=version, hash=commit)
    return builder.as_dataset(split=split)
