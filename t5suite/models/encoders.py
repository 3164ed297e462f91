"""The encoder of an encoder-decoder by itself, with a head: for classes, numbers, or labels of words.

    >>> tasks = [load_task("glue", "rte")]
    >>> model = load_model("google/t5-v1_1-base", tokenizer=tokenizer, family="encoder", tasks=tasks)
    >>> type(model).__name__, model(**batch).logits.shape
    ('T5EncoderForSequenceClassification', torch.Size([8, 2]))

A text's states are averaged over its tokens, as in Sentence-T5 (arXiv:2108.08877), and one linear layer predicts
classes or a number. Labels of words are predicted by transformers' own head if the type has one (T5, mT5, umT5,
T5Gemma), else by such a layer over each token's state. transformers' T5 with a head for classes also runs the decoder.
Weights have the names of transformers' encoder (`T5EncoderModel`), which can load what is saved here; those of decoder
and output layer are skipped and reported.

Shapes: B rows, S tokens, D model width, C classes.
"""

import collections
import copy
import re

import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    LongT5EncoderModel,
    MT5EncoderModel,
    T5EncoderModel,
    T5GemmaEncoderModel,
    UMT5EncoderModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from t5suite.base.errors import ConfigError
from t5suite.models.classes import random_weights

ENCODER_CLASSES = (T5EncoderModel, MT5EncoderModel, UMT5EncoderModel, LongT5EncoderModel, T5GemmaEncoderModel)
ENCODER_BY_TYPE = {encoder_class.config_class.model_type: encoder_class for encoder_class in ENCODER_CLASSES}
# Ends of the names of transformers' classes with a head, and of the suite's own.
TEXT_HEAD = "ForSequenceClassification"
WORD_HEAD = "ForTokenClassification"
CLASSES_WITH_HEAD = (TEXT_HEAD, WORD_HEAD)
# Tensors of a whole model that an encoder does not have.
OUTSIDE = re.compile(r"(\w+\.)?(decoder|lm_head|classifier|score)\.")


