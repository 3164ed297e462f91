"""A model and its tokenizer -> answers to texts, in batches of similar length, shared among the ranks.

    >>> predictor = Predictor(model, encoding, batch_size=16)
    >>> predictor.answers(["rte sentence1: It rains. sentence2: It is wet."], Decoding(), max_new_tokens=5)
    [[Answer(text='entailment', score=None, truncated=False)]]
    >>> predictor.choices(["sst2 sentence: Good."], [["negative", "positive"]])
    [Verdict(text='positive', shares={'negative': 0.02, 'positive': 0.98})]

Batches are made of all the texts given, longest first, and dealt out to the ranks: which texts share a batch does not
depend on the number of ranks.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from t5suite.data.batches.encodings import PromptEncoding, SegmentEncoding, number_text
from t5suite.inference.decoding import generation_options
from t5suite.inference.settings import Decoding
from t5suite.models.answering import answerer_for
from t5suite.models.configs import check_length
from t5suite.training.evaluation import batches_by_length
from t5suite.training.processes.ranks import Ranks


class Answer(NamedTuple):
    """One answer: its text, its log-probability in nats (where asked for), whether it was cut off at its longest."""

    text: str
    score: float | None
    truncated: bool


class Verdict(NamedTuple):
    """What was chosen, and every choice's probability (None for a number)."""

    text: str
    shares: dict[str, float] | None


