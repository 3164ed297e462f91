"""Heads of encoders: what they predict for a text or for each word, and where their weights come from.

>>> head_for([load_task("glue", "rte"), load_task("glue", "qnli")])
Head(words=('entailment', 'not_entailment'))
"""

import logging
from dataclasses import dataclass

import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from t5suite.base.errors import ConfigError
from t5suite.models.encoders import ENCODERS, TOKEN_LABELS, draw_layer, labels_tokens
from t5suite.models.families import class_in
from t5suite.models.t5.output_layer import whole

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
