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
from t5suite.data.corpora.byte_files import NO_PLAIN_FILE, without_compression
from t5suite.data.corpora.readers import READERS, text_suffix

logger = logging.getLogger(__name__)


def list_sources(inputs) -> list[str]:
    """The files and data sets that inputs stand for, in order.

    >>> list_sources(["books/", "crawl/*.jsonl.gz"])
    ['books/emma.txt', 'books/ulysses.txt', 'crawl/0.jsonl.gz', 'crawl/1.jsonl.gz']

    A folder stands for every text file below it, a pattern (`*`, `?`, `[...]`, `**`) for the files that match, both
    sorted by name; hidden files are ignored. Raises DataError for a missing file, a folder or pattern without a text
    file, and a file that is named twice or exists in two forms.
    """
    inputs = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)
    if not inputs:
        raise ConfigError("no text is given: name a file, folder, pattern or hub:PATH")
    seen = {}
    for source in (source for given in inputs for source in _sources_of(str(given))):
        name = source if is_hub_name(source) else without_compression(str(Path(source).resolve()))
        if name in seen:
            both = "is given twice" if seen[name] == source else f"and {seen[name]} hold the same text; keep one"
            raise DataError(f"{source} {both}")
        seen[name] = source
    return list(seen.values())


def _sources_of(given: str) -> list[str]:
    path = Path(given)
    if is_hub_name(given):
        hub_arguments(given)
        return [given]
    if path.is_file():
        text_suffix(path)
        return [given]
    if path.is_dir():
        files = [file for file in path.rglob("*") if not any(p.startswith(".") for p in file.relative_to(path).parts)]
    elif glob.has_magic(given):
        files = map(Path, glob.glob(given, recursive=True))
    elif path.exists():
        raise DataError(f"{given}: {NO_PLAIN_FILE}")
    else:
        raise DataError(f"{given}: no such file")
    files = sorted(str(file) for file in files if file.is_file())
    chosen = [file for file in files if Path(without_compression(file)).suffix in READERS]
    if not chosen:
        among = f" among {len(files)} files" if files else ""
        raise DataError(f"{given}: no text file{among}; their names end in {', '.join(READERS)}")
    if len(chosen) < len(files):
        others = sorted(set(files) - set(chosen))
        logger.warning("%s: skipped %d files that are not text files (%s, ...)", given, len(others), others[0])
    return chosen


PREFIX = "hub:"


def hub_arguments(name: str) -> dict:
    """`hub:PATH[@REVISION][:CONFIG[:SPLIT]]` -> the arguments of `load_dataset`; PATH may be a local folder."""
    path, config, split, *more = [*name.removeprefix(PREFIX).split(":"), "", ""]
    path, _, revision = path.partition("@")
    if not path or any(more):
        raise ConfigError(f"{name}: a data set is named hub:PATH[:CONFIG[:SPLIT]], such as hub:allenai/c4:en:train")
    return {"path": path, "name": config or None, "split": split or "train", "revision": revision or None}


def at_commit(name: str, commit: str | None) -> str:
    """The name of a data set of the hub with its commit as the revision, for a process that reads a part of it.

    >>> at_commit("hub:allenai/c4:en:train", "1588ec454efa1a09f29cd18ddd04fe05fc8653a2")
    'hub:allenai/c4@1588ec454efa1a09f29cd18ddd04fe05fc8653a2:en:train'
    """
    if commit is None:
        return name
    place, separator, rest = name.removeprefix(PREFIX).partition(":")
    return f"{PREFIX}{place.partition('@')[0]}@{commit}{separator}{rest}"


def is_hub_name(source) -> bool:
    """Whether a source is a data set of the hub rather than a file."""
    return str(source).startswith(PREFIX)
