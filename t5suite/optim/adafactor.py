"""Adafactor as T5 was trained with (arXiv:1804.04235, algorithms 4 and 5, and section 8).

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> weight.grad = torch.tensor([1.0, -2.0])
    >>> Adafactor([weight], lr=0.1).step()
    >>> weight                                     # the first step: 0.1 * RMS(3, 4) = 0.354 against the gradient's sign
    Parameter containing:
    tensor([2.6465, 4.3535], requires_grad=True)

For a parameter p with gradient g, in update t, with decay b = 1 - t^-0.8:

    R = b R + (1 - b) mean of rows of (g^2 + 1e-30)        C = b C + (1 - b) mean of columns of (g^2 + 1e-30)
    v = R C / mean(R)                                      (factored; else v = b v + (1 - b) (g^2 + 1e-30))
    u = g / sqrt(v)                                        u = u / max(1, RMS(u))
    p = p - lr max(1e-3, RMS(p)) u

As in Google's reference (mesh_tensorflow/optimize.py, `min_dim_size_to_factor=128`) and in optax, a matrix with a side
below 128 is not factored: T5's relative position bias, 32 x heads, has a full second moment. transformers 5.24 factors
every matrix, `min_dim_size_to_factor=0` here. Moments are float32 whatever the parameter's type.
"""

import logging
import math
from collections.abc import Iterator

import torch

logger = logging.getLogger(__name__)

MIN_DIM_SIZE_TO_FACTOR = 128
# Numbers of the parameters that are updated together: what is computed of them takes three times their memory.
MOST_NUMBERS = 2**24
# Names of the state, as in transformers' class.
ROWS = "exp_avg_sq_row"
COLUMNS = "exp_avg_sq_col"
FULL = "exp_avg_sq"
MOMENTUM = "exp_avg"
MOMENTS = {ROWS, COLUMNS, FULL, MOMENTUM}


