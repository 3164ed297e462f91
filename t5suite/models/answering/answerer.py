"""What every way of answering shares: the base class, scoring in chunks, and reading what `generate` returns.

    >>> answerer = recognize_family(model).make_answerer(model, tokenizer)
    >>> answerer.generate([[21, 7, 1]], GenerationConfig(max_new_tokens=8))          # n answers a prompt
    [[([1465, 1], None)]]
    >>> answerer.candidate_scores([[21, 7, 1]], [[[1465, 1], [2841, 1]]])            # sums of log-probabilities
    [[-0.11, -2.31]]

`read` returns a reading of a batch: the loss of its labels, and the inputs for its answers.
Shapes: B examples, P pairs of example and candidate, T target tokens, V vocabulary.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from t5suite.data.batches.collators import IGNORED
from t5suite.data.batches.encodings.special_tokens import end_id
from t5suite.models.generation_settings import ends_of

# (row, candidate) pairs that are scored at once, counted in the tokens that they attend to.
SCORED_TOKENS_AT_ONCE = 32768


@dataclass(frozen=True)
class AnswerSettings:
    """How answers are computed.

    Attributes:
      disabled_paths: fast paths that are off (`reference_code`): candidates as one tree, greedy answers without
        transformers' `generate`. They change only the speed.
      needs_nll: whether the nats of greedy answers are needed.
      num_fixed_tokens: how many of each row's first label tokens its answer begins with: a language's code.
    """

    disabled_paths: frozenset[str] = frozenset()
    needs_nll: bool = True
    num_fixed_tokens: int = 0


class Answerer(ABC):
    """One model, its tokenizer and its collator; batches go to `device`."""

    def __init__(self, model, tokenizer, collator, device, settings: AnswerSettings):
        self.model = model
        self.tokenizer = tokenizer
        self.collator = collator
        self.device = device
        self.settings = settings

    def has_fast_path(self, method: str) -> bool:
        """Whether `score` or `generate` takes its fast path with this model."""
        return False

    @property
    def eos(self) -> int:
        """The token that ends a target."""
        return end_id(self.tokenizer)

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return frozenset(ends_of(self.model, self.tokenizer))

    def generate(self, prompts, generation_config, synced: bool = False, labels=None, **options):
        """Per prompt, its answers as `(ids, log-probability)`, the best first.

        Start token, fixed tokens (of `labels`), prompt and padding are cut off; end-of-sequence stays. The
        log-probability is the sum over the tokens if the configuration requests it (`return_dict_in_generate` and
        `output_scores`), else None.
        """
        return self.read_prompts(prompts, labels).generate(generation_config, synced, **options)

    def candidate_scores(self, prompts, candidates) -> list[list[float]]:
        """Per prompt, each candidate's sum of token log-probabilities, end-of-sequence (its last token) included."""
        return self.read_prompts(prompts).candidate_scores(candidates)

    def read_prompts(self, prompts, labels=None):
        """A reading without labels, or with labels whose first tokens the answers begin with."""
        labels = labels or [[self.eos]] * len(prompts)
        features = [
            {"input_ids": prompt, "labels": row_labels} for prompt, row_labels in zip(prompts, labels, strict=True)
        ]
        return self.read(features)

    @abstractmethod
    def read(self, features):
        """A reading of examples, with the loss of their labels."""


def before_end(ids: Sequence[int], ends: Container[int]) -> list[int]:
    """An answer's tokens before the first one that ends it.

    >>> before_end([1465, 107, 0, 0], {1, 107})
    [1465]
    """
    return list(itertools.takewhile(lambda token: token not in ends, ids))


def split_answers(answerer: Answerer, generated, start: int, num_prompts: int) -> list[list[tuple]]:
    """What `generate` returned -> per prompt, its `(ids, log-probability)`.

    Args:
      start: how many columns come before the answers; they are cut off.
    """
    if torch.is_tensor(generated):
        answers = [(ids[start:], None) for ids in generated.tolist()]
    else:
        sums = _log_probability_sums(answerer, generated, start)
        sequences = generated.sequences.tolist()
        answers = [(ids[start:], total) for ids, total in zip(sequences, sums, strict=True)]
    per_prompt = len(answers) // num_prompts
    return [answers[prompt * per_prompt : (prompt + 1) * per_prompt] for prompt in range(num_prompts)]


def _log_probability_sums(answerer: Answerer, generated, start: int) -> list[float]:
    """Each generated sequence's log-probability, up to its first end-of-sequence token."""
    beams = getattr(generated, "beam_indices", None)
    steps_PT = answerer.model.compute_transition_scores(
        generated.sequences, generated.scores, beams, normalize_logits=beams is None
    )
    answers_PT = generated.sequences[:, start:]
    is_end_PT = torch.isin(answers_PT, torch.tensor(sorted(answerer.ends), device=answers_PT.device)).long()
    is_padding_PT = (is_end_PT.cumsum(dim=1) - is_end_PT).bool()[:, : steps_PT.shape[1]]
    return steps_PT.masked_fill(is_padding_PT, 0.0).sum(dim=1).tolist()  # padding has no probability


def score_pairs(candidates, score, num_attended: int, max_over_ranks) -> list[list[float]]:
    """Scores pairs of example and candidate in chunks, and groups the scores by example.

    Args:
      score: a chunk of index pairs `(example, candidate)` -> their scores.
      num_attended: the tokens that a pair attends to.
      max_over_ranks: this rank's number -> the largest over all ranks. If weights are sharded, ranks gather them in
        every forward pass, so all ranks must make the same number of passes.
    """
    pairs = [(example, place) for example, of_example in enumerate(candidates) for place in range(len(of_example))]
    chunk_size = max(1, SCORED_TOKENS_AT_ONCE // num_attended)
    num_chunks = -(-len(pairs) // chunk_size)
    scores = []
    for turn in range(max_over_ranks(num_chunks)):
        chunk = pairs[turn * chunk_size : (turn + 1) * chunk_size]
        chunk_scores = score(chunk or pairs[:1])  # a pass of this rank's that only keeps the others in step
        if turn < num_chunks:
            scores.extend(chunk_scores)
    remaining = iter(scores)
    return [[next(remaining) for _ in of_example] for of_example in candidates]


def this_rank(count: int) -> int:
    """A rank's own number, as the largest over one rank."""
    return count


def summed_nll(logits_BTV, labels_BT) -> torch.Tensor:
    """Per row, the cross-entropy summed over the labels that count, in nats."""
    nll_BT = F.cross_entropy(logits_BTV.float().transpose(1, 2), labels_BT, ignore_index=IGNORED, reduction="none")
    return nll_BT.sum(dim=1)
