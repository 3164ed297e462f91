"""Numbers of flags that nothing can be done with, refused before anything is loaded.

    >>> check_bounds({"per_device_train_batch_size": 0})
    ConfigError: --per_device_train_batch_size 0: must be at least 1 (examples)

Libraries take most of them and fail later, or train on nothing: at `--max_target_length 1` a target is its
end-of-sequence token alone.
"""

import math

from t5suite.errors import ConfigError


def check_bounds(values: dict) -> None:
    """Raises `ConfigError` at the first value that is below its least or above its largest; None is passed over."""
    for name, (least, largest, unit) in BOUNDS.items():
        value = values.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            continue
        if least <= value <= largest:  # not so for nan
            continue
        upper = "" if largest == math.inf else f" and at most {largest}"
        raise ConfigError(f"--{name} {value}: must be at least {least}{upper} ({unit})")


def with_cure(message: str) -> str:
    """What Hugging Face's training arguments say of values that do not go together, and what to do.

    >>> with_cure("At most one of fp16 and bf16 can be True, but not both")
    "At most one of fp16 and bf16 can be True, but not both; leave --fp16 out: --bf16 has float32's range"
    """
    cure = next((cure for part, cure in CURES.items() if part in message), None)
    return f"{message}; {cure}" if cure else message


# By a part of the message (transformers 5.23).
CURES = {
    "requires Ampere": "leave --tf32 out here (t5suite doctor shows what torch sees)",
    "one of fp16 and bf16": "leave --fp16 out: --bf16 has float32's range",
}

# {flag: (least, largest, what is counted)}
BOUNDS = {
    "per_device_train_batch_size": (1, math.inf, "examples"),
    "per_device_eval_batch_size": (1, math.inf, "rows"),
    "gradient_accumulation_steps": (1, math.inf, "batches an update"),
    "max_source_length": (2, math.inf, "tokens: one, and the end of the sequence"),
    "max_target_length": (2, math.inf, "tokens: one, and the end of the sequence"),
    "generation_max_length": (2, math.inf, "tokens: one, and the end of the sequence"),
    "generation_num_beams": (1, math.inf, "beams"),
    "learning_rate": (0, math.inf, "a rate; 1e-3 is large"),
    "weight_decay": (0, math.inf, "a share per update, times the learning rate"),
    "warmup_steps": (0, math.inf, "updates, or below 1 the share of all"),
    "dropout_rate": (0, 1, "the share of activations that is dropped"),
    "label_smoothing_factor": (0, 1, "a share"),
    "save_total_limit": (1, math.inf, "checkpoints"),
    "dataloader_num_workers": (0, math.inf, "processes"),
    "seed": (0, 2**32 - 1, "a whole number"),
}
