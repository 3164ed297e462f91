"""The kinds of adapters (PEFT), and PEFT's configuration of one from flags and `--adapter_args`.

    >>> adapter_config("lora", model.config, "seq2seq", {"lora_r": 8}).r
    8

Settings have PEFT's names. The most usual ones are flags, all others go into `--adapter_args` as `key=value`. A setting
that a kind does not have is refused by name.
"""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from t5suite.base.errors import ConfigError, first_line
from t5suite.base.lookup import find, suggestion
from t5suite.tasks.task_card import HEADED

# The field of PEFT's configuration that a flag sets, if their names differ.
FIELD_BY_FLAG = {"lora_r": "r"}
# Settings whose value is a text, whatever else it could be read as.
TEXTS = ("prompt_tuning_init", "prompt_tuning_init_text")
# Settings whose value is several names, and those that may be a regular expression instead.
NAMES_OF_MODULES = ("modules_to_save", "target_parameters")
NAMES_OR_PATTERN = ("exclude_modules", "feedforward_modules", "layers_pattern")
PROMPT_INITS = {
    "random": "normal numbers",
    "vocabulary": "embeddings of pieces drawn from the vocabulary",
    "sample_vocab": "the same, as PEFT calls it",
    "text": "embeddings of prompt_tuning_init_text",
}
DEFAULT_VIRTUAL_TOKENS = 20
TASK_TYPES = {"seq2seq": "SEQ_2_SEQ_LM", "causal": "CAUSAL_LM"}
# Fields of PEFT's configurations that the user does not set: the model, another flag or saving sets them.
NOT_SETTINGS = {
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "num_transformer_submodules", "use_dora", "runtime_config", "tokenizer_name_or_path",
    "tokenizer_kwargs", "prefix_projection", "encoder_hidden_size",
}  # fmt: skip
# LoRA initialisations that leave the base model unchanged; others change it, so that its name gives other weights.
LORA_INITS = (True, False, "gaussian", "orthogonal")
# Modules whose inputs IA3 scales, as in the feed-forward network, for types that PEFT has no list of.
FEED_FORWARD_OUTPUTS = ["wo", "fc2", "c_proj", "down_proj", "dense_4h_to_h"]


@dataclass(frozen=True)
class AdapterKind:
    """One way to adapt a model.

    Attributes:
      description: for help texts, with the paper.
      config_class: the name of PEFT's class of its configuration.
      flags: the flags that are its settings.
      fixed: fields of the configuration that make it this kind.
      merges: whether its weights can be added to those of the model.
    """

    description: str
    config_class: str
    flags: tuple[str, ...] = ()
    fixed: dict = field(default_factory=dict)
    merges: bool = False

    @property
    def is_virtual(self) -> bool:
        """Whether it is virtual tokens, or keys and values of such: no weight of the model changes."""
        return not self.merges


def peft_library():
    """The `peft` module.

    Raises:
      ConfigError: it is not installed, with the line that installs it.
    """
    try:
        import peft
    except ImportError:
        raise ConfigError("adapters need the library PEFT: pip install 't5suite[peft]'") from None
    return peft


def check_adapter_flags(kind_name: str | None, flag_values: dict, adapter_args: dict) -> None:
    """Refuses an unknown kind, flags that it does not have, and values of `adapter_args` that PEFT would not refuse.

    >>> check_adapter_flags("ia3", {"lora_r": 8}, {})
    ConfigError: --lora_r: ia3 (--adapter) has no such setting; lora, dora have
    """
    if kind_name is None:
        if flag_values or adapter_args:
            flag = next(iter(flag_values), "adapter_args")
            raise ConfigError(f"--{flag} has no effect without --adapter")
        return
    kind = find(kind_name, ADAPTERS, "adapter", where="--adapter")
    for flag in flag_values:
        if flag not in kind.flags:
            owners = ", ".join(name for name, candidate in ADAPTERS.items() if flag in candidate.flags)
            raise ConfigError(f"--{flag}: {kind_name} (--adapter) has no such setting; {owners} have")
    _check_virtual_tokens(adapter_args)


