"""The kinds of adapters, and the settings of PEFT's that each is made from.

    >>> adapter_config("lora", model.config, "seq2seq", {"lora_r": 4, "lora_alpha": 8})
    LoraConfig(task_type='SEQ_2_SEQ_LM', r=4, lora_alpha=8, target_modules=None, ...)

Flags have PEFT's names; what has no flag is a `key=value` of `--adapter_args`. A setting that a kind does not have is
refused by name.
"""

import dataclasses
from dataclasses import dataclass, field

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find, suggestion

# Every flag that one kind or another heeds -> the field of PEFT's configuration.
FLAGS = {
    "lora_r": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "target_modules": "target_modules",
    "modules_to_save": "modules_to_save",
    "num_virtual_tokens": "num_virtual_tokens",
    "prompt_tuning_init": None,
    "prompt_tuning_init_text": None,
}
PROMPT_INITS = {
    "random": "normal numbers",
    "vocabulary": "embeddings of pieces drawn from the vocabulary",
    "sample_vocab": "the same, as PEFT calls it",
    "text": "embeddings of --prompt_tuning_init_text",
}
DEFAULT_VIRTUAL_TOKENS = 20
TASK_TYPES = {"seq2seq": "SEQ_2_SEQ_LM", "causal": "CAUSAL_LM"}
# What of PEFT's configurations is not the user's: set by the model, by another flag or when it is saved.
NOT_SETTINGS = {
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "num_transformer_submodules", "use_dora", "runtime_config", "prompt_tuning_init", "prompt_tuning_init_text",
    "tokenizer_name_or_path", "tokenizer_kwargs",
}  # fmt: skip
# Ways to begin LoRA that leave the base model as it is; the others change it, so that its name would not bring it back.
LORA_INITS = (True, False, "gaussian", "orthogonal")


@dataclass(frozen=True)
class AdapterKind:
    """One way to adapt a model.

    Attributes:
      description: for help texts, with the paper.
      config_class: the name of PEFT's class of its configuration.
      flags: the flags that it heeds, of `FLAGS`.
      fixed: fields of the configuration that make it this kind.
      merges: whether its weights can be added to those of the model.
      in_prompt: whether it puts virtual tokens before the input.
    """

    description: str
    config_class: str
    flags: tuple[str, ...]
    fixed: dict = field(default_factory=dict)
    merges: bool = False
    in_prompt: bool = False


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


def check_flags(kind_name: str | None, given: dict, args: dict) -> None:
    """Refuses flags that the kind does not heed.

    >>> check_flags("ia3", {"lora_r": 8}, {})
    ConfigError: --lora_r: ia3 (--adapter) has no such setting; lora, dora have

    Args:
      given: the adapter flags that were given, with their values.
      args: what `--adapter_args` says, by field.

    Raises:
      ConfigError: an unknown kind, too.
    """
    if kind_name is None:
        if given or args:
            raise ConfigError(f"--{next(iter(given), 'adapter_args')} has no effect without --adapter")
        return
    kind = find(kind_name, ADAPTERS, "adapter", where="--adapter")
    for flag in given:
        if flag not in kind.flags:
            others = ", ".join(name for name, other in ADAPTERS.items() if flag in other.flags)
            raise ConfigError(f"--{flag}: {kind_name} (--adapter) has no such setting; {others} have")
    if "prompt_tuning_init" in given:
        find(given["prompt_tuning_init"].lower(), PROMPT_INITS, "initialisation", where="--prompt_tuning_init")
    by_text = given.get("prompt_tuning_init", "").lower() == "text"
    if by_text != ("prompt_tuning_init_text" in given):
        raise ConfigError("--prompt_tuning_init text and --prompt_tuning_init_text belong together: give both")


def adapter_config(kind_name: str, config, family: str, given: dict, args: dict | None = None):
    """PEFT's configuration of a new adapter.

    Args:
      config: the model's configuration.
      family: seq2seq, causal or masked; a `task_type` of PEFT's (SEQ_CLS) for a model with another head.
      given: flags with their values.
      args: further fields of the configuration, as `--adapter_args` has them.

    Raises:
      ConfigError: a field that PEFT's configuration does not have, or a value that it does not take.
    """
    check_flags(kind_name, given, args or {})
    kind = ADAPTERS[kind_name]
    config_class = getattr(peft_library(), kind.config_class)
    settings = {"task_type": TASK_TYPES.get(family, None if family == "masked" else family), **kind.fixed}
    settings |= {FLAGS[flag]: _value(flag, value) for flag, value in given.items() if FLAGS[flag]}
    settings |= _checked(config_class, args or {}, kind_name, {FLAGS[flag]: flag for flag in kind.flags})
    if "num_virtual_tokens" in kind.flags:
        settings = {**_prompt_shape(kind_name, config, family), **settings}
    if kind_name == "ia3" and settings.get("target_modules") and not settings.get("feedforward_modules"):
        settings["feedforward_modules"] = _feed_forward(config.model_type, settings["target_modules"])
    try:
        return config_class(**settings)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--adapter {kind_name}: {str(error).splitlines()[0]}") from None


