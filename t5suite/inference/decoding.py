"""How answers are written: greedy, beams, diverse beams or sampling, and the options of `generate` for it.

    >>> decoding = Decoding(do_sample=True, temperature=0.8, top_p=0.9, num_return_sequences=3)
    >>> decoding.check()
    >>> generation_options(decoding, model, max_new_tokens=20, draws=[(0, 0), (0, 1), (0, 2)])
    {'generation_config': ..., 'logits_processor': [...]}

Sampling draws the tokens of row r's answer number j from random numbers of only (seed, r, j): neither the batch that
a row is in, nor a restart, nor the number of processes changes what is drawn.
"""

import numpy as np
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from t5suite.base.libraries import require_proved
from t5suite.inference.settings import Decoding
from t5suite.models.caches import CACHE
from t5suite.training.evaluation import PLAIN_WRITING


def generation_options(decoding: Decoding, model, max_new_tokens: int, draws, plain: bool = False) -> dict:
    """The arguments of `generate`, except the prompts.

    Args:
      plain: answers are label words: settings without a flag are neutral, as in evaluation, not the checkpoint's.
      draws: `(row, number of the answer)` of each prompt, which key its random numbers.
    """
    config = model.config.get_text_config()
    names = ("repetition_penalty", "no_repeat_ngram_size", "length_penalty")
    given = {name: getattr(decoding, name) for name in names if getattr(decoding, name) is not None}
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        min_new_tokens=decoding.min_new_tokens,
        num_beams=decoding.num_beams,
        # `RowSampler` keeps only the drawn token, so greedy decoding in transformers picks it.
        do_sample=False,
        num_return_sequences=1 if decoding.do_sample else decoding.num_return_sequences,
        pad_token_id=config.pad_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=getattr(config, "decoder_start_token_id", None),
        **{**(PLAIN_WRITING if plain else {}), **given},
    )
    options = {"generation_config": settings}
    if decoding.do_sample:
        warpers = [TemperatureLogitsWarper(decoding.temperature)] if decoding.temperature not in (None, 1.0) else []
        warpers += [TopKLogitsWarper(decoding.top_k)] if decoding.top_k else []
        warpers += [TopPLogitsWarper(decoding.top_p)] if decoding.top_p not in (None, 1.0) else []
        sampler = RowSampler(uniform_numbers(decoding.seed, draws, max_new_tokens))
        options["logits_processor"] = LogitsProcessorList([*warpers, sampler])
    if decoding.num_beam_groups > 1:
        penalty = decoding.diversity_penalty or 0.0
        options["custom_generate"] = diverse_beam_search(decoding.num_beam_groups, penalty)
    return options


class RowSampler(LogitsProcessor):
    """Keeps one token of each row's distribution, drawn by inverting its cumulative sum in float64.

    Args:
      uniforms_BT: a number in [0, 1) for each row and step.
    """

    def __init__(self, uniforms_BT: np.ndarray):
        self.uniforms_BT = torch.from_numpy(uniforms_BT)
        self.step = 0

    def __call__(self, input_ids, scores):
        """`scores` (B, V) with all but one token of each row at minus infinity."""
        column = min(self.step, self.uniforms_BT.shape[1] - 1)  # transformers may run one step too many on a GPU
        self.step += 1
        uniforms_B1 = self.uniforms_BT[:, column : column + 1].to(scores.device)
        cumulative_BV = torch.softmax(scores.double(), dim=-1).cumsum(dim=-1)
        tokens_B1 = torch.searchsorted(cumulative_BV, uniforms_B1 * cumulative_BV[:, -1:], right=True)
        tokens_B1 = tokens_B1.clamp(max=scores.shape[-1] - 1)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens_B1, 0.0)


def uniform_numbers(seed: int, draws, steps: int) -> np.ndarray:
    """Numbers in [0, 1), `steps` for each `(row, number of the answer)`; from Philox, keyed by seed and row.

    >>> uniform_numbers(42, [(7, 0)], 2).shape
    (1, 2)
    """
    numbers = [
        np.random.Generator(np.random.Philox(key=[seed, row], counter=[0, 0, 0, answer])).random(steps)
        for row, answer in draws
    ]
    return np.stack(numbers) if numbers else np.zeros((0, steps))


# Below every real score: beams that must not be chosen yet.
NEVER = -1e9


