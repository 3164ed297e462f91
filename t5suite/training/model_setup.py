"""The tokenizer and the model that the flags name: loaded or made, with added tokens, frozen, and placed on devices.

>>> tokenizer, model = tokenizer_and_model(model_args, tasks=plan.tasks)
>>> place_by_flags(model, model_args, args, trains=True)
"""

import logging
import os
from dataclasses import replace
from pathlib import Path

import torch

from t5suite.base.errors import ConfigError
from t5suite.data.rows.sources import BUNDLED_BENCHMARK
from t5suite.models.adapter_files import is_adapter
from t5suite.models.added_tokens import add_words, parse_tokens, set_rows_to_mean, warn_of_frozen_rows
from t5suite.models.classes import num_elements
from t5suite.models.freezing import freeze
from t5suite.models.loading import describe_model, load_model, load_model_shapes, load_tokenizer
from t5suite.models.placement import check_alone
from t5suite.models.placement import place_model as place_model_on_devices
from t5suite.models.quantization import quantization_kind
from t5suite.models.tokenizer_checks import stored_description
from t5suite.models.vocabulary import add_sentinels, add_tokens, ensure_padding
from t5suite.runs.trained_splits import origin_of_weights
from t5suite.training.flags.adapters import FREEZE_FLAGS

# Lines of the log name the run, whichever module of it writes them.
logger = logging.getLogger("t5suite.training.run")


def tokenizer_and_model(
    model_args,
    mode_tokens=(),
    sentence_pairs: bool = False,
    without_weights: bool = False,
    tasks=(),
    tokenizer=None,
    own_head: bool = False,
):
    """`(tokenizer, model)` of the model flags, the model in float32.

    Args:
      tasks: what the model is fine-tuned for; a masked model gets a head for their labels.
      mode_tokens: tokens that an objective needs and the tokenizer may lack (`vocabulary.MODE_TOKENS` for UL2).
      sentence_pairs: give a masked model a head for pairs of sentences.
      without_weights: make only a new model's shapes (on the meta device), which a dry run needs.
      tokenizer: one that is already loaded.
      own_head: an encoder has the head of its checkpoint, whatever the tasks.
    """
    num_pieces = 0
    if tokenizer is None:
        tokenizer = load_tokenizer(
            model_args.tokenizer_name or model_args.model_name_or_path,
            model_args.model_revision,
            model_args.trust_remote_code,
            flag="--tokenizer_name" if model_args.tokenizer_name else "--model_name_or_path",
        )
        num_pieces = len(tokenizer)
    if not without_weights:
        note_toys(model_args, tasks, num_pieces)
        note_random_weights(model_args)
    if model_args.allow_missing_keys and not (model_args.init_checkpoint or model_args.model_name_or_path):
        logger.warning("--allow_missing_keys has no effect: no weights are loaded")
    num_added = 0
    if model_args.num_sentinels is not None:
        num_added += add_sentinels(tokenizer, model_args.num_sentinels)
    num_added += add_tokens(tokenizer, mode_tokens)
    words = add_words(tokenizer, parse_tokens(model_args.add_tokens))
    if tasks:
        ensure_padding(tokenizer)
    untrained_words = untrained_ids(model_args, words)
    if is_adapter(model_args.model_name_or_path):
        check_keeps_base(model_args, untrained_words)
    model = model_by_flags(
        model_args,
        tokenizer,
        without_weights,
        sentence_pairs=sentence_pairs,
        tasks=tasks,
        own_head=own_head,
        num_new_tokens=num_added + len(words),
    )
    set_rows_to_mean(model, untrained_words)
    freeze(model, model_args.freeze, model_args.freeze_regex)
    warn_of_frozen_rows(model)
    return tokenizer, model


def untrained_ids(model_args, word_ids: list[int]) -> list[int]:
    """Those of added words' ids that the trained weights have no rows for; none where no weights are trained."""
    weights_place = origin_of_weights(vars(model_args))
    if weights_place is None:
        return []
    description = stored_description(weights_place)
    num_trained = 0 if description is None else description["pieces"]
    return [word_id for word_id in word_ids if word_id >= num_trained]


def check_keeps_base(model_args, untrained_words: list[int]) -> None:
    """Refuses flags that change the model below a saved adapter, which stays as it is and is not saved with it.

    Raises:
      ConfigError: new words, parts to freeze.
    """
    name = model_args.model_name_or_path
    if untrained_words:
        raise ConfigError(
            f"--add_tokens {model_args.add_tokens}: {name} is an adapter, whose base model stays as it is; merge it "
            "first (t5suite export)"
        )
    for flag in FREEZE_FLAGS:
        value = getattr(model_args, flag)
        if value is not None:
            raise ConfigError(f"--{flag} {value}: {name} is an adapter, and all of its base model is frozen; drop it")