def _value(flag: str, value):
    """`q,v` -> names; `all-linear` and `regex:...` -> what PEFT takes for them."""
    if flag == "target_modules" and (value == "all-linear" or value.startswith("regex:")):
        return value.removeprefix("regex:")
    if flag in ("target_modules", "modules_to_save"):
        return [name.strip() for name in value.split(",") if name.strip()]
    return value


def _checked(config_class, args: dict, kind_name: str, of_flags: dict) -> dict:
    """`--adapter_args` by field, where each field is there, has no flag of its own and gets a value of its type."""
    fields = {spec.name: spec for spec in dataclasses.fields(config_class) if spec.name not in NOT_SETTINGS}
    for name, value in args.items():
        if name in of_flags:
            raise ConfigError(f"--adapter_args {name}: give it as --{of_flags[name]}")
        if name not in fields:
            raise ConfigError(f"--adapter_args: {kind_name} has no setting {name!r}; {suggestion(name, fields)}")
        wanted = type(fields[name].default)
        if name != "init_lora_weights" and wanted in (bool, int, float, str):
            number = wanted is float and isinstance(value, int) and not isinstance(value, bool)
            if type(value) is not wanted and not number:
                raise ConfigError(f"--adapter_args {name}={value}: expected {wanted.__name__}")
    if args.get("init_lora_weights", True) not in LORA_INITS:
        names = ", ".join(map(str, LORA_INITS))
        raise ConfigError(
            f"--adapter_args init_lora_weights={args['init_lora_weights']}: it would change the base model, which is "
            f"kept by its name alone; choose from {names}"
        )
    return {name: list(value) if isinstance(value, tuple) else value for name, value in args.items()}


def _prompt_shape(kind_name: str, config, family: str) -> dict:
    """Shapes that PEFT 0.21 guesses from the encoder, or takes twice as large as are used.

    Of `num_transformer_submodules` 2, its default for encoder-decoder models, prompt tuning and p-tuning use the first
    half of the rows alone. Prefixes go to the decoder, whose layers and heads may be other than the encoder's, and
    whose width need not be the model's (T5 v1.1 small: 6 heads of 64 in a model 512 wide).
    """
    shape = {"num_virtual_tokens": DEFAULT_VIRTUAL_TOKENS}
    if kind_name == "p_tuning":
        shape["encoder_hidden_size"] = config.hidden_size
    if kind_name != "prefix":
        return {**shape, "num_transformer_submodules": 1}
    if family != "seq2seq":
        return shape
    heads = getattr(config, "decoder_attention_heads", None) or config.num_attention_heads
    layers = getattr(config, "num_decoder_layers", None) or getattr(config, "decoder_layers", None)
    width = getattr(config, "d_kv", None) or config.hidden_size // heads
    return {
        **shape,
        "num_attention_heads": heads,
        "num_layers": layers or config.num_hidden_layers,
        "token_dim": heads * width,
    }


def _feed_forward(model_type: str, targets) -> list[str]:
    """Which of IA3's targets scale what goes into a layer, as those of the feed-forward network do."""
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING as KNOWN

    known = KNOWN.get(model_type, ["wo", "fc2", "c_proj", "down_proj", "dense_4h_to_h"])
    return [name for name in targets if name in known] if isinstance(targets, list) else []


LORA_FLAGS = ("lora_r", "lora_alpha", "lora_dropout", "target_modules", "modules_to_save")

ADAPTERS = {
    "prompt_tuning": AdapterKind(
        "virtual tokens before the input (arXiv:2104.08691)",
        "PromptTuningConfig",
        ("num_virtual_tokens", "prompt_tuning_init", "prompt_tuning_init_text"),
        in_prompt=True,
    ),
    "lora": AdapterKind(
        "a product of two thin matrices added to each target (arXiv:2106.09685)", "LoraConfig", LORA_FLAGS, merges=True
    ),
    "dora": AdapterKind(
        "LoRA with a magnitude of its own for each output (arXiv:2402.09353)",
        "LoraConfig",
        LORA_FLAGS,
        {"use_dora": True},
        merges=True,
    ),
    "ia3": AdapterKind(
        "a factor for each key, value and hidden unit (arXiv:2205.05638)",
        "IA3Config",
        ("target_modules", "modules_to_save"),
        merges=True,
    ),
    "prefix": AdapterKind(
        "keys and values before those of the decoder's (arXiv:2101.00190)",
        "PrefixTuningConfig",
        ("num_virtual_tokens",),
    ),
    "p_tuning": AdapterKind(
        "virtual tokens that a small network makes (arXiv:2103.10385)",
        "PromptEncoderConfig",
        ("num_virtual_tokens",),
        in_prompt=True,
    ),
}
