"""The configuration of the encoder-decoder that a Gemma decoder becomes, and which decoders have one.

    >>> config = encoder_decoder_config(load_config("google/gemma-3-270m"), num_rows=262272)
    >>> config.model_type, config.decoder.num_hidden_layers
    ('t5gemma2', 18)

Both stacks have the decoder's own settings. What differs is fixed by the types (arXiv:2512.14856, arXiv:2504.06225):
the encoder attends in both directions, and the decoder to the encoder's states, too.
"""

from typing import NamedTuple

from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from t5suite.base.errors import ConfigError
from t5suite.models.untrained_parts import UNTRAINED

# Settings that belong to a configuration's file and not to its model.
OF_THE_FILE = ("model_type", "architectures", "dtype", "transformers_version", "_name_or_path")
# An id that no text has. `pixel_values` are then refused by transformers itself, which finds no place for them in the
# text, and the piece <end_of_image> is read as the decoder reads it.
NO_TOKEN = -1
# SigLIP without layers, of one channel: T5Gemma 2 is never built without a vision tower.
SMALLEST_TOWER = {
    "model_type": "siglip_vision_model", "hidden_size": 1, "intermediate_size": 1, "num_hidden_layers": 0,
    "num_attention_heads": 1, "image_size": 1, "patch_size": 1, "num_channels": 1, "vision_use_head": False,
}  # fmt: skip
UNTRAINED_PARTS = (
    "model.encoder.vision_tower.", "model.encoder.multi_modal_projector.",
    "model.encoder.text_model.embed_tokens.eoi_embedding",
)  # fmt: skip


class Adaptation(NamedTuple):
    """What a type of decoder becomes.

    Attributes:
      model_type: the encoder-decoder's.
      paper: that made it so.
      has_merged_attention: whether the decoder attends to itself and to the source in one softmax.
      has_vision_tower: whether the type has one that nothing has trained.
    """

    model_type: str
    paper: str
    has_merged_attention: bool
    has_vision_tower: bool


def adaptation_of(config: PreTrainedConfig, name: str) -> Adaptation:
    """What the decoder of a configuration becomes.

    Args:
      name: the decoder's, for messages.

    Raises:
      ConfigError: another type, or a setting that the encoder-decoder does not have.
    """
    place = f"--model_name_or_path {name}"
    if config.model_type not in ADAPTATIONS:
        reason = REFUSED.get(config.model_type, "")
        raise ConfigError(
            f"{place}: a model of type {config.model_type!r} cannot be adapted{reason}; "
            f"these can: {', '.join(ADAPTATIONS)}"
        )
    if getattr(config, "use_bidirectional_attention", None):
        raise ConfigError(
            f"{place}: config.json: use_bidirectional_attention is set: it is an encoder, and has learned nothing for "
            "a decoder; give a Gemma that writes text"
        )
    if not config.tie_word_embeddings:
        raise ConfigError(
            f"{place}: config.json: tie_word_embeddings is false, and an adapted model has one matrix for input and "
            "output; give a decoder with tied embeddings, as every published Gemma is"
        )
    for key in ("bos_token_id", "pad_token_id"):
        if getattr(config, key, None) is None:
            raise ConfigError(
                f"{place}: config.json: {key} is not set; a decoder starts with the one and rows end with the other"
            )
    return ADAPTATIONS[config.model_type]


def encoder_decoder_config(config: PreTrainedConfig, num_rows: int) -> PreTrainedConfig:
    """The configuration of the adapted model.

    Args:
      config: of a decoder that `adaptation_of` accepts.
      num_rows: of the embeddings, with those for added pieces.
    """
    adaptation = ADAPTATIONS[config.model_type]
    config_class = CONFIG_MAPPING[adaptation.model_type]
    stack = {**stack_settings(config), "vocab_size": num_rows}
    encoder: dict = dict(stack)
    settings: dict = {}
    if adaptation.has_vision_tower:
        encoder = {
            "text_config": encoder,
            "vision_config": dict(SMALLEST_TOWER),
            "mm_tokens_per_image": 1,
            "boi_token_index": NO_TOKEN,
            "eoi_token_index": NO_TOKEN,
        }
        settings = {"image_token_index": NO_TOKEN, UNTRAINED: list(UNTRAINED_PARTS)}
    return config_class(
        encoder=encoder,
        decoder=dict(stack),
        vocab_size=num_rows,
        attention_dropout=config.attention_dropout,
        initializer_range=config.initializer_range,
        tie_word_embeddings=True,
        decoder_start_token_id=config.bos_token_id,
        **settings,
    )


def stack_settings(config: PreTrainedConfig) -> dict:
    """The settings of a decoder that one stack of the adapted model has, too.

    >>> stack_settings(load_config("google/gemma-3-270m"))["sliding_window"]
    512
    """
    stack_class = CONFIG_MAPPING[ADAPTATIONS[config.model_type].model_type].sub_configs["decoder"]
    names = stack_class().to_dict().keys() - set(OF_THE_FILE) - {"is_decoder"}
    settings = config.to_dict()
    return {name: settings[name] for name in sorted(names) if name in settings}


def stacks(config: PreTrainedConfig) -> dict[str, PreTrainedConfig]:
    """The configurations of an adapted model's two stacks of text."""
    encoder = getattr(config.encoder, "text_config", config.encoder)
    return {"encoder": encoder, "decoder": config.decoder}


ADAPTATIONS = {
    "gemma3_text": Adaptation("t5gemma2", "arXiv:2512.14856", has_merged_attention=True, has_vision_tower=True),
    "gemma2": Adaptation("t5gemma", "arXiv:2504.06225", has_merged_attention=False, has_vision_tower=False),
}
REFUSED = {
    "gemma3": " (it reads images, too; save the text model that it has inside as a Gemma3ForCausalLM)",
    "gemma": " (no encoder-decoder has its layers)",
    "t5gemma": " (it is an encoder-decoder already)",
    "t5gemma2": " (it is an encoder-decoder already)",
}
