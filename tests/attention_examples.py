"""Attention with a bias as it is written down, and inputs for it."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from t5suite.models.attention.implementations import set_attention

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# B, H, T, S, W, biases (0: none, 1: shared, 2: one a row), mask, causal.
CASES = {
    "encoder": (2, 2, 20, 20, 8, 1, None, False),
    "encoder_of_one_tile": (2, 1, 16, 32, 16, 1, None, False),
    "padded_rows_one_of_them_whole": (3, 2, 33, 33, 16, 1, "keys", False),
    "packed_rows_and_a_query_that_sees_nothing": (2, 2, 40, 40, 24, 1, "pairs", False),
    "cross_attention": (3, 2, 18, 50, 16, 0, None, False),
    "cross_attention_to_padded_rows": (3, 2, 18, 50, 16, 0, "keys", False),
    "decoder": (2, 1, 37, 37, 16, 1, None, True),
    "a_bias_for_each_row": (2, 2, 20, 36, 8, 2, "keys", False),
}


def example(rows, heads, queries, keys, width, biases, mask_kind, is_causal, dtype=torch.float32):
    """Inputs whose queries, keys and values lie in memory as projections leave them, and a gradient for what comes."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator).to(DEVICE, dtype)
    query, key, value = (draw(rows, n, heads, width).transpose(1, 2) for n in (queries, keys, keys))
    bias = draw(biases, heads, queries, keys) if biases else None
    mask = None
    if mask_kind == "keys":
        mask = (torch.rand(rows, 1, 1, keys, generator=generator) > 0.3).to(DEVICE)
        mask[0] = False
    if mask_kind == "pairs":
        mask = (torch.rand(rows, 1, queries, keys, generator=generator) > 0.5).to(DEVICE)
        mask[0, 0, 3] = False
    return (query, key, value, bias), mask, is_causal, draw(rows, queries, heads, width)


def step_by_step(query, key, value, bias, mask, is_causal, kept=None, dropout=0.0):
    """Attention as it is written down; a query that sees nothing gets zeros."""
    scores = query @ key.transpose(2, 3)
    scores = scores if bias is None else scores + bias
    seen = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand_as(scores)
    if is_causal:
        seen = seen.tril()
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0)
    if kept is not None:
        weights = weights * kept / (1 - dropout)
    return (weights @ value).transpose(1, 2)


def with_gradients(attend, tensors, gradient):
    """What is found, and the gradients of all tensors that are there."""
    tensors = [t if t is None else t.detach().requires_grad_() for t in tensors]
    found = attend(*tensors)
    return [found, *torch.autograd.grad(found, [t for t in tensors if t is not None], gradient)]


def flops_without_values(kernel: str) -> int:
    """Of a T5's forward and backward pass on the meta device."""
    from tests.test_quick_attention import pair

    _, model = pair()
    set_attention(model.to("meta"), kernel)
    ids = torch.ones(2, 6, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, decoder_input_ids=ids[:, :4]).logits.sum().backward()
    return counter.get_total_flops()
