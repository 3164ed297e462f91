"""What a configuration does not allow: longer sequences than it has positions for, and runs that cannot be resumed."""

from t5suite.base.errors import ConfigError
from t5suite.models.t5.output_layer import T5_TYPES

# Types that count positions from the id after the padding id, besides those with RoBERTa's name.
COUNT_LIKE_ROBERTA = {
    "camembert", "data2vec-text", "esm", "ibert", "lilt", "longformer", "luke", "markuplm", "xmod",
}  # fmt: skip
# MPNet counts from the id after this one, whatever its configuration says.
PADDING_ID_OF_MPNET = 1


def check_length(config, length: int, flag: str, stack: str = "encoder", num_virtual_tokens: int = 0) -> None:
    """Refuses sequences longer than the model has positions for; T5 and DeBERTa-v3 have no such limit.

    >>> check_length(AutoConfig.for_model("bert"), 1024, "--inputs_length")
    ConfigError: --inputs_length 1024: a model of type 'bert' has positions for 512 tokens
    (max_position_embeddings=512); ...

    Args:
      length: tokens, special ones included.
      stack: the part of an encoder-decoder that reads them; LED's two have a limit each.
      num_virtual_tokens: virtual tokens before them (`adapters.num_virtual_tokens`), which have positions, too.
    """
    setting = "max_position_embeddings"
    if getattr(config, setting, None) is None:
        setting = f"max_{stack}_position_embeddings"
    positions = getattr(config, setting, None)
    has_relative_positions_alone = not getattr(config, "position_biased_input", True)
    is_unlimited = positions is None or positions < 0  # XLNet says -1
    if is_unlimited or config.model_type in T5_TYPES or has_relative_positions_alone:
        return
    offset = _first_position(config)
    if length + num_virtual_tokens > positions - offset:
        virtual = f" after {num_virtual_tokens} virtual tokens (--adapter)" if num_virtual_tokens else ""
        raise ConfigError(
            f"{flag} {length}{virtual}: a model of type {config.model_type!r} has positions for {positions - offset} "
            f"tokens ({setting}={positions}); lower {flag}, or for a model from scratch give "
            f"--config_overrides {setting}={length + num_virtual_tokens + offset}"
        )


def _first_position(config) -> int:
    """The position of a text's first token: RoBERTa and similar models count from the id after the padding id."""
    if config.model_type == "mpnet":
        return PADDING_ID_OF_MPNET + 1
    is_like_roberta = "roberta" in config.model_type or config.model_type in COUNT_LIKE_ROBERTA
    if not is_like_roberta or config.pad_token_id is None:
        return 0
    return config.pad_token_id + 1


def check_resumes(config, shortest: int) -> None:
    """Refuses models that transformers 5.23 changes during training, but in no tensor: a resumed run would differ.

    Args:
      shortest: tokens of the shortest input.

    Raises:
      ConfigError: with the setting that avoids it.
    """
    if getattr(config, "attention_type", None) == "block_sparse" and hasattr(config, "num_random_blocks"):
        num_attended = (5 + 2 * config.num_random_blocks) * config.block_size
        if shortest <= num_attended:
            raise ConfigError(
                f"models of type {config.model_type!r} switch to full attention permanently at the first batch of at "
                f"most {num_attended} tokens (this data has {shortest}), and a resumed run would not; give "
                "--config_overrides attention_type=original_full"
            )
    if getattr(config, "moe_eval_capacity_token_fraction", 0) > 0:
        raise ConfigError(
            f"models of type {config.model_type!r} train with another expert capacity after an evaluation, and a "
            "resumed run would not; give --config_overrides moe_eval_capacity_token_fraction=-1.0"
        )
