"""With which tokens an answer starts, ends and is padded, and the other settings of a model's generation.

>>> complete_special_tokens(model, tokenizer, ("pad", "eos"))
>>> model.generation_config.decoder_start_token_id, model.generation_config.eos_token_id
(0, 1)
"""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path

from transformers import GenerationConfig

from t5suite.base.libraries import require_proved
from t5suite.base.model_files import check_generation_settings, check_special_ids
from t5suite.data.batches.encodings.special_tokens import end_id

logger = logging.getLogger(__name__)

# Settings with which transformers' `generate` fails on a batch here, each with the value that has no effect,
# as None has none.
UNSUPPORTED_DECODING = {
    # For single rows, or for models that write behind their prompt.
    "prompt_lookup_num_tokens": None,
    "assistant_early_exit": None,
    "use_mtp": False,
    "guidance_scale": 1,
    # With the tokenizer as an argument.
    "stop_strings": None,
    "token_healing": False,
    # In code of the hub.
    "dola_layers": None,
    "penalty_alpha": 0,
    "constraints": None,
    "force_words_ids": None,
    "num_beam_groups": 1,
    "diversity_penalty": 0,
    # With beams, as transformers no longer keeps it there.
    "low_memory": False,
}


def renew_special_tokens(config, tokenizer, names: Iterable[str]) -> None:
    """Writes the tokenizer's ids over those of a configuration and of its stacks, for random weights.

    A decoder then starts with the kind of token that its configuration says: padding for T5, the end token for BART,
    <bos> for T5Gemma.

    Args:
      names: of the special tokens: `pad`, `eos`, ...
    """
    # Before the ids change: the start's old id tells which special token it is.
    start_name = _name_of_start(config, _declared_start(config))
    for part in (config, *_stacks(config)):
        for name in names:
            key = f"{name}_token_id"
            if hasattr(part, key):
                setattr(part, key, getattr(tokenizer, key, None))
    _renew_forced_tokens(config)
    if getattr(config, "is_encoder_decoder", False):
        _renew_start(config, start_name)


def complete_special_tokens(model, tokenizer, names: Iterable[str]) -> None:
    """Says in a model's settings of generation with which tokens an answer starts, ends and is padded.

    As in transformers, `generation_config.json` goes before `config.json`. What both leave open is the tokenizer's, as
    is an id without an embedding that only the class names; a decoder then starts with padding. The tokenizer's end is
    always an end: targets are trained with it.

    Args:
      names: of the special tokens: `pad`, `eos`, ...
    """
    require_proved("special_tokens")
    config = model.config
    generation = getattr(model, "generation_config", None)
    named_ends = _named_ends(config)
    for name in names:
        key = f"{name}_token_id"
        if hasattr(config, key) and _leaves_open(config, key):
            setattr(config, key, getattr(tokenizer, key, None))
    if getattr(config, "is_encoder_decoder", False):
        config.decoder_start_token_id = _start_of(config, generation)
    if generation is None:
        return
    for key in ("pad_token_id", "bos_token_id", "decoder_start_token_id"):
        if getattr(generation, key) is None:
            setattr(generation, key, getattr(config, key, None))
    if generation.eos_token_id is None:
        generation.eos_token_id = named_ends
    ends = ends_of(model, tokenizer)
    # T5's fast greedy path takes a single end as a number.
    generation.eos_token_id = ends if len(ends) > 1 else next(iter(ends), None)


def ends_of(model, tokenizer) -> list[int]:
    """The tokens that end an answer: those of the model's settings of generation, and the tokenizer's.

    >>> ends_of(gemma_3_it, tokenizer)
    [1, 106]
    """
    ends = getattr(model.generation_config, "eos_token_id", None)
    if not isinstance(ends, list):
        ends = [ends]
    return [end for end in dict.fromkeys([*ends, end_id(tokenizer)]) if end is not None]


def _named_ends(config) -> int | list[int] | None:
    """The end tokens that config.json names; None for the one that every configuration of its class has.

    Llama's class has id 2, which transformers does not end at where neither file names it.
    """
    ends = getattr(config, "eos_token_id", None)
    return None if ends == _id_of_class(config, "eos_token_id") else ends


def _id_of_class(config, key: str) -> int | None:
    """The id of a special token that every configuration of this class has, whatever the vocabulary."""
    return getattr(type(config.get_text_config()), key, None)


def _leaves_open(config, key: str) -> bool:
    """Whether a configuration names no token, or its class's one that has no embedding: GPT-2's 50256."""
    token = getattr(config, key)
    if token is None:
        return True
    return token == _id_of_class(config, key) and token >= config.get_text_config().vocab_size


