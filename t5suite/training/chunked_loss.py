"""For a trainer: the model is given the labels and tells the loss, where that is exact; no logits of a whole batch.

    >>> class Trainer(ChunkedLoss, Seq2SeqTrainer): ...
    >>> trainer.chunk_loss()
    True
    >>> trainer.compute_loss(model, batch, num_items_in_batch=96)         # as before, to rounding

`--loss_chunk_tokens` says how many target tokens' logits are there at once; 0 brings back the logits of the whole
batch, as do, by themselves, `hindrance`'s reasons.
"""

import logging

from t5suite.models.chunked_cross_entropy import LossSettings
from t5suite.models.head_loss import accept_loss_labels, takes_loss_labels
from t5suite.training.losses import TokenLoss, WatchedLoss
from t5suite.training.plug_ins import MeasuredLoss

logger = logging.getLogger(__name__)


def hindrance(trainer) -> str | None:
    """Why a trainer needs the logits of its batches; None where it does not."""
    if type(trainer.compute_loss_func) is not TokenLoss:
        return "the loss is not the cross-entropy of tokens"
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
      chunked: what the model makes the loss with, None where it makes logits.
    """

    chunked: LossSettings | None = None

    def chunk_loss(self) -> bool:
        """From now on the model computes the loss, if it can; returns whether it does. `compute_loss_func` may be
        replaced later by what looks at the loss; by `--batch_metrics`, which look at logits, it is given them."""
        tokens = getattr(self.args, "loss_chunk_tokens", None)
        reason = "" if tokens == 0 else hindrance(self)
        if reason is None:
            accept_loss_labels(self.model)
            loss = self.compute_loss_func
            self.chunked = LossSettings(loss.label_smoothing, loss.z_loss, tokens)
        elif tokens:
            logger.warning("--loss_chunk_tokens %d has no effect: %s", tokens, reason)
        return reason is None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        """Gives the model the labels, too; the loss function finds the sum of the losses in place of logits."""
        loss = self.compute_loss_func
        if self.chunked is not None and not (return_outputs or isinstance(loss, MeasuredLoss)):
            # Compiled, a step that counts and one that does not would be two graphs; fused, counting costs nothing.
            counts = isinstance(loss, WatchedLoss) and (loss.watching or self.args.torch_compile)
            settings = self.chunked._replace(counts_guesses=counts)
            inputs = {**inputs, "loss_labels": inputs["labels"], "loss_settings": settings}
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
