"""Marks on scores of the rows by which the run of a model has chosen its checkpoint.

>>> mark_chosen_rows(data.scored, data.described, "runs/reviews")
>>> data.scored[0].marks
['chosen on these rows']
"""

from collections.abc import Mapping
from pathlib import Path

from t5suite.runs.directory import BEST_FOLDER
from t5suite.runs.settings import data_identity
from t5suite.runs.trained_splits import TRAINED_ON_MARK, manifest_of_model, run_of_model
from t5suite.training.eval_sets import EvalSet

# The remark of tables on scores of the rows that chose the checkpoint.
CHOSEN_MARK = "chosen on these rows"


def mark_chosen_rows(eval_sets: list[EvalSet], described: Mapping[str, dict], model_name: str | None) -> None:
    """Marks the sets that are scored with a run's model, and have the rows that chose it among the run's checkpoints.

    A set with rows that the run was trained on is marked as such already, and is not held out as that run's rows were.

    Args:
      described: the splits that are scored, as manifests have them.
      model_name: a run, its chosen checkpoint, or a task's best weights; anything else has chosen nothing that is known
        here.
    """
    chosen_splits = _splits_that_chose(model_name)
    for eval_set in eval_sets:
        split = described[f"{eval_set.task.name}.{eval_set.split}"]
        have_chosen = any(_are_rows_of(split, chosen_split) for chosen_split in chosen_splits)
        if eval_set.labelled and have_chosen and TRAINED_ON_MARK not in eval_set.marks:
            eval_set.marks.append(CHOSEN_MARK)


def _are_rows_of(split: Mapping, chosen_split: Mapping) -> bool:
    """Whether all rows of a split are among those of another, both as manifests describe them.

    Two subsets are the same if they have as many rows.
    """
    identity = data_identity(split)
    if chosen_split.get("used") == chosen_split.get("rows"):
        identity["used"] = chosen_split.get("used")
    return identity == data_identity(chosen_split)


def _splits_that_chose(model_name: str | None) -> list[dict]:
    """The splits whose scores have chosen the weights in a folder of a run."""
    run = run_of_model(model_name)
    manifest = manifest_of_model(model_name)
    if manifest is None:
        return []
    data = manifest.get("data", {})
    choices = manifest.get("choices", [])
    scored = manifest.get("scored") or {}
    splits = []
    for name, marks in manifest.get("marks", {}).items():
        if CHOSEN_MARK not in marks or name not in scored:
            continue
        key = scored[name].get("file", "").removesuffix(".jsonl")
        task = key.removesuffix(f".{scored[name]['split']}")
        if key in data and _chose_weights(task, model_name, run, choices):
            splits.append(data[key])
    return splits


def _chose_weights(task: str, model_name: str, run: Path, choices: list[dict]) -> bool:
    """Whether a task by which a run chose a checkpoint has chosen the weights in one of the run's folders.

    Args:
      choices: as the run's manifest has them.
    """
    folder = Path(model_name).resolve()
    if folder.is_file():
        folder = folder.parent
    if folder == run:
        return True
    if folder.parent.name == BEST_FOLDER:
        return folder.name == task
    return any(folder.name == f"checkpoint-{choice['step']}" and choice["task"] in (None, task) for choice in choices)
