"""How fast a run is against what its device could do: floating-point operations, peaks, utilisation.

    >>> flops = forward_flops(t5_v1_1_base, {"input_ids": (1, 512), "decoder_input_ids": (1, 114)})
    >>> round(flops / 1e9, 2)
    141.98
    >>> round(utilisation(flops_per_second=3 * flops * 128 / 0.110, peak=989e12), 3)
    0.501

Model FLOP/s utilisation (MFU, arXiv:2204.02311 appendix B) = 3 x forward FLOPs x examples / (seconds x peak): the
backward pass costs twice the forward one where all weights are trained, and what `StepFlops` counts where some are
frozen; recomputation (gradient checkpointing) does not count, and padding does, as the device computes it. FLOPs are
counted by `torch.utils.flop_counter` over the model's real operations on the meta device, where nothing is computed.
For T5 that is, with S inputs, T targets, d = d_model, i = num_heads d_kv, f = d_ff, m = 2 matrices of the feed-forward
layer (3 if gated), E and D layers, vocabulary V (checked to the last digit by `tests/test_throughput.py`):

    encoder    E (2 S (4 d i + m d f) + 4 S^2 i)
    decoder    D (2 T (6 d i + m d f) + 2 S 2 d i + 4 T^2 i + 4 T S i)
    head       2 T d V

HF's own `total_flos` (6 x parameters x input tokens) is 1.43 times too high for T5 v1.1 base at 512 to 114.
"""

import copy

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from t5suite.models.families import plain

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
    return ForwardFlops(model).counted(shapes)


class ForwardFlops:
    """`forward_flops` of one model for batches of many shapes, each told at once.

    >>> flops_of = ForwardFlops(t5_v1_1_base)
    >>> flops_of({"input_ids": (32, 57), "decoder_input_ids": (32, 4)}) == forward_flops(
    ...     t5_v1_1_base, {"input_ids": (32, 57), "decoder_input_ids": (32, 4)})
    True

    The first shape is counted. With the second, seven small ones are: a transformer's operations are a polynomial of
    the second degree in its inputs' lengths, found from six of them and held against the seventh. An architecture
    without such a polynomial (attention in blocks) has every shape counted that comes up, which takes some 0.3 s each.
    """

    def __init__(self, model):
        inner = plain(model)
        config = copy.deepcopy(inner.config)
        # Of all implementations the one whose matrix products are all seen: kernels of one's own are not counted.
        config._attn_implementation = "eager"
        with torch.device("meta"):
            self._twin = type(inner)(config).eval()
        self._known: dict[tuple, int] = {}
        self._polynomial = None

    def __call__(self, shapes: dict[str, tuple[int, int]]) -> int:
        rows = next(iter(shapes.values()))[0]
        names, lengths = tuple(shapes), tuple(shape[1] for shape in shapes.values())
        if not self._known:
            self._known[names, lengths] = self._of_row(names, lengths)
        if (names, lengths) not in self._known:
            if self._polynomial is None:
                self._polynomial = self._fitted(names)
            found = round(float(_terms(lengths) @ self._polynomial)) if len(self._polynomial) else None
            self._known[names, lengths] = self._of_row(names, lengths) if found is None else found
        return rows * self._known[names, lengths]

    def counted(self, shapes: dict[str, tuple[int, ...]]) -> int:
        """The operations of one pass over these shapes."""
        with torch.device("meta"):
            inputs = {name: torch.zeros(shape, dtype=torch.long) for name, shape in shapes.items()}
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                self._twin(**inputs)
        return counter.get_total_flops()

    def _of_row(self, names, lengths) -> int:
        return self.counted({name: (1, length) for name, length in zip(names, lengths, strict=True)})

    def _fitted(self, names) -> np.ndarray:
        """The polynomial's coefficients; none where there is no such polynomial."""
        points = [PROBES[i][: len(names)] for i in range(len(PROBES))]
        counts = np.array([self._of_row(names, lengths) for lengths in points], dtype=np.float64)
        terms = np.array([_terms(lengths) for lengths in points])
        coefficients = np.linalg.lstsq(terms[:-1], counts[:-1], rcond=None)[0]
        holds = np.allclose(terms @ coefficients, counts, rtol=1e-9)
        return coefficients if holds else np.empty(0)


class StepFlops(ForwardFlops):
    """Of forward and backward pass, with the weights that a model trains: frozen ones have no gradients to compute.

    >>> shapes = {"input_ids": (32, 57), "decoder_input_ids": (32, 4)}
    >>> StepFlops(t5_v1_1_base)(shapes) == 3 * ForwardFlops(t5_v1_1_base)(shapes)         # where all are trained
    True

    An adapter's own products are left out; what lies below it passes gradients on.
    """

    def __init__(self, model):
        super().__init__(model)
        self._everything = all(parameter.requires_grad for parameter in model.parameters())
        trained = {name.replace(".base_layer", "") for name, p in plain(model).named_parameters() if p.requires_grad}
        for name, parameter in self._twin.named_parameters():
            parameter.requires_grad_(name in trained)
        if plain(model) is not model:
            for module in self._twin.modules():
                if isinstance(module, torch.nn.Embedding):
                    module.register_forward_hook(lambda module, inputs, found: found.detach().requires_grad_())

    def counted(self, shapes: dict[str, tuple[int, ...]]) -> int:
        """The operations of both passes over these shapes."""
        if self._everything:
            return 3 * super().counted(shapes)
        with torch.device("meta"):
            inputs = {name: torch.zeros(shape, dtype=torch.long) for name, shape in shapes.items()}
            with FlopCounterMode(display=False) as counter:
                found = self._twin(**inputs)
                sum(found[name].sum() for name in found if "logits" in name).backward()
        self._twin.zero_grad(set_to_none=True)
        return counter.get_total_flops()


def _terms(lengths: tuple[int, ...]) -> np.ndarray:
    """
    >>> _terms((3, 2)).tolist()
    [1.0, 3.0, 2.0, 9.0, 6.0, 4.0]
    """
    powers = (1.0, *lengths)
    return np.array([one * other for i, one in enumerate(powers) for other in powers[i:]])


# Lengths of inputs and targets; six that determine a polynomial of the second degree, and one that it must hold for.
PROBES = ((8, 8), (24, 8), (8, 24), (16, 16), (40, 8), (8, 40), (56, 32))


def peak_flops(device: torch.device, peak_tflops: float | None = None) -> float | None:
    """The device's peak in FLOP/s: `--peak_tflops` if given, else by its name; None where it is not known (a CPU).

    >>> peak_flops(torch.device("cpu"), peak_tflops=0.5)
    500000000000.0
    """
    if peak_tflops is not None:
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
