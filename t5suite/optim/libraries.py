"""Optimizers of Hugging Face's `--optim`: the library that each lives in and how to install it, and its settings.

    >>> check_library("adamw_bnb_8bit")
    ConfigError: --optim adamw_bnb_8bit is bitsandbytes', which is not installed: pip install
        't5suite[quantization]'

The trainer would say so only when it makes the optimizer: after the data are read and the model is loaded.
"""

import importlib.util

from t5suite.base.errors import ConfigError
from t5suite.optim.settings import typed_settings


def library_of(name: str) -> str | None:
    """The library that an optimizer needs beside torch; None for torch's and transformers' own.

    >>> library_of("paged_adamw_8bit"), library_of("adamw_torch_fused")
    ('bitsandbytes', None)
    """
    return next((library for names, library in LIBRARIES.items() if name in names.split()), None)


def check_library(name: str, flag: str = "--optim") -> None:
    """Refuses an optimizer whose library is not there.

    Raises:
      ConfigError: with the line that installs it.
    """
    library = library_of(name)
    if library is not None and importlib.util.find_spec(library) is None:
        package = PACKAGES.get(library, library)
        other = "; --optimizer adafactor also takes little memory" if library == "bitsandbytes" else ""
        raise ConfigError(f"{flag} {name} is {library}'s, which is not installed: pip install {package}{other}")


def check_their_args(name: str, optim_args, flag: str = "--optim_args") -> None:
    """Refuses settings that an optimizer of Hugging Face's does not read: the trainer would pass over them.

    >>> check_their_args("sgd", "momentumm=0.9")
    ConfigError: --optim_args: sgd (--optim; ours are behind --optimizer) has no setting 'momentumm'; did you mean
        momentum?

    Raises:
      ConfigError: with the closest names; or a value of another type.
    """
    known = next((settings for names, settings in SETTINGS.items() if name in names.split()), "")
    if known is not None:
        kinds = {key: bool | int | str if key in WORDS else float for key in known.split()}
        typed_settings(kinds, f"{name} (--optim; ours are behind --optimizer)", optim_args, flag)


# What pip calls a library, where it is not what Python calls it.
PACKAGES = {
    "bitsandbytes": "'t5suite[quantization]'",
    "galore_torch": "galore-torch",
    "apollo_torch": "apollo-torch",
    "lomo_optim": "lomo-optim",
    "optimi": "torch-optimi",
}

# `{names of --optim: module}` (transformers 5.23, trainer_optimizer.py)
LIBRARIES = {
    "adamw_bnb_8bit adamw_8bit lion_8bit lion_32bit paged_adamw_32bit paged_adamw_8bit paged_lion_32bit "
    "paged_lion_8bit ademamix ademamix_8bit paged_ademamix_32bit paged_ademamix_8bit "
    "rmsprop_bnb rmsprop_bnb_8bit rmsprop_bnb_32bit": "bitsandbytes",
    "galore_adamw galore_adamw_8bit galore_adafactor galore_adamw_layerwise galore_adamw_8bit_layerwise "
    "galore_adafactor_layerwise": "galore_torch",
    "apollo_adamw apollo_adamw_layerwise": "apollo_torch",
    "lomo adalomo": "lomo_optim",
    "grokadamw": "grokadamw",
    "adamw_torch_4bit adamw_torch_8bit": "torchao",
    "schedule_free_radam schedule_free_adamw schedule_free_sgd": "schedulefree",
    "stable_adamw": "optimi",
    "adamw_anyprecision": "torchdistx",
}

WORDS = (
    "nesterov centered proj_type proj scale_type bf16_stochastic_round decouple_lr kahan_sum use_kahan_summation "
    "momentum_dtype variance_dtype compensation_buffer_dtype"
).split()
LOW_RANK = "rank update_proj_gap scale proj_type"
# {names of --optim: settings in --optim_args that transformers 5.23 reads}; None: the library gets them as they are.
# Those that are not here have none.
SETTINGS = {
    "sgd": "momentum dampening weight_decay nesterov",
    "adagrad": "lr_decay weight_decay eps",
    "rmsprop": "momentum alpha eps weight_decay centered",
    "ademamix ademamix_8bit paged_ademamix_32bit paged_ademamix_8bit": "beta1 beta2 beta3 alpha eps t_alpha t_beta3",
    "rmsprop_bnb rmsprop_bnb_8bit rmsprop_bnb_32bit": None,
    "galore_adamw galore_adamw_8bit galore_adafactor galore_adamw_layerwise galore_adamw_8bit_layerwise "
    "galore_adafactor_layerwise": LOW_RANK,
    "apollo_adamw apollo_adamw_layerwise": f"{LOW_RANK} proj scale_type",
    "grokadamw": "alpha_init lamb gamma grokking_signal_decay_rate gradient_clipping",
    "adamw_torch_4bit adamw_torch_8bit": "block_size bf16_stochastic_round",
    "schedule_free_radam schedule_free_adamw schedule_free_sgd": "weight_lr_power r",
    "stable_adamw": "decouple_lr max_lr kahan_sum",
    "adamw_anyprecision": "use_kahan_summation momentum_dtype variance_dtype compensation_buffer_dtype",
}
