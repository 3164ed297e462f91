"""The encoding of a model's family: how rows become its ids, and its ids answers.

    >>> encoding_for(gpt2, tokenizer, Lengths(512, 16)).separator
    '\\nanswer: '

The separator of a decoder-only model is written into its configuration, so that a saved model is used as it was
trained.
"""

import inspect
import logging
from dataclasses import replace

from t5suite.base.errors import ConfigError
from t5suite.data.batches.encodings import DEFAULT_SEPARATOR, PromptEncoding, SegmentEncoding, TextEncoding
from t5suite.models.families import family_of_model, plain
from t5suite.models.heads import words_of
from t5suite.models.own_models import OwnModel, module_methods
from t5suite.tasks.registry import Lengths

logger = logging.getLogger(__name__)

SEPARATOR = "answer_separator"  # the configuration's name for it


def encoding_for(model, tokenizer, lengths: Lengths, separator: str | None = None) -> TextEncoding:
    """What makes texts ids and ids texts for this model.

    Args:
      separator: between prompt and answer of a decoder-only model; None takes what the model was trained with.

    Raises:
      ConfigError: an encoder without a head.
    """
    encoding = ENCODINGS[family_of_model(model)](model, tokenizer, lengths, separator)
    return replace(encoding, methods=module_methods(model)) if isinstance(model, OwnModel) else encoding


def _text(model, tokenizer, lengths, separator):
    return TextEncoding(tokenizer, lengths)


def _prompt(model, tokenizer, lengths, separator):
    trained_with = getattr(model.config, SEPARATOR, None)
    if separator is None:
        separator = DEFAULT_SEPARATOR if trained_with is None else trained_with
    elif trained_with not in (None, separator):
        logger.warning("--answer_separator %r: the model was trained with %r", separator, trained_with)
    setattr(model.config, SEPARATOR, separator)
    encoding = PromptEncoding(tokenizer, lengths, separator)
    # Answers end with the tokenizer's end token: the model stops there, whatever else its checkpoint has stopped at.
    for settings in (model.config, getattr(model, "generation_config", None)):
        if settings is not None:
            settings.eos_token_id = encoding.eos
    return encoding


def _segments(model, tokenizer, lengths, separator):
    if isinstance(model, OwnModel):
        has_types = not {"input_ids", "token_type_ids"} & set(model.left_out)
        return SegmentEncoding(tokenizer, lengths, words_of(model.config), has_types)
    takes = inspect.signature(plain(model).forward).parameters
    if "input_ids" not in takes or model.config.problem_type is None:
        raise ConfigError(f"{type(model).__name__} has no head for classes or numbers")
    has_types = "token_type_ids" in takes and getattr(model.config, "type_vocab_size", 2) > 1
    return SegmentEncoding(tokenizer, lengths, words_of(model.config), has_types)


ENCODINGS = {"seq2seq": _text, "causal": _prompt, "masked": _segments}
