"""A name -> a configuration: a preset, a bare model type, a folder, a .json file or a hub name, with changes to it.

    >>> load_config("t5-v1_1-base", "num_layers=4", from_scratch=True).num_decoder_layers
    4
    >>> load_config("bert", "hidden_size=128,num_attention_heads=2", from_scratch=True).model_type
    'bert'

A configuration is made once, from its settings with the changes applied, so that derived settings follow the changed
ones: `feed_forward_proj=gated-gelu` gates, `num_layers=4` shortens a symmetric decoder too.
"""

import ast
import inspect
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from t5suite.base.errors import ConfigError, UserError
from t5suite.base.hub_files import local_options
from t5suite.base.lookup import closest, suggestion
from t5suite.base.model_files import SETTINGS_FILE, check_settings
from t5suite.models.load_errors import loading_error, refuse_missing_path, short_message
from t5suite.models.presets import PRESETS
from t5suite.models.t5.output_layer import T5_TYPES, is_declared_tied
from t5suite.models.untrained_parts import UNTRAINED
from t5suite.models.weight_files import USE_OF_EXPORTS

logger = logging.getLogger(__name__)

FLAG = "--config_name"
# Names of the dropout settings: the first of these tuples whose first field the configuration has.
DROPOUT_FIELDS = (
    ("dropout_rate",), ("hidden_dropout_prob", "attention_probs_dropout_prob"),
    ("resid_pdrop", "embd_pdrop", "attn_pdrop"), ("embedding_dropout", "mlp_dropout", "attention_dropout"),
    ("hidden_dropout", "attention_dropout"), ("dropout",), ("attention_dropout",),
)  # fmt: skip
# Keys of published configurations that transformers reads but does not keep under these names, and the suite's own.
LEGACY_KEYS = (
    *("torch_dtype", "_name_or_path", "auto_map", "num_labels", "task_specific_params", "tokenizer_class"),
    *("rope_theta", "rope_scaling", "finetuning_task", "pruned_heads", "use_cache", "transformers_version"),
    *("model_class", "model_family", "_attn_implementation", UNTRAINED),
)
# Names of sizes and counts, by their smallest valid value.
SIZES = {0: re.compile(r"^(n|num)_|_(size|dim|layers)$"), 1: re.compile(r"^d_|(_heads|hidden_size)$")}
# A T5's settings that transformers derives from another one if they are not given.
DERIVED = {"feed_forward_proj": ("dense_act_fn", "is_gated_act"), "tie_word_embeddings": ("scale_decoder_outputs",)}


def load_config(
    name: str | None,
    overrides: str | None = None,
    dropout_rate: float | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    from_scratch: bool = False,
    config_class: type | None = None,
):
    """A configuration by name, with changes such as `d_model=256,num_layers=4`.

    Args:
      from_scratch: weights will be random, so a preset (`t5-v1_1-base`) or a model type (`bert`) is enough. Files and
        folders take precedence; a name with a slash is the hub's.
      config_class: the configuration's class, if transformers does not know its type; without a name, its defaults.

    Raises:
      ConfigError: an unknown name, or a change that the configuration does not have or does not accept.
    """
    if config_class is not None:
        settings = {} if name is None else _read_settings_of_class(config_class, name, revision)
    elif from_scratch and _is_known_name(name):
        settings, config_class = _known_settings(name)
    else:
        settings, config_class = _read_settings(name, revision, trust_remote_code, from_scratch)
        if from_scratch and _is_users_own_file(name):
            _check_keys(name, settings, config_class)
    check_settings(settings, f"{name}: config.json")
    config = _make_config(config_class, settings)
    changes = parse_overrides(overrides)
    if changes:
        config = _change_config(config, settings, changes)
    _check_activation(config, settings, name)
    if config.model_type in T5_TYPES:
        requested = {**settings, **_with_stored_names(config_class, changes), "model_type": config.model_type}
        config.tie_word_embeddings = is_declared_tied(requested)
    if dropout_rate is not None:
        set_dropout(config, dropout_rate)
    return config


def _is_known_name(name: str) -> bool:
    """Whether a name is a preset or a model type, and no file."""
    return not Path(name).exists() and (name in PRESETS or name in CONFIG_MAPPING_NAMES)


def _known_settings(name: str) -> tuple[dict, type]:
    """The settings of a preset or a bare model type, and their class."""
    settings = PRESETS.get(name, {"model_type": name})
    return settings, CONFIG_MAPPING[settings["model_type"]]


