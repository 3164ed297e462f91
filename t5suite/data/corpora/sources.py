"""The files and data sets of the hub that a text consists of.

>>> list_sources(["books/", "crawl/*.jsonl.gz"])
['books/emma.txt', 'books/ulysses.txt', 'crawl/0.jsonl.gz', 'crawl/1.jsonl.gz']
>>> hub_arguments("hub:allenai/c4:en")
{'path': 'allenai/c4', 'name': 'en', 'split': 'train', 'revision': None}
"""

import glob
import logging
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.file_names import unpacked_suffix, without_compression
from t5suite.data.corpora.byte_files import NO_PLAIN_FILE
from t5suite.data.corpora.readers import READERS, text_suffix

logger = logging.getLogger(__name__)

# What --streaming reads where no text is named.
STREAMED_BY_DEFAULT = "hub:allenai/c4:en:train"


def list_sources(inputs, logs_skipped: bool = True) -> list[str]:
    """The files and data sets that inputs stand for, in order.

    >>> list_sources(["books/", "crawl/*.jsonl.gz"])
    ['books/emma.txt', 'books/ulysses.txt', 'crawl/0.jsonl.gz', 'crawl/1.jsonl.gz']

    A folder stands for every text file below it, a pattern (`*`, `?`, `[...]`, `**`) for the files that match, both
    sorted by name; hidden files are ignored. Raises DataError for a missing file, a folder or pattern without a text
    file, and a file that is named twice or exists in two forms.

    Args:
      logs_skipped: the log counts the files of a folder or pattern that are no text files.
    """
    inputs = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)
    if not inputs:
        raise ConfigError("no text is given: name a file, folder, pattern or hub:PATH")
    sources = {}
    for name in inputs:
        for source in _sources_of(str(name), logs_skipped):
            text_name = source if is_hub_name(source) else without_compression(str(Path(source).resolve()))
            earlier_source = sources.get(text_name)
            if earlier_source == source:
                raise DataError(f"{source} is given twice")
            if earlier_source is not None:
                raise DataError(f"{source} and {earlier_source} hold the same text; keep one")
            sources[text_name] = source
    return list(sources.values())


def _sources_of(name: str, logs_skipped: bool) -> list[str]:
    """The sources that one input stands for, after a check of their names."""
    path = Path(name)
    if is_hub_name(name):
        hub_arguments(name)
        return [name]
    if path.is_file():
        text_suffix(path)
        return [name]
    if path.is_dir():
        files = [file for file in path.rglob("*") if not _is_hidden(file.relative_to(path))]
    elif glob.has_magic(name):
        files = map(Path, glob.glob(name, recursive=True))
    elif path.exists():
        raise DataError(f"{name}: {NO_PLAIN_FILE}")
    else:
        raise DataError(f"{name}: no such file")
    all_files = sorted(str(file) for file in files if file.is_file())
    text_files = _text_files(name, all_files)
    skipped_files = sorted(set(all_files) - set(text_files))
    if skipped_files and logs_skipped:
        logger.warning(
            "%s: skipped %d files that are not text files (%s, ...)", name, len(skipped_files), skipped_files[0]
        )
    return text_files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _text_files(name: str, files: list[str]) -> list[str]:
    """Those of the files of a folder or pattern whose names are those of text files."""
    text_files = [file for file in files if unpacked_suffix(file) in READERS]
    if not text_files:
        among = f" among {len(files)} files" if files else ""
        raise DataError(f"{name}: no text file{among}; their names end in {', '.join(READERS)}")
    return text_files


PREFIX = "hub:"


def hub_arguments(name: str) -> dict:
    """`hub:PATH[@REVISION][:CONFIG[:SPLIT]]` -> the arguments of `load_dataset`; PATH may be a local folder."""
    path, *config_and_split = name.removeprefix(PREFIX).split(":")
    path, _, revision = path.partition("@")
    if not path or any(config_and_split[2:]):
        raise ConfigError(f"{name}: a data set is named hub:PATH[:CONFIG[:SPLIT]], such as hub:allenai/c4:en:train")
    config, split = [*config_and_split, "", ""][:2]
    return {"path": path, "name": config or None, "split": split or "train", "revision": revision or None}


def at_commit(name: str, commit: str | None) -> str:
    """The name of a data set of the hub with its commit as the revision, for a process that reads a part of it.

    >>> at_commit("hub:allenai/c4:en:train", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2")
    'hub:allenai/c4@1588ec454efa1a09f29cd18ddd04fe05fc8653a2:en:train'
    """
    if commit is None:
        return name
    path, separator, config_and_split = name.removeprefix(PREFIX).partition(":")
    path_without_revision = path.partition("@")[0]
    return f"{PREFIX}{path_without_revision}@{commit}{separator}{config_and_split}"


def is_hub_name(source) -> bool:
    """Whether a source is a data set of the hub rather than a file."""
    return str(source).startswith(PREFIX)
