"""Encoders with a head: they generate no text, but give a score for each of their classes, or a number.

Shapes: B examples, S source tokens, C classes.
"""

import numpy as np
import torch
import torch.nn.functional as F

from t5suite.data.batches.collators import IGNORED
from t5suite.models.answering.answerer import Answerer


class HeadAnswerer(Answerer):
    """A head over an encoder."""

    def read(self, features) -> "HeadReading":
        """The head's outputs for a batch."""
        return HeadReading(self, features)

    def class_scores(self, features) -> list[list[float]]:
        """Log-probabilities of the classes, in the order of the model's `id2label`; a regression's one number."""
        return self.read(features).scores


class HeadReading:
    """The head's outputs for a batch, and their loss: nats of the class (or of every word's), or squared differences.

    Attributes:
      nll, tokens: by example; an example counts for one, or for as many as it has labels.
      scores: [B][C], log-probabilities, or the numbers; [B][words][C] where every word has a label.
    """

    def __init__(self, answerer: HeadAnswerer, features):
        features = [{"labels": [IGNORED], **feature} for feature in features]
        batch = {name: tensor.to(answerer.device) for name, tensor in answerer.collator(features).items()}
        labels = batch.pop("labels")
        logits = answerer.model(**batch).logits.float()
        if answerer.model.config.problem_type == "regression":
            loss_B, self.scores = _read_numbers(logits, labels)
        elif logits.ndim == 3:
            loss_B, self.scores = _read_words(logits, labels, features)
        else:
            loss_B, self.scores = _read_classes(logits, labels)
        self.nll = loss_B.tolist()
        self.tokens = labels.ne(IGNORED).long().reshape(len(labels), -1).sum(1).tolist()


def _read_numbers(logits_B1, labels_B) -> tuple[torch.Tensor, list]:
    """Squared differences, and the numbers."""
    loss_B = (logits_B1[:, 0] - labels_B).square().masked_fill(labels_B == IGNORED, 0.0)
    return loss_B, logits_B1.tolist()


def _read_words(logits_BSC, labels_BS, features) -> tuple[torch.Tensor, list]:
    """Nats summed over each row's labels, and log-probabilities at the first token of each word."""
    loss_BS = F.cross_entropy(logits_BSC.mT, labels_BS, ignore_index=IGNORED, reduction="none")
    log_p_BSC = logits_BSC.log_softmax(-1)
    scores = []
    for row, feature in enumerate(features):
        word_starts = np.flatnonzero(np.asarray(feature["labels"]) != IGNORED)
        scores.append(log_p_BSC[row, word_starts].tolist())
    return loss_BS.sum(1), scores


def _read_classes(logits_BC, labels_B) -> tuple[torch.Tensor, list]:
    """Nats of each row's class, and log-probabilities."""
    loss_B = F.cross_entropy(logits_BC, labels_B, ignore_index=IGNORED, reduction="none")
    return loss_B, logits_BC.log_softmax(-1).tolist()
