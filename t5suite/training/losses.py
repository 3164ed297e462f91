"""The loss: summed over real target tokens, divided by their global number.

    >>> token_loss(logits_BTV, labels_BT, num_items=labels_BT.ne(-100).sum())
    tensor(2.3026)

Dividing by the number of tokens of the whole update (all micro-batches, all ranks) makes batch 8x1, 4x2 and 2x4 and
one or two ranks give the same loss and gradient. transformers 5.23 multiplies T5's loss by accumulation steps and
ranks instead: `T5.forward` takes `**kwargs`, so its Trainer believes the model divides by `num_items_in_batch`
(`tests/test_training_laws.py` tells when that is gone). Shapes: B examples, T target tokens, V vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from t5suite.data.collators import IGNORED


def token_loss(logits_BTV, labels_BT, num_items, label_smoothing: float = 0.0, z_loss: float = 0.0) -> torch.Tensor:
    """Cross-entropy in nats per token, computed in float32.

    Args:
      num_items: what the sum is divided by: the global number of labels that are not -100.
      label_smoothing: share of the target given to the uniform distribution over the vocabulary.
      z_loss: weight of log(Z)^2, which keeps the softmax's normaliser near 1 (Mesh TensorFlow; T5 used 1e-4).
    """
    logits = logits_BTV.reshape(-1, logits_BTV.shape[-1]).float()
    labels = labels_BT.reshape(-1)
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum", label_smoothing=label_smoothing)
    if z_loss:
        log_z = torch.logsumexp(logits, dim=-1)
        loss = loss + z_loss * (log_z.square() * labels.ne(IGNORED)).sum()
    return loss / num_items


@dataclass(frozen=True)
class TokenLoss:
    """`token_loss` as the trainer's `compute_loss_func(outputs, labels, num_items_in_batch)`."""

    label_smoothing: float = 0.0
    z_loss: float = 0.0

    def __call__(self, outputs, labels, num_items_in_batch=None) -> torch.Tensor:
        if num_items_in_batch is None:
            num_items_in_batch = labels.ne(IGNORED).sum().clamp(min=1)
        return token_loss(outputs.logits, labels, num_items_in_batch, self.label_smoothing, self.z_loss)
