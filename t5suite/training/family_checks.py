"""What a model's family makes of the flags and the data: which flags it does not heed, which rows are too long for it.

>>> warn_of_idle_family_flags({"eval_method": "score"}, encoding)     # of a BERT
WARNING --eval_method has no effect: an encoder's head gives the answer
['eval_method']
"""

import logging

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.data.encodings import SegmentEncoding, TextEncoding
from t5suite.models.configs import check_length, check_resumes
from t5suite.models.families import family_of_model

logger = logging.getLogger(__name__)

# Flags that only generation heeds.
GENERATION_FLAGS = ("generation_num_beams", "generation_max_length")
# Flags of the quick ways to evaluate, which only encoders with a decoder have.
QUICK_FLAGS = ("candidate_trees", "quick_decoding", "eval_batch_tokens")


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
        if args.selection_metric not in (None, "loss", "average", "selection"):
            raise ConfigError(
                f"--metric_for_best_model {args.selection_metric}: {by_loss[0]} is evaluated by its loss alone; "
                "leave it out, or give the class a method generate(input_ids, attention_mask)"
            )


def warn_of_idle_family_flags(changed: dict, encoding: TextEncoding) -> list[str]:
    """Warns of flags that have no effect in a model's family; returns them."""
    heads = isinstance(encoding, SegmentEncoding)
    reasons = [
        (heads and changed.get("eval_method") != "loss", ("eval_method",), "an encoder's head gives the answer"),
        (heads, GENERATION_FLAGS, "an encoder's head gives the answer"),
        (heads, ("max_target_length",), "an encoder's head writes nothing"),
        (heads and encoding.words is None, ("label_smoothing_factor", "z_loss"), "the head gives a number"),
        (type(encoding) is not TextEncoding, QUICK_FLAGS, "only a T5 can be evaluated so"),
        (not hasattr(encoding, "separator"), ("answer_separator",), "prompt and answer do not share a row"),
    ]
    idle = {name: why for applies, names, why in reasons if applies for name in names if name in changed}
    for name, why in idle.items():
        logger.warning("--%s has no effect: %s", name, why)
    return list(idle)
