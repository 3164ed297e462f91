"""Warnings about scores of rows that a model was trained on.

>>> warn_of_trained_rows(data.scored, data.described, plan.sources, "runs/reviews")
reviews validation: runs/reviews was trained on 147 rows of the same data (reviews.csv): the score is not one of ...
"""

import logging
from collections.abc import Mapping

from t5suite.data.rows.formats import DEFAULT_VALIDATION_SHARE
from t5suite.data.rows.own_rows import RowSource
from t5suite.data.rows.subsets import HeldOutRows
from t5suite.runs.trained_splits import TRAINED_ON_MARK, TrainedSplit, splits_in_common, trained_splits
from t5suite.training.eval_sets import EvalSet

logger = logging.getLogger(__name__)


def warn_of_trained_rows(
    eval_sets: list[EvalSet], described: Mapping[str, dict], sources: Mapping[str, RowSource], model_name: str | None
) -> None:
    """Warns of splits whose rows the run trains on, or the model's runs were trained on, and marks them for the tables.

    Rows that are held out, as they were in those runs, are none of these.

    Args:
      described: the run's splits, as its manifest has them.
      model_name: the model whose weights the run begins with, or scores.
    """
    for eval_set in eval_sets:
        if not eval_set.labelled:
            continue
        description = described[f"{eval_set.task.name}.{eval_set.split}"]
        earlier_splits = trained_splits(model_name, description)
        source = sources.get(eval_set.task.name)
        if isinstance(source, HeldOutRows) and eval_set.is_validation:
            own_splits = []
            seen_splits = [split for split in earlier_splits if not _holds_out_the_same(source, split)]
        else:
            own_splits = splits_in_common(described, description, {})
            seen_splits = earlier_splits
        if own_splits:
            _warn(eval_set, "this run trains", own_splits[0])
        elif seen_splits:
            _warn(eval_set, f"{model_name} was trained", seen_splits[0], _remedy(earlier_splits))


def _warn(eval_set: EvalSet, training: str, trained: TrainedSplit, remedy: str = "") -> None:
    eval_set.marks.append(TRAINED_ON_MARK)
    logger.warning(
        "%s %s: %s on %d rows of the same data (%s): the score is not one of unseen rows%s",
        eval_set.name,
        eval_set.split,
        training,
        trained.row_count,
        trained.origin,
        remedy,
    )


def _holds_out_the_same(source: HeldOutRows, trained: TrainedSplit) -> bool:
    """Whether a source holds out the rows that a run has held out."""
    return trained.is_rest and (source.seed, source.share) == _seed_and_share(trained)


def _seed_and_share(trained: TrainedSplit) -> tuple:
    """What decides which rows a run has held out."""
    return trained.settings.get("seed"), trained.settings.get("validation_split") or DEFAULT_VALIDATION_SHARE


def _remedy(earlier_splits: list[TrainedSplit]) -> str:
    """How rows that all of the runs have held out are scored, if there are any; the data may have come by any flag.

    Runs that held out different rows have learned each other's.
    """
    all_held_out = all(split.is_rest for split in earlier_splits)
    if not all_held_out or len({_seed_and_share(split) for split in earlier_splits}) > 1:
        return ""
    trained = earlier_splits[0]
    flags = {name: trained.settings.get(name) for name in ("seed", "validation_split")}
    words = " ".join(f"--{name} {value}" for name, value in flags.items() if value is not None)
    return f"; to score those that were held out, give the same data as training rows, no validation rows, and {words}"
