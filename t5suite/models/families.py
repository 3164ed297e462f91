"""Families of language models, their classes of transformers, and output layers: T5's, and an encoder's head.

>>> family_of(AutoConfig.for_model("bert")), family_of(AutoConfig.for_model("gpt2"))
('masked', 'causal')
>>> head_for([load_task("glue", "rte"), load_task("glue", "qnli")])
Head(words=('entailment', 'not_entailment'))
>>> model = random_model(AutoModelForSeq2SeqLM, load_config("t5-v1_1-small", from_scratch=True))
>>> model.lm_head.weight is model.shared.weight, model.config.tie_word_embeddings
(False, False)

transformers 5.23 gives every configuration of the T5 family `tie_word_embeddings=True`: a v1.1 made from scratch is
silently tied (222.9 instead of 247.6 million parameters), and a checkpoint whose two matrices differ is loaded with a
warning. Setting the attribute to False afterwards is worse: it unties the encoder's and the decoder's embeddings too.
It is fixed only here: `load_config` sets `config.tie_word_embeddings` correctly, `random_model` and `trained_model`
build models. `test_transformers_still_ties_every_t5` fails once transformers no longer needs this.
"""

import copy
import inspect
import logging
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)
from transformers.integrations import is_deepspeed_zero3_enabled

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.models.encoders import ENCODERS, TOKEN_LABELS, draw_layer, is_named, labels_tokens

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


logger = logging.getLogger(__name__)

# By family, and by whether every word gets a label.
HEAD_CLASSES = {
    ("masked", False): AutoModelForSequenceClassification, ("masked", True): AutoModelForTokenClassification,
    ("encoder", False): ENCODERS, ("encoder", True): TOKEN_LABELS,
}  # fmt: skip


@dataclass(frozen=True)
class Head:
    """What an encoder's head predicts for a text, or for each of its words: one of `words`, or (None) a number."""

    words: tuple[str, ...] | None
    per_token: bool = False

    @property
    def description(self) -> str:
        """For messages."""
        said = "a number" if self.words is None else f"one of {', '.join(self.words)}"
        return f"{said} for every word" if self.per_token else said


def head_for(tasks) -> Head:
    """The one head that fits all tasks.

    Raises:
      ConfigError: a task of free text, or tasks of differing label sets.
    """
    heads = {}
    for task in tasks:
        name = f"{task.benchmark}/{task.name}"
        if task.value_kind == "text":
            raise ConfigError(
                f"{name} is answered in free text, which an encoder with a head cannot generate; use a model that "
                "generates text (T5, BART, GPT-2)"
            )
        heads[name] = Head(
            None if task.value_kind == "number" else tuple(task.label_words), task.value_kind == "labels"
        )
    first, head = next(iter(heads.items()))
    for name, other in heads.items():
        if other != head:
            raise ConfigError(
                f"an encoder has one head: {first} is {head.description}, {name} is {other.description}; fine-tune "
                "them one at a time, or use a model that generates text (T5, BART, GPT-2)"
            )
    return head


def head_class(config, family: str, per_token: bool):
    """The class that has a family's head for classes and numbers, or for labels of words.

    Raises:
      ConfigError: transformers has no such model with a head.
    """
    auto_class = HEAD_CLASSES[family, per_token]
    if type(config) not in auto_class._model_mapping:
        kind = "labels of words" if per_token else "classes"
        raise ConfigError(f"models of type {config.model_type!r} have no head for {kind}; take bert, roberta, ...")
    return auto_class


def give_head(config, head: Head, auto_class) -> bool:
    """Writes a head into a configuration; returns whether the weights of a checkpoint's head are unusable for it."""
    trained = class_in(auto_class, config).__name__ in (config.architectures or ())
    fits = trained and _fits(config, head)
    if trained and not fits:
        logger.warning("the checkpoint's head gives %s; the task is %s", head_of(config).description, head.description)
    config.problem_type = "regression" if head.words is None else "single_label_classification"
    if fits:
        return False
    _name_classes(config, head.words or ("value",))
    return True


def head_of(config) -> Head:
    """The head that a configuration describes."""
    return Head(words_of(config), labels_tokens(config.architectures))


def words_of(config) -> tuple[str, ...] | None:
    """The label words of a model's outputs, in their order; None for a number."""
    is_number = config.problem_type == "regression" or config.num_labels == 1
    return None if is_number else tuple(config.id2label[i] for i in range(config.num_labels))


