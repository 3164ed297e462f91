"""`t5suite trim --check`: the trimmed model against the untrimmed one, whose dropped logits are minus infinity.

    >>> compare_models(ComparedModels.of(source.model, trimmed, old_ids), batches)
    {'texts': 64, 'target_tokens': 2210, 'logits_difference': 1.9e-06, 'loss_difference': 0.0, ...}

Both run in float32, without dropout, on the same texts: each is the input and the target. The untrimmed model reads
the ids that the pieces had before.

Shapes: B texts, T positions, N positions with a target, V pieces before, K pieces that are left, D pieces dropped.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.nn import functional
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

from t5suite.base.errors import CheckpointError
from t5suite.export.trim_weights import vocabulary_dimensions

TOLERANCE = 1e-5
TEXTS_CHECKED = 64
TEXTS_AT_ONCE = 8
LONGEST = 64
ANSWER_LENGTH = 16
IGNORED = -100


@dataclass(frozen=True)
class Batch:
    """Texts as the trimmed model reads them.

    Attributes:
      input_ids, attention_mask, labels: int64 [B, S]; labels are -100 at the padding.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class ComparedModels:
    """A model before and after trimming, and what became of its ids.

    Attributes:
      old_ids: int64 [K], the id before of each id.
      dropped_ids: int64 [D], the ids before of the rows that are gone.
    """

    untrimmed: PreTrainedModel
    trimmed: PreTrainedModel
    old_ids: torch.Tensor
    dropped_ids: torch.Tensor

    @classmethod
    def of(cls, untrimmed: PreTrainedModel, trimmed: PreTrainedModel, old_ids: np.ndarray) -> "ComparedModels":
        """Two models, by the id before of each id."""
        num_rows = untrimmed.config.get_text_config().vocab_size
        dropped_ids = np.setdiff1d(np.arange(num_rows), old_ids)
        return cls(untrimmed, trimmed, torch.from_numpy(old_ids), torch.from_numpy(dropped_ids))


class OnlyKept(LogitsProcessor):
    """Sets the logits of dropped pieces to minus infinity."""

    def __init__(self, dropped_ids: torch.Tensor):
        self.dropped_ids = dropped_ids

    def __call__(self, input_ids, scores):
        return scores.index_fill(1, self.dropped_ids, float("-inf"))


def make_batches(tokenizer, texts: Sequence[str]) -> list[Batch]:
    """Batches of texts, each cut to 64 tokens; those of about the same length together, so that few rows are padded."""
    texts = sorted(texts, key=len)
    batches = []
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        encoding = tokenizer(
            texts[start : start + TEXTS_AT_ONCE],
            truncation=True,
            max_length=LONGEST,
            padding=True,
            padding_side="right",
            return_tensors="pt",
        )
        mask = encoding["attention_mask"]
        labels = encoding["input_ids"].masked_fill(mask == 0, IGNORED)
        batches.append(Batch(encoding["input_ids"], mask, labels))
    return batches


def compare_models(models: ComparedModels, batches: Sequence[Batch]) -> dict:
    """The largest differences of logits, losses and gradients, how many answers differ, the mass of dropped pieces."""
    models.untrimmed.zero_grad()
    models.trimmed.zero_grad()
    passes = [_compare_pass(models, batch) for batch in batches]
    masses = torch.cat([entry.mass_N for entry in passes])
    return {
        "texts": sum(len(batch.input_ids) for batch in batches),
        "target_tokens": len(masses),
        "logits_difference": _largest(entry.logits_difference for entry in passes),
        "loss_difference": _largest(entry.loss_difference for entry in passes),
        "gradients_difference": _gradients_difference(models),
        "answers_that_differ": sum(_differing_answers(models, batch) for batch in batches),
        "dropped_mass_mean": float(masses.mean()),
        "dropped_mass_most": float(masses.max()),
    }


def _largest(differences: Iterable[float]) -> float:
    """The largest one; NaN if one is NaN, which Python's `max` may pass over."""
    return float(np.max(list(differences)))


def refuse_differences(figures: dict) -> None:
    """Raises CheckpointError if a trimmed model is not the untrimmed one on the kept pieces."""
    differing = []
    for name in ("logits_difference", "loss_difference", "gradients_difference"):
        if not figures[name] <= TOLERANCE:
            differing.append(f"{name} is {figures[name]:.3g}, above {TOLERANCE:g}")
    if figures["answers_that_differ"]:
        differing.append(f"{figures['answers_that_differ']} of {figures['texts']} greedy answers differ")
    if differing:
        raise CheckpointError(f"--check: the trimmed model is not the untrimmed one: {'; '.join(differing)}")


