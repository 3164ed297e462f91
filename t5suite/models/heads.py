"""Heads of encoders: what they predict for a text or for each word, and where their weights come from.

>>> head_for([load_task("glue", "rte"), load_task("glue", "qnli")])
Head(words=('entailment', 'not_entailment'))
"""

import inspect
import logging
from dataclasses import dataclass

import torch

from t5suite.base.errors import ConfigError
from t5suite.constants import OWN_BENCHMARK
from t5suite.data.batches.encodings import LabelsEncoding, SegmentEncoding
from t5suite.models.classes import bare_model, model_class_in
from t5suite.models.encoders import TEXT_CLASSIFIERS, draw_layer, have_head, labels_words
from t5suite.models.t5.output_layer import gathered
from t5suite.tasks.targets import has_label_sets
from t5suite.tasks.tokenization import Lengths

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Head:
    """What an encoder's head predicts for a text, or for each of its words: one of `words`, or (None) a number."""

    words: tuple[str, ...] | None
    per_token: bool = False

    @property
    def description(self) -> str:
        """For messages."""
        prediction = "a number" if self.words is None else f"one of {', '.join(self.words)}"
        return f"{prediction} for every word" if self.per_token else prediction


def head_for(tasks) -> Head:
    """The one head that fits all tasks.

    Raises:
      ConfigError: a task of free text or of sets of labels, or tasks of differing labels.
    """
    heads = {f"{task.benchmark}/{task.name}": _head_of_task(task) for task in tasks}
    first_name, first_head = next(iter(heads.items()))
    for name, head in heads.items():
        if head != first_head:
            raise ConfigError(
                f"an encoder has one head: {first_name} is {first_head.description}, {name} is {head.description}; "
                "fine-tune them one at a time, or use a model that generates text (T5, BART, GPT-2)"
            )
    return first_head


def _head_of_task(task) -> Head:
    if has_label_sets(task.entry):
        raise ConfigError(
            f"{task.benchmark}/{task.name} is answered by sets of labels, and an encoder's head gives one label here; "
            "use a model that generates text (T5, BART, GPT-2)"
        )
    if task.value_kind == "text":
        setting = ""
        if task.benchmark == OWN_BENCHMARK:
            setting = (
                "give labels, or a metric of numbers such as pearson, if the answers are classes or numbers; else "
            )
        raise ConfigError(
            f"{task.benchmark}/{task.name} is answered in free text, which an encoder with a head cannot generate; "
            f"{setting}use a model that generates text (T5, BART, GPT-2)"
        )
    if task.value_kind == "number":
        return Head(None)
    if len(task.label_words) < 2:
        raise ConfigError(
            f"{task.benchmark}/{task.name} has one label, {task.label_words[0]!r}: an encoder's head chooses between "
            "two or more"
        )
    return Head(tuple(task.label_words), per_token=task.value_kind == "labels")


def prepare_head(config, head: Head, auto_class) -> bool:
    """Writes a head into a configuration; returns whether the weights of a checkpoint's head are unusable for it."""
    has_trained_head = model_class_in(auto_class, config).__name__ in (config.architectures or ())
    is_usable = has_trained_head and _predicts_same(config, head)
    if has_trained_head and not is_usable:
        logger.warning(
            "the checkpoint's head gives %s; the task is %s", head_of_config(config).description, head.description
        )
    config.problem_type = _problem_type(head.words)
    if not is_usable:
        _name_classes(config, head.words or ("value",))
    return not is_usable


def check_trained_head(config, tasks, place: str) -> None:
    """Checks that the head of a checkpoint fits the tasks, if there are any; unnamed classes get the task's words.

    Raises:
      ConfigError: there is no head; it predicts something else than the tasks need, or several labels at once; its
        classes have no names, and no task says what they are.
    """
    if not have_head(config.architectures):
        raise ConfigError(f"{place}: this encoder has no head for labels")
    _check_gives_one_label(config, place)
    trained_head = head_of_config(config)
    if tasks:
        head = head_for(tasks)
        if trained_head.per_token != head.per_token or not _predicts_same(config, head):
            raise ConfigError(f"{place}: its head gives {trained_head.description}; the task is {head.description}")
    else:
        check_classes_have_names(config, place)


def check_classes_have_names(config, place: str) -> None:
    """Refuses a head whose classes only a task could name.

    Raises:
      ConfigError: they are LABEL_0, LABEL_1 and so on.
    """
    if output_words(config) == _unnamed_classes(config.num_labels):
        raise ConfigError(
            f"{place}: the classes of its head have no names; --benchmark and --dataset_name, or --task_file, name the "
            "task whose labels they are"
        )


