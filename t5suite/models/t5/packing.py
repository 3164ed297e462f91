"""Packed rows of a T5: several examples in one row, which do not see each other.

    >>> accept_packed_batches(model)                                # takes segment ids from now on
    >>> model(input_ids=ids_BS, encoder_segment_ids=encoder_BS, decoder_segment_ids=decoder_BT, ...)

Segment ids are numbers from 1 within a row, 0 for padding. A token of segment n sees the encoder's tokens of segment n,
and in the decoder those of its own segment up to itself. T5 encodes positions only as distances, so an example gives
the same results anywhere in a row. `T5ForConditionalGeneration.forward` passes arguments that it does not know to both
of its stacks; hooks there turn the segment ids into masks, inside whatever wraps the model: autocast,
`DistributedDataParallel`, gradient checkpointing, `torch.compile`.

Shapes: B rows, S source tokens, T target tokens.
"""

import torch

from t5suite.base.errors import ConfigError
from t5suite.models.attention_setting import attention_of
from t5suite.models.t5.output_layer import T5_TYPES

ENCODER_SEGMENTS = "encoder_segment_ids"
DECODER_SEGMENTS = "decoder_segment_ids"


def accept_packed_batches(model) -> None:
    """Makes a T5, mT5 or umT5 take `encoder_segment_ids` [B, S] and `decoder_segment_ids` [B, T] instead of masks;
    a second call changes nothing.

    Raises:
      ConfigError: another model, which would let packed examples see each other.
    """
    if model.config.model_type not in T5_TYPES or not hasattr(model, "encoder") or not hasattr(model, "decoder"):
        raise ConfigError(
            f"packed batches need a model of type {', '.join(T5_TYPES)}, not {model.config.model_type!r}: "
            "in others the examples of a row would see each other"
        )
    for stack, hook in ((model.encoder, mask_encoder), (model.decoder, mask_decoder)):
        if not getattr(stack, "reads_segments", False):
            stack.register_forward_pre_hook(hook, with_kwargs=True)
            stack.reads_segments = True


def encoder_mask(encoder_BS: torch.Tensor) -> torch.Tensor:
    """The encoder's mask, bool [B, 1, S, S]: tokens see tokens of the same segment. Only padding sees padding, so that
    no row of the softmax is empty.

    >>> encoder_mask(torch.tensor([[1, 2, 0]]))[0, 0].int().tolist()
    [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    """
    return (encoder_BS[:, None, :, None] == encoder_BS[:, None, None, :]).contiguous()


def decoder_mask(decoder_BT: torch.Tensor) -> torch.Tensor:
    """The decoder's mask, bool [B, 1, T, T]: tokens see tokens of the same segment up to themselves.

    >>> decoder_mask(torch.tensor([[1, 1, 2]]))[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    return encoder_mask(decoder_BT).tril()


def cross_mask(decoder_BT: torch.Tensor, encoder_BS: torch.Tensor) -> torch.Tensor:
    """What the decoder sees of the encoder, bool [B, 1, T, S].

    >>> cross_mask(torch.tensor([[1, 2]]), torch.tensor([[1, 1, 2]]))[0, 0].int().tolist()
    [[1, 1, 0], [0, 0, 1]]
    """
    return decoder_BT[:, None, :, None] == encoder_BS[:, None, None, :]


def mask_encoder(encoder, args, kwargs):
    """Forward pre-hook of the encoder."""
    encoder_BS, _ = _take_segments(kwargs)
    if encoder_BS is not None:
        kwargs["attention_mask"] = _as_attention_takes_it(encoder_mask(encoder_BS), encoder)
    return args, kwargs


def mask_decoder(decoder, args, kwargs):
    """Forward pre-hook of the decoder."""
    encoder_BS, decoder_BT = _take_segments(kwargs)
    if encoder_BS is not None:
        kwargs["attention_mask"] = _as_attention_takes_it(decoder_mask(decoder_BT), decoder)
        kwargs["encoder_attention_mask"] = _as_attention_takes_it(cross_mask(decoder_BT, encoder_BS), decoder)
    return args, kwargs


def _take_segments(kwargs: dict) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Removes the segment ids from the arguments: `(encoder's, decoder's)`, or None twice."""
    encoder_BS = kwargs.pop(ENCODER_SEGMENTS, None)
    decoder_BT = kwargs.pop(DECODER_SEGMENTS, None)
    if (encoder_BS is None) != (decoder_BT is None):
        missing = ENCODER_SEGMENTS if encoder_BS is None else DECODER_SEGMENTS
        raise ValueError(f"a packed batch has {ENCODER_SEGMENTS} and {DECODER_SEGMENTS}; {missing} is missing")
    return encoder_BS, decoder_BT


def _as_attention_takes_it(mask: torch.Tensor, stack) -> torch.Tensor:
    """The mask in the form that the stack's attention takes.

    transformers 5.23: sdpa takes booleans; eager adds the mask to the scores whatever it is, so that booleans would
    shift them by one and hide nothing (`test_eager_still_adds_boolean_masks`).
    """
    implementation = attention_of(stack.config)
    if implementation == "sdpa":
        return mask
    if implementation == "eager":
        lowest = torch.finfo(stack.dtype).min
        return torch.zeros(mask.shape, dtype=stack.dtype, device=mask.device).masked_fill(~mask, lowest)
    raise ConfigError(f"packed batches need --attn_implementation sdpa or eager, not {implementation!r}")