def _read_settings(name: str, revision, trust_remote_code: bool, from_scratch: bool) -> tuple[dict, type]:
    """The settings as they are stored in a file, a folder or on the hub, and their class."""
    refuse_missing_path(name, FLAG)
    if Path(name).is_dir() and not (Path(name) / SETTINGS_FILE).is_file():
        raise ConfigError(f"{name}: there is no {SETTINGS_FILE} in this folder, which says what its model is")
    try:
        options = local_options(name, revision, trust_remote_code=trust_remote_code)
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code, **options)
        settings, _ = PreTrainedConfig.get_config_dict(name, **options)
    except UserError as error:
        hint = _similar_names(name, from_scratch)
        if not hint:
            raise
        raise type(error)(f"{error}{hint}") from None
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        raise _settings_error(error, name, from_scratch) from None
    return settings, type(config)


def _read_settings_of_class(config_class: type, name: str, revision) -> dict:
    """The settings of a type that transformers does not know."""
    refuse_missing_path(name, FLAG)
    try:
        settings, _ = config_class.get_config_dict(name, **local_options(name, revision))
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise loading_error("a configuration", name, FLAG, error) from None
    return settings


def _settings_error(error: Exception, name: str, from_scratch: bool) -> UserError:
    if "custom code" in str(error):
        return ConfigError(f"{name}: it needs code of its own (auto_map): read that code, then add --trust_remote_code")
    if re.search("model.type", str(error)) and (Path(name) / "model.bin").is_file():
        return ConfigError(f"{name} holds no weights, but model.bin: CTranslate2's files, {USE_OF_EXPORTS}")
    if re.search("model.type", str(error)) and Path(name).exists():
        return ConfigError(
            f"{name}: its {SETTINGS_FILE} has no model_type that transformers knows ({short_message(error)})"
        )
    return loading_error("a configuration", name, FLAG, error, _similar_names(name, from_scratch))


def _similar_names(name: str, from_scratch: bool) -> str:
    """For messages: presets and model types that the user may have meant."""
    if not from_scratch or "/" in name:
        return ""
    names = closest(name, [*PRESETS, *CONFIG_MAPPING_NAMES])
    return f"; presets and model types of nearly that name: {', '.join(names)}" if names else ""


def _is_users_own_file(name: str) -> bool:
    """Whether the user has written a configuration: a file with another name, or one without weights next to it."""
    path = Path(name)
    if not path.exists():
        return False
    if path.is_file() and path.name != "config.json":
        return True
    folder = path if path.is_dir() else path.parent
    return not any(file.suffix in (".safetensors", ".bin") for file in folder.iterdir())


def _check_keys(name: str, settings: dict, config_class: type, outer_defaults: dict | None = None) -> None:
    """Refuses settings that the class ignores: the new model would not be the one that the file describes.

    Args:
      outer_defaults: the defaults that an outer configuration gives this one.
    """
    if not config_class.__module__.startswith("transformers."):
        return
    defaults = {**config_class().to_dict(), **(outer_defaults or {})}
    known_keys = {*defaults, *config_class.attribute_map, *GenerationConfig().to_dict(), *LEGACY_KEYS}
    source = "".join(path.read_text() for path in Path(inspect.getfile(config_class)).parent.glob("*.py"))
    for key, setting in settings.items():
        if key not in known_keys and not _is_read(key, source):
            raise ConfigError(
                f"--config_name {name}: a {config_class.__name__} has no setting {key!r}, and transformers would "
                f"ignore it; {suggestion(key, defaults)}"
            )
        part_class = config_class.sub_configs.get(key)
        if isinstance(setting, dict) and part_class not in (None, AutoConfig):
            _check_keys(f"{name}: {key}", setting, part_class, defaults.get(key))


def _is_read(key: str, source: str) -> bool:
    """Whether code of a model reads a setting: `config.key`, or the key in quotes."""
    return re.search(rf"\bconfig\.{re.escape(key)}\b|[\"']{re.escape(key)}[\"']", source) is not None


def _make_config(config_class: type, settings: dict):
    return config_class.from_dict({key: setting for key, setting in settings.items() if key != "model_type"})


def _with_stored_names(config_class: type, changes: dict) -> dict:
    """Changes by the names that are stored: `hidden_size` of a T5 is its `d_model`."""
    return {config_class.attribute_map.get(key, key): setting for key, setting in changes.items()}


