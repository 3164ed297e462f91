"""Models and attention of the user's own: `--model_class module:Class`, `custom_attention` in a configuration.

    class TinyTagger(nn.Module):                                     # my_models.py
        def __init__(self, vocab_size, d_model=32): ...
        def forward(self, input_ids, attention_mask, labels):
            ...
            return {"loss": F.cross_entropy(logits.transpose(1, 2), labels), "logits": logits}

    python fine_tune_t5.py --model_class my_models:TinyTagger --model_class_args d_model=64

A `PreTrainedModel` is made, trained and read as transformers' own are. A plain `torch.nn.Module` with a loss is held by
an `OwnModel`, whose configuration records the class's name and its parameters, so that it is saved and resumed like
the others. A folder that names a class is read with `--model_class` alone: nothing that a checkpoint says is imported.

    {"model_type": "own_module", "model_class": "my_models:TinyTagger",
     "model_class_args": {"vocab_size": 1152, "d_model": 64}, "model_family": "seq2seq", ...}

A configuration may also name a class that takes the place of a model's attention modules:

    {"model_type": "t5", "d_model": 512, ...,                                   # config.json
     "custom_attention": {"class": "t5suite.models.block_sparse:BlockSparseT5Attention",
                          "modules": "encoder\\.block\\.\\d+\\.layer\\.0\\.SelfAttention",
                          "parameters": {"block_size": 64, "num_window_blocks": 1}}}

`Class(attention, **parameters)` is given the module that it replaces and is called as that was. One that keeps the
names of its parts (`q`, `k`, `v`, `o`) takes plain checkpoints. `modules` is a regular expression over the model's
module names; without it, `ATTENTION_MODULES` says which. The setting is saved with the model, which this suite then
loads as it was; transformers alone would load the plain model.
"""

import contextlib
import inspect
import json
import logging
import re
from pathlib import Path

import torch
from torch import nn
from transformers import CONFIG_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import load_object, suggestion
from t5suite.data.batches.collators import IGNORED, MODULE_LABELS
from t5suite.models.answering import ModuleAnswerer
from t5suite.models.families import class_in
from t5suite.models.heads import head_for
from t5suite.models.vocabulary import rows_for
from t5suite.models.weights import load_weights

logger = logging.getLogger(__name__)

# Classes


FLAG = "--model_class"
MODEL_CLASS, MODEL_FAMILY = "model_class", "model_family"  # the configuration's names for them


def class_named(spec: str) -> type:
    """The class that `module:Class` names.

    Raises:
      ConfigError: there is none, or it is no `torch.nn.Module`.
    """
    found = load_object(spec, FLAG)
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"{FLAG} {spec}: it is no class of torch.nn.Module's")
    return found


def is_transformers_class(model_class: type) -> bool:
    """Whether transformers makes, saves and reads models of the class by itself."""
    return issubclass(model_class, PreTrainedModel) and model_class.config_class is not None


def check_class_given(name: str | None, spec: str | None) -> None:
    """A folder whose configuration names a class is read with `--model_class` only.

    Raises:
      ConfigError: the flag is missing.
    """
    stored = stored_settings(name).get(MODEL_CLASS)
    if stored is not None and spec is None:
        raise ConfigError(_unnamed(f"--model_name_or_path {name}", stored))
    if stored not in (None, spec):
        logger.warning("%s %s: %s was saved as a %s", FLAG, spec, name, stored)


def check_no_class(config, name: str) -> None:
    """The same of a configuration that was found elsewhere (on the hub, by `--config_name`).

    Raises:
      ConfigError: it names a class.
    """
    if getattr(config, MODEL_CLASS, None) is not None:
        raise ConfigError(_unnamed(name, getattr(config, MODEL_CLASS)))


def _unnamed(place: str, stored: str) -> str:
    return f"{place}: its model is a {stored}, code that is run only where you name it: add {FLAG} {stored}"


def stored_settings(name: str | None) -> dict:
    """What the configuration in a folder says; empty where there is none."""
    path = Path(name or "") / "config.json"
    if name is None or not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}  # whoever loads it says what is wrong with it
    return found if isinstance(found, dict) else {}


