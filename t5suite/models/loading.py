"""A name, folder or configuration -> a model in float32, and its tokenizer.

    >>> tokenizer = load_tokenizer("google/t5-v1_1-small")
    >>> model = load_model("google/t5-v1_1-small", tokenizer=tokenizer)

Weights are always float32, whatever the checkpoint holds: mixed precision then casts a copy per step (autocast). A
bfloat16 checkpoint loaded as it is would train in pure bfloat16, whose 8 bits of mantissa lose small updates.
"""

import contextlib
import logging
import os
import pickle
import re
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoTokenizer
from transformers.integrations import is_deepspeed_zero3_enabled

from t5suite.base.errors import ConfigError, DataError, UserError
from t5suite.base.hub_commits import revision_to_read
from t5suite.base.hub_files import local_options
from t5suite.base.libraries import require_proved, unproved
from t5suite.base.model_files import VOCABULARY_FILE, check_generation_settings, check_special_ids
from t5suite.base.yaml_files import read_json_text
from t5suite.models.adapter_files import (
    check_base,
    check_is_whole,
    check_rank,
    find_base,
    is_adapter,
    read_config,
    restore_adapter,
)
from t5suite.models.adapters import HEAD_TASKS, adapter_of, inner_model, kind_of, wrap
from t5suite.models.configs import cannot_load, first_line, format_overrides, load_config, parse_overrides, require
from t5suite.models.declared_sizes import check_sizes
from t5suite.models.encoders import ENCODER_BY_TYPE, labels_words, reduce_to_encoder
from t5suite.models.families import Family, choose_family
from t5suite.models.heads import draw_new_head, head_for, prepare_head
from t5suite.models.init_checkpoint import load_init_checkpoint
from t5suite.models.loaded_checks import check_loaded, check_values, mismatch_with_files
from t5suite.models.own_models import (
    OneClass,
    check_class_given,
    check_no_class,
    class_named,
    mark_class,
    unknown_config_class,
)
from t5suite.models.placement import by_device
from t5suite.models.quantization import quantization_options
from t5suite.models.spiece_files import SPIECE, is_spiece_alone, spiece_of_hub, tokenizer_of_spiece
from t5suite.models.t5.attention import accept_packed_batches, quicken_attention
from t5suite.models.t5.output_layer import T5_TYPES, initialize, random_model, trained_model
from t5suite.models.tokenizer_checks import (
    check_declared_ids,
    check_embedding_rows,
    check_token_ids,
    check_trained_with,
    warn_of_other_tokenizer,
)
from t5suite.models.vocabulary import (
    fit_config,
    grow_embeddings,
    leave_out_other_decoding,
    rows_for,
    set_generation_tokens,
    set_special_tokens,
)
from t5suite.models.weight_files import check_weight_files
from t5suite.models.weight_values import separate_memory
from t5suite.models.weights import check_saves_whole, mismatch_in_report

BUNDLED_MODEL = str(Path(__file__).parent.parent / "data" / "mini" / "model")


def load_tokenizer(name: str | None, revision=None, trust_remote_code: bool = False, flag: str = "--tokenizer_name"):
    """A tokenizer by hub name or folder; a folder with nothing but T5's `spiece.model` suffices.

    Args:
      flag: the flag that the user gave the name with, for errors.

    Raises:
      ConfigError: there is no such folder, or the hub cannot be reached and there is no cached copy.
    """
    name = name or BUNDLED_MODEL
    folder = Path(name)
    if is_spiece_alone(folder):
        return tokenizer_of_spiece(folder / SPIECE, name, flag)
    require(name, flag)
    try:
        options = local_options(name, revision, trust_remote_code=trust_remote_code)
        if spiece := spiece_of_hub(name, options["revision"]):
            return tokenizer_of_spiece(spiece, name, flag)
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code, **options)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        if is_adapter(name):
            base = ""
            with contextlib.suppress(ConfigError):
                base = " " + find_base(folder, read_config(folder).base_model_name_or_path)
            raise ConfigError(
                f"{flag}: the adapter {name!r} has no tokenizer; give its base's by --tokenizer_name{base}"
            ) from None
        if (folder / VOCABULARY_FILE).is_file():
            read_json_text((folder / VOCABULARY_FILE).read_bytes(), folder / VOCABULARY_FILE)
        part = "a configuration" if isinstance(error, StrictDataclassError) else "a tokenizer"
        raise cannot_load(part, name, flag, error) from None
    # For a folder without a vocabulary transformers 5.23 builds a tokenizer of special tokens only: all is `<unk>`.
    special = {*tokenizer.all_special_tokens, *(str(token) for token in tokenizer.added_tokens_decoder.values())}
    if len(tokenizer.get_vocab().keys() - special) <= 1:  # T5's then still has "▁"
        raise ConfigError(
            f"{flag} {name}: it contains no tokenizer (no vocabulary, only special tokens); give the one that "
            "belongs to the model with --tokenizer_name"
        )
    check_declared_ids(tokenizer, Path(name), flag)
    return tokenizer