def _change_config(config, settings: dict, changes: dict):
    """The configuration made again from its changed settings."""
    for key, setting in changes.items():
        _check_change(config, key, setting)
    config_class = type(config)
    changes = _with_stored_names(config_class, changes)
    derived = {name for key in changes for name in DERIVED.get(key, ())}
    is_symmetric = settings.get("num_decoder_layers") == settings.get("num_layers")
    if "num_layers" in changes and is_symmetric:
        derived.add("num_decoder_layers")
    settings = {key: setting for key, setting in settings.items() if key not in derived}
    settings.update(changes)
    place = f"--config_overrides {format_overrides(changes)}"
    check_settings(settings, place)
    try:
        return _make_config(config_class, settings)
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise ConfigError(f"{place}: {short_message(error)}") from None


def _check_change(config, key: str, setting) -> None:
    if not hasattr(config, key):
        raise ConfigError(f"--config_overrides: no setting {key!r}; {suggestion(key, config.to_dict())}")
    for smallest, names in SIZES.items():
        if names.search(key) and isinstance(setting, int | float) and setting < smallest:
            raise ConfigError(f"--config_overrides {key}={setting}: must be at least {smallest}")


def _check_activation(config, settings: dict, name: str) -> None:
    """Refuses an activation that transformers does not have; warns if a T5's two settings for it differ.

    transformers 5.24 then takes `dense_act_fn` without a word, which is what weights saved with it were trained with.
    """
    if config.model_type not in T5_TYPES:
        return
    activation = str(config.dense_act_fn)
    if activation not in ACT2FN:
        raise ConfigError(
            f"{name}: config.json: feed_forward_proj is {config.feed_forward_proj!r}; {suggestion(activation, ACT2FN)}"
        )
    derived = config.feed_forward_proj.removeprefix("gated-")
    if config.feed_forward_proj == "gated-gelu":
        derived = "gelu_new"
    # An override of `feed_forward_proj` has changed the stored `dense_act_fn`, too.
    if "dense_act_fn" in settings and config.dense_act_fn != derived:
        logger.warning(
            "%s: feed_forward_proj is %r, but dense_act_fn is %r, which is used",
            name,
            config.feed_forward_proj,
            config.dense_act_fn,
        )


def parse_overrides(text: str | None) -> dict:
    """The changes as a table with Python values.

    >>> parse_overrides("d_model=256,feed_forward_proj=gated-gelu,tie_word_embeddings=false")
    {'d_model': 256, 'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': False}
    """
    changes = {}
    for assignment in filter(None, (text or "").split(",")):
        key, separator, setting = assignment.partition("=")
        if not separator:
            raise ConfigError(f"--config_overrides: {assignment!r} is not of the form name=value")
        changes[key.strip()] = _parse_setting(setting.strip())
    return changes


def _parse_setting(text: str):
    """A Python literal, `true` or `false`, else the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return {"true": True, "false": False}.get(text.lower(), text)


def format_overrides(changes: dict) -> str:
    """What `parse_overrides` reads.

    >>> format_overrides({"d_model": 256, "feed_forward_proj": "relu"})
    'd_model=256,feed_forward_proj=relu'
    """
    return ",".join(f"{key}={setting}" for key, setting in changes.items())


def set_dropout(config, rate: float) -> None:
    """Sets the dropout of the model type, and every other dropout that is not 0 (BART's for attention and activations,
    those of T5Gemma's nested configurations); a head for classes keeps its own.

    Raises:
      ConfigError: a rate outside [0, 1); a model without dropout.
    """
    if not 0 <= rate < 1:
        raise ConfigError(f"--dropout_rate {rate}: must be at least 0 and below 1")
    fields = [(part, name) for part in config_parts(config) for name in _dropout_names(part)]
    if not fields:
        raise ConfigError(f"--dropout_rate {rate}: models of type {config.model_type!r} have no dropout")
    for part, name in fields:
        setattr(part, name, float(rate))


def config_parts(config) -> Iterator[PreTrainedConfig]:
    """A configuration and those inside of it, at every depth."""
    yield config
    for field in list(vars(config).values()):
        if isinstance(field, PreTrainedConfig):
            yield from config_parts(field)


def _dropout_names(config) -> set[str]:
    """The settings of a configuration that are dropout rates: its type's, and those that are on."""
    names = set()
    for fields in DROPOUT_FIELDS:
        if hasattr(config, fields[0]):
            names.update(fields)
            break
    names.update(name for name, setting in vars(config).items() if _is_dropout_in_use(name, setting))
    return names


def _is_dropout_in_use(name: str, setting) -> bool:
    is_rate = "dropout" in name or name.endswith("pdrop")
    is_of_head = "classif" in name or "summary" in name
    return is_rate and not is_of_head and isinstance(setting, float) and setting > 0
