"""A model without the rows of dropped pieces: embeddings, head, biases of logits, and every id that it is set up with.

    >>> trim_weights(model, Selection(np.array([0, 1, 2, 37, 32099]), {}))
    >>> model.shared.weight.shape, model.config.vocab_size, model.config.eos_token_id
    (torch.Size([5, 512]), 5, 1)

Which tensors have a row a piece is not a list of names: the same class is made once more, without memory, with the new
number of pieces, and the tensors whose shapes differ are those.
"""

import copy
import re
from collections.abc import Mapping

import torch
from torch import nn
from transformers import PreTrainedConfig

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import listed
from t5suite.models.configs import config_parts
from t5suite.models.vocabulary import set_vocabulary
from t5suite.models.weights import skeleton

# Settings that are ids of tokens.
TOKEN_ID = re.compile(r"_token_ids?$|_token_index$")
# Lists of ids: what may not be written. A dropped piece cannot be written, so it leaves the list.
LISTS_OF_IDS = ("suppress_tokens", "begin_suppress_tokens")
# Lists of sequences of ids, by the setting: where in an entry the sequence is, if it is not the entry.
LISTS_OF_SEQUENCES = {"bad_words_ids": None, "sequence_bias": 0}
SIZE_FIELDS = ("num_embeddings", "out_features", "vocab_size")


def trim_weights(model, kept_ids) -> None:
    """Takes the rows of these ids out of a model, in place, and numbers its configuration's ids anew.

    Args:
      kept_ids: int64 [V'], ascending; those of `configured_ids` are among them.

    Raises:
      ConfigError: a tensor depends on the vocabulary in another way.
    """
    rows = model.config.get_text_config().vocab_size
    dimensions = vocabulary_dimensions(model, len(kept_ids))
    new_ids = {int(old_id): new_id for new_id, old_id in enumerate(kept_ids)}
    index = torch.as_tensor(kept_ids)
    trimmed: dict[int, torch.Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name not in dimensions:
            continue
        if id(tensor) not in trimmed:
            trimmed[id(tensor)] = _selected(tensor, dimensions[name], index)
        owner, _, leaf = name.rpartition(".")
        module = model.get_submodule(owner)
        setattr(module, leaf, trimmed[id(tensor)])
        for field in SIZE_FIELDS:
            if getattr(module, field, None) == rows:
                setattr(module, field, len(kept_ids))
    set_vocabulary(model.config, rows, len(kept_ids))
    renumber_config(model.config, new_ids)
    if getattr(model, "generation_config", None) is not None:
        _renumber_fields(model.generation_config, new_ids)


def _selected(tensor: torch.Tensor, dimension: int, index: torch.Tensor) -> torch.Tensor:
    """These rows of a parameter or buffer, as one of its kind."""
    rows = tensor.detach().index_select(dimension, index)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(rows, requires_grad=tensor.requires_grad)
    return rows


def vocabulary_dimensions(model, num_rows: int) -> dict[str, int]:
    """The tensors with an entry for each piece, by name: which of their dimensions has them.

    Args:
      model: may be on the meta device.
      num_rows: another number of pieces, to compare with.
    """
    config = copy.deepcopy(model.config)
    rows = config.get_text_config().vocab_size
    # One row more, where nothing is dropped, shows the same tensors.
    changed_rows = num_rows if num_rows != rows else rows + 1
    set_vocabulary(config, rows, changed_rows)
    with torch.device("meta"):
        changed = type(model)(config)
    shapes = {name: tensor.shape for name, tensor in changed.state_dict().items()}
    dimensions = {}
    for name, tensor in skeleton(model).state_dict().items():
        if shapes.get(name) == tensor.shape:
            continue
        sizes = list(zip(tensor.shape, shapes.get(name, ()), strict=False))
        differing = [place for place, (size, changed_size) in enumerate(sizes) if size != changed_size]
        if len(differing) != 1 or sizes[differing[0]] != (rows, changed_rows):
            raise ConfigError(f"{type(model).__name__}: {name} depends on the vocabulary in another way than by rows")
        dimensions[name] = differing[0]
    return dimensions


def configured_ids(model) -> set[int]:
    """The ids with a part of their own: ends, starts, padding, in the configuration and in that of generation."""
    ids: set[int] = set()
    settings = [vars(part) for part in config_parts(model.config)]
    if getattr(model, "generation_config", None) is not None:
        settings.append(vars(model.generation_config))
    for table in settings:
        _gather_ids(table, ids)
    return ids


def _gather_ids(table: Mapping, ids: set[int]) -> None:
    for key, value in table.items():
        if isinstance(value, Mapping):
            _gather_ids(value, ids)
        elif TOKEN_ID.search(str(key)):
            numbers = value if isinstance(value, (list, tuple)) else [value]
            ids.update(number for number in numbers if _is_id(number))


def _is_id(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def check_configured_ids(ids: set[int], pieces: Mapping[int, str], place: str) -> None:
    """Refuses a configuration that names an id without a piece.

    Raises:
      ConfigError: with the ids.
    """
    without_piece = sorted(ids - pieces.keys())
    if without_piece:
        raise ConfigError(
            f"{place}: its configuration names the ids {listed(without_piece)}, for which the tokenizer has no piece"
        )


def renumber_config(config, new_ids: Mapping[int, int]) -> None:
    """Gives a configuration, and those inside of it, the new ids."""
    for part in config_parts(config):
        _renumber_fields(part, new_ids)


def _renumber_fields(settings, new_ids: Mapping[int, int]) -> None:
    for key, value in list(vars(settings).items()):
        if not isinstance(value, PreTrainedConfig):
            vars(settings)[key] = renumbered(key, value, new_ids)


def renumbered(key: str, value, new_ids: Mapping[int, int]):
    """A setting with the new ids.

    >>> renumbered("eos_token_id", [5, 7], {5: 0, 7: 1})
    [0, 1]
    >>> renumbered("bad_words_ids", [[5], [6, 7]], {5: 0, 7: 1})
    [[0]]
    """
    if isinstance(value, dict):
        return {name: renumbered(str(name), inner, new_ids) for name, inner in value.items()}
    if TOKEN_ID.search(key):
        return _renumbered_tokens(value, new_ids)
    if key in LISTS_OF_IDS and value is not None:
        return [new_ids[number] for number in value if number in new_ids]
    if key in LISTS_OF_SEQUENCES and isinstance(value, (list, tuple)):
        return _renumbered_sequences(value, LISTS_OF_SEQUENCES[key], new_ids)
    return value


def _renumbered_tokens(value, new_ids: Mapping[int, int]):
    """The new id of a token, or of each of several; None and -1, which stand for no token, stay."""
    if isinstance(value, (list, tuple)):
        return [_renumbered_tokens(number, new_ids) for number in value]
    if not _is_id(value):
        return value
    return new_ids[value]


def _renumbered_sequences(entries, place: int | None, new_ids: Mapping[int, int]) -> list | None:
    """The entries of which no id is dropped; None, which these settings take, for none."""
    renewed = []
    for entry in entries:
        sequence = entry if place is None else entry[place]
        if any(number not in new_ids for number in sequence):
            continue
        numbers = [new_ids[number] for number in sequence]
        renewed.append(numbers if place is None else [numbers, *entry[place + 1 :]])
    return renewed or None
