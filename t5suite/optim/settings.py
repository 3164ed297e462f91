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

# Hugging Face's AdamW of torch, and the settings of our own one (`optimizers.adamw`).
ADAMW = "adamw_torch"
ADAMW_SETTINGS = ("betas", "eps", "weight_decay")

# A library's name in pip, where it is not its name in Python.
PACKAGES = {
    "bitsandbytes": "'t5suite[quantization]'",
    "optimi": "torch-optimi",
}

# `{names of --optim: module}` (transformers 5.23, trainer_optimizer.py)
LIBRARIES = {
    "adamw_bnb_8bit adamw_8bit lion_8bit lion_32bit paged_adamw_32bit paged_adamw_8bit paged_lion_32bit "
    "paged_lion_8bit ademamix ademamix_8bit paged_ademamix_32bit paged_ademamix_8bit "
    "rmsprop_bnb rmsprop_bnb_8bit rmsprop_bnb_32bit": "bitsandbytes",
    "grokadamw": "grokadamw",
    "adamw_torch_4bit adamw_torch_8bit": "torchao",
    "stable_adamw": "optimi",
    "adamw_anyprecision": "torchdistx",
}

IN_THE_BACKWARD_PASS = (
    "changes weights within the backward pass: such an update is not checked, its state is in no checkpoint, and it "
    "follows no schedule"
)
CHOOSE_ADAFACTOR = "choose --optimizer adafactor, which takes little memory, too"
# {names of --optim that are refused: why, and what to choose}
UNFIT = {
    "schedule_free_radam schedule_free_adamw schedule_free_sgd": "holds other weights while it trains than those that "
    "should be scored and saved, and a run does not switch between the two; choose --optimizer adamw",
    "galore_adamw galore_adamw_8bit galore_adafactor apollo_adamw": "keeps objects of its library in its state, which "
    f"no checkpoint can hold, and has no weight decay; {CHOOSE_ADAFACTOR}",
    "lomo adalomo galore_adamw_layerwise galore_adamw_8bit_layerwise galore_adafactor_layerwise "
    "apollo_adamw_layerwise": f"{IN_THE_BACKWARD_PASS}; {CHOOSE_ADAFACTOR}",
}

WORDS = (
    "nesterov centered bf16_stochastic_round decouple_lr kahan_sum use_kahan_summation "
    "momentum_dtype variance_dtype compensation_buffer_dtype"
).split()
# {names of --optim: settings in --optim_args that transformers 5.23 converts from text}. Optimizers not listed here
# have none: RMSprop of bitsandbytes, and torchao's for its block_size, would get texts in place of numbers.
SETTINGS = {
    "sgd": "momentum dampening nesterov",
    "adagrad": "lr_decay eps",
    "rmsprop": "momentum alpha eps centered",
    "ademamix ademamix_8bit paged_ademamix_32bit paged_ademamix_8bit": "beta1 beta2 beta3 alpha eps t_alpha t_beta3",
    "grokadamw": "alpha_init lamb gamma grokking_signal_decay_rate gradient_clipping",
    "adamw_torch_4bit adamw_torch_8bit": "bf16_stochastic_round",
    "stable_adamw": "decouple_lr max_lr kahan_sum",
    "adamw_anyprecision": "use_kahan_summation momentum_dtype variance_dtype compensation_buffer_dtype",
}
# Those that transformers switches on whatever text they have, also by `False`.
TRUE_FOR_ANY_TEXT = ("decouple_lr", "kahan_sum")


def parse_settings(text: str | Mapping | None, where: str) -> dict:
    """Comma-separated `name=value` pairs, as in Hugging Face's `--optim_args`; tuples in parentheses, texts in quotes.

    >>> parse_settings("betas=(0.9, 0.95), eps=1e-6", "--optim_args")
    {'betas': '(0.9, 0.95)', 'eps': '1e-6'}
    >>> parse_settings("prompt_tuning_init=text,prompt_tuning_init_text='good, or bad'", "--adapter_args")
    {'prompt_tuning_init': 'text', 'prompt_tuning_init_text': "'good, or bad'"}

    Raises:
      ConfigError: a part without `=`, a name given twice, or a quotation mark that is not closed.
    """
    if text is None or isinstance(text, Mapping):
        return dict(text or {})
    settings = {}
    for part in _split_at_commas(text, where):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not name:
            raise ConfigError(f"{where} {text!r}: {part.strip()!r} is not name=value")
        if name in settings:
            raise ConfigError(f"{where} {text!r}: {name} is given twice")
        settings[name] = value
    return settings


def setting_types(function: Callable) -> dict[str, object]:
    """A function's settings, with their types: its keyword-only parameters."""
    hints = typing.get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    return {spec.name: hints[spec.name] for spec in parameters if spec.kind is spec.KEYWORD_ONLY}


def settings_for(function: Callable, settings: str | Mapping | None, where: str) -> dict:
    """The settings of `function`, each converted to its type; errors as in `typed_settings`."""
    return typed_settings(setting_types(function), function.__name__, settings, where)


