"""`t5suite trim --check`: the trimmed model against the untrimmed one, whose dropped logits are minus infinity.

    >>> compare_models(source.model, trimmed, batches)
    {'texts': 64, 'target_tokens': 2210, 'logits_difference': 1.9e-06, 'loss_difference': 0.0, ...}

Both run in float32, without dropout, on the same texts: each is the input and the target. The untrimmed model reads
the ids that the pieces had before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional
from transformers import LogitsProcessor, LogitsProcessorList

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


def make_batches(tokenizer, texts: Sequence[str]) -> list[Batch]:
    """Batches of texts, each cut to 64 tokens."""
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


class OnlyKept(LogitsProcessor):
    """Sets the logits of dropped pieces to minus infinity."""

    def __init__(self, dropped_V: torch.Tensor):
        self.dropped_V = dropped_V

    def __call__(self, input_ids, scores):
        return scores.masked_fill(self.dropped_V, float("-inf"))


def compare_models(model, trimmed, kept_ids: np.ndarray, batches: Sequence[Batch]) -> dict:
    """The largest differences of logits, losses and gradients, the answers that differ, and the dropped pieces' mass.

    Args:
      model: the untrimmed one.
      kept_ids: int64 [V'], the id before of each id.
    """
    rows = model.config.get_text_config().vocab_size
    index = torch.as_tensor(kept_ids)
    dropped_V = torch.ones(rows, dtype=torch.bool)
    dropped_V[index] = False
    figures = {
        "texts": sum(len(batch.input_ids) for batch in batches),
        "target_tokens": sum(int((batch.labels != IGNORED).sum()) for batch in batches),
    }
    model.zero_grad()
    trimmed.zero_grad()
    passes = [_compare_pass(model, trimmed, index, dropped_V, batch) for batch in batches]
    figures["logits_difference"] = max(entry["logits"] for entry in passes)
    figures["loss_difference"] = max(entry["loss"] for entry in passes)
    figures["gradients_difference"] = _gradients_difference(model, trimmed, index)
    answers = [_differing_answers(model, trimmed, index, dropped_V, batch) for batch in batches]
    figures["answers_that_differ"] = sum(answers)
    masses = torch.cat([entry["mass"] for entry in passes])
    figures["dropped_mass_mean"] = float(masses.mean())
    figures["dropped_mass_most"] = float(masses.max())
    return figures


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


def _compare_pass(model, trimmed, index, dropped_V, batch: Batch) -> dict:
    """Runs both on a batch, adds to their gradients, and returns the differences."""
    labels = _with_old_ids(batch.labels, index)
    old_inputs = index[batch.input_ids]
    logits_BTV = model(input_ids=old_inputs, attention_mask=batch.attention_mask, labels=labels).logits
    small_BTV = trimmed(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels).logits
    present = batch.labels != IGNORED
    with torch.no_grad():
        kept_logits = logits_BTV[present][:, index]
        largest = max(1.0, float(kept_logits.abs().max()))
        difference = float((kept_logits - small_BTV[present]).abs().max()) / largest
        log_shares = logits_BTV[present].double().log_softmax(-1)
        mass = log_shares[:, dropped_V].exp().sum(-1)
        del log_shares, kept_logits
    loss = functional.cross_entropy(
        logits_BTV.masked_fill(dropped_V, float("-inf")).flatten(0, 1), labels.flatten(), ignore_index=IGNORED
    )
    small_loss = functional.cross_entropy(small_BTV.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED)
    loss.backward()
    small_loss.backward()
    loss_difference = abs(loss.item() - small_loss.item()) / max(1.0, abs(loss.item()))
    return {"logits": difference, "loss": loss_difference, "mass": mass}


def _with_old_ids(labels: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.where(labels == IGNORED, labels, index[labels.clamp(min=0)])


@torch.no_grad()
def _gradients_difference(model, trimmed, index) -> float:
    """The largest difference of a gradient: of rows of pieces, by the largest gradient of their tensor; of others, by
    that of the model, since some are nothing but rounding (a bias of keys has no effect on attention)."""
    dimensions = vocabulary_dimensions(model, len(index))
    small_gradients = {name: parameter.grad for name, parameter in trimmed.named_parameters()}
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    scale_of_model = max(float(gradient.abs().max()) for gradient in gradients.values())
    differences = []
    for name, gradient in gradients.items():
        scale = scale_of_model
        if name in dimensions:
            gradient = gradient.index_select(dimensions[name], index)
            scale = float(gradient.abs().max())
        difference = float((gradient - small_gradients[name]).abs().max())
        differences.append(difference / scale if difference else 0.0)
    return max(differences)


@torch.no_grad()
def _differing_answers(model, trimmed, index, dropped_V, batch: Batch) -> int:
    """How many greedy answers differ."""
    settings = dict(attention_mask=batch.attention_mask, num_beams=1, do_sample=False, max_new_tokens=ANSWER_LENGTH)
    only_kept = LogitsProcessorList([OnlyKept(dropped_V)])
    answers = model.generate(index[batch.input_ids], logits_processor=only_kept, **settings)
    small_answers = index[trimmed.generate(batch.input_ids, **settings)]
    width = max(answers.shape[1], small_answers.shape[1])
    pad_id = int(index[trimmed.config.get_text_config().pad_token_id])
    padded = [functional.pad(ids, (0, width - ids.shape[1]), value=pad_id) for ids in (answers, small_answers)]
    return int((padded[0] != padded[1]).any(dim=1).sum())
