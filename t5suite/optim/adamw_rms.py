"""AdamW whose steps are relative to the size of each parameter: AdamW with RMS scaling.

    >>> weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> weight.grad = torch.tensor([1.0, -2.0])
    >>> AdamWRMS([weight], lr=0.1).step()
    >>> weight                                     # the first step: 0.1 * RMS(3, 4) = 0.354 against the gradient's sign
    Parameter containing:
    tensor([2.6465, 4.3535], requires_grad=True)

For a parameter p with gradient g, in update t (nanoT5's AdamWScale, which takes the scale from Adafactor,
arXiv:1804.04235 section 8, and the rest from AdamW, arXiv:1711.05101):

    m = beta1 m + (1 - beta1) g                    v = beta2 v + (1 - beta2) g^2
    p = p - lr sqrt(1 - beta2^t) / (1 - beta1^t) max(1e-3, RMS(p)) m / (sqrt(v) + eps)
    p = p - lr weight_decay p                      (the plain learning rate, not scaled by RMS)

A learning rate of 2e-2 means: 2% of the parameter's own size. Moments are float32 whatever the parameter's type.
"""

from collections.abc import Callable

import torch

MOMENTS = ("exp_avg", "exp_avg_sq")
FUSED_DEVICES = ("cpu", "cuda")
# Types of tensors that are not sharded.
UNSHARDED_TYPES = (torch.nn.Parameter, torch.Tensor)


