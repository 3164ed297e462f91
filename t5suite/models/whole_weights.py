"""Weights of a file or folder into a model: all of them, or an error that names the file and the tensors.

    >>> load_weights(model, "runs/rte/checkpoint-400")          # resume, best checkpoint, rollback, one task's best

A saved folder has transformers' published tensor names, so that plain `from_pretrained` loads it. For 66 of the 255
text models that transformers 5.23 has, these are not the names of the module: `save_pretrained` renames, splits or
merges tensors (`core_model_loading.revert_weight_conversion`), and only `from_pretrained` undoes it. The stock
`Trainer` loads such a checkpoint by `load_state_dict(..., strict=False)`, which leaves the weights as they were
(docs/footguns.md). Here the same rules are applied to a model in memory, and nothing is left out.
"""

import copy
import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor
from transformers import AutoModel, AutoModelForPreTraining
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model, revert_weight_conversion
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils import cached_file
from transformers.utils import logging as transformers_logging

from t5suite.base.errors import ConfigError, DataError
from t5suite.models.adapters import is_adapted, restore_adapter
from t5suite.models.families import class_in
from t5suite.models.weight_files import read_shapes, read_weights

logger = logging.getLogger(__name__)

SHOWN = 5


@dataclass
class Mismatch:
    """Tensors that a file and a model do not have in common: names, and `name (3x4, not 4x4)`.

    >>> bool(Mismatch([], [], []))
    False
    """

    missing: list[str]
    unknown: list[str]
    reshaped: list[str]

    def __bool__(self) -> bool:
        return bool(self.missing or self.unknown or self.reshaped)

    def __str__(self) -> str:
        return "; ".join(f"{what} ({len(names)}): {listed(names)}" for what, names in vars(self).items() if names)


def load_weights(model, path, flag: str = "--resume") -> None:
    """Copies every weight of a file or folder into a model in memory, also one that FSDP2 has sharded (on every rank).

    The parameters stay the same objects: an optimizer that holds them goes on. A model with an adapter gets that of the
    folder.

    Args:
      flag: what the user gave the path by, for errors.

    Raises:
      DataError: a tensor is missing, unknown or of another shape, or tied tensors differ.
    """
    if is_adapted(model):
        restore_adapter(model, path)
        return
    tensors, mismatch = fitted(model, read_weights(path, flag))
    if mismatch:
        raise DataError(f"{flag} {path}: its weights are not this model's: {mismatch}")
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        set_model_state_dict(model, tensors, options=StateDictOptions(full_state_dict=True, strict=False))
    else:
        model.load_state_dict(tensors, strict=False)


def fitted(model, stored: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], Mismatch]:
    """Stored tensors under the names, in the form and in the precision of the model's own, and what does not fit.

    Known ties may be stored once; what the class lists in `_keys_to_ignore_on_load_*` may be missing or left over.
    """
    empty = skeleton(model)
    own = empty.state_dict(keep_vars=True)
    # A held module of the user's own may be stored by the module's names.
    stored = {f"module.{n}" if n not in own and f"module.{n}" in own else n: value for n, value in stored.items()}
    info = _convert(empty, stored, "meta" if any(value.is_meta for value in stored.values()) else "cpu")
    loaded = empty.state_dict()
    reshaped = {name: f"{name} ({_size(found)}, not {_size(shape)})" for name, found, shape in info.mismatched_keys}
    tensors = {name: loaded[name] for name in own if name not in info.missing_keys and name not in reshaped}
    groups = {}
    for name, tensor in own.items():
        groups.setdefault(id(tensor), []).append(name)
    for names in groups.values():
        present = [name for name in names if name in tensors]
        if present:
            info.missing_keys.difference_update(names)
        for name in present[1:]:
            if not (tensors[name].is_meta or torch.equal(tensors[name], tensors[present[0]])):
                reshaped[name] = f"{name} (tied to {present[0]}, but stored with other values)"
    empty._adjust_missing_and_unexpected_keys(info)
    info.missing_keys -= reshaped.keys()
    wrong = [*reshaped.values(), *(f"{name} (cannot be converted)" for name in info.conversion_errors)]
    return tensors, Mismatch(sorted(info.missing_keys), sorted(info.unexpected_keys), sorted(wrong))


def mismatch_of(found: dict) -> Mismatch:
    """What `from_pretrained(..., output_loading_info=True)` reports of a model's tensors."""
    shapes = [f"{name} ({_size(stored)}, not {_size(own)})" for name, stored, own in found["mismatched_keys"]]
    return Mismatch(sorted(found["missing_keys"]), sorted(found["unexpected_keys"]), sorted(shapes))