class Adafactor(torch.optim.Optimizer):
    """Adafactor with a second moment in rows and columns for large matrices.

    The names of its state are those of transformers' class, whose checkpoints it reads; a parameter whose second moment
    is factored in a checkpoint stays factored.

    Args:
      eps: what is added to squared gradients; the least size of a parameter for its steps.
      min_dim_size_to_factor: a matrix is factored if both of its (last two) sides have at least this size.
    """

    def __init__(
        self,
        params,
        lr: float,
        *,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = False,
        warmup_init: bool = False,
        min_dim_size_to_factor: int = MIN_DIM_SIZE_TO_FACTOR,
    ):
        defaults = {
            "lr": lr,
            "eps": tuple(eps),
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
            "beta1": beta1,
            "weight_decay": weight_decay,
            "scale_parameter": scale_parameter,
            "relative_step": relative_step,
            "warmup_init": warmup_init,
            "min_dim_size_to_factor": min_dim_size_to_factor,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure=None):
        """One update of every parameter that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameters in self._alike(group):
                self._update(parameters, group)
        return loss

    def _alike(self, group: dict) -> Iterator[list[torch.Tensor]]:
        """Parameters with gradients that are updated together: of one kind, with MOST_NUMBERS numbers at most."""
        by_kind: dict[tuple, list[torch.Tensor]] = {}
        for parameter in group["params"]:
            if parameter.grad is not None:
                state = self._state(parameter, group)
                kind = (state["step"], FULL in state, parameter.device, parameter.dtype)
                by_kind.setdefault(kind, []).append(parameter)
        for parameters in by_kind.values():
            yield from lists_of(parameters, MOST_NUMBERS)

    def _update(self, parameters: list[torch.Tensor], group: dict) -> None:
        weights = [at_least_float32(parameter) for parameter in parameters]
        grads = [at_least_float32(parameter.grad) for parameter in parameters]
        states = [self.state[parameter] for parameter in parameters]
        step = states[0]["step"] + 1
        sizes = root_mean_squares(weights)
        for state, size in zip(states, sizes, strict=True):
            state["step"] = step
            state["RMS"] = size
        rates = step_sizes(group, step, sizes)
        updates = self._scaled(grads, states, group)
        excesses = root_mean_squares(updates)
        torch._foreach_div_(excesses, group["clip_threshold"])
        torch._foreach_clamp_min_(excesses, 1.0)
        torch._foreach_div_(updates, excesses)
        torch._foreach_mul_(updates, rates)
        if group["beta1"] is not None:
            averages = [state[MOMENTUM] for state in states]
            torch._foreach_mul_(averages, group["beta1"])
            torch._foreach_add_(averages, updates, alpha=1 - group["beta1"])
            updates = averages
        if group["weight_decay"] != 0:
            torch._foreach_mul_(rates, -group["weight_decay"])
            torch._foreach_addcmul_(weights, weights, rates)
        torch._foreach_sub_(weights, updates)
        for parameter, weight in zip(parameters, weights, strict=True):
            if weight is not parameter:
                parameter.copy_(weight)

    def _scaled(self, grads: list[torch.Tensor], states: list[dict], group: dict) -> list[torch.Tensor]:
        """Gradients over the roots of their second moments, which are updated first."""
        decay = 1.0 - math.pow(states[0]["step"], group["decay_rate"])
        squares = torch._foreach_mul(grads, grads)
        torch._foreach_add_(squares, group["eps"][0])
        if FULL in states[0]:
            moments = [state[FULL] for state in states]
            update_averages(moments, squares, decay)
            scaled_grads = torch._foreach_rsqrt(moments)
        else:
            update_averages([state[ROWS] for state in states], [square.mean(dim=-1) for square in squares], decay)
            update_averages([state[COLUMNS] for state in states], [square.mean(dim=-2) for square in squares], decay)
            scaled_grads = [inverse_root(state[ROWS], state[COLUMNS]) for state in states]
        torch._foreach_mul_(scaled_grads, grads)
        return scaled_grads

    def _state(self, parameter: torch.Tensor, group: dict) -> dict:
        state = self.state[parameter]
        if group["beta1"] is not None and MOMENTUM not in state:  # a run may go on with one that it began without
            state[MOMENTUM] = torch.zeros_like(at_least_float32(parameter.grad))
        if "step" in state:
            return state
        grad = at_least_float32(parameter.grad)
        state["step"] = 0
        if is_factored(grad.shape, group["min_dim_size_to_factor"]):
            state[ROWS] = grad.new_zeros(grad.shape[:-1])
            state[COLUMNS] = grad.new_zeros(grad.shape[:-2] + grad.shape[-1:])
        else:
            state[FULL] = torch.zeros_like(grad)
        return state

    def __setstate__(self, state: dict) -> None:
        """Groups of transformers' class, with which t5suite 0.2.0 trained, factor every matrix and go on so."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("min_dim_size_to_factor", 0)

    def load_state_dict(self, state_dict: dict) -> None:
        """Restores moments exactly: torch's own method rounds them to the parameter's type."""
        if any("min_dim_size_to_factor" not in group for group in state_dict["param_groups"]):
            logger.warning(
                "the checkpoint's Adafactor factors every matrix, as transformers and t5suite 0.2.0 do: the run goes "
                "on so; new runs factor those whose sides are both at least %d (--optim_args min_dim_size_to_factor)",
                MIN_DIM_SIZE_TO_FACTOR,
            )
        super().load_state_dict(state_dict)
        names = [name for group in state_dict["param_groups"] for name in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for name, parameter in zip(names, parameters, strict=True):
            saved_state = state_dict["state"].get(name, {})
            for moment in MOMENTS & saved_state.keys():
                self.state[parameter][moment] = at_least_float32(saved_state[moment].to(parameter.device))


def is_factored(shape, min_dim_size_to_factor: int = MIN_DIM_SIZE_TO_FACTOR) -> bool:
    """Whether the second moment of a parameter is kept as rows and columns.

    >>> is_factored((512, 2048)), is_factored((32, 8)), is_factored((512,))
    (True, False, False)
    """
    return len(shape) >= 2 and min(shape[-2:]) >= min_dim_size_to_factor


def lists_of(parameters: list[torch.Tensor], most_numbers: int) -> Iterator[list[torch.Tensor]]:
    """The parameters in lists of so many numbers at most; a larger one is a list by itself.

    >>> [len(listed) for listed in lists_of([torch.zeros(3), torch.zeros(2), torch.zeros(9), torch.zeros(1)], 5)]
    [2, 1, 1]
    """
    listed: list[torch.Tensor] = []
    num_listed = 0
    for parameter in parameters:
        if listed and num_listed + parameter.numel() > most_numbers:
            yield listed
            listed = []
            num_listed = 0
        listed.append(parameter)
        num_listed += parameter.numel()
    if listed:
        yield listed


def step_sizes(group: dict, step: int, sizes: list[torch.Tensor]) -> list[torch.Tensor]:
    """The rates of an update: the group's, or the paper's own (section 8), times the sizes of the parameters."""
    rate = group["lr"]
    if group["relative_step"]:
        limit = 1e-6 * step if group["warmup_init"] else 1e-2
        rate = min(limit, 1.0 / math.sqrt(step))
    if not group["scale_parameter"]:
        return [torch.full_like(size, rate) for size in sizes]
    rates = torch._foreach_mul(sizes, rate)
    torch._foreach_clamp_min_(rates, group["eps"][1] * rate)
    return rates


def update_averages(averages: list[torch.Tensor], values: list[torch.Tensor], decay: float) -> None:
    """Moving averages with another value each, in place."""
    torch._foreach_mul_(averages, decay)
    torch._foreach_add_(averages, values, alpha=1.0 - decay)


def inverse_root(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """One over the root of a second moment that is kept as the means of its rows and of its columns."""
    row_factor = (rows / rows.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
    column_factor = columns.unsqueeze(-2).rsqrt()
    return torch.mul(row_factor, column_factor)


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """A half-precision tensor as float32, any other tensor itself."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def root_mean_squares(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The root mean square of each tensor, 0-d, on its device and without waiting for it.

    >>> root_mean_squares([torch.tensor([3.0, 4.0])])
    [tensor(3.5355)]
    """
    norms = list(torch._foreach_norm(tensors, 2))
    torch._foreach_div_(norms, [tensor.numel() ** 0.5 for tensor in tensors])
    return norms


def probe_updates() -> str | None:
    """What is wrong with torch's operations on lists of tensors: one update against numbers by plain arithmetic.

    Of a matrix that is factored, a vector, and one whose size is below the least.
    """
    weights = ([[1.0, 2.0], [3.0, 4.0]], [3.0, 4.0], [0.0, 0.0])
    grads = ([[1.0, -2.0], [0.5, 2.0]], [1.0, -2.0], [0.5, 2.0])
    expected = [0.821046, 1.759361, 2.566418, 3.416243, 2.425476, 3.337087, -0.003125, -0.003125]
    parameters = [torch.nn.Parameter(torch.tensor(weight)) for weight in weights]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = torch.tensor(grad)
    settings = {"eps": (1e-30, 0.25), "clip_threshold": 0.5, "weight_decay": 0.5, "beta1": 0.75}
    Adafactor(parameters, lr=0.1, min_dim_size_to_factor=2, **settings).step()
    results = torch.cat([parameter.detach().flatten() for parameter in parameters])
    if torch.allclose(results, torch.tensor(expected), rtol=0, atol=1e-5):
        return None
    return f"torch {torch.__version__}: an update by its operations on lists gives {results.tolist()}, not {expected}"