class AdamWRMS(torch.optim.Optimizer):
    """AdamW with RMS scaling.

    No operation waits for the device. Float32 parameters on a CPU or GPU take one pass over memory each (torch's fused
    Adam with the scaled learning rate as a tensor); others use the same formula through foreach operations.

    Args:
      min_rms: lower bound of the RMS, so that a parameter that is all zero can move.
      fused: None chooses by type and device; False never uses the fused kernel.
    """

    def __init__(
        self, params, lr=1e-2, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, min_rms=1e-3, fused: bool | None = None
    ):
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay, "min_rms": min_rms}
        super().__init__(params, {**defaults, "fused": fused})

    @torch.no_grad()
    def step(self, closure=None):
        """One update of every parameter that has a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            with_grad = [parameter for parameter in group["params"] if parameter.grad is not None]
            fused = []
            if group["fused"] is not False:
                fused = [parameter for parameter in with_grad if takes_fused(parameter)]
            fused_ids = {id(parameter) for parameter in fused}
            unfused = [parameter for parameter in with_grad if id(parameter) not in fused_ids]
            if fused:
                self._update(fused, group, fused_update)
            if unfused:
                self._update(unfused, group, foreach_update)
        return loss

    def _update(self, parameters: list[torch.Tensor], group: dict, update: Callable) -> None:
        grads = [parameter.grad for parameter in parameters]
        states = [self._state(parameter) for parameter in parameters]
        steps = [state["step"] + 1 for state in states]
        for state, step in zip(states, steps, strict=True):
            state["step"] = step
        scales = parameter_rms(parameters, factor=group["lr"])
        torch._foreach_clamp_min_(scales, group["lr"] * group["min_rms"])
        exp_avgs, exp_avg_sqs = ([state[name] for state in states] for name in MOMENTS)
        update(parameters, grads, exp_avgs, exp_avg_sqs, steps, scales, group["betas"], group["eps"])
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])

    def _state(self, parameter) -> dict:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            for name in MOMENTS:
                state[name] = torch.zeros_like(parameter, dtype=torch.float32, memory_format=torch.preserve_format)
        return state

    def load_state_dict(self, state_dict: dict) -> None:
        """Restores moments exactly: torch's own method rounds them to the parameter's type."""
        super().load_state_dict(state_dict)
        names = [name for group in state_dict["param_groups"] for name in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for name, parameter in zip(names, parameters, strict=True):
            for moment in MOMENTS:
                if moment in state_dict["state"].get(name, {}):
                    saved = state_dict["state"][name][moment]
                    self.state[parameter][moment] = saved.to(device=parameter.device, dtype=torch.float32)


def takes_fused(parameter: torch.Tensor) -> bool:
    """Whether the fused kernel supports the parameter: float32 on a CPU or GPU, and not sharded."""
    if type(parameter) not in UNSHARDED_TYPES:
        return False
    return parameter.dtype == torch.float32 and parameter.device.type in FUSED_DEVICES


def fused_update(parameters, grads, exp_avgs, exp_avg_sqs, steps, scales, betas, eps) -> None:
    """One tensor at a time through torch's fused Adam kernel; `scales` are learning rates that stay on the device.

    Its denominator is `sqrt(v) / sqrt(1 - beta2^t) + eps'`, so eps' = eps / sqrt(1 - beta2^t) makes the two equal.
    """
    beta1, beta2 = betas
    last_step_and_device = None
    counter = None
    kernel_eps = None
    for parameter, grad, exp_avg, exp_avg_sq, step, scale in zip(
        parameters, grads, exp_avgs, exp_avg_sqs, steps, scales, strict=True
    ):
        if last_step_and_device != (step, parameter.device):
            last_step_and_device = (step, parameter.device)
            counter = torch.full((), float(step), dtype=torch.float32, device=parameter.device)
            kernel_eps = eps / (1 - beta2**step) ** 0.5
        torch._fused_adamw_(
            [parameter],
            [grad],
            [exp_avg],
            [exp_avg_sq],
            [],
            [counter],
            lr=scale,
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0,
            eps=kernel_eps,
            amsgrad=False,
            maximize=False,
        )


def foreach_update(parameters, grads, exp_avgs, exp_avg_sqs, steps, scales, betas, eps) -> None:
    """The same formula with operations over lists of tensors, for every type and device."""
    beta1, beta2 = betas
    grads = [grad.float() for grad in grads]
    torch._foreach_lerp_(exp_avgs, grads, 1 - beta1)
    torch._foreach_mul_(exp_avg_sqs, beta2)
    torch._foreach_addcmul_(exp_avg_sqs, grads, grads, 1 - beta2)
    denominators = torch._foreach_sqrt(exp_avg_sqs)
    torch._foreach_add_(denominators, eps)
    updates = torch._foreach_div(exp_avgs, denominators)
    torch._foreach_mul_(scales, [(1 - beta2**step) ** 0.5 / (1 - beta1**step) for step in steps])
    torch._foreach_mul_(updates, scales)
    torch._foreach_sub_(parameters, [update.to(p.dtype) for update, p in zip(updates, parameters, strict=True)])


def parameter_rms(parameters: list[torch.Tensor], factor: float = 1.0) -> list[torch.Tensor]:
    """Root mean square of each parameter times a factor, 0-d float32, on its device and without waiting for it.

    >>> parameter_rms([torch.tensor([3.0, 4.0])])
    [tensor(3.5355)]
    """
    are_float32 = all(parameter.dtype == torch.float32 for parameter in parameters)
    # Naming the type costs a tenth.
    norms = torch._foreach_norm(parameters, 2, dtype=None if are_float32 else torch.float32)
    torch._foreach_mul_(norms, [factor / parameter.numel() ** 0.5 for parameter in parameters])
    return list(norms)


def probe_updates() -> str | None:
    """What is wrong with torch's operations on lists of tensors or its fused AdamW: one update against the formula."""
    weights = ([3.0, 4.0], [0.0, 0.0])
    grads = ([1.0, -2.0], [0.5, 2.0])
    settings = {"lr": 0.1, "eps": 0.5, "weight_decay": 0.5, "min_rms": 0.25}  # the second weight's RMS is below
    expected = torch.tensor([_first_update(*pair, **settings) for pair in zip(weights, grads, strict=True)])
    for fused, name in ((None, "its fused AdamW"), (False, "its operations on lists of tensors")):
        parameters = [torch.nn.Parameter(torch.tensor(weight)) for weight in weights]
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = torch.tensor(grad)
        AdamWRMS(parameters, fused=fused, **settings).step()
        results = torch.stack([parameter.detach() for parameter in parameters])
        if not torch.allclose(results, expected, rtol=0, atol=1e-5):
            return f"torch {torch.__version__}: an update by {name} gives {results.tolist()}, not {expected.tolist()}"
    return None


def _first_update(weight: list[float], grad: list[float], lr, eps, weight_decay, min_rms) -> list[float]:
    """A parameter after its first update, by plain arithmetic; beta2 is 0.999."""
    root = (1 - 0.999) ** 0.5
    rms = (sum(value * value for value in weight) / len(weight)) ** 0.5
    scale = lr * max(min_rms, rms)
    steps = [scale * root * slope / (root * abs(slope) + eps) for slope in grad]
    return [(value - step) * (1 - lr * weight_decay) for value, step in zip(weight, steps, strict=True)]
