"""The loss: summed over real target tokens, divided by their global number.

    >>> token_loss(logits_BTV, labels_BT, num_items=labels_BT.ne(-100).sum())
    tensor(2.3026)

The divisor is the number of tokens of the whole update, over all micro-batches and ranks. So batch 8x1, 4x2 and 2x4,
and one or two ranks, give the same gradient. Ranks average their gradients; the Trainer multiplies the loss of each by
their number, which makes the average a sum.

Without a loss of ours, the Trainer of transformers 5.23 trains T5 with a wrong one. `T5.forward` takes `**kwargs`, so
the Trainer believes that T5 divides by `num_items_in_batch`, and multiplies a mean, which needs no factor, by the
accumulation steps and the ranks. `tests/test_training_laws.py` fails once a version of transformers no longer does so.

An encoder with a head has one label a row, [B], and V classes: the same sum over rows. Shapes: B examples, T target
tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from t5suite.data.batches.collators import IGNORED
from t5suite.models.t5.chunked_loss import LossSettings, accept_loss_labels, takes_loss_labels

# The labels of sentence pairs: BERT's next sentence, ALBERT's sentence order.
PAIR_LABELS = ("next_sentence_label", "sentence_order_label")


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
        if "loss_sum" in outputs:  # of a model that got the labels (`ask_for_loss`), and has no logits
            return outputs.loss_sum / num_items_in_batch
        return token_loss(token_logits(outputs), labels, num_items_in_batch, self.label_smoothing, self.z_loss)


@dataclass(frozen=True)
class SquaredLoss:
    """Squared differences of a head's number and the label, summed over rows and divided by their global number.

    >>> SquaredLoss()(outputs, torch.tensor([3.8, -100.0]), num_items_in_batch=1)     # outputs.logits: [[3.5], [1.0]]
    tensor(0.0900)
    """

    def __call__(self, outputs, labels_B, num_items_in_batch=None) -> torch.Tensor:
        counts_B = labels_B.ne(IGNORED)
        if num_items_in_batch is None:
            num_items_in_batch = counts_B.sum().clamp(min=1)
        differences_B = (outputs.logits[:, 0].float() - labels_B).masked_fill(~counts_B, 0.0)
        return differences_B.square().sum() / num_items_in_batch


def count_right_guesses(outputs, labels) -> torch.Tensor:
    """The number of labels, without those that are ignored, that are the most likely token."""
    if "loss_sum" in outputs:  # the model was asked to count, too (`ask_for_loss`)
        return outputs.guessed
    return (token_logits(outputs).argmax(-1).eq(labels) & labels.ne(IGNORED)).sum()


def token_logits(outputs) -> torch.Tensor:
    """A model's logits of tokens, [B, T, V]; models with a head for sentence pairs have another name for them."""
    return outputs.logits if "logits" in outputs else outputs.prediction_logits


def pair_logits(outputs) -> torch.Tensor:
    """A model's logits of its sentence pairs, [B, 2]."""
    return outputs.sop_logits if "sop_logits" in outputs else outputs.seq_relationship_logits


def count_pairs(batches: Sequence[Mapping]) -> torch.Tensor | None:
    """The number of sentence pairs with a label in an update's batches; None if they are not batches of pairs.

    >>> count_pairs([{"next_sentence_label": torch.tensor([0, 1])}, {"next_sentence_label": torch.tensor([1, -100])}])
    tensor(3)
    """
    labels = [batch[name] for batch in batches for name in PAIR_LABELS if name in batch]
    if not labels:
        return None
    return torch.stack([labels_B.ne(IGNORED).sum() for labels_B in labels]).sum()


def wrapped_losses(loss) -> Iterator:
    """A loss, then the one that it wraps (its `loss`), and so on."""
    while loss is not None:
        yield loss
        loss = getattr(loss, "loss", None)


def give_batch(loss, batch: dict) -> bool:
    """Gives a copy of a batch to each loss that reads it; returns whether any does.

    Those have a `batch` (distillation, `--batch_metrics`). A copy, because the Trainer takes the labels out of the
    batch itself. The labels of sentence pairs are taken out here: a model would compute a loss of its own from them.
    """
    parts = list(wrapped_losses(loss))
    for part in parts:
        if isinstance(part, WatchedLoss):
            part.take_pair_labels(batch)
    readers = [part for part in parts if hasattr(part, "batch")]
    for reader in readers:
        reader.batch = dict(batch)
    return bool(readers)


def counting_losses(loss) -> list:
    """Of a loss and those that it wraps, the ones that count something for the logs (with `counts`)."""
    return [part for part in wrapped_losses(loss) if hasattr(part, "counts")]


class LossWithMeans:
    """A loss around another one that logs means over an update, too; its `means` returns them.

    Attributes:
      watching: whether the update will be logged.
      batch: the next call's batch.
      counts: sums and weights of the update so far; None before its first batch. Replaced, never changed: an update
        that is repeated after running out of memory returns to an older one.
    """

    def __init__(self, loss):
        self.loss = loss
        self.watching = False
        self.batch: dict | None = None
        self.counts = None
        self._step: int | None = None

    def watch(self, step: int, logged: bool) -> None:
        """Called before each micro-batch of an update."""
        if step != self._step:
            self._step = step
            self.counts = None
        self.watching = logged
        if hasattr(self.loss, "watch"):
            self.loss.watch(step, logged)