def draw_head_anew(model) -> None:
    """Random weights for everything after the encoder."""
    for name, module in model.named_children():
        if type(model.config) in ENCODERS and isinstance(module, torch.nn.Linear):
            with whole(module.weight), whole(module.bias):
                draw_layer(module)
        elif name not in (model.base_model_prefix, "encoder", "shared"):
            for parameter in module.parameters():
                parameter._is_hf_initialized = False  # transformers 5 marks loaded weights and does not draw them again
            with torch.no_grad():
                module.apply(model._init_weights)
    logger.info(
        "the head for %s is new, its weights are random: train it before you use its scores",
        Head(words_of(model.config), labels_tokens([type(model).__name__])).description,
    )


def _fits(config, head: Head) -> bool:
    """Whether a head has the wanted words; unnamed ones (LABEL_0, ...) stand for the task's, in its order."""
    words = words_of(config)
    if words is None or head.words is None:
        return words == head.words
    if sorted(words) == sorted(head.words):
        return True
    if words != tuple(f"LABEL_{i}" for i in range(len(head.words))):
        return False
    logger.warning("the checkpoint's classes have no names; they are taken to be %s", ", ".join(head.words))
    _name_classes(config, head.words)
    return True


def _name_classes(config, words) -> None:
    config.id2label = dict(enumerate(words))  # which sets num_labels, too
    config.label2id = {word: i for i, word in enumerate(words)}


T5_TYPES = ("t5", "mt5", "umt5")
HEAD = "lm_head.weight"


def asked_for_tied(settings: dict) -> bool:
    """Whether a T5's settings, as written in its config.json, ask for one matrix.

    Without the setting, T5 is tied; mT5 and umT5, whose published checkpoints are all untied, are not.

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
    model.config.tie_word_embeddings = False  # it stays so when resized, saved and loaded
    return model


def trained_model(auto_class, name, config, **options):
    """`auto_class.from_pretrained`, the output layer untied where the checkpoint has two different matrices.

    Returns:
      the model, and transformers' report on its tensors (`output_loading_info`).
    """
    options["output_loading_info"] = True
    if not _is_untied_t5(config):
        model, found = auto_class.from_pretrained(name, config=config, **options)
        if config.model_type in T5_TYPES and hasattr(model, "lm_head"):
            model.config.tie_word_embeddings = model.lm_head.weight is model.shared.weight
        return model, found
    with _head_left_out(auto_class, config) as tied_config:
        model, found = auto_class.from_pretrained(name, config=tied_config, **options)
    if HEAD in found["missing_keys"]:
        logger.warning("%s says that its output layer is not tied, but holds none: it is tied to the embeddings", name)
        model.lm_head.weight = model.shared.weight
        found["missing_keys"].discard(HEAD)
    else:
        model.config.tie_word_embeddings = False
    return model, found


def _is_untied_t5(config) -> bool:
    return config.model_type in T5_TYPES and not config.tie_word_embeddings


@contextmanager
def _head_left_out(auto_class, config):
    """Inside, the class ties the embeddings of encoder and decoder but not the output layer.

    It changes the class because weights are tied while the model is built, before the caller has it.
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


def initialize(model) -> None:
    """Gives a fresh, untied T5 head the standard deviation that Mesh TensorFlow and t5x draw it with.

    That is d_model^-0.5; transformers uses 1. Final states have mean square 1, so logits have variance 1, and
    the first loss is ln V + 1/2 (10.9 nats for 110). The relative attention bias keeps transformers' values.
    """
    config = model.config
    if type(config) in ENCODERS and isinstance(layer := getattr(model, "classifier", None), torch.nn.Linear):
        if not layer.weight.is_meta:
            with whole(layer.weight), whole(layer.bias):
                draw_layer(layer)
    if config.model_type not in T5_TYPES or config.tie_word_embeddings:
        return
    weight_VD = model.lm_head.weight
    if weight_VD.is_meta:
        return
    with torch.no_grad(), whole(weight_VD):
        weight_VD.normal_(mean=0.0, std=config.initializer_factor * config.d_model**-0.5)


def whole(weight):
    """ZeRO-3 keeps a part of each weight on every rank: this gathers the weight, and broadcasts rank 0's values."""
    if not is_deepspeed_zero3_enabled():
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([weight], modifier_rank=0)
