"""Warnings about scores of rows that a model was trained on.

>>> warn_of_trained_rows(data.scored, data.described, plan.sources, "runs/reviews")
reviews validation: runs/reviews was trained on 147 rows of reviews.csv, from which these come too: ...
"""

import logging
from collections.abc import Mapping

from t5suite.data.rows.formats import DEFAULT_VALIDATION_SHARE
from t5suite.data.rows.own_rows import RowSource
from t5suite.data.rows.subsets import HeldOutRows
from t5suite.runs.trained_splits import TRAINED_ON_MARK, TrainedSplit, trained_split
from t5suite.training.eval_sets import EvalSet

logger = logging.getLogger(__name__)


def warn_of_trained_rows(
    eval_sets: list[EvalSet], described: Mapping[str, dict], sources: Mapping[str, RowSource], model_name: str | None
) -> None:
    """Warns of splits whose rows come from what the model's run was trained on, and marks them for the tables.

    Rows that are held out as they were in that run are none of those.
    """
    for eval_set in eval_sets:
        trained = trained_split(model_name, described[f"{eval_set.task.name}.{eval_set.split}"])
        if trained is None or not eval_set.labelled or _are_rest(sources.get(eval_set.task.name), eval_set, trained):
            continue
        eval_set.marks.append(TRAINED_ON_MARK)
        logger.warning(
            "%s %s: %s was trained on %d rows of %s, from which these come, too: the score is not one of unseen rows%s",
            eval_set.name,
            eval_set.split,
            model_name,
            trained.row_count,
            trained.origin,
            _remedy(trained),
        )


def _are_rest(source: RowSource | None, eval_set: EvalSet, trained: TrainedSplit) -> bool:
    """Whether the rows of a set are those that the run has held out."""
    if not (isinstance(source, HeldOutRows) and eval_set.is_validation and trained.is_rest):
        return False
    share = trained.settings.get("validation_split") or DEFAULT_VALIDATION_SHARE
    return (source.seed, source.share) == (trained.settings.get("seed"), share)


def _remedy(trained: TrainedSplit) -> str:
    """The flags that score rows which the run has held out, if there are any."""
    if not trained.is_rest:
        return ""
    flags = {name: trained.settings.get(name) for name in ("seed", "validation_split")}
    words = " ".join(f"--{name} {value}" for name, value in flags.items() if value is not None)
    return f"; --train_file with {words} scores those that it has not seen"
