"""Decoders: prompt and answer are in one row. Prompts are padded on the left, with matching positions.

Shapes: P pairs of prompt and answer, T tokens.
"""

import inspect
from functools import cached_property, partial

import torch

from t5suite.data.batches.collators import IGNORED, joined
from t5suite.models.answering.answerer import Answerer, score_pairs, split_answers, summed_nll, this_rank
from t5suite.models.classes import bare_model


class CausalAnswerer(Answerer):
    """Prompt and answer are in one row."""

    def read(self, features) -> "CausalReading":
        """Prompts and answers of a batch."""
        return CausalReading(self, features)

    def left_padded(self, prompts) -> dict[str, torch.Tensor]:
        """`input_ids` and `attention_mask` of rows that all end in the last column."""
        ids_PT = self.collator.pad_left(prompts, self.collator.pad_token_id)
        mask_PT = self.collator.pad_left([[1] * len(prompt) for prompt in prompts], 0)
        return {"input_ids": ids_PT.to(self.device), "attention_mask": mask_PT.to(self.device)}

    def answer_nll(self, pairs) -> list[float]:
        """The nats of each pair's answer, in one forward pass; logits are computed for the answers' positions only."""
        rows = [joined(prompt, answer) for prompt, answer in pairs]
        batch = self.left_padded([input_ids for input_ids, _ in rows])
        longest_answer = max(len(answer) for _, answer in pairs)
        labels_PT = self.collator.pad_left([labels for _, labels in rows], IGNORED)
        labels_PT = labels_PT[:, -longest_answer:].to(self.device)
        options = {
            "position_ids": (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0),
            "logits_to_keep": longest_answer,
        }
        parameters = inspect.signature(bare_model(self.model).forward).parameters
        options = {name: option for name, option in options.items() if name in parameters}
        logits_PTV = self.model(**batch, **options, use_cache=False).logits[:, -longest_answer:]
        return summed_nll(logits_PTV, labels_PT).tolist()


class CausalReading:
    """The prompts of a batch, and the loss of its answers, which is computed on first access."""

    def __init__(self, answerer: CausalAnswerer, features):
        self.answerer = answerer
        self.prompts = [feature["input_ids"] for feature in features]
        self.labels = [feature["labels"] for feature in features]

    @cached_property
    def nll(self) -> list[float]:
        """Nats by example."""
        return self.answerer.answer_nll(list(zip(self.prompts, self.labels, strict=True)))

    @property
    def tokens(self) -> list[int]:
        """By example, how many of its tokens count: nothing predicts a row's very first token."""
        counts = []
        for prompt, labels in zip(self.prompts, self.labels, strict=True):
            num_unpredicted = 1 if len(prompt) == 0 else 0
            counts.append(max(len(labels) - num_unpredicted, 0))
        return counts

    def generate(self, generation_config, synced: bool = False, **options):
        """As `Answerer.generate`; `options` go to transformers' `generate` (`logits_processor`, ...)."""
        batch = self.answerer.left_padded(self.prompts)
        generated = self.answerer.model.generate(
            **batch, generation_config=generation_config, synced_gpus=synced, **options
        )
        return split_answers(self.answerer, generated, batch["input_ids"].shape[1], len(self.prompts))

    def candidate_scores(self, candidates, max_over_ranks=this_rank) -> list[list[float]]:
        """Log-probabilities of each example's candidates, after its prompt; `max_over_ranks` as in `score_pairs`."""
        longest_prompt = max(len(prompt) for prompt in self.prompts)
        longest_candidate = max(len(ids) for of_example in candidates for ids in of_example)
        score = partial(self._score_chunk, candidates)
        return score_pairs(candidates, score, longest_prompt + longest_candidate, max_over_ranks)

    def _score_chunk(self, candidates, chunk: list[tuple[int, int]]) -> list[float]:
        """Scores of pairs of example and candidate, in one forward pass."""
        pairs = [(self.prompts[example], candidates[example][place]) for example, place in chunk]
        return [-nll for nll in self.answerer.answer_nll(pairs)]
