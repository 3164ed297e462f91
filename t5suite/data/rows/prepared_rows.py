"""The rows that `datasets` has prepared in its cache: <owner>___<name>/<configuration>/<version>/<commit>.

>>> folder = prepared_folder("nyu-mll/glue", "rte", commit=None, is_asked_for=False)
>>> folder.name, len(read_prepared("nyu-mll/glue", folder, "train"))
('bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c', 2490)
"""

from pathlib import Path

from t5suite.base.errors import DataError


def prepared_folder(path: str, name: str | None, commit: str | None, is_asked_for: bool) -> Path | None:
    """The folder of a configuration's rows in the cache of `datasets`; None if there is none.

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