class Predictor:
    """Answers texts with one model.

    Args:
      encoding: texts as ids and back, in the way of the model's family (`t5suite.data.batches.encodings`).
      family: seq2seq, causal or masked, if not what the model's class says.
      ranks: who else answers the same texts.
      synced: weights lie in pieces on several ranks, which make the same number of forward passes therefore.
    """

    def __init__(
        self, model, encoding, batch_size: int = 16, family=None, ranks=None, synced: bool = False, device=None
    ):
        self.model = model
        self.encoding = encoding
        self.batch_size = batch_size
        self.ranks = ranks or Ranks()
        self.synced = synced
        self.answerer = answerer_for(model, encoding.tokenizer, family, device=device)
        self.writes = not isinstance(encoding, SegmentEncoding)

    def answers(
        self,
        texts: Sequence[str],
        decoding: Decoding,
        max_new_tokens: int,
        indices: Sequence[int] | None = None,
        scores: bool = False,
        plain: bool = False,
    ) -> list[list[Answer]]:
        """Per text, its answers: one, or `num_return_sequences` of them, the best (or first drawn) first.

        Args:
          indices: the rows' numbers, by which random numbers are drawn; 0, 1, ... without them.
          scores: also each answer's sum of token log-probabilities, end-of-sequence included where it was written:
            the model's own, before temperature, penalties and cuts.
          plain: answers are label words (`generation_options`).
        """
        indices = range(len(texts)) if indices is None else indices
        drawn = decoding.num_return_sequences if decoding.do_sample else 1
        prompts = self.encoding.prompts(texts)
        self._check_positions(prompts, max_new_tokens)

        def answer(places):
            repeated = [(place, number) for place in places for number in range(drawn)]
            draws = [(indices[place], number) for place, number in repeated]
            options = generation_options(decoding, self.model, max_new_tokens, draws, self.synced, plain)
            written = self.answerer.generate([prompts[p] for p, _ in repeated], synced=self.synced, **options)
            ids = [self._ended(found) for of_prompt in written for found, _ in of_prompt]
            each = len(ids) // len(places)
            by_text = [ids[i * each : (i + 1) * each] for i in range(len(places))]
            sums = self._sums([prompts[place] for place in places], by_text) if scores else None
            return [self._as_answers(of_text, sums[i] if sums else None) for i, of_text in enumerate(by_text)]

        return self._over_ranks([len(prompt) for prompt in prompts], answer)

    def choices(self, texts: Sequence[str], candidates: Sequence[Sequence[str]]) -> list["Verdict"]:
        """Per text, the likeliest candidate (the first of equals) and all shares.

        Shares are the softmax over the candidates' sums of token log-probabilities, end-of-sequence included.
        """
        prompts = self.encoding.prompts(texts)
        unique = sorted({text for of_text in candidates for text in of_text})
        ids = dict(zip(unique, self.encoding.answers(unique), strict=True))

        def choose(places):
            return self._sums([prompts[i] for i in places], [[ids[text] for text in candidates[i]] for i in places])

        found = self._over_ranks([len(prompt) for prompt in prompts], choose)
        shares = [
            dict(zip(of_text, softmax(sums), strict=True)) for of_text, sums in zip(candidates, found, strict=True)
        ]
        return [Verdict(max(of_text, key=of_text.get), of_text) for of_text in shares]

    def classes(
        self, segments: Sequence[tuple[str, ...]], limits: tuple[float, float] = (-math.inf, math.inf)
    ) -> list["Verdict"]:
        """Per text (one segment, or a pair), what an encoder's head says: a word and all shares, or a number.

        Args:
          limits: the least and the greatest number that an answer can be.
        """
        tokenizer, limit = self.encoding.tokenizer, self.encoding.lengths.source
        encoded = [tokenizer(*texts, max_length=limit, truncation="longest_first") for texts in segments]
        names = ("input_ids", "token_type_ids") if self.encoding.has_types else ("input_ids",)
        features = [{name: of_text[name] for name in names if name in of_text} for of_text in encoded]

        def classify(places):
            return self.answerer.class_scores([features[place] for place in places])

        found = self._over_ranks([len(feature["input_ids"]) for feature in features], classify)
        words = self.encoding.words
        if words is None:
            return [Verdict(number_text(value, *limits), None) for (value,) in found]
        shares = [dict(zip(words, softmax(scores), strict=True)) for scores in found]
        return [Verdict(max(of_text, key=of_text.get), of_text) for of_text in shares]

    def _check_positions(self, prompts, max_new_tokens: int) -> None:
        """A decoder-only model has its answer in the prompt's row."""
        behind = max_new_tokens if isinstance(self.encoding, PromptEncoding) else 0
        if prompts:
            check_length(self.model.config, max(map(len, prompts)) + behind, "--max_source_length or --max_new_tokens")

    def _sums(self, prompts, candidates) -> list[list[float]]:
        reading = self.answerer.read_prompts(prompts)
        return reading.candidate_scores(candidates, self._most) if self.synced else reading.candidate_scores(candidates)

    def _ended(self, ids: list[int]) -> list[int]:
        """Up to the first end-of-sequence token, that one included; without one, what is no padding."""
        if self.answerer.eos in ids:
            return ids[: ids.index(self.answerer.eos) + 1]
        pad = self.answerer.collator.pad_token_id
        while ids and ids[-1] == pad:
            ids = ids[:-1]
        return ids or [self.answerer.eos]

    def _as_answers(self, of_text, sums) -> list[Answer]:
        texts = self.encoding.texts(of_text)
        sums = sums or [None] * len(texts)
        eos = self.answerer.eos
        return [Answer(text, total, ids[-1] != eos) for text, total, ids in zip(texts, sums, of_text, strict=True)]

    def _over_ranks(self, lengths, answer) -> list:
        """Every batch is computed by one rank; where passes must match, the others compute something meanwhile."""
        batches = batches_by_length(lengths, self.batch_size)
        was_training = self.model.training
        self.model.eval()
        found = self.ranks.all_succeed(self._mine, batches, answer)
        self.model.train(was_training)
        everything = {place: item for part in self.ranks.gather(found) for place, item in part.items()}
        return [everything[place] for place in range(len(lengths))]

    @torch.no_grad()
    def _mine(self, batches, answer) -> dict:
        """This rank's batches: place -> answer."""
        found = {}
        for turn in range(-(-len(batches) // self.ranks.world_size)):
            mine = turn * self.ranks.world_size + self.ranks.rank
            if mine < len(batches):
                found.update(zip(batches[mine], answer(batches[mine]), strict=True))
            elif self.synced:
                answer(batches[0])
        return found

    def _most(self, number: int) -> int:
        return max(self.ranks.gather(number))


def softmax(scores: Sequence[float]) -> list[float]:
    """Probabilities of log-probabilities that need not add up to one.

    >>> softmax([0.0, 0.0])
    [0.5, 0.5]
    """
    highest = max(scores)
    weights = [math.exp(score - highest) for score in scores]
    return [weight / sum(weights) for weight in weights]
