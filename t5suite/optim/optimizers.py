"""Optimizers by name (`--optimizer`); without the flag, Hugging Face's `--optim` decides.

    >>> make_optimizer("adamw_rms", t5, learning_rate=2e-2, optim_args="eps=1e-8").param_groups[0]["eps"]
    1e-08

Every function takes the model and the learning rate and returns a `torch.optim.Optimizer`; its keyword-only parameters
are the settings that `--optim_args "name=value,..."` accepts. Weight decay follows Hugging Face's rule
(`decay_names`).

    >>> scheduler = make_scheduler(optimizer, "cosine", num_training_steps=100, num_warmup_steps=10)
    >>> scheduler.step()                            # once per update, on every rank

Each group's rate is its own base rate times f(step). The trainer steps a scheduler itself, once per update; a scheduler
prepared by accelerate would be stepped once per process (nanoT5's cosine ended at half the run on two GPUs).
"""

import math

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import Trainer

from t5suite.base.errors import ConfigError
from t5suite.base.libraries import require_proved
from t5suite.base.lookup import find
from t5suite.optim.adafactor import MIN_DIM_SIZE_TO_FACTOR, Adafactor
from t5suite.optim.adamw_rms import AdamWRMS
from t5suite.optim.schedules import SCHEDULES, make_multiplier, plateau
from t5suite.optim.settings import setting_types, settings_for


def decay_names(model: nn.Module) -> set[str]:
    """Names of the parameters with weight decay, by Hugging Face's rule.

    Norms, biases and everything with `bias` in its name (T5's `relative_attention_bias` tables too) are excluded;
    embeddings are decayed. The rule is a method of their `Trainer` that works without an instance.
    """
    return set(Trainer.get_decay_parameter_names(None, model))


