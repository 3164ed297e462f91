"""A name, folder or configuration -> a model in float32, and its tokenizer.

    >>> tokenizer = load_tokenizer("google/t5-v1_1-small")
    >>> model = load_model("google/t5-v1_1-small", tokenizer=tokenizer)

Weights are always float32, whatever the checkpoint holds: mixed precision then casts a copy per step (autocast). A
bfloat16 checkpoint loaded as it is would train in pure bfloat16, whose 8 bits of mantissa lose small updates.
"""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoTokenizer

from t5suite.base.errors import ConfigError, UserError
from t5suite.base.hub_commits import revision_to_read
from t5suite.base.hub_files import local_options
from t5suite.base.libraries import require_proved, unproved
from t5suite.base.model_files import VOCABULARY_FILE
from t5suite.base.yaml_files import read_json_text
from t5suite.models.adapter_files import (
    check_adapter_sizes,
    check_base,
    check_base_is_whole,
    find_base,
    is_adapter,
    read_adapter_config,
    restore_adapter,
)
from t5suite.models.adapter_kinds import adapter_kind
from t5suite.models.adapters import HEAD_TASKS, describe_adapter, inner_model, wrap_with_adapter
from t5suite.models.classes import num_elements
from t5suite.models.configs import format_overrides, load_config, parse_overrides
from t5suite.models.encoders import ENCODER_BY_TYPE, have_head, labels_words, reduce_to_encoder
from t5suite.models.families import Family, choose_family
from t5suite.models.generation_settings import complete_special_tokens, renew_special_tokens
from t5suite.models.heads import head_for, prepare_head, set_problem_type
from t5suite.models.init_checkpoint import load_init_checkpoint
from t5suite.models.load_errors import loading_error, refuse_missing_path, short_message
from t5suite.models.own_models import (
    OneClass,
    UserClass,
    check_folder_names_class,
    check_names_no_class,
    find_user_class,
)
from t5suite.models.placement import by_device
from t5suite.models.pretrained import trained_weights
from t5suite.models.quantization import quantization_options
from t5suite.models.spiece_files import SPIECE, is_spiece_alone, spiece_of_hub, tokenizer_of_spiece
from t5suite.models.t5.attention import quicken_attention
from t5suite.models.t5.output_layer import T5_TYPES, initialize, random_model
from t5suite.models.t5.packing import accept_packed_batches
from t5suite.models.tokenizer_checks import (
    check_declared_ids,
    check_embedding_rows,
    check_token_ids,
    check_trained_with,
    warn_of_other_tokenizer,
)
from t5suite.models.untrained_parts import freeze_untrained
from t5suite.models.vocabulary import embedding_rows, fit_config, grow_embeddings
from t5suite.models.weights import check_saves_whole

BUNDLED_MODEL = str(Path(__file__).parent.parent / "data" / "mini" / "model")


@dataclass(frozen=True)
class LoadSettings:
    """What `load_model` takes besides a name and a tokenizer.

    `config_name` or `from_scratch` give random weights; the vocabulary is then made to fit the tokenizer, rounded up
    to a multiple of 128 as T5's is (32100 pieces, 32128 rows).

    Attributes:
      config_name: a preset, a model type, a hub name, a folder or a .json file (`configs.load_config`).
      from_scratch: random weights, for the configuration of the name.
      config_overrides, dropout_rate: changes of the configuration.
      family: seq2seq, causal, masked or encoder, if not what the configuration says (`families.choose_family`).
      sentence_pairs: take a masked model with a head for pairs of sentences.
      tasks: what an encoder is fine-tuned for: it gets a head for their labels (`heads`).
      own_head: an encoder has its checkpoint's head, if there is one, with that head's labels, whatever the tasks.
      num_new_tokens: how many of the tokenizer's last pieces were added to it: trained weights grow rows for these.
      init_checkpoint: a file or folder of bare weights that replace the model's (`init_checkpoint`).
      allow_missing_keys: weights that a file lacks stay random.
      attn_implementation: eager, sdpa, ...; transformers' own choice without it (sdpa where the model has it).
      adapter_base: where the base model is, if the name is an adapter's folder with an outdated path to it.
      quantization: 8bit or 4bit for matrices that stay unchanged under an adapter (`quantization`).
      revision, trust_remote_code: as transformers has them.
      model_class: a user-defined `module:Class` (`own_models`).
    """

    config_name: str | None = None
    from_scratch: bool = False
    config_overrides: str | None = None
    dropout_rate: float | None = None
    family: str | None = None
    sentence_pairs: bool = False
    tasks: Sequence = ()
    own_head: bool = False
    num_new_tokens: int = 0
    init_checkpoint: str | None = None
    allow_missing_keys: bool = False
    attn_implementation: str | None = None
    adapter_base: str | None = None
    quantization: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    model_class: str | None = None

    def of_adapter_base(self) -> "LoadSettings":
        """Those that hold for the base model when the name is an adapter's folder."""
        return replace(
            self,
            sentence_pairs=False,
            num_new_tokens=0,
            allow_missing_keys=False,
            adapter_base=None,
            revision=None,
            model_class=None,
        )


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
    refuse_missing_path(name, flag)
    try:
        options = local_options(name, revision, trust_remote_code=trust_remote_code)
        spiece = spiece_of_hub(name, options["revision"])
        if spiece:
            return tokenizer_of_spiece(spiece, name, flag)
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code, **options)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StrictDataclassError) as error:
        raise _tokenizer_error(error, name, flag) from None
    _check_has_vocabulary(tokenizer, name, flag)
    check_declared_ids(tokenizer, folder, flag)
    return tokenizer


