"""What a model, the data and the flags cannot do together, told before the first step.

>>> warn_of_idle_family_flags({"eval_method": "score"}, encoding)     # of a BERT
WARNING --eval_method has no effect: an encoder's head gives the answer
['eval_method']
>>> check_packable(model, args, plug_ins)       # of a GPT-2
ConfigError: --pack_rows needs an encoder-decoder of type t5, mt5, umt5, not 'gpt2': ...
"""

import logging

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.data.batches.encodings import SegmentEncoding, TextEncoding
from t5suite.data.batches.features import TokenArrays
from t5suite.models.attention import accept_packed_batches
from t5suite.models.configs import check_length, check_resumes
from t5suite.models.families import family_of_model, plain
from t5suite.models.heads import T5_TYPES
from t5suite.models.own_models import SETTING, OwnModel
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
        if args.selection_metric not in (None, "loss", "average", "selection"):
            raise ConfigError(
                f"--metric_for_best_model {args.selection_metric}: {by_loss[0]} is evaluated by its loss alone; "
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


# ---------------------------------------------------------------------------------------------------------------------
# Packed rows


GROUPED, SHUFFLED = "group_by_length", "random"


def check_packable(model, args, plug_ins) -> None:
    """Makes a model heed packed rows.

    Raises:
      ConfigError: the examples of a row would see one another, or something looks at rows as at examples.
    """
    reason = hindrance(model, args, plug_ins)
    if reason is not None:
        raise ConfigError(f"--pack_rows {reason}; leave it out")
    accept_packed_batches(plain(model))


def hindrance(model, args, plug_ins) -> str | None:
    """Why rows of this run cannot be packed; None where they can."""
    kind = getattr(model.config, "model_type", None)
    if isinstance(model, OwnModel) or kind not in T5_TYPES or not model.config.is_encoder_decoder:
        kind = "a module of your own" if isinstance(model, OwnModel) else repr(kind)
        return f"needs an encoder-decoder of type {', '.join(T5_TYPES)}, not {kind}: examples would see one another"
    adapters = (getattr(model, "peft_config", None) or {}).values()
    prompted = next((adapter for adapter in adapters if adapter.is_prompt_learning), None)
    reasons = {
        "cannot go with an --adapter of learned prompts, which stand in front of a row, not of an example": prompted,
        "cannot go with a custom_attention, which may not heed block masks": getattr(model.config, SETTING, None),
        "cannot go with --neftune_noise_alpha, whose noise depends on the length of a row": args.neftune_noise_alpha,
        "cannot go with --batch_transform, which is to see an example a row": plug_ins.batch_transform,
        "cannot go with --batch_metrics, which are to see an example a row": plug_ins.batch_metrics,
    }
    return next((reason for reason, there in reasons.items() if there is not None and there is not False), None)


def sampling_for(args, packs: bool) -> str:
    """`--train_sampling_strategy`; packed rows are fuller where examples of a batch differ in length.

    Rows of 16 MNLI-like examples are 85% full in a shuffled order and 75% where they are grouped by length, which is
    the default without packing.
    """
    if not packs or args.train_sampling_strategy != GROUPED:
        return args.train_sampling_strategy
    if "train_sampling_strategy" in getattr(args, "flags_given", ()):
        logger.warning(
            "--train_sampling_strategy %s: rows are packed, and fuller where lengths differ (random)", GROUPED
        )
        return GROUPED
    return SHUFFLED
