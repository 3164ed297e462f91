"""A run on the hub: the files by which it can be verified, downloaded at one commit.

>>> download_run("ada/mini", None, ("manifest.json", "*.safetensors"))
DownloadedRun(folder=PosixPath('.../snapshots/4e79f2ee'), commit='4e79f2ee4c5b3d5e1d7c0e8a7a0f1d0a6a1b7c33')

A commit's hash covers every file, so that nothing of it can be altered later. Code is never downloaded.
"""

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.hub import absent, prepare_hub
from t5suite.base.hub_commits import commit_to_read
from t5suite.base.hub_files import download_file, list_files


class DownloadedRun(NamedTuple):
    """The folder in the cache of the hub's client, and the commit."""

    folder: Path
    commit: str


def download_run(name: str, revision: str | None, patterns: Sequence[str]) -> DownloadedRun:
    """Downloads the files of a run.

    Args:
      revision: a branch, tag or commit; None: the main branch.
      patterns: of the paths in the repository; the first one names the file that makes it a run.

    Raises:
      DataError: the repository is not there, or is none of a run.
      UserError: as `hub_failures.read_from_hub`.
    """
    try:
        commit = commit_to_read("model", name, revision)
    except ConfigError as error:
        raise DataError(f"{name}: {error}") from None
    if commit is None:
        raise absent(f"{name}: the hub cannot be reached, and no copy is in the local cache", DataError)
    needed = patterns[0]
    if not prepare_hub():
        return DownloadedRun(cached_folder(name, commit, needed), commit)
    files = list_files(name, commit)
    if needed not in files:
        raise DataError(
            f"{name} (commit {commit[:12]}): {needed} is missing: its author has not shared how its scores were made"
        )
    for file in files:
        if is_of_run(file, patterns):
            path = download_file(name, commit, file)
            if file == needed:
                folder = path.parent
    return DownloadedRun(folder, commit)


def is_of_run(file: str, patterns: Sequence[str]) -> bool:
    """Whether a repository's file is one of a run, by the patterns; a pattern's `*` stays within a folder.

    >>> patterns = ("*.safetensors", "best/*/*.safetensors", "tokenizer*")
    >>> is_of_run("model.safetensors", patterns), is_of_run("best/rte/model.safetensors", patterns)
    (True, True)
    >>> is_of_run("checkpoint-5/model.safetensors", patterns), is_of_run("tokenizer_x.py", patterns)
    (False, False)
    """
    if file.endswith(".py"):
        return False
    as_deep = [pattern for pattern in patterns if pattern.count("/") == file.count("/")]
    return any(fnmatch.fnmatchcase(file, pattern) for pattern in as_deep)


def cached_folder(name: str, commit: str, needed: str) -> Path:
    """The folder of a run that an earlier start has downloaded.

    Raises:
      DataError: there is none.
    """
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(name, needed, revision=commit)
    if not isinstance(path, str):
        raise absent(f"{name}: the hub cannot be reached, and {needed} is not in the local cache", DataError)
    return Path(path).parent
