"""Floating-point operations of a model's passes, counted without computing, and the peaks of devices.

    >>> flops = forward_flops(t5_v1_1_base, {"input_ids": (1, 512), "decoder_input_ids": (1, 114)})
    >>> round(flops / 1e9, 2)
    141.98

FLOPs are counted by `torch.utils.flop_counter` over the model's real operations on the meta device, where nothing is
computed. For T5 that is, with S inputs, T targets, d = d_model, i = num_heads d_kv, f = d_ff, m = 2 matrices of the
feed-forward layer (3 if gated), E and D layers, vocabulary V (exact, see `tests/test_rates.py`):

    encoder    E (2 S (4 d i + m d f) + 4 S^2 i)
    decoder    D (2 T (6 d i + m d f) + 2 S 2 d i + 4 T^2 i + 4 T S i)
    head       2 T d V

HF's own `total_flos` (6 x parameters x input tokens) is 1.43 times too high for T5 v1.1 base at 512 to 114.
"""

import copy
import itertools
import re

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from t5suite.models.attention_setting import set_attention
from t5suite.models.classes import bare_model

# Dense bf16 tensor-core peaks in FLOP/s, from the vendors' data sheets, by whole words of the device's name; the first
# match counts. Runs in float32 or TF32 are compared with the same peak: what the device could achieve.
PEAK_FLOPS = {
    "GB200": 2500e12, "B200": 2250e12, "H200 NVL": 835e12, "H200": 989e12, "H100 NVL": 835e12, "H100 PCIe": 756e12,
    "H100": 989e12, "GH200": 989e12, "A100": 312e12, "A800": 312e12, "L40S": 362e12, "L40": 181e12, "L4": 121e12,
    "A40": 150e12, "A10G": 70e12, "A10": 125e12, "A6000": 155e12, "RTX 4090": 165e12, "RTX 3090": 71e12,
    "V100S": 130e12, "V100": 125e12, "T4": 65e12, "T4G": 65e12, "MI300X": 1307e12,
    # Of one of the two dies: torch shows each of them as a device.
    "MI250X": 191.5e12, "MI250": 181e12,
}  # fmt: skip
# Words behind a card's name that make it another card, or a part of one: a MIG slice, a virtual GPU (T4-4Q).
OTHER_CARDS = r"(?! (?:Ti|D|Laptop)\b)(?!.*(?:\bMIG|-\d+[ABCQ])\b)"
# Lengths of inputs and targets: six that determine a quadratic polynomial, and one that checks it.
PROBES = ((8, 8), (24, 8), (8, 24), (16, 16), (40, 8), (8, 40), (56, 32))


def forward_flops(model, shapes: dict[str, tuple[int, ...]]) -> int:
    """Floating-point operations of one forward pass over inputs of these shapes (ids), counted without computing.

    The model's own weights are not touched: its architecture is copied to the meta device.
    """
    return StepFlops(model, backward=False).counted(shapes)


