"""Warnings about scores of rows that a model was trained on.

>>> warn_of_trained_rows(data.scored, data.described, [], trained_splits_of_model("runs/reviews"))
reviews validation: the model was trained on 147 rows of the same data (reviews.csv): the score is not one of ...
"""

import logging
from collections.abc import Collection, Mapping

from t5suite.runs.trained_splits import TRAINED_ON_MARK, rows_in_words, trained_split_with
from t5suite.training.eval_sets import EvalSet

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
