"""Optimizers by name (`--optimizer`); without the flag, Hugging Face's `--optim` decides.

    >>> make_optimizer("adamw_rms", t5, learning_rate=2e-2, optim_args="eps=1e-8").param_groups[0]["eps"]
    1e-08

Every function takes the model and the learning rate and returns a `torch.optim.Optimizer`; its keyword-only parameters
are the settings that `--optim_args "name=value,..."` may give. Weight decay follows Hugging Face's rule
(`parameter_groups.decay_names`).
"""

import torch
from torch import nn
from transformers.optimization import Adafactor

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.optim.adamw_rms import AdamWRMS
from t5suite.optim.muon import MuonWithAdamW
from t5suite.optim.parameter_groups import decay_groups, hidden_matrices, trained_parameters
from t5suite.optim.settings import setting_types, settings_for


def adamw(
    model: nn.Module,
    learning_rate: float,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    fused: bool = True,
) -> torch.optim.AdamW:
    """AdamW (arXiv:1711.05101) in torch's fused form: one pass over the memory, on CPUs and GPUs."""
    groups = decay_groups(model, weight_decay)
    return torch.optim.AdamW(groups, lr=learning_rate, betas=betas, eps=eps, fused=fused)


def adamw_rms(
    model: nn.Module,
    learning_rate: float,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
    min_rms: float = 1e-3,
) -> AdamWRMS:
    """AdamW with steps relative to each parameter's size, as nanoT5 trains; 2e-2 suits T5 v1.1 base from scratch."""
    return AdamWRMS(decay_groups(model, weight_decay), lr=learning_rate, betas=betas, eps=eps, min_rms=min_rms)


def adafactor(
    model: nn.Module,
    learning_rate: float,
    *,
    eps: tuple[float, float] = (1e-30, 1e-3),
    clip_threshold: float = 1.0,
    decay_rate: float = -0.8,
    beta1: float | None = None,
    weight_decay: float = 0.0,
    scale_parameter: bool = True,
    relative_step: bool = False,
    warmup_init: bool = False,
) -> Adafactor:
    """Adafactor as T5 was trained with (arXiv:1804.04235, alg. 4 and section 8; T5's released configurations).

    No first moment, second-moment decay 1 - t^-0.8, updates clipped at an RMS of 1, steps relative to the size of the
    parameter (`learning_rate * max(1e-3, RMS(parameter))`). `--optim adafactor` is another thing: the trainer turns
    the relative steps off there, and a learning rate of 1e-3 then means a far smaller step.

    With `relative_step` Adafactor sets its own rate, min(1e-2, 1 / sqrt(t)), or with `warmup_init` min(1e-6 t,
    1 / sqrt(t)): learning rate and schedule have no effect (the schedule `relative_step` shows the same rate).
    """
    if warmup_init and not relative_step:
        raise ConfigError("--optim_args warmup_init=True: Adafactor's warm-up needs relative_step=True beside it")
    optimizer = Adafactor(
        decay_groups(model, weight_decay),
        lr=None if relative_step else learning_rate,
        eps=eps,
        clip_threshold=clip_threshold,
        decay_rate=decay_rate,
        beta1=beta1,
        scale_parameter=scale_parameter,
        relative_step=relative_step,
        warmup_init=warmup_init,
    )
    if relative_step:
        # Their class reads no rate in this mode, but schedules multiply the one that stands in the groups.
        for group in optimizer.param_groups:
            group["lr"] = 1.0
    return optimizer


def muon(
    model: nn.Module,
    learning_rate: float,
    *,
    weight_decay: float = 0.0,
    momentum: float = 0.95,
    nesterov: bool = True,
    ns_steps: int = 5,
    adjust_lr_fn: str = "match_rms_adamw",
    adamw_learning_rate: float | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> MuonWithAdamW:
    """Muon for the matrices between the layers, AdamW for embeddings, head, norms and bias tables.

    Args:
      adjust_lr_fn: match_rms_adamw (AdamW's rates carry over) or original (sqrt(max(1, rows / columns))).
      adamw_learning_rate: AdamW's rate, if not the same; both follow the schedule. betas, eps: AdamW's.
    """
    if adjust_lr_fn not in ("match_rms_adamw", "original"):
        raise ConfigError(f"--optim_args adjust_lr_fn={adjust_lr_fn}: choose match_rms_adamw or original")
    matrices = hidden_matrices(model)
    rest = {name for name, _ in trained_parameters(model)} - matrices
    return MuonWithAdamW(
        decay_groups(model, weight_decay, only=matrices),
        decay_groups(model, weight_decay, only=rest),
        {
            "lr": learning_rate,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        },
        {"lr": adamw_learning_rate or learning_rate, "betas": betas, "eps": eps, "fused": True},
    )


def make_optimizer(
    name: str, model: nn.Module, learning_rate: float, optim_args=None, defaults: dict | None = None
) -> torch.optim.Optimizer:
    """The optimizer `name` for the parameters of `model` that are not frozen.

    Args:
      optim_args: settings by name, as text or a dictionary; they come before `defaults`.
      defaults: settings that other flags gave (`--weight_decay`, `--adam_beta1`, ...); those that the optimizer does
        not have are the caller's to speak of.

    Raises:
      ConfigError: an unknown name or setting, a value of the wrong type, a model without a trained parameter.
    """
    function = find(name, OPTIMIZERS, "optimizer", where="--optimizer")
    if not trained_parameters(model):
        raise ConfigError(f"--optimizer {name}: every parameter of the model is frozen, so there is nothing to train")
    known = setting_types(function)
    settings = {key: value for key, value in (defaults or {}).items() if key in known}
    return function(model, learning_rate, **{**settings, **settings_for(function, optim_args, "--optim_args")})


def is_adam(name: str) -> bool:
    """Whether the optimizer has Adam's betas and eps, which `--adam_beta1`, `--adam_beta2`, `--adam_epsilon` set."""
    return "betas" in setting_types(OPTIMIZERS[name])


# Optimizers that look at whole tensors: where ZeRO or FSDP cuts parameters into pieces, they would silently compute
# something else.
NEED_WHOLE_TENSORS = ("adamw_rms", "adafactor", "muon")

OPTIMIZERS = {
    "adamw": adamw,
    "adamw_rms": adamw_rms,
    "adafactor": adafactor,
    "muon": muon,
}
