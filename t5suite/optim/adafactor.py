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

import torch

logger = logging.getLogger(__name__)

MIN_DIM_SIZE_TO_FACTOR = 128
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
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict) -> None:
        grad = at_least_float32(parameter.grad)
        state = self._state(parameter, grad, group)
        state["step"] += 1
        weight = at_least_float32(parameter)
        state["RMS"] = rms(weight)
        rate = step_size(group, state)
        update = self._scaled(grad, state, group)
        update.div_((rms(update) / group["clip_threshold"]).clamp_(min=1.0))
        update.mul_(rate)
        if group["beta1"] is not None:
            state[MOMENTUM].mul_(group["beta1"]).add_(update, alpha=1 - group["beta1"])
            update = state[MOMENTUM]
        if group["weight_decay"] != 0:
            weight.addcmul_(weight, weight.new_ones(()) * (-group["weight_decay"] * rate))
        weight.add_(-update)
        if weight is not parameter:
            parameter.copy_(weight)

    def _scaled(self, grad: torch.Tensor, state: dict, group: dict) -> torch.Tensor:
        """The gradient over the root of its second moment, which is updated first."""
        decay = 1.0 - math.pow(state["step"], group["decay_rate"])
        squared = grad**2 + group["eps"][0]
        if FULL in state:
            state[FULL].mul_(decay).add_(squared, alpha=1.0 - decay)
            return state[FULL].rsqrt().mul_(grad)
        rows = state[ROWS]
        columns = state[COLUMNS]
        rows.mul_(decay).add_(squared.mean(dim=-1), alpha=1.0 - decay)
        columns.mul_(decay).add_(squared.mean(dim=-2), alpha=1.0 - decay)
        row_factor = (rows / rows.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
        column_factor = columns.unsqueeze(-2).rsqrt()
        return torch.mul(row_factor, column_factor).mul_(grad)

    def _state(self, parameter: torch.Tensor, grad: torch.Tensor, group: dict) -> dict:
        state = self.state[parameter]
        if state:
            return state
        state["step"] = 0
        if group["beta1"] is not None:
            state[MOMENTUM] = torch.zeros_like(grad)
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


def step_size(group: dict, state: dict) -> float | torch.Tensor:
    """The rate of an update: the group's, or the paper's own (section 8), times the size of the parameter.

    A size stays on its device: nothing waits for it.
    """
    rate = group["lr"]
    if group["relative_step"]:
        limit = 1e-6 * state["step"] if group["warmup_init"] else 1e-2
        rate = min(limit, 1.0 / math.sqrt(state["step"]))
    if not group["scale_parameter"]:
        return rate
    least_size = group["eps"][1]
    return torch.where(state["RMS"] > least_size, state["RMS"] * rate, least_size * rate)


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """A half-precision tensor as float32, any other tensor itself."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def rms(tensor: torch.Tensor) -> torch.Tensor:
    """Root mean square, 0-d."""
    return tensor.norm(2) / (tensor.numel() ** 0.5)
