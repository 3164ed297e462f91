"""Warnings about scores of rows that a model was trained on.

>>> warn_of_trained_rows(data.scored, data.described, [], trained_splits_of_model("runs/reviews"))
reviews validation: the model was trained on 147 rows of the same data (reviews.csv): the score is not one of ...
>>> warn_of_trained_inputs(data.scored, inputs_trained_on(data, "runs/reviews"))
reviews test: 19 of 50 inputs are training inputs, too: the score is not one of unseen rows
"""

import logging
from collections.abc import Collection, Mapping

import numpy as np

from t5suite.data.batches.training_data import rows_of_batches
from t5suite.data.rows.subsets import input_hashes
from t5suite.runs.trained_inputs import MOST_INPUTS, trained_inputs_of_model
from t5suite.runs.trained_splits import TRAINED_ON_MARK, rows_in_words, trained_split_with
from t5suite.training.eval_sets import EvalSet
from t5suite.training.fine_tuning_data import Data

logger = logging.getLogger(__name__)


def warn_of_trained_rows(
    eval_sets: list[EvalSet],
    described: Mapping[str, dict],
    own_splits: Collection[dict],
    earlier_splits: Collection[dict],
) -> None:
    """Warns of splits with rows that the run trains on, or the weights were trained on before; marks them for tables.

    Args:
      described: the run's splits, as its manifest has them.
      own_splits: the run's training splits, as its manifest has them.
      earlier_splits: those that the weights were trained on before the run.
    """
    for eval_set in eval_sets:
        if not eval_set.labelled:
            continue
        split = described[f"{eval_set.task.name}.{eval_set.split}"]
        own_split = trained_split_with(own_splits, split)
        earlier_split = trained_split_with(earlier_splits, split)
        if own_split is not None:
            _warn(eval_set, f"this run trains on {rows_in_words(own_split)}")
        elif earlier_split is not None:
            _warn(eval_set, f"the model was trained on {rows_in_words(earlier_split)}")


def _warn(eval_set: EvalSet, training: str) -> None:
    eval_set.marks.append(TRAINED_ON_MARK)
    logger.warning("%s %s: %s: the score is not one of unseen rows", eval_set.name, eval_set.split, training)


def inputs_trained_on(data: Data, name) -> np.ndarray:
    """Hashes of the inputs that a run trains on, and of those of its first weights: uint64 [I], ascending.

    Only of the user's own files: official splits, of benchmarks and on the hub, share inputs by themselves.

    Args:
      name: the model, checkpoint or file whose weights the run begins with.
    """
    hashes = trained_inputs_of_model(name)
    if not data.made_by_flags:
        return hashes
    parts_of_files = [part for part in data.training_sets if part.loaded.commit is None]
    for part in parts_of_files:
        hashes = np.union1d(hashes, input_hashes(rows_of_batches(part.rows), part.task))
    return hashes


def warn_of_trained_inputs(eval_sets: list[EvalSet], trained_inputs: np.ndarray) -> None:
    """Warns of splits some of whose inputs were trained on, in whichever file; marks them for tables.

    Args:
      trained_inputs: hashes of inputs, as `inputs_trained_on` has them.
    """
    if not len(trained_inputs):
        return
    at_least = "at least " if len(trained_inputs) >= MOST_INPUTS else ""  # a run keeps no more
    for eval_set in eval_sets:
        if not eval_set.labelled or TRAINED_ON_MARK in eval_set.marks:
            continue
        hashes = input_hashes(eval_set.rows, eval_set.task)
        num_trained_on = np.isin(hashes, trained_inputs).sum()
        if num_trained_on:
            eval_set.marks.append(f"trained on {at_least}{num_trained_on} of {len(hashes)} inputs")
            logger.warning(
                "%s %s: %s%d of %d inputs are training inputs, too: the score is not one of unseen rows",
                eval_set.name,
                eval_set.split,
                at_least,
                num_trained_on,
                len(hashes),
            )