class EncoderHead:
    """A mixin before transformers' encoder class in the order of bases: dropout and one linear layer.

    Attributes:
      per_token: whether the layer reads every token's state instead of their mean.
    """

    per_token = False
    _keys_to_ignore_on_load_unexpected = None  # skipped tensors are reported

    def __init__(self, config):
        super().__init__(config)
        self.dropout = nn.Dropout(head_dropout(config))
        self.classifier = nn.Linear(state_width(config), config.num_labels)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, labels=None, **kwargs):
        """`logits`: [B, C], or [B, S, C] where every token gets a label; with labels also the mean `loss`."""
        options = {name: value for name, value in kwargs.items() if value is not None}
        states = super().forward(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **options
        )[0]
        if not self.per_token:
            states = mean_state(states, attention_mask)
        logits = self.classifier(self.dropout(states))
        loss = None if labels is None else self._loss(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _loss(self, logits, labels) -> torch.Tensor:
        if self.config.problem_type == "regression":
            return F.mse_loss(logits[:, 0], labels)
        return F.cross_entropy(logits.mT if self.per_token else logits, labels)

    def _init_weights(self, module):
        super()._init_weights(module)
        if module is getattr(self, "classifier", None):
            draw_layer(module)


def head_dropout(config) -> float:
    """The dropout before a head: T5's setting or BERT's, else none."""
    for name in ("classifier_dropout", "classifier_dropout_rate"):
        rate = getattr(config, name, None)
        if rate is not None:
            return rate
    return 0.0


def mean_state(states_BSD: torch.Tensor, mask_BS: torch.Tensor | None) -> torch.Tensor:
    """Each row's mean state over the tokens that are not padding, [B, D].

    >>> mean_state(torch.tensor([[[2.0], [4.0], [9.0]]]), torch.tensor([[1, 1, 0]]))
    tensor([[3.]])
    """
    if mask_BS is None:
        return states_BSD.mean(1)
    token_counts_B1 = mask_BS.sum(1, keepdim=True).clamp(min=1)
    weights_BS = (mask_BS / token_counts_B1).to(states_BSD.dtype)
    return (states_BSD * weights_BS[:, :, None]).sum(1)


def state_width(config) -> int:
    """The width of an encoder's states."""
    return getattr(config, "encoder", config).hidden_size


def draw_layer(layer: nn.Linear) -> None:
    """Random weights of standard deviation D^-0.5: T5's states have mean square 1, so the outputs have it too.

    transformers draws T5's head for tokens with a standard deviation of 1.
    """
    with torch.no_grad():
        layer.weight.normal_(std=layer.in_features**-0.5)
        layer.bias.zero_()


class ModelClasses(dict):
    """Replaces an `AutoModelFor...` of transformers: `{class of configurations: class of models}`."""

    @property
    def _model_mapping(self) -> dict:
        return self

    def from_config(self, config, trust_remote_code: bool = False, **options):
        """Random weights."""
        return random_weights(self[type(config)], config, **options)

    def from_pretrained(self, name, config, trust_remote_code: bool = False, **options):
        """Trained weights, and transformers' report on them."""
        return self[type(config)].from_pretrained(name, config=config, **options)


def _with_head(encoder_class: type, per_token: bool) -> type:
    ending = WORD_HEAD if per_token else TEXT_HEAD
    members = {"__module__": __name__, "__doc__": f"`{encoder_class.__name__}` with a head.", "per_token": per_token}
    return type(encoder_class.__name__.replace("Model", ending), (EncoderHead, encoder_class), members)


def _word_classifier(encoder_class: type) -> type:
    """transformers' own class if it has one, else ours."""
    return MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING.get(encoder_class.config_class, None) or _with_head(
        encoder_class, per_token=True
    )


# Heads for classes and numbers, and for labels of words.
TEXT_CLASSIFIERS = ModelClasses({kind.config_class: _with_head(kind, per_token=False) for kind in ENCODER_CLASSES})
WORD_CLASSIFIERS = ModelClasses({kind.config_class: _word_classifier(kind) for kind in ENCODER_CLASSES})


def labels_words(class_names) -> bool:
    """Whether classes of these names (`architectures`) label words.

    >>> labels_words(["T5ForTokenClassification"])
    True
    """
    return any(name.endswith(WORD_HEAD) for name in class_names or ())


def have_head(class_names) -> bool:
    """Whether classes of these names (`architectures`) have a head, for texts or for words.

    >>> have_head(["BertForSequenceClassification"])
    True
    """
    return any(name.endswith(CLASSES_WITH_HEAD) for name in class_names or ())


def names_encoder(config) -> bool:
    """Whether a configuration names a class of encoders: ours, transformers' head, or the bare encoder (ProtT5's)."""
    encoder_class = ENCODER_BY_TYPE.get(config.model_type)
    if encoder_class is None:
        return False
    config_class = encoder_class.config_class  # that of the configuration may be code of the hub
    classes = (encoder_class, TEXT_CLASSIFIERS[config_class], WORD_CLASSIFIERS[config_class])
    return any(model_class.__name__ in (config.architectures or ()) for model_class in classes)


def reduce_to_encoder(config) -> None:
    """Turns a whole model's configuration into its encoder's: one stack, and one matrix of embeddings."""
    config.is_encoder_decoder = False
    config.tie_word_embeddings = True


def encoder_of(model):
    """A copy of a model's encoder as transformers' class of encoders, for embeddings and text encoders.

    >>> type(encoder_of(model)).__name__, encoder_of(model).left_out_of_checkpoint
    ('T5EncoderModel', {'decoder': 118, 'lm_head': 1})

    Raises:
      ConfigError: transformers has no such class for the type.
    """
    encoder_class = ENCODER_BY_TYPE.get(model.config.model_type)
    if encoder_class is None:
        raise ConfigError(
            f"--encoder_only: not for type {model.config.model_type!r}, only for {', '.join(ENCODER_BY_TYPE)}"
        )
    config = copy.deepcopy(model.config)
    reduce_to_encoder(config)
    encoder = encoder_class(config)
    weights = model.state_dict()
    names = {name.removeprefix("transformer.").removeprefix("model."): name for name in weights}
    encoder.load_state_dict({name: weights[names[name]] for name in encoder.state_dict()})
    encoder.left_out_of_checkpoint = count_by_part(name for name in weights if OUTSIDE.match(name))
    return encoder.to(model.dtype)


def count_by_part(tensor_names) -> dict[str, int]:
    """How many tensors outside the encoder each part has.

    >>> count_by_part(["decoder.block.0.layer.0.layer_norm.weight", "lm_head.weight"])
    {'decoder': 1, 'lm_head': 1}
    """
    return dict(collections.Counter(OUTSIDE.match(name)[2] for name in tensor_names))


def tensors_outside_encoder(model, tensor_names: list[str]) -> list[str]:
    """Those of a checkpoint's tensors that a model does not have because it is an encoder alone."""
    is_encoder_alone = model.config.model_type in ENCODER_BY_TYPE and not model.config.is_encoder_decoder
    if not is_encoder_alone:
        return []
    return [name for name in tensor_names if OUTSIDE.match(name)]
