"""A training step that computes nothing and allocates nothing, to see how many bytes it would hold at its worst moment.

    >>> model = load_model_shapes("t5-3b", tokenizer=tokenizer)         # on the meta device
    >>> run = rehearse(model, step, gpu=True)                           # step(model) -> the loss of one batch
    >>> run.peak, run.after_forward
    (71_432_110_592, 60_027_043_840)

The model's own code runs, forwards and backwards, on tensors that have shapes and types but no values
(`FakeTensorMode`, which torch.compile traces with); every storage is counted from its making to its release. So there
is no formula of activations to go stale: whatever is saved for the backward pass, is cast by autocast, or computed
again by checkpointing is counted as it happens. Real tensors can be counted in the same way, and are then held against
the allocator's own record (`benchmarks/memory.py`).

Not counted: what a kernel takes for its own scratch, the allocator's rounding and fragments, the device's context.
"""

import contextlib
import weakref
from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only


@dataclass(frozen=True)
class MemoryRun:
    """What a rehearsed step held, in bytes.

    Attributes:
      weights: parameters and buffers, before the step.
      after_forward: weights and what the forward pass left for the backward pass.
      peak: at the worst moment of forward and backward pass.
      gradients: of everything that is trained, after the step.
    """

    weights: int
    after_forward: int
    peak: int
    gradients: int

    @property
    def activations(self) -> int:
        """What the forward pass leaves for the backward pass."""
        return self.after_forward - self.weights


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that live, and their maximum.

    >>> with LiveBytes() as count:
    ...     a = torch.ones(1000)
    ...     b = a + a
    ...     del a
    >>> count.live, count.peak
    (4000, 8000)

    A storage counts once, however many tensors look at it.
    """

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._sizes: dict[int, int] = {}

    def add(self, tensor) -> None:
        """Counts a tensor that was made before."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._release, key)

    def _release(self, key: int) -> None:
        self.live -= self._sizes.pop(key)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self.add, found)
        return found


def rehearse(model, step, *, gpu: bool = False, dtype=None, steps: int = 1, keep_gradients: bool = True) -> MemoryRun:
    """Runs `step` forwards and backwards on a model that has no values, and leaves it in that state.

    Args:
      step: model -> loss; the batch that it makes has no values either.
      gpu: count attention as a GPU's memory-efficient kernel, which keeps no scores.
      dtype: the type of all weights (DeepSpeed's bf16); None leaves them as they are.
      steps: micro-batches of an update: from the second on, gradients are there before the forward pass.
      keep_gradients: False gives each back as soon as it is made, as one that is sharded over very many ranks.
    """
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        without_values(model, dtype)
        return _count(model, step, mode, gpu, steps, keep_gradients)


def _count(model, step, mode, gpu: bool, steps: int, keep_gradients: bool) -> MemoryRun:
    model.train()
    tensors = [*model.parameters(), *model.buffers()]
    hooks = []
    if not keep_gradients:
        hooks = [p.register_post_accumulate_grad_hook(_drop) for p in model.parameters() if p.requires_grad]
    with LiveBytes() as count:
        for tensor in tensors:
            count.add(tensor)
        weights = count.live
        with gpu_attention() if gpu else contextlib.nullcontext():
            for _ in range(steps):
                loss = step(model)
                after_forward = count.live
                loss.backward()
                del loss
        peak = count.peak
    for hook in hooks:
        hook.remove()
    gradients = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    model.zero_grad(set_to_none=True)
    return MemoryRun(weights, after_forward - gradients * (steps > 1) * keep_gradients, peak, gradients)


def _drop(parameter) -> None:
    parameter.grad = None


def without_values(model, dtype=None):
    """Puts tensors without values, of the CPU by name, in the place of all parameters and buffers; ties stay tied.

    Must be called within a `FakeTensorMode`.
    """
    made: dict[int, tuple] = {}

    def empty_like(tensor):
        if id(tensor) not in made:
            kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
            fake = torch.empty(tensor.shape, dtype=kind, device="cpu")
            if isinstance(tensor, nn.Parameter):
                fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
            made[id(tensor)] = (fake, tensor)  # the old one is kept, so that its id is not used again
        return made[id(tensor)][0]

    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is not None:
                    table[name] = empty_like(tensor)
    return model


@contextlib.contextmanager
def gpu_attention():
    """Within, `scaled_dot_product_attention` keeps what the memory-efficient kernel of a GPU keeps: no scores.

    On a CPU, and on tensors without values, torch would take the plain formula wherever a position bias is learned
    (T5's), whose scores [B, heads, T, S] are kept several times over. The function is exchanged, because a
    `TorchFunctionMode` is not in force where checkpointing computes a layer again.
    """
    theirs = nn.functional.scaled_dot_product_attention
    nn.functional.scaled_dot_product_attention = _attend
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention = theirs


def _attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    if torch.is_autocast_enabled("cpu"):
        kind = torch.get_autocast_dtype("cpu")
        query, key, value = (tensor.to(kind) for tensor in (query, key, value))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(kind)
    return _EfficientAttention.apply(query, key, value, attn_mask)


class _EfficientAttention(torch.autograd.Function):
    """Keeps query, key, value, mask, output and a logarithm for each row of the scores (arXiv:2112.05682)."""

    @staticmethod
    def forward(context, query, key, value, mask):
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        log_sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        context.save_for_backward(query, key, value, mask, out, log_sums)
        return out

    @staticmethod
    def backward(context, grad):
        query, key, value, mask, _, _ = context.saved_tensors
        gradients = [torch.empty_like(tensor) for tensor in (query, key, value)]
        wants_mask = mask is not None and context.needs_input_grad[3]
        return (*gradients, torch.empty_like(mask) if wants_mask else None)
