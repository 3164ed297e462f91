"""The settings of one call of `generate`: the caller's, and those of the model's own that answers are written with.

>>> settings = settings_of_call(model, is_plain=True, max_new_tokens=8, num_beams=1)
>>> with generating_by(model, settings):
...     model.generate(**batch, generation_config=settings)
"""

import contextlib
import copy
import threading
import weakref
from collections.abc import Iterator, Mapping

from transformers import GenerationConfig

from t5suite.models.answering.greedy import NEUTRAL_SETTINGS, SETTINGS_WITHOUT_EFFECT
from t5suite.models.classes import bare_model

# A model's own settings that no answer is written with. `inference.decoding` draws; a forced end would hide that an
# answer is cut off.
UNHEEDED = frozenset(
    "do_sample temperature top_h top_k top_p min_p typical_p epsilon_cutoff eta_cutoff num_beams num_return_sequences "
    "max_length max_new_tokens forced_eos_token_id return_dict_in_generate output_scores output_logits "
    "output_attentions output_hidden_states".split()
)
# All that label words and numbers are written with, whatever the model was used for before (a summarizer's shortest
# answer, say). The forced first token is a language's in mBART.
HEEDED_FOR_LABELS = frozenset(
    "pad_token_id bos_token_id eos_token_id decoder_start_token_id forced_bos_token_id use_cache".split()
)
OF_BEAMS = frozenset(["early_stopping", "length_penalty"])
# Of each model: while a thread generates, the model has the settings of its call.
LOCKS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def is_heeded(name: str, is_plain: bool, is_encoder_decoder: bool, num_beams: int) -> bool:
    """Whether answers are written with a model's own setting of this name, where the caller gives none.

    Args:
      is_plain: answers are label words, sets of them, or numbers.
    """
    if is_plain:
        return name in HEEDED_FOR_LABELS
    if name == "min_length":  # behind a prompt it counts the prompt and its padding
        return is_encoder_decoder
    if name in OF_BEAMS:
        return num_beams > 1
    return name not in UNHEEDED


def settings_with_effect(models_own: Mapping, num_beams: int) -> dict:
    """Of a model's own settings, those that change what transformers writes.

    >>> settings_with_effect({"max_length": 20, "no_repeat_ngram_size": 3, "min_length": 0, "do_sample": True}, 1)
    {'no_repeat_ngram_size': 3, 'do_sample': True}
    """
    without_effect = SETTINGS_WITHOUT_EFFECT
    if num_beams > 1:
        without_effect = without_effect - OF_BEAMS
    settings = {}
    for name, setting in models_own.items():
        if name not in without_effect and setting not in (None, NEUTRAL_SETTINGS.get(name)):
            settings[name] = setting
    return settings


def settings_of_call(model, is_plain: bool, num_beams: int, **settings) -> GenerationConfig:
    """All settings of a call of `generate`, to be used within `generating_by`; a setting of None is the model's own."""
    with _lock_of(model):
        models_own = copy.deepcopy(bare_model(model).generation_config)
    is_encoder_decoder = model.config.is_encoder_decoder
    config = GenerationConfig()
    for name, value in vars(models_own).items():
        if is_heeded(name, is_plain, is_encoder_decoder, num_beams):
            setattr(config, name, value)
    callers = {name: value for name, value in settings.items() if value is not None}
    config.update(do_sample=False, num_beams=num_beams, **callers)
    if config.min_new_tokens is not None:
        config.min_length = None
    return config


@contextlib.contextmanager
def generating_by(model, settings: GenerationConfig) -> Iterator[None]:
    """In this block the model has no other settings of its own: `generate` reads from there what it is not given.

    A model has one thread at a time.
    """
    model = bare_model(model)
    with _lock_of(model):
        models_own = model.generation_config
        model.generation_config = settings
        try:
            yield
        finally:
            model.generation_config = models_own


def _lock_of(model) -> threading.RLock:
    return LOCKS.setdefault(bare_model(model), threading.RLock())