class WatchedLoss:
    """A token loss that adds the loss of sentence pairs, and counts correct guesses in the steps that are logged.

    >>> loss.watching = True
    >>> loss(outputs, labels, num_items_in_batch)
    tensor(3.41)
    >>> loss.accuracy(ranks)     # points over the micro-batches watched, or None
    38.9

    Attributes:
      watching: whether guesses are counted, which takes a pass over the logits.
      pair_labels: [B], of the rows of the next call (`take_pair_labels`). Their cross-entropy, summed and divided by
        `num_pairs`, is added to the tokens' (arXiv:1810.04805). None: the batches have no pairs.
      num_pairs: pairs of the whole update, over all micro-batches and ranks (`begin_update`); None: each call has a
        whole update.
      counts: (right guesses, labels) since the last `accuracy`.
    """

    def __init__(self, loss):
        self.loss = loss
        self.watching = False
        self.pair_labels = None
        self.num_pairs: torch.Tensor | None = None
        self.counts = None

    def begin_update(self, batches: Sequence[Mapping], summed: Callable | None) -> None:
        """Counts the sentence pairs of an update's batches.

        Args:
          summed: a tensor -> its sum over the ranks, where target tokens are counted over them, too; else None.
        """
        self.num_pairs = count_pairs(batches)
        if self.num_pairs is not None and summed is not None:
            self.num_pairs = summed(self.num_pairs)

    def watch(self, step: int, logged: bool) -> None:
        """Begins a micro-batch; guesses are counted in steps that are logged."""
        self.watching = logged

    def take_pair_labels(self, batch: dict) -> None:
        """Takes the labels of sentence pairs, if it has any, out of the batch of the next call."""
        name = next((name for name in PAIR_LABELS if name in batch), None)
        self.pair_labels = batch.pop(name) if name else None

    def __call__(self, outputs, labels, num_items_in_batch=None) -> torch.Tensor:
        num_labels = labels.ne(IGNORED).sum()
        if self.watching:
            with torch.no_grad():
                counts = torch.stack([count_right_guesses(outputs, labels), num_labels])
                self.counts = counts if self.counts is None else self.counts + counts
        if num_items_in_batch is None:
            num_items_in_batch = num_labels.clamp(min=1)
        loss = self.loss(outputs, labels, num_items_in_batch)
        if self.pair_labels is not None:
            loss = loss + self._pair_loss(outputs)
        return loss

    def _pair_loss(self, outputs) -> torch.Tensor:
        """The losses of the batch's pairs over the update's number of pairs: the mean, summed over micro-batches.

        A pair counts once, however many of its tokens have labels.
        """
        labels_B = self.pair_labels.view(-1)
        num_pairs = self.num_pairs
        if num_pairs is None:
            num_pairs = labels_B.ne(IGNORED).sum()
        logits = pair_logits(outputs).float()
        loss = F.cross_entropy(logits, labels_B, ignore_index=IGNORED, reduction="sum")
        return loss / num_pairs.clamp(min=1)

    def summed_counts(self, ranks) -> list[int] | None:
        """`counts` over all ranks; None, on all ranks, if none was watching."""
        if self.counts is None:
            return None
        return [int(count) for count in ranks.sum(self.counts.tolist())]

    def accuracy(self, ranks) -> float | None:
        """Accuracy in points since the last call, over all ranks; None, on all ranks, if none was watching."""
        counts = self.summed_counts(ranks)
        if counts is None:
            return None
        right, total = counts
        self.counts = None
        return 100 * right / max(total, 1)


def reason_for_logits(model, loss, *, sharded: bool, fp16: bool) -> str | None:
    """Why the loss needs the logits of whole batches; None where the model can sum it, a few tokens at a time.

    Args:
      loss: the loss function as it was made, before a `WatchedLoss` is put around it.
    """
    if type(loss) is not TokenLoss:
        return "the loss is not the cross-entropy of tokens"
    if sharded:
        return "the ranks of FSDP and DeepSpeed hold parts of the weights"
    if fp16:
        return "the model computes its gradients before the loss is scaled, and they are too small in float16"
    if not takes_loss_labels(model):
        return "the model is not a plain T5 with a plain output layer"
    return None


def move_loss_into_model(
    model, loss, *, is_off: bool = False, sharded: bool = False, fp16: bool = False, chunk_tokens: int | None = None
) -> LossSettings | None:
    """Prepares the model to compute the loss itself, without the logits of a whole batch, if it can.

    Args:
      is_off: the user has switched this off (`--reference_code loss_chunks`).
      chunk_tokens: target tokens whose logits are held at once; None: a number that is fast on the device.

    Returns:
      what `ask_for_loss` takes; None if the model goes on returning logits.
    """
    if is_off or reason_for_logits(model, loss, sharded=sharded, fp16=fp16) is not None:
        return None
    accept_loss_labels(model)
    return LossSettings(loss.label_smoothing, loss.z_loss, chunk_tokens)


def ask_for_loss(inputs: dict, settings: LossSettings, loss, compiled: bool) -> dict:
    """A batch with which the model computes the loss: the loss function gets the sum of the losses, not the logits.

    The Trainer takes `labels` out before it calls the model, as the suite has its own loss function; so the model gets
    them under another name.
    """
    counts_guesses = isinstance(loss, WatchedLoss) and loss.watching
    if isinstance(loss, WatchedLoss) and compiled:
        # Otherwise there would be two compiled graphs, with counting and without; in one, counting costs nothing.
        counts_guesses = True
    settings = settings._replace(counts_guesses=counts_guesses)
    return {**inputs, "loss_labels": inputs["labels"], "loss_settings": settings}
