"""Which rows a model was trained on, by the hashes of their content: files may have been moved and renamed.

>>> trained_splits = trained_splits_of_model("runs/reviews/checkpoint-400")
>>> rows_in_words(trained_split_with(trained_splits, {"fingerprint": "sha256:adfa95..."}))
'147 rows of the same data (reviews.csv)'
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.runs.directory import BEST_FOLDER, MANIFEST, read_manifest, trained_splits_of_run

# What is added to the origin of rows of which a part is held out, and of those that are left.
HELD_OUT = " (held-out rows)"
NOT_HELD_OUT = " (not held-out rows)"
# The remark of tables on scores of rows that a model was trained on.
TRAINED_ON_MARK = "trained on some of these rows"


def trained_splits_of_model(name: str | None) -> list[dict]:
    """What the weights of a model were trained on: the training splits of its run, and those before the run.

    Args:
      name: a run, a checkpoint of one, a task's best weights, or a file in one of these; anything else was trained on
        nothing that is known here.
    """
    manifest = manifest_of_model(name)
    return [] if manifest is None else trained_splits_of_run(manifest)


def manifest_of_model(name: str | None) -> dict | None:
    """The manifest of the run that saved a model (`run_of_model`); None without one that can be read."""
    folder = run_of_model(name)
    if folder is None:
        return None
    try:
        return read_manifest(folder)
    except ConfigError:  # the model may be whole though its run's manifest is not
        return None


def run_of_model(name: str | None) -> Path | None:
    """The folder of the run that saved a model there, in a checkpoint or in a task's best weights."""
    if not name:
        return None
    folder = Path(name).resolve()
    if os.path.isfile(folder):
        folder = folder.parent
    if folder.name.startswith("checkpoint-"):
        folder = folder.parent
    elif folder.parent.name == BEST_FOLDER and not os.path.isfile(folder / MANIFEST):
        folder = folder.parent.parent
    return folder if os.path.isfile(folder / MANIFEST) else None


def trained_split_with(trained_splits: Iterable[Mapping], split: Mapping) -> Mapping | None:
    """The first training split that has a file, or all rows, in common with a split; None if there is none.

    Rows that were held out of a training split are none of it.

    Args:
      trained_splits, split: as manifests describe them.
    """
    for trained_split in trained_splits:
        has_common_rows = not _hashes(trained_split).isdisjoint(_hashes(split))
        if has_common_rows and not _are_held_out(split, trained_split):
            return trained_split
    return None


def _are_held_out(split: Mapping, trained_split: Mapping) -> bool:
    """Whether the rows of a split are those that were held out of a training split."""
    held_out = split.get("held_out_sha256")
    return held_out is not None and held_out == trained_split.get("held_out_sha256")


def _hashes(split: Mapping) -> set[str]:
    """The hashes of the files that a split was read from, or of its rows."""
    hashes = {split.get("fingerprint"), *(split.get("files") or {}).values()}
    return hashes - {None}


def rows_in_words(trained_split: Mapping) -> str:
    """The rows of a training split, for messages about a split that has some of them."""
    return f"{trained_split.get('used')} rows of the same data ({origin_of_all_rows(str(trained_split.get('origin')))})"


def origin_of_all_rows(origin: str) -> str:
    """Where rows come from of which a part may be held out.

    >>> origin_of_all_rows("reviews.csv (held-out rows)")
    'reviews.csv'
    """
    return origin.removesuffix(HELD_OUT).removesuffix(NOT_HELD_OUT)


def origin_of_weights(model_settings: Mapping) -> str | None:
    """The model or file whose weights model flags name; None if they are random.

    >>> origin_of_weights({"model_name_or_path": "t5-small", "init_checkpoint": "weights.pt"})
    'weights.pt'
    """
    if model_settings.get("init_checkpoint"):
        return model_settings["init_checkpoint"]
    is_random = model_settings.get("from_scratch") or model_settings.get("config_name")
    return None if is_random else model_settings.get("model_name_or_path")
