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
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from t5suite.base.errors import ConfigError
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.diverse_beams import diverse_beam_search
from t5suite.training.evaluation import plain_writing

# Settings without a flag keep the checkpoint's own.
LENGTHS_AND_PENALTIES = ("min_new_tokens", "repetition_penalty", "no_repeat_ngram_size", "length_penalty")
DRAWING = ("temperature", "top_k", "top_p")


def generation_options(decoding: DecodingSettings, model, max_new_tokens: int, draws, plain: bool = False) -> dict:
    """The arguments of `generate`, except the prompts.

    Args:
      plain: answers are label words: settings without a flag are neutral, as in evaluation, not the checkpoint's.
      draws: `(row, number of the answer)` of each prompt, which key its random numbers.
    """
    flag_values = {name: getattr(decoding, name) for name in LENGTHS_AND_PENALTIES}
    flag_settings = {name: value for name, value in flag_values.items() if value is not None}
    neutral_settings = plain_writing(model.generation_config) if plain else {}
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        num_beams=decoding.num_beams,
        # `RowSampler` keeps only the drawn token, so greedy decoding in transformers picks it.
        do_sample=False,
        num_return_sequences=1 if decoding.do_sample else decoding.num_return_sequences,
        **{**neutral_settings, **flag_settings},
    )
    options = {"generation_config": settings}
    if decoding.do_sample:
        drawing = decoding if plain else with_models_drawing(decoding, model.generation_config)
        options["logits_processor"] = sampling_processors(drawing, draws, max_new_tokens)
    if decoding.num_beam_groups > 1:
        diversity_penalty = decoding.diversity_penalty or 0.0
        options["custom_generate"] = diverse_beam_search(decoding.num_beam_groups, diversity_penalty)
    return options


def with_models_drawing(decoding: DecodingSettings, generation_config) -> DecodingSettings:
    """The settings with the model's own temperature, top-k and top-p where none is given.

    Raises:
      ConfigError: one of the model's is out of its range.
    """
    names = [name for name in DRAWING if getattr(decoding, name) is None]
    models_own = dataclasses.replace(decoding, **{name: getattr(generation_config, name, None) for name in names})
    try:
        models_own.check()
    except ConfigError as error:
        raise ConfigError(f"the model's generation_config.json: {error}; give this flag") from None
    return models_own


def sampling_processors(decoding: DecodingSettings, draws, max_new_tokens: int) -> LogitsProcessorList:
    """Temperature, top-k, top-p, then the draw."""
    processors = LogitsProcessorList()
    if decoding.temperature not in (None, 1.0):
        processors.append(TemperatureLogitsWarper(decoding.temperature))
    if decoding.top_k:
        processors.append(TopKLogitsWarper(decoding.top_k))
    if decoding.top_p not in (None, 1.0):
        processors.append(TopPLogitsWarper(decoding.top_p))
    processors.append(RowSampler(uniform_numbers(decoding.seed, draws, max_new_tokens)))
    return processors


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
