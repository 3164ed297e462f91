"""Held-out text -> negative log-likelihood of its target tokens, with the same noise every time.

    >>> report = PreTrainingEvaluator(collator, batch_size=64, accelerator=accelerator).evaluate(model, [held_out])
    >>> report.results["pre_train"].metrics
    {'nll': 2.31, 'perplexity': 10.1, 'accuracy': 52.4, 'nll_text': 2.98}

Shapes: B examples, T target tokens, V vocabulary.
"""

import math
import time
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from accelerate.utils import gather_object

from t5suite.data.batches.collators import IGNORED
from t5suite.training.eval_sets import Report, Result
from t5suite.training.losses import PAIR_LABELS, pair_logits, token_logits
from t5suite.training.samples import evenly_spread_indices

NAME = "pre_train"
# The same for every run, whatever its --seed, so that all are scored on the same noise; no run's seed is that large.
EVALUATION_SEED = 2**63


@dataclass
class HeldOut:
    """Examples to be scored (`examples[i]` -> what the collator takes), with their name in results.

    Attributes:
      control_ids: sentinels, end of sequence and other ids that are not text; `nll_text` excludes them.
    """

    examples: object
    control_ids: Collection[int] = field(default_factory=frozenset)
    name: str = NAME

    @property
    def features(self):
        return self.examples


class PreTrainingEvaluator:
    """Scores examples by the mean negative log-likelihood of a target token, each once on any number of ranks.

    nll and nll_text are in nats per token, the latter only over tokens of text; accuracy is in points: how often the
    most likely token, given the true ones before it, is the right one.

    Args:
      collator: makes batches; its noise should be that of `EVALUATION_SEED`.
      accelerator: for autocast, the device and the ranks.

    Attributes:
      tokenizer, num_samples: the guesses for so many examples are kept, as text, in `Result.samples`.
    """

    def __init__(self, collator, batch_size: int, accelerator, progress=None):
        self.collator, self.batch_size, self.accelerator, self.progress = collator, batch_size, accelerator, progress
        self.check_stop = lambda: None
        self.tokenizer, self.num_samples = None, 0

    def evaluate(self, model, eval_sets: list[HeldOut], selection_metric: str | None = None) -> Report:
        """Every set's nll; their negative mean selects checkpoints."""
        was_training = model.training
        model.eval()
        with torch.no_grad(), self.accelerator.autocast():
            results = {eval_set.name: self._evaluate_set(model, eval_set) for eval_set in eval_sets}
        model.train(was_training)
        values = {name: -result.loss for name, result in results.items()}
        return Report(results, sum(values.values()) / len(values), values)

    def _evaluate_set(self, model, eval_set: HeldOut) -> Result:
        started = time.perf_counter()
        wanted = frozenset(evenly_spread_indices(len(eval_set.examples), self.num_samples))
        found, samples = self._over_ranks(model, eval_set, wanted)
        assert sorted(index for index, _ in found) == list(range(len(eval_set.examples)))
        nll, tokens, right, nll_of_text, text_tokens, *pairs = (
            math.fsum(sums) for sums in zip(*(sums for _, sums in found), strict=True)
        )
        nll = nll / max(tokens, 1)
        metrics = {
            "nll": nll,
            "perplexity": math.exp(nll) if nll < 700 else math.inf,
            "accuracy": 100 * right / max(tokens, 1),
            "nll_text": nll_of_text / text_tokens if text_tokens else math.nan,
        }
        if pairs:
            metrics["pair_accuracy"] = 100 * pairs[0] / pairs[1]
        return Result(
            name=eval_set.name,
            metrics=metrics,
            predictions=[],
            num_rows=len(eval_set.examples),
            seconds=time.perf_counter() - started,
            loss=nll,
            truncated=0,
            method="nll",
            marks=[],
            labelled=True,
            samples=[samples[number] for number in sorted(samples)],
        )

    def _over_ranks(self, model, eval_set: HeldOut, wanted=frozenset()):
        """`(example, its sums)` of every rank, and `{example: its sample}`; empty batches keep the ranks in step."""
        num_examples = len(eval_set.examples)
        starts = range(0, num_examples, self.batch_size)
        rank, world_size = self.accelerator.process_index, self.accelerator.num_processes
        control_ids = torch.tensor(sorted(eval_set.control_ids), device=self.accelerator.device, dtype=torch.long)
        found, samples = [], {}
        turns = range(math.ceil(len(starts) / world_size))
        for turn in self.progress(turns, eval_set.name) if self.progress else turns:
            self.check_stop()
            mine = turn * world_size + rank
            numbers = (
                range(starts[mine], min(starts[mine] + self.batch_size, num_examples)) if mine < len(starts) else ()
            )
            keep = {place: number for place, number in enumerate(numbers) if number in wanted}
            sums, kept = self._sums(model, [eval_set.examples[i] for i in numbers], control_ids, keep)
            found.extend(zip(numbers, sums))
            samples.update(kept)
        if world_size > 1:
            found = gather_object(found)
            samples = dict(item for part in gather_object([samples]) for item in part.items()) if wanted else {}
        return found, samples

    def _sums(self, model, examples, control_ids, keep=None) -> tuple[list[list[float]], dict[int, dict]]:
        """For each example: nll of its targets in nats, their number, those guessed right; nll and number of text;
        with sentence pairs: whether the pair was guessed right, and 1. And the samples of `{place: example}` in `keep`.
        """
        batch = {key: value.to(self.accelerator.device) for key, value in self.collator(examples).items()}
        labels_BT = batch.pop("labels")
        pair_labels_B = next((batch.pop(name) for name in PAIR_LABELS if name in batch), None)
        outputs = model(**batch)
        logits_BTV = token_logits(outputs).float()
        nll_BT = F.cross_entropy(logits_BTV.transpose(1, 2), labels_BT, ignore_index=IGNORED, reduction="none")
        kept_BT = labels_BT.ne(IGNORED)
        text_BT = kept_BT & ~torch.isin(labels_BT, control_ids)
        right_BT = logits_BTV.argmax(-1).eq(labels_BT) & kept_BT
        parts = [nll_BT, kept_BT, right_BT, nll_BT * text_BT, text_BT]
        sums = [part_BT.double().sum(dim=1) for part_BT in parts]
        if pair_labels_B is not None:
            right_B = pair_logits(outputs).argmax(-1).eq(pair_labels_B.view(-1))
            sums += [right_B.double(), torch.ones_like(right_B, dtype=torch.float64)]
        guesses_BT = logits_BTV.argmax(-1) if keep else None
        samples = {}
        for place, number in (keep or {}).items():
            read, kept_T = batch["attention_mask"][place].bool(), kept_BT[place]
            parts = batch["input_ids"][place][read], labels_BT[place][kept_T], guesses_BT[place][kept_T]
            texts = [self.tokenizer.decode(ids.tolist()) for ids in parts]
            named = dict(zip(("input", "target", "prediction"), texts, strict=True))
            samples[number] = {"row": number, **named, "right": bool(parts[1].equal(parts[2]))}
        return torch.stack(sums, dim=1).tolist(), samples


