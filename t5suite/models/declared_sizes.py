"""Sizes that a configuration declares, compared with its stored weights before a model of these sizes is made.

    >>> check_layers({"num_layers": 10_000_000}, {"shared.weight": shape}, "models/t5")
    DataError: --model_name_or_path models/t5: config.json: num_layers is 10000000, but its weights are 26 tensors, ...

transformers 5.24 makes every layer that the configuration declares, and memory for every tensor, before it compares
them with the files: ten million layers take hours and all memory, and a vocabulary of 10^9 rows 256 GB.
"""

import copy
import re
from collections.abc import Mapping

import torch

from t5suite.base.errors import DataError
from t5suite.base.model_files import flat_values
from t5suite.models.load_errors import short_message
from t5suite.models.loaded_checks import check_loaded
from t5suite.models.own_models import OneClass
from t5suite.models.t5.output_layer import random_model
from t5suite.models.weights import Mismatch, fit_to_model

NUMBER_OF_LAYERS = re.compile(r"(^|_)layers?$")
# Fewer than these are made in about a second, and are then compared tensor by tensor.
FEW_LAYERS = 200
# A model with up to this many times the stored elements, and these, is made as it is.
SIZE_RATIO = 2
FEW_ELEMENTS = 2**24


def check_sizes(auto_class, config, stored: Mapping[str, torch.Tensor], name: str, new_head: bool = False) -> None:
    """Refuses a configuration of a far larger model than the stored weights are of.

    Args:
      stored: meta tensors of a folder's weights, as `weight_files.read_shapes` gives them.
      name: the folder, for messages.

    Raises:
      DataError: it declares more layers than there are tensors, or tensors of other shapes.
    """
    settings = config.to_dict()
    check_layers(settings, stored, name)
    if not _may_be_larger(settings, stored):
        return
    if isinstance(auto_class, OneClass) or getattr(config, "quantization_config", None) is not None:
        return
    try:
        with torch.device("meta"):
            model = random_model(auto_class, copy.deepcopy(config))
    except (RuntimeError, TypeError, OverflowError) as error:
        raise DataError(
            f"--model_name_or_path {name}: config.json: no model can be made of its sizes ({short_message(error)})"
        ) from None
    declared_elements = sum(parameter.numel() for parameter in model.parameters())
    stored_elements = sum(tensor.numel() for tensor in stored.values())
    if declared_elements <= SIZE_RATIO * stored_elements + FEW_ELEMENTS:
        return
    _, mismatch = fit_to_model(model, dict(stored))
    check_loaded(model, Mismatch([], [], mismatch.reshaped), name, new_head)


def _may_be_larger(settings: Mapping, stored: Mapping[str, torch.Tensor]) -> bool:
    """Whether a setting is larger than every side of the stored tensors; else none can be much larger than they are."""
    longest = max((size for tensor in stored.values() for size in tensor.shape), default=0)
    return any(_is_whole_number(value) and value > longest for _, value in flat_values(settings))


def _is_whole_number(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_layers(settings: Mapping, stored: Mapping[str, torch.Tensor], name: str) -> None:
    """Refuses a number of layers above the number of tensors, of which each layer has at least one.

    Raises:
      DataError: names the setting.
    """
    for key, value in flat_values(settings):
        is_number = isinstance(value, int) and NUMBER_OF_LAYERS.search(key.rpartition(".")[2])
        if is_number and value > max(FEW_LAYERS, len(stored)):
            raise DataError(
                f"--model_name_or_path {name}: config.json: {key} is {value}, but its weights are {len(stored)} "
                "tensors, fewer than one a layer; use the config.json that belongs to them"
            )
