"""Optimizers of Hugging Face's `--optim` that live in other libraries: which, and how to install it.

    >>> check_library("adamw_bnb_8bit")
    ConfigError: --optim adamw_bnb_8bit is bitsandbytes', which is not installed: pip install
        't5suite[quantization]'

The trainer would say so only when it makes the optimizer: after the data are read and the model is loaded.
"""

import importlib.util

from t5suite.errors import ConfigError


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
