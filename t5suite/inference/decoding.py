"""The options of `generate` for greedy answers, beams, diverse beams or sampling.

    >>> decoding = DecodingSettings(do_sample=True, temperature=0.8, top_p=0.9, num_return_sequences=3)
    >>> decoding.check()
    >>> generation_options(decoding, model, max_new_tokens=20, draws=[(0, 0), (0, 1), (0, 2)])
    {'generation_config': ..., 'logits_processor': [...]}

Sampling draws the tokens of row r's answer number j from random numbers of only (seed, r, j): neither the batch that
a row is in, nor a restart, nor the number of processes changes what is drawn.
"""

import dataclasses

import numpy as np
import torch
from transformers.generation.logits_process import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from t5suite.base.errors import ConfigError
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.diverse_beams import diverse_beam_search
from t5suite.models.answering.call_settings import settings_of_call

# Settings without a flag keep the checkpoint's own.
LENGTHS_AND_PENALTIES = ("min_new_tokens", "repetition_penalty", "no_repeat_ngram_size", "length_penalty")
DRAWING_FLAGS = ("temperature", "top_k", "top_p")
# What a distribution goes through before the draw, in transformers' order.
WARPERS = {
    "temperature": TemperatureLogitsWarper,
    "top_h": TopHLogitsWarper,
    "top_k": TopKLogitsWarper,
    "top_p": TopPLogitsWarper,
    "min_p": MinPLogitsWarper,
    "typical_p": TypicalLogitsWarper,
    "epsilon_cutoff": EpsilonLogitsWarper,
    "eta_cutoff": EtaLogitsWarper,
}
WITHOUT_EFFECT = {"temperature": 1, "top_k": 0, "top_p": 1, "typical_p": 1, "epsilon_cutoff": 0, "eta_cutoff": 0}


def generation_options(decoding: DecodingSettings, model, max_new_tokens: int, draws, plain: bool = False) -> dict:
    """The arguments of `generate`, except the prompts.

    Args:
      plain: answers are label words: settings without a flag are neutral, as in evaluation, not the checkpoint's.
      draws: `(row, number of the answer)` of each prompt, which key its random numbers.
    """
    settings = settings_of_call(
        model,
        is_plain=plain,
        max_new_tokens=max_new_tokens,
        num_beams=decoding.num_beams,
        # `RowSampler` keeps only the drawn token, so greedy decoding in transformers picks it.
        num_return_sequences=1 if decoding.do_sample else decoding.num_return_sequences,
        **{name: getattr(decoding, name) for name in LENGTHS_AND_PENALTIES},
    )
    options = {"generation_config": settings}
    if decoding.do_sample:
        drawing = drawing_settings(decoding, None if plain else model.generation_config)
        sampler = RowSampler(uniform_numbers(decoding.seed, draws, max_new_tokens))
        options["logits_processor"] = LogitsProcessorList([*warpers_of(drawing), sampler])
    if decoding.num_beam_groups > 1:
        options["custom_generate"] = diverse_beam_search(decoding.num_beam_groups, decoding.diversity_penalty)
    return options


def drawing_settings(decoding: DecodingSettings, models_own) -> dict:
    """By the names of `WARPERS`, the flags' settings, else the model's own.

    Args:
      models_own: its generation configuration; None: what no flag gives is neutral.

    Raises:
      ConfigError: one of the model's is out of its range.
    """
    settings = {name: getattr(models_own, name, None) for name in WARPERS}
    without_flag = {name: settings[name] for name in DRAWING_FLAGS if getattr(decoding, name) is None}
    decoding = dataclasses.replace(decoding, **without_flag)
    try:
        decoding.check()
    except ConfigError as error:
        raise ConfigError(f"the model's generation_config.json: {error}; give this flag") from None
    return settings | {name: getattr(decoding, name) for name in DRAWING_FLAGS}


def warpers_of(drawing: dict) -> list[LogitsProcessor]:
    """What changes a distribution before the draw.

    Raises:
      ConfigError: one of the model's settings without a flag is out of its range.
    """
    warpers = []
    for name, warper_class in WARPERS.items():
        setting = drawing[name]
        if setting is None or setting == WITHOUT_EFFECT.get(name):
            continue
        try:
            warpers.append(warper_class(setting))
        except ValueError as error:
            raise ConfigError(f"the model's generation_config.json: {name} is {setting}: {error}") from None
    return warpers


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
