"""T5's output layer, tied to the embeddings or not.

>>> model = random_model(AutoModelForSeq2SeqLM, load_config("t5-v1_1-small", from_scratch=True))
>>> model.lm_head.weight is model.shared.weight, model.config.tie_word_embeddings
(False, False)

transformers 5.23 gives every configuration of the T5 family `tie_word_embeddings=True`: a v1.1 made from scratch is
silently tied (222.9 instead of 247.6 million parameters), and a checkpoint whose two matrices differ is loaded with a
warning. Setting the attribute to False afterwards is worse: it unties the encoder's and the decoder's embeddings too.
It is fixed only here: `load_config` sets `config.tie_word_embeddings` correctly, `random_model` and `trained_model`
build models. `test_transformers_still_ties_every_t5` fails once transformers no longer needs this.
"""

import contextlib
import copy
import logging
from collections.abc import Iterator

import torch
from transformers.integrations import is_deepspeed_zero3_enabled

from t5suite.models.classes import model_class_in
from t5suite.models.encoders import TEXT_CLASSIFIERS, draw_layer

logger = logging.getLogger(__name__)

T5_TYPES = ("t5", "mt5", "umt5")
OUTPUT_MATRIX = "lm_head.weight"


def is_declared_tied(settings: dict) -> bool:
    """Whether a T5's settings, as written in its config.json, ask for one matrix.

    Without the setting, T5 is tied; mT5 and umT5, whose published checkpoints are all untied, are not.

    >>> is_declared_tied({"model_type": "t5"}), is_declared_tied({"model_type": "mt5"})
    (True, False)
    """
    return bool(settings.get("tie_word_embeddings", settings["model_type"] == "t5"))


def random_model(auto_class, config, **options):
    """`auto_class.from_config`, the output layer tied only if `config.tie_word_embeddings`."""
    if not _is_untied_t5(config):
        return auto_class.from_config(config, **options)
    with _head_left_out(auto_class, config) as tied_config:
        model = auto_class.from_config(tied_config, **options)
    model.config.tie_word_embeddings = False  # it stays so when resized, saved and loaded
    return model


def trained_model(auto_class, name, config, **options):
    """`auto_class.from_pretrained`, the output layer untied where the checkpoint has two different matrices.

    Returns:
      the model, and transformers' report on its tensors (`output_loading_info`).
    """
    options["output_loading_info"] = True
    if not _is_untied_t5(config):
        model, report = auto_class.from_pretrained(name, config=config, **options)
        if config.model_type in T5_TYPES and hasattr(model, "lm_head"):
            model.config.tie_word_embeddings = model.lm_head.weight is model.shared.weight
        return model, report
    with _head_left_out(auto_class, config) as tied_config:
        model, report = auto_class.from_pretrained(name, config=tied_config, **options)
    if OUTPUT_MATRIX in report["missing_keys"]:
        logger.warning("%s says that its output layer is not tied, but holds none: it is tied to the embeddings", name)
        model.lm_head.weight = model.shared.weight
        report["missing_keys"].discard(OUTPUT_MATRIX)
    else:
        model.config.tie_word_embeddings = False
    return model, report


def _is_untied_t5(config) -> bool:
    return config.model_type in T5_TYPES and not config.tie_word_embeddings


@contextlib.contextmanager
def _head_left_out(auto_class, config) -> Iterator:
    """Within, the class ties the embeddings of encoder and decoder but not the output layer; yields its configuration.

    It changes the class because weights are tied while the model is built, before the caller has it.
    """
    model_class = model_class_in(auto_class, config)
    all_ties = model_class._tied_weights_keys
    tied_config = copy.deepcopy(config)
    tied_config.tie_word_embeddings = True
    model_class._tied_weights_keys = {key: value for key, value in all_ties.items() if key != OUTPUT_MATRIX}
    try:
        yield tied_config
    finally:
        model_class._tied_weights_keys = all_ties


def initialize(model) -> None:
    """Draws what transformers draws too widely in a model of random weights: an encoder's new head, and a T5's output
    layer that is not tied."""
    if type(model.config) in TEXT_CLASSIFIERS:
        _initialize_classifier(model)
    if _is_untied_t5(model.config):
        _initialize_output_layer(model)


def _initialize_classifier(model) -> None:
    layer = getattr(model, "classifier", None)
    if not isinstance(layer, torch.nn.Linear) or layer.weight.is_meta:
        return
    with gathered(layer.weight), gathered(layer.bias):
        draw_layer(layer)


def _initialize_output_layer(model) -> None:
    """Gives a fresh, untied T5 head the standard deviation that Mesh TensorFlow and t5x draw it with.

    That is d_model^-0.5; transformers uses 1. Final states have mean square 1, so logits have variance 1, and
    the first loss is ln V + 1/2 (10.9 nats for 110). The relative attention bias keeps transformers' values.
    """
    weight_VD = model.lm_head.weight
    if weight_VD.is_meta:
        return
    with torch.no_grad(), gathered(weight_VD):
        weight_VD.normal_(mean=0.0, std=model.config.initializer_factor * model.config.d_model**-0.5)


def gathered(weight):
    """ZeRO-3 keeps a part of each weight on every rank: this gathers the weight, and broadcasts rank 0's values."""
    if not is_deepspeed_zero3_enabled():
        return contextlib.nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([weight], modifier_rank=0)
