"""Stored weights into a model in memory: all of them, or an error that names the file and the tensors.

    >>> load_weights(model, "runs/rte/checkpoint-400")          # resume, best checkpoint, one task's best

A saved folder has transformers' published tensor names, so that plain `from_pretrained` loads it. For 66 of the 255
text models of transformers 5.23 these are not the module's names: `save_pretrained` renames, splits or merges tensors,
and only `from_pretrained` undoes it; the stock `Trainer` leaves such weights unchanged (docs/reliability.md). Here the
same rules are applied to a model in memory, and no tensor is skipped.
"""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.tensor import DTensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model, revert_weight_conversion
from transformers.modeling_utils import LoadStateDictConfig
from transformers.utils import logging as transformers_logging

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.libraries import require_proved
from t5suite.base.lookup import listed
from t5suite.models.adapter_files import restore_adapter
from t5suite.models.adapters import is_adapted
from t5suite.models.quantization import is_quantized
from t5suite.models.weight_files import read_weights
from t5suite.models.weight_values import integers_for_floats, non_finite, refuse_non_finite

TIED_CONFLICT = ", but stored with other values)"


@dataclass(frozen=True)
class Mismatch:
    """Names of tensors that a file and a model do not have in common; false if there are none.

    Attributes:
      reshaped: with both shapes, `name (3x4, not 4x4)`; or tied tensors that are stored with two values.
      integers: no floating-point numbers, `name (int8)`.
    """

    missing: list[str]
    unknown: list[str]
    reshaped: list[str]
    integers: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any(vars(self).values())

    @property
    def has_tied_conflict(self) -> bool:
        """Whether tensors that the model ties are stored with different values."""
        return any(name.endswith(TIED_CONFLICT) for name in self.reshaped)

    def __str__(self) -> str:
        kinds = vars(self).items()
        return "; ".join(f"{kind} ({len(names)}): {listed(names)}" for kind, names in kinds if names)


def load_weights(model, path, flag: str = "--resume") -> None:
    """Copies every weight of a file or folder into a model in memory, also one that FSDP2 has sharded (on every rank).

    The parameters stay the same objects: an optimizer that holds them stays valid. A model with an adapter gets the
    folder's adapter.

    Args:
      flag: the flag that the user gave the path with, for errors.

    Raises:
      DataError: a tensor is missing, unknown or of another shape, or tied tensors differ.
    """
    if is_adapted(model):
        restore_adapter(model, path)
        return
    tensors, mismatch = fit_to_model(model, read_weights(path, flag))
    if mismatch:
        raise DataError(f"{flag} {path}: its weights are not this model's: {mismatch}")
    refuse_non_finite(non_finite(tensors.items()), f"{flag} {path}")
    if any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        set_model_state_dict(model, tensors, options=StateDictOptions(full_state_dict=True, strict=False))
    else:
        model.load_state_dict(tensors, strict=False)


def fit_to_model(model, stored: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], Mismatch]:
    """Stored tensors with the names, the layout and the precision of the model's own, and what does not fit.

    Known ties may be stored once; what the class lists in `_keys_to_ignore_on_load_*` may be missing or unused.

    Args:
      stored: tensors by their names in the file; used up. Meta tensors suffice for the comparison.
    """
    require_proved("model_loading")
    empty_model = skeleton(model)
    tied_groups = _tied_groups(empty_model)  # before the conversion, which replaces tensors
    stored_types = dict(stored)
    report = _convert_into(empty_model, stored)
    reshaped = {name: _reshaped(name, stored_shape, shape) for name, stored_shape, shape in report.mismatched_keys}
    absent = report.missing_keys | reshaped.keys()
    tensors = {name: tensor for name, tensor in empty_model.state_dict().items() if name not in absent}
    for tied_names in tied_groups:
        present = [name for name in tied_names if name in tensors]
        if present:
            report.missing_keys.difference_update(tied_names)
        for name in present[1:]:
            if not _are_equal(tensors[name], tensors[present[0]]):
                reshaped[name] = f"{name} (tied to {present[0]}{TIED_CONFLICT}"
    empty_model._adjust_missing_and_unexpected_keys(report)
    missing = report.missing_keys - reshaped.keys()
    unconverted = [f"{name} (cannot be converted)" for name in report.conversion_errors]
    mismatch = Mismatch(
        missing=sorted(missing),
        unknown=sorted(report.unexpected_keys),
        reshaped=sorted([*reshaped.values(), *unconverted]),
        integers=integers_for_floats(model, stored_types, report.unexpected_keys),
    )
    return tensors, mismatch