def load_model(
    name: str | None = None,
    *,
    tokenizer,
    config_name: str | None = None,
    from_scratch: bool = False,
    config_overrides: str | None = None,
    dropout_rate: float | None = None,
    family: str | None = None,
    sentence_pairs: bool = False,
    tasks=(),
    num_new_tokens: int = 0,
    init_checkpoint: str | None = None,
    allow_missing_keys: bool = False,
    attn_implementation: str | None = None,
    adapter_base: str | None = None,
    quantization: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    model_class: str | None = None,
):
    """A model in float32; without a name, the bundled tiny T5 with random weights.

    `config_name` or `from_scratch` give random weights; the vocabulary is then made to fit the tokenizer, rounded up
    to a multiple of 128 as T5's is (32100 pieces, 32128 rows). The T5 family takes packed batches (`attention`).

    Args:
      config_name: a preset, a model type, a hub name, a folder or a .json file (`configs.load_config`).
      family: seq2seq, causal, masked or encoder, if not what the configuration says (`families.choose_family`).
      sentence_pairs: take a masked model with a head for pairs of sentences.
      tasks: what an encoder is fine-tuned for: it gets a head for their labels (`families`).
      num_new_tokens: how many of the tokenizer's last pieces were added to it: trained weights grow rows for these.
      init_checkpoint: a file or folder of bare weights that replace the model's (`init_checkpoint`).
      attn_implementation: eager, sdpa, ...; transformers' own choice without it (sdpa where the model has it).
      quantization: 8bit or 4bit for matrices that stay unchanged under an adapter (`placement`).
      adapter_base: where the base model is, if `name` is an adapter's folder with an outdated path to it.
      model_class: a user-defined `module:Class` (`own_models`).

    Raises:
      ConfigError: the model cannot be found, or its vocabulary is smaller than the tokenizer's.
    """
    require_proved("model_loading")
    check_class_given(name, model_class)
    own_class = class_named(model_class) if model_class is not None else None
    shared = {"tokenizer": tokenizer, "from_scratch": from_scratch, "family": family, "tasks": tasks}
    if is_adapter(name):
        return load_adapter(
            name,
            base=adapter_base,
            **shared,
            config_name=config_name,
            config_overrides=config_overrides,
            dropout_rate=dropout_rate,
            init_checkpoint=init_checkpoint,
            attn_implementation=attn_implementation,
            quantization=quantization,
            trust_remote_code=trust_remote_code,
        )
    if adapter_base is not None:
        raise ConfigError(f"--adapter_base has no effect: --model_name_or_path {name} is not an adapter's folder")
    scratch = from_scratch or config_name is not None or name is None
    own = None if own_class is None else (own_class, model_class)
    changes = (config_overrides, dropout_rate, revision, trust_remote_code, scratch)
    config, family = _config_and_family(config_name or name or BUNDLED_MODEL, own, family, *changes)
    options = {"dtype": torch.float32, "trust_remote_code": trust_remote_code}
    options |= quantization_options(quantization, name, scratch)
    if attn_implementation is not None:
        if config.model_type in T5_TYPES and attn_implementation not in ("sdpa", "eager"):
            # transformers 5.23 reads T5's bias out of bounds in flex attention for batches of two or more
            raise ConfigError(
                f"--attn_implementation {attn_implementation}: T5's position bias is correct with sdpa and eager only"
            )
        options["attn_implementation"] = attn_implementation
    if not scratch:
        check_trained_with(name, tokenizer)
        check_token_ids(config, tokenizer, name)
    auto_class, new_head = _class_and_head(config, own, family, sentence_pairs, tasks)
    special_tokens = family.special_tokens
    if scratch:
        fit_config(config, tokenizer, fixed="vocab_size" in parse_overrides(config_overrides))
        set_special_tokens(config, tokenizer, special_tokens, scratch)
        model = _random_weights(auto_class, config, options)
    else:
        options["revision"] = revision
        model = trained_weights(auto_class, name, config, options, new_head, allow_missing_keys)
        set_special_tokens(model.config, tokenizer, special_tokens, scratch)
        check_vocabulary(model, len(tokenizer) - num_new_tokens)
        grow_embeddings(model, len(tokenizer))
        check_embedding_rows(model, tokenizer, name)
    set_generation_tokens(model)
    check_saves_whole(model)
    if init_checkpoint is not None:
        load_init_checkpoint(model, init_checkpoint, allow_missing_keys)
        warn_of_other_tokenizer(init_checkpoint, tokenizer)
    if config.model_type in T5_TYPES:
        if not family.takes_encoder_out:
            accept_packed_batches(model)
        if not unproved(["quick_attention"]):
            quicken_attention(model)
    return model


