"""Attention with T5's position bias: kernels (H2), and what a stack of layers makes of bias and mask (H2b).

    python -m benchmarks.attention --device cuda      # (128, 12, 512, 64), bfloat16: judged
    python -m benchmarks.attention                    # small: H2b is told, H2 is a trial

H2: forward and backward of an encoder's own attention, the bias's gradient included; ours is Triton's kernels on a GPU
(on a CPU `sdpa`), the peers `sdpa` (memory-efficient, since a mask with a gradient leaves no other), `eager` and, where
it can be used, `flex_attention`. Checked first: numbers no further from float32's than thrice those of plain operations
(`choosing.wrong`); a kernel that is not reproducible is told as such. H2b: the attention of all layers of an encoder
over padded rows, quick (bias and mask put together once) against transformers' own (in every layer), both by `sdpa`;
checked first: equal states and gradients.
"""

import copy

import torch
from transformers.models.t5.modeling_t5 import T5Config, T5Stack

from benchmarks.harness import OURS, Goal, Work, run
from t5suite.models.attention.choosing import CANDIDATES, Shapes, timed_pass, wrong
from t5suite.models.attention.implementations import why_not
from t5suite.models.attention.quick import quicken_attention

BASE = Shapes(rows=128, length=512, heads=12, width=64, dtype=torch.bfloat16)
SMALL = Shapes(rows=4, length=64, heads=4, width=16, dtype=torch.float32)
UNSTEADY = "not reproducible"
STACKS = {
    "cpu": {"rows": 8, "length": 128, "layers": 6, "heads": 4, "width": 16},
    "cuda": {"rows": 32, "length": 512, "layers": 12, "heads": 12, "width": 64},
}
CALLS = 5


def kernels(device: str) -> Work | None:
    """H2."""
    shapes, where = (BASE if device == "cuda" else SMALL), torch.device(device)
    ours = "triton" if device == "cuda" else "sdpa"
    missing = why_not(ours, where, trains=True, dropout=0.0)
    if missing:
        print(f"H2: {ours}: {missing}")
        return None
    told = {}
    for name in (*CANDIDATES, "eager"):
        why = why_not(name, where, trains=True, dropout=0.0) or wrong(name, shapes, where)
        if why is not None:
            told[name] = why
    assert ours not in told, f"{ours}: {told[ours]}"
    usable = [name for name in (*CANDIDATES, "eager") if name not in told or told[name].startswith(UNSTEADY)]
    contenders = {OURS if name == ours else name: _calls(timed_pass(name, shapes, where)) for name in usable}
    size = f"{shapes.rows}, {shapes.heads}, {shapes.length}, {shapes.width}"
    return Work(
        f"attention with a bias ({size}), {ours}",
        contenders,
        {"sdpa": Goal(0.6)} if device == "cuda" else {},
        "numbers as near to float32's as plain operations'",
        calls=CALLS,
        figures={"told of others": told},
    )


def stack(device: str) -> Work:
    """H2b."""
    sizes = STACKS[device]
    torch.manual_seed(0)
    width = sizes["heads"] * sizes["width"]
    config = T5Config(
        vocab_size=32, d_model=width, d_kv=sizes["width"], d_ff=16, num_layers=sizes["layers"],
        num_heads=sizes["heads"], dropout_rate=0.0, is_decoder=False, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    theirs = T5Stack(config).to(device).train()
    ours = copy.deepcopy(theirs)
    quicken_attention(ours)
    states = torch.randn(sizes["rows"], sizes["length"], width, device=device)
    lengths = torch.linspace(sizes["length"] / 2, sizes["length"], sizes["rows"], device=device)
    mask = (torch.arange(sizes["length"], device=device) < lengths[:, None])[:, None, None, :]
    passes = {OURS: _pass_of(ours, states, mask), "transformers' own": _pass_of(theirs, states, mask)}
    for found, expected in zip(*(each() for each in passes.values()), strict=True):
        difference = float((found - expected).abs().max() / expected.abs().max())
        assert difference < (2e-2 if device == "cuda" else 1e-5), f"other numbers: {difference:.1e}"
    return Work(
        f"an encoder's layers, {sizes['rows']} x {sizes['length']} padded, {sizes['layers']} layers",
        {name: _calls(each) for name, each in passes.items()},
        {},
        "equal states and gradients",
        calls=CALLS,
        figures={"MiB at the most": {name: _peak(each) for name, each in passes.items()}} if device == "cuda" else {},
    )


def _pass_of(model: T5Stack, states: torch.Tensor, mask: torch.Tensor):
    """Forward and backward, in bfloat16 on a GPU: states, and the gradients of the bias and of a first weight."""
    attention = model.block[0].layer[0].SelfAttention
    weights = [attention.relative_attention_bias.weight, attention.q.weight]

    def once():
        with torch.autocast(states.device.type, torch.bfloat16, enabled=states.device.type == "cuda"):
            found = model(inputs_embeds=states, attention_mask=mask).last_hidden_state
        return [found.detach().float(), *torch.autograd.grad(found.float().square().mean(), weights)]

    return once


def _calls(once):
    def several():
        for _ in range(CALLS):
            once()

    return several


def _peak(once) -> float:
    """MiB of the GPU that a call takes at the most, beside what is there."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    once()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)


WORKS = {"H2": kernels, "H2b": stack}

if __name__ == "__main__":
    run(__doc__, WORKS)
