"""Decoders: GPT-2, Llama. Prompt and answer are one row, with a separator between them."""

import logging

from transformers import AutoModelForCausalLM

from t5suite.data.batches.collators import CausalCollator
from t5suite.data.batches.encodings import DEFAULT_SEPARATOR, PromptEncoding
from t5suite.models.answering.causal import CausalAnswerer
from t5suite.models.families.family import Family
from t5suite.tasks.languages import Languages
from t5suite.tasks.tokenization import Lengths

logger = logging.getLogger(__name__)

SEPARATOR = "answer_separator"  # the configuration's name for it


def prompt_encoding(model, tokenizer, lengths: Lengths, separator: str | None, languages: Languages) -> PromptEncoding:
    """Prompt and answer in one row; the separator is stored in the model's configuration."""
    separator = _separator_of(model, separator)
    setattr(model.config, SEPARATOR, separator)
    return PromptEncoding(tokenizer, lengths, separator)


def _separator_of(model, requested: str | None) -> str:
    """The requested separator, else the one that the model was trained with, else the default."""
    trained_with = getattr(model.config, SEPARATOR, None)
    if requested is None:
        return DEFAULT_SEPARATOR if trained_with is None else trained_with
    if trained_with not in (None, requested):
        logger.warning("--answer_separator %r: the model was trained with %r", requested, trained_with)
    return requested


CAUSAL = Family(
    name="causal",
    auto_class=AutoModelForCausalLM,
    special_tokens=("pad", "bos", "eos"),
    forward_arguments=("input_ids", "labels"),
    encoding=prompt_encoding,
    collator=CausalCollator,
    answerer=CausalAnswerer,
    answers_in_prompt_row=True,
)
