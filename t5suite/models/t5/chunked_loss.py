"""Output layer and cross-entropy fused, a chunk of target tokens at a time: the full logits never exist at once.

    >>> hidden_ND, weight_VD, labels_N = torch.zeros(3, 8), torch.zeros(10, 8), torch.tensor([4, 7, -100])
    >>> summed, guessed = summed_cross_entropy(hidden_ND, weight_VD, labels_N)
    >>> summed                                          # two labels that count, ten tokens alike: 2 ln 10
    tensor(4.6052)

The logits of a batch are its largest tensor: 128 rows of 114 targets over 32,128 tokens are 1.9 GB in float32, and the
usual code holds three such tensors (logits, log-softmax, gradient). Here the forward pass computes, for each chunk of
tokens, the matrix product, the softmax in float32 and the gradient of the logits, and adds it at once to the gradients
of hidden states and matrix; the backward pass only scales them. If all tokens fit one chunk, the gradient of their
logits is kept for the backward pass instead: no second matrix. This is fused linear cross-entropy (arXiv:2410.10989,
section 3.2).

A T5 that gets labels computes the loss inside its `forward` (`accept_loss_labels`): accelerate wraps `forward` and
converts its outputs to float32, which would hold the logits of the whole batch twice.

    model(**batch, loss_labels=labels_BT).loss_sum             # nats, summed over the labels that are not -100

Logits are computed in the dtype of autocast, if any, else in that of the hidden states. Shapes: B rows, T target
tokens, N of all rows, C of a chunk, D model width, V vocabulary.
"""

import inspect
from dataclasses import dataclass
from types import MethodType
from typing import NamedTuple

import torch
from torch import nn
from transformers.utils import ModelOutput

from t5suite.models.classes import bare_model
from t5suite.models.t5.decoder import has_stock_decoder, scaled_for_output

IGNORED = -100
# Elements of logits that exist at once; and the number of tokens below which the matrix product would be slow.
LOGITS_AT_ONCE = {"cpu": (2**24, 512), "cuda": (2**27, 1024)}
# Arguments of transformers' `T5ForConditionalGeneration.forward` that `loss_of_labels` reads, or that change no loss.
KNOWN_ARGUMENTS = frozenset(
    """input_ids attention_mask decoder_input_ids decoder_attention_mask inputs_embeds decoder_inputs_embeds labels
    use_cache""".split()
)


class LossSettings(NamedTuple):
    """How the loss of a token is defined (`t5suite.training.losses.token_loss` explains the numbers) and computed.

    Attributes:
      chunk_tokens: tokens whose logits exist at once; None: a number that is fast on the device.
      counts_guesses: also count the labels that are the likeliest token.
    """

    label_smoothing: float = 0.0
    z_loss: float = 0.0
    chunk_tokens: int | None = None
    counts_guesses: bool = False


PLAIN = LossSettings()


def summed_cross_entropy(hidden_ND, weight_VD, labels_N, settings=PLAIN) -> tuple[torch.Tensor, torch.Tensor]:
    """`(sum, guessed)`: the loss summed over the labels that are not -100, in float32 (float64 for float64); and how
    many of these labels are the likeliest token (0 if not requested)."""
    device_type = hidden_ND.device.type
    if device_type == "cpu" and type(labels_N) is torch.Tensor and not torch.compiler.is_compiling():
        # A CPU knows the number of labels at once; a GPU would have to synchronise, and fake tensors have no values.
        labelled = torch.nonzero(labels_N.ne(IGNORED))[:, 0]
        hidden_ND = hidden_ND[labelled]
        labels_N = labels_N[labelled]
    chunk_tokens = settings.chunk_tokens or chunk_tokens_on(device_type, weight_VD.shape[0])
    function = _OneChunk if hidden_ND.shape[0] <= chunk_tokens else _Chunks
    return function.apply(hidden_ND, weight_VD, labels_N, settings, chunk_tokens)


