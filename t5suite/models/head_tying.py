"""T5's output layer: the embedding matrix once more (v1.0), or a matrix of its own (v1.1, mT5, umT5).

    >>> model = random_model(AutoModelForSeq2SeqLM, load_config("t5-v1_1-small", from_scratch=True))
    >>> model.lm_head.weight is model.shared.weight, model.config.tie_word_embeddings
    (False, False)

transformers 5.23 gives every configuration of the T5 family `tie_word_embeddings=True`, whatever was asked for: a v1.1
made from scratch is silently tied (222.9 million parameters for 247.6), and a checkpoint whose two matrices differ is
loaded with a warning. Setting the attribute to False afterwards is worse: it unties the encoder's and the decoder's
embeddings too. Here, and only here, this is put right: `load_config` leaves the truth in `config.tie_word_embeddings`,
and models are built by `random_model` and `trained_model`. `test_transformers_still_ties_every_t5` tells when
transformers needs it no longer.
"""

import copy
import logging
from contextlib import contextmanager

from t5suite.models.families import class_in

logger = logging.getLogger(__name__)

T5_TYPES = ("t5", "mt5", "umt5")
HEAD = "lm_head.weight"


def asked_for_tied(settings: dict) -> bool:
    """Whether a T5's settings, as written in its config.json, ask for one matrix.

    Saying nothing means tied in T5 and untied in mT5 and umT5, whose published checkpoints are all untied.

    >>> asked_for_tied({"model_type": "t5"}), asked_for_tied({"model_type": "mt5"})
    (True, False)
    """
    return bool(settings.get("tie_word_embeddings", settings["model_type"] == "t5"))


def random_model(auto_class, config, **options):
    """`auto_class.from_config`, the output layer tied only if `config.tie_word_embeddings`."""
    if not _is_untied_t5(config):
        return auto_class.from_config(config, **options)
    with _head_left_out(auto_class, config) as tied_config:
        model = auto_class.from_config(tied_config, **options)
    return mark_untied(model)


def trained_model(auto_class, name, config, **options):
    """`auto_class.from_pretrained`, the output layer untied where the checkpoint has two different matrices.

    Returns:
      the model, and what transformers found of its tensors (`output_loading_info`).
    """
    options["output_loading_info"] = True
    if not _is_untied_t5(config):
        model, found = auto_class.from_pretrained(name, config=config, **options)
        return (mark_untied(model) if config.model_type in T5_TYPES and _has_own_head(model) else model), found
    with _head_left_out(auto_class, config) as tied_config:
        model, found = auto_class.from_pretrained(name, config=tied_config, **options)
    if HEAD in found["missing_keys"]:
        logger.warning("%s says that its output layer is not tied, but holds none: it is tied to the embeddings", name)
        model.lm_head.weight = model.shared.weight
        found["missing_keys"].discard(HEAD)
        return model, found
    return mark_untied(model), found


def mark_untied(model):
    """Says of a model whose output layer is its own that it is: it stays so when resized, saved and loaded."""
    model.config.tie_word_embeddings = False
    return model


def _is_untied_t5(config) -> bool:
    return config.model_type in T5_TYPES and not config.tie_word_embeddings


def _has_own_head(model) -> bool:
    return hasattr(model, "lm_head") and model.lm_head.weight is not model.shared.weight


@contextmanager
def _head_left_out(auto_class, config):
    """Within, the class ties the embeddings of encoder and decoder but not the output layer.

    Done in the class because the weights are tied while the model is made, before anybody can lay hands on it.
    """
    model_class = class_in(auto_class, config)
    everything = model_class._tied_weights_keys
    tied_config = copy.deepcopy(config)
    tied_config.tie_word_embeddings = True
    model_class._tied_weights_keys = {key: value for key, value in everything.items() if key != HEAD}
    try:
        yield tied_config
    finally:
        model_class._tied_weights_keys = everything
