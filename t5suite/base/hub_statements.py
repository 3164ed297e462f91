"""What a repository of the hub says of itself: the header of its card, and small files beside it.

>>> card_header("model", "google/t5-v1_1-small", "4e79f2ee4c5b3d5e1d7c0e8a7a0f1d0a6a1b7c33")["license"]
'apache-2.0'

They are asked for when a run is finished, so nothing here fails: what cannot be read is absent, with a line in the log.
"""

import logging
import threading
from pathlib import Path

import yaml

from t5suite.base.errors import first_line
from t5suite.base.hub import patience, prepare_hub

logger = logging.getLogger(__name__)

CARD = "README.md"


def card_header(kind: str, name: str, commit: str | None) -> dict:
    """The metadata of a repository's card; empty without a card, without metadata, or if it cannot be read.

    Args:
      kind: model or dataset.
      commit: the one that the run has read; None: unknown.
    """
    path = repository_file(kind, name, commit, CARD)
    if path is None:
        return {}
    return header_of_file(path)


def header_of_file(path: Path) -> dict:
    """The metadata of a card; empty without a file, or without metadata that can be read."""
    from huggingface_hub import metadata_load

    if not path.is_file():
        return {}
    try:
        return metadata_load(path) or {}
    except (OSError, ValueError, yaml.YAMLError) as error:
        logger.warning("%s: its metadata cannot be read: %s", path, first_line(error)[:300])
        return {}


def repository_file(kind: str, name: str, commit: str | None, file: str) -> Path | None:
    """A small file of a commit, from the local cache or else from the hub; None if it is not to be had."""
    from huggingface_hub import try_to_load_from_cache

    if commit is None:
        return None
    cached = try_to_load_from_cache(name, file, revision=commit, repo_type=kind)
    if isinstance(cached, str):
        return Path(cached)
    is_known_to_be_absent = cached is not None
    if is_known_to_be_absent or not prepare_hub():
        return None
    answers: list[Path | None] = []
    ask = threading.Thread(target=lambda: answers.append(_downloaded(kind, name, commit, file)), daemon=True)
    ask.start()
    ask.join(patience())  # the client alone would try a hub that fails for minutes
    return next(iter(answers), None)


def _downloaded(kind: str, name: str, commit: str, file: str) -> Path | None:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        return Path(hf_hub_download(name, file, revision=commit, repo_type=kind))
    except EntryNotFoundError:  # not every repository has one
        return None
    except Exception as error:  # the client's library for HTTP has its own errors
        logger.info("%s: %s is not read: %s", name, file, first_line(error)[:300])
        return None