def _check_virtual_tokens(adapter_args: dict) -> None:
    """Refuses a number of virtual tokens or a beginning of theirs that cannot be."""
    number = adapter_args.get("num_virtual_tokens", DEFAULT_VIRTUAL_TOKENS)
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ConfigError(f"--adapter_args num_virtual_tokens={number}: must be a whole number, at least 1 (tokens)")
    init = prompt_init(adapter_args)
    if "prompt_tuning_init" in adapter_args:
        find(init, PROMPT_INITS, "initialisation", where="--adapter_args prompt_tuning_init")
    if (init == "text") != ("prompt_tuning_init_text" in adapter_args):
        raise ConfigError(
            "--adapter_args prompt_tuning_init=text and prompt_tuning_init_text='...' belong together: give both"
        )


def prompt_init(adapter_args: dict) -> str:
    """How virtual tokens begin: a key of `PROMPT_INITS`."""
    return str(adapter_args.get("prompt_tuning_init", "vocabulary")).lower()


def adapter_config(kind_name: str, config, family: str, flag_values: dict, adapter_args: dict | None = None):
    """PEFT's configuration of a new adapter over a model of this configuration.

    Args:
      family: seq2seq, causal or masked; PEFT's `task_type` (SEQ_CLS) for a model with another head.
      flag_values: flags with their values.
      adapter_args: further fields, from `--adapter_args`.

    Raises:
      ConfigError: a field that PEFT's configuration does not have, or a value that it does not accept.
    """
    adapter_args = adapter_args or {}
    check_adapter_flags(kind_name, flag_values, adapter_args)
    kind = ADAPTERS[kind_name]
    config_class = getattr(peft_library(), kind.config_class)
    task_type = TASK_TYPES.get(family, None if family in HEADED else family)
    settings = {"task_type": task_type, **kind.fixed, **_settings_of_flags(flag_values)}
    _check_adapter_args(config_class, adapter_args, kind_name)
    for name, value in adapter_args.items():
        if name in NAMES_OF_MODULES or (name in NAMES_OR_PATTERN and not _is_pattern(value)):
            value = _module_names(value)
        if name not in TEXTS:
            settings[name] = list(value) if isinstance(value, tuple) else value
    if kind.is_virtual:
        settings = {**_prompt_shape(kind_name, config, family), **settings}
    if kind_name == "ia3" and settings.get("target_modules") and not settings.get("feedforward_modules"):
        settings["feedforward_modules"] = _feed_forward_modules(config.model_type, settings["target_modules"])
    try:
        return config_class(**settings)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--adapter {kind_name}: {first_line(error)}") from None


def _settings_of_flags(flag_values: dict) -> dict:
    """Flags as fields of PEFT's configuration: lists of module names are split, `regex:` goes."""
    settings = {}
    for flag, value in flag_values.items():
        if flag == "target_modules" and not value.startswith(("all-linear", "regex:")):
            value = _module_names(value)
        settings[FIELD_BY_FLAG.get(flag, flag)] = value.removeprefix("regex:") if isinstance(value, str) else value
    return settings


def _module_names(value: str | Sequence[str]) -> list[str]:
    """The names of a list, or of a text with commas, in parentheses or not.

    >>> _module_names("(lm_head,shared)")
    ['lm_head', 'shared']
    """
    names = value.strip("()[] ").split(",") if isinstance(value, str) else value
    return [name.strip(" '\"") for name in names if name.strip()]


def _is_pattern(value) -> bool:
    """Whether a setting is a text with characters that stand in no list of names.

    >>> _is_pattern(r".*\\.wo"), _is_pattern("(wi,wo)"), _is_pattern(("wi", "wo"))
    (True, False, False)
    """
    return isinstance(value, str) and re.fullmatch(r"[\w.,()\[\]'\" -]*", value) is None


def _feed_forward_modules(model_type: str, target_modules: list[str] | str) -> list[str]:
    """The targets of IA3 whose inputs are scaled instead of their outputs.

    >>> _feed_forward_modules("mt5", ["k", "v", "DenseReluDense.wo"])
    ['DenseReluDense.wo']
    """
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING as MODULES_BY_TYPE

    if not isinstance(target_modules, list):
        return []
    modules = MODULES_BY_TYPE.get(model_type) or FEED_FORWARD_OUTPUTS  # PEFT 0.21 has an empty list for mT5
    ends = tuple(f".{module}" for module in modules)
    return [name for name in target_modules if name in FEED_FORWARD_OUTPUTS or f".{name}".endswith(ends)]


