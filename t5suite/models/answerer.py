"""What answers for a model: its parts that all families share.

    >>> class Mute(Answerer):
    ...     def read(self, features): ...                              # a reading of examples, see `Answerer.read`

Shapes: P pairs of example and candidate, or prompts times answers; T tokens.
"""

from abc import ABC, abstractmethod

import torch

# (row, candidate) pairs that are scored at once, counted in the tokens that they attend to.
SCORED_TOKENS_AT_ONCE = 32768


class Answerer(ABC):
    """One model, its tokenizer and its collator.

    Attributes:
      trees: whether candidates are read as one tree, where the model can (`tree_decoding`).
      quick: whether greedy answers are written without transformers' `generate`, where the model can
        (`greedy_decoding`).
        The two change nothing but the time that it takes.
      tells_nll: whether the nats of greedy answers will be asked for.
    """

    def __init__(self, model, tokenizer, collator, device):
        self.model = model
        self.tokenizer = tokenizer
        self.collator = collator
        self.device = device
        self.trees = self.quick = self.tells_nll = True

    def is_quick(self, method: str) -> bool:
        """Whether `score` or `generate` goes its quick way with this model."""
        return False

    @property
    def eos(self) -> int:
        """The token that ends an answer."""
        eos = self.tokenizer.eos_token_id
        return self.tokenizer.sep_token_id if eos is None else eos

    def generate(self, prompts, generation_config, synced: bool = False, **options):
        """Per prompt, its answers as `(ids, log-probability)`, the best first.

        Start token, prompt and padding are cut off; end-of-sequence stays. The sum of the tokens' log-probabilities is
        there where the configuration asks for it (`return_dict_in_generate` and `output_scores`), else None.
        """
        return self.read_prompts(prompts).generate(generation_config, synced, **options)

    def candidate_scores(self, prompts, candidates) -> list[list[float]]:
        """Per prompt, each candidate's sum of token log-probabilities, end-of-sequence (its last token) included."""
        return self.read_prompts(prompts).candidate_scores(candidates)

    def read_prompts(self, prompts):
        """A reading without labels."""
        return self.read([{"input_ids": prompt, "labels": [self.eos]} for prompt in prompts])

    @abstractmethod
    def read(self, features):
        """A reading of examples, with the loss of their labels."""


def begin_generating(reading, generation_config, synced: bool):
    """What waits for the answers of a reading; where it can, a GPU goes on meanwhile."""
    if hasattr(reading, "begin_generating"):
        return reading.begin_generating(generation_config, synced)
    answers = reading.generate(generation_config, synced)
    return lambda: answers


def begin_choosing(reading, candidates, most):
    """What waits for the place of each example's likeliest candidate, the first of equals."""
    if hasattr(reading, "begin_choosing"):
        return reading.begin_choosing(candidates, most)
    scores = reading.candidate_scores(candidates, most)
    return lambda: places_of_best(scores)


def places_of_best(scores) -> list[int]:
    """The place of each row's best score, the first of equals.

    >>> places_of_best([[-2.0, -1.0, -1.0]])
    [1]
    """
    return [max(range(len(of_row)), key=lambda place, of_row=of_row: of_row[place]) for of_row in scores]


def answers_of(answerer: Answerer, written, start: int, number: int):
    """What `generate` wrote -> per prompt, its `(ids, log-probability)`; `start` columns are cut off."""
    if torch.is_tensor(written):
        flat = [(ids[start:], None) for ids in written.tolist()]
    else:
        beams = getattr(written, "beam_indices", None)
        steps_PT = answerer.model.compute_transition_scores(
            written.sequences, written.scores, beams, normalize_logits=beams is None
        )
        ends_PT = written.sequences[:, start:].eq(answerer.eos).long()
        behind_PT = (ends_PT.cumsum(dim=1) - ends_PT).bool()[:, : steps_PT.shape[1]]  # padding has no probability
        sums = steps_PT.masked_fill(behind_PT, 0.0).sum(dim=1).tolist()
        flat = [(ids[start:], total) for ids, total in zip(written.sequences.tolist(), sums, strict=True)]
    return [flat[i * len(flat) // number : (i + 1) * len(flat) // number] for i in range(number)]


def scores_of_pairs(candidates, score, attended: int, most) -> list[list[float]]:
    """Scores pairs of example and candidate in chunks, and puts them together by example.

    Args:
      score: a chunk of pairs `(example, candidate)`, as numbers -> their scores.
      attended: the tokens that a pair attends to.
    """
    pairs = [(b, c) for b, of_example in enumerate(candidates) for c in range(len(of_example))]
    at_once = max(1, SCORED_TOKENS_AT_ONCE // attended)
    num_chunks = -(-len(pairs) // at_once)
    flat = []
    for turn in range(most(num_chunks)):
        scores = score(pairs[turn * at_once : (turn + 1) * at_once] or pairs[:1])
        if turn < num_chunks:
            flat.extend(scores)
    found = iter(flat)
    return [[next(found) for _ in of_example] for of_example in candidates]
