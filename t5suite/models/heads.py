"""An encoder's head: a class for each label word, or one number.

    >>> head_for([load_task("glue", "rte"), load_task("glue", "qnli")])
    Head(words=('entailment', 'not_entailment'))
    >>> head_for([load_task("glue", "stsb")])
    Head(words=None)

A checkpoint that was trained with the same words keeps its head, in its own order of them. Any other gets a new one,
whose random weights follow from the seed; that is said in the log.
"""

import logging
from dataclasses import dataclass

import torch
from transformers import AutoModelForSequenceClassification

from t5suite.base.errors import ConfigError
from t5suite.models.families import class_in

logger = logging.getLogger(__name__)

HEAD_CLASS = AutoModelForSequenceClassification


@dataclass(frozen=True)
class Head:
    """What an encoder tells of a text: one of `words`, or (None) a number."""

    words: tuple[str, ...] | None

    @property
    def description(self) -> str:
        """For messages."""
        return "a number" if self.words is None else f"one of {', '.join(self.words)}"


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
                f"{name} is answered in free text, which an encoder with a head cannot write; take a model that writes "
                "(T5, BART, GPT-2)"
            )
        heads[name] = Head(tuple(task.label_words) if task.value_kind == "class" else None)
    first, head = next(iter(heads.items()))
    for name, other in heads.items():
        if other != head:
            raise ConfigError(
                f"an encoder has one head: {first} is {head.description}, {name} is {other.description}; fine-tune "
                "them one at a time, or take a model that writes (T5, BART, GPT-2)"
            )
    return head


def give_head(config, head: Head) -> bool:
    """Writes a head into a configuration; returns whether the weights of a checkpoint's head are of no use for it.

    Raises:
      ConfigError: transformers has no such model with a head.
    """
    if type(config) not in HEAD_CLASS._model_mapping:
        raise ConfigError(f"models of type {config.model_type!r} have no head for classes; take bert, roberta, ...")
    trained = class_in(HEAD_CLASS, config).__name__ in (config.architectures or ())
    fits = trained and _fits(config, head)
    if trained and not fits:
        logger.warning("the checkpoint's head tells %s; the task is %s", _head_of(config).description, head.description)
    config.problem_type = "regression" if head.words is None else "single_label_classification"
    if fits:
        return False
    words = head.words or ("value",)
    config.id2label = dict(enumerate(words))  # which sets num_labels, too
    config.label2id = {word: i for i, word in enumerate(words)}
    return True


def words_of(config) -> tuple[str, ...] | None:
    """The label words of a model's outputs, in their order; None for a number."""
    return _head_of(config).words


def draw_head_anew(model) -> None:
    """Random weights for whatever stands behind the encoder."""
    for name, module in model.named_children():
        if name != model.base_model_prefix:
            with torch.no_grad():
                module.apply(_without_marks)
                module.apply(model._init_weights)
    logger.warning(
        "the head for %s is new, its weights random: scores mean something once it is trained",
        _head_of(model.config).description,
    )


def _without_marks(module) -> None:
    """transformers 5 marks parameters that it has loaded, and leaves them alone from then on."""
    for parameter in module.parameters(recurse=False):
        parameter._is_hf_initialized = False


def _fits(config, head: Head) -> bool:
    """Whether a head tells what it shall; words that nobody gave (LABEL_0, ...) stand for the task's, in its order."""
    found = _head_of(config)
    if found.words is None or head.words is None:
        return found == head
    if sorted(found.words) == sorted(head.words):
        return True
    if found.words == tuple(f"LABEL_{i}" for i in range(len(head.words))):
        logger.warning("the checkpoint's classes have no names; they are taken to be %s", ", ".join(head.words))
        config.id2label = dict(enumerate(head.words))
        config.label2id = {word: i for i, word in enumerate(head.words)}
        return True
    return False


def _head_of(config) -> Head:
    is_number = config.problem_type == "regression" or config.num_labels == 1
    return Head(None if is_number else tuple(config.id2label[i] for i in range(config.num_labels)))
