"""How much memory a training step takes on its device: weights, gradients, optimizer, activations, and the peak.

    >>> model = load_model_shapes("t5-v1_1-base", tokenizer=tokenizer)              # no weights are loaded
    >>> estimate(model, step, optimizer="adamw")                                    # step(model) -> loss
    {'weights': 990311424, 'gradients': 990311424, 'optimizer': 1980622848, ..., 'peak': 8277131264, 'host': 0}

Activations and the peak come from a rehearsal (`rehearsal`). Weights, gradients and optimizer states are sums over
parameters. The peak is not their sum: gradients appear as activations are freed, and the backward pass needs memory,
too. `benchmarks/memory.py` compares with the allocator's own record.

DeepSpeed's stages (arXiv:1910.02054, section 3) give each of n ranks an n-th of optimizer states (1), gradients (2) and
weights (3). Under bf16 it keeps weights and gradients in bf16 and a float32 copy of the weights besides the moments.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import nn

from t5suite.base.errors import ConfigError
from t5suite.base.libraries import require_proved
from t5suite.base.lookup import find
from t5suite.models.rehearsal import RehearsedStep, rehearse

# Elements of the buckets that ZeRO-2 gathers gradients in, as in deepspeed_configs/.
GRADIENT_BUCKET = 50_000_000
# Adafactor factors matrices whose sides are both at least this long (`optim.adafactor.MIN_DIM_SIZE_TO_FACTOR`).
LEAST_FACTORED_SIDE = 128
SHARDINGS = ("zero1", "zero2", "zero2_offload", "zero3", "zero3_offload")


@dataclass(frozen=True)
class Sharding:
    """DeepSpeed's sharding of a run.

    Attributes:
      name: one of SHARDINGS.
      num_gpus: ranks.
    """

    name: str
    num_gpus: int = 1

    def __post_init__(self):
        find(self.name, dict.fromkeys(SHARDINGS), "sharding", where="--deepspeed")

    @property
    def stage(self) -> int:
        """What is sharded: optimizer states (1), gradients, too (2), weights, too (3)."""
        return int(self.name.removeprefix("zero")[0])

    @property
    def offloads(self) -> bool:
        """Whether what is sharded is in the host's memory."""
        return self.name.endswith("_offload")


@dataclass(frozen=True)
class HeldBytes:
    """What one device holds for an update outside of the passes, and what offloading keeps in the host's memory."""

    weights: int
    gradients: int
    states: int
    host: int = 0


def estimate(
    model,
    step,
    *,
    optimizer: str = "adamw",
    gpu: bool = True,
    dtype=None,
    micro_batches: int = 1,
    sharding: Sharding | None = None,
    rehearsed: RehearsedStep | None = None,
) -> dict[str, int]:
    """Bytes of one update on one device; the model's parameters lose their values.

    Args:
      step: model -> loss of a batch; `requires_grad` and checkpointing are the model's own.
      optimizer: a key of OPTIMIZER_MEMORY.
      gpu, dtype: as in `rehearse`.
      micro_batches: of an update; from two on, gradients and activations exist at the same time.
      rehearsed: an earlier rehearsal of the same step, which does not depend on the optimizer.

    Returns:
      weights, gradients, optimizer, activations and peak of this device; host: what offloading keeps in the host's
      memory for this rank.

    Raises:
      ConfigError: an optimizer whose memory is not known; nothing to train.
    """
    require_proved("memory_estimate")
    states = _state_bytes(model, optimizer)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if sharding is not None and dtype is not None:
        states += 4 * sum(parameter.numel() for parameter in trained)
    gradient_itemsize = (dtype or trained[0].dtype).itemsize
    if rehearsed is None:
        steps = min(micro_batches, 2) if sharding is None else 1
        rehearsed = rehearse(model, step, gpu=gpu, dtype=dtype, steps=steps, keep_gradients=sharding is None)
    held = HeldBytes(rehearsed.weights, rehearsed.gradients, states)
    passes = rehearsed.peak - rehearsed.weights
    if sharding is not None:
        held = _sharded(held, sharding, bucket=GRADIENT_BUCKET * gradient_itemsize, largest_layer=_largest_layer(model))
        passes += held.gradients  # those of stages 1 and 2 are counted as if all of them existed at the peak
    return {
        "weights": held.weights,
        "gradients": held.gradients,
        "optimizer": held.states,
        "activations": rehearsed.activations,
        "peak": held.weights + held.states + passes,
        "host": held.host,
    }