def _tokenizer_error(error: Exception, name: str, flag: str) -> UserError:
    """Why there is no tokenizer; raises the vocabulary file's own error if it is no JSON."""
    folder = Path(name)
    if is_adapter(name):
        base = ""
        with contextlib.suppress(ConfigError):
            base = " " + find_base(folder, read_adapter_config(folder).base_model_name_or_path)
        return ConfigError(f"{flag}: the adapter {name!r} has no tokenizer; give its base's by --tokenizer_name{base}")
    if (folder / VOCABULARY_FILE).is_file():
        read_json_text((folder / VOCABULARY_FILE).read_bytes(), folder / VOCABULARY_FILE)
    part = "a configuration" if isinstance(error, StrictDataclassError) else "a tokenizer"
    return loading_error(part, name, flag, error)


def _check_has_vocabulary(tokenizer, name: str, flag: str) -> None:
    """For a folder without a vocabulary transformers 5.23 builds a tokenizer of special tokens only: all is `<unk>`."""
    special_tokens = {
        *tokenizer.all_special_tokens,
        *(str(token) for token in tokenizer.added_tokens_decoder.values()),
    }
    if len(tokenizer.get_vocab().keys() - special_tokens) <= 1:  # T5's then still has "▁"
        raise ConfigError(
            f"{flag} {name}: it contains no tokenizer (no vocabulary, only special tokens); give the one that "
            "belongs to the model with --tokenizer_name"
        )


def load_model(name: str | None = None, *, tokenizer, **settings):
    """A model in float32; without a name, the bundled tiny T5 with random weights.

    >>> load_model("google/t5-v1_1-base", tokenizer=tokenizer, family="encoder", tasks=[load_task("glue", "rte")])

    The T5 family takes packed batches (`t5.packing`).

    Args:
      settings: fields of `LoadSettings`.

    Raises:
      ConfigError: the model cannot be found, or its vocabulary is smaller than the tokenizer's.
    """
    settings = LoadSettings(**settings)
    require_proved("model_loading")
    check_folder_names_class(name, settings.model_class)
    user_class = None if settings.model_class is None else find_user_class(settings.model_class)
    if is_adapter(name):
        base_settings = vars(settings.of_adapter_base())
        return load_adapter(name, tokenizer=tokenizer, base=settings.adapter_base, **base_settings)
    if settings.adapter_base is not None:
        raise ConfigError(f"--adapter_base has no effect: --model_name_or_path {name} is not an adapter's folder")
    is_random = settings.from_scratch or settings.config_name is not None or name is None
    config, family = _config_and_family(name, settings, user_class, is_random)
    options = _class_options(config, settings, name, is_random)
    if not is_random:
        check_trained_with(name, tokenizer)
        check_token_ids(config, tokenizer, name)
    auto_class, needs_new_head = _choose_class(config, user_class, family, settings, name)
    if is_random:
        fit_config(config, tokenizer, fixed="vocab_size" in parse_overrides(settings.config_overrides))
        renew_special_tokens(config, tokenizer, family.special_tokens)
        model = _random_weights(auto_class, config, options)
    else:
        options["revision"] = settings.revision
        model = trained_weights(auto_class, name, config, options, needs_new_head, settings.allow_missing_keys)
        check_vocabulary(model, len(tokenizer) - settings.num_new_tokens)
        grow_embeddings(model, len(tokenizer))
        check_embedding_rows(model, tokenizer, name)
    complete_special_tokens(model, tokenizer, family.special_tokens)
    check_saves_whole(model)
    if settings.init_checkpoint is not None:
        load_init_checkpoint(model, settings.init_checkpoint, settings.allow_missing_keys)
        warn_of_other_tokenizer(settings.init_checkpoint, tokenizer)
    if config.model_type in T5_TYPES:
        _adjust_t5(model, family)
    freeze_untrained(model)
    return model