def set_problem_type(config, place: str) -> None:
    """Sets the `problem_type` of a checkpoint's own head, which many configurations lack, by its classes.

    Args:
      place: the flag and the name that stand for the checkpoint, for errors.

    Raises:
      ConfigError: it gives several labels at once.
    """
    _check_gives_one_label(config, place)
    if config.problem_type is None:
        config.problem_type = _problem_type(output_words(config))


def _check_gives_one_label(config, place: str) -> None:
    """Refuses a head that gives a text several labels at once."""
    if config.problem_type == "multi_label_classification":
        raise ConfigError(
            f"{place}: its head gives a text several labels at once (config.json: problem_type is "
            "multi_label_classification), and here one is chosen; fine-tune it on rows of one label, or take a model "
            "that writes sets of labels (T5, BART, GPT-2)"
        )


def fit_head(model, tasks) -> None:
    """Says in the configuration of a model in memory what its head predicts: for the tasks, or its own labels.

    Raises:
      ConfigError: it predicts something else.
    """
    config = model.config
    if not tasks:
        set_problem_type(config, "model")
        return
    head = head_for(tasks)
    own_head = Head(output_words(config), labels_words([type(bare_model(model)).__name__]))
    if own_head.per_token != head.per_token or not _predicts_same(config, head):
        raise ConfigError(
            f"model: its head gives {own_head.description}; the task is {head.description}. Give a model with a head "
            "for that (num_labels, id2label), or the checkpoint's name, and it gets one"
        )
    config.problem_type = _problem_type(head.words)


def _problem_type(words: tuple[str, ...] | None) -> str:
    return "regression" if words is None else "single_label_classification"


def _predicts_same(config, head: Head) -> bool:
    """Whether a trained head has a task's words; unnamed ones (LABEL_0, ...) stand for the task's, in its order."""
    words = output_words(config)
    if words is None or head.words is None:
        return words == head.words
    if sorted(words) == sorted(head.words):
        return True
    if words != _unnamed_classes(len(head.words)):
        return False
    logger.warning("the checkpoint's classes have no names; they are taken to be %s", ", ".join(head.words))
    _name_classes(config, head.words)
    return True


def _unnamed_classes(count: int) -> tuple[str, ...]:
    """The names that transformers gives to classes without names."""
    return tuple(f"LABEL_{number}" for number in range(count))


def _name_classes(config, words) -> None:
    config.id2label = dict(enumerate(words))  # which sets num_labels, too
    config.label2id = {word: i for i, word in enumerate(words)}


def head_of_config(config) -> Head:
    """The head that a configuration describes."""
    return Head(output_words(config), labels_words(config.architectures))


def output_words(config) -> tuple[str, ...] | None:
    """The label words of a model's outputs, in their order; None for a number."""
    if config.problem_type == "regression" or config.num_labels == 1:
        return None
    return tuple(config.id2label[i] for i in range(config.num_labels))


def draw_new_head(model) -> list[str]:
    """Draws random weights for everything after the encoder; returns the names of their tensors."""
    drawn_names = []
    for name, module in model.named_children():
        if type(model.config) in TEXT_CLASSIFIERS and isinstance(module, torch.nn.Linear):
            with gathered(module.weight), gathered(module.bias):
                draw_layer(module)
        elif name not in (model.base_model_prefix, "encoder", "shared"):
            for parameter in module.parameters():
                parameter._is_hf_initialized = False  # transformers 5 marks loaded weights and does not draw them again
            with torch.no_grad():
                module.apply(model._init_weights)
        else:
            continue
        drawn_names += [f"{name}.{parameter_name}" for parameter_name, _ in module.named_parameters()]
    head = Head(output_words(model.config), labels_words([type(model).__name__]))
    logger.info("the head for %s is new, its weights are random: train it before you use its scores", head.description)
    return drawn_names


def head_encoding(model, tokenizer, lengths: Lengths, whole_text: bool = False) -> SegmentEncoding:
    """How a model with a head reads rows, and which words its outputs stand for.

    Args:
      whole_text: it reads T5's input text instead of an entry's columns.

    Raises:
      ConfigError: the model has no head.
    """
    model_class = type(bare_model(model))
    parameters = inspect.signature(bare_model(model).forward).parameters
    if "input_ids" not in parameters or model.config.problem_type is None:
        raise ConfigError(
            f"{type(model).__name__} has no head for classes or numbers; give the checkpoint's name, and it gets one"
        )
    has_types = "token_type_ids" in parameters and getattr(model.config, "type_vocab_size", 2) > 1
    make_encoding = LabelsEncoding if labels_words([model_class.__name__]) else SegmentEncoding
    return make_encoding(tokenizer, lengths, output_words(model.config), has_types, whole_text)
