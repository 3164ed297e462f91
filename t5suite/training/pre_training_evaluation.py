"""Held-out text -> negative log-likelihood of its target tokens, with the same noise every time.

    >>> report = PreTrainingEvaluator(collator, batch_size=64, accelerator=accelerator).evaluate(model, [held_out])
    >>> report.results["pre_train"].metrics
    {'nll': 2.31, 'perplexity': 10.1, 'accuracy': 52.4, 'nll_text': 2.98}

Shapes: B examples, T target tokens, V vocabulary.
"""

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from accelerate.utils import gather_object

from t5suite.data.batches.collators import IGNORED
from t5suite.training.evaluation import advising_on_memory, never_stop
from t5suite.training.evaluation_report import Report, Result
from t5suite.training.losses import PAIR_LABELS, pair_logits, token_logits
from t5suite.training.samples import evenly_spread_indices

NAME = "pre_train"
# The same for every run, whatever its --seed, so that all are scored on the same noise; no run's seed is that large.
EVALUATION_SEED = 2**63
# Examples that are collated at once to count their targets.
COUNTED_AT_ONCE = 128


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
      progress: `(turns, name)` -> the same turns, shown as a progress bar; None shows none.
      tokenizer, num_samples: the guesses for so many examples are kept, as text, in `Result.samples`.
    """

    def __init__(
        self,
        collator,
        batch_size: int,
        accelerator,
        progress: Callable | None = None,
        *,
        tokenizer=None,
        num_samples: int = 0,
    ):
        self.collator = collator
        self.batch_size = batch_size
        self.accelerator = accelerator
        self.progress = progress
        self.tokenizer = tokenizer
        self.num_samples = num_samples

    def evaluate(
        self,
        model,
        eval_sets: list[HeldOut],
        selection_metric: str | None = None,
        check_stop: Callable[[], None] = never_stop,
    ) -> Report:
        """Every set's nll; their negative mean selects checkpoints.

        Args:
          check_stop: called before every batch, on all ranks; what it raises ends the evaluation.
        """
        was_training = model.training
        model.eval()
        with torch.no_grad(), self.accelerator.autocast():
            results = {eval_set.name: self._evaluate_set(model, eval_set, check_stop) for eval_set in eval_sets}
        model.train(was_training)
        values = {name: -result.loss for name, result in results.items()}
        return Report(results, sum(values.values()) / len(values), values)

    def _evaluate_set(self, model, eval_set: HeldOut, check_stop: Callable[[], None]) -> Result:
        started = time.perf_counter()
        num_examples = len(eval_set.examples)
        sampled = frozenset(evenly_spread_indices(num_examples, self.num_samples))
        sums, samples = self._over_ranks(model, eval_set, sampled, check_stop)
        assert sorted(index for index, _ in sums) == list(range(num_examples))
        metrics = metrics_of_sums([math.fsum(column) for column in zip(*(row for _, row in sums), strict=True)])
        return Result(
            name=eval_set.name,
            metrics=metrics,
            predictions=[],
            num_rows=num_examples,
            seconds=time.perf_counter() - started,
            loss=metrics["nll"],
            truncated=0,
            method="nll",
            marks=[],
            labelled=True,
            samples=[samples[number] for number in sorted(samples)],
        )

    def _over_ranks(self, model, eval_set: HeldOut, sampled: frozenset[int], check_stop: Callable[[], None]):
        """`(example, its sums)` of every rank, and `{example: its sample}`; empty batches keep the ranks in step."""
        num_examples = len(eval_set.examples)
        rank = self.accelerator.process_index
        world_size = self.accelerator.num_processes
        control_ids = torch.tensor(sorted(eval_set.control_ids), device=self.accelerator.device, dtype=torch.long)
        sums = []
        samples = {}
        turns = range(math.ceil(math.ceil(num_examples / self.batch_size) / world_size))
        for turn in self.progress(turns, eval_set.name) if self.progress else turns:
            check_stop()
            start = (turn * world_size + rank) * self.batch_size
            numbers = range(start, min(start + self.batch_size, num_examples))
            with advising_on_memory(eval_set.name, len(numbers)):
                sums_of_batch, samples_of_batch = self._evaluate_batch(model, eval_set, numbers, sampled, control_ids)
            sums += sums_of_batch
            samples |= samples_of_batch
        if world_size > 1:
            sums = gather_object(sums)
            samples = dict(item for part in gather_object([samples]) for item in part.items()) if sampled else {}
        return sums, samples

    def _evaluate_batch(self, model, eval_set: HeldOut, numbers: range, sampled: frozenset[int], control_ids):
        """`(example, its sums)` and `{example: its sample}`; the logits are freed before the next batch is computed."""
        batch = self._batch([eval_set.examples[number] for number in numbers])
        guesses = self._guesses(model, batch)
        samples = {}
        for place, number in enumerate(numbers):
            if number in sampled:
                samples[number] = self._sample(number, place, batch, guesses)
        return list(zip(numbers, guesses.sums(control_ids))), samples

    def _batch(self, examples: list) -> dict[str, torch.Tensor]:
        return {key: tensor.to(self.accelerator.device) for key, tensor in self.collator(examples).items()}

    def _guesses(self, model, batch: dict[str, torch.Tensor]) -> "Guesses":
        """What a model makes of a batch, whose labels it does not get."""
        pair_name = next((name for name in PAIR_LABELS if name in batch), None)
        not_inputs = ("labels", pair_name)
        outputs = model(**{name: tensor for name, tensor in batch.items() if name not in not_inputs})
        pair_right_B = None
        if pair_name is not None:
            pair_right_B = pair_logits(outputs).argmax(-1).eq(batch[pair_name].view(-1))
        return Guesses(token_logits(outputs).float(), batch["labels"], pair_right_B)

    def _sample(self, number: int, place: int, batch: dict[str, torch.Tensor], guesses: "Guesses") -> dict:
        """An example's input, targets and guesses as text."""
        is_read_S = batch["attention_mask"][place].bool()
        counts_T = guesses.labels_BT[place].ne(IGNORED)
        targets = guesses.labels_BT[place][counts_T]
        predictions = guesses.logits_BTV[place].argmax(-1)[counts_T]
        return {
            "row": number,
            "input": self.tokenizer.decode(batch["input_ids"][place][is_read_S].tolist()),
            "target": self.tokenizer.decode(targets.tolist()),
            "prediction": self.tokenizer.decode(predictions.tolist()),
            "right": bool(targets.equal(predictions)),
        }


