"""Weights without a model's other files, of any origin, to begin training with: `--init_checkpoint FILE|FOLDER`.

    >>> load_init_checkpoint(model, "checkpoint-pt-65536")                    # a run of nanoT5
    {'path': 'checkpoint-pt-65536', 'loaded': 256, 'missing': [], 'unexpected': []}

nanoT5's T5 has Hugging Face's names; its file holds the one embedding of encoder and decoder as `shared`,
`encoder.embed_tokens` and `decoder.embed_tokens`. Its output layer is always separate, so the model needs
`tie_word_embeddings=False` (a v1.1 preset).

An embedding of 32100 pieces may have 32128 rows, as rows are padded to multiples of 128 (ROW_MULTIPLE). So a file's
embeddings and output layer may have as many as 128 rows more or fewer than the model's: the rows that both have are
copied, the model's further rows keep their values.
"""

import logging

import torch

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import listed
from t5suite.models.t5.output_layer import gathered
from t5suite.models.vocabulary import ROW_MULTIPLE
from t5suite.models.weight_files import INIT_CHECKPOINT, read_weights
from t5suite.models.weight_values import is_ignored_on_loading, non_finite, refuse_integers, refuse_non_finite
from t5suite.models.weights import Mismatch, fit_to_model

logger = logging.getLogger(__name__)

# What DistributedDataParallel, torch.compile, a Lightning module and Lightning's Fabric put before every name.
PREFIXES = ("module.", "_orig_mod.", "model.", "_forward_module.")


def load_init_checkpoint(model, path, allow_missing: bool = False) -> dict:
    """Copies weights into a model in the model's precision, and returns what manifests record of them.

    Nothing is copied before all checks have passed.

    Args:
      path: a file of weights (safetensors or PyTorch's), or a folder with one.
      allow_missing: continue without weights that one side lacks; a warning names them.

    Raises:
      ConfigError: an unreadable file; no weight in common; other shapes; two values for tied weights; without
        `allow_missing`, weights that one side lacks.
      DataError: integers; numbers that are not finite.
    """
    # With `keep_vars`, the model's own parameters: names of tied weights have the same object.
    model_weights = model.state_dict(keep_vars=True)
    stored = strip_prefixes(read_weights(path), model)
    stored = _without_ignored(stored, model)
    stored, shared_rows = _with_rows_of_model(model, stored, path)
    # The tensors that fit, by the model's names, and the names of those that do not: `mismatch` is false if all fit.
    tensors, mismatch = fit_to_model(model, stored)
    if not tensors:
        raise ConfigError(
            f"{INIT_CHECKPOINT} {path}: none of its {len(stored)} weights is the model's: it has "
            f"{listed(sorted(stored))}, the model {listed(sorted(model_weights))}"
        )
    refuse_integers(mismatch.integers, f"{INIT_CHECKPOINT} {path}")
    only_lacks_weights = not mismatch.reshaped  # which has other shapes, and two values for tied weights
    if mismatch and not (allow_missing and only_lacks_weights):
        raise ConfigError(f"{INIT_CHECKPOINT} {path}: {mismatch}{_advice(mismatch)}")
    if mismatch:
        logger.warning("%s %s: %s", INIT_CHECKPOINT, path, mismatch)
    refuse_non_finite(non_finite(tensors.items()), f"{INIT_CHECKPOINT} {path}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            with gathered(model_weights[name]):  # the whole parameter, of which a rank has a part under ZeRO-3
                _copy_rows(tensor, model_weights[name], shared_rows.get(name))
    loaded = len({id(model_weights[name]) for name in tensors})
    logger.info("%d weights of %s are loaded", loaded, path)
    return {"path": str(path), "loaded": loaded, "missing": mismatch.missing, "unexpected": mismatch.unknown}


def strip_prefixes(weights: dict, model) -> dict:
    """Removes the prefixes of wrappers that all names share, one after the other, until a name is one of the model's.

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
    non_persistent_buffers = dict(model.named_buffers()).keys() - model_names
    loaded = {}
    for name, tensor in stored.items():
        is_ignored = name in non_persistent_buffers or is_ignored_on_loading(model, name)
        if name in model_names or not is_ignored:
            loaded[name] = tensor
    return loaded


def _with_rows_of_model(model, stored: dict[str, torch.Tensor], path) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
    """Stored tensors, of which those with a row for each piece (embeddings, output layer) get the model's shape.

    Returns:
      the tensors, and of those that were changed, by name, how many rows both sides have. Rows that only the model has
      are zeros, so that the shapes are equal (`fit_to_model` compares them); they are never copied.
    """
    model_weights = model.state_dict(keep_vars=True)
    piece_parameters = _parameters_by_piece(model)
    fitted = dict(stored)
    shared_rows = {}
    reported_parameters = set()
    for name, tensor in stored.items():
        parameter = model_weights.get(name)
        if parameter is None or id(parameter) not in piece_parameters:
            continue
        shape = getattr(parameter, "ds_shape", parameter.shape)  # under ZeRO-3 its own shape is empty
        if not _differs_in_padding(tensor.shape, shape):
            continue
        num_stored_rows = len(tensor)
        num_rows = shape[0]
        if id(parameter) not in reported_parameters:
            logger.warning(
                "%s %s: %s has %d rows, the model %d", INIT_CHECKPOINT, path, name, num_stored_rows, num_rows
            )
        reported_parameters.add(id(parameter))
        shared_rows[name] = min(num_stored_rows, num_rows)
        fitted[name] = tensor.new_zeros(shape)
        fitted[name][: shared_rows[name]] = tensor[: shared_rows[name]]
    return fitted, shared_rows


def _differs_in_padding(stored_shape: torch.Size, shape: torch.Size) -> bool:
    """Whether two tensors have rows of one shape, and numbers of rows that differ by no more than ROW_MULTIPLE.

    >>> _differs_in_padding(torch.Size([32100, 512]), torch.Size([32128, 512]))
    True
    """
    have_rows = len(stored_shape) > 0 and len(shape) > 0
    if not have_rows or stored_shape[1:] != shape[1:]:
        return False
    return 0 < abs(stored_shape[0] - shape[0]) <= ROW_MULTIPLE


def _parameters_by_piece(model) -> set[int]:
    """The identities of the parameters with a row for each piece: of the embeddings and the output layer."""
    parameters = set()
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        if module is not None:
            parameters.update(id(parameter) for parameter in module.parameters())
    return parameters


def _advice(mismatch: Mismatch) -> str:
    """What the user can do about a file that does not fit the model."""
    advice = ""
    if not mismatch.reshaped:
        advice = "; with --allow_missing_keys, fine_tune and pre_train continue without them"
    if mismatch.has_tied_conflict:
        advice += "; make the model with --config_overrides tie_word_embeddings=False"
    return advice


def _copy_rows(tensor: torch.Tensor, parameter: torch.Tensor, num_rows: int | None) -> None:
    """Copies the first rows of a tensor into a parameter; all of it, if there is no number."""
    if num_rows is None:
        parameter.copy_(tensor)
    else:
        parameter[:num_rows].copy_(tensor[:num_rows])
