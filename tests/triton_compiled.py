"""Compiles every attention kernel for Ampere and Hopper, without a GPU, and says what it takes: a JSON line each.

    python tests/triton_compiled.py

Run in a process of its own: where Triton interprets, it compiles nothing.
"""

import inspect
import json
import re
import subprocess
import tempfile
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from t5suite.models.attention import fused, kernels

POINTERS = {
    "mask": "*u8", "seed": "*i64", "log_sums": "*fp32", "deltas": "*fp32", "bias_gradient": "*fp32",
    **dict.fromkeys(
        ["query", "key", "value", "bias", "found", "gradient", "key_gradient", "value_gradient", "query_gradient"],
        "*bf16",
    ),
}  # fmt: skip
FLOATS = ("scale", "scaling", "dropout")
WIDTH = 64


def compiled(name: str, capability: int, drops: bool):
    """A kernel for heads of 64 in bfloat16 whose strides and lengths are multiples of 16."""
    kernel = getattr(kernels, f"{name}_kernel")
    tile_t, tile_s, options = fused.TILES[name]
    settings = {
        "HAS_BIAS": True, "MASK": 1 if drops else 0, "CAUSAL": False, "DROPS": drops, "WIDTH": WIDTH, "TILE_T": tile_t,
        "TILE_S": tile_s, "TILE_W": WIDTH, "PRECISION": "tf32",
    }  # fmt: skip
    names = list(inspect.signature(kernel.fn).parameters)
    constants = {parameter: settings[parameter] for parameter in names if parameter in settings}
    kinds = {p: POINTERS.get(p, "fp32" if p in FLOATS else "i32") for p in names}
    kinds |= dict.fromkeys(constants, "constexpr")
    aligned = [i for i, p in enumerate(names) if p not in (*settings, *FLOATS, "H", "num_rows")]
    source = ASTSource(
        fn=kernel, signature=kinds, constexprs=constants, attrs={(i,): [["tt.divisibility", 16]] for i in aligned}
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def spilled(cubin: bytes) -> int:
    """Bytes of registers that a thread keeps in memory."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        told = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True)
    return int(re.search(r"STACK:(\d+)", told.stdout + told.stderr)[1])


if __name__ == "__main__":
    for capability in (80, 90):
        for name in fused.TILES:
            for drops in (False, True):
                found = compiled(name, capability, drops)
                told = {
                    "kernel": name,
                    "capability": capability,
                    "drops": drops,
                    "shared": found.metadata.shared,
                    "spilled": spilled(found.asm["cubin"]),
                    "products": found.asm["ptx"].count("wgmma.mma_async" if capability == 90 else "mma.sync"),
                }
                print(json.dumps(told), flush=True)
