"""What a model, the data and the flags cannot do together, told before the first step.

>>> warn_of_idle_family_flags({"eval_method": "score"}, encoding)     # of a BERT
WARNING --eval_method has no effect: an encoder's head gives the answer
['eval_method']
"""

import logging

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.data.batches.encodings import SegmentEncoding, TextEncoding
from t5suite.data.batches.features import TokenArrays
from t5suite.models.configs import check_length, check_resumes
from t5suite.models.families import family_of_model
from t5suite.tasks.registry import Lengths
from t5suite.training.flags.fields import warn_of_idle_flags

logger = logging.getLogger(__name__)

# The model's family


def check_positions(model, data) -> None:
    """Refuses examples that are longer than the model has positions for, or that it cannot be trained exactly on.

    Raises:
      ConfigError: with the flag to change.
    """
    lengths = [int(features.input_ids.lengths.min()) for features in data.features if len(features)]
    if lengths:
        check_resumes(model.config, min(lengths))
    behind = family_of_model(model) == "causal"  # there the answer stands in the prompt's row
    sets = [(features, 0) for features in data.features]
    sets += [(eval_set.features, eval_set.max_target_tokens) for eval_set in [*data.scored, *data.selecting]]
    for features, answer in sets:
        if len(features):
            answers = np.maximum(features.labels.lengths, answer) if behind else 0
            check_length(model.config, int((features.input_ids.lengths + answers).max()), "--max_source_length")


def check_module(args, eval_sets) -> None:
    """What a plain module, which makes its loss by itself, does not heed; and how its checkpoints are selected.

    Raises:
      ConfigError: checkpoints shall be selected by a metric that there is not.
    """
    for name in ("label_smoothing_factor", "z_loss"):
        if getattr(args, name):
            logger.warning("--%s has no effect: the module's loss is its own", name)
    by_loss = [eval_set.task.name for eval_set in eval_sets if eval_set.method == "loss"]
    if by_loss:
        logger.info("%s: evaluated by the module's loss (lower is better), not by answers", ", ".join(by_loss))
        if args.metric_for_best_model not in (None, "loss", "average", "selection"):
            raise ConfigError(
                f"--metric_for_best_model {args.metric_for_best_model}: {by_loss[0]} is evaluated by its loss alone; "
                "leave it out, or give the class a method generate(input_ids, attention_mask)"
            )


def warn_of_idle_family_flags(changed: dict, encoding: TextEncoding) -> list[str]:
    """Warns of flags that have no effect in a model's family; returns them."""
    heads = isinstance(encoding, SegmentEncoding)
    answer = "an encoder's head gives the answer" if heads else ""
    lacking = {
        "a choice of method": answer if changed.get("eval_method") != "loss" else "",
        "writing": answer,
        "written targets": "an encoder's head writes nothing" if heads else "",
        "a loss of tokens": "the head gives a number" if heads and encoding.words is None else "",
        "a T5": "" if type(encoding) is TextEncoding else "only a T5 can be evaluated so",
        "a shared row": "" if hasattr(encoding, "separator") else "prompt and answer do not share a row",
    }
    return warn_of_idle_flags("fine_tune_t5", changed, lacking)


# ---------------------------------------------------------------------------------------------------------------------
# Lengths


def warn_of_cut_texts(place: str, features: TokenArrays, lengths: Lengths) -> dict[str, int]:
    """`{flag: number of texts that fill it}`, logged where there are any.

    A cut target is a wrong one, and warned of; inputs are cut in most published systems, and only noted.
    """
    found = {}
    for level, what, rows, flag, longest in (
        (logging.INFO, "inputs", features.input_ids, "max_source_length", lengths.source),
        (logging.WARNING, "targets", features.labels, "max_target_length", lengths.target),
    ):
        count = int((rows.lengths >= longest).sum())
        if count:
            found[flag] = count
            message = "%s: %d of %d %s fill --%s %d (tokens); what is longer loses its end"
            logger.log(level, message, place, count, len(rows), what, flag, longest)
    return found
