"""The flags of both scripts that say whether a run trains, and from where.

    >>> EvaluationArguments(eval_only=True).resume           # fine-tuning's; pre-training's are RunArguments
    'auto'

They stand once, in the same words for both.
"""

from dataclasses import dataclass

from t5suite.training.flags.fields import flag


@dataclass
class ModeArguments:
    """Without a heading of its own: `--help` has these flags below those of evaluation and of resuming."""

    eval_only: bool = flag(False, "Score the model without training it.", "common", theme="evaluation")
    resume: str = flag(
        "auto",
        "auto: go on from the newest complete checkpoint; none: a fresh run; or a checkpoint's path.",
        "common",
        theme="resuming",
        change="nothing",
    )
