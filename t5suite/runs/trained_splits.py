"""Which rows a model's run was trained on, by the hashes of their content: files may have been moved and renamed.

>>> trained_split("runs/reviews", {"fingerprint": "sha256:adfa95..."})
TrainedSplit(origin='reviews.csv', row_count=147, settings={'seed': 42, 'validation_split': 0.25, ...})
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.runs.directory import MANIFEST, read_manifest

# What is added to the origin of rows of which a part is held out, and of those that are left.
HELD_OUT = " (held-out rows)"
NOT_HELD_OUT = " (not held-out rows)"
# The remark of tables on scores of rows that a model was trained on.
TRAINED_ON_MARK = "trained on some of these rows"


class TrainedSplit(NamedTuple):
    """Rows that a run was trained on.

    Attributes:
      origin: the file or folder that they come from.
      row_count: how many there were.
      is_rest: others of the same origin were held out, as the run's `settings` say.
    """

    origin: str
    row_count: int
    is_rest: bool
    settings: dict


def trained_split(model_name: str | None, description: Mapping) -> TrainedSplit | None:
    """What a model's run was trained on that has a file, or all rows, in common with a split; None without such rows.

    Args:
      model_name: a run, or a checkpoint of one; anything else was trained on nothing that is known here.
      description: the split's `fingerprint`, and its `files` if there are several, as manifests have them.
    """
    manifest = _manifest_of_model(model_name)
    if manifest is None:
        return None
    for name, facts in manifest.get("data", {}).items():
        is_training = name.endswith(".train") and isinstance(facts, dict)
        if is_training and not _hashes(facts).isdisjoint(_hashes(description)):
            origin = str(facts.get("origin"))
            is_rest = origin.endswith(NOT_HELD_OUT)
            return TrainedSplit(origin_of_all_rows(origin), facts.get("used", 0), is_rest, manifest["settings"])
    return None


def origin_of_all_rows(origin: str) -> str:
    """Where rows come from of which a part may be held out.

    >>> origin_of_all_rows("reviews.csv (held-out rows)")
    'reviews.csv'
    """
    return origin.removesuffix(HELD_OUT).removesuffix(NOT_HELD_OUT)


def _manifest_of_model(name: str | None) -> dict | None:
    """The manifest of the run that saved a model in its folder, or in a checkpoint there."""
    if name is None:
        return None
    folder = Path(name).resolve()
    if folder.name.startswith("checkpoint-"):
        folder = folder.parent
    if not (folder / MANIFEST).is_file():
        return None
    try:
        return read_manifest(folder)
    except ConfigError:  # the model may be whole though its run's manifest is not
        return None


def _hashes(facts: Mapping) -> set[str]:
    """The hashes of the files that a split was read from, or of its rows."""
    files = facts.get("files") or {}
    return {facts["fingerprint"], *files.values()} if "fingerprint" in facts else set(files.values())
