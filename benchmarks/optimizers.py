"""What an update costs: AdamW with RMS scaling against a loop over tensors and against torch's own AdamW.

    python -m benchmarks.optimizers [--d_model 256 --num_layers 6] [--device cuda] [--json]

All update the same T5 (from random weights, random gradients), taking turns on one thread or one GPU; processor time is
counted on a CPU, device time on a GPU. Before anything is timed, it is checked that ours equals the loop.
"""

import argparse
import copy
import json
import platform
import sys

import torch
from transformers import T5Config, T5ForConditionalGeneration

from benchmarks.timing import interleaved, summary
from t5suite.optim.adamw_rms import AdamWRMS

RATE, BETAS, EPS, MIN_RMS = 2e-2, (0.9, 0.999), 1e-6, 1e-3


class PlainLoop:
    """The formula of `adamw_rms.py`, a tensor at a time, with the scale read from the device as plain code does."""

    def __init__(self, parameters):
        self.parameters = list(parameters)
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
            p.addcdiv_(m, v.sqrt().add_(EPS), value=-RATE * correction * rms)


def contenders(model) -> dict:
    """`{name: step}`, each with a copy of the model of its own."""

    def copied():
        twin = copy.deepcopy(model)
        for ours, theirs in zip(twin.parameters(), model.parameters()):
            ours.grad = theirs.grad.clone()
        return list(twin.parameters())

    return {
        "plain loop": PlainLoop(copied()).step,
        "adamw_rms": AdamWRMS(copied(), lr=RATE).step,
        "adamw_rms, lists of tensors": AdamWRMS(copied(), lr=RATE, fused=False).step,
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


def device_times(steps: dict, repetitions: int) -> dict[str, list[float]]:
    """Milliseconds of every call between two events of the GPU, the contenders taking turns after two calls each."""
    times = {name: [] for name in steps}
    for turn in range(-2, repetitions):
        for name, step in steps.items():
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            torch.cuda.synchronize()
            events[0].record()
            step()
            events[1].record()
            torch.cuda.synchronize()
            if turn >= 0:
                times[name].append(events[0].elapsed_time(events[1]))
    return times


def measure(d_model: int, num_layers: int, repetitions: int, device: str) -> dict:
    """Milliseconds an update, by contender."""
    torch.manual_seed(0)
    config = T5Config(d_model=d_model, d_ff=4 * d_model, d_kv=64, num_heads=d_model // 64, num_layers=num_layers)
    model = T5ForConditionalGeneration(config).to(device)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    difference = check_equal(model)
    steps = contenders(model)
    times = device_times(steps, repetitions) if device == "cuda" else interleaved(steps, repetitions)
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "tensors": sum(1 for _ in model.parameters()),
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "repetitions": repetitions,
        "largest_difference": difference,
        "milliseconds": {name: summary(times[name]) for name in steps},
    }


def main(argv=None):
    """Prints a table, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d_model", type=int, default=256)
    parser.add_argument("--num_layers", type=int, default=6)
    parser.add_argument("--repetitions", type=int, default=15)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    report = measure(args.d_model, args.num_layers, args.repetitions, args.device)
    if args.json:
        print(json.dumps(report))
        return
    plain = report["milliseconds"]["plain loop"]["median"]
    print(f"{report['parameters'] / 1e6:.1f}M parameters in {report['tensors']} tensors on {report['device']}")
    for name, times in report["milliseconds"].items():
        spread = f"{times['low']:.1f} to {times['high']:.1f}"
        print(f"{name:30} {times['median']:8.2f} ms   ({spread})   {times['median'] / plain:.2f} of the loop")


if __name__ == "__main__":
    sys.exit(main())
