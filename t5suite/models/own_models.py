"""User-defined models: `--model_class module:Class`.

    class ReaderConfig(PreTrainedConfig):                            # my_models.py
        model_type, hidden_size = "reader", 64

    class Reader(PreTrainedModel):
        config_class = ReaderConfig
        def forward(self, input_ids, attention_mask): ...            # an object with `logits`

    python fine_tune_t5.py --model_class my_models:Reader --model_family masked --config_overrides hidden_size=128

They are built, trained and loaded like transformers' own. A folder that names a class is loaded with `--model_class`
only: nothing that a checkpoint names is imported.
"""

import json
import logging
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import load_object

logger = logging.getLogger(__name__)

FLAG = "--model_class"
MODEL_CLASS, MODEL_FAMILY = "model_class", "model_family"  # the configuration's names for them


def class_named(spec: str) -> type:
    """The class that `module:Class` names.

    Raises:
      ConfigError: there is no such class, or transformers cannot build, save and load its models.
    """
    found = load_object(spec, FLAG)
    if not (isinstance(found, type) and issubclass(found, PreTrainedModel) and found.config_class is not None):
        raise ConfigError(f"{FLAG} {spec}: it is not a transformers.PreTrainedModel with a config_class")
    return found


def check_class_given(name: str | None, spec: str | None) -> None:
    """Raises a ConfigError for a folder whose configuration names a class, without `--model_class`."""
    stored = stored_settings(name).get(MODEL_CLASS)
    if spec is None:
        check_no_class(stored, f"--model_name_or_path {name}")
    elif stored not in (None, spec):
        logger.warning("%s %s: %s was saved as a %s", FLAG, spec, name, stored)


def check_no_class(stored: str | None, place: str) -> None:
    """Raises a ConfigError if a configuration (on the hub, of `--config_name`) names a class."""
    if stored is not None:
        raise ConfigError(f"{place}: its model is a {stored}, code that runs only if you name it: add {FLAG} {stored}")


def stored_settings(name: str | None) -> dict:
    """The settings of the configuration in a folder; empty if there is none."""
    path = Path(name or "") / "config.json"
    if name is None or not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}  # the code that loads it reports the error
    return found if isinstance(found, dict) else {}


class OneClass:
    """Replaces transformers' `AutoModelFor...` if the class is known.

    >>> OneClass(MyT5, T5Config).from_config(config, dtype=torch.float32)
    """

    def __init__(self, model_class: type, config_class: type):
        self.model_class = model_class
        self._model_mapping = {config_class: model_class}

    def from_config(self, config, trust_remote_code: bool = False, **options):
        """Random weights."""
        return self.model_class._from_config(config, **options)

    def from_pretrained(self, name, config=None, trust_remote_code: bool = False, **options):
        """Trained weights; with `output_loading_info`, also transformers' report on them."""
        loaded = self.model_class.from_pretrained(name, config=config, **options)
        self._fill_buffers(loaded[0] if isinstance(loaded, tuple) else loaded, config)
        return loaded

    def _fill_buffers(self, model, config) -> None:
        """Gives unsaved buffers the values that the class sets: transformers 5.23 leaves them uninitialised."""
        unsaved = [
            (name, buffer) for name, module in model.named_modules() for buffer in module._non_persistent_buffers_set
        ]
        if not unsaved:
            return
        with torch.random.fork_rng(devices=[]):
            fresh = self.model_class._from_config(config)
        for name, buffer in unsaved:
            made = getattr(fresh.get_submodule(name), buffer)
            if made is not None:
                getattr(model.get_submodule(name), buffer).data.copy_(made)


def unknown_config_class(model_class: type | None) -> type | None:
    """The class's configuration, if it is of a type that transformers does not know."""
    config_class = getattr(model_class, "config_class", None)
    if config_class is None:
        return None
    known = config_class.model_type in CONFIG_MAPPING_NAMES and CONFIG_MAPPING[config_class.model_type] is config_class
    return None if known else config_class


def mark_class(config, model_class: type, spec: str, family: str | None):
    """Writes the class and the family of a configuration's models into it."""
    if not isinstance(config, model_class.config_class):
        raise ConfigError(
            f"{FLAG} {spec}: it takes a {model_class.config_class.__name__}, and the configuration is a "
            f"{type(config).__name__} (model type {config.model_type!r}); give another --config_name"
        )
    for name in ("pad", "bos", "eos", "decoder_start"):
        if not hasattr(config, f"{name}_token_id"):  # a user-defined class may lack them
            setattr(config, f"{name}_token_id", None)
    setattr(config, MODEL_CLASS, spec)
    if family not in (None, "auto"):
        setattr(config, MODEL_FAMILY, family)
    return config
