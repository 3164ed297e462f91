"""Attention of one's own: a configuration names a class that takes the place of a model's attention modules.

    {"model_type": "t5", "d_model": 512, ...,                                   # config.json
     "custom_attention": {"class": "t5suite.models.block_sparse:BlockSparseT5Attention",
                          "modules": "encoder\\.block\\.\\d+\\.layer\\.0\\.SelfAttention",
                          "parameters": {"block_size": 64, "num_window_blocks": 1}}}

`Class(attention, **parameters)` is given the module that it replaces and is called as that was. One that keeps the
names of its parts (`q`, `k`, `v`, `o`) takes plain checkpoints. `modules` is a regular expression over the model's
module names; without it, the encoder's self-attention where MODULES knows the type. The setting is saved with the
model, which this suite then loads as it was; transformers alone would load the plain model.
"""

import contextlib
import inspect
import re

from torch import nn

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import load_object, suggestion
from t5suite.models.families import class_in

SETTING = "custom_attention"
FIELDS = ("class", "modules", "parameters")
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
    attention_class = _class_of(_checked(settings), trust_remote_code)
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
    pattern = settings.get("modules") or MODULES.get(model.config.model_type)
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
        setattr(parent, child, _made(attention_class, getattr(parent, child), settings))
    return chosen


def _made(attention_class, attention, settings):
    parameters = settings.get("parameters") or {}
    known = inspect.signature(attention_class).parameters
    for name in parameters:
        if name not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            names = list(known)[1:]
            raise ConfigError(f"{SETTING}: {settings['class']} has no parameter {name!r}; {suggestion(name, names)}")
    return attention_class(attention, **parameters)


def _checked(settings) -> dict:
    if not isinstance(settings, dict) or not isinstance(settings.get("class"), str):
        raise ConfigError(f"{SETTING} must be a table with 'class': 'module:Class', not {settings!r:.200}")
    for key in settings:
        if key not in FIELDS:
            raise ConfigError(f"{SETTING}: unknown key {key!r}; {suggestion(key, FIELDS)}")
    try:
        re.compile(settings.get("modules") or "")
    except (re.error, TypeError) as error:
        raise ConfigError(f"{SETTING}: modules {settings['modules']!r} is no regular expression: {error}") from None
    return settings


def _class_of(settings, trusted: bool):
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


MODULES = {
    "t5": r"encoder\.block\.\d+\.layer\.0\.SelfAttention",
    "mt5": r"encoder\.block\.\d+\.layer\.0\.SelfAttention",
    "umt5": r"encoder\.block\.\d+\.layer\.0\.SelfAttention",
    "bert": r"(bert\.)?encoder\.layer\.\d+\.attention\.self",
    "gpt2": r"(transformer\.)?h\.\d+\.attn",
}