def diverse_beam_search(num_beam_groups: int, diversity_penalty: float):
    """A decoding loop for `generate(custom_generate=...)`."""
    require_proved("diverse_beams")

    def decode(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs):
        search = GroupSearch(input_ids, num_beam_groups, diversity_penalty, generation_config)
        while not search.done:
            first = search.steps == 0
            cached = model_kwargs.get("use_cache") and not first
            inputs = model.prepare_inputs_for_generation(
                search.ids, next_sequence_length=1 if cached else None, is_first_iteration=first, **model_kwargs
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


class GroupSearch:
    """The beams of a batch, and the answers that have ended.

    Args:
      input_ids: (B * N, tokens so far), each row N times.

    Attributes:
      ids: (B * N, tokens) of the running beams; a row's groups are consecutive.
      done: no beam can add anything to the answers any more.
    """

    def __init__(self, input_ids, num_groups: int, penalty: float, config):
        self.ids, self.penalty, self.config = input_ids, penalty, config
        self.groups, self.beams = num_groups, config.num_beams // num_groups
        self.rows = len(input_ids) // config.num_beams
        self.start = input_ids.shape[1]
        self.steps, self.done = 0, False
        self.length_penalty = 1.0 if config.length_penalty is None else config.length_penalty
        eos = config._eos_token_tensor
        self.eos = set() if eos is None else set(eos.tolist())
        # All beams of a group are equal at first: only one may be continued.
        self.scores_BGK = input_ids.new_full((self.rows, num_groups, self.beams), NEVER, dtype=torch.float)
        self.scores_BGK[:, :, 0] = 0.0
        # By row and group: the best `beams` ended answers, as (score, ids), best first; and whether no better can come.
        self.ended = [[[] for _ in range(num_groups)] for _ in range(self.rows)]
        self.settled = [[False] * num_groups for _ in range(self.rows)]
        self.pad = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)

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
        origins, tokens = list(range(len(self.ids))), [self.pad] * len(self.ids)
        for group in range(self.groups):
            scores_BKV = log_probs_BGKV[:, group] - self.penalty * chosen_BV[:, None]
            total_BX = (scores_BKV + self.scores_BGK[:, group, :, None]).flatten(1)
            # Every beam may end in each of the end tokens, and K others must continue.
            best = total_BX.topk(min(self.beams * (1 + max(1, len(self.eos))), total_BX.shape[1]), dim=1)
            for row, (totals, places) in enumerate(zip(best.values.tolist(), best.indices.tolist(), strict=True)):
                if self.settled[row][group]:
                    continue
                first = (row * self.groups + group) * self.beams
                found = [
                    (total, first + place // vocabulary, place % vocabulary) for total, place in zip(totals, places)
                ]
                kept, chosen = self._choose(self.ended[row][group], found)
                if len(self.ended[row][group]) == self.beams:
                    # The best score that a running beam can still reach, as transformers estimates it.
                    reachable = totals[0] / self.steps**self.length_penalty
                    settled = self.config.early_stopping is True or self.ended[row][group][-1][0] >= reachable
                    self.settled[row][group] = settled
                if not self.settled[row][group]:  # else its beams stop, and only ended answers count
                    chosen += [token for _, _, token in kept]
                for token in chosen:
                    chosen_BV[row, token] += 1
                for beam, (total, origin, token) in enumerate(kept):
                    origins[first + beam], tokens[first + beam] = origin, token
                    self.scores_BGK[row, group, beam] = total
        origin, token = (self.ids.new_tensor(values) for values in (origins, tokens))
        self.ids = torch.cat([self.ids[origin], token[:, None]], dim=1)
        settled = all(all(groups) for groups in self.settled)
        self.done = settled or self.ids.shape[1] >= self.config.max_length
        return origin

    def _choose(self, ended: list, found: list) -> tuple[list[tuple[float, int, int]], list[int]]:
        """`(the K continuations (score, beam, token) that are kept, end tokens of those that joined the answers)`."""
        kept, tokens = [], []
        for rank, (total, beam, token) in enumerate(found):
            if token not in self.eos:
                kept.append((total, beam, token))
            elif rank < self.beams:
                ended.append((total / self.steps**self.length_penalty, [*self.ids[beam].tolist(), token]))
                tokens.append(token)
            if len(kept) == self.beams:
                break
        ended.sort(key=lambda answer: -answer[0])
        del ended[self.beams :]
        return kept, tokens

    def answers(self):
        """(B * num_return_sequences, tokens): each row's best answers, padded at their ends."""
        found = []
        length = max(self.ids.shape[1] - self.start, 1) ** self.length_penalty
        for row in range(self.rows):
            of_row = []
            for group in range(self.groups):
                ended, first = list(self.ended[row][group]), (row * self.groups + group) * self.beams
                if not self.settled[row][group]:  # cut off: its running beams also count
                    scores = self.scores_BGK[row, group].tolist()
                    ended += [(total / length, self.ids[first + beam].tolist()) for beam, total in enumerate(scores)]
                of_row += sorted(ended, key=lambda answer: -answer[0])[: self.beams]
            of_row.sort(key=lambda answer: -answer[0])
            found += [ids for _, ids in of_row[: self.config.num_return_sequences]]
        longest = max(map(len, found))
        return self.ids.new_tensor([ids + [self.pad] * (longest - len(ids)) for ids in found])
