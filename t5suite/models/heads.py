"""Output layers: T5's, which is the embedding matrix once more or a matrix of its own, and an encoder's head.

    >>> model = random_model(AutoModelForSeq2SeqLM, load_config("t5-v1_1-small", from_scratch=True))
    >>> model.lm_head.weight is model.shared.weight, model.config.tie_word_embeddings
    (False, False)
    >>> initialize(model)                  # the loss of its first batch falls from about 110 to 10.9 nats
    >>> head_for([load_task("glue", "rte"), load_task("glue", "qnli")])
    Head(words=('entailment', 'not_entailment'))

transformers 5.23 gives every configuration of the T5 family `tie_word_embeddings=True`, whatever was asked for: a v1.1
made from scratch is silently tied (222.9 million parameters for 247.6), and a checkpoint whose two matrices differ is
loaded with a warning. Setting the attribute to False afterwards is worse: it unties the encoder's and the decoder's
embeddings too. Here, and only here, this is put right: `load_config` leaves the truth in `config.tie_word_embeddings`,
and models are built by `random_model` and `trained_model`. `test_transformers_still_ties_every_t5` tells when
transformers needs it no longer.

transformers draws T5's first weights as Mesh TensorFlow and t5x do, but for two: the relative attention bias (Glorot's
uniform there, d_model^-0.5 here; kept, as its peers are trained so), and an output layer of its own, which has standard
deviation 1 for d_model^-0.5. `initialize` fixes that. Final states have mean square 1, so logits have variance 1, and
the first loss is that of standard normal logits: ln V + 1/2. A tied output layer sees states scaled by d_model^-0.5,
with the same variance; there the token that the decoder has just read also gets a logit of up to sqrt(d_model).

An encoder's head has a class for each label word, or one number. A checkpoint that was trained with the same words
keeps its head, in its own order of them. Any other gets a new one, whose random weights follow from the seed; that is
said in the log.
"""

import copy
import logging
import math
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from transformers import AutoModelForSequenceClassification
from transformers.integrations import is_deepspeed_zero3_enabled

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


def initialize(model) -> None:
    """Gives a fresh T5 the output layer that its published initialisation has; other models are left as they are."""
    config = model.config
    if config.model_type not in T5_TYPES or config.tie_word_embeddings:
        return
    weight_VD = model.lm_head.weight
    if weight_VD.is_meta:
        return
    with torch.no_grad(), whole(weight_VD):
        weight_VD.normal_(mean=0.0, std=config.initializer_factor * config.d_model**-0.5)


def expected_first_loss(vocab_size: int, logit_variance: float = 1.0) -> float:
    """Mean cross-entropy in nats of independent normal logits: ln V + variance / 2.

    >>> round(expected_first_loss(32128), 3)
    10.877
    """
    return math.log(vocab_size) + logit_variance / 2


def whole(weight):
    """ZeRO-3 keeps a part of each weight on every rank: here it is put together, and rank 0's values are shared."""
    if not is_deepspeed_zero3_enabled():
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([weight], modifier_rank=0)
