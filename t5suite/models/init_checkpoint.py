"""Bare weights of any origin as a model's first ones: `--init_checkpoint FILE|FOLDER`.

    >>> load_init_checkpoint(model, "checkpoint-pt-65536")                    # a run of nanoT5
    {'path': 'checkpoint-pt-65536', 'loaded': 256, 'missing': [], 'unexpected': []}

nanoT5's compact T5 has Hugging Face's names with the shared embedding spelled out three times; its output layer is
always separate, so the model needs `tie_word_embeddings=False` (a v1.1 preset). A vocabulary with up to 128 rows
more or less differs in padding (32100 pieces, 32128 rows): rows that both have are copied, the model's others keep
their values.
"""

import logging
import re

import torch

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import listed
from t5suite.models.t5.output_layer import gathered
from t5suite.models.vocabulary import ROW_MULTIPLE
from t5suite.models.weight_files import INIT_CHECKPOINT, read_weights
from t5suite.models.weight_values import non_finite, refuse_integers, refuse_non_finite
from t5suite.models.weights import Mismatch, fit_to_model

logger = logging.getLogger(__name__)

# What wrappers put before every name: DistributedDataParallel, torch.compile, Lightning, accelerate's and our own.
PREFIXES = ("module.", "_orig_mod.", "model.", "_forward_module.")


def load_init_checkpoint(model, path, allow_missing: bool = False) -> dict:
    """Copies weights into a model in the model's precision, and returns what manifests record of them.

    Args:
      allow_missing: continue without weights that one side lacks; a warning names them.

    Raises:
      ConfigError: an unreadable file; weights that one side lacks; other shapes; two values for tied weights;
        no weight in common.
    """
    model_weights = model.state_dict(keep_vars=True)
    stored = _without_ignored(strip_prefixes(read_weights(path), model), model)
    shared_rows = _fit_vocabulary(model, stored, path)
    tensors, mismatch = fit_to_model(model, stored)
    if not tensors:
        raise ConfigError(
            f"{INIT_CHECKPOINT} {path}: none of its {len(stored)} weights is the model's: it has "
            f"{listed(sorted(stored))}, the model {listed(sorted(model_weights))}"
        )
    refuse_integers(mismatch.integers, f"{INIT_CHECKPOINT} {path}")
    if mismatch and (mismatch.reshaped or not allow_missing):
        raise ConfigError(f"{INIT_CHECKPOINT} {path}: {mismatch}{_advice(mismatch)}")
    if mismatch:
        logger.warning("%s %s: %s", INIT_CHECKPOINT, path, mismatch)
    refuse_non_finite(non_finite(tensors.items()), f"{INIT_CHECKPOINT} {path}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            with gathered(model_weights[name]):
                _copy_rows(tensor, model_weights[name], shared_rows.get(name))
    loaded = len({id(model_weights[name]) for name in tensors})
    logger.info("%d weights of %s are loaded", loaded, path)
    return {"path": str(path), "loaded": loaded, "missing": mismatch.missing, "unexpected": mismatch.unknown}


def strip_prefixes(weights: dict, model) -> dict:
    """Removes the prefixes that all names share, one wrapper after the other, until a name is the model's.

    >>> list(strip_prefixes({"module._orig_mod.shared.weight": w}, model))
    ['shared.weight']
    """
    model_names = model.state_dict().keys()
    while weights and model_names.isdisjoint(weights):
        prefix = next((prefix for prefix in PREFIXES if all(name.startswith(prefix) for name in weights)), None)
        if prefix is None:
            break
        weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
    return weights


def _without_ignored(stored: dict[str, torch.Tensor], model) -> dict[str, torch.Tensor]:
    """Stored tensors without those that the model does not load: non-persistent buffers, and what its class ignores."""
    model_names = model.state_dict().keys()
    buffers = dict(model.named_buffers()).keys() - model_names
    patterns = (*buffers, *(model._keys_to_ignore_on_load_unexpected or ()))
    unread = stored.keys() - model_names
    ignored = {name for name in unread if any(re.search(pattern, name) for pattern in patterns)}
    return {name: tensor for name, tensor in stored.items() if name not in ignored}


def _fit_vocabulary(model, stored: dict[str, torch.Tensor], path) -> dict[str, int]:
    """Gives stored tensors with one row per piece (embeddings, output layer) the model's number of rows, in place.

    Returns:
      by name, how many of these rows both sides have.
    """
    model_weights = model.state_dict(keep_vars=True)
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    piece_tensors = {id(tensor) for module in modules if module is not None for tensor in module.parameters()}
    shared_rows = {}
    reported = set()
    for name in [name for name in stored if id(model_weights.get(name)) in piece_tensors]:
        tensor = stored[name]
        parameter = model_weights[name]
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        differs_in_padding = tensor.shape[1:] == shape[1:] and 0 < abs(len(tensor) - shape[0]) <= ROW_MULTIPLE
        if not differs_in_padding:
            continue
        if id(parameter) not in reported:
            logger.warning("%s %s: %s has %d rows, the model %d", INIT_CHECKPOINT, path, name, len(tensor), shape[0])
        reported.add(id(parameter))
        shared_rows[name] = min(len(tensor), shape[0])
        stored[name] = torch.cat([tensor, tensor.new_zeros(ROW_MULTIPLE, *shape[1:])])[: shape[0]]
    return shared_rows


def _advice(mismatch: Mismatch) -> str:
    """What the user can do about a file that does not fit the model."""
    advice = ""
    if not mismatch.reshaped:
        advice = "; fine_tune and pre_train continue without them with --allow_missing_keys"
    if "tied to" in str(mismatch):
        advice += "; make the model with --config_overrides tie_word_embeddings=False"
    return advice


def _copy_rows(tensor: torch.Tensor, parameter: torch.Tensor, num_rows: int | None) -> None:
    """Copies the first rows of a tensor into a parameter; all of it, if there is no number."""
    if num_rows is None:
        parameter.copy_(tensor)
    else:
        parameter[:num_rows].copy_(tensor[:num_rows])
