"""Output layer and loss, forwards and backwards: in chunks (ours) against the logits of the whole batch, at T5's vocabulary.

    python -m benchmarks.loss                       # 1,024 targets of width 256: L1 in float32, L2 under bf16 autocast
    python -m benchmarks.loss --device cuda         # 14,592 targets of width 768: a batch of T5 v1.1 base
    python -m benchmarks.loss --only L3             # the bytes that live at the worst moment

The peer is what training does without chunks, and what transformers does: a matrix product in the model's dtype, its
result in float32 (as accelerate casts what an autocast model returns), `torch.nn.functional.cross_entropy`. Checked
first: equal losses, and gradients that are as close to those of float64 as the peer's.
"""  # noqa: E501

import math

import torch

from benchmarks.harness import OURS, Goal, Work, found_of, run
from t5suite.models.rehearsal import LiveBytes
from t5suite.models.t5.chunked_loss import LossSettings, summed_cross_entropy
from t5suite.training.losses import token_loss

VOCABULARY = 32128
SIZES = {"cpu": (1024, 256), "cuda": (128 * 114, 768)}
THEIRS = "logits of the batch"
Z_LOSS = 1e-4


class Head:
    """A matrix, states in front of it and labels, the same in every call."""

    def __init__(self, device: str, bf16: bool, sizes=None, vocabulary: int = VOCABULARY, dtype=torch.float32):
        tokens, width = sizes or SIZES[device]
        generator = torch.Generator().manual_seed(0)
        draw = lambda *shape: torch.randn(shape, generator=generator).to(device, dtype)
        self.leaves = [draw(tokens, width).requires_grad_(), (draw(vocabulary, width) / width**0.5).requires_grad_()]
        self.labels = torch.randint(0, vocabulary, (tokens,), generator=generator).to(device)
        self.device, self.bf16 = device, bf16

    def ours(self):
        """One forward and backward pass; the loss."""
        with torch.autocast(self.device, torch.bfloat16, enabled=self.bf16):
            summed, _ = summed_cross_entropy(*self.leaves, self.labels, LossSettings(z_loss=Z_LOSS))
        return self.passed_back(summed / self.labels.numel())

    def theirs(self):
        """Likewise, by logits."""
        states, matrix = self.leaves
        with torch.autocast(self.device, torch.bfloat16, enabled=self.bf16):
            logits = states @ matrix.T
        return self.passed_back(token_loss(logits, self.labels, self.labels.numel(), z_loss=Z_LOSS))

    def passed_back(self, loss):
        """Fresh gradients, as a step without accumulation makes them."""
        for leaf in self.leaves:
            leaf.grad = None
        loss.backward()
        return loss.detach()

    def gradients(self, way) -> list[torch.Tensor]:
        """Of a way, in float64."""
        way()
        return [leaf.grad.double() for leaf in self.leaves]


def check_equal(device: str, bf16: bool) -> str:
    """On small sizes; AssertionError where ours is further from the truth than the peer's rounding is."""
    sizes = {"sizes": (700, 64), "vocabulary": 2003}
    head, exact = Head(device, bf16, **sizes), Head(device, False, dtype=torch.float64, **sizes)
    ours, theirs = float(head.ours()), float(head.theirs())
    assert math.isclose(ours, theirs, rel_tol=1e-5), f"other losses: {ours}, {theirs}"
    truth = exact.gradients(lambda: exact.passed_back(_exact_loss(exact)))
    errors = [
        max(float((a - b).norm() / b.norm()) for a, b in zip(head.gradients(way), truth, strict=True))
        for way in (head.ours, head.theirs)
    ]
    assert errors[0] < 1.2 * errors[1] + 1e-6, f"gradients further from the truth: {errors}"
    return f"equal losses, to {abs(ours / theirs - 1):.1e}; gradients off by {errors[0]:.1e}, theirs by {errors[1]:.1e}"


def _exact_loss(head):
    logits = head.leaves[0] @ head.leaves[1].T
    log_z = logits.logsumexp(-1)
    nll = log_z - logits.gather(1, head.labels[:, None])[:, 0]
    return (nll + Z_LOSS * log_z.square()).mean()


def loss_of(device: str, bf16: bool) -> Work:
    """L1, L2."""
    checked, head = check_equal(device, bf16), Head(device, bf16)
    tokens, width = SIZES[device]
    name = f"loss of {tokens:,} targets, width {width}, {'bf16' if bf16 else 'float32'}"
    return Work(name, {OURS: head.ours, THEIRS: head.theirs}, {THEIRS: Goal(1.0)}, checked)


def memory(device: str) -> dict:
    """L3: MiB of tensors that live at the worst moment, above what was there before, under bf16 autocast."""
    head, found = Head(device, True), {}
    for name, way in ((OURS, head.ours), (THEIRS, head.theirs)):
        for leaf in head.leaves:
            leaf.grad = None
        with LiveBytes() as count:
            way()
        found[name] = [count.peak / 2**20] * 2
    tokens, width = SIZES[device]
    told = found_of("L3", f"memory of that loss, {tokens:,} x {width}", found, THEIRS, Goal(0.5), unit="MiB")
    return {**told, "checked": "see L2", "figures": {"clock": "bytes of live tensors"}}


WORKS = {"L1": lambda device: loss_of(device, False), "L2": lambda device: loss_of(device, True), "L3": memory}

if __name__ == "__main__":
    run(__doc__, WORKS)
