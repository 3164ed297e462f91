"""How much memory a training step takes on its device: weights, gradients, optimizer, activations, and the peak.

    >>> model = load_model_shapes("t5-v1_1-base", tokenizer=tokenizer)              # no weights are loaded
    >>> estimate(model, step, optimizer="adamw")                                    # step(model) -> loss
    {'weights': 990311424, 'gradients': 990311424, 'optimizer': 1980622848, ..., 'peak': 8277131264, 'host': 0}

Activations come from a rehearsal: the model's own code runs, forwards and backwards, on tensors that have shapes and
types but no values (`FakeTensorMode`), and every storage is counted from allocation to release. Weights, gradients
and optimizer states are sums over parameters. The peak is not their sum: gradients appear as activations are freed, and
the backward pass needs memory, too. Not counted: the kernels' and the optimizer's scratch, the allocator's rounding
and fragmentation, the device's context. `benchmarks/memory.py` compares with the allocator's own record.

DeepSpeed's stages (arXiv:1910.02054, section 3) give each of n ranks an n-th of optimizer states (1), gradients (2) and
weights (3). Under bf16 it keeps weights and gradients in bf16 and a float32 copy of the weights besides the moments.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from t5suite.base.errors import ConfigError
from t5suite.base.libraries import require_proved
from t5suite.base.lookup import find

# Elements of the buckets that ZeRO-2 gathers gradients in, as in deepspeed_configs/.
GRADIENT_BUCKET = 50_000_000
# Adafactor factors matrices whose sides are both at least this long (`optim.adafactor.MIN_DIM_SIZE_TO_FACTOR`).
LEAST_FACTORED_SIDE = 128


class MemoryRun(NamedTuple):
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
        self.live = self.peak = 0
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
        result = function(*args, **(kwargs or {}))
        for tensor in _tensors_in(result):
            self.add(tensor)
        return result


def _tensors_in(result) -> Iterator[torch.Tensor]:
    """The tensors that one of torch's operators returned: one, or a tuple or list of tensors and such lists."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from _tensors_in(part)


def rehearse(model, step, *, gpu: bool = False, dtype=None, steps: int = 1, keep_gradients: bool = True) -> MemoryRun:
    """Runs the forward and backward pass of `step` on a model whose tensors lose their values.

    Args:
      step: model -> loss.
      gpu: count attention as a GPU's memory-efficient kernel, which keeps no scores.
      dtype: the type of all weights (DeepSpeed's bf16); None leaves them as they are.
      steps: micro-batches of an update: from the second on, gradients exist before the forward pass.
      keep_gradients: False releases each as soon as it is made, as if it were sharded over very many ranks.
    """
    model.train()
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    with FakeTensorMode(allow_non_fake_inputs=True):
        _drop_values(model, dtype)
        parameters = [model.get_parameter(name) for name in trained]
        release = lambda parameter: setattr(parameter, "grad", None)
        hooks = [] if keep_gradients else [p.register_post_accumulate_grad_hook(release) for p in parameters]
        with LiveBytes() as count, _gpu_attention() if gpu else contextlib.nullcontext():
            for tensor in (*model.parameters(), *model.buffers()):
                count.add(tensor)
            weights = count.live
            for _ in range(steps):
                before = count.live
                loss = step(model)
                activations = count.live - before
                loss.backward()
                del loss
        for hook in hooks:
            hook.remove()
    model.zero_grad(set_to_none=True)
    return MemoryRun(weights, activations, count.peak, sum(p.numel() * p.element_size() for p in parameters))


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
    empty = torch.empty(tensor.shape, dtype=dtype if changes_type else tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, requires_grad=tensor.requires_grad)
    return empty


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
        *inputs, mask, _, _ = context.saved_tensors
        wants_mask = mask is not None and context.needs_input_grad[3]
        return (*map(torch.empty_like, inputs), torch.empty_like(mask) if wants_mask else None)


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
) -> dict[str, int]:
    """Bytes of one update on one device; the model's parameters lose their values.

    Args:
      step: model -> loss of a batch; `requires_grad` and checkpointing are the model's own.
      optimizer: a key of OPTIMIZER_MEMORY.
      gpu, dtype: as in `rehearse`.
      micro_batches: of an update; from two on, gradients and activations exist at the same time.
      sharding: a name of SHARDINGS, over `num_gpus` ranks.
      run: an earlier rehearsal of the same step, which does not depend on the optimizer.

    Returns:
      weights, gradients, optimizer, activations and peak of this device; host: what offloading keeps in the host's
      memory for this rank.

    Raises:
      ConfigError: an optimizer whose memory is not known; nothing to train.
    """
    require_proved("memory_estimate")
    bytes_of = find(optimizer, OPTIMIZER_MEMORY, "optimizer with known memory", where="--optimizer")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ConfigError("every parameter of the model is frozen, so there is nothing to train")
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    states = sum(bytes_of(parameter, id(parameter) in embeddings) for parameter in trained)
    if sharding is not None and dtype is not None:
        states += 4 * sum(parameter.numel() for parameter in trained)
    steps = min(micro_batches, 2) if sharding is None else 1
    run = run or rehearse(model, step, gpu=gpu, dtype=dtype, steps=steps, keep_gradients=sharding is None)
    weights, gradients, host, passing = run.weights, run.gradients, 0, run.peak - run.weights
    if sharding is not None:  # gradients of stages 1 and 2 are counted as if all of them existed at the peak
        find(sharding, dict.fromkeys(SHARDINGS), "sharding", where="--deepspeed")
        stage, offloads = int(sharding[4]), sharding.endswith("_offload")
        states //= num_gpus
        bucket = min(gradients, GRADIENT_BUCKET * (dtype or trained[0].dtype).itemsize)
        if offloads:
            host, states, gradients = states + gradients // num_gpus, 0, bucket
        elif stage >= 2:
            gradients = gradients // num_gpus + bucket
        if stage == 3:
            gathered = 2 * _largest_layer(model)
            host += weights // num_gpus if offloads else 0
            weights = min(weights, gathered) if offloads else weights // num_gpus + gathered
        passing += gradients
    found = {"weights": weights, "gradients": gradients, "optimizer": states, "activations": run.activations}
    return {**found, "peak": weights + states + passing, "host": host}


