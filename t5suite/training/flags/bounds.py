"""Numbers of flags that nothing can be done with, refused before anything is loaded.

    >>> check_bounds({"per_device_train_batch_size": 0})
    ConfigError: --per_device_train_batch_size 0: must be at least 1 (examples)

Libraries take most of them and fail later, or train on nothing: at `--max_target_length 1` a target is its
end-of-sequence token alone.
"""

import math
import os

from t5suite.base.errors import ConfigError

# No count is as large, for it would not fit into the libraries' integers.
LIMIT = 2**63


def check_bounds(values: dict) -> None:
    """Refuses numbers out of their flag's range in BOUNDS; each item of a list. None is passed over.

    Raises:
      ConfigError: at the first one.
    """
    for (interval, unit, *others), names in BOUNDS.items():
        given = {name: values.get(name) for name in names.split()}
        for name, value in [(k, v) for k, vs in given.items() for v in (vs if isinstance(vs, list) else [vs])]:
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if is_number and value not in others and not lies_in(value, interval):
                typed = str(value).removesuffix(".0")
                raise ConfigError(f"--{name} {typed}: must be {_said(interval, others, value)} ({unit})")


def lies_in(value: float, interval: str) -> bool:
    """Whether a number is in an interval: square brackets hold their end, round ones do not; never so for NaN.

    >>> lies_in(0, "[0, 1)"), lies_in(1, "[0, 1)"), lies_in(math.inf, "(0, inf)")
    (True, False, False)
    """
    least, largest = _ends(interval)
    above = value >= least if interval[0] == "[" else value > least
    below = value <= largest if interval[-1] == "]" else value < min(largest, LIMIT)
    return above and below


def _ends(interval: str) -> tuple[float, float]:
    least, largest = (float(end) for end in interval[1:-1].split(","))
    return least, largest


def _said(interval: str, others: list, value: float) -> str:
    least, largest = _ends(interval)
    words = [f"{'at least' if interval[0] == '[' else 'above'} {least:.17g}"]
    if largest < math.inf:
        words.append(f"{'at most' if interval[-1] == ']' else 'below'} {largest:.17g}")
    elif not value < LIMIT:
        words.append("below 2^63" if math.isfinite(value) else "finite")
    return " and ".join(words) + "".join(f", or {other}" for other in others)


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

# Every one is a process with memory of its own.
MOST_WORKERS = max(64, 4 * (os.cpu_count() or 1))

# {(interval, what is counted, *other values that mean something): flags}
BOUNDS = {
    ("[1, inf)", "examples"): "per_device_train_batch_size per_device_eval_batch_size",
    ("[1, inf)", "batches"): "gradient_accumulation_steps eval_accumulation_steps dataloader_prefetch_factor",
    (
        "[2, inf)",
        "tokens: one, and the end of the sequence",
    ): "max_source_length max_target_length generation_max_length",
    ("[1, inf)", "tokens"): "max_input_tokens max_output_tokens row_inputs_length row_targets_length targets_length "
    "num_virtual_tokens num_sentinels",
    ("[4, inf)", "tokens"): "inputs_length",
    ("[8, inf)", "tokens"): "block_size",
    ("[0, inf)", "0: rows, all at once, or any shape"): "eval_batch_tokens loss_chunk_tokens length_buckets",
    ("[1, inf)", "beams"): "generation_num_beams",
    ("[1, inf)", "updates; -1: --num_train_epochs counts", -1): "max_steps",
    ("(0, inf)", "passes over the training rows"): "num_train_epochs",
    ("(0, inf)", "minutes"): "max_minutes",
    ("(0, inf)", "updates, or below 1 the share of all"): "logging_steps eval_steps save_steps",
    ("[0, inf)", "updates, or below 1 the share of all"): "warmup_steps",
    ("[0, inf)", "epochs or updates, as --eval_strategy says"): "eval_delay",
    ("[1, inf)", "updates"): "torch_empty_cache_steps keep_every max_skipped_updates",
    ("[1, inf)", "checkpoints"): "save_total_limit",
    ("[1, inf)", "evaluations"): "early_stopping_patience",
    ("[0, inf)", "a rate; 1e-3 is large"): "learning_rate",
    ("[0, inf)", "a small number"): "weight_decay adam_epsilon z_loss",
    ("[0, 1)", "a share"): "adam_beta1 adam_beta2 dropout_rate lora_dropout noise_density",
    ("[0, 1]", "a share"): "label_smoothing_factor",
    ("(0, 1]", "the share of the rows"): "train_fraction",
    ("(0, 1)", "the share that is held out"): "validation_split validation_fraction",
    ("[0, inf]", "a norm; 0: no clipping, inf: it is measured alone"): "max_grad_norm",
    ("(0, inf)", "a number"): "clip_grad_value neftune_noise_alpha mixing_limit mixing_temperature",
    ("(0, inf)", "parts of the sum"): "data_sampling_proportion corpus_weights",
    ("[1, inf)", "a rank, or what is divided by it"): "lora_r lora_alpha",
    ("[1, inf)", "rows or blocks"): "max_train_samples max_eval_samples max_predict_samples few_shot "
    "max_num_instances_per_eval_task shuffle_buffer_size",
    ("[0, inf)", "rows or examples"): "max_num_instances_per_task num_pos_examples num_neg_examples num_samples",
    ("[1, inf)", "parts of a stream"): "num_virtual_streams",
    ("[1, inf)", "tokens or words"): "mean_span_length",
    ("[0, 4294967295]", "a whole number"): "seed data_seed",
    (f"[0, {MOST_WORKERS}]", "processes"): "dataloader_num_workers",
    ("[1, 31536000]", "seconds"): "ddp_timeout",
    ("[1, inf)", "MB"): "ddp_bucket_cap_mb",
    ("[0, inf)", "a rank; -1: not distributed", -1): "local_rank",
    ("(0, inf)", "TFLOP/s; H200: 989, A100: 312"): "peak_tflops",
}