def family_of(name: str, **settings) -> Family:
    """The family of the model that `load_model` would load, by its configuration alone.

    >>> family_of("textattack/bert-base-uncased-RTE").name
    'masked'

    Args:
      settings: fields of `LoadSettings`.
    """
    settings = LoadSettings(**settings)
    if is_adapter(name):
        folder = Path(name)
        base = settings.adapter_base
        name, settings = _base_of_adapter(folder, read_adapter_config(folder), base, settings.of_adapter_base())
    user_class = None if settings.model_class is None else find_user_class(settings.model_class)
    _, family = _config_and_family(name, settings, user_class, is_random=False)
    return family


def _config_and_family(
    name: str | None, settings: LoadSettings, user_class: UserClass | None, is_random: bool
) -> tuple[object, Family]:
    """The configuration, marked with the user's class if there is one, and its family."""
    config_name = settings.config_name or name or BUNDLED_MODEL
    config_class = None if user_class is None else user_class.unknown_config_class
    config = load_config(
        None if config_class is not None and config_name == BUNDLED_MODEL else config_name,
        settings.config_overrides,
        settings.dropout_rate,
        settings.revision,
        settings.trust_remote_code,
        is_random,
        config_class,
    )
    if user_class is not None:
        user_class.mark(config, settings.family)
        return config, choose_family(config, settings.family)
    check_names_no_class(getattr(config, "model_class", None), config_name)
    family = choose_family(config, settings.family)
    family.check_reads_text(config)
    return config, family


def _class_options(config, settings: LoadSettings, name: str | None, is_random: bool) -> dict:
    """What the class of models takes besides the configuration."""
    options = {"dtype": torch.float32, "trust_remote_code": settings.trust_remote_code}
    options |= quantization_options(settings.quantization, name, is_random)
    attention = settings.attn_implementation
    if attention is None:
        return options
    check_attention(config, attention, f"--attn_implementation {attention}")
    return {**options, "attn_implementation": attention}


def check_attention(config, attention: str | None, place: str) -> None:
    """Refuses an attention that a T5 computes wrongly.

    Args:
      place: the flag or the model that names the attention, for errors.
    """
    if config.model_type in T5_TYPES and attention not in (None, "sdpa", "eager"):
        # transformers 5.23 reads T5's bias out of bounds in flex attention for batches of two or more
        raise ConfigError(f"{place}: T5's position bias is correct with sdpa and eager only")


def _choose_class(
    config, user_class: UserClass | None, family: Family, settings: LoadSettings, name: str | None
) -> tuple:
    """The `AutoModelFor...` to load with, and whether it gets a head that the checkpoint does not have."""
    takes_head = bool(settings.tasks) and family.has_head
    if user_class is not None:
        auto_class = OneClass(user_class.model_class, type(config))
        if takes_head:
            prepare_head(config, head_for(settings.tasks), auto_class)
        return auto_class, False
    if family.takes_encoder_out:
        reduce_to_encoder(config)
    is_word_head = labels_words(config.architectures)
    if settings.own_head and family.has_head and have_head(config.architectures):
        set_problem_type(config, f"--model_name_or_path {name}")
        return family.auto_class_with_head(config, is_word_head), False
    if takes_head:
        head = head_for(settings.tasks)
        auto_class = family.auto_class_with_head(config, head.per_token)
        return auto_class, prepare_head(config, head, auto_class)
    if family.has_head and is_word_head:
        return family.auto_class_with_head(config, per_word=True), False
    if settings.sentence_pairs:
        return family.auto_class_with_pair_head(config), False
    return family.auto_class, False


def _random_weights(auto_class, config, options: dict):
    try:
        model = random_model(auto_class, config, **options)
    except ConfigError:
        raise
    except (ValueError, ImportError, TypeError, AttributeError, LookupError, AssertionError, ArithmeticError) as error:
        raise ConfigError(f"cannot make a model of type {config.model_type!r}: {short_message(error)}") from None
    initialize(model)
    return model


def _adjust_t5(model, family: Family) -> None:
    if not family.takes_encoder_out:
        accept_packed_batches(model)
    if not unproved(["quick_attention"]):
        quicken_attention(model)