class PassDifferences(NamedTuple):
    """How two models differ on a batch, and the probability mass that dropped pieces had at each target."""

    logits_difference: float
    loss_difference: float
    mass_N: torch.Tensor


def _compare_pass(models: ComparedModels, batch: Batch) -> PassDifferences:
    """Runs both on a batch, and adds to their gradients.

    The loss of the untrimmed model is that over the logits of kept pieces alone: with the others at minus infinity it
    is the same, and takes a tenth of the memory.
    """
    is_target_BT = batch.labels != IGNORED
    old_labels_BT = batch.labels.clone()
    old_labels_BT[is_target_BT] = models.old_ids[batch.labels[is_target_BT]]
    logits_NV = _logits(models.untrimmed, models.old_ids[batch.input_ids], old_labels_BT, batch)
    expected_NK = logits_NV.index_select(1, models.old_ids)
    logits_NK = _logits(models.trimmed, batch.input_ids, batch.labels, batch)
    targets_N = batch.labels[is_target_BT]
    with torch.no_grad():
        dropped_N = logits_NV.index_select(1, models.dropped_ids).logsumexp(1)
        mass_N = torch.sigmoid(dropped_N - expected_NK.logsumexp(1))
        logits_difference = _difference(logits_NK, expected_NK)
    expected_loss = functional.cross_entropy(expected_NK, targets_N)
    loss = functional.cross_entropy(logits_NK, targets_N)
    expected_loss.backward()
    loss.backward()
    return PassDifferences(logits_difference, _difference(loss.detach(), expected_loss.detach()), mass_N)


def _logits(model, input_ids_BT: torch.Tensor, labels_BT: torch.Tensor, batch: Batch) -> torch.Tensor:
    """The logits at the positions that have a target; shape (N, V) or (N, K)."""
    logits_BTV = model(input_ids=input_ids_BT, attention_mask=batch.attention_mask, labels=labels_BT).logits
    return logits_BTV[batch.labels != IGNORED]


def _difference(values: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, by the largest expected value, or by 1 where all of them are smaller."""
    scale = expected.abs().max().clamp(min=1)
    return float((values - expected).abs().max() / scale)


@torch.no_grad()
def _gradients_difference(models: ComparedModels) -> float:
    """The largest difference of a gradient: of rows of pieces, by the largest gradient of their tensor; of others, by
    that of the model, since some are nothing but rounding (a bias of keys has no effect on attention)."""
    dimensions = vocabulary_dimensions(models.untrimmed, len(models.old_ids))
    gradients = {name: parameter.grad for name, parameter in models.trimmed.named_parameters()}
    expected_gradients = {
        name: parameter.grad for name, parameter in models.untrimmed.named_parameters() if parameter.grad is not None
    }
    scale_of_model = max(float(expected.abs().max()) for expected in expected_gradients.values())
    differences = []
    for name, expected in expected_gradients.items():
        scale = scale_of_model
        if name in dimensions:
            expected = expected.index_select(dimensions[name], models.old_ids)
            scale = float(expected.abs().max())
        difference = float((gradients[name] - expected).abs().max())
        differences.append(difference / scale if difference else 0.0)
    return _largest(differences)


@torch.no_grad()
def _differing_answers(models: ComparedModels, batch: Batch) -> int:
    """How many greedy answers differ."""
    settings = dict(attention_mask=batch.attention_mask, num_beams=1, do_sample=False, max_new_tokens=ANSWER_LENGTH)
    only_kept = LogitsProcessorList([OnlyKept(models.dropped_ids)])
    old_input_ids = models.old_ids[batch.input_ids]
    expected_answers = models.untrimmed.generate(old_input_ids, logits_processor=only_kept, **settings)
    answers = models.old_ids[models.trimmed.generate(batch.input_ids, **settings)]
    width = max(expected_answers.shape[1], answers.shape[1])
    pad_id = int(models.old_ids[models.trimmed.config.get_text_config().pad_token_id])
    padded_answers = [
        functional.pad(ids, (0, width - ids.shape[1]), value=pad_id) for ids in (expected_answers, answers)
    ]
    return int((padded_answers[0] != padded_answers[1]).any(dim=1).sum())
