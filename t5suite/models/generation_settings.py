"""Special tokens in a model's configuration and in its settings of generation.

>>> set_special_tokens(config, tokenizer, ("pad", "eos"), scratch=True)
>>> config.pad_token_id, config.decoder_start_token_id
(0, 0)
"""

import logging
from collections.abc import Iterable
from pathlib import Path

from transformers import GenerationConfig

logger = logging.getLogger(__name__)

GENERATION_TOKENS = (
    "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_bos_token_id",
    "forced_eos_token_id",
)  # fmt: skip
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


def set_special_tokens(config, tokenizer, names: Iterable[str], scratch: bool) -> None:
    """Writes the tokenizer's ids of special tokens into the configuration.

    T5 starts its decoder with padding, BART with its end token, T5Gemma with <bos>, as their configurations say. Where
    one says nothing, as that of a fresh T5, it is padding.

    Args:
      names: of the special tokens: `pad`, `eos`, ...
      scratch: the weights are random. Trained ones keep the ids that their configuration has.
    """
    # Before the ids change: the start's old id tells which special token it is.
    start = _declared_start(config)
    start_name = _name_of_start(config, start)
    for name in names:
        key = f"{name}_token_id"
        if hasattr(config, key) and (scratch or getattr(config, key) is None):
            setattr(config, key, getattr(tokenizer, key, None))
    if scratch:
        _renew_forced_tokens(config)
    if not getattr(config, "is_encoder_decoder", False):
        return
    if scratch:
        start = _new_start(config, start_name)
    config.decoder_start_token_id = config.pad_token_id if start is None else start


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


def _new_start(config, name: str) -> int | None:
    """The id of the special token that a decoder starts with; of a vocabulary without <bos>, the end token.

    Padding would not do: T5Gemma's decoder does not attend to padding in training, but attends to it in `generate`.
    """
    start = getattr(config, f"{name}_token_id", None)
    if start is None and name == "bos":
        return getattr(config, "eos_token_id", None)
    return start


def _renew_forced_tokens(config) -> None:
    """BART's configuration forces id 2 at the end of an answer, whatever a new vocabulary has there."""
    for name in ("bos", "eos"):
        if getattr(config, f"forced_{name}_token_id", None) is not None:
            setattr(config, f"forced_{name}_token_id", getattr(config, f"{name}_token_id"))


def set_generation_tokens(model) -> None:
    """Generation pads, ends and starts with what the configuration names."""
    generation = getattr(model, "generation_config", None)
    if generation is None:
        return
    for key in GENERATION_TOKENS:
        token_id = getattr(model.config, key, None)
        if token_id is not None:
            setattr(generation, key, token_id)


def reset_unsupported_decoding(generation, place: str) -> list[str]:
    """Resets settings of a model's generation with which `generate` fails here; warns, and returns their names.

    >>> reset_unsupported_decoding(GenerationConfig(dola_layers="high"), "t5")
    ['dola_layers']

    Args:
      place: the model's name or folder, for the warning.
    """
    names = []
    for name, value_without_effect in UNSUPPORTED_DECODING.items():
        if getattr(generation, name, None) not in (None, value_without_effect):
            setattr(generation, name, None)
            names.append(name)
    if names:
        logger.warning("%s: generation_config.json: not used here: %s", place, ", ".join(names))
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