def load_adapter(folder, *, tokenizer, base: str | None = None, **settings):
    """An adapter with its base model, ready for inference or further training.

    Args:
      base: where the base model is, if not where the adapter says.
      settings: the other ones of `load_model`, for the base model.

    Raises:
      ConfigError: the base model is missing or a different one; files are truncated; a kind that is not in `ADAPTERS`.
    """
    folder = Path(folder)
    for flag in ("config_name", "from_scratch", "config_overrides", "init_checkpoint"):
        if settings.get(flag):
            raise ConfigError(f"--{flag}: {folder} is an adapter, which needs its base model unchanged")
    config = read_config(folder)
    kind_of(config)
    check_trained_with(folder, tokenizer)
    name = base or find_base(folder, config.base_model_name_or_path)
    check_is_whole(folder, name)
    revision = None if base else config.revision
    settings = {**settings, "revision": revision} if revision else settings
    if config.task_type in HEAD_TASKS.values() and settings.get("family") in (None, "auto"):
        kind = load_config(name, None, None, revision, settings.get("trust_remote_code", False))
        settings["family"] = "encoder" if kind.model_type in ENCODER_BY_TYPE else None
    model = load_model(name, tokenizer=tokenizer, **settings)
    check_base(folder, name, model)
    check_rank(config, folder)
    # PEFT's file lacks the network that computes projected prefixes: they can be used, but not trained.
    config.inference_mode = bool(getattr(config, "prefix_projection", False))
    base_place = os.path.abspath(name) if Path(name).is_dir() else name
    model = wrap(model, config, base_place, revision_to_read("model", name, settings.get("revision")))
    restore_adapter(model, folder)
    return model


def _config_and_family(name, own, family, overrides, dropout_rate, revision, trust_remote_code, scratch):
    """The configuration, marked with the user's class if there is one, and its family."""
    config_class = unknown_config_class(own[0] if own else None)
    if config_class is not None and name == BUNDLED_MODEL:
        name = None
    config = load_config(name, overrides, dropout_rate, revision, trust_remote_code, scratch, config_class)
    if own:
        mark_class(config, *own, family)
        return config, choose_family(config, family)
    check_no_class(getattr(config, "model_class", None), name)
    family = choose_family(config, family)
    family.check_reads_text(config)
    return config, family


def _class_and_head(config, own, family: Family, sentence_pairs: bool, tasks):
    """The class to load with, and whether it gets a head that the checkpoint does not have."""
    if own:
        auto_class = OneClass(own[0], type(config))
        if tasks and family.has_head:
            prepare_head(config, head_for(tasks), auto_class)
        return auto_class, False
    if family.takes_encoder_out:
        reduce_to_encoder(config)
    if tasks and family.has_head:
        head = head_for(tasks)
        auto_class = family.auto_class_with_head(config, head.per_token)
        return auto_class, prepare_head(config, head, auto_class)
    if labels_words(config.architectures) and family.has_head:
        return family.auto_class_with_head(config, per_word=True), False
    if sentence_pairs:
        return family.auto_class_with_pair_head(config), False
    return family.auto_class, False