@dataclass(frozen=True)
class Guesses:
    """A model's logits for a batch, the labels, and whether each guess about a pair of sentences is right."""

    logits_BTV: torch.Tensor
    labels_BT: torch.Tensor
    pair_right_B: torch.Tensor | None

    def sums(self, control_ids: torch.Tensor) -> list[list[float]]:
        """For each example: nll of its targets in nats, their number, those guessed right; nll and number of text; with
        sentence pairs: whether the pair was guessed right, and 1.
        """
        nll_BT = F.cross_entropy(
            self.logits_BTV.transpose(1, 2), self.labels_BT, ignore_index=IGNORED, reduction="none"
        )
        counts_BT = self.labels_BT.ne(IGNORED)
        is_text_BT = counts_BT & ~torch.isin(self.labels_BT, control_ids)
        right_BT = self.logits_BTV.argmax(-1).eq(self.labels_BT) & counts_BT
        parts = [nll_BT, counts_BT, right_BT, nll_BT * is_text_BT, is_text_BT]
        sums = [part_BT.double().sum(dim=1) for part_BT in parts]
        if self.pair_right_B is not None:
            right_B = self.pair_right_B.double()
            sums += [right_B, torch.ones_like(right_B)]
        return torch.stack(sums, dim=1).tolist()


def metrics_of_sums(totals: list[float]) -> dict[str, float]:
    """The metrics of a set, from the totals of `Guesses.sums`."""
    nll_sum, num_tokens, num_right, text_nll_sum, num_text_tokens, *pairs = totals
    nll = nll_sum / max(num_tokens, 1)
    metrics = {
        "nll": nll,
        "perplexity": math.exp(nll) if nll < 700 else math.inf,
        "accuracy": 100 * num_right / max(num_tokens, 1),
        "nll_text": text_nll_sum / num_text_tokens if num_text_tokens else math.nan,
    }
    if pairs:
        pairs_right, num_pairs = pairs
        metrics["pair_accuracy"] = 100 * pairs_right / num_pairs
    return metrics


def unigram_entropies(collator, held_out: HeldOut) -> dict[str, float]:
    """What the best model without context would score on the same targets: the entropy of their own frequencies.

    >>> unigram_entropies(collator, held_out)
    {'unigram_nll': 5.71, 'unigram_nll_text': 6.83}

    In nats per token: over all targets, and over those that are text. No unigram model, whatever text its counts are
    from, does better than this one, which has seen the answers (Gibbs' inequality).
    """
    counts = np.zeros(0, dtype=np.int64)
    for start in range(0, len(held_out.examples), COUNTED_AT_ONCE):
        end = min(start + COUNTED_AT_ONCE, len(held_out.examples))
        examples = [held_out.examples[i] for i in range(start, end)]
        labels = collator(examples)["labels"].numpy()
        batch_counts = np.bincount(labels[labels != IGNORED])
        counts = np.pad(counts, (0, max(0, len(batch_counts) - len(counts))))
        counts[: len(batch_counts)] += batch_counts
    text_counts = counts.copy()
    text_counts[[i for i in held_out.control_ids if i < len(counts)]] = 0
    return {"unigram_nll": entropy(counts), "unigram_nll_text": entropy(text_counts)}


def entropy(counts: np.ndarray) -> float:
    """Entropy in nats of relative frequencies.

    >>> round(entropy(np.array([2, 1, 0, 1])), 4)
    1.0397
    """
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(shares * np.log(shares)).sum()) + 0.0
