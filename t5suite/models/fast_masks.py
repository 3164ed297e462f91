"""Attention masks of a T5's batch, made so that nobody looks at them on the device, and left out where nothing is padded.

    >>> batch = note_padding({"input_ids": ids_BS, "attention_mask": torch.tensor([[1, 1], [1, 1]])})    # on the host
    >>> ready_masks(batch)
    {'input_ids': ..., 'attention_mask': None}
    >>> ready_masks({"input_ids": ids_BS, "attention_mask": torch.tensor([[1, 1], [1, 0]])})["attention_mask"].shape
    torch.Size([2, 1, 1, 2])

transformers 5.23 asks on the device whether a mask hides anything, once in each stack (`padding_mask.all()`), for which
the host waits; compiled, it makes a mask whatever the answer. The host knows: it has filled the rows up. A mask that
hides something is given as [B, 1, 1, S], bool, which the stacks take as it is, for the encoder's own attention and for
the decoder's on it. Numbers stay the same to the bit (`tests/test_fast_masks.py`).
"""  # noqa: E501

import torch

from t5suite.models.families import plain
from t5suite.models.head_tying import T5_TYPES

MASK, SEGMENTS = "attention_mask", "encoder_segment_ids"
UNPADDED = "is_unpadded"


def takes_ready_masks(model) -> bool:
    """Whether a model is transformers' own T5 with sdpa, which takes booleans; eager adds them to its scores, a class
    of the user's may read the mask itself, and learned prompts get a mask of their own in front."""
    config = getattr(model, "config", None)
    known = getattr(config, "model_type", None) in T5_TYPES and getattr(config, "is_encoder_decoder", False)
    if not known or config._attn_implementation != "sdpa":
        return False
    prompted = any(adapter.is_prompt_learning for adapter in (getattr(model, "peft_config", None) or {}).values())
    return type(plain(model)).__module__.startswith("transformers.models.") and not prompted


def note_padding(batch: dict) -> dict:
    """The batch, and beside it whether no token of it is padding; asked of a mask that is still on the host."""
    mask = batch.get(MASK)
    if UNPADDED in batch or SEGMENTS in batch:
        return batch
    if not torch.is_tensor(mask) or mask.ndim != 2 or mask.device.type != "cpu":
        return batch
    return {**batch, UNPADDED: bool(mask.all())}


def ready_masks(batch: dict, drops_full: bool = True) -> dict:
    """The batch as a T5's stacks take it without looking.

    Args:
      drops_full: leave a mask out that hides nothing. Compiled, that is a graph of its own.
    """
    batch = dict(batch)
    unpadded = batch.pop(UNPADDED, None)
    if unpadded is None:
        return batch
    batch[MASK] = None if unpadded and drops_full else batch[MASK][:, None, None, :].bool()
    return batch