def load_model_shapes(name: str | None = None, **settings):
    """What `load_model` would give, without its weights: every parameter is on the meta device."""
    if name is not None and not (settings.get("config_name") or settings.get("from_scratch")):
        # Keeps a trained vocabulary's rows, or grows them as `grow_embeddings` does.
        overrides, trust = settings.get("config_overrides"), settings.get("trust_remote_code", False)
        rows = load_config(name, overrides, None, settings.get("revision"), trust).get_text_config().vocab_size
        pieces = len(settings["tokenizer"])
        changes = {**parse_overrides(overrides), "vocab_size": rows if rows >= pieces else rows_for(pieces)}
        settings["config_overrides"] = format_overrides(changes)
    settings |= {"init_checkpoint": None, "config_name": settings.get("config_name") or name or BUNDLED_MODEL}
    with torch.device("meta"):
        return load_model(None, **settings)


def _random_weights(auto_class, config, options):
    try:
        model = random_model(auto_class, config, **options)
    except ConfigError:
        raise
    except (ValueError, ImportError, TypeError, AttributeError, LookupError, AssertionError, ArithmeticError) as error:
        raise ConfigError(f"cannot make a model of type {config.model_type!r}: {first_line(error)}") from None
    initialize(model)
    return model


def trained_weights(auto_class, name, config, options, new_head: bool = False, allow_missing: bool = False):
    """`auto_class.from_pretrained(name, config, **options)`, complete or an error.

    Raises:
      ConfigError: no such model. DataError: it is truncated or incomplete (`loaded_checks.check_loaded`).
    """
    if Path(name).is_dir():
        stored = check_weight_files(Path(name), "--model_name_or_path")
        check_sizes(auto_class, config, stored, name, new_head)
    # Tensors of another shape are reported with all other errors, not only in transformers' table.
    options = {**options, "ignore_mismatched_sizes": True}
    try:
        trust = options.get("trust_remote_code", False)
        options |= local_options(name, options.get("revision"), with_weights=True, trust_remote_code=trust)
        with _without_report():
            model, found = trained_model(auto_class, name, config, **options)
    except UserError:
        raise
    except pickle.UnpicklingError:
        # torch's own message advises disabling the protection.
        raise DataError(
            f"--model_name_or_path {name!r}: its weights are truncated, or contain Python objects besides "
            "tensors, which could run code when loaded; use a copy with model.safetensors"
        ) from None
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        is_damaged = isinstance(error, (RuntimeError, SafetensorError))
        raise cannot_load("a model", name, "--model_name_or_path", error, data=is_damaged) from None
    unknown = found["unexpected_keys"]
    mismatch = mismatch_in_report(found)
    if is_deepspeed_zero3_enabled():
        mismatch = mismatch_with_files(model, name, options["revision"])
        # transformers 5.23 records every rule that it knows, even legacy ones, and would apply them on saving.
        vars(model).pop("_weight_conversions", None)
    check_loaded(model, mismatch, name, new_head, allow_missing)
    if new_head:
        draw_new_head(model)
    check_values(model, name, options["revision"], unknown)
    separate_memory(model)
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        settings, place = generation.to_diff_dict(), f"--model_name_or_path {name}: generation_config.json"
        check_generation_settings(settings, place)
        check_special_ids(settings, model.config.get_text_config().vocab_size, place)
        leave_out_other_decoding(generation, name)
    return model


@contextlib.contextmanager
def _without_report():
    """transformers warns of missing and unknown tensors, in a table, and of missing tied ones; here they are an error
    (`check_loaded`)."""
    source = logging.getLogger("transformers.modeling_utils")
    is_other = lambda record: not re.search("LOAD REPORT|checkpoint seem corrupted", record.getMessage())
    source.addFilter(is_other)
    try:
        yield
    finally:
        source.removeFilter(is_other)


def check_vocabulary(model, num_pieces: int) -> None:
    """Refuses a model with fewer embeddings than its tokenizer has pieces."""
    rows = model.config.get_text_config().vocab_size
    if rows < num_pieces:
        raise ConfigError(
            f"the model has {rows} embeddings, but the tokenizer has {num_pieces} pieces; "
            "give the --tokenizer_name that belongs to the model"
        )


def describe(model) -> dict:
    """Counts for logs and manifests.

    >>> describe(model)
    {'class': 'T5ForConditionalGeneration', 'parameters': 60506624, 'trainable': 60506624}
    """
    parameters = list(model.parameters())
    placement = by_device(model)
    return {
        "class": type(inner_model(model)).__name__,
        "parameters": sum(p.numel() for p in parameters),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        **({"placement": placement} if placement else {}),
        **({"left_out": left} if (left := getattr(model, "left_out_of_checkpoint", None)) else {}),
        **adapter_of(model),
    }