def _state_bytes(model, optimizer: str) -> int:
    """Bytes of the optimizer's states over everything that is trained."""
    bytes_of = find(optimizer, OPTIMIZER_MEMORY, "optimizer with known memory", where="--optimizer")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ConfigError("every parameter of the model is frozen, so there is nothing to train")
    embeddings = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    return sum(bytes_of(parameter, id(parameter) in embeddings) for parameter in trained)


def _sharded(held: HeldBytes, sharding: Sharding, bucket: int, largest_layer: int) -> HeldBytes:
    """What one of several ranks holds.

    Args:
      held: what a device would hold without sharding.
      bucket: bytes of a whole bucket of gradients.
      largest_layer: bytes of the largest layer, which stage 3 gathers; and the next one.
    """
    states = held.states // sharding.num_gpus
    gradients = held.gradients // sharding.num_gpus
    weights = held.weights // sharding.num_gpus
    bucket = min(held.gradients, bucket)
    gathered = 2 * largest_layer
    if sharding.offloads:
        on_device = HeldBytes(held.weights, bucket, states=0, host=states + gradients)
    elif sharding.stage >= 2:
        on_device = HeldBytes(held.weights, gradients + bucket, states)
    else:
        on_device = HeldBytes(held.weights, held.gradients, states)
    if sharding.stage < 3:
        return on_device
    if sharding.offloads:
        return replace(on_device, weights=min(held.weights, gathered), host=on_device.host + weights)
    return replace(on_device, weights=weights + gathered)


def _largest_layer(model) -> int:
    """Bytes of the largest layer of a list, or of the weights that one module itself has: what stage 3 gathers."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    layers = [layer for module in lists for layer in module]
    sizes = [_bytes_of(layer.parameters()) for layer in layers]
    sizes += [_bytes_of(module.parameters(recurse=False)) for module in model.modules()]
    return max(sizes)


def _bytes_of(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


def _moments(count: int):
    """`count` numbers in float32 for each element, whatever a rehearsal has cast the parameter to."""
    return lambda parameter, is_embedding: 4 * count * parameter.numel()


def _moments_in_8_bits(count: int):
    """Block-wise moments (arXiv:2110.02861); the trainer keeps embeddings' in 32 bits, as its authors advise."""
    return lambda parameter, is_embedding: count * parameter.numel() * (4 if is_embedding else 1)


def _factored(parameter, is_embedding: bool) -> int:
    """Adafactor's row and column means (arXiv:1804.04235, alg. 4); vectors and small matrices have them all."""
    if parameter.ndim < 2 or min(parameter.shape[-2:]) < LEAST_FACTORED_SIDE:
        return 4 * parameter.numel()
    num_rows = parameter.numel() // parameter.shape[-1]
    num_columns = parameter.numel() // parameter.shape[-2]
    return 4 * (num_rows + num_columns)


# Bytes that an optimizer keeps for (parameter, is an embedding): ours (`--optimizer`) and Hugging Face's (`--optim`).
OPTIMIZER_MEMORY = {
    "adamw": _moments(2), "adamw_rms": _moments(2), "adafactor": _factored,
    "adamw_torch": _moments(2), "adamw_torch_fused": _moments(2), "adamw_bnb_8bit": _moments_in_8_bits(2),
    "adamw_8bit": _moments_in_8_bits(2), "lion_8bit": _moments_in_8_bits(1), "lion_32bit": _moments(1),
    "sgd": _moments(0), "adagrad": _moments(1), "rmsprop": _moments(1),
}  # fmt: skip