def load_adapter(folder, *, tokenizer, base: str | None = None, **settings):
    """An adapter with its base model, ready for inference or further training.

    Args:
      base: where the base model is, if not where the adapter says.
      settings: fields of `LoadSettings`, for the base model.

    Raises:
      ConfigError: the base model is missing or a different one; files are truncated; a kind that is not in `ADAPTERS`.
    """
    folder = Path(folder)
    settings = LoadSettings(**settings)
    config = _adapter_config(folder, settings)
    check_trained_with(folder, tokenizer)
    name, settings = _base_of_adapter(folder, config, base, settings)
    model = load_model(name, tokenizer=tokenizer, **vars(settings))
    check_base(folder, name, model)
    check_adapter_sizes(config, folder)
    base_place = os.path.abspath(name) if Path(name).is_dir() else name
    model = wrap_with_adapter(model, config, base_place, revision_to_read("model", name, settings.revision))
    restore_adapter(model, folder)
    return model


def _adapter_config(folder: Path, settings: LoadSettings):
    """PEFT's configuration of a saved adapter, for further training.

    Raises:
      ConfigError: settings that would change the base model; a kind that is not in `ADAPTERS`.
    """
    for flag in ("config_name", "from_scratch", "config_overrides", "init_checkpoint"):
        if getattr(settings, flag):
            raise ConfigError(f"--{flag}: {folder} is an adapter, which needs its base model unchanged")
    config = read_adapter_config(folder)
    adapter_kind(config)
    # PEFT's file lacks the network that computes projected prefixes: they can be used, but not trained.
    config.inference_mode = bool(getattr(config, "prefix_projection", False))
    return config


def _base_of_adapter(folder, config, base: str | None, settings: LoadSettings) -> tuple[str, LoadSettings]:
    """The name of an adapter's base model, and the settings to load it with; arguments as `load_adapter`."""
    name = base or find_base(folder, config.base_model_name_or_path)
    check_base_is_whole(folder, name)
    stored_revision = None if base else config.revision
    if stored_revision:
        settings = replace(settings, revision=stored_revision)
    if config.task_type in HEAD_TASKS.values() and settings.family in (None, "auto"):
        base_config = load_config(name, None, None, stored_revision, settings.trust_remote_code)
        settings = replace(settings, family="encoder" if base_config.model_type in ENCODER_BY_TYPE else None)
    return name, settings


def load_model_shapes(name: str | None = None, *, tokenizer, **settings):
    """What `load_model` would give, without its weights: every parameter is on the meta device."""
    settings = LoadSettings(**settings)
    if is_adapter(name):
        return _adapter_shapes(Path(name), tokenizer, settings)
    if name is not None and not (settings.config_name or settings.from_scratch):
        settings = replace(settings, config_overrides=_overrides_with_trained_rows(name, tokenizer, settings))
    config_name = settings.config_name or name or BUNDLED_MODEL
    settings = replace(settings, init_checkpoint=None, config_name=config_name)
    with torch.device("meta"):
        return load_model(None, tokenizer=tokenizer, **vars(settings))


def _adapter_shapes(folder: Path, tokenizer, settings: LoadSettings):
    """The shapes of an adapter's base model, with the adapter over them."""
    config = _adapter_config(folder, settings)
    name, base_settings = _base_of_adapter(folder, config, settings.adapter_base, settings.of_adapter_base())
    check_adapter_sizes(config, folder)
    model = load_model_shapes(name, tokenizer=tokenizer, **vars(base_settings))
    return wrap_with_adapter(model, config, name, base_settings.revision)


def _overrides_with_trained_rows(name: str, tokenizer, settings: LoadSettings) -> str:
    """Overrides that keep a trained vocabulary's rows, or grow them as `grow_embeddings` does."""
    overrides = settings.config_overrides
    config = load_config(name, overrides, None, settings.revision, settings.trust_remote_code)
    rows = config.get_text_config().vocab_size
    if rows < len(tokenizer):
        rows = embedding_rows(len(tokenizer))
    return format_overrides({**parse_overrides(overrides), "vocab_size": rows})


def check_vocabulary(model, num_pieces: int) -> None:
    """Refuses a model with fewer embeddings than its tokenizer has pieces."""
    rows = model.config.get_text_config().vocab_size
    if rows < num_pieces:
        raise ConfigError(
            f"the model has {rows} embeddings, but the tokenizer has {num_pieces} pieces; "
            "give the --tokenizer_name that belongs to the model"
        )


def describe_model(model) -> dict:
    """Counts for logs and manifests.

    >>> describe_model(model)
    {'class': 'T5ForConditionalGeneration', 'parameters': 60506624, 'trainable': 60506624}
    """
    parameters = list(model.parameters())
    description = {
        "class": type(inner_model(model)).__name__,
        "parameters": num_elements(parameters),
        "trainable": num_elements(parameter for parameter in parameters if parameter.requires_grad),
    }
    placement = by_device(model)
    if placement:
        description["placement"] = placement
    left_out = getattr(model, "left_out_of_checkpoint", None)
    if left_out:
        description["left_out"] = left_out
    return {**description, **describe_adapter(model)}