def _largest_layer(model) -> int:
    """Bytes of the largest module that has weights of its own or is one of a list of layers: what stage 3 gathers."""
    layers = [layer for m in model.modules() if isinstance(m, nn.ModuleList) for layer in m]
    leaves = [module for module in model.modules() if any(True for _ in module.parameters(recurse=False))]
    return max(sum(p.numel() * p.element_size() for p in module.parameters()) for module in [*layers, *leaves])


def _moments(count: int):
    """`count` numbers of a parameter's dtype for each of its elements."""
    return lambda parameter, is_embedding: count * parameter.numel() * parameter.element_size()


def _moments_in_8_bits(count: int):
    """Block-wise moments (arXiv:2110.02861); the trainer keeps embeddings' in 32 bits, as its authors advise."""
    return lambda parameter, is_embedding: count * parameter.numel() * (4 if is_embedding else 1)


def _factored(parameter, is_embedding: bool) -> int:
    """Adafactor's row and column means (arXiv:1804.04235, alg. 4); vectors and small matrices have them all."""
    if parameter.ndim < 2 or min(parameter.shape[-2:]) < LEAST_FACTORED_SIDE:
        return 4 * parameter.numel()
    return 4 * (parameter.numel() // parameter.shape[-1] + parameter.numel() // parameter.shape[-2])


SHARDINGS = ("zero1", "zero2", "zero2_offload", "zero3", "zero3_offload")

# Bytes that an optimizer keeps for (parameter, is an embedding): ours (`--optimizer`) and Hugging Face's (`--optim`).
OPTIMIZER_MEMORY = {
    "adamw": _moments(2), "adamw_rms": _moments(2), "adafactor": _factored,
    "adamw_torch": _moments(2), "adamw_torch_fused": _moments(2), "adamw_bnb_8bit": _moments_in_8_bits(2),
    "adamw_8bit": _moments_in_8_bits(2), "lion_8bit": _moments_in_8_bits(1), "lion_32bit": _moments(1),
    "sgd": _moments(0), "adagrad": _moments(1), "rmsprop": _moments(1),
}  # fmt: skip
