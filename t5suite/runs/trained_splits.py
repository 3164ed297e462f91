"""Which rows a model's run was trained on, by the hashes of their content: files may have been moved and renamed.

>>> trained_splits("runs/reviews", {"fingerprint": "sha256:adfa95..."})
[TrainedSplit(origin='reviews.csv', row_count=147, is_rest=True, settings={'seed': 42, 'validation_split': 0.25, ...})]
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from t5suite.base.errors import ConfigError
from t5suite.runs.directory import BEST_FOLDER, MANIFEST, read_manifest

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
      is_rest: whether the run held out a part of that file or folder for validation, as its `settings` say.
    """

    origin: str
    row_count: int
    is_rest: bool
    settings: dict


def trained_splits(model_name: str | None, description: Mapping) -> list[TrainedSplit]:
    """What a model was trained on that has a file, or all rows, in common with a split: its run's, then earlier runs'.

    Args:
      model_name: a run, a checkpoint of one, a task's best weights, or a file in one of these; anything else was
        trained on nothing that is known here.
      description: the split's `fingerprint`, and its `files` if there are several, as manifests have them.
    """
    splits = []
    for manifest in _manifests_of_model(model_name):
        splits += splits_in_common(manifest.get("data", {}), description, manifest["settings"])
    return splits


def splits_in_common(data: Mapping, description: Mapping, settings: dict) -> list[TrainedSplit]:
    """The training splits of a run's data that have a file, or all rows, in common with a split."""
    splits = []
    for name, facts in data.items():
        is_training = name.endswith(".train") and isinstance(facts, dict)
        if is_training and not _hashes(facts).isdisjoint(_hashes(description)):
            origin = str(facts.get("origin"))
            is_rest = origin.endswith(NOT_HELD_OUT)
            splits.append(TrainedSplit(origin_of_all_rows(origin), facts.get("used", 0), is_rest, settings))
    return splits


def origin_of_all_rows(origin: str) -> str:
    """Where rows come from of which a part may be held out.

    >>> origin_of_all_rows("reviews.csv (held-out rows)")
    'reviews.csv'
    """
    return origin.removesuffix(HELD_OUT).removesuffix(NOT_HELD_OUT)


def _manifests_of_model(name: str | None) -> Iterator[dict]:
    """The manifest of the run that saved a model, then of the run whose model that one began with, and so on."""
    folder = _run_of_model(name)
    folders = set()
    while folder is not None and folder not in folders:
        folders.add(folder)
        try:
            manifest = read_manifest(folder)
        except ConfigError:  # the model may be whole though its run's manifest is not
            return
        yield manifest
        folder = _run_of_model(origin_of_weights(manifest["settings"]), manifest.get("working_directory"))


def origin_of_weights(settings: Mapping) -> str | None:
    """The model, checkpoint or file whose weights a run of these settings begins with; None if they are random.

    >>> origin_of_weights({"model_name_or_path": "t5-small", "init_checkpoint": "weights.pt"})
    'weights.pt'
    """
    resume = str(settings.get("resume_from_checkpoint") or settings.get("resume"))
    if resume.lower() not in ("auto", "none", "true", "false"):
        return resume
    if settings.get("init_checkpoint"):
        return settings["init_checkpoint"]
    is_random = settings.get("from_scratch") or settings.get("config_name")
    return None if is_random else settings.get("model_name_or_path")


def _run_of_model(name: str | None, working_directory: str | None = None) -> Path | None:
    """The folder of the run that saved a model there, in a checkpoint or in a task's best weights."""
    if not name:
        return None
    folder = Path(working_directory or "", name).resolve()
    if folder.is_file():
        folder = folder.parent
    if folder.name.startswith("checkpoint-"):
        folder = folder.parent
    elif folder.parent.name == BEST_FOLDER and not (folder / MANIFEST).is_file():
        folder = folder.parent.parent
    return folder if (folder / MANIFEST).is_file() else None


def _hashes(facts: Mapping) -> set[str]:
    """The hashes of the files that a split was read from, or of its rows."""
    files = facts.get("files") or {}
    return {facts["fingerprint"], *files.values()} if "fingerprint" in facts else set(files.values())