def _check_adapter_args(config_class, adapter_args: dict, kind_name: str) -> None:
    """Refuses an `--adapter_args` field that does not exist, has a flag of its own or gets a value of another type."""
    flag_by_field = {FIELD_BY_FLAG.get(flag, flag): flag for flag in ADAPTERS[kind_name].flags}
    fields = {spec.name: spec for spec in dataclasses.fields(config_class) if spec.name not in NOT_SETTINGS}
    for name, value in adapter_args.items():
        if name in flag_by_field:
            raise ConfigError(f"--adapter_args {name}: give it as --{flag_by_field[name]}")
        if name not in fields:
            raise ConfigError(f"--adapter_args: {kind_name} has no setting {name!r}; {suggestion(name, fields)}")
        expected_type = type(fields[name].default)
        if name != "init_lora_weights" and not _has_type(value, expected_type):
            raise ConfigError(f"--adapter_args {name}={value}: expected {expected_type.__name__}")
    if adapter_args.get("init_lora_weights", True) not in LORA_INITS:
        names = ", ".join(map(str, LORA_INITS))
        raise ConfigError(
            f"--adapter_args init_lora_weights={adapter_args['init_lora_weights']}: it would change the base model, "
            f"which is stored by name only; choose from {names}"
        )


def _has_type(value, expected_type: type) -> bool:
    """Whether a value has the type of a field's default; true for types that no text is compared with."""
    if expected_type not in (bool, int, float, str):
        return True
    is_whole_number = isinstance(value, int) and not isinstance(value, bool)
    return type(value) is expected_type or (expected_type is float and is_whole_number)


def _prompt_shape(kind_name: str, config, family: str) -> dict:
    """Shapes that PEFT 0.21 guesses from the encoder, or makes twice as large as needed.

    With `num_transformer_submodules` 2, its default for encoder-decoder models, prompt tuning uses only the first half
    of the rows. Prefixes go to the decoder, whose layers and heads may differ from the encoder's, and
    whose width need not be the model's (T5 v1.1 small: 6 heads of 64 in a model 512 wide).
    """
    shape = {"num_virtual_tokens": DEFAULT_VIRTUAL_TOKENS}
    if kind_name != "prefix":
        return {**shape, "num_transformer_submodules": 1}
    if family not in TASK_TYPES:
        raise ConfigError(
            f"--adapter prefix: prefixes stand before a decoder's keys, and this model of type {config.model_type!r} "
            "has no decoder; take prompt_tuning or lora"
        )
    if family != "seq2seq":
        return shape
    heads = getattr(config, "decoder_attention_heads", None) or getattr(config, "num_attention_heads", None)
    if heads is None:  # in T5Gemma's decoder several heads share keys and values
        raise ConfigError(f"--adapter prefix: models of type {config.model_type!r} take no prefixes; take lora")
    layers = getattr(config, "num_decoder_layers", None) or getattr(config, "decoder_layers", None)
    head_width = getattr(config, "d_kv", None) or config.hidden_size // heads
    return {
        **shape,
        "num_attention_heads": heads,
        "num_layers": layers or config.num_hidden_layers,
        "token_dim": heads * head_width,
    }


def adapter_kind(config) -> str:
    """The kind of a PEFT configuration.

    Raises:
      ConfigError: one that is not in `ADAPTERS`.
    """
    is_dora = bool(getattr(config, "use_dora", False))
    for name, kind in ADAPTERS.items():
        if kind.config_class == type(config).__name__ and is_dora == ("use_dora" in kind.fixed):
            return name
    raise ConfigError(f"adapters of PEFT's type {config.peft_type} are not supported; these are: {', '.join(ADAPTERS)}")


LORA_FLAGS = ("lora_r", "lora_alpha", "lora_dropout", "target_modules")

ADAPTERS = {
    "prompt_tuning": AdapterKind("virtual tokens before the input (arXiv:2104.08691)", "PromptTuningConfig"),
    "lora": AdapterKind("a product of two thin matrices added to each target (arXiv:2106.09685)", "LoraConfig",
        LORA_FLAGS, merges=True),
    "dora": AdapterKind("LoRA with a magnitude of its own for each output (arXiv:2402.09353)", "LoraConfig", LORA_FLAGS,
        {"use_dora": True}, merges=True),
    "ia3": AdapterKind("a factor for each key, value and hidden unit (arXiv:2205.05638)", "IA3Config",
        ("target_modules",), merges=True),
    "prefix": AdapterKind("keys and values before those of the decoder's (arXiv:2101.00190)", "PrefixTuningConfig"),
}  # fmt: skip