class OneClass:
    """Stands for transformers' `AutoModelFor...` where the class is known.

    >>> OneClass(MyT5, T5Config).from_config(config, dtype=torch.float32)
    """

    def __init__(self, model_class: type, config_class: type):
        self.model_class = model_class
        self._model_mapping = {config_class: model_class}

    def from_config(self, config, trust_remote_code: bool = False, **options):
        """Random weights."""
        return self.model_class._from_config(config, **options)

    def from_pretrained(self, name, config=None, trust_remote_code: bool = False, **options):
        """Trained weights; with `output_loading_info`, also what transformers found of them."""
        loaded = self.model_class.from_pretrained(name, config=config, **options)
        self._fill_buffers(loaded[0] if isinstance(loaded, tuple) else loaded, config)
        return loaded

    def _fill_buffers(self, model, config) -> None:
        """Buffers that are not saved are what the class makes them: transformers 5.23 leaves them as memory was."""
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
    """Writes into a configuration which class it is of, and how its models read and write."""
    if not isinstance(config, model_class.config_class):
        raise ConfigError(
            f"{FLAG} {spec}: it takes a {model_class.config_class.__name__}, and the configuration is a "
            f"{type(config).__name__} (model type {config.model_type!r}); give another --config_name"
        )
    for name in ("pad", "bos", "eos", "decoder_start"):
        if not hasattr(config, f"{name}_token_id"):  # a class of the user's own need not have heard of them
            setattr(config, f"{name}_token_id", None)
    setattr(config, MODEL_CLASS, spec)
    if family not in (None, "auto"):
        setattr(config, MODEL_FAMILY, family)
    return config


# ---------------------------------------------------------------------------------------------------------------------
# Plain modules


# What the collators make: a module is given those of them that its forward takes.
COLLATED = ("input_ids", "attention_mask", "token_type_ids", "decoder_input_ids", "labels")


class OwnModelConfig(PreTrainedConfig):
    """Which class, made with which parameters."""

    model_type = "own_module"


class OwnModel(PreTrainedModel):
    """Holds a plain module: its weights, in its own hands, with a configuration beside them.

    Args:
      module: the module itself, made and initialised.
    """

    config_class = OwnModelConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    accepts_loss_kwargs = False

    def __init__(self, config, module: nn.Module):
        super().__init__(config)
        self.module = module
        taken = inspect.signature(module.forward).parameters
        anything = any(p.kind is p.VAR_KEYWORD for p in taken.values())
        self.left_out = () if anything else tuple(name for name in COLLATED if name not in taken)
        self.post_init()
        # Two names of one weight: it is written by the first of them alone.
        first = {}
        for name, parameter in self.named_parameters(remove_duplicate=False):
            first.setdefault(id(parameter), name)
        self.all_tied_weights_keys = {
            name: first[id(parameter)]
            for name, parameter in self.named_parameters(remove_duplicate=False)
            if first[id(parameter)] != name
        }
        self._tied_weights_keys = {f"^{re.escape(name)}$": kept for name, kept in self.all_tied_weights_keys.items()}

    def init_weights(self):
        """The module has its weights already."""

    def tie_weights(self, *args, **kwargs):
        """The module has tied them itself."""

    @property
    def takes_labels(self) -> bool:
        """Whether the module is given labels; if not, its loss is a mean over rows."""
        return "labels" not in self.left_out

    @property
    def writes(self) -> bool:
        """Whether the module can answer in text."""
        return callable(getattr(self.module, "generate", None))

    @property
    def answerer_class(self):
        """How it is evaluated."""
        return ModuleAnswerer

    def forward(self, **batch):
        """The module's own outputs.

        Where no label counts (a rank without rows in an epoch's last update has such a batch) the module's mean would
        be 0/0; it is given zeros then, and its loss weighs nothing.
        """
        labels = batch.pop(MODULE_LABELS, batch.pop("labels", None))
        if labels is not None:
            batch["labels"] = torch.where(labels.ne(IGNORED).any(), labels, torch.zeros_like(labels))
        return self.module(**{name: value for name, value in batch.items() if name not in self.left_out})


def module_methods(model: OwnModel) -> tuple[str, ...]:
    """How a module can be evaluated, the best first."""
    if model.config.model_family == "masked":
        return ("classify", "loss")
    return ("generate", "loss") if model.writes else ("loss",)


