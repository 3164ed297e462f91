"""What the device could do at best: matrix products and memory, measured, for the figures of the other benchmarks.

    python -m benchmarks.ceilings [--device cuda]

    {"bf16 matmul, TFLOP/s": 790.0, "memory, GB/s": 4300.0}           # an H200: 989 and 4,800 on its data sheet

A matrix product of 8192 x 8192 x 8192 (512 on a CPU) and a copy of 2 GiB (64 MiB), the best of several.
"""

import json
import time

import torch

from benchmarks.harness import environment, parser_of
from benchmarks.timing import CLOCKS


def best_seconds(call, device: str, turns: int = 7) -> float:
    """Of the fastest turn, by the wall; one before is not counted."""
    clock = CLOCKS["cuda"] if device == "cuda" else time.perf_counter
    call()
    times = []
    for _ in range(turns):
        started = clock()
        call()
        times.append(clock() - started)
    return min(times)


def matmul_tflops(device: str, dtype=torch.bfloat16, size: int | None = None) -> float:
    """10^12 multiplications and additions a second in square matrix products."""
    size = size or (8192 if device == "cuda" else 512)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    repeated = 20 if device == "cuda" else 2
    seconds = best_seconds(lambda: [torch.mm(a, b, out=out) for _ in range(repeated)], device)
    return 2 * size**3 * repeated / seconds / 1e12


def memory_gigabytes(device: str, size: int | None = None) -> float:
    """10^9 bytes read and written a second by a copy."""
    size = size or (2**31 if device == "cuda" else 2**26)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / best_seconds(lambda: target.copy_(source), device) / 1e9


def ceilings(device: str) -> dict[str, float]:
    """All of them, rounded to what such measurements are good for."""
    found = {
        "bf16 matmul, TFLOP/s": matmul_tflops(device),
        "float32 matmul, TFLOP/s": matmul_tflops(device, torch.float32),
        "memory, GB/s": memory_gigabytes(device),
    }
    return {name: float(f"{value:.3g}") for name, value in found.items()}


if __name__ == "__main__":
    options = parser_of(__doc__).parse_args()
    torch.set_num_threads(1)
    found = ceilings(options.device)
    print(json.dumps({"environment": environment(options.device), "ceilings": found}, indent=1))
