"""Diverse beam search as a decoding loop for transformers' `generate`: groups that avoid each other's tokens.

    >>> loop = diverse_beam_search(num_beam_groups=2, diversity_penalty=0.5)
    >>> model.generate(**batch, num_beams=4, custom_generate=loop)

Each group of beams is searched in turn; a token's score is lowered by the penalty for each time that an earlier group
has chosen it in this step (arXiv:1610.02424). Transformers 5 has it only as code of the hub.
"""

from typing import NamedTuple

import torch

from t5suite.base.libraries import require_proved
from t5suite.models.caches import CACHE

# Below every real score: beams that must not be chosen yet.
NEVER = -1e9


def diverse_beam_search(num_beam_groups: int, diversity_penalty: float):
    """A decoding loop for `generate(custom_generate=...)`."""
    require_proved("diverse_beams")

    def decode(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs):
        search = GroupSearch(input_ids, num_beam_groups, diversity_penalty, generation_config)
        while not search.done:
            is_first = search.steps == 0
            continues_cache = model_kwargs.get("use_cache") and not is_first
            inputs = model.prepare_inputs_for_generation(
                search.ids,
                next_sequence_length=1 if continues_cache else None,
                is_first_iteration=is_first,
                **model_kwargs,
            )
            outputs = model(**inputs, return_dict=True)
            model_kwargs = model._update_model_kwargs_for_generation(
                outputs, model_kwargs, is_encoder_decoder=model.config.is_encoder_decoder
            )
            log_probs = torch.log_softmax(outputs.logits[:, -1].float(), dim=-1)
            beams = search.advance(logits_processor(search.ids, log_probs))
            cache = model_kwargs.get(CACHE)
            if cache is not None:
                cache.reorder_cache(beams)
        return search.answers()

    return decode


class Continuation(NamedTuple):
    """A beam with one token more: its score, the beam's row of `GroupSearch.ids`, the token."""

    score: float
    beam: int
    token: int


class EndedAnswer(NamedTuple):
    """A finished answer: its score, divided by its length's power, and all its tokens."""

    score: float
    ids: list[int]


