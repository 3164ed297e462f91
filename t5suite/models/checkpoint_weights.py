"""Bare weights of any origin into a model: `--init_checkpoint FILE|FOLDER`.

    >>> model = load_model(config_name="t5-v1_1-base", tokenizer=tokenizer)
    >>> load_init_checkpoint(model, "checkpoint-pt-65536")  # a run of nanoT5
    {'path': 'checkpoint-pt-65536', 'loaded': 256, 'missing': [], 'unexpected': []}

nanoT5's compact T5 has Hugging Face's names with the shared embedding spelled out three times; its output layer is
always its own, so that `tie_word_embeddings=False` (a v1.1 preset) is what it goes into.
"""

import logging
import re

import torch
from transformers.conversion_mapping import get_model_conversion_mapping

from t5suite.base.errors import ConfigError
from t5suite.models.heads import whole
from t5suite.models.vocabulary import MULTIPLE
from t5suite.models.weights import FLAG, fitted, listed, read_weights

logger = logging.getLogger(__name__)

# What wrappers put before every name: DistributedDataParallel, torch.compile, Lightning, accelerate's and our own.
PREFIXES = ("module.", "_orig_mod.", "model.", "_forward_module.")
SHOWN = 10


def load_init_checkpoint(model, path, allow_missing: bool = False) -> dict:
    """Copies a checkpoint's weights into the model, in the model's precision; returns what was found, for the manifest.

    A vocabulary of up to 128 rows more or less is padding (32100 pieces, 32128 rows): the rows that both have are
    copied, the model's others keep their values. Weights that the model ties may be absent or repeated.

    Args:
      allow_missing: go on without weights that one side lacks, which are named in a warning.

    Raises:
      ConfigError: an unreadable file; weights that one side lacks; other shapes; two values for what the model ties;
        no weight in common.
    """
    weights = strip_prefixes(read_weights(path), model)
    if get_model_conversion_mapping(model, add_legacy=False):  # saved by transformers under other names
        weights, mismatch = fitted(model, weights)
        if mismatch and not allow_missing:
            raise ConfigError(f"{FLAG} {path}: {mismatch}; add --allow_missing_keys to go on without them")
    groups = tied_groups(model)
    known = {name for names in groups.values() for name in names}
    missing = [names[0] for names in groups.values() if not any(name in weights for name in names)]
    unexpected = sorted(name for name in weights.keys() - known if not _may_be_ignored(name, model))
    if len(missing) == len(groups):
        raise ConfigError(
            f"{FLAG} {path}: none of its {len(weights)} weights is the model's: it has "
            f"{listed(sorted(weights), most=SHOWN)}, the model {listed(sorted(known), most=SHOWN)}"
        )
    _check_complete(path, missing, unexpected, allow_missing)
    pairs = _pairs(path, model, groups, weights)
    with torch.no_grad():
        for _, parameter, value in pairs:
            with whole(parameter):
                rows = min(len(parameter), len(value)) if parameter.ndim else None
                parameter[:rows].copy_(value[:rows]) if rows is not None else parameter.copy_(value)
    logger.info("%d weights of %s are loaded", len(pairs), path)
    return {"path": str(path), "loaded": len(pairs), "missing": missing, "unexpected": unexpected}


def strip_prefixes(weights: dict, model) -> dict:
    """Takes away what stands before every name, one wrapper after the other, until a name is the model's.

    >>> list(strip_prefixes({"module._orig_mod.shared.weight": w}, model))
    ['shared.weight']
    """
    own = model.state_dict().keys()
    while weights and own.isdisjoint(weights):
        prefix = next((p for p in PREFIXES if all(name.startswith(p) for name in weights)), None)
        if prefix is None:
            break
        weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    return weights


def tied_groups(model) -> dict[int, list[str]]:
    """The names of each tensor of the model's, by the tensor's identity: several where it is tied.

    >>> list(tied_groups(t5_small).values())[0]
    ['shared.weight', 'encoder.embed_tokens.weight', 'decoder.embed_tokens.weight', 'lm_head.weight']
    """
    groups = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        groups.setdefault(id(tensor), []).append(name)
    return groups


def _check_complete(path, missing, unexpected, allow_missing) -> None:
    lacks = []
    if missing:
        lacks.append(f"{len(missing)} weights of the model are not in it: {listed(missing, most=SHOWN)}")
    if unexpected:
        lacks.append(f"{len(unexpected)} of its weights are not the model's: {listed(unexpected, most=SHOWN)}")
    if lacks and not allow_missing:
        raise ConfigError(f"{FLAG} {path}: {'; '.join(lacks)}; add --allow_missing_keys to go on without them")
    for lack in lacks:
        logger.warning("%s %s: %s", FLAG, path, lack)


def _pairs(path, model, groups, weights) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """`(name, the model's tensor, the checkpoint's)` for every tensor that both have."""
    own = model.state_dict(keep_vars=True)
    vocabulary = _vocabulary_tensors(model)
    pairs, wrong = [], []
    for identity, names in groups.items():
        present = [name for name in names if name in weights]
        if not present:
            continue
        parameter, value = own[names[0]], weights[present[0]]
        for other in present[1:]:
            if not torch.equal(weights[other], value):
                raise ConfigError(
                    f"{FLAG} {path}: {present[0]} and {other} differ, but the model has one tensor for both; "
                    "make it with --config_overrides tie_word_embeddings=False"
                )
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        if not _fits(shape, tuple(value.shape), identity in vocabulary):
            wrong.append(f"{present[0]} is {_size(value.shape)}, the model's {_size(shape)}")
        elif value.is_floating_point() != parameter.is_floating_point():
            wrong.append(f"{present[0]} is {value.dtype}, the model's {parameter.dtype}")
        elif shape != tuple(value.shape):
            logger.warning("%s %s: %s has %d rows, the model %d", FLAG, path, present[0], len(value), shape[0])
        pairs.append((present[0], parameter, value))
    if wrong:
        raise ConfigError(f"{FLAG} {path}: {len(wrong)} weights have another shape: {listed(wrong, '; ', SHOWN)}")
    return pairs


def _fits(shape: tuple, other: tuple, is_vocabulary: bool) -> bool:
    if shape == other:
        return True
    return is_vocabulary and shape[1:] == other[1:] and abs(shape[0] - other[0]) <= MULTIPLE


def _vocabulary_tensors(model) -> set[int]:
    """Identities of the tensors with a row a piece: embeddings, output layer and its bias."""
    modules = (model.get_input_embeddings(), model.get_output_embeddings())
    return {id(tensor) for module in modules if module is not None for tensor in module.parameters()}


def _may_be_ignored(name: str, model) -> bool:
    """Buffers that the model computes itself, and what transformers says of its own older checkpoints."""
    if name in dict(model.named_buffers()):
        return True
    return any(re.search(pattern, name) for pattern in model._keys_to_ignore_on_load_unexpected or ())


def _size(shape) -> str:
    return "x".join(map(str, shape)) or "a number"
