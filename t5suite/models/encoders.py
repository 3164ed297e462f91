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
    AutoModelForTokenClassification,
    LongT5EncoderModel,
    MT5EncoderModel,
    T5EncoderModel,
    T5GemmaEncoderModel,
    UMT5EncoderModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from t5suite.base.errors import ConfigError

TOKEN_HEADS = AutoModelForTokenClassification._model_mapping
BASES = (T5EncoderModel, MT5EncoderModel, UMT5EncoderModel, LongT5EncoderModel, T5GemmaEncoderModel)
TYPES = {base.config_class.model_type: base for base in BASES}
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
        rates = (getattr(config, name, None) for name in ("classifier_dropout", "classifier_dropout_rate"))
        self.dropout = nn.Dropout(next((rate for rate in rates if rate is not None), 0.0))
        self.classifier = nn.Linear(width_of(config), config.num_labels)
        self.post_init()

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, labels=None, **kwargs):
        """`logits`: [B, C], or [B, S, C] where every token gets a label; with labels also the mean `loss`."""
        given = {name: value for name, value in kwargs.items() if value is not None}
        states_BSD = super().forward(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **given
        )[0]
        states = states_BSD if self.per_token else mean_of(states_BSD, attention_mask)
        logits, loss = self.classifier(self.dropout(states)), None
        if labels is not None:
            is_number = self.config.problem_type == "regression"
            loss = (
                F.mse_loss(logits[:, 0], labels)
                if is_number
                else F.cross_entropy(logits.mT if self.per_token else logits, labels)
            )
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _init_weights(self, module):
        super()._init_weights(module)
        if module is getattr(self, "classifier", None):
            draw_layer(module)


def mean_of(states_BSD: torch.Tensor, mask_BS: torch.Tensor | None) -> torch.Tensor:
    """Each row's mean state over the tokens that are not padding, [B, D].

    >>> mean_of(torch.tensor([[[2.0], [4.0], [9.0]]]), torch.tensor([[1, 1, 0]]))
    tensor([[3.]])
    """
    if mask_BS is None:
        return states_BSD.mean(1)
    weights_BS1 = (mask_BS / mask_BS.sum(1, keepdim=True).clamp(min=1)).to(states_BSD.dtype)[:, :, None]
    return (states_BSD * weights_BS1).sum(1)


def width_of(config) -> int:
    """The width of an encoder's states."""
    return getattr(config, "encoder", config).hidden_size


def draw_layer(layer: nn.Linear) -> None:
    """Random weights of standard deviation D^-0.5: T5's states have mean square 1, so the outputs have it too.

    transformers draws T5's head for tokens with a standard deviation of 1.
    """
    with torch.no_grad():
        layer.weight.normal_(std=layer.in_features**-0.5)
        layer.bias.zero_()


class Classes(dict):
    """Replaces an `AutoModelFor...` of transformers: `{class of configurations: class of models}`."""

    _model_mapping = property(lambda self: self)

    def from_config(self, config, trust_remote_code: bool = False, **options):
        """Random weights."""
        return self[type(config)]._from_config(config, **options)

    def from_pretrained(self, name, config, trust_remote_code: bool = False, **options):
        """Trained weights, and transformers' report on them."""
        return self[type(config)].from_pretrained(name, config=config, **options)


def _with_head(base: type, per_token: bool) -> type:
    name = base.__name__.replace("Model", f"For{'Token' if per_token else 'Sequence'}Classification")
    members = {"__module__": __name__, "__doc__": f"`{base.__name__}` with a head.", "per_token": per_token}
    return type(name, (EncoderHead, base), members)


# Heads for classes and numbers, and for labels of words: the latter are transformers' own if it has one.
ENCODERS = Classes({base.config_class: _with_head(base, False) for base in BASES})
TOKEN_LABELS = Classes(
    {base.config_class: TOKEN_HEADS.get(base.config_class, None) or _with_head(base, True) for base in BASES}
)


def labels_tokens(names) -> bool:
    """Whether classes of these names (`architectures`) label tokens.

    >>> labels_tokens(["T5ForTokenClassification"])
    True
    """
    return any(name.endswith("ForTokenClassification") for name in names or ())


def is_named(config) -> bool:
    """Whether a configuration names a class of encoders: ours, transformers' head, or the bare encoder (ProtT5's)."""
    base = TYPES.get(config.model_type)
    if base is None:
        return False
    kinds = [auto_class[type(config)] for auto_class in (ENCODERS, TOKEN_LABELS)]
    return bool({base.__name__, *(kind.__name__ for kind in kinds)}.intersection(config.architectures or ()))


def as_encoder(config) -> None:
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
    base = TYPES.get(model.config.model_type)
    if base is None:
        raise ConfigError(f"--encoder_only: not for type {model.config.model_type!r}, only for {', '.join(TYPES)}")
    config = copy.deepcopy(model.config)
    as_encoder(config)
    encoder, stored = base(config), model.state_dict()
    of_encoder = {name.removeprefix("transformer.").removeprefix("model."): name for name in stored}
    encoder.load_state_dict({name: stored[of_encoder[name]] for name in encoder.state_dict()})
    encoder.left_out_of_checkpoint = counted(name for name in stored if OUTSIDE.match(name))
    return encoder.to(model.dtype)


def counted(names) -> dict[str, int]:
    """How many tensors of each part.

    >>> counted(["decoder.block.0.layer.0.layer_norm.weight", "lm_head.weight"])
    {'decoder': 1, 'lm_head': 1}
    """
    return dict(collections.Counter(OUTSIDE.match(name)[2] for name in names))


def left_out(model, unknown: list[str]) -> list[str]:
    """A checkpoint's tensors that an encoder alone does not have."""
    is_alone = model.config.model_type in TYPES and not model.config.is_encoder_decoder
    return [name for name in unknown if OUTSIDE.match(name)] if is_alone else []
