"""The parts of transformers' own T5 decoder, called one by one: to score candidates as a tree (`candidate_tree`), or to
write answers greedily (`greedy`).

    >>> has_stock_decoder(model)                                      # a T5, mT5 or umT5 as it came, in one piece
    True

Shapes: B rows, N tokens that the decoder reads, S keys (source tokens, or tokens that the decoder has read), D model
width, H heads, K width of a head.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from transformers import UMT5Config

from t5suite.models.classes import bare_model
from t5suite.models.t5.attention import stock_class

# Elements of logits that are kept at once, by type of device: on a CPU as many as fit in its caches.
LOGITS_AT_ONCE = {"cpu": 2**22, "cuda": 2**28}
# transformers' models, and the attention in them; by name, so that no missing class is imported.
STOCK_ATTENTION = {
    "T5ForConditionalGeneration": "T5Attention",
    "MT5ForConditionalGeneration": "MT5Attention",
    "UMT5ForConditionalGeneration": "UMT5Attention",
}
# The field of the configuration by which a model scales the decoder's states before the output layer, if it does.
SCALE_FIELDS = {
    "T5ForConditionalGeneration": "scale_decoder_outputs",
    "MT5ForConditionalGeneration": None,
    # transformers 5.23 reads whether the matrices are tied; from 5.24 on the configuration has a field of its own.
    "UMT5ForConditionalGeneration": (
        "scale_decoder_outputs" if hasattr(UMT5Config(), "scale_decoder_outputs") else "tie_word_embeddings"
    ),
}


def has_stock_decoder(model) -> bool:
    """Whether a decoder can be called by its parts: transformers' own of T5, mT5 or umT5, whole in this process.

    LoRA in it is no matter, as it is inside of the parts.
    """
    inner = bare_model(model)  # without DistributedDataParallel and PEFT around it
    if not is_stock(inner, STOCK_ATTENTION):
        return False
    if not all(is_stock(attention, STOCK_ATTENTION.values()) for attention in _attention_of(inner.decoder)):
        return False
    if model.dtype == torch.float16:  # T5's blocks, which are not called here, clamp its overflow
        return False
    adapters = getattr(model, "peft_config", None) or {}
    if any(config.is_prompt_learning for config in adapters.values()):
        return False
    has_offloaded_weights = any(hasattr(module, "_hf_hook") for module in model.modules())  # fetched on use
    return not has_offloaded_weights and not holds_parts(model)


def _attention_of(decoder) -> Iterator[torch.nn.Module]:
    """The attention modules of a decoder's blocks."""
    for block in decoder.block:
        yield block.layer[0].SelfAttention
        yield block.layer[1].EncDecAttention


def is_stock(module, names) -> bool:
    """Whether a module's class is transformers' of one of these names, or the suite's form of it (`QuickAttention`)."""
    module_class = stock_class(module)
    return module_class.__name__ in names and module_class.__module__.startswith("transformers.models.")


def holds_parts(model) -> bool:
    """Whether this rank has only a part of the weights (FSDP, ZeRO-3), another one than other ranks."""
    if any(_is_part(parameter) for parameter in model.parameters()):
        return True
    return any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())


def _is_part(parameter: torch.Tensor) -> bool:
    is_of_zero3 = hasattr(parameter, "ds_id")
    is_of_fsdp2 = hasattr(parameter, "placements")
    is_empty = parameter.numel() == 0  # of FSDP: all of it is on other ranks
    return is_of_zero3 or is_of_fsdp2 or is_empty


def bias_by_distance(attention, longest: int) -> torch.Tensor:
    """T5's bias for a key that is 0, 1, ... tokens before the query (H, longest).

    Args:
      attention: the one of a stack that has the table of biases: its first, of umT5 each.
    """
    bias_1HNS = attention.compute_bias(longest, longest)
    bias_of_last_query_HS = bias_1HNS[0, :, -1]  # its keys are longest - 1, ..., 1, 0 tokens before it
    return bias_of_last_query_HS.flip(-1)


def final_states(model, x_BND) -> torch.Tensor:
    """The input of the output layer of a bare model, from its last block's states."""
    return scaled_for_output(model, model.decoder.final_layer_norm(x_BND))


def scaled_for_output(model, states: torch.Tensor) -> torch.Tensor:
    """The decoder's last states as the output layer reads them."""
    return states * model.config.d_model**-0.5 if scales_outputs(model) else states


def scales_outputs(model) -> bool:
    """Whether a bare T5, mT5 or umT5 scales the decoder's last states before the output layer."""
    field = SCALE_FIELDS[type(model).__name__]
    return field is not None and bool(getattr(model.config, field))


def projected(attention, x_BND, *names: str) -> list[torch.Tensor]:
    """Queries, keys, values ("q", "k", "v") by head (B, H, N, K)."""
    shape = attention.n_heads, attention.key_value_proj_dim
    return [getattr(attention, name)(x_BND).unflatten(-1, shape).transpose(1, 2) for name in names]


def attended(attention, query_BHNK, key_BHSK, value_BHSK, bias) -> torch.Tensor:
    """The output of T5's attention, before the residual connection (B, N, D); T5 does not scale its scores.

    Args:
      bias: what is added to the scores, or a mask, True for visible keys; None: neither.
    """
    if bias is not None and bias.dtype != torch.bool:
        bias = bias.to(query_BHNK.dtype)
    context_BHNK = F.scaled_dot_product_attention(query_BHNK, key_BHSK, value_BHSK, attn_mask=bias, scale=1.0)
    return attention.o(context_BHNK.transpose(1, 2).flatten(2))


def chunks_of_logits(states: torch.Tensor, vocab_size: int) -> list[slice]:
    """Slices of the rows whose logits are kept at once, by states (B, D) or (B, N, D)."""
    if not len(states):
        return []
    limit = LOGITS_AT_ONCE.get(states.device.type, LOGITS_AT_ONCE["cuda"])
    states_per_row = states[0].numel() // states.shape[-1]
    rows_at_once = max(1, limit // (states_per_row * vocab_size))
    return [slice(start, start + rows_at_once) for start in range(0, len(states), rows_at_once)]
