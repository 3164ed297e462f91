"""Trained weights of a folder or the hub -> a model: complete and finite, or an error.

>>> config = load_config("google/t5-v1_1-small")
>>> model = trained_weights(AutoModelForSeq2SeqLM, "google/t5-v1_1-small", config, {"dtype": torch.float32})
"""

import contextlib
import logging
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError
from transformers.integrations import is_deepspeed_zero3_enabled

from t5suite.base.errors import DataError, LackOfMemoryError, UserError, first_line
from t5suite.base.hub_files import local_options
from t5suite.base.memory_errors import is_out_of_memory
from t5suite.models.declared_sizes import check_sizes
from t5suite.models.generation_settings import check_generation
from t5suite.models.heads import draw_new_head
from t5suite.models.load_errors import loading_error
from t5suite.models.loaded_checks import check_loaded, check_values, mismatch_with_files
from t5suite.models.t5.output_layer import trained_model
from t5suite.models.weight_files import check_weight_files
from t5suite.models.weight_values import separate_memory
from t5suite.models.weights import mismatch_in_report

FLAG = "--model_name_or_path"


def trained_weights(auto_class, name, config, options: dict, new_head: bool = False, allow_missing: bool = False):
    """`auto_class.from_pretrained(name, config, **options)`, complete or an error.

    Args:
      new_head: the model gets a head that the checkpoint does not have; its weights are random.
      allow_missing: tensors that the checkpoint lacks stay random, too.

    Returns:
      The model; its `drawn_tensors` names those whose weights are random.

    Raises:
      ConfigError: no such model. LackOfMemoryError: too little memory for it. DataError: it is truncated or incomplete
        (`loaded_checks`).
    """
    if Path(name).is_dir():
        stored_shapes = check_weight_files(Path(name), FLAG)
        check_sizes(auto_class, config, stored_shapes, name, new_head)
    model, report, revision = _read(auto_class, name, config, options)
    if is_deepspeed_zero3_enabled():
        mismatch = mismatch_with_files(model, name, revision)
        # transformers 5.23 records every rule that it knows, even legacy ones, and would apply them on saving.
        vars(model).pop("_weight_conversions", None)
    else:
        mismatch = mismatch_in_report(report)
    check_loaded(model, mismatch, name, new_head, allow_missing)
    model.drawn_tensors = set(mismatch.missing)
    if new_head:
        model.drawn_tensors.update(draw_new_head(model))
    check_values(model, name, revision, report["unexpected_keys"])
    separate_memory(model)
    check_generation(model, f"{FLAG} {name}: generation_config.json")
    return model


def _read(auto_class, name, config, options: dict) -> tuple:
    """The model, transformers' report on its tensors, and the revision that was read."""
    # Tensors of another shape are reported with all other errors, not only in transformers' table.
    options = {**options, "ignore_mismatched_sizes": True}
    try:
        trust = options.get("trust_remote_code", False)
        options |= local_options(name, options.get("revision"), with_weights=True, trust_remote_code=trust)
        with _without_report(), _fitting_into_memory(name):
            model, report = trained_model(auto_class, name, config, **options)
    except UserError:
        raise
    except pickle.UnpicklingError:
        # torch's own message advises disabling the protection.
        raise DataError(
            f"--model_name_or_path {name!r}: its weights are truncated, or contain Python objects besides "
            "tensors, which could run code when loaded; use a copy with model.safetensors"
        ) from None
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        is_damaged = isinstance(error, RuntimeError | SafetensorError)
        raise loading_error("a model", name, FLAG, error, are_files_wrong=is_damaged) from None
    return model, report, options["revision"]


@contextlib.contextmanager
def _fitting_into_memory(name) -> Iterator[None]:
    """Names the model whose weights take more memory than there is.

    Raises:
      LackOfMemoryError: memory ran out.
    """
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise LackOfMemoryError(
            f"{FLAG} {name}: the model does not fit into memory ({first_line(error)}); use a smaller model, or "
            "more memory"
        ) from None


@contextlib.contextmanager
def _without_report():
    """transformers warns of missing and unknown tensors, in a table, and of missing tied ones; here they are an error
    (`check_loaded`)."""
    source = logging.getLogger("transformers.modeling_utils")
    source.addFilter(_is_no_report)
    try:
        yield
    finally:
        source.removeFilter(_is_no_report)


def _is_no_report(record: logging.LogRecord) -> bool:
    return not re.search("LOAD REPORT|checkpoint seem corrupted", record.getMessage())