def check_loaded(model, mismatch: Mismatch, place: str, new_head: bool, allow_missing: bool = False) -> None:
    """A model that was loaded must be whole.

    A new task head may be missing. The heads and poolers that the model type was pre-trained with may be left over
    (BERT's next sentence), and are named in the log.

    Raises:
      DataError: it is not whole, and `allow_missing` is not set.
    """
    if new_head:
        prefix = f"{model.base_model_prefix}."
        mismatch = Mismatch(
            *[[n for n in names if n.startswith(prefix) and ".pooler." not in n] for names in vars(mismatch).values()]
        )
    if mismatch.unknown:
        known = _names_of_pre_trained_heads(model)
        left_out = [name for name in mismatch.unknown if name in known]
        mismatch.unknown = [name for name in mismatch.unknown if name not in known]
        if left_out:
            logger.warning("%s: other heads of its pre-training are left out: %s", place, listed(left_out))
    if mismatch and allow_missing and not mismatch.reshaped:
        logger.warning("--allow_missing_keys: %s is loaded incompletely: %s", place, mismatch)
    elif mismatch:
        cure = "take a whole copy" if mismatch.reshaped else "take a whole copy, or add --allow_missing_keys"
        raise DataError(f"--model_name_or_path {place} is not a whole {type(model).__name__}: {mismatch}; {cure}")


def mismatch_with_files(model, name: str, revision: str | None = None) -> Mismatch:
    """As `mismatch_of`, from the files' headers: under ZeRO-3, transformers 5.23 looks for no unknown tensors."""
    folder = Path(name) if Path(name).is_dir() else Path(cached_file(name, "config.json", revision=revision)).parent
    return fitted(model, read_shapes(folder, "--model_name_or_path"))[1]


def check_saves_whole(model) -> None:
    """Refuses a model whose saved tensors would not load: said before training, not after it.

    Raises:
      ConfigError: transformers' conversion on saving and its conversion on loading do not fit together.
    """
    empty = skeleton(model)
    if getattr(model, "is_quantized", False) or not get_model_conversion_mapping(empty, add_legacy=False):
        return
    try:
        published = revert_weight_conversion(empty, empty.state_dict())
        _, mismatch = fitted(model, published)
    except (ValueError, KeyError, AttributeError, TypeError, RuntimeError, NotImplementedError) as error:
        mismatch = f"{type(error).__name__}: {error}"
    if mismatch:
        raise ConfigError(
            f"models of type {model.config.model_type!r} cannot be saved and loaded whole by transformers: {mismatch}"
        )


def skeleton(model: nn.Module, copies: dict | None = None) -> nn.Module:
    """The modules of a model with meta tensors for weights, ties kept: names and shapes without the memory.

    >>> skeleton(model).lm_head.weight.device
    device(type='meta')
    """
    copies = {} if copies is None else copies
    if id(model) in copies:
        return copies[id(model)]
    kind = type(model)
    if kind.__name__.startswith("FSDP"):  # FSDP2 puts itself before the model's class, by which conversions are found
        kind = next(c for c in kind.__mro__ if not c.__name__.startswith("FSDP"))
    new = copies[id(model)] = kind.__new__(kind)
    new.__dict__.update({k: type(v)() if k.endswith("_hooks") else v for k, v in vars(model).items()})
    for place in ("_parameters", "_buffers"):
        new.__dict__[place] = {name: _without_values(value, copies) for name, value in vars(model)[place].items()}
    new.__dict__["_modules"] = {n: None if m is None else skeleton(m, copies) for n, m in model._modules.items()}
    return new


def listed(names, separator: str = ", ", most: int = SHOWN) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def _without_values(tensor, copies: dict):
    if tensor is None:
        return None
    if id(tensor) not in copies:
        empty = torch.empty(getattr(tensor, "ds_shape", tensor.shape), dtype=tensor.dtype, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        copies[id(tensor)] = nn.Parameter(empty, requires_grad=False) if is_parameter else empty
    return copies[id(tensor)]


def _convert(empty, stored: dict, device: str):
    """transformers 5.23's own conversion on loading, into a skeleton; tests/test_whole_weights.py checks it."""
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    settings = LoadStateDictConfig(device_map={"": device}, weight_mapping=get_model_conversion_mapping(empty))
    try:
        return convert_and_load_state_dict_in_model(empty, stored, settings)[0]
    finally:
        if bars:
            transformers_logging.enable_progress_bar()


def _names_of_pre_trained_heads(model) -> set[str]:
    names = set()
    for auto_class in (AutoModel, AutoModelForPreTraining):
        if type(model.config) in auto_class._model_mapping:
            with torch.device("meta"):
                sibling = class_in(auto_class, model.config)(copy.deepcopy(model.config))
            names |= sibling.state_dict().keys()
    return names | {f"{model.base_model_prefix}.{name}" for name in names}


def _size(shape) -> str:
    return "x".join(map(str, shape)) or "a number"
