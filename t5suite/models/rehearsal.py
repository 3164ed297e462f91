"""What a training step holds in memory, without doing it: forwards and backwards on tensors without values.

    >>> rehearse(model, step).peak                                  # step(model) -> loss
    8277131264

The model's own code runs on tensors that have shapes and types but no values (`FakeTensorMode`), and every storage is
counted from allocation to release. Not counted: the kernels' and the optimizer's scratch, the allocator's rounding and
fragmentation, the device's context.
"""

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class RehearsedStep:
    """What a rehearsed step held, in bytes.

    Attributes:
      weights: parameters and buffers.
      activations: what the forward pass leaves for the backward pass.
      peak: at the worst moment of forward and backward pass.
      gradients: of everything that is trained.
    """

    weights: int
    activations: int
    peak: int
    gradients: int


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of live tensors, and their peak; a storage counts once, whatever its views.

    >>> with LiveBytes() as count:
    ...     a = torch.ones(1000)
    ...     b = a + a
    ...     del a
    >>> count.live, count.peak
    (4000, 8000)
    """

    def __init__(self):
        super().__init__()
        self.live = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}

    def add(self, tensor) -> None:
        """Counts a tensor that was created earlier.

        torch returns the same Python object for a storage as long as any tensor uses it, so its id names the storage.
        """
        storage = tensor.untyped_storage()
        key = id(storage)
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._release, key)

    def _release(self, key: int) -> None:
        self.live -= self._sizes.pop(key)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        outputs = function(*args, **(kwargs or {}))
        for tensor in _tensors_in(outputs):
            self.add(tensor)
        return outputs


def _tensors_in(outputs) -> Iterator[torch.Tensor]:
    """The tensors that one of torch's operators returned: one, or a tuple or list of tensors and such lists."""
    if isinstance(outputs, torch.Tensor):
        yield outputs
    elif isinstance(outputs, (tuple, list)):
        for part in outputs:
            yield from _tensors_in(part)


def rehearse(
    model, step, *, gpu: bool = False, dtype=None, steps: int = 1, keep_gradients: bool = True
) -> RehearsedStep:
    """Runs the forward and backward pass of `step` on a model whose tensors lose their values.

    Args:
      step: model -> loss.
      gpu: count attention as a GPU's memory-efficient kernel, which keeps no scores.
      dtype: the type of all weights (DeepSpeed's bf16); None leaves them as they are.
      steps: micro-batches of an update: from the second on, gradients exist before the forward pass.
      keep_gradients: False releases each as soon as it is made, as if it were sharded over very many ranks.
    """
    model.train()
    trained_names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    with FakeTensorMode(allow_non_fake_inputs=True):
        _drop_values(model, dtype)
        trained = [model.get_parameter(name) for name in trained_names]
        hooks = []
        if not keep_gradients:
            hooks = [parameter.register_post_accumulate_grad_hook(_release_gradient) for parameter in trained]
        with LiveBytes() as count, _gpu_attention() if gpu else contextlib.nullcontext():
            for tensor in (*model.parameters(), *model.buffers()):
                count.add(tensor)
            weights = count.live
            for _ in range(steps):
                live_before = count.live
                loss = step(model)
                activations = count.live - live_before
                loss.backward()
                del loss
        for hook in hooks:
            hook.remove()
    model.zero_grad(set_to_none=True)
    gradients = sum(parameter.numel() * parameter.element_size() for parameter in trained)
    return RehearsedStep(weights=weights, activations=activations, peak=count.peak, gradients=gradients)


def _release_gradient(parameter: nn.Parameter) -> None:
    parameter.grad = None


def _drop_values(model, dtype) -> None:
    """Replaces all parameters and buffers by fake tensors on the CPU; ties stay tied."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    # By the id of the tensor that is replaced: `named` holds it, so that no other tensor gets its id.
    fakes: dict[int, torch.Tensor] = {}
    for name, tensor in named:
        if id(tensor) not in fakes:
            fakes[id(tensor)] = _without_values(tensor, dtype)
        module_name, _, tensor_name = name.rpartition(".")
        setattr(model.get_submodule(module_name), tensor_name, fakes[id(tensor)])


def _without_values(tensor: torch.Tensor, dtype) -> torch.Tensor:
    """A new tensor like this one on the CPU; of the type `dtype`, if there is one, unless it holds integers."""
    changes_type = dtype is not None and tensor.is_floating_point()
    new_dtype = dtype if changes_type else tensor.dtype
    empty = torch.empty(tensor.shape, dtype=new_dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


def probe_live_bytes() -> str | None:
    """What is wrong with torch's tensors without values: the bytes of 1000 numbers, and of their sum, are counted."""
    with FakeTensorMode(), LiveBytes() as count:
        values = torch.ones(1000)
        total = values + values
        del values
    if (tuple(total.shape), count.live, count.peak) != ((1000,), 4000, 8000):
        return f"torch {torch.__version__}: two times 1000 numbers take {count.peak} bytes, not 8000"
    return None


@contextlib.contextmanager
def _gpu_attention():
    """Within, `scaled_dot_product_attention` keeps what a GPU's memory-efficient kernel keeps: no scores.

    With a learned position bias (T5's) torch on a CPU keeps the scores [B, heads, T, S] several times over. The
    function is replaced, because a `TorchFunctionMode` is not active when checkpointing recomputes a layer.
    """
    original = nn.functional.scaled_dot_product_attention
    nn.functional.scaled_dot_product_attention = _attend
    try:
        yield
    finally:
        nn.functional.scaled_dot_product_attention = original


def _attend(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """The signature of torch's function; under autocast, its inputs in autocast's type."""
    if not torch.is_autocast_enabled("cpu"):
        return _EfficientAttention.apply(query, key, value, attn_mask)
    dtype = torch.get_autocast_dtype("cpu")
    if attn_mask is not None and attn_mask.is_floating_point():
        attn_mask = attn_mask.to(dtype)
    return _EfficientAttention.apply(query.to(dtype), key.to(dtype), value.to(dtype), attn_mask)


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
        grad_mask = None
        if mask is not None and context.needs_input_grad[3]:
            grad_mask = torch.empty_like(mask)
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), grad_mask