class GroupSearch:
    """The beams of a batch, and the answers that have ended.

    Args:
      input_ids: (B * N, tokens so far), each row N times.

    Attributes:
      ids: (B * N, tokens) of the running beams; a row's groups are consecutive.
      done: no beam can add anything to the answers any more.
    """

    def __init__(self, input_ids, num_groups: int, penalty: float, config):
        self.ids = input_ids
        self.penalty = penalty
        self.config = config
        self.groups = num_groups
        self.beams = config.num_beams // num_groups
        self.rows = len(input_ids) // config.num_beams
        self.start = input_ids.shape[1]
        self.steps = 0
        self.done = False
        self.length_penalty = 1.0 if config.length_penalty is None else config.length_penalty
        end_tokens = _end_tokens(config)
        self.eos = set(end_tokens)
        # All beams of a group are equal at first: only one may be continued.
        self.scores_BGK = input_ids.new_full((self.rows, num_groups, self.beams), NEVER, dtype=torch.float)
        self.scores_BGK[:, :, 0] = 0.0
        # By row and group: the best `beams` ended answers, best first; and whether no better can come.
        self.ended: list[list[list[EndedAnswer]]] = [[[] for _ in range(num_groups)] for _ in range(self.rows)]
        self.settled = [[False] * num_groups for _ in range(self.rows)]
        self.pad = config.pad_token_id
        if self.pad is None:  # as `generate` pads
            self.pad = end_tokens[0] if end_tokens else 0

    def advance(self, log_probs):
        """Extends every beam by one token.

        Args:
          log_probs: (B * N, V).

        Returns:
          the index of the beam that each beam continues, to reorder the cache.
        """
        self.steps += 1
        vocabulary = log_probs.shape[-1]
        log_probs_BGKV = log_probs.view(self.rows, self.groups, self.beams, vocabulary)
        chosen_BV = log_probs.new_zeros(self.rows, vocabulary)
        # The beams of a settled group stay as they are, and are padded.
        origins = list(range(len(self.ids)))
        tokens = [self.pad] * len(self.ids)
        for group in range(self.groups):
            scores_BKV = log_probs_BGKV[:, group] - self.penalty * chosen_BV[:, None]
            for row, continuations in enumerate(self._best_continuations(group, scores_BKV)):
                if self.settled[row][group]:
                    continue
                continued, chosen_tokens = self._advance_group(row, group, continuations)
                for token in chosen_tokens:
                    chosen_BV[row, token] += 1
                for place, continuation in enumerate(continued, start=self._first_beam(row, group)):
                    origins[place] = continuation.beam
                    tokens[place] = continuation.token
        origins = self.ids.new_tensor(origins)
        tokens = self.ids.new_tensor(tokens)
        self.ids = torch.cat([self.ids[origins], tokens[:, None]], dim=1)
        is_settled = all(all(groups) for groups in self.settled)
        self.done = is_settled or self.ids.shape[1] >= self.config.max_length
        return origins

    def _first_beam(self, row: int, group: int) -> int:
        """The place of a group's first beam in `ids`."""
        return (row * self.groups + group) * self.beams

    def _best_continuations(self, group: int, scores_BKV) -> list[list[Continuation]]:
        """Of each row, a group's likeliest continuations, best first.

        Every beam may end in each of the end tokens, and K others must continue.
        """
        vocabulary = scores_BKV.shape[-1]
        total_BX = (scores_BKV + self.scores_BGK[:, group, :, None]).flatten(1)
        count = min(self.beams * (1 + max(1, len(self.eos))), total_BX.shape[1])
        best = total_BX.topk(count, dim=1)
        continuations = []
        for row, (totals, places) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
            first_beam = self._first_beam(row, group)
            continuations.append(
                [
                    Continuation(total, first_beam + place // vocabulary, place % vocabulary)
                    for total, place in zip(totals, places)
                ]
            )
        return continuations

    def _advance_group(
        self, row: int, group: int, continuations: list[Continuation]
    ) -> tuple[list[Continuation], list[int]]:
        """`(the K continuations of the group's beams, tokens that later groups should avoid)`."""
        continued, chosen_tokens = self._choose(self.ended[row][group], continuations)
        self._settle(row, group, best_total=continuations[0].score)
        if not self.settled[row][group]:  # else its beams stop, and only ended answers count
            chosen_tokens += [continuation.token for continuation in continued]
        for beam, continuation in enumerate(continued):
            self.scores_BGK[row, group, beam] = continuation.score
        return continued, chosen_tokens

    def _settle(self, row: int, group: int, best_total: float) -> None:
        """Notes whether a group's running beams can still reach a better score than its ended answers."""
        ended = self.ended[row][group]
        if len(ended) < self.beams:
            return
        # The best score that a running beam can still reach, as transformers estimates it.
        reachable = best_total / self.steps**self.length_penalty
        self.settled[row][group] = self.config.early_stopping is True or ended[-1].score >= reachable

    def _choose(
        self, ended: list[EndedAnswer], continuations: list[Continuation]
    ) -> tuple[list[Continuation], list[int]]:
        """`(the K continuations that go on, end tokens of those that joined the answers)`."""
        continued = []
        end_tokens = []
        for rank, continuation in enumerate(continuations):
            if continuation.token not in self.eos:
                continued.append(continuation)
            elif rank < self.beams:
                ids = [*self.ids[continuation.beam].tolist(), continuation.token]
                ended.append(EndedAnswer(continuation.score / self.steps**self.length_penalty, ids))
                end_tokens.append(continuation.token)
            if len(continued) == self.beams:
                break
        ended.sort(key=_descending_score)
        del ended[self.beams :]
        return continued, end_tokens

    def answers(self):
        """(B * num_return_sequences, tokens): each row's best answers, padded at their ends."""
        answers = []
        for row in range(self.rows):
            answers_of_row = []
            for group in range(self.groups):
                answers_of_row += self._answers_of_group(row, group)
            answers_of_row.sort(key=_descending_score)
            answers += answers_of_row[: self.config.num_return_sequences]
        longest = max(len(answer.ids) for answer in answers)
        return self.ids.new_tensor([answer.ids + [self.pad] * (longest - len(answer.ids)) for answer in answers])

    def _answers_of_group(self, row: int, group: int) -> list[EndedAnswer]:
        """A group's best answers; where it was cut off, its running beams also count."""
        answers = list(self.ended[row][group])
        if not self.settled[row][group]:
            length = max(self.ids.shape[1] - self.start, 1) ** self.length_penalty
            first_beam = self._first_beam(row, group)
            for beam, total in enumerate(self.scores_BGK[row, group].tolist()):
                answers.append(EndedAnswer(total / length, self.ids[first_beam + beam].tolist()))
        return sorted(answers, key=_descending_score)[: self.beams]


def _end_tokens(config) -> list[int]:
    """The tokens that end an answer: a generation's settings have none, one or several."""
    if config.eos_token_id is None:
        return []
    return torch.as_tensor(config.eos_token_id).flatten().tolist()


def _descending_score(answer: EndedAnswer) -> float:
    return -answer.score
