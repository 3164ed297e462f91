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
from pathlib import Path

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

from t5suite.base.errors import ConfigError, DataError, UserError
from t5suite.base.hub import absent, prepare_hub
from t5suite.base.hub_failures import Reading, failure_of, hub_error
from t5suite.base.hub_files import local_options
from t5suite.base.lookup import closest, suggestion
from t5suite.base.model_files import SETTINGS_FILE, check_settings
from t5suite.models.presets import PRESETS
from t5suite.models.t5.output_layer import T5_TYPES, asked_for_tied

logger = logging.getLogger(__name__)

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
    *("model_class", "model_family", "_attn_implementation"),
)
# Names of sizes and counts, by their smallest valid value.
SIZES = {0: re.compile(r"^(n|num)_|_(size|dim|layers)$"), 1: re.compile(r"^d_|(_heads|hidden_size)$")}
# A T5's settings that transformers derives from another one if they are not given.
DERIVED = {"feed_forward_proj": ("dense_act_fn", "is_gated_act"), "tie_word_embeddings": ("scale_decoder_outputs",)}


def load_config(
    name: str,
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
    if config_class is None:
        settings, make = _settings_of(name, revision, trust_remote_code, from_scratch)
    else:
        settings, make = {}, config_class
        if name is not None:
            require(name, "--config_name")
            try:
                settings, _ = config_class.get_config_dict(name, **local_options(name, revision))
            except UserError:
                raise
            except (OSError, ValueError) as error:
                raise cannot_load("a configuration", name, "--config_name", error) from None
    check_settings(settings, f"{name}: config.json")
    config = _make(make, settings)
    changes = parse_overrides(overrides)
    if changes:
        config = _changed(make, settings, changes, config)
    _check_activation(config, settings, name)
    if config.model_type in T5_TYPES:
        changed = {make.attribute_map.get(key, key): value for key, value in changes.items()}
        config.tie_word_embeddings = asked_for_tied({**settings, **changed, "model_type": config.model_type})
    if dropout_rate is not None:
        set_dropout(config, dropout_rate)
    return config


def _settings_of(name, revision, trust_remote_code, from_scratch) -> tuple[dict, type]:
    """`(settings as stored, class of the configuration)`."""
    if from_scratch and not Path(name).exists():
        if name in PRESETS:
            return PRESETS[name], CONFIG_MAPPING[PRESETS[name]["model_type"]]
        if name in CONFIG_MAPPING_NAMES:
            return {"model_type": name}, CONFIG_MAPPING[name]
    require(name, "--config_name")
    if Path(name).is_dir() and not (Path(name) / SETTINGS_FILE).is_file():
        raise ConfigError(f"{name}: there is no {SETTINGS_FILE} in this folder, which says what its model is")
    try:
        options = local_options(name, revision, trust_remote_code=trust_remote_code)
        config = AutoConfig.from_pretrained(name, trust_remote_code=trust_remote_code, **options)
        settings, _ = PreTrainedConfig.get_config_dict(name, **options)
    except UserError as error:
        hint = _near_types(name, from_scratch)
        if not hint:
            raise
        raise type(error)(f"{error}{hint}") from None
    except (OSError, ValueError, KeyError, StrictDataclassError) as error:
        if "custom code" in str(error):
            message = f"{name}: it needs code of its own (auto_map): read that code, then add --trust_remote_code"
            raise ConfigError(message) from None
        if re.search("model.type", str(error)) and Path(name).exists():
            message = f"{name}: its {SETTINGS_FILE} has no model_type that transformers knows ({first_line(error)})"
            raise ConfigError(message) from None
        raise cannot_load("a configuration", name, "--config_name", error, _near_types(name, from_scratch)) from None
    path = Path(name)
    if from_scratch and path.exists():
        # The user's own configuration: a file with another name, or without trained weights next to it.
        folder = path if path.is_dir() else path.parent
        has_weights = any(file.suffix in (".safetensors", ".bin") for file in folder.iterdir())
        if not has_weights or (path.is_file() and path.name != "config.json"):
            _check_keys(name, settings, type(config))
    return settings, type(config)


def _near_types(name: str, from_scratch: bool) -> str:
    near = closest(name, [*PRESETS, *CONFIG_MAPPING_NAMES]) if from_scratch and "/" not in name else []
    return f"; presets and model types of nearly that name: {', '.join(near)}" if near else ""


def _check_keys(name: str, settings: dict, make: type, outer=None) -> None:
    """Refuses settings that the class ignores: the new model would not be the one that the file describes.

    Args:
      outer: the defaults that an outer configuration gives this one.
    """
    if not make.__module__.startswith("transformers."):
        return
    defaults = {**make().to_dict(), **(outer or {})}
    known = {*defaults, *make.attribute_map, *GenerationConfig().to_dict(), *LEGACY_KEYS}
    source = "".join(path.read_text() for path in Path(inspect.getfile(make)).parent.glob("*.py"))
    for key, value in settings.items():
        if key not in known and not re.search(rf"\bconfig\.{re.escape(key)}\b|[\"']{re.escape(key)}[\"']", source):
            raise ConfigError(
                f"--config_name {name}: a {make.__name__} has no setting {key!r}, and transformers would ignore it; "
                f"{suggestion(key, defaults)}"
            )
        part = make.sub_configs.get(key)
        if isinstance(value, dict) and part is not None and part is not AutoConfig:
            _check_keys(f"{name}: {key}", value, part, defaults.get(key))


def _make(make: type, settings: dict):
    return make.from_dict({key: value for key, value in settings.items() if key != "model_type"})


def _changed(make: type, settings: dict, changes: dict, config):
    """The configuration rebuilt from its changed settings; `config` is the unchanged one, for its names."""
    for key in changes:
        if not hasattr(config, key):
            raise ConfigError(f"--config_overrides: no setting {key!r}; {suggestion(key, config.to_dict())}")
        for least, names in SIZES.items():
            if names.search(key) and isinstance(changes[key], (int, float)) and changes[key] < least:
                raise ConfigError(f"--config_overrides {key}={changes[key]}: must be at least {least}")
    changes = {make.attribute_map.get(key, key): value for key, value in changes.items()}
    derived = {name for key, names in DERIVED.items() if key in changes for name in names}
    if "num_layers" in changes and settings.get("num_decoder_layers") == settings.get("num_layers"):
        derived.add("num_decoder_layers")
    kept = {key: value for key, value in settings.items() if key not in derived}
    check_settings({**kept, **changes}, f"--config_overrides {format_overrides(changes)}")
    try:
        return _make(make, {**kept, **changes})
    except (ValueError, TypeError, StrictDataclassError) as error:
        raise ConfigError(f"--config_overrides {format_overrides(changes)}: {first_line(error)}") from None


def _check_activation(config, settings: dict, name: str) -> None:
    """Refuses an activation that transformers does not have; warns if a T5's two settings for it differ.

    transformers 5.24 then takes `dense_act_fn` without a word, which is what weights saved with it were trained with.
    """
    if config.model_type not in T5_TYPES:
        return
    if config.dense_act_fn not in ACT2FN:
        raise ConfigError(
            f"{name}: config.json: feed_forward_proj is {config.feed_forward_proj!r}; "
            f"{suggestion(config.dense_act_fn, ACT2FN)}"
        )
    derived = (
        "gelu_new" if config.feed_forward_proj == "gated-gelu" else config.feed_forward_proj.removeprefix("gated-")
    )
    # An override of `feed_forward_proj` has changed the stored `dense_act_fn`, too.
    if "dense_act_fn" in settings and config.dense_act_fn != derived:
        logger.warning(
            "%s: feed_forward_proj is %r, but dense_act_fn is %r, which is used",
            name,
            config.feed_forward_proj,
            config.dense_act_fn,
        )


def set_dropout(config, rate: float) -> None:
    """Sets the dropout of the model type, and every other dropout that is not 0 (BART's for attention and activations,
    those of T5Gemma's nested configurations); a head for classes keeps its own.

    Raises:
      ConfigError: a rate outside [0, 1); a model without dropout.
    """
    if not 0 <= rate < 1:
        raise ConfigError(f"--dropout_rate {rate}: must be at least 0 and below 1")
    parts = [config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", {}))]
    found = []
    for part in filter(None, parts):
        names = {*next((names for names in DROPOUT_FIELDS if hasattr(part, names[0])), ())}
        for name, value in vars(part).items():
            is_on = ("dropout" in name or name.endswith("pdrop")) and isinstance(value, float) and value > 0
            if is_on and "classif" not in name and "summary" not in name:
                names.add(name)
        found += [(part, name) for name in names]
    if not found:
        raise ConfigError(f"--dropout_rate {rate}: models of type {config.model_type!r} have no dropout")
    for part, name in found:
        setattr(part, name, float(rate))


def parse_overrides(text: str | None) -> dict:
    """The changes as a table with Python values.

    >>> parse_overrides("d_model=256,feed_forward_proj=gated-gelu,tie_word_embeddings=false")
    {'d_model': 256, 'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': False}
    """
    values = {}
    for item in filter(None, (text or "").split(",")):
        key, separator, value = item.partition("=")
        if not separator:
            raise ConfigError(f"--config_overrides: {item!r} is not of the form name=value")
        try:
            values[key.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):
            values[key.strip()] = {"true": True, "false": False}.get(value.strip().lower(), value.strip())
    return values


def format_overrides(values: dict) -> str:
    """What `parse_overrides` reads.

    >>> format_overrides({"d_model": 256, "feed_forward_proj": "relu"})
    'd_model=256,feed_forward_proj=relu'
    """
    return ",".join(f"{key}={value}" for key, value in values.items())


def check_length(config, length: int, flag: str) -> None:
    """Refuses sequences longer than the model has positions for; T5 has no such limit.

    >>> check_length(AutoConfig.for_model("bert"), 1024, "--inputs_length")
    ConfigError: --inputs_length 1024: a model of type 'bert' has positions for 512 tokens
    (max_position_embeddings=512); ...

    Args:
      length: tokens, special ones included.
    """
    positions = getattr(config, "max_position_embeddings", None)
    if positions is None or config.model_type in T5_TYPES:
        return
    # RoBERTa and similar models count positions from the id after the padding id.
    offset = config.pad_token_id + 1 if "roberta" in config.model_type and config.pad_token_id is not None else 0
    if length > positions - offset:
        raise ConfigError(
            f"{flag} {length}: a model of type {config.model_type!r} has positions for {positions - offset} tokens "
            f"(max_position_embeddings={positions}); lower {flag}, or for a model from scratch give "
            f"--config_overrides max_position_embeddings={length + offset}"
        )


def check_resumes(config, shortest: int) -> None:
    """Refuses models that transformers 5.23 changes during training, but in no tensor: a resumed run would differ.

    Args:
      shortest: tokens of the shortest input.

    Raises:
      ConfigError: with the setting that avoids it.
    """
    blocks = getattr(config, "attention_type", None) == "block_sparse" and hasattr(config, "num_random_blocks")
    attended = (5 + 2 * config.num_random_blocks) * config.block_size if blocks else -1
    if shortest <= attended:
        raise ConfigError(
            f"models of type {config.model_type!r} switch to full attention permanently at the first batch of at most "
            f"{attended} tokens (this data has {shortest}), and a resumed run would not; give "
            "--config_overrides attention_type=original_full"
        )
    if getattr(config, "moe_eval_capacity_token_fraction", 0) > 0:
        raise ConfigError(
            f"models of type {config.model_type!r} train with another expert capacity after an evaluation, and a "
            "resumed run would not; give --config_overrides moe_eval_capacity_token_fraction=-1.0"
        )


def require(name: str, flag: str) -> None:
    """Refuses a missing folder, and checks at most once whether the hub can be reached."""
    path = Path(name)
    if path.exists():
        return
    if name.startswith((".", "/", "~")) or name.count("/") > 1 or path.suffix == ".json":
        raise ConfigError(f"{flag}: no file or folder {name!r}")
    prepare_hub()


def cannot_load(what: str, name: str, flag: str, error: Exception, hint: str = "", data: bool = False) -> UserError:
    """The error, in one line: why `what` could not be loaded by its name.

    Args:
      hint: names that are nearly this one, which is then taken for a mistake.
      data: the files are wrong rather than the name.
    """
    if not Path(name).exists() and re.search(r"\s", name):
        return ConfigError(f"{flag}: no folder {name!r}, and a name of the hub has no white space{hint}")
    if not Path(name).exists() and not prepare_hub():
        message = (
            f"{flag}: {name!r} is no folder, the hub cannot be reached, and there is no copy of it in the local cache; "
            f"give a folder with the model's files{hint}"
        )
        return ConfigError(message) if hint else absent(message)
    if absence := _absence(what, Path(name)):
        return ConfigError(f"{flag} {name}: {absence}")
    failure = None if Path(name).exists() else failure_of(error)
    if failure is not None:
        return hub_error(failure, Reading("model", name, None, what))
    kind = DataError if data else ConfigError
    return kind(f"{flag}: cannot load {what} from {name!r} ({first_line(error)}){hint}")


# A folder with a tokenizer has one of these.
TOKENIZER_FILES = ("tokenizer*", "*.model", "vocab*", "merges.txt")


def _absence(what: str, path: Path) -> str | None:
    """Why nothing can be loaded from a folder or file; None if there is something of the kind."""
    if path.is_file() and what == "a tokenizer":
        return "a file that is no tokenizer; name its folder, or a spiece.model"
    if path.is_file():
        return None
    if path.is_dir() and not any(path.iterdir()):
        return "an empty folder"
    if path.is_dir() and what == "a tokenizer" and not any(next(path.glob(kind), None) for kind in TOKENIZER_FILES):
        return "no tokenizer in this folder (no tokenizer.json, spiece.model or the like); --tokenizer_name names one"
    return None


def first_line(error: Exception) -> str:
    """An error's first two lines as one, or its type if it has no message."""
    lines = str(error).strip().splitlines()
    return " ".join(line.strip() for line in lines[:2]) if lines else type(error).__name__
