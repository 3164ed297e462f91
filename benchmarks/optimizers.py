"""What an update costs: AdamW with RMS scaling against a loop over tensors and against torch's own AdamW.

    python -m benchmarks.optimizers [--device cuda]

All update the same T5 (from random weights, random gradients), taking turns on one thread or one GPU; processor time is
counted on a CPU, device time on a GPU. Before anything is timed, it is checked that ours equals the loop.
"""

import copy

import torch
from transformers import T5Config, T5ForConditionalGeneration

from benchmarks.harness import Goal, Work, run
from t5suite.optim.adamw_rms import AdamWRMS

RATE, BETAS, EPS, MIN_RMS = 2e-2, (0.9, 0.999), 1e-6, 1e-3


class PlainLoop:
    """The formula of `adamw_rms.py`, a tensor at a time, with the scale read from the device as plain code does."""

    def __init__(self, parameters, rate: float = RATE):
        self.parameters, self.rate = list(parameters), rate
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]
        self.t = 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        correction = (1 - BETAS[1] ** self.t) ** 0.5 / (1 - BETAS[0] ** self.t)
        for p, (m, v) in zip(self.parameters, self.moments):
            m.mul_(BETAS[0]).add_(p.grad, alpha=1 - BETAS[0])
            v.mul_(BETAS[1]).addcmul_(p.grad, p.grad, value=1 - BETAS[1])
            rms = max(MIN_RMS, (p.norm(2) / p.numel() ** 0.5).item())
            p.addcdiv_(m, v.sqrt().add_(EPS), value=-self.rate * correction * rms)


def contenders(model) -> dict:
    """`{name: step}`, each with a copy of the model of its own."""

    def copied():
        twin = copy.deepcopy(model)
        for ours, theirs in zip(twin.parameters(), model.parameters()):
            ours.grad = theirs.grad.clone()
        return list(twin.parameters())

    return {
        "ours": AdamWRMS(copied(), lr=RATE).step,
        "loop over tensors": PlainLoop(copied()).step,
        "ours, lists of tensors": AdamWRMS(copied(), lr=RATE, fused=False).step,
        "torch AdamW, foreach": torch.optim.AdamW(copied(), lr=1e-4, foreach=True).step,
        "torch AdamW, fused": torch.optim.AdamW(copied(), lr=1e-4, fused=True).step,
    }


def check_equal(model, steps=5) -> float:
    """The largest relative difference between ours and the loop after some updates; AssertionError above 1e-5."""
    pair = [copy.deepcopy(model), copy.deepcopy(model)]
    optimizers = [PlainLoop(pair[0].parameters()), AdamWRMS(pair[1].parameters(), lr=RATE)]
    for step in range(steps):
        for parameters in zip(*(m.parameters() for m in pair), strict=True):
            generator = torch.Generator().manual_seed(step)
            grad = torch.randn(parameters[0].shape, generator=generator).to(parameters[0].device)
            for p in parameters:
                p.grad = grad
        for optimizer in optimizers:
            optimizer.step()
    with torch.no_grad():
        differences = [
            float((a - b).norm() / a.norm())
            for a, b in zip(*(m.parameters() for m in pair), strict=True)
            if a.norm() > 0
        ]
    assert max(differences) < 1e-5, f"ours differs from the loop by {max(differences):.2g}"
    return max(differences)


def update(device: str, d_model=256, num_layers=6) -> Work:
    """C9. 19.2M parameters in 131 tensors."""
    torch.manual_seed(0)
    config = T5Config(d_model=d_model, d_ff=4 * d_model, d_kv=64, num_heads=d_model // 64, num_layers=num_layers)
    model = T5ForConditionalGeneration(config).to(device)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    difference = check_equal(model)
    parameters = sum(p.numel() for p in model.parameters())
    return Work(
        f"AdamW-RMS, {parameters / 1e6:.1f}M parameters",
        contenders(model),
        {"loop over tensors": Goal(0.30)},
        f"equal weights after 5 updates, to {difference:.1e}",
        figures={"parameters": parameters, "tensors": sum(1 for _ in model.parameters())},
    )


WORKS = {"C9": update}

if __name__ == "__main__":
    run(__doc__, WORKS)