def trained_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """`(name, parameter)` of everything that is not frozen, tied parameters once."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def decay_groups(model: nn.Module, weight_decay: float = 0.0) -> list[dict]:
    """Parameters with weight decay and parameters without, as two groups; an empty group is dropped."""
    decayed, named = decay_names(model), trained_parameters(model)
    groups = [
        {"params": [p for name, p in named if (name in decayed) == decays], "weight_decay": weight_decay * decays}
        for decays in (True, False)
    ]
    return [group for group in groups if group["params"]]


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
    require_proved("fused_updates")
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
    min_dim_size_to_factor: int = MIN_DIM_SIZE_TO_FACTOR,
) -> Adafactor:
    """Adafactor as T5 was trained with (arXiv:1804.04235, alg. 4 and section 8; T5's released configurations).

    No first moment, second-moment decay 1 - t^-0.8, updates clipped at an RMS of 1, steps relative to the size of the
    parameter (`learning_rate * max(1e-3, RMS(parameter))`), matrices with a side under 128 not factored
    (`min_dim_size_to_factor=0` factors every matrix, as transformers does). `--optim adafactor` differs: the trainer
    turns the relative steps off there, and a learning rate of 1e-3 then means a far smaller step.

    With `relative_step` Adafactor sets its own rate, min(1e-2, 1 / sqrt(t)), or with `warmup_init` min(1e-6 t,
    1 / sqrt(t)): learning rate and schedule have no effect (the schedule `relative_step` shows the same rate).
    """
    if warmup_init and not relative_step:
        raise ConfigError("--optim_args warmup_init=True: Adafactor's warm-up also needs relative_step=True")
    if min_dim_size_to_factor < 0:
        raise ConfigError(f"--optim_args min_dim_size_to_factor={min_dim_size_to_factor}: must be at least 0")
    # With relative steps the class ignores the rate, but schedules multiply the rate in the groups.
    rate = 1.0 if relative_step else learning_rate
    return Adafactor(
        decay_groups(model, weight_decay),
        lr=rate,
        eps=eps,
        clip_threshold=clip_threshold,
        decay_rate=decay_rate,
        beta1=beta1,
        scale_parameter=scale_parameter,
        relative_step=relative_step,
        warmup_init=warmup_init,
        min_dim_size_to_factor=min_dim_size_to_factor,
    )


def make_optimizer(
    name: str, model: nn.Module, learning_rate: float, optim_args=None, defaults: dict | None = None
) -> torch.optim.Optimizer:
    """The optimizer `name` for the parameters of `model` that are not frozen.

    Args:
      optim_args: settings by name, as text or a dictionary; they override `defaults`.
      defaults: settings from other flags (`--weight_decay`, `--adam_beta1`, ...); those that the optimizer does not
        have are ignored (reporting them is up to the caller).

    Raises:
      ConfigError: an unknown name or setting, a value of the wrong type, a model without trainable parameters.
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


# Optimizers that need whole tensors: on parameters that ZeRO or FSDP has sharded, they would silently compute
# something else.
NEED_WHOLE_TENSORS = ("adamw_rms", "adafactor")


class PlateauLR(LambdaLR):
    """A rate that falls when evaluations stop improving; its whole state is in `state_dict`.

    torch's `ReduceLROnPlateau` has no warm-up, and its relative threshold counts every negated loss as an
    improvement.
    """

    def __init__(self, optimizer, multiplier, *, factor: float, patience: int, threshold: float, min_lr_rate: float):
        self.settings = {"factor": factor, "patience": patience, "threshold": threshold, "min_lr_rate": min_lr_rate}
        self.reduction = 1.0
        self.best: float | None = None
        self.num_bad = 0
        super().__init__(optimizer, multiplier)

    def observe(self, value: float) -> None:
        """Takes an evaluation's value (higher is better), and lowers the rates after too many without improvement.

        >>> for value in (-2.0, -1.5, -1.5, -1.5): scheduler.observe(value)         # patience 1, factor 0.1
        >>> scheduler.reduction
        0.1

        Until there was a number, minus infinity, which stands for NaN, does not count; later it is no improvement.
        """
        if self.best is None and value == -math.inf:
            return
        if self.best is None or value > self.best + self.settings["threshold"]:
            self.best, self.num_bad = value, 0
            return
        self.num_bad += 1
        if self.num_bad > self.settings["patience"]:
            self.reduction = max(self.reduction * self.settings["factor"], self.settings["min_lr_rate"])
            self.num_bad = 0
            set_rates(self)

    def get_lr(self) -> list[float]:
        """Base rates times the warm-up and all reductions so far."""
        return present_rates(self)


def make_scheduler(optimizer, name: str, num_training_steps: int, num_warmup_steps: int = 0, settings=None) -> LambdaLR:
    """The scheduler of schedule `name`; `settings` as `schedules.schedule_settings` returns them."""
    multiplier = make_multiplier(name, num_training_steps, num_warmup_steps, settings)
    if SCHEDULES[name] is not plateau:
        return LambdaLR(optimizer, multiplier)
    defaults = {key: plateau.__kwdefaults__[key] for key in setting_types(plateau) if key != "warmup_start"}
    return PlateauLR(optimizer, multiplier, **{key: (settings or {}).get(key, defaults[key]) for key in defaults})


def present_rates(scheduler: LambdaLR) -> list[float]:
    """Each group's rate for the current step; `get_lr` is the same, but warns if called outside `step`."""
    reduction = getattr(scheduler, "reduction", 1.0)
    multipliers = [multiplier(scheduler.last_epoch) * reduction for multiplier in scheduler.lr_lambdas]
    return [base * by for base, by in zip(scheduler.base_lrs, multipliers, strict=True)]


def set_rates(scheduler: LambdaLR) -> None:
    """Sets every group's rate to its schedule's value for the current step."""
    scheduler._last_lr = present_rates(scheduler)
    for group, rate in zip(scheduler.optimizer.param_groups, scheduler._last_lr, strict=True):
        group["lr"] = rate


OPTIMIZERS = {"adamw": adamw, "adamw_rms": adamw_rms, "adafactor": adafactor}