def reset_ids_of_class(model) -> None:
    """Resets the special tokens of its class that transformers has copied into the settings of a model in memory."""
    config = model.config
    generation = getattr(model, "generation_config", None)
    if generation is None or not generation.to_diff_dict().get("_from_model_config"):
        return
    for key in ("pad_token_id", "bos_token_id", "eos_token_id"):
        if getattr(generation, key) == _id_of_class(config, key):
            setattr(generation, key, None)


def _start_of(config, generation) -> int | None:
    """The token that a trained decoder starts with."""
    for start in (getattr(generation, "decoder_start_token_id", None), _declared_start(config)):
        if start is not None:
            return start
    return config.pad_token_id


def _declared_start(config) -> int | None:
    """The id that a decoder starts with: the configuration's own, else <bos> of the configuration of its decoder.

    T5Gemma has the latter alone: transformers shifts its labels behind that <bos>, which the configuration of the whole
    model names, too.
    """
    start = getattr(config, "decoder_start_token_id", None)
    if start is not None:
        return start
    return getattr(getattr(config, "decoder", None), "bos_token_id", None)


def _name_of_start(config, start: int | None) -> str:
    """Which special token a decoder starts with: `eos`, `bos` or `pad`."""
    for name in ("eos", "bos"):
        if start is not None and start == getattr(config, f"{name}_token_id", None):
            return name
    return "pad"


def _renew_start(config, name: str) -> None:
    """Starts a decoder with a special token; in a vocabulary without <bos>, with the end token in its place.

    Padding would not do: T5Gemma's decoder does not attend to padding in training, but attends to it in `generate`.
    """
    start = getattr(config, f"{name}_token_id", None)
    if start is None and name == "bos":
        start = getattr(config, "eos_token_id", None)
    config.decoder_start_token_id = start
    if hasattr(getattr(config, "decoder", None), "bos_token_id"):
        config.decoder.bos_token_id = start  # T5Gemma shifts its labels behind it


def _renew_forced_tokens(config) -> None:
    """BART's configuration forces id 2 at the end of an answer, whatever a new vocabulary has there."""
    for name in ("bos", "eos"):
        if getattr(config, f"forced_{name}_token_id", None) is not None:
            setattr(config, f"forced_{name}_token_id", getattr(config, f"{name}_token_id"))


def _stacks(config) -> Iterator:
    """The configurations inside a configuration: of T5Gemma's encoder and decoder."""
    for name in config.sub_configs:
        part = getattr(config, name, None)
        if part is not None:
            yield part
            yield from _stacks(part)


def check_generation(model, place: str) -> None:
    """Refuses damaged settings of generation, and resets those with which `generate` fails on a batch.

    Args:
      place: where the settings stand, for messages.

    Raises:
      ConfigError: names the key.
    """
    generation = getattr(model, "generation_config", None)
    if generation is None:
        return
    settings = generation.to_diff_dict()
    check_generation_settings(settings, place)
    check_special_ids(settings, model.config.get_text_config().vocab_size, place)
    reset_unsupported_decoding(generation, place)


def reset_unsupported_decoding(generation, place: str) -> list[str]:
    """Resets settings of a model's generation with which `generate` fails here; warns, and returns their names.

    >>> reset_unsupported_decoding(GenerationConfig(dola_layers="high"), "t5")
    ['dola_layers']

    Args:
      place: where the settings stand, for the warning.
    """
    names = []
    for name, value_without_effect in UNSUPPORTED_DECODING.items():
        if getattr(generation, name, None) not in (None, value_without_effect):
            setattr(generation, name, None)
            names.append(name)
    if names:
        logger.warning("%s: not used here: %s", place, ", ".join(names))
    return names


def save_with_generation_settings(model, folder, **settings) -> None:
    """`model.save_pretrained(folder, **settings)`, with the settings of generation as they stand.

    transformers 5.24 refuses to save a setting that has no effect beside the others, such as a temperature without
    `do_sample`. It is kept here, for it counts as soon as a call of `generate` asks for draws, or for several beams.
    """
    generation = getattr(model, "generation_config", None)
    if generation is None or not model.can_generate():
        model.save_pretrained(folder, **settings)
        return
    model.generation_config = GenerationConfig()
    try:
        model.save_pretrained(folder, **settings)
    finally:
        model.generation_config = generation
    save_generation_settings(generation, folder)


def save_generation_settings(generation, folder) -> None:
    """Writes `generation_config.json`, with whatever settings."""
    generation.to_json_file(Path(folder) / "generation_config.json")
