"""Settings of an optimizer or a schedule, as text on a command line -> typed keyword arguments.

    >>> def polynomial(step, num_training_steps, *, power: float = 1.0, min_lr_rate: float = 0.0): ...
    >>> settings_for(polynomial, "power=2,min_lr_rate=1e-2", "--lr_scheduler_kwargs")
    {'power': 2.0, 'min_lr_rate': 0.01}

A function's keyword-only parameters are its settings. Libraries and settings of Hugging Face's `--optim` are in
tables: the trainer would check them only after the data are read and the model is loaded.
"""

import ast
import importlib.util
import inspect
import types
import typing
from collections.abc import Callable, Mapping

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import suggestion


def parse_settings(given: str | Mapping | None, where: str) -> dict:
    """Comma-separated `name=value` pairs, as in Hugging Face's `--optim_args`; tuples in parentheses.

    >>> parse_settings("betas=(0.9, 0.95), eps=1e-6", "--optim_args")
    {'betas': '(0.9, 0.95)', 'eps': '1e-6'}

    Raises:
      ConfigError: a part without `=`, or a name given twice.
    """
    if given is None or isinstance(given, Mapping):
        return dict(given or {})
    settings = {}
    for part in _split_outside_brackets(given):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name:
            raise ConfigError(f"{where} {given!r}: {part.strip()!r} is not name=value")
        if name in settings:
            raise ConfigError(f"{where} {given!r}: {name} is given twice")
        settings[name] = value
    return settings


def setting_types(function: Callable) -> dict[str, object]:
    """A function's settings, with their types: its keyword-only parameters."""
    hints = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    return {spec.name: hints[spec.name] for spec in parameters if spec.kind is spec.KEYWORD_ONLY}


def settings_for(function: Callable, given: str | Mapping | None, where: str) -> dict:
    """The settings given for `function`, each converted to its type; errors as in `typed_settings`."""
    return typed_settings(setting_types(function), function.__name__, given, where)


def typed_settings(known: Mapping[str, object], owner: str, given: str | Mapping | None, where: str) -> dict:
    """The settings given for `owner`, each converted to its type in `known` (`{name: type}`).

    Raises:
      ConfigError: an unknown name (with the closest), or a value of another type.
    """
    settings = {}
    for name, value in parse_settings(given, where).items():
        if name not in known:
            has = suggestion(name, known) if known else "it has none"
            raise ConfigError(f"{where}: {owner} has no setting {name!r}; {has}")
        settings[name] = _typed(value, known[name], f"{where} {name}={value}")
    return settings


def read_value(value):
    """A value as text -> the Python literal; other text stays text.

    >>> [read_value(text) for text in ("1e-6", "(0.9, 0.95)", "true", "linear")]
    [1e-06, (0.9, 0.95), True, 'linear']
    """
    if not isinstance(value, str):
        return value
    try:
        return ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(value.lower(), value))
    except (ValueError, SyntaxError):
        return value


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part.strip()]


def _typed(value, hint, where: str):
    value = read_value(value)
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for option in options:
        if option is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if option is int and isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value):
            return int(value)
        if typing.get_origin(option) is tuple and isinstance(value, (tuple, list)):
            if len(value) == len(typing.get_args(option)):
                return tuple(_typed(item, kind, where) for item, kind in zip(value, typing.get_args(option)))
        if option in (bool, str, types.NoneType) and isinstance(value, option):
            return value
    wanted = " or ".join(getattr(option, "__name__", str(option)) for option in options)
    raise ConfigError(f"{where}: expected {wanted.replace('NoneType', 'None')}")


def check_library(name: str, flag: str = "--optim") -> None:
    """Refuses an optimizer whose library is not installed.

    Raises:
      ConfigError: with the command that installs it.
    """
    library = next((library for names, library in LIBRARIES.items() if name in names.split()), None)
    if library is not None and importlib.util.find_spec(library) is None:
        package = PACKAGES.get(library, library)
        other = "; --optimizer adafactor also takes little memory" if library == "bitsandbytes" else ""
        raise ConfigError(f"{flag} {name} is {library}'s, which is not installed: pip install {package}{other}")


def check_their_args(name: str, optim_args, flag: str = "--optim_args") -> None:
    """Refuses settings that a Hugging Face optimizer does not read: the trainer would ignore them.

    >>> check_their_args("sgd", "momentumm=0.9")
    ConfigError: --optim_args: sgd (--optim; t5suite's own are under --optimizer) has no setting 'momentumm'; did you
        mean momentum?

    Raises:
      ConfigError: with the closest names; or a value of another type.
    """
    known = next((settings for names, settings in SETTINGS.items() if name in names.split()), "")
    if known == "" and name.startswith(ADAMW):
        _refuse_for_adamw(name, parse_settings(optim_args, flag), flag)
    if known is not None:
        kinds = {key: bool | int | str if key in WORDS else float for key in known.split()}
        typed_settings(kinds, f"{name} (--optim; t5suite's own are under --optimizer)", optim_args, flag)


def _refuse_for_adamw(name: str, settings: Mapping, flag: str) -> None:
    """Raises ConfigError for settings of Hugging Face's AdamW, which has flags of its own instead."""
    if settings:
        raise ConfigError(
            f"{flag} {', '.join(settings)}: --optim {name} reads no such settings, but --adam_beta1, --adam_beta2 and "
            f"--adam_epsilon; or give --optimizer adamw, which has {', '.join(ADAMW_SETTINGS)}"
        )


# Hugging Face's AdamW of torch, and the settings of our own one (`optimizers.adamw`).
ADAMW = "adamw_torch"
ADAMW_SETTINGS = ("betas", "eps", "weight_decay")

# A library's name in pip, where it is not its name in Python.
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
# {names of --optim: settings in --optim_args that transformers 5.23 reads}; None: the library gets them unchanged.
# Optimizers not listed here have none.
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