def chunk_tokens_on(device_type: str, vocab_size: int) -> int:
    """The default number of tokens in a chunk.

    >>> chunk_tokens_on("cuda", 32128), chunk_tokens_on("cuda", 250112)
    (4177, 1024)
    """
    max_logits, min_tokens = LOGITS_AT_ONCE.get(device_type, LOGITS_AT_ONCE["cuda"])
    return max(min_tokens, max_logits // vocab_size)


class _OneChunk(torch.autograd.Function):
    """All tokens at once; keeps the gradient of their logits."""

    @staticmethod
    def forward(ctx, hidden_ND, weight_VD, labels_N, settings, chunk_tokens):
        dtype = _logits_dtype(hidden_ND)
        with torch.autocast(hidden_ND.device.type, enabled=False):
            hidden = hidden_ND.to(dtype)
            weight = weight_VD.to(dtype)
            summed, guessed, grad_logits_NV = _chunk(hidden, weight, labels_N, settings)
        ctx.save_for_backward(grad_logits_NV, hidden, weight)
        ctx.mark_non_differentiable(guessed)
        ctx.dtypes = hidden_ND.dtype, weight_VD.dtype
        return summed, guessed

    @staticmethod
    def backward(ctx, scale, _):
        grad_logits_NV, hidden, weight = ctx.saved_tensors
        grad_hidden = None
        grad_weight = None
        with torch.autocast(scale.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                grad_hidden = (grad_logits_NV @ weight).to(ctx.dtypes[0]).mul_(scale)
            if ctx.needs_input_grad[1]:
                grad_weight = (grad_logits_NV.T @ hidden).to(ctx.dtypes[1]).mul_(scale)
        return grad_hidden, grad_weight, None, None, None


class _Chunks(torch.autograd.Function):
    """One chunk after the other; keeps their summed gradients, which the backward pass scales."""

    @staticmethod
    def forward(ctx, hidden_ND, weight_VD, labels_N, settings, chunk_tokens):
        dtype = _logits_dtype(hidden_ND)
        grad_weight = None
        grads_hidden = []
        sums = []
        guesses = []
        with torch.autocast(hidden_ND.device.type, enabled=False):
            weight = weight_VD.to(dtype)
            for start in range(0, hidden_ND.shape[0], chunk_tokens):
                chunk = slice(start, start + chunk_tokens)
                hidden = hidden_ND[chunk].to(dtype)
                summed, guessed, grad_logits_CV = _chunk(hidden, weight, labels_N[chunk], settings)
                sums.append(summed)
                guesses.append(guessed)
                if ctx.needs_input_grad[0]:
                    grads_hidden.append(grad_logits_CV @ weight)
                if ctx.needs_input_grad[1]:
                    if grad_weight is None:
                        grad_weight = (grad_logits_CV.T @ hidden).to(weight_VD.dtype)
                    elif grad_weight.dtype == hidden.dtype:
                        grad_weight.addmm_(grad_logits_CV.T, hidden)
                    else:
                        grad_weight.add_(grad_logits_CV.T @ hidden)
        ctx.save_for_backward(torch.cat(grads_hidden) if grads_hidden else None, grad_weight)
        guessed = torch.stack(guesses).sum()
        ctx.mark_non_differentiable(guessed)
        ctx.dtypes = hidden_ND.dtype, weight_VD.dtype
        return torch.stack(sums).sum(), guessed

    @staticmethod
    def backward(ctx, scale, _):
        grad_hidden, grad_weight = ctx.saved_tensors
        hidden_dtype, weight_dtype = ctx.dtypes
        return _scaled(grad_hidden, hidden_dtype, scale), _scaled(grad_weight, weight_dtype, scale), None, None, None


def _scaled(grad: torch.Tensor | None, dtype: torch.dtype, scale: torch.Tensor) -> torch.Tensor | None:
    """A stored gradient, times that of the loss; None if nothing asks for it."""
    return None if grad is None else grad.to(dtype) * scale


def _logits_dtype(hidden_ND) -> torch.dtype:
    device_type = hidden_ND.device.type
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else hidden_ND.dtype


def _chunk(hidden_CD, weight_VD, labels_C, settings) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`(sum, guessed, gradient of the sum with respect to the logits)`, the last in the logits' dtype."""
    smoothing = settings.label_smoothing
    z_loss = settings.z_loss
    logits_CV = hidden_CD @ weight_VD.T
    counts_C = labels_C.ne(IGNORED)
    label_C1 = labels_C.clamp(min=0)[:, None]
    wide = torch.promote_types(logits_CV.dtype, torch.float32)
    log_p_CV = torch.log_softmax(logits_CV, -1, dtype=wide)
    nll_C = -log_p_CV.gather(1, label_C1)[:, 0]
    guessed = logits_CV.argmax(-1).eq(labels_C).sum() if settings.counts_guesses else labels_C.new_zeros(())
    loss_C = nll_C
    slope_C = counts_C.to(wide)
    if smoothing:
        loss_C = (1 - smoothing) * nll_C - smoothing * log_p_CV.mean(-1)
    if z_loss:
        log_z_C = logits_CV.gather(1, label_C1)[:, 0].to(wide) + nll_C
        loss_C = loss_C + z_loss * log_z_C.square()
        slope_C = slope_C * (1 + 2 * z_loss * log_z_C)
    grad_CV = log_p_CV.exp_().mul_(slope_C[:, None])
    grad_CV.scatter_add_(1, label_C1, ((smoothing - 1) * counts_C.to(wide))[:, None])
    if smoothing:
        grad_CV.sub_((smoothing / weight_VD.shape[0] * counts_C.to(wide))[:, None])
    return torch.where(counts_C, loss_C, 0.0).sum(), guessed, grad_CV.to(logits_CV.dtype)


@dataclass
class LossParts(ModelOutput):
    """A model's outputs for a batch with loss labels.

    Attributes:
      loss_sum: nats, summed over the labels that are not -100.
      guessed: how many of them are the likeliest token; 0 if not requested.
    """

    loss_sum: torch.Tensor | None = None
    guessed: torch.Tensor | None = None


def takes_loss_labels(model) -> bool:
    """Whether a model is transformers' unmodified T5 with a plain matrix as output layer:
    no learned prompts, no adapter of the output layer, no weights on other ranks or devices, no other `forward`."""
    inner = bare_model(model)
    if not has_stock_decoder(model):
        return False
    output_layer = inner.lm_head
    if type(output_layer) is not nn.Linear or output_layer.bias is not None:
        return False
    if output_layer._forward_hooks or output_layer._forward_pre_hooks:
        return False
    return hasattr(inner, "loss_of_labels") or "forward" not in vars(inner)


def accept_loss_labels(model) -> None:
    """Makes a model that `takes_loss_labels` take `loss_labels` and `loss_settings`; a second call changes nothing."""
    inner = bare_model(model)
    if not hasattr(inner, "loss_of_labels"):
        inner.loss_of_labels = MethodType(loss_of_labels, inner)
        inner.forward = MethodType(_with_labels(type(inner).forward), inner)


def _with_labels(forward):
    """A class's `forward` that returns the loss if it gets loss labels; its signature is the original one.

    Raises:
      ValueError: loss labels together with an argument of `forward` that the computation of the loss does not know.
    """
    signature = inspect.signature(forward)
    unknown_names = signature.parameters.keys() - KNOWN_ARGUMENTS - {"self", "kwargs"}

    def logits_or_loss(self, *args, loss_labels=None, **kwargs):
        if loss_labels is None:
            return forward(self, *args, **kwargs)
        unknown = sorted(name for name in unknown_names.intersection(kwargs) if kwargs[name] is not None)
        if unknown:
            raise ValueError(f"loss_labels: the loss of labels is not computed from {', '.join(unknown)}")
        return self.loss_of_labels(loss_labels, *args, **kwargs)

    logits_or_loss.__signature__ = signature
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
    kwargs.pop("labels", None)
    kwargs.pop("use_cache", None)
    inputs_embeds = kwargs.pop("inputs_embeds", None)
    decoder_inputs_embeds = kwargs.pop("decoder_inputs_embeds", None)
    encoded = model.encoder(input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, **kwargs)
    hidden_BTD = model.decoder(
        input_ids=decoder_input_ids,
        attention_mask=decoder_attention_mask,
        inputs_embeds=decoder_inputs_embeds,
        encoder_hidden_states=encoded[0],
        encoder_attention_mask=attention_mask,
        **kwargs,
    )[0]
    hidden_BTD = scaled_for_output(model, hidden_BTD)
    hidden_ND = hidden_BTD.flatten(0, 1)
    loss_sum, guessed = summed_cross_entropy(hidden_ND, model.lm_head.weight, loss_labels.flatten(), loss_settings)
    return LossParts(loss_sum, guessed)
