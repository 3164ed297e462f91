"""The fastest kernel for a T5's attention on this device: each is tried at the run's own shapes before the run begins.

    >>> choose(Shapes(rows=128, length=512, heads=12, width=64), torch.device("cuda"))
    Choice(kernel='triton', milliseconds={'sdpa': 2.31, 'triton': 1.12}, refused={'flex_attention': 'not reproducible'})

What is timed is the encoder's own attention, forward and backward with the bias's gradient, in the run's dtype and with
its dropout. A kernel is refused where it cannot be used, where its numbers are further from float32's than thrice those
of plain operations in the same dtype, and where two passes over the same inputs give different bits: a run that goes on
after a stop would not be the run that was not stopped. `sdpa` is what the others are compared with, and taken where
none is faster.

Shapes: B rows, H heads, S tokens, W width of a head.
"""

import logging
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F

from t5suite.models.attention.implementations import KERNELS, PLAIN, why_not
from t5suite.models.attention.quick import merged

logger = logging.getLogger(__name__)

CANDIDATES = (PLAIN, *KERNELS)
# Rows whose numbers are compared; passes that warm up, and those that are timed.
COMPARED_ROWS, WARM_UP, TIMED = 4, 3, 10
# How far a kernel may be from float32, in errors of plain operations in its dtype; and what is no error at all.
MOST_ERRORS, NO_ERROR = 3.0, 1e-5


class Shapes(NamedTuple):
    """What an encoder attends over in training.

    Attributes:
      rows, length: of a micro-batch.
      heads, width: of the model.
      is_padded: whether a mask hides keys.
    """

    rows: int
    length: int
    heads: int
    width: int
    is_padded: bool = False
    dropout: float = 0.0
    dtype: torch.dtype = torch.bfloat16


class Choice(NamedTuple):
    """What was chosen and why.

    Attributes:
      milliseconds: of those that were timed, forward and backward.
      refused: the others, and why.
    """

    kernel: str
    milliseconds: dict[str, float]
    refused: dict[str, str]


def choose(shapes: Shapes, device: torch.device, candidates=CANDIDATES) -> Choice:
    """The fastest of the candidates that may be used, and what was found of each; torch's random numbers go on after
    it as if it had not been."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        return _choose(shapes, device, candidates)


def _choose(shapes: Shapes, device: torch.device, candidates) -> Choice:
    milliseconds, refused = {}, {}
    for name in candidates:
        why = why_not(name, device, trains=True, dropout=shapes.dropout)
        try:
            why = why or wrong(name, shapes, device)
            if why is None:
                milliseconds[name] = round(_timed(timed_pass(name, shapes, device), device), 4)
        except Exception as error:  # a compiler's or a driver's, of any kind; it is told, and sdpa is there
            why = f"it failed: {type(error).__name__}: {str(error).strip().splitlines()[0][:200] if str(error) else ''}"
        if why is not None:
            refused[name] = why
    fastest = min(milliseconds, key=milliseconds.get, default=PLAIN)
    return Choice(fastest, milliseconds, refused)


def wrong(name: str, shapes: Shapes, device: torch.device) -> str | None:
    """What is wrong with a kernel's numbers, if anything."""
    few = shapes._replace(rows=min(shapes.rows, COMPARED_ROWS), dropout=0.0)
    exact = timed_pass("eager", few._replace(dtype=torch.float32), device, shapes.dtype)()
    ours, plain = (timed_pass(each, few, device)() for each in (name, "eager"))
    for what, true, found, usual in zip(("what is found", *"qkv", "bias"), exact, ours, plain, strict=True):
        error, allowed = _distance(found, true), max(MOST_ERRORS * _distance(usual, true), NO_ERROR)
        if not error <= allowed:
            whose = what if what == "what is found" else f"the gradient of {what}"
            return f"{whose} is off by {error:.1e}, where {allowed:.1e} is usual"
    again = timed_pass(name, shapes, device)
    if not all(torch.equal(first, second) for first, second in zip(again(), again(), strict=True)):
        return "not reproducible: two passes over the same inputs give different bits"
    return None


def _distance(found, true) -> float:
    return float((found.float() - true.float()).abs().max() / true.float().abs().max())


def timed_pass(
    name: str, shapes: Shapes, device, drawn_in: torch.dtype | None = None
) -> Callable[[], list[torch.Tensor]]:
    """A forward and backward pass, always over the same inputs: what is found, and gradients of q, k, v and bias.

    Args:
      drawn_in: the dtype that inputs are rounded to before they are given in the shapes' own.
    """
    rows, length, heads, width, is_padded, dropout, dtype = shapes
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape):
        values = torch.randn(shape, device=device, generator=generator) / 2
        return values.to(drawn_in or dtype).to(dtype)

    vectors = [draw(rows, length, heads, width).transpose(1, 2).requires_grad_() for _ in range(3)]
    bias = draw(1, heads, length, length).float().requires_grad_()
    gradient = draw(rows, length, heads, width)
    mask = None
    if is_padded:
        lengths = torch.linspace(length / 2, length, rows, device=device).ceil()
        mask = (torch.arange(length, device=device) < lengths[:, None])[:, None, None, :]
    given = bias
    if name not in KERNELS:  # merged once a stack, which is not timed
        given = merged(bias.detach(), mask, False, dtype).requires_grad_()

    def run():
        torch.manual_seed(0)
        found = attend(name, *vectors, mask, given, dropout)
        *gradients, of_bias = torch.autograd.grad(found, [*vectors, given], gradient)
        if of_bias.shape != bias.shape:
            of_bias = of_bias.float().masked_fill(~mask, 0.0).sum(0, keepdim=True)
        return [found.detach(), *gradients, of_bias]

    return run


def attend(name: str, query, key, value, mask, bias, dropout: float = 0.0) -> torch.Tensor:
    """Attention (B, S, H, W) by a kernel's name; for `sdpa` and `eager` bias and mask are one already."""
    if name in KERNELS:
        return KERNELS[name].attend(query, key, value, mask, bias, False, 1.0, dropout)
    bias = bias.to(query.dtype)
    if name == PLAIN:
        found = F.scaled_dot_product_attention(query, key, value, bias, dropout_p=dropout, scale=1.0)
    else:
        found = F.dropout((query @ key.transpose(2, 3) + bias).softmax(-1), dropout) @ value
    return found.transpose(1, 2)


def _timed(run: Callable[[], object], device: torch.device) -> float:
    """Milliseconds of a pass, the median."""
    for _ in range(WARM_UP):
        run()
    times = []
    for _ in range(TIMED):
        _wait_for(device)
        start = time.perf_counter()
        run()
        _wait_for(device)
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