def _convert_into(empty_model: nn.Module, stored: dict[str, torch.Tensor]):
    """Loads stored tensors by transformers' rules of conversion into a model on the meta device; returns its report."""
    device = "meta" if any(tensor.is_meta for tensor in stored.values()) else "cpu"
    rules = get_model_conversion_mapping(empty_model)
    settings = LoadStateDictConfig(device_map={"": device}, weight_mapping=rules)
    shows_progress = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:  # transformers 5.23's own conversion on loading; tests/test_whole_weights.py checks it
        return convert_and_load_state_dict_in_model(empty_model, stored, settings)[0]
    finally:
        if shows_progress:
            transformers_logging.enable_progress_bar()


def _tied_groups(model: nn.Module) -> list[list[str]]:
    """The names of each tensor of a model: several, where it is tied."""
    groups = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        groups.setdefault(id(tensor), []).append(name)
    return list(groups.values())


def _are_equal(tensor: torch.Tensor, other_tensor: torch.Tensor) -> bool:
    """Whether two tensors have the same values; true for meta tensors, which have none."""
    return tensor.is_meta or torch.equal(tensor, other_tensor)


def _reshaped(name: str, stored_shape, shape) -> str:
    """`name (3x4, not 4x4)`."""
    return f"{name} ({_size(stored_shape)}, not {_size(shape)})"


def _size(shape) -> str:
    return "x".join(map(str, shape)) or "a number"


def mismatch_in_report(report: dict) -> Mismatch:
    """What `from_pretrained(..., output_loading_info=True)` reports about a model's tensors."""
    reshaped = [_reshaped(name, stored_shape, shape) for name, stored_shape, shape in report["mismatched_keys"]]
    return Mismatch(sorted(report["missing_keys"]), sorted(report["unexpected_keys"]), sorted(reshaped))


def check_saves_whole(model) -> None:
    """Refuses a model whose saved tensors would not load, before training instead of after it.

    Raises:
      ConfigError: transformers' conversion on saving and its conversion on loading do not match.
    """
    empty_model = skeleton(model)
    if is_quantized(model) or not get_model_conversion_mapping(empty_model, add_legacy=False):
        return
    try:
        published = revert_weight_conversion(empty_model, empty_model.state_dict())
        _, mismatch = fit_to_model(model, published)
    except (ValueError, KeyError, AttributeError, TypeError, RuntimeError, NotImplementedError) as error:
        mismatch = f"{type(error).__name__}: {error}"
    if mismatch:
        raise ConfigError(
            f"models of type {model.config.model_type!r} cannot be saved and loaded whole by transformers: {mismatch}"
        )


def skeleton(model: nn.Module) -> nn.Module:
    """The modules of a model with meta tensors for weights, ties kept: names and shapes without the memory.

    >>> skeleton(model).lm_head.weight.device
    device(type='meta')
    """
    return _skeleton_of(model, {})


def _skeleton_of(module: nn.Module, copies: dict) -> nn.Module:
    """The skeleton of one module and of those in it.

    Args:
      copies: the modules and tensors that are copied already, by the id of the original.
    """
    if id(module) in copies:
        return copies[id(module)]
    module_class = _class_without_sharding(module)
    skeleton_module = module_class.__new__(module_class)
    copies[id(module)] = skeleton_module
    attributes = vars(module)
    for name, attribute in attributes.items():
        skeleton_module.__dict__[name] = type(attribute)() if name.endswith("_hooks") else attribute
    for table in ("_parameters", "_buffers"):
        skeleton_module.__dict__[table] = {
            name: _meta_tensor(tensor, copies) for name, tensor in attributes[table].items()
        }
    skeleton_module.__dict__["_modules"] = {
        name: None if child is None else _skeleton_of(child, copies) for name, child in module._modules.items()
    }
    return skeleton_module


def _class_without_sharding(module: nn.Module) -> type:
    """The class of a module. FSDP2 makes a subclass of it, by whose name no conversions are found."""
    return next(kind for kind in type(module).__mro__ if not kind.__name__.startswith("FSDP"))


def _meta_tensor(tensor: torch.Tensor | None, copies: dict) -> torch.Tensor | None:
    """A parameter or buffer without memory, the same one for the same original."""
    if tensor is None:
        return None
    if id(tensor) not in copies:
        empty = torch.empty(getattr(tensor, "ds_shape", tensor.shape), dtype=tensor.dtype, device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        copies[id(tensor)] = nn.Parameter(empty, requires_grad=False) if is_parameter else empty
    return copies[id(tensor)]
