"""Families of language models and their classes of transformers.

>>> family_of(AutoConfig.for_model("bert")), family_of(AutoConfig.for_model("gpt2"))
('masked', 'causal')
"""

import inspect
from dataclasses import dataclass

from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSeq2SeqLM,
)

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.models.encoders import ENCODERS, is_named, labels_tokens

# The labels that the heads for pairs of sentences take: BERT's next sentence, ALBERT's sentence order.
PAIR_LABELS = ("next_sentence_label", "sentence_order_label")


@dataclass(frozen=True)
class Family:
    """A kind of language model.

    Attributes:
      description: for help texts.
      auto_class: transformers' class that makes a model of it from a configuration.
      special_tokens: its configurations' names for the tokenizer's special tokens, without `_token_id`.
    """

    description: str
    auto_class: type
    special_tokens: tuple[str, ...]

    def holds(self, config) -> bool:
        """Whether transformers has a model of this family for the configuration."""
        return type(config) in self.auto_class._model_mapping


def family_of(config, asked_for: str | None = None) -> str:
    """The family of a configuration, or the requested one if the configuration has it.

    A configuration may belong to several (BERT also has a causal decoder): `architectures` decides if it names one,
    then `is_encoder_decoder`; else masked takes precedence over causal, unless `is_decoder` is set.

    Raises:
      ConfigError: an unknown family, or one that the configuration has no model of.
    """
    if getattr(config, "model_class", None) is not None:
        return _family_of_own(config, asked_for)
    if asked_for not in (None, "auto"):
        if not find(asked_for, FAMILIES, "family", where="--model_family").holds(config):
            raise ConfigError(
                f"--model_family {asked_for}: transformers has no such model of type {config.model_type!r}; "
                f"it has {', '.join(_families_of(config)) or 'none of any family'}"
            )
        return asked_for
    if is_named(config):
        return "encoder"
    possible = _families_of(config)
    classes = config.architectures or ()  # that the weights were saved from
    named = [name for name in possible if class_in(FAMILIES[name].auto_class, config).__name__ in classes]
    if named:
        return named[0]
    if getattr(config, "is_encoder_decoder", False) and "seq2seq" in possible:
        return "seq2seq"
    if getattr(config, "is_decoder", False) and "causal" in possible:
        return "causal"
    for family in ("masked", "causal", "seq2seq"):
        if family in possible:
            return family
    raise ConfigError(f"a model of type {config.model_type!r} is none of {', '.join(FAMILIES)}")


def check_reads_text(config, family: str) -> None:
    """Refuses model types of audio and images that transformers lists among language models.

    >>> check_reads_text(AutoConfig.for_model("qwen2_audio"), "seq2seq")
    ConfigError: models of type 'qwen2_audio' cannot be trained on text alone: Qwen2AudioForConditionalGeneration
    takes no decoder_input_ids (an audio model)

    Raises:
      ConfigError: its forward does not take the family's batches, or it decodes something other than text.
    """
    kind = class_in(FAMILIES[family].auto_class, config)
    taken = inspect.signature(kind.forward).parameters
    needed = {"seq2seq": ("input_ids", "labels", "decoder_input_ids"), "encoder": ("input_ids",)}
    lacks = [name for name in needed.get(family, ("input_ids", "labels")) if name not in taken]
    medium = OTHER_MEDIA.get(config.model_type) or ("audio" if "audio" in getattr(kind, "input_modalities", ()) else "")
    if lacks or config.model_type in OTHER_MEDIA:
        why = f"{kind.__name__} takes no {', '.join(lacks)}" if lacks else f"{kind.__name__} belongs to an encoder"
        raise ConfigError(
            f"models of type {config.model_type!r} cannot be trained on text alone: {why}"
            + (f" ({'an' if medium[0] in 'aeiou' else 'a'} {medium} model)" if medium else "")
        )


def _family_of_own(config, asked_for: str | None) -> str:
    """The family of a user-defined class (`own_models`), whose type transformers may not know."""
    asked_for = asked_for if asked_for not in (None, "auto") else getattr(config, "model_family", None)
    if asked_for is not None:
        find(asked_for, FAMILIES, "family", where="--model_family")
        return asked_for
    if getattr(config, "is_encoder_decoder", False):
        return "seq2seq"
    possible = _families_of(config)
    if not possible:
        raise ConfigError(f"--model_class {config.model_class}: say how it reads and writes: --model_family")
    return "causal" if getattr(config, "is_decoder", False) and "causal" in possible else possible[-1]


def family_of_model(model) -> str:
    """The family of a model in memory, by its class.

    >>> family_of_model(model)
    'seq2seq'
    """
    kind = type(model.get_base_model()) if hasattr(model, "get_base_model") else type(model)  # below an adapter
    for name, family in FAMILIES.items():
        if family.holds(model.config) and class_in(family.auto_class, model.config) is kind:
            return name
    if labels_tokens([kind.__name__]):
        return "encoder" if ENCODERS.get(type(model.config)) else "masked"
    return family_of(model.config)


def plain(model):
    """The model inside wrappers and adapters, whose `forward` has the real signature."""
    model = getattr(model, "module", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def model_class_for(config, family: str, sentence_pairs: bool = False):
    """transformers' class for a configuration of a family; with `sentence_pairs`, one with a head for them.

    >>> model_class_for(AutoConfig.for_model("bert"), "masked", sentence_pairs=True).__name__
    'AutoModelForPreTraining'

    Raises:
      ConfigError: no such head: BERT, BigBird, ALBERT and a few more have one, RoFormer and ModernBERT do not.
    """
    if not sentence_pairs:
        return FAMILIES[family].auto_class
    auto_class = AutoModelForPreTraining
    if family == "masked" and type(config) in auto_class._model_mapping:
        arguments = inspect.signature(class_in(auto_class, config).forward).parameters
        if any(label in arguments for label in PAIR_LABELS):
            return auto_class
    raise ConfigError(
        f"models of type {config.model_type!r} have no head for pairs of sentences; take bert, big_bird or albert"
    )


def _families_of(config) -> list[str]:
    return [name for name, family in FAMILIES.items() if family.holds(config)]


def class_in(auto_class, config) -> type:
    """The class that an `AutoModelFor...` uses for a configuration; the first one if it lists several."""
    found = auto_class._model_mapping[type(config)]
    return found[0] if isinstance(found, tuple | list) else found


FAMILIES = {
    "seq2seq": Family("encoder and decoder: T5, BART", AutoModelForSeq2SeqLM, ("pad", "bos", "eos")),
    "causal": Family("decoder alone: GPT-2, Llama", AutoModelForCausalLM, ("pad", "bos", "eos")),
    "masked": Family(
        "encoder alone: BERT, RoFormer", AutoModelForMaskedLM, ("pad", "bos", "eos", "cls", "sep", "mask")
    ),
    "encoder": Family("the encoder of a T5 by itself, with a head", ENCODERS, ("pad", "bos", "eos")),
}
# Decoders of something other than text, by model type.
OTHER_MEDIA = {
    "moshi": "audio", "moss_transcribe_diarize": "audio", "musicgen": "music", "musicgen_melody": "music",
    "trocr": "vision", "whisper": "audio",
}  # fmt: skip
