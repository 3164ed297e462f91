"""Attention of the user's own, named by a configuration; the worked example is block-sparse attention for T5.

    {"model_type": "t5", "d_model": 512, ...,                                   # config.json
     "custom_attention": {"class": "t5suite.models.block_sparse:BlockSparseT5Attention",
                          "modules": "encoder\\.block\\.\\d+\\.layer\\.0\\.SelfAttention",
                          "parameters": {"block_size": 64, "num_window_blocks": 1}}}

`Class(attention, **parameters)` is given the module that it replaces and is called as that was. One that keeps the
names of its parts (`q`, `k`, `v`, `o`) takes plain checkpoints. `modules` is a regular expression over the model's
module names; without it, `ATTENTION_MODULES` says which. The setting is saved with the model, which this suite then
loads as it was; transformers alone would load the plain model.

    >>> block_pattern(6, block_size=2, num_window_blocks=0, num_global_blocks=1).int()
    tensor([[1, 1, 1, 1, 1, 1],
            [1, 1, 1, 1, 1, 1],
            [1, 1, 1, 1, 0, 0],
            [1, 1, 1, 1, 0, 0],
            [1, 1, 0, 0, 1, 1],
            [1, 1, 0, 0, 1, 1]])

The pattern is BigBird's without its random blocks (arXiv:2007.14062, section 2), as a mask: scores are computed for all
pairs, so that it saves no time or memory. Shapes: S source tokens.
"""

import contextlib
import inspect
import re

import torch
from torch import nn
from transformers.models.t5.modeling_t5 import T5Attention

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import load_object, suggestion
from t5suite.models.families import class_in

SETTING = "custom_attention"
SETTING_FIELDS = ("class", "modules", "parameters")
OWN_PACKAGE = "t5suite."
ENCODER_OF_T5 = r"encoder\.block\.\d+\.layer\.0\.SelfAttention"
ATTENTION_MODULES = {
    **dict.fromkeys(("t5", "mt5", "umt5"), ENCODER_OF_T5),
    "bert": r"(bert\.)?encoder\.layer\.\d+\.attention\.self",
    "gpt2": r"(transformer\.)?h\.\d+\.attn",
}


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
    attention_class = _attention_class(settings, trust_remote_code)
    model_class = class_in(auto_class, config)
    plain_init = model_class.__init__

    def init(self, config, *args, **kwargs):
        plain_init(self, config, *args, **kwargs)
        if type(self) is model_class:
            _put_attention(self, attention_class, settings)

    model_class.__init__ = init
    try:
        yield
    finally:
        model_class.__init__ = plain_init


def _attention_class(settings, trusted: bool):
    if not isinstance(settings, dict) or not isinstance(settings.get("class"), str):
        raise ConfigError(f"{SETTING} must be a table with 'class': 'module:Class', not {settings!r:.200}")
    for key in settings:
        if key not in SETTING_FIELDS:
            raise ConfigError(f"{SETTING}: unknown key {key!r}; {suggestion(key, SETTING_FIELDS)}")
    try:
        re.compile(settings.get("modules") or "")
    except (re.error, TypeError) as error:
        raise ConfigError(f"{SETTING}: modules {settings['modules']!r} is not a regular expression: {error}") from None
    spec = settings["class"]
    if not spec.startswith(OWN_PACKAGE) and not trusted:
        raise ConfigError(
            f"{SETTING}: {spec} is not the suite's own, and a configuration that names code runs it; "
            "if you trust it: --trust_remote_code"
        )
    found = load_object(spec, f"{SETTING}:")
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"{SETTING}: {spec} is not a torch.nn.Module")
    parameters = inspect.signature(found).parameters
    for name in settings.get("parameters") or {}:
        if name not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            raise ConfigError(f"{SETTING}: {spec} has no parameter {name!r}; {suggestion(name, list(parameters)[1:])}")
    return found


def _put_attention(model, attention_class, settings: dict) -> None:
    """Replaces the modules that `settings["modules"]` names."""
    pattern = settings.get("modules") or ATTENTION_MODULES.get(model.config.model_type)
    if pattern is None:
        raise ConfigError(
            f"{SETTING}: say which modules of a {model.config.model_type!r} it replaces: 'modules': REGEX"
        )
    chosen = [name for name, _ in model.named_modules() if re.fullmatch(pattern, name)]
    if not chosen:
        ends = sorted({re.sub(r"\d+", "0", name) for name, _ in model.named_modules() if "ttention" in name})
        raise ConfigError(f"{SETTING}: no module is named {pattern!r}; there are {', '.join(ends) or 'none'}")
    for name in chosen:
        model.set_submodule(name, attention_class(model.get_submodule(name), **(settings.get("parameters") or {})))


class BlockSparseT5Attention(T5Attention):
    """T5's self-attention under a `block_pattern`; weights and their names are those of the module it replaces.

    Args:
      attention: a `T5Attention` of an encoder.
      block_size: tokens of a block.
      num_window_blocks: blocks seen on either side of a token's own.
      num_global_blocks: blocks at the beginning that see all and are seen by all.
    """

    def __init__(self, attention, block_size: int = 64, num_window_blocks: int = 1, num_global_blocks: int = 1):
        if not isinstance(attention, T5Attention) or attention.is_decoder:
            raise ConfigError("BlockSparseT5Attention replaces the self-attention of a T5's encoder alone")
        pattern = dict(block_size=block_size, num_window_blocks=num_window_blocks, num_global_blocks=num_global_blocks)
        for name, value in pattern.items():
            least = 1 if name == "block_size" else 0
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"BlockSparseT5Attention: {name} {value!r} must be an integer of at least {least}")
        nn.Module.__init__(self)
        self.__dict__.update(attention.__dict__, pattern=pattern)

    def forward(self, hidden_states, mask=None, key_value_states=None, **kwargs):
        """As `T5Attention.forward`, fewer pairs seeing each other."""
        assert key_value_states is None, "this is self-attention"
        seen_SS = block_pattern(hidden_states.shape[1], **self.pattern, device=hidden_states.device)
        return super().forward(hidden_states, mask=_both(mask, seen_SS, self.config, hidden_states.dtype), **kwargs)


def block_pattern(length: int, block_size: int, num_window_blocks: int, num_global_blocks: int, device=None):
    """Who sees whom, bool [length, length]."""
    block_S = torch.arange(length, device=device) // block_size
    near_SS = (block_S[:, None] - block_S[None, :]).abs() <= num_window_blocks
    global_S = block_S < num_global_blocks
    return near_SS | global_S[:, None] | global_S[None, :]


def _both(mask, seen_SS, config, dtype):
    """The mask and the pattern at once, in the mask's form (booleans, or numbers to be added).

    A token always sees itself: padding far from all real tokens would see nobody, and an empty softmax is NaN.
    """
    itself_SS = torch.eye(len(seen_SS), dtype=torch.bool, device=seen_SS.device)
    if mask is not None and mask.dtype != torch.bool:
        lowest = torch.finfo(mask.dtype).min
        return mask.masked_fill(~seen_SS, lowest).masked_fill(itself_SS, 0.0)
    both = (seen_SS if mask is None else mask & seen_SS) | itself_SS
    both = both if both.dim() == 4 else both[None, None]
    if config._attn_implementation != "eager":
        return both
    return torch.zeros(both.shape, dtype=dtype, device=both.device).masked_fill(~both, torch.finfo(dtype).min)
