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
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import load_object
from t5suite.models.classes import random_weights

logger = logging.getLogger(__name__)

FLAG = "--model_class"
MODEL_CLASS, MODEL_FAMILY = "model_class", "model_family"  # the configuration's names for them


@dataclass(frozen=True)
class UserClass:
    """A class of models that the user has written, and how the flag names it.

    >>> UserClass(Reader, "my_models:Reader").unknown_config_class
    <class 'my_models.ReaderConfig'>
    """

    model_class: type
    spec: str

    @property
    def unknown_config_class(self) -> type | None:
        """The class of its configurations, if they are of a type that transformers does not know."""
        config_class = self.model_class.config_class
        model_type = config_class.model_type
        is_known = model_type in CONFIG_MAPPING_NAMES and CONFIG_MAPPING[model_type] is config_class
        return None if is_known else config_class

    def mark(self, config, family_name: str | None) -> None:
        """Writes the class and the family of a configuration's models into it.

        Raises:
          ConfigError: the class takes other configurations.
        """
        if not isinstance(config, self.model_class.config_class):
            raise ConfigError(
                f"{FLAG} {self.spec}: it takes a {self.model_class.config_class.__name__}, and the configuration is a "
                f"{type(config).__name__} (model type {config.model_type!r}); give another --config_name"
            )
        for name in ("pad", "bos", "eos", "decoder_start"):
            if not hasattr(config, f"{name}_token_id"):  # a user-defined class may lack them
                setattr(config, f"{name}_token_id", None)
        setattr(config, MODEL_CLASS, self.spec)
        if family_name not in (None, "auto"):
            setattr(config, MODEL_FAMILY, family_name)


def find_user_class(spec: str) -> UserClass:
    """The class that `module:Class` names.

    Raises:
      ConfigError: there is no such class, or transformers cannot build, save and load its models.
    """
    model_class = load_object(spec, FLAG)
    is_model_class = isinstance(model_class, type) and issubclass(model_class, PreTrainedModel)
    if not is_model_class or model_class.config_class is None:
        raise ConfigError(f"{FLAG} {spec}: it is not a transformers.PreTrainedModel with a config_class")
    return UserClass(model_class, spec)


def check_folder_names_class(name: str | None, spec: str | None) -> None:
    """Raises a ConfigError for a folder whose configuration names a class, without `--model_class`."""
    stored_spec = stored_settings(name).get(MODEL_CLASS)
    if spec is None:
        check_names_no_class(stored_spec, f"--model_name_or_path {name}")
    elif stored_spec not in (None, spec):
        logger.warning("%s %s: %s was saved as a %s", FLAG, spec, name, stored_spec)


def check_names_no_class(stored_spec: str | None, place: str) -> None:
    """Raises a ConfigError if a configuration (on the hub, of `--config_name`) names a class."""
    if stored_spec is not None:
        raise ConfigError(
            f"{place}: its model is a {stored_spec}, code that runs only if you name it: add {FLAG} {stored_spec}"
        )


def stored_settings(name: str | None) -> dict:
    """The settings of the configuration in a folder; empty if there is none."""
    path = Path(name or "") / "config.json"
    if name is None or not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}  # the code that loads it reports the error
    return settings if isinstance(settings, dict) else {}


class OneClass:
    """Replaces transformers' `AutoModelFor...` if the class is known.

    >>> OneClass(MyT5, T5Config).from_config(config, dtype=torch.float32)
    """

    def __init__(self, model_class: type, config_class: type):
        self.model_class = model_class
        self._model_mapping = {config_class: model_class}

    def from_config(self, config, trust_remote_code: bool = False, **options):
        """Random weights."""
        return random_weights(self.model_class, config, **options)

    def from_pretrained(self, name, config=None, trust_remote_code: bool = False, **options):
        """Trained weights; with `output_loading_info`, also transformers' report on them."""
        loaded = self.model_class.from_pretrained(name, config=config, **options)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        self._fill_buffers(model, config)
        return loaded

    def _fill_buffers(self, model, config) -> None:
        """Gives unsaved buffers the values that the class sets: transformers 5.23 leaves them uninitialised."""
        saved_names = model.state_dict().keys()
        buffers = dict(model.named_buffers(remove_duplicate=False))
        unsaved_names = buffers.keys() - saved_names
        if not unsaved_names:
            return
        with torch.random.fork_rng(devices=[]):
            new_model = random_weights(self.model_class, config)
        for name, new_buffer in new_model.named_buffers(remove_duplicate=False):
            if name in unsaved_names:
                buffers[name].data.copy_(new_buffer)