class StepFlops:
    """FLOPs of a step for batches of varying shapes: forward pass, and backward pass through the trained weights.

    >>> step, shapes = StepFlops(t5_v1_1_base), {"input_ids": (32, 57), "decoder_input_ids": (32, 4)}
    >>> step(shapes) == 3 * forward_flops(t5_v1_1_base, shapes)         # if all weights are trained
    True

    The first shape is counted. At the second, seven small shapes are counted: a transformer's FLOPs are a quadratic
    polynomial of its input lengths, fitted to six of them and checked with the seventh. For an architecture
    without such a polynomial (block attention), every new shape is counted, which takes about 0.3 s each.
    An adapter's own matrix products are not counted; gradients pass through the frozen layers below it.
    """

    def __init__(self, model, backward: bool = True):
        inner = bare_model(model)
        config = copy.deepcopy(inner.config)
        set_attention(config, "eager")  # so that the counter sees all matrix products
        with torch.device("meta"):
            self._twin = type(inner)(config).eval()
        self._twin.config.pad_token_id = None  # or transformers looks for it among the ids, which have no values here
        self._flops_of_row: dict[tuple, int] = {}
        self._polynomial = None
        self._backward = backward
        self._trains_all = all(parameter.requires_grad for parameter in model.parameters())
        if backward and not self._trains_all:
            _freeze_like(self._twin, inner)
            if inner is not model:
                _pass_gradients_through_embeddings(self._twin)

    def __call__(self, shapes: dict[str, tuple[int, int]]) -> int:
        num_rows = next(iter(shapes.values()))[0]
        names = tuple(shapes)
        lengths = tuple(shape[1] for shape in shapes.values())
        if (names, lengths) not in self._flops_of_row:
            self._flops_of_row[names, lengths] = self._new_shape(names, lengths)
        return num_rows * self._flops_of_row[names, lengths]

    def _new_shape(self, names: tuple[str, ...], lengths: tuple[int, ...]) -> int:
        """FLOPs of a row of these lengths: by the polynomial from the second shape on, if there is one."""
        if self._flops_of_row and self._polynomial is None:
            self._polynomial = self._fitted(names)
        if self._polynomial is None or not len(self._polynomial):
            return self._of_row(names, lengths)
        return round(float(_terms(lengths) @ self._polynomial))

    def counted(self, shapes: dict[str, tuple[int, ...]]) -> int:
        """The FLOPs for these shapes."""
        trains_parts = self._backward and not self._trains_all
        with torch.device("meta"), torch.set_grad_enabled(trains_parts):
            inputs = {name: torch.zeros(shape, dtype=torch.long) for name, shape in shapes.items()}
            with FlopCounterMode(display=False) as counter:
                outputs = self._twin(**inputs)
                if trains_parts:
                    sum(outputs[name].sum() for name in outputs if "logits" in name).backward()
        self._twin.zero_grad(set_to_none=True)
        passes = 3 if self._backward and self._trains_all else 1
        return counter.get_total_flops() * passes

    def _of_row(self, names, lengths) -> int:
        return self.counted({name: (1, length) for name, length in zip(names, lengths, strict=True)})

    def _fitted(self, names) -> np.ndarray:
        """The polynomial's coefficients; empty if no polynomial fits."""
        points = [probe[: len(names)] for probe in PROBES]
        counts = np.array([self._of_row(names, lengths) for lengths in points], dtype=np.float64)
        terms = np.array([_terms(lengths) for lengths in points])
        coefficients = np.linalg.lstsq(terms[:-1], counts[:-1], rcond=None)[0]
        return coefficients if np.allclose(terms @ coefficients, counts, rtol=1e-9) else np.empty(0)


def _terms(lengths: tuple[int, ...]) -> np.ndarray:
    """`(3, 2)` -> `1, 3, 2, 9, 6, 4`."""
    factors = (1.0, *lengths)
    return np.array([first * second for first, second in itertools.combinations_with_replacement(factors, 2)])


def _freeze_like(twin: torch.nn.Module, inner: torch.nn.Module) -> None:
    """Freezes the parameters that are frozen in the model, whose layers an adapter may have wrapped."""
    trained = {
        name.replace(".base_layer", "") for name, parameter in inner.named_parameters() if parameter.requires_grad
    }
    for name, parameter in twin.named_parameters():
        parameter.requires_grad_(name in trained)


def _pass_gradients_through_embeddings(twin: torch.nn.Module) -> None:
    """An adapter trains layers above frozen embeddings: gradients go back to these."""
    for module in twin.modules():
        if isinstance(module, torch.nn.Embedding):
            module.register_forward_hook(_detached_with_gradient)


def _detached_with_gradient(module, inputs, output: torch.Tensor) -> torch.Tensor:
    return output.detach().requires_grad_()


def peak_flops(device: torch.device) -> float | None:
    """The device's peak in FLOP/s, by its name; None if it is unknown (a CPU, an RTX A4000, which is no A40).

    >>> peak_flops(torch.device("cpu")) is None
    True
    """
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    for card, peak in PEAK_FLOPS.items():
        if re.search(rf"\b{card}\b{OTHER_CARDS}", name):
            return peak
    return None
