"""How much memory a training step takes on its device: weights, gradients, optimizer, activations, and the peak.

    >>> model = load_model_shapes("t5-v1_1-base", tokenizer=tokenizer)              # no weights are loaded
    >>> found = estimate(model, step, optimizer="adamw")                            # step(model) -> loss
    >>> found.weights, found.optimizer, found.peak, found.moment
    (990311424, 1980622848, 8277131264, 'forward and backward')

Activations come from a rehearsal: the model's own code runs, forwards and backwards, on tensors that have shapes and
types but no values (`FakeTensorMode`, which torch.compile traces with), and every storage is counted from its making to
its release. So there is no formula of activations to go stale. Real tensors can be counted in the same way, and are
held against the allocator's own record (`benchmarks/memory.py`). Not counted: what a kernel takes for its own scratch,
the allocator's rounding and fragments, the device's context. Weights, gradients and optimizer states are sums over
parameters. The peak is none of their sums: the optimizer's states are there all the
time, gradients come as activations go, and the backward pass takes some for itself. It lies in forward and backward
pass, or in the optimizer's step where activations are few.

DeepSpeed's stages (arXiv:1910.02054, section 3) give each of n ranks an n-th of optimizer states (1), gradients (2) and
weights (3). Under bf16 it keeps weights and gradients in bf16 and a float32 copy of the weights beside the moments.
"""

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find

FORWARD_AND_BACKWARD, OPTIMIZER_STEP = "forward and backward", "optimizer step"
# bitsandbytes keeps smaller tensors in 32 bits, and one float32 scale for each block of these many values.
LEAST_8BIT, BLOCK_8BIT = 4096, 256
# Buckets that stage 2 gathers gradients in: elements, as in deepspeed_configs/.
GRADIENT_BUCKET = 50_000_000


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


