"""Optimizers by name (`--optimizer`); without the flag, Hugging Face's `--optim` decides.

    >>> make_optimizer("adamw_rms", t5, learning_rate=2e-2, optim_args="eps=1e-8").param_groups[0]["eps"]
    1e-08

Every function of OPTIMIZERS takes the model and the learning rate and returns a `torch.optim.Optimizer`; its
keyword-only parameters are the settings that `--optim_args "name=value,..."` accepts. Weight decay follows Hugging
Face's rule (`decay_names`).

`require_proved` refuses an optimizer that leans on torch's inside where the installed torch was not tested with it
(`base.libraries`).
"""

import torch
from torch import nn
from transformers import Trainer

from t5suite.base.errors import ConfigError, UserError
from t5suite.base.libraries import require_proved
from t5suite.base.lookup import find
from t5suite.optim.adafactor import MIN_DIM_SIZE_TO_FACTOR, Adafactor
from t5suite.optim.adamw_rms import AdamWRMS
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
    decayed_names = decay_names(model)
    decayed = []
    undecayed = []
    for name, parameter in trained_parameters(model):
        if name in decayed_names:
            decayed.append(parameter)
        else:
            undecayed.append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": undecayed, "weight_decay": 0.0}]
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
    """AdamW with steps relative to each parameter's RMS, as nanoT5 trains; 2e-2 suits T5 v1.1 base from scratch.

    A step is `learning_rate * max(min_rms, RMS(parameter))` times AdamW's.
    """
    _check_setting("betas", betas, all(0 <= beta < 1 for beta in betas), "numbers from 0 to below 1")
    _check_setting("eps", eps, eps >= 0, "at least 0")
    _check_setting("min_rms", min_rms, min_rms >= 0, "at least 0")
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

    No first moment, second-moment decay 1 - t^-0.8, updates clipped at an RMS of 1, matrices with a side under 128 not
    factored (`min_dim_size_to_factor=0` factors every matrix, as transformers does). By `scale_parameter` a step is
    relative to the RMS of its parameter: `learning_rate * max(1e-3, RMS(parameter))`. `--optim adafactor` differs: the
    trainer turns that off, and a step is `learning_rate` whatever the parameter's RMS.

    With `relative_step` Adafactor sets its own rate, min(1e-2, 1 / sqrt(t)), or with `warmup_init` min(1e-6 t,
    1 / sqrt(t)): `learning_rate` and the schedule have no effect. `--schedule relative_step` has no effect either, but
    shows that rate in logs.
    """
    if warmup_init and not relative_step:
        raise ConfigError("--optim_args warmup_init=True: Adafactor's warm-up also needs relative_step=True")
    _check_setting("eps", eps, min(eps) >= 0, "numbers of at least 0")
    _check_setting("clip_threshold", clip_threshold, clip_threshold > 0, "more than 0")
    _check_setting("decay_rate", decay_rate, decay_rate <= 0, "at most 0")
    _check_setting("beta1", beta1, beta1 is None or 0 <= beta1 < 1, "a number from 0 to below 1")
    _check_setting("min_dim_size_to_factor", min_dim_size_to_factor, min_dim_size_to_factor >= 0, "at least 0")
    require_proved("listed_updates")
    rate = learning_rate
    if relative_step:
        rate = 1.0  # the class ignores it, and logs then show the schedule's values as they are
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


def _check_setting(name: str, value, is_right: bool, right_values: str) -> None:
    if not is_right:
        raise ValueError(f"{name} is {value}; give {right_values}")


def make_optimizer(
    name: str, model: nn.Module, learning_rate: float, optim_args=None, defaults: dict | None = None
) -> torch.optim.Optimizer:
    """The optimizer `name` for the parameters of `model` that are not frozen.

    Args:
      optim_args: settings by name, as text or a dictionary; they override `defaults`.
      defaults: settings from other flags (`--weight_decay`, `--adam_beta1`, ...); those that the optimizer does not
        have are ignored (reporting them is up to the caller).

    Raises:
      ConfigError: an unknown name or setting, a value of the wrong type or out of its range, a model without trainable
        parameters.
    """
    function = find(name, OPTIMIZERS, "optimizer", where="--optimizer")
    if not trained_parameters(model):
        raise ConfigError(f"--optimizer {name}: every parameter of the model is frozen, so there is nothing to train")
    names_of_settings = setting_types(function).keys()
    settings = {key: value for key, value in (defaults or {}).items() if key in names_of_settings}
    settings |= settings_for(function, optim_args, "--optim_args")
    if settings.get("weight_decay", 0.0) < 0:
        raise ConfigError(f"--optimizer {name}: weight_decay is {settings['weight_decay']}; give at least 0")
    try:
        return function(model, learning_rate, **settings)
    except UserError:
        raise
    except ValueError as error:  # of a value out of its range, also torch's
        raise ConfigError(f"--optimizer {name}: {error}") from None


def is_adam(name: str) -> bool:
    """Whether the optimizer has Adam's betas and eps, which `--adam_beta1`, `--adam_beta2`, `--adam_epsilon` set."""
    return "betas" in setting_types(OPTIMIZERS[name])


OPTIMIZERS = {"adamw": adamw, "adamw_rms": adamw_rms, "adafactor": adafactor}
# Optimizers that need whole tensors: on parameters that ZeRO or FSDP has sharded, they would silently compute
# something else.
NEED_WHOLE_TENSORS = ("adamw_rms", "adafactor")
