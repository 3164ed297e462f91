"""The flags of both scripts that say whether a run trains, and from where.

    >>> EvaluationArguments(eval_only=True).resume           # fine-tuning's; pre-training's are RunArguments
    'auto'

They stand once, in the same words for both.
"""

from dataclasses import dataclass, field


@dataclass
class ModeArguments:
    """Without a heading of its own: `--help` has these flags below those of evaluation and of resuming."""

    eval_only: bool = field(default=False, metadata={"help": "Score the model without training it."})
    resume: str = field(
        default="auto",
        metadata={
            "help": "auto: go on from the newest complete checkpoint; none: a fresh run; or a checkpoint's path."
        },
    )