@dataclass(frozen=True)
class Memory:
    """Bytes of one training step on one device.

    Attributes:
      weights, gradients, optimizer: what this device holds of each.
      activations: what the forward pass leaves for the backward pass; autocast's copies of weights are among them.
      peak: the most that lives at once. moment: where that is.
      host: what is kept in the host's memory instead (offloading), for this rank.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int
    moment: str
    host: int = 0

    def as_dict(self) -> dict:
        """For `--json`."""
        return asdict(self)


@dataclass(frozen=True)
class Sharding:
    """What of a model's state a rank holds an n-th of, and what lies in the host's memory."""

    gradients: bool = False
    weights: bool = False
    offload_optimizer: bool = False
    offload_weights: bool = False


@dataclass(frozen=True)
class Optimizer:
    """An optimizer's bytes: what it keeps for a parameter, and what it takes for itself while it steps.

    Attributes:
      state: (parameter, is an embedding) -> bytes.
      scratch: `[(parameter, is an embedding)]` of all that is trained, whether on a GPU -> bytes, for a moment.
    """

    state: Callable[[torch.Tensor, bool], int]
    scratch: Callable[[list, bool], int] = lambda parameters, gpu: 0


def estimate(
    model,
    step,
    *,
    optimizer: str = "adamw",
    gpu: bool = True,
    dtype=None,
    micro_batches: int = 1,
    sharding: str | None = None,
    num_gpus: int = 1,
    run: MemoryRun | None = None,
) -> Memory:
    """The memory of one update on one device; the model's parameters lose their values.

    Args:
      step: model -> loss of a batch; `requires_grad` and checkpointing are the model's own.
      optimizer: a name of OPTIMIZER_MEMORY.
      gpu: with the attention of GPUs; else as torch computes it on a CPU.
      dtype: the weights' type, if not the model's own: torch.bfloat16 for DeepSpeed's bf16.
      micro_batches: of an update; from two on, gradients are there while activations are.
      sharding: a name of SHARDINGS, over `num_gpus` ranks.
      run: an earlier rehearsal of the same step, which does not depend on the optimizer.

    Raises:
      ConfigError: an optimizer whose memory is not known; nothing to train.
    """
    kept = find(optimizer, OPTIMIZER_MEMORY, "optimizer with known memory", where="--optimizer")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ConfigError("every parameter of the model is frozen, so there is nothing to train")
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    marked = [(parameter, id(parameter) in embeddings) for parameter in trained]
    states = sum(kept.state(*pair) for pair in marked)
    scratch = kept.scratch(marked, gpu)
    if sharding is None:
        run = run or rehearse(model, step, gpu=gpu, dtype=dtype, steps=min(micro_batches, 2))
        return _peak(run.weights, run.gradients, states, run.activations, run.peak - run.weights, scratch)
    parts = find(sharding, SHARDINGS, "sharding", where="--deepspeed")
    if dtype is not None:
        states += 4 * sum(parameter.numel() for parameter in trained)
    run = run or rehearse(model, step, gpu=gpu, dtype=dtype, keep_gradients=False)
    return _sharded(model, run, parts, states, scratch, num_gpus)


def _sharded(model, run, parts: Sharding, states: int, scratch: int, num_gpus: int) -> Memory:
    """One rank's part of a step; gradients of stages 1 and 2 are counted as if all of them were there at the peak."""
    weights, gradients, optimizer, host = run.weights, run.gradients, states // num_gpus, 0
    width = run.gradients // max(1, sum(p.numel() for p in model.parameters() if p.requires_grad))
    if parts.gradients:
        gradients = gradients // num_gpus + min(gradients, GRADIENT_BUCKET * width)
    if parts.weights:
        weights = weights // num_gpus + 2 * largest_layer(model)
    if parts.offload_optimizer:
        host, optimizer, scratch = optimizer + run.gradients // num_gpus, 0, 0
        gradients = min(run.gradients, GRADIENT_BUCKET * width)
    if parts.offload_weights:
        host, weights = host + run.weights // num_gpus, min(run.weights, 2 * largest_layer(model))
    passing = run.peak - run.weights + gradients
    found = _peak(weights, gradients, optimizer, run.activations, passing, scratch // num_gpus)
    return Memory(**{**asdict(found), "host": host})


def _peak(weights, gradients, optimizer, activations, passing: int, scratch: int) -> Memory:
    """`passing`: what lives beside weights and optimizer at the worst moment of forward and backward pass."""
    moments = {FORWARD_AND_BACKWARD: passing, OPTIMIZER_STEP: gradients + scratch}
    moment = max(moments, key=moments.get)
    return Memory(weights, gradients, optimizer, activations, weights + optimizer + moments[moment], moment)


def largest_layer(model) -> int:
    """Bytes of the largest module that has weights of its own or is one of a list of layers: what stage 3 gathers."""
    layers = [layer for m in model.modules() if isinstance(m, nn.ModuleList) for layer in m]
    leaves = [module for module in model.modules() if module._parameters]
    return max(sum(p.numel() * p.element_size() for p in module.parameters()) for module in [*layers, *leaves])


def _moments(count: int) -> Callable[[torch.Tensor, bool], int]:
    return lambda parameter, is_embedding: count * parameter.numel() * parameter.element_size()


def _factored(parameter, is_embedding: bool) -> int:
    """Adafactor's row and column means (arXiv:1804.04235, alg. 4); a vector has a full second moment."""
    if parameter.ndim < 2:
        return 4 * parameter.numel()
    return 4 * (parameter.numel() // parameter.shape[-1] + parameter.numel() // parameter.shape[-2])


def _in_8_bits(count: int) -> Callable[[torch.Tensor, bool], int]:
    """Block-wise moments (arXiv:2110.02861); the trainer keeps embeddings' in 32 bits, as its authors advise."""

    def state(parameter, is_embedding: bool) -> int:
        if is_embedding or parameter.numel() < LEAST_8BIT:
            return 4 * count * parameter.numel()
        return count * (parameter.numel() + 4 * (-(-parameter.numel() // BLOCK_8BIT)))

    return state


def _muon(parameter, is_embedding: bool) -> int:
    """One moment for matrices between the layers, two for the rest; a head of its own is taken for a matrix."""
    return (1 if parameter.ndim == 2 and not is_embedding else 2) * 4 * parameter.numel()


def _largest(copies: int, embeddings: bool = True) -> Callable[[list, bool], int]:
    """So many copies of the largest parameter; without `embeddings`, of the largest other one."""
    return lambda marked, gpu: (
        copies * max((4 * p.numel() for p, is_one in marked if embeddings or not is_one), default=0)
    )


def _all_on_gpus(copies: int) -> Callable[[list, bool], int]:
    """torch steps lists of tensors at once on GPUs (`foreach`), and one by one on CPUs."""
    one_by_one = _largest(copies)
    return lambda marked, gpu: copies * sum(4 * p.numel() for p, _ in marked) if gpu else one_by_one(marked, gpu)


SHARDINGS = {
    "zero1": Sharding(),
    "zero2": Sharding(gradients=True),
    "zero2_offload": Sharding(gradients=True, offload_optimizer=True),
    "zero3": Sharding(gradients=True, weights=True),
    "zero3_offload": Sharding(gradients=True, weights=True, offload_optimizer=True, offload_weights=True),
}

# Ours (`--optimizer`) and Hugging Face's (`--optim`).
OPTIMIZER_MEMORY = {
    "adamw": Optimizer(_moments(2)),
    "adamw_rms": Optimizer(_moments(2)),
    "adafactor": Optimizer(_factored, _largest(3)),
    "muon": Optimizer(_muon, _largest(3, embeddings=False)),
    "adamw_torch": Optimizer(_moments(2), _all_on_gpus(1)),
    "adamw_torch_fused": Optimizer(_moments(2)),
    "adamw_bnb_8bit": Optimizer(_in_8_bits(2)),
    "adamw_8bit": Optimizer(_in_8_bits(2)),
    "lion_8bit": Optimizer(_in_8_bits(1)),
    "lion_32bit": Optimizer(_moments(1)),
    "sgd": Optimizer(_moments(0)),
    "adagrad": Optimizer(_moments(1), _all_on_gpus(1)),
    "rmsprop": Optimizer(_moments(1), _all_on_gpus(1)),
}
