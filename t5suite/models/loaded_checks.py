"""Checks of a model that `from_pretrained` has loaded: every tensor is there, with numbers that can be computed with.

>>> check_loaded(model, mismatch_in_report(report), "t5-base", new_head=False)
DataError: --model_name_or_path t5-base is not a complete T5ForConditionalGeneration: missing (1): shared.weight; ...
"""

import copy
import dataclasses
import logging

import torch
from transformers import AutoModel, AutoModelForPreTraining

from t5suite.base.errors import DataError
from t5suite.base.lookup import listed
from t5suite.models.classes import has_model_class, model_class_in
from t5suite.models.encoders import EncoderHead, count_by_part, tensors_outside_encoder
from t5suite.models.init_checkpoint import PREFIXES
from t5suite.models.weight_files import WRAPPERS, file_with_tensor, read_shapes, weights_folder
from t5suite.models.weight_values import check_finite, check_not_empty, integers_for_floats, refuse_integers
from t5suite.models.weights import Mismatch, fit_to_model

logger = logging.getLogger(__name__)

# With a larger share of its tensors missing, a model is not incomplete but another one.
SHARE_OF_ANOTHER_MODEL = 0.9


def check_loaded(model, mismatch: Mismatch, name: str, new_head: bool, allow_missing: bool = False) -> None:
    """Refuses a model that was loaded incompletely.

    A new task head may be missing. The heads and poolers that the model type was pre-trained with may be unused
    (BERT's next sentence), and are logged.

    Args:
      name: what the model was loaded from.

    Raises:
      DataError: it is incomplete, and `allow_missing` is not set.
    """
    mismatch = _without_skipped_stacks(model, mismatch, name)
    if new_head:
        mismatch = _without_head(model, mismatch)
    mismatch = _without_unused_heads(model, mismatch, name)
    if mismatch and allow_missing and not mismatch.reshaped:
        logger.warning("--allow_missing_keys: %s is loaded incompletely: %s", name, mismatch)
    elif mismatch:
        advice = _advice(model, mismatch, name)
        raise DataError(f"--model_name_or_path {name} is not a complete {type(model).__name__}: {mismatch}; {advice}")


def _without_skipped_stacks(model, mismatch: Mismatch, name: str) -> Mismatch:
    """The mismatch without a whole model's decoder and output layer, which an encoder alone does not load."""
    skipped = tensors_outside_encoder(model, mismatch.unknown)
    if not skipped:
        return mismatch
    tensor_counts = count_by_part(skipped)
    model.left_out_of_checkpoint = tensor_counts
    parts = ", ".join(f"{part} ({count} tensors)" for part, count in tensor_counts.items())
    logger.info("%s: only its encoder is loaded; skipped: %s", name, parts)
    unknown = [tensor for tensor in mismatch.unknown if tensor not in skipped]
    return dataclasses.replace(mismatch, unknown=unknown)


def _without_head(model, mismatch: Mismatch) -> Mismatch:
    """The mismatch of the tensors below a new task head."""
    lists = vars(mismatch).items()
    return Mismatch(**{kind: [name for name in names if _is_below_head(model, name)] for kind, names in lists})


def _is_below_head(model, tensor_name: str) -> bool:
    if isinstance(model, EncoderHead):
        return not tensor_name.startswith("classifier.")
    return tensor_name.startswith(f"{model.base_model_prefix}.") and ".pooler." not in tensor_name


def _without_unused_heads(model, mismatch: Mismatch, name: str) -> Mismatch:
    """The mismatch without the heads that the model type was pre-trained with."""
    if not mismatch.unknown:
        return mismatch
    pre_trained_names = _pre_trained_names(model)
    unused = [tensor for tensor in mismatch.unknown if tensor in pre_trained_names]
    if unused:
        logger.info("%s: other heads of its pre-training are skipped: %s", name, listed(unused))
    unknown = [tensor for tensor in mismatch.unknown if tensor not in pre_trained_names]
    return dataclasses.replace(mismatch, unknown=unknown)


def _pre_trained_names(model) -> set[str]:
    """The tensors of the bare class and of the class that the type is pre-trained as, with and without prefix."""
    names = set()
    for auto_class in (AutoModel, AutoModelForPreTraining):
        if has_model_class(auto_class, model.config):
            with torch.device("meta"):
                pre_trained = model_class_in(auto_class, model.config)(copy.deepcopy(model.config))
            names |= pre_trained.state_dict().keys()
    return names | {f"{model.base_model_prefix}.{name}" for name in names}


def _advice(model, mismatch: Mismatch, name: str) -> str:
    """What the user can do about an incomplete model."""
    if mismatch.missing and _is_wrapped(mismatch.unknown):
        return (
            f"these are weights inside of a wrapper: give them as --init_checkpoint {name}, with --config_name "
            f"{name}; t5suite export, too, takes both, and writes a plain model"
        )
    if mismatch.unknown and len(mismatch.missing) > SHARE_OF_ANOTHER_MODEL * len(model.state_dict()):
        return f"config.json (model_type {model.config.model_type}) describes another model than these weights"
    if mismatch.reshaped:
        return "config.json describes another model than these weights are of; use a complete copy"
    return "use a complete copy (fine_tune and pre_train take it as it is with --allow_missing_keys)"


def _is_wrapped(names: list[str]) -> bool:
    """Whether tensors stand inside of a training framework's table, or all have the prefix of a wrapper.

    >>> _is_wrapped(["epoch", "state_dict"]), _is_wrapped(["module.shared.weight"]), _is_wrapped(["shared.weight"])
    (True, True, False)
    """
    if not set(WRAPPERS).isdisjoint(names):
        return True
    return bool(names) and all(name.startswith(PREFIXES) for name in names)


def mismatch_with_files(model, name: str, revision: str | None = None) -> Mismatch:
    """As `mismatch_in_report`, from the files' headers: under ZeRO-3, transformers 5.23 does not look for unknown
    tensors."""
    shapes = read_shapes(weights_folder(name, revision), "--model_name_or_path")
    return fit_to_model(model, shapes)[1]


def check_values(model, name: str, revision: str | None, unknown) -> None:
    """Refuses a loaded model with NaN or infinite weights, or with weights that are stored as integers.

    Args:
      unknown: names in the file that the model does not read.

    Raises:
      DataError: names the tensors, their counts or types, and the file.
    """
    folder = weights_folder(name, revision)
    place = f"--model_name_or_path {name}"
    integers = integers_for_floats(model, read_shapes(folder, "--model_name_or_path"), unknown)
    if integers:
        tensor_name = integers[0].split()[0]
        refuse_integers(integers, f"{place}: {file_with_tensor(folder, tensor_name)}")
    check_finite(model, place, lambda tensor_name: file_with_tensor(folder, tensor_name))
    check_not_empty(model, place)
