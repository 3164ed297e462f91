"""Flags -> the table of modules and memory: `t5suite summary`, and `--print_summary` of both scripts.

    >>> print_fine_tuning_summary(arguments, tasks=plan.tasks)

No weights are loaded for it: the model's configuration says all shapes, and a tokenizer the rows of its vocabulary.
"""

import logging
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.models.configs import load_config
from t5suite.training.flags.model import adapt_by_flags
from t5suite.training.memory_summary import Load, print_summary, summarize
from t5suite.training.pre_training import pre_training_collators
from t5suite.training.run import tokenizer_and_model

logger = logging.getLogger(__name__)


def shapes_by_flags(arguments):
    """The model that the flags name, frozen and adapted as they say, on the meta device; weights are never read.

    A vocabulary keeps the rows that its configuration says, unless `--tokenizer_name` or a folder has a tokenizer.
    """
    model_args = arguments.model
    tokenizer, model = tokenizer_and_model(model_args, without_weights=True, tokenizer=_stand_in(model_args))
    return adapt_by_flags(model, tokenizer, arguments, trains=True)


class RowsOnly:
    """Stands for the tokenizer of a configuration that comes without one: as many pieces as there are rows."""

    all_special_ids = ()

    def __init__(self, rows: int):
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def get_vocab(self) -> dict:
        """No piece has a name."""
        return {}


def _stand_in(model_args) -> RowsOnly | None:
    """None where there is a tokenizer to ask, or one must be asked."""
    name = model_args.config_name or model_args.model_name_or_path
    if name is None or model_args.tokenizer_name or model_args.num_sentinels is not None or model_args.add_tokens:
        return None
    if Path(name).is_dir() and any(Path(name).glob("*tokenizer*")):
        return None
    scratch = model_args.from_scratch or model_args.config_name is not None
    config = load_config(
        name,
        model_args.config_overrides,
        None,
        model_args.model_revision,
        model_args.trust_remote_code,
        scratch,
    )
    return RowsOnly(config.get_text_config().vocab_size)


def print_fine_tuning_summary(arguments, tasks=()) -> None:
    """`--print_summary` of `fine_tune_t5.py`: a micro-batch of `--max_source_length` and `--max_target_length`."""
    tokenizer, model = tokenizer_and_model(arguments.model, without_weights=True, tasks=tasks)
    model = adapt_by_flags(model, tokenizer, arguments, trains=True)
    _print(model, arguments.training, arguments.data.max_source_length, arguments.data.max_target_length)


def print_pre_training_summary(model_args, objective_args, args) -> None:
    """`--print_summary` of `pre_train_t5.py`: a micro-batch of the objective's lengths."""
    pairs = objective_args.sentence_pairs is not None
    tokenizer, model = tokenizer_and_model(model_args, objective_args.modes, pairs, without_weights=True)
    collator, _ = pre_training_collators(objective_args, tokenizer, model, args.seed)
    _print(model, args, collator.inputs_length, getattr(collator, "targets_length", 0))


def _print(model, args, source_length: int, target_length: int) -> None:
    if args.deepspeed or args.fsdp:
        raise ConfigError(
            "--print_summary counts what one device holds without sharding; ask `t5suite summary --deepspeed zero2 "
            "--num_gpus N` about shards"
        )
    print_summary(summary_by_flags(model, args, source_length, target_length))


def summary_by_flags(model, args, source_length: int, target_length: int) -> dict:
    """What `summarize` says of a model on the meta device and a micro-batch of the training arguments."""
    load = Load(
        args.per_device_train_batch_size,
        source_length,
        target_length,
        bf16=args.bf16,
        gradient_checkpointing=bool(args.gradient_checkpointing or getattr(args, "activation_checkpointing", False)),
        micro_batches=args.gradient_accumulation_steps,
    )
    optimizer = args.optimizer or getattr(args.optim, "value", args.optim)
    return summarize(model, load, optimizer, gpu=args.device.type != "cpu")
