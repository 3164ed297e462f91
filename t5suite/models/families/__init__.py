"""Families of models, one module each, and which of them a configuration or a model belongs to.

>>> choose_family(AutoConfig.for_model("bert")).name, choose_family(AutoConfig.for_model("gpt2")).name
('masked', 'causal')
>>> encoding = encoding_for(model, tokenizer, Lengths(512, 16))
>>> family = recognize_family(model)                        # a T5
>>> collator = family.make_collator(model.config)
>>> answerer = family.make_answerer(model, tokenizer)
"""

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.data.batches.encodings import TextEncoding
from t5suite.models.encoders import labels_words, names_encoder
from t5suite.models.families.causal import CAUSAL
from t5suite.models.families.encoder import ENCODER
from t5suite.models.families.family import Family
from t5suite.models.families.masked import MASKED
from t5suite.models.families.seq2seq import SEQ2SEQ
from t5suite.tasks.languages import Languages
from t5suite.tasks.tokenization import Lengths


def choose_family(config, requested: str | None = None) -> Family:
    """The family of a configuration, or the requested one if the configuration has it.

    A configuration may belong to several (BERT also has a causal decoder): `architectures` decides if it names one,
    then `is_encoder_decoder`; else masked takes precedence over causal, unless `is_decoder` is set.

    Raises:
      ConfigError: an unknown family, or one that the configuration has no model of.
    """
    if requested == "auto":
        requested = None
    if getattr(config, "model_class", None) is not None:
        return _family_of_user_class(config, requested)
    if requested is not None:
        return _requested_family(config, requested)
    return _family_of_architectures(config) or _family_of_kind(config)


def recognize_family(model) -> Family:
    """The family of a model in memory, by its class.

    >>> recognize_family(model).name
    'seq2seq'
    """
    model_class = type(model.get_base_model() if hasattr(model, "get_base_model") else model)  # below an adapter
    for family in _families_with(model.config):
        if family.model_class(model.config) is model_class:
            return family
    if labels_words([model_class.__name__]):
        return ENCODER if ENCODER.has_model_for(model.config) else MASKED
    return choose_family(model.config)


def encoding_for(
    model, tokenizer, lengths: Lengths, separator: str | None = None, languages: Languages | None = None
) -> TextEncoding:
    """How this model reads rows and writes answers: `Family.make_encoding` of its family."""
    return recognize_family(model).make_encoding(model, tokenizer, lengths, separator, languages)


def _requested_family(config, name: str) -> Family:
    family = find(name, FAMILIES, "family", where="--model_family")
    if not family.has_model_for(config):
        names = ", ".join(family.name for family in _families_with(config))
        raise ConfigError(
            f"--model_family {name}: transformers has no such model of type {config.model_type!r}; "
            f"it has {names or 'none of any family'}"
        )
    return family


def _family_of_architectures(config) -> Family | None:
    """The family whose class the weights were saved from, if `architectures` says so."""
    if names_encoder(config):
        return ENCODER
    for family in _families_with(config):
        if family.model_class(config).__name__ in (config.architectures or ()):
            return family
    return None


def _family_of_kind(config) -> Family:
    """The family that suits whether a configuration has an encoder, a decoder or both."""
    possible = _families_with(config)
    if getattr(config, "is_encoder_decoder", False) and SEQ2SEQ in possible:
        return SEQ2SEQ
    if getattr(config, "is_decoder", False) and CAUSAL in possible:
        return CAUSAL
    for family in (MASKED, CAUSAL, SEQ2SEQ):
        if family in possible:
            return family
    raise ConfigError(f"a model of type {config.model_type!r} is none of {', '.join(FAMILIES)}")


def _family_of_user_class(config, requested: str | None) -> Family:
    """The family of a user-defined class (`own_models`), whose type transformers may not know."""
    name = requested or getattr(config, "model_family", None)
    if name is not None:
        return find(name, FAMILIES, "family", where="--model_family")
    if getattr(config, "is_encoder_decoder", False):
        return SEQ2SEQ
    possible = _families_with(config)
    if not possible:
        raise ConfigError(
            f"--model_class {config.model_class}: say how it reads and writes: --model_family ({', '.join(FAMILIES)})"
        )
    if getattr(config, "is_decoder", False) and CAUSAL in possible:
        return CAUSAL
    return possible[-1]


def _families_with(config) -> list[Family]:
    """The families that have a model for a configuration."""
    return [family for family in FAMILIES.values() if family.has_model_for(config)]


FAMILIES = {family.name: family for family in (SEQ2SEQ, CAUSAL, MASKED, ENCODER)}
