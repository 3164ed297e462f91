"""How much memory a training step takes on its device: weights, gradients, optimizer, activations, and the peak.

    >>> model = load_model_shapes("t5-v1_1-base", tokenizer=tokenizer)              # no weights are loaded
    >>> found = estimate(model, step, optimizer="adamw")                            # step(model) -> loss
    >>> found.weights, found.optimizer, found.peak, found.moment
    (990311424, 1980622848, 8277131264, 'forward and backward')

Activations come from a rehearsal of the step on tensors without values (`memory_runs`); weights, gradients and
optimizer states are sums over parameters. The peak is none of their sums: the optimizer's states are there all the
time, gradients come as activations go, and the backward pass takes some for itself. It lies in forward and backward
pass, or in the optimizer's step where activations are few.

DeepSpeed's stages (arXiv:1910.02054, section 3) give each of n ranks an n-th of optimizer states (1), gradients (2) and
weights (3). Under bf16 it keeps weights and gradients in bf16 and a float32 copy of the weights beside the moments.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from torch import nn

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.models.memory_runs import MemoryRun, rehearse

FORWARD_AND_BACKWARD, OPTIMIZER_STEP = "forward and backward", "optimizer step"
# bitsandbytes keeps smaller tensors in 32 bits, and one float32 scale for each block of these many values.
LEAST_8BIT, BLOCK_8BIT = 4096, 256
# Buckets that stage 2 gathers gradients in: elements, as in deepspeed_configs/.
GRADIENT_BUCKET = 50_000_000


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
