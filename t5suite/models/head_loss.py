"""A T5 that is given labels tells its loss in place of its logits, which are never there all at once.

    >>> takes_loss_labels(model)                              # transformers' own T5, mT5 or umT5, whole in this process
    True
    >>> accept_loss_labels(model)
    >>> model(**batch, loss_labels=labels_BT).loss_sum         # nats, summed over the labels that are not -100
    tensor(312.4051, grad_fn=...)
    >>> model(**batch).logits.shape                            # without them nothing has changed
    torch.Size([8, 12, 32128])

The loss is computed inside of the model's `forward`, because what wraps it (accelerate) turns outputs into float32: by
then the logits of the whole batch would be there twice. Shapes: B rows, T target tokens, D model width.
"""

import inspect
from dataclasses import dataclass
from types import MethodType

import torch
from torch import nn
from transformers.utils import ModelOutput

from t5suite.models.chunked_cross_entropy import PLAIN, summed_cross_entropy
from t5suite.models.families import plain
from t5suite.models.t5_decoder import SCALED, takes_apart


@dataclass
class LossParts(ModelOutput):
    """What a model says of a batch whose labels it was given.

    Attributes:
      loss_sum: nats, summed over the labels that are not -100.
      guessed: how many of them are the likeliest token; 0 where that was not asked for.
    """

    loss_sum: torch.Tensor | None = None
    guessed: torch.Tensor | None = None


def takes_loss_labels(model) -> bool:
    """Whether a model is transformers' own T5 whose output layer is a plain matrix, and nobody changes what it does:
    no learned prompts, no adapter of the output layer, no weights on other ranks or devices, no other `forward`."""
    inner = plain(model)
    if not takes_apart(model) or type(inner.lm_head) is not nn.Linear or inner.lm_head.bias is not None:
        return False
    hooked = inner.lm_head._forward_hooks or inner.lm_head._forward_pre_hooks
    return not hooked and (hasattr(inner, "loss_of_labels") or "forward" not in vars(inner))


def accept_loss_labels(model) -> None:
    """Has a model that `takes_loss_labels` take `loss_labels` and `loss_settings`; a second time changes nothing."""
    inner = plain(model)
    if not hasattr(inner, "loss_of_labels"):
        inner.loss_of_labels = MethodType(loss_of_labels, inner)
        inner.forward = MethodType(_with_labels(type(inner).forward), inner)


def _with_labels(forward):
    """A class's `forward` that answers labels by their loss; to whoever looks, its parameters are the same."""

    def logits_or_loss(self, *args, loss_labels=None, **kwargs):
        if loss_labels is None:
            return forward(self, *args, **kwargs)
        return self.loss_of_labels(loss_labels, *args, **kwargs)

    logits_or_loss.__signature__ = inspect.signature(forward)
    return logits_or_loss


def loss_of_labels(
    model,
    loss_labels,
    input_ids=None,
    attention_mask=None,
    decoder_input_ids=None,
    decoder_attention_mask=None,
    loss_settings=PLAIN,
    **kwargs,
) -> LossParts:
    """The forward pass of transformers' T5 up to the output layer, and the loss of these labels [B, T]."""
    for name in ("labels", "use_cache"):
        kwargs.pop(name, None)
    inputs_embeds = kwargs.pop("inputs_embeds", None)
    encoded = model.encoder(input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)
    hidden_BTD = model.decoder(
        input_ids=decoder_input_ids,
        attention_mask=decoder_attention_mask,
        inputs_embeds=kwargs.pop("decoder_inputs_embeds", None),
        encoder_hidden_states=encoded[0],
        encoder_attention_mask=attention_mask,
        **kwargs,
    )[0]
    if SCALED[type(model).__name__](model.config):
        hidden_BTD = hidden_BTD * model.model_dim**-0.5
    found = summed_cross_entropy(hidden_BTD.flatten(0, 1), model.lm_head.weight, loss_labels.flatten(), loss_settings)
    return LossParts(*found)