def typed_settings(types_by_name: Mapping[str, object], owner: str, settings: str | Mapping | None, where: str) -> dict:
    """The settings of `owner`, each converted to its type in `types_by_name`.

    Raises:
      ConfigError: an unknown name (with the closest), or a value of another type.
    """
    typed = {}
    for name, value in parse_settings(settings, where).items():
        if name not in types_by_name:
            choices = suggestion(name, types_by_name) if types_by_name else "it has none"
            raise ConfigError(f"{where}: {owner} has no setting {name!r}; {choices}")
        typed[name] = _typed(value, types_by_name[name], f"{where} {name}={value}")
    return typed


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


def _split_at_commas(text: str, where: str) -> list[str]:
    """The parts between commas that are in no brackets and no quotes; quotes begin a value, as in Python."""
    parts = [""]
    depth = 0
    quote = None
    before = ","
    for character in text:
        if quote:
            quote = None if character == quote and before != "\\" else quote
        elif character in "'\"" and before in "=,([{:":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if character == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += character
        if quote or not character.isspace():
            before = character
    if quote:
        raise ConfigError(f"{where} {text!r}: a quotation mark ({quote}) is not closed")
    return [part for part in parts if part.strip()]


def _typed(value, hint, where: str):
    """A value as the type of a hint; of a union, as the first type that takes it."""
    value = read_value(value)
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for kind in kinds:
        if kind in (bool, str, types.NoneType) and isinstance(value, kind):
            return value
        if kind is float and _is_number(value):
            return float(value)
        if kind is int and _is_number(value) and value % 1 == 0:  # which infinity is not
            return int(value)
        if _is_tuple_of_length(value, kind):
            return tuple(_typed(element, part, where) for element, part in zip(value, typing.get_args(kind)))
    expected = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
    raise ConfigError(f"{where}: expected {expected.replace('NoneType', 'None')}")


def _is_number(value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_tuple_of_length(value, kind) -> bool:
    """Whether a value is a sequence with as many elements as a hint of a tuple has types."""
    if typing.get_origin(kind) is not tuple or not isinstance(value, (tuple, list)):
        return False
    return len(value) == len(typing.get_args(kind))


def check_fits(name: str) -> None:
    """Refuses an optimizer of Hugging Face's that the suite cannot train with.

    Raises:
      ConfigError: with the reason, and another optimizer.
    """
    reason = _entry_of(name, UNFIT)
    if reason is not None:
        raise ConfigError(f"--optim {name} {reason}")


def refused_optimizers() -> list[str]:
    """The names of `--optim` that `check_fits` refuses: they are understood, but not suggested."""
    return " ".join(UNFIT).split()


def check_library(name: str) -> None:
    """Refuses an optimizer whose library is not installed.

    Raises:
      ConfigError: with the command that installs it.
    """
    library = _entry_of(name, LIBRARIES)
    if library is not None and importlib.util.find_spec(library) is None:
        package = PACKAGES.get(library, library)
        alternative = "; --optimizer adafactor also takes little memory" if library == "bitsandbytes" else ""
        raise ConfigError(f"--optim {name} is {library}'s, which is not installed: pip install {package}{alternative}")


def _entry_of(name: str, table: Mapping[str, str]) -> str | None:
    """The entry of a table whose keys are names, several in one; None if it has none."""
    for names, entry in table.items():
        if name in names.split():
            return entry
    return None


def check_optim_args(name: str, optim_args) -> None:
    """Refuses settings that a Hugging Face optimizer does not read: the trainer would ignore them.

    >>> check_optim_args("sgd", "momentumm=0.9")
    ConfigError: --optim_args: sgd (--optim; t5suite's own are under --optimizer) has no setting 'momentumm'; did you
        mean momentum?

    Raises:
      ConfigError: an unknown setting (with the closest names), a value of another type, a weight decay, which has a
        flag of its own, or a switch that is not True.
    """
    settings = parse_settings(optim_args, "--optim_args")
    if "weight_decay" in settings:
        raise ConfigError(
            f"--optim_args weight_decay={settings['weight_decay']}: --optim {name} has the weight decay of "
            "--weight_decay; give that flag"
        )
    names = _entry_of(name, SETTINGS) or ""
    if names == "" and name.startswith(ADAMW):
        _refuse_for_adamw(name, settings)
    types_by_name = {key: bool | int | str if key in WORDS else float for key in names.split()}
    owner = f"{name} (--optim; t5suite's own are under --optimizer)"
    typed = typed_settings(types_by_name, owner, settings, "--optim_args")
    for key in TRUE_FOR_ANY_TEXT:
        if typed.get(key, True) is not True:
            raise ConfigError(
                f"--optim_args {key}={settings[key]}: transformers takes any text for True; give {key}=True, or "
                f"leave {key} out"
            )


def _refuse_for_adamw(name: str, settings: Mapping) -> None:
    """Raises ConfigError for settings of Hugging Face's AdamW, which has flags of its own instead."""
    if settings:
        raise ConfigError(
            f"--optim_args {', '.join(settings)}: --optim {name} reads no such settings, but --adam_beta1, "
            f"--adam_beta2 and --adam_epsilon; or give --optimizer adamw, which has {', '.join(ADAMW_SETTINGS)}"
        )
