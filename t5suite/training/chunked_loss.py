"""For a trainer: the model is given the labels and tells the loss, where that is exact; no logits of a whole batch.

    >>> class Trainer(ChunkedLoss, Seq2SeqTrainer): ...
    >>> trainer.chunk_loss()
    True
    >>> trainer.compute_loss(model, batch, num_items_in_batch=96)         # as before, to rounding

`--loss_chunk_tokens` says how many target tokens' logits are there at once; 0 brings back the logits of the whole
batch, as do, by themselves, `hindrance`'s reasons.
"""

import logging

import torch

from t5suite.models.chunked_cross_entropy import LossSettings
from t5suite.models.head_loss import accept_loss_labels, takes_loss_labels
from t5suite.training.losses import TokenLoss, WatchedLoss

logger = logging.getLogger(__name__)


def hindrance(trainer) -> str | None:
    """Why a trainer needs the logits of its batches; None where it does not."""
    loss = trainer.compute_loss_func
    loss = loss.loss if isinstance(loss, WatchedLoss) else loss
    if type(loss) is not TokenLoss:
        return "the loss is another one than the cross-entropy of tokens, or its outputs are looked at"
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        return "the ranks of FSDP and DeepSpeed hold parts of the weights"
    if trainer.args.fp16:
        return "gradients in float16 are too small without the loss's scale"
    if not takes_loss_labels(trainer.model):
        return "the model is no plain T5 with a plain output layer"
    return None


class ChunkedLoss:
    """A mixin that stands before a `transformers.Trainer` whose loss is a `TokenLoss`.

    Attributes:
      chunks_loss: whether the model computes it.
    """

    chunks_loss = False

    def chunk_loss(self) -> bool:
        """From now on the model computes the loss, if it can; returns whether it does."""
        tokens = getattr(self.args, "loss_chunk_tokens", None)
        reason = "" if tokens == 0 else hindrance(self)
        if reason is None:
            accept_loss_labels(self.model)
        elif tokens:
            logger.warning("--loss_chunk_tokens %d has no effect: %s", tokens, reason)
        self.chunks_loss = reason is None
        return self.chunks_loss

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Gives the model the labels, from which the loss function then takes its number alone."""
        loss = self.compute_loss_func
        watches = isinstance(loss, WatchedLoss)
        tokens = loss.loss if watches else loss
        if self.chunks_loss and type(tokens) is TokenLoss and torch.is_grad_enabled() and not return_outputs:
            chunk = getattr(self.args, "loss_chunk_tokens", None)
            settings = LossSettings(tokens.label_smoothing, tokens.z_loss, chunk, watches and loss.watching)
            inputs = {**inputs, "loss_labels": inputs["labels"], "loss_settings": settings}
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
