"""How fast a run is against what its device could do: floating-point operations, peaks, utilisation.

    >>> flops = forward_flops(t5_v1_1_base, {"input_ids": (1, 512), "decoder_input_ids": (1, 114)})
    >>> round(flops / 1e9, 2)
    141.98
    >>> round(utilisation(flops_per_second=3 * flops * 128 / 0.110, peak=989e12), 3)
    0.501

Model FLOP/s utilisation (MFU, arXiv:2204.02311 appendix B) = 3 x forward FLOPs x examples / (seconds x peak): the
backward pass costs twice the forward one; recomputation (gradient checkpointing) does not count. The forward FLOPs are
counted by `torch.utils.flop_counter` over the model's real operations on the meta device, where nothing is computed.
For T5 that is, with S inputs, T targets, d = d_model, i = num_heads d_kv, f = d_ff, m = 2 matrices of the feed-forward
layer (3 if gated), E and D layers, vocabulary V (checked to the last digit by `tests/test_throughput.py`):

    encoder    E (2 S (4 d i + m d f) + 4 S^2 i)
    decoder    D (2 T (6 d i + m d f) + 2 S 2 d i + 4 T^2 i + 4 T S i)
    head       2 T d V

HF's own `total_flos` (6 x parameters x input tokens) is 1.43 times too high for T5 v1.1 base at 512 to 114.
"""

import torch
from torch.utils.flop_counter import FlopCounterMode

from t5suite.errors import ConfigError

# Dense bf16 tensor-core peaks in FLOP/s, from the vendors' data sheets, by a part of the device's name; the first match
# counts. Runs in float32 or TF32 are held against the same peak: it is what the device could do.
PEAK_FLOPS = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "GH200": 989e12,
    "A100": 312e12,
    "A800": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "A40": 150e12,
    "A10": 125e12,
    "A6000": 155e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
    "V100": 125e12,
    "T4": 65e12,
    "MI300X": 1307e12,
    "MI250": 383e12,
}


def forward_flops(model, shapes: dict[str, tuple[int, ...]]) -> int:
    """Floating-point operations of one forward pass over inputs of these shapes (ids), counted without computing.

    The model's own weights are not touched: a copy of its architecture is made on the meta device.
    """
    with torch.device("meta"):
        twin = type(model)(model.config).eval()
        inputs = {name: torch.zeros(shape, dtype=torch.long) for name, shape in shapes.items()}
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            twin(**inputs)
    return counter.get_total_flops()


def peak_flops(device: torch.device, peak_tflops: float | None = None) -> float | None:
    """The device's peak in FLOP/s: `--peak_tflops` if given, else by its name; None where it is not known (a CPU).

    >>> peak_flops(torch.device("cpu"), peak_tflops=0.5)
    500000000000.0
    """
    if peak_tflops is not None:
        if peak_tflops <= 0:
            raise ConfigError(f"--peak_tflops {peak_tflops}: must be above 0 (H200: 989, A100: 312)")
        return peak_tflops * 1e12
    if device.type != "cuda":
        return None
    return peak_of_name(torch.cuda.get_device_name(device))


def peak_of_name(name: str) -> float | None:
    """A device's peak by its name.

    >>> peak_of_name("NVIDIA H100 PCIe"), peak_of_name("NVIDIA A100-SXM4-80GB"), peak_of_name("unheard of")
    (756000000000000.0, 312000000000000.0, None)
    """
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)


def utilisation(flops_per_second: float, peak: float | None) -> float | None:
    """Share of the peak, 0 to 1; None where no peak is known."""
    return None if peak is None else flops_per_second / peak
