"""The directory of a run that names none: its own from an earlier start, else the next free one.

    >>> directory_for("runs/glue-rte-t5-small", {"seed": 1})      # nothing is there yet
    'runs/glue-rte-t5-small'
    >>> directory_for("runs/glue-rte-t5-small", {"seed": 2})      # once that run has begun
    'runs/glue-rte-t5-small-2'
    >>> directory_for("runs/glue-rte-t5-small", {"seed": 1})
    'runs/glue-rte-t5-small'

Data with their columns, model, seed and objective choose the directory. All other settings are compared when the run is
opened.
"""

import contextlib
import itertools
import logging
from collections.abc import Container, Mapping
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.runs.directory import MANIFEST, differences_text, read_manifest
from t5suite.runs.opening import is_of_this_job
from t5suite.runs.settings import public_settings

logger = logging.getLogger(__name__)

DATA_SETTINGS = (
    "benchmark",
    "dataset_name",
    "task_file",
    "data_dir",
    "data_format",
    "data_class",
    "data_path",
    "data_config",
    "hub_path",
    "hub_name",
    "train_dir",
    "train_file",
    "validation_file",
    "test_file",
    "train_corpus",
)
COLUMN_SETTINGS = ("text_column", "text_column_name", "target_column", "source_id", "target_id")
MODEL_SETTINGS = ("model_name_or_path", "model_revision", "config_name", "tokenizer_name")
CHOOSING_SETTINGS = (*DATA_SETTINGS, *COLUMN_SETTINGS, *MODEL_SETTINGS, "objective", "seed")


def directory_for(
    default: str, settings: Mapping[str, object], allowed: Container[str] = (), need_new: bool = False
) -> str:
    """`default`, or the first of `default-2`, `default-3`, ... that is free or holds the run of these settings.

    Nothing is created: opening the run there takes the directory.

    Args:
      settings: every flag by name; one that is missing is not compared.
      allowed: settings that may differ from those of the run that is there (`--allow_changed`).
      need_new: only a free directory will do (`--resume none`), or one whose run this Slurm job began with all of these
        settings before it was requeued.
    """
    compared = [name for name in CHOOSING_SETTINGS if name in settings and name not in allowed]
    chosen = public_settings({name: settings[name] for name in compared})
    first_differences = None
    for number in itertools.count(1):
        directory = Path(default if number == 1 else f"{default}-{number}")
        if not (directory / MANIFEST).is_file():
            break
        differences = _differences(directory, chosen)
        if not differences and (not need_new or _is_of_this_job(directory, settings)):
            break
        first_differences = first_differences or differences
    if first_differences:
        logger.info("%s holds another run (%s): this one is in %s", default, first_differences, directory)
    return str(directory)


def _differences(directory: Path, chosen: Mapping[str, object]) -> str:
    """What differs between a run that is there and these settings; "" if nothing does, or if it cannot be read.

    A damaged manifest is reported when the run is opened.
    """
    try:
        settings = read_manifest(directory)["settings"]
    except ConfigError:
        return ""
    pairs = {name: (settings.get(name), value) for name, value in chosen.items()}
    return differences_text({name: pair for name, pair in pairs.items() if pair[0] != pair[1]})


def _is_of_this_job(directory: Path, settings: Mapping[str, object]) -> bool:
    """`is_of_this_job` for the run that is there; False if its manifest cannot be read."""
    with contextlib.suppress(ConfigError):
        return is_of_this_job(read_manifest(directory), settings)
    return False