def class_name(model) -> str:
    """What manifests call a model's class; a held module's is its own.

    >>> class_name(OwnModel(config, TinyTagger(64)))
    'TinyTagger'
    """
    return type(getattr(model, "module", model) if isinstance(model, OwnModel) else model).__name__


def load_module(
    spec: str,
    *,
    tokenizer,
    arguments: dict | None = None,
    folder: str | None = None,
    from_scratch: bool = False,
    family: str | None = None,
    tasks=(),
) -> OwnModel:
    """A plain module in its holder: new, or with the weights of a folder.

    Args:
      arguments: what the class is made with: `{"d_model": 64}`.
      folder: a folder that a holder was saved in; its parameters hold where `arguments` says nothing.

    Raises:
      ConfigError: the class does not take the arguments, or the folder has no such model.
    """
    model_class, stored = class_named(spec), stored_settings(folder)
    if folder is not None and stored.get("model_type") != OwnModelConfig.model_type:
        raise ConfigError(
            f"--model_name_or_path {folder}: no module of {FLAG} was saved there; for its tokenizer: --tokenizer_name"
        )
    if family in (None, "auto"):
        family = stored.get(MODEL_FAMILY, "seq2seq")
    config = _module_config(tokenizer, family, tasks)
    config.model_class, config.model_family = spec, family
    parameters = {**stored.get("model_class_args", {}), **(arguments or {})}
    config.model_class_args = _with_filled(model_class, spec, parameters, config)
    model = OwnModel(config, _module_of(model_class, spec, config.model_class_args))
    if folder is not None and not from_scratch:
        load_weights(model, folder, "--model_name_or_path")
    return model.float()


def own_names(model) -> dict[str, torch.Tensor] | None:
    """A held module's weights by the module's own names, each once; None for a model of another kind.

    >>> sorted(own_names(OwnModel(config, TinyTagger(64))))[:1]
    ['embed.weight']
    """
    if not isinstance(model, OwnModel):
        return None
    tied = model.all_tied_weights_keys
    return {name.removeprefix("module."): value for name, value in model.state_dict().items() if name not in tied}


def hold_module(module: nn.Module, *, tokenizer, family: str | None = None, tasks=()) -> OwnModel:
    """A module that is in memory already, in its holder; whoever reads what is saved of it makes it as a class."""
    spec = f"{type(module).__module__}:{type(module).__qualname__}"
    family = "seq2seq" if family in (None, "auto") else family
    config = _module_config(tokenizer, family, tasks)
    config.model_class, config.model_family, config.model_class_args = spec, family, {}
    return OwnModel(config, module.float())


def _module_config(tokenizer, family: str, tasks) -> OwnModelConfig:
    """What the suite needs to know of a module beside its parameters."""
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id", None) for name in ("pad", "bos", "eos")}
    config = OwnModelConfig(is_encoder_decoder=family == "seq2seq", **ids)
    config.vocab_size = rows_for(len(tokenizer))
    config.decoder_start_token_id = config.pad_token_id if family == "seq2seq" else None
    if family == "masked" and tasks:
        words = head_for(tasks).words
        config.problem_type = "regression" if words is None else "single_label_classification"
        config.id2label = dict(enumerate(words or ("value",)))
        config.label2id = {word: i for i, word in config.id2label.items()}
    return config


def _with_filled(model_class, spec, parameters: dict, config) -> dict:
    """The parameters, with those that the class has and nobody gave: the vocabulary and its special tokens."""
    known = inspect.signature(model_class).parameters
    for name in parameters:
        if name not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            raise ConfigError(f"--model_class_args: {spec} has no parameter {name!r}; {suggestion(name, known)}")
    filled = {name: getattr(config, name, None) for name in FILLED if name in known and name not in parameters}
    return {**parameters, **{name: value for name, value in filled.items() if value is not None}}


def _module_of(model_class, spec: str, parameters: dict) -> nn.Module:
    missing = [
        name
        for name, p in inspect.signature(model_class).parameters.items()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and name not in parameters
    ]
    if missing:
        raise ConfigError(f"{FLAG} {spec}: give --model_class_args {missing[0]}=...; it cannot be made without")
    return model_class(**parameters)