def model_by_flags(model_args, tokenizer, without_weights: bool = False, **settings):
    """The model of the flags, or its shapes alone.

    Args:
      settings: what does not come from model flags, as `load_model` takes it.
    """
    quantization = quantization_kind(model_args.load_in_8bit, model_args.load_in_4bit)
    if quantization and not without_weights:
        settings["quantization"] = quantization
    load = load_model_shapes if without_weights else load_model
    return load(
        model_args.model_name_or_path,
        tokenizer=tokenizer,
        config_name=model_args.config_name,
        from_scratch=model_args.from_scratch,
        config_overrides=model_args.config_overrides,
        dropout_rate=model_args.dropout_rate,
        family=model_args.model_family,
        init_checkpoint=model_args.init_checkpoint,
        allow_missing_keys=model_args.allow_missing_keys,
        attn_implementation=model_args.attn_implementation,
        adapter_base=model_args.adapter_base,
        revision=model_args.model_revision,
        trust_remote_code=model_args.trust_remote_code,
        model_class=model_args.model_class,
        **settings,
    )


def note_toys(model_args, tasks, num_pieces: int) -> None:
    """Says that the bundled model or vocabulary is used because none was given; it is made to learn the bundled rows.

    It is a warning for other rows: no score of it is worth anything.

    Args:
      tasks: what the model is fine-tuned for; none in pre-training.
      num_pieces: of the tokenizer that the flags name; 0 if one was already loaded.
    """
    has_bundled_rows = {task.benchmark for task in tasks} == {BUNDLED_BENCHMARK}
    model_flags = (
        model_args.model_name_or_path,
        model_args.config_name,
        model_args.model_class,
        model_args.init_checkpoint,
    )
    if not any(model_flags):
        cure = "--model_name_or_path" if tasks else "--model_name_or_path or --config_name"
        level = logging.WARNING if tasks and not has_bundled_rows else logging.INFO
        hint = "" if has_bundled_rows else f" (give {cure})"
        logger.log(level, "model: bundled toy T5 with random weights%s", hint)
    names_tokenizer = model_args.model_name_or_path or model_args.tokenizer_name
    if num_pieces and not (names_tokenizer or has_bundled_rows):
        logger.info("vocabulary: the bundled toy's %d pieces (give --tokenizer_name)", num_pieces)


def note_random_weights(model_args) -> None:
    """Says that a model's weights are random, where a flag has asked for it."""
    if model_args.init_checkpoint:
        return
    if model_args.from_scratch:
        logger.info("model: random weights (--from_scratch)")
    elif model_args.config_name:
        logger.info("model: random weights (--config_name %s)", model_args.config_name)


def trained_as(model_args, folder):
    """The model flags for the model in `folder`, whatever weights, configuration and tokenizer the run began with.

    Where a folder has no tokenizer's files, as Hugging Face's trainer may leave it, the one that the flags name stays.
    """
    if any(Path(folder).glob("*tokenizer*")) or any(Path(folder).glob("*.model")):
        model_args = replace(model_args, tokenizer_name=None, add_tokens=None, num_sentinels=None)
    return replace(
        model_args,
        model_name_or_path=str(folder),
        allow_missing_keys=False,
        config_name=None,
        from_scratch=False,
        config_overrides=None,
        init_checkpoint=None,
    )


def warn_of_number_format(model_type: str, args) -> None:
    """Says that a T5 overflows in float16, and that a GPU has no bfloat16 of its own."""
    if args.fp16 and model_type in ("t5", "mt5", "umt5", "longt5"):
        # Checkpoints trained in bfloat16 reach 65504 within a few layers.
        logger.warning(
            "--fp16 with T5 overflows: losses become nan and the weights are lost. Use --bf16 (same speed, float32's "
            "range). The run stops at the first steps in a row whose loss is not finite"
        )
    is_emulated = args.device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False)
    if args.bf16 and is_emulated:
        logger.warning(
            "--bf16 is emulated on %s, and slower than float32: leave it out, or give --bf16 False",
            torch.cuda.get_device_name(args.device),
        )


def place_by_flags(model, model_args, args, trains: bool) -> None:
    """Says how large the model is and what its number format costs, and places it as the flags say.

    Without `--device_map` and `--embedding_on_cpu` the trainer places it.

    Raises:
      ConfigError: several processes, or DeepSpeed or FSDP, which place it themselves; or it cannot be done.
    """
    warn_of_number_format(model.config.model_type, args)
    logger.info("%(class)s, %(parameters)d parameters", describe_model(model))
    if model_args.device_map is None and not model_args.embedding_on_cpu:
        return
    flag = "--embedding_on_cpu" if model_args.embedding_on_cpu else f"--device_map {model_args.device_map}"
    check_alone(flag, args.world_size, sharding_library(args))
    place_model_on_devices(
        model,
        device_map=model_args.device_map,
        max_memory=model_args.max_memory,
        embedding_on_cpu=model_args.embedding_on_cpu,
        device=args.device,
        trains=trains,
        folder=args.output_dir,
    )


def sharding_library(args) -> str | None:
    """The library that places the model itself, if a flag or the launcher asks for one."""
    for name, flag_value in {"DeepSpeed": args.deepspeed, "FSDP": args.fsdp}.items():
        launcher_value = os.environ.get(f"ACCELERATE_USE_{name.upper()}", "").lower()
        if flag_value or launcher_value == "true":
            return name
    return None


def model_title(model, name: str | None, from_scratch: bool = False) -> str:
    """The model's name in tables and cards.

    >>> model_title(model, "google/t5-v1_1-small")
    't5-v1_1-small'
    """
    if name and not from_scratch:
        return Path(name).name
    count = num_elements(model.parameters())
    size = f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}K"
    return f"{model.config.model_type} from scratch ({size} parameters)"
