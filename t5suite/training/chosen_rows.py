"""Marks on scores of the rows by which the run of a model has chosen its checkpoint.

>>> mark_chosen_rows(data.scored, data.described, "runs/reviews")
>>> data.scored[0].marks
['chosen on these rows']
"""

from collections.abc import Mapping
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.runs.directory import MANIFEST, read_manifest
from t5suite.runs.settings import data_identity
from t5suite.runs.trained_splits import TRAINED_ON_MARK
from t5suite.training.eval_sets import EvalSet

# The remark of tables on scores of the rows that chose the checkpoint.
CHOSEN_MARK = "chosen on these rows"


def mark_chosen_rows(eval_sets: list[EvalSet], described: Mapping[str, dict], model_name: str | None) -> None:
    """Marks the sets that are scored with a run's model, and have the rows that chose it among the run's checkpoints.

    A set with rows that the run was trained on is marked as such already, and is not held out as that run's rows were.

    Args:
      described: the splits that are scored, as manifests have them.
      model_name: the folder of a run; anything else has chosen nothing that is known here.
    """
    chosen_splits = _splits_that_chose(model_name)
    for eval_set in eval_sets:
        split = data_identity(described[f"{eval_set.task.name}.{eval_set.split}"])
        if eval_set.labelled and split in chosen_splits and TRAINED_ON_MARK not in eval_set.marks:
            eval_set.marks.append(CHOSEN_MARK)


def _splits_that_chose(model_name: str | None) -> list[dict]:
    """What identifies the splits whose scores have chosen the weights in a run's folder."""
    if not model_name or not Path(model_name, MANIFEST).is_file():
        return []
    try:
        manifest = read_manifest(model_name)
    except ConfigError:  # the model may be whole though its run's manifest is not
        return []
    names = [name for name, marks in manifest.get("marks", {}).items() if CHOSEN_MARK in marks]
    scored = manifest.get("scored") or {}
    endings = tuple(f".{scored[name]['split']}" for name in names if name in scored)
    return [data_identity(split) for key, split in manifest.get("data", {}).items() if key.endswith(endings)]