# Parameters that a class may have and need not be given.
FILLED = ("vocab_size", "pad_token_id", "eos_token_id", "decoder_start_token_id", "num_labels")


# ---------------------------------------------------------------------------------------------------------------------
# Attention


SETTING = "custom_attention"
SETTING_FIELDS = ("class", "modules", "parameters")
OWN_PACKAGE = "t5suite."


@contextlib.contextmanager
def custom_attention(auto_class, config, trust_remote_code: bool = False):
    """Within, models of the configuration are made with the attention that it names; with none, nothing happens.

    Done in the class because a checkpoint's weights are put into place while the model is made.

    Raises:
      ConfigError: the setting is wrong, names no module, or a class outside the suite without `trust_remote_code`.
    """
    settings = getattr(config, SETTING, None)
    if settings is None:
        yield
        return
    attention_class = _attention_class(_checked_setting(settings), trust_remote_code)
    model_class = class_in(auto_class, config)
    plain_init = model_class.__init__

    def init(self, config, *args, **kwargs):
        plain_init(self, config, *args, **kwargs)
        if type(self) is model_class:
            put_attention(self, attention_class, settings)

    model_class.__init__ = init
    try:
        yield
    finally:
        model_class.__init__ = plain_init


def put_attention(model, attention_class, settings: dict) -> list[str]:
    """Replaces the modules that `settings["modules"]` names; returns their names.

    Raises:
      ConfigError: it names none, or the class does not take the parameters.
    """
    pattern = settings.get("modules") or ATTENTION_MODULES.get(model.config.model_type)
    if pattern is None:
        raise ConfigError(
            f"{SETTING}: say which modules of a {model.config.model_type!r} it replaces: 'modules': REGEX"
        )
    chosen = [name for name, _ in model.named_modules() if re.fullmatch(pattern, name)]
    if not chosen:
        ends = sorted({re.sub(r"\d+", "0", name) for name, _ in model.named_modules() if "ttention" in name})
        raise ConfigError(f"{SETTING}: no module is named {pattern!r}; there are {', '.join(ends) or 'none at all'}")
    for name in chosen:
        parent, _, child = name.rpartition(".")
        parent = model.get_submodule(parent)
        setattr(parent, child, _replacement(attention_class, getattr(parent, child), settings))
    return chosen


def _replacement(attention_class, attention, settings):
    parameters = settings.get("parameters") or {}
    known = inspect.signature(attention_class).parameters
    for name in parameters:
        if name not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            names = list(known)[1:]
            raise ConfigError(f"{SETTING}: {settings['class']} has no parameter {name!r}; {suggestion(name, names)}")
    return attention_class(attention, **parameters)


def _checked_setting(settings) -> dict:
    if not isinstance(settings, dict) or not isinstance(settings.get("class"), str):
        raise ConfigError(f"{SETTING} must be a table with 'class': 'module:Class', not {settings!r:.200}")
    for key in settings:
        if key not in SETTING_FIELDS:
            raise ConfigError(f"{SETTING}: unknown key {key!r}; {suggestion(key, SETTING_FIELDS)}")
    try:
        re.compile(settings.get("modules") or "")
    except (re.error, TypeError) as error:
        raise ConfigError(f"{SETTING}: modules {settings['modules']!r} is no regular expression: {error}") from None
    return settings


def _attention_class(settings, trusted: bool):
    spec = settings["class"]
    if not spec.startswith(OWN_PACKAGE) and not trusted:
        raise ConfigError(
            f"{SETTING}: {spec} is not the suite's own, and a configuration that names code runs it; "
            "if you trust it: --trust_remote_code"
        )
    found = load_object(spec, f"{SETTING}:")
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"{SETTING}: {spec} is no torch.nn.Module")
    return found


ATTENTION_MODULES = {
    "t5": r"encoder\.block\.\d+\.layer\.0\.SelfAttention",
    "mt5": r"encoder\.block\.\d+\.layer\.0\.SelfAttention",
    "umt5": r"encoder\.block\.\d+\.layer\.0\.SelfAttention",
    "bert": r"(bert\.)?encoder\.layer\.\d+\.attention\.self",
    "gpt2": r"(transformer\.)?h\.\d+\.attn",
}