def unigram_entropies(collator, held_out: HeldOut, batch_size: int = 128) -> dict[str, float]:
    """What the best model without context would score on the same targets: the entropy of their own frequencies.

    >>> unigram_entropies(collator, held_out)
    {'unigram_nll': 5.71, 'unigram_nll_text': 6.83}

    In nats per token: over all targets, and over those that are text. No unigram model, whatever text its counts are
    from, does better than this one, which has seen the answers (Gibbs' inequality).
    """
    counts = np.zeros(0, dtype=np.int64)
    for start in range(0, len(held_out.examples), batch_size):
        examples = [held_out.examples[i] for i in range(start, min(start + batch_size, len(held_out.examples)))]
        labels = collator(examples)["labels"].numpy()
        counted = np.bincount(labels[labels != IGNORED])
        counts = np.pad(counts, (0, max(0, len(counted) - len(counts))))
        counts[: len(counted)] += counted
    of_text = counts.copy()
    of_text[[i for i in held_out.control_ids if i < len(counts)]] = 0
    return {"unigram_nll": entropy(counts), "unigram_nll_text": entropy(of_text)}


def entropy(counts: np.ndarray) -> float:
    """Entropy in nats of relative frequencies.

    >>> round(entropy(np.array([2, 1, 0, 1])), 4)
    1.0397
    """
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(shares * np.log(shares)).sum()) + 0.0
