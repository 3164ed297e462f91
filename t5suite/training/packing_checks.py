"""What `--pack_rows` cannot go with, told before the first step; and the order of examples that suits it.

>>> check_packable(model, args, plug_ins)       # of a GPT-2
ConfigError: --pack_rows needs an encoder-decoder of type t5, mt5, umt5, not 'gpt2': ...
"""

import logging

from t5suite.base.errors import ConfigError
from t5suite.models.cached_prompts import plain
from t5suite.models.custom_attention import SETTING
from t5suite.models.head_tying import T5_TYPES
from t5suite.models.own_models import OwnModel
from t5suite.models.packed_t5 import accept_packed_batches

logger = logging.getLogger(__name__)

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
