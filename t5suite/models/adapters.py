"""Adapters (PEFT), a few trained weights over a frozen model: their kinds, how they are created and merged.

>>> model = adapted(model, tokenizer, "lora", {"lora_r": 8}, base_name="google/t5-v1_1-small")
>>> adapter_of(model)
{"adapter": "lora", "trained": 344064, "base": "google/t5-v1_1-small"}
>>> plain = merged(model)

Flags have PEFT's names; settings without a flag go into `--adapter_args` as `key=value`. A setting that a kind does not
have is refused by name. The model itself is frozen and unchanged: only the adapter is trained, has optimizer moments
and is saved (`adapter_files`).
"""

import dataclasses
import hashlib
import logging
import warnings
from dataclasses import dataclass, field

import torch

from t5suite.base.errors import ConfigError
from t5suite.base.libraries import require_proved
from t5suite.base.lookup import find, suggestion
from t5suite.models.encoders import EncoderHead
from t5suite.models.families import recognize_family
from t5suite.tasks.task_card import HEADED

# The field of PEFT's configuration that a flag sets, if their names differ; None: the flag sets no field.
FIELDS = {"lora_r": "r", "prompt_tuning_init": None, "prompt_tuning_init_text": None}
PROMPT_INITS = {
    "random": "normal numbers",
    "vocabulary": "embeddings of pieces drawn from the vocabulary",
    "sample_vocab": "the same, as PEFT calls it",
    "text": "embeddings of --prompt_tuning_init_text",
}
DEFAULT_VIRTUAL_TOKENS = 20
HEAD_TASKS = {"ForSequenceClassification": "SEQ_CLS", "ForTokenClassification": "TOKEN_CLS"}
TASK_TYPES = {"seq2seq": "SEQ_2_SEQ_LM", "causal": "CAUSAL_LM"}
# Fields of PEFT's configurations that the user does not set: the model, another flag or saving sets them.
NOT_SETTINGS = {
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode",
    "num_transformer_submodules", "use_dora", "runtime_config", "prompt_tuning_init", "prompt_tuning_init_text",
    "tokenizer_name_or_path", "tokenizer_kwargs", "prefix_projection", "encoder_hidden_size",
}  # fmt: skip
# LoRA initialisations that leave the base model unchanged; others change it, so that its name gives other weights.
LORA_INITS = (True, False, "gaussian", "orthogonal")


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
    flags: tuple[str, ...]
    fixed: dict = field(default_factory=dict)
    merges: bool = False


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
    """Refuses an unknown kind, and flags that it does not have.

    >>> check_flags("ia3", {"lora_r": 8}, {})
    ConfigError: --lora_r: ia3 (--adapter) has no such setting; lora, dora have
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
    """PEFT's configuration of a new adapter over a model of this configuration.

    Args:
      family: seq2seq, causal or masked; PEFT's `task_type` (SEQ_CLS) for a model with another head.
      given: flags with their values.
      args: further fields, from `--adapter_args`.

    Raises:
      ConfigError: a field that PEFT's configuration does not have, or a value that it does not accept.
    """
    check_flags(kind_name, given, args or {})
    kind = ADAPTERS[kind_name]
    config_class = getattr(peft_library(), kind.config_class)
    settings = {"task_type": TASK_TYPES.get(family, None if family in HEADED else family), **kind.fixed}
    for flag, value in given.items():
        if flag in ("target_modules", "modules_to_save") and not value.startswith(("all-linear", "regex:")):
            value = [name.strip() for name in value.split(",") if name.strip()]
        field_name = FIELDS.get(flag, flag)
        if field_name:
            settings[field_name] = value.removeprefix("regex:") if isinstance(value, str) else value
    settings |= _checked(config_class, args or {}, kind_name, {FIELDS.get(flag, flag): flag for flag in kind.flags})
    if "num_virtual_tokens" in kind.flags:
        settings = {**_prompt_shape(kind_name, config, family), **settings}
    if kind_name == "ia3" and settings.get("target_modules") and not settings.get("feedforward_modules"):
        from peft.utils.constants import TRANSFORMERS_MODELS_TO_IA3_FEEDFORWARD_MODULES_MAPPING as KNOWN

        # Targets whose inputs are scaled, as in the feed-forward network.
        known = KNOWN.get(config.model_type, ["wo", "fc2", "c_proj", "down_proj", "dense_4h_to_h"])
        targets = settings["target_modules"]
        settings["feedforward_modules"] = [n for n in targets if n in known] if isinstance(targets, list) else []
    try:
        return config_class(**settings)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--adapter {kind_name}: {str(error).splitlines()[0]}") from None


def _checked(config_class, args: dict, kind_name: str, of_flags: dict) -> dict:
    """`--adapter_args` by field; each field must exist, have no flag of its own and get a value of its type."""
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
            f"stored by name only; choose from {names}"
        )
    return {name: list(value) if isinstance(value, tuple) else value for name, value in args.items()}


def _prompt_shape(kind_name: str, config, family: str) -> dict:
    """Shapes that PEFT 0.21 guesses from the encoder, or makes twice as large as needed.

    With `num_transformer_submodules` 2, its default for encoder-decoder models, prompt tuning uses only the first half
    of the rows. Prefixes go to the decoder, whose layers and heads may differ from the encoder's, and
    whose width need not be the model's (T5 v1.1 small: 6 heads of 64 in a model 512 wide).
    """
    shape = {"num_virtual_tokens": DEFAULT_VIRTUAL_TOKENS}
    if kind_name != "prefix":
        return {**shape, "num_transformer_submodules": 1}
    if family != "seq2seq":
        return shape
    heads = getattr(config, "decoder_attention_heads", None) or config.num_attention_heads
    layers = getattr(config, "num_decoder_layers", None) or getattr(config, "decoder_layers", None)
    width = getattr(config, "d_kv", None) or config.hidden_size // heads
    return dict(
        **shape, num_attention_heads=heads, num_layers=layers or config.num_hidden_layers, token_dim=heads * width
    )


LORA_FLAGS = ("lora_r", "lora_alpha", "lora_dropout", "target_modules", "modules_to_save")

ADAPTERS = {
    "prompt_tuning": AdapterKind("virtual tokens before the input (arXiv:2104.08691)", "PromptTuningConfig",
        ("num_virtual_tokens", "prompt_tuning_init", "prompt_tuning_init_text")),
    "lora": AdapterKind("a product of two thin matrices added to each target (arXiv:2106.09685)", "LoraConfig",
        LORA_FLAGS, merges=True),
    "dora": AdapterKind("LoRA with a magnitude of its own for each output (arXiv:2402.09353)", "LoraConfig", LORA_FLAGS,
        {"use_dora": True}, merges=True),
    "ia3": AdapterKind("a factor for each key, value and hidden unit (arXiv:2205.05638)", "IA3Config",
        ("target_modules", "modules_to_save"), merges=True),
    "prefix": AdapterKind("keys and values before those of the decoder's (arXiv:2101.00190)", "PrefixTuningConfig",
        ("num_virtual_tokens",)),
}  # fmt: skip


logger = logging.getLogger(__name__)

NAME = "default"
# Vocabularies are sorted by frequency; prompt tuning drew from the 5000 commonest pieces (arXiv:2104.08691, 3.2)
COMMON_PIECES = 5000
SAMPLED = 64


@dataclass
class Base:
    """The base model of an adapter.

    Attributes:
      name: the hub name or the folder of these weights; None if they are stored nowhere (random, changed).
      revision: of the hub's model.
      fingerprint: distinguishes it from another model of the same shape; None if it is sharded or quantized.
      parameters: its own tensors by name, taken before the adapter wraps them.
    """

    name: str | None
    revision: str | None = None
    fingerprint: str | None = None
    parameters: dict = field(default_factory=dict)


def adapted(
    model,
    tokenizer,
    kind_name: str,
    given: dict | None = None,
    args: dict | None = None,
    *,
    base_name: str | None = None,
    revision: str | None = None,
):
    """The model with a new adapter over it; the model is changed in place, its own weights are frozen.

    Args:
      given: flags with their values.
      args: further fields of PEFT's configuration.
      base_name: the name or folder that the model's weights can be loaded from; None if there is none.

    Raises:
      ConfigError: settings that do not fit the kind or the model; a model that has an adapter already.
    """
    given = given or {}
    if is_adapted(model):
        raise ConfigError(
            f"--adapter {kind_name}: the model already has an adapter ({adapter_of(model)['adapter']}); leave out "
            "--adapter to continue training it, or merge it first (--merge_adapter)"
        )
    family = _task_of(model)
    config = adapter_config(kind_name, model.config, family, given, args)
    if ADAPTERS[kind_name].config_class == "LoraConfig" and not (config.target_modules or config.target_parameters):
        config.target_modules = lora_targets(model)
    model = wrap(model, config, base_name, revision)
    _check_targets(model, kind_name)
    if kind_name == "prompt_tuning":
        begin_prompt(model, tokenizer, given.get("prompt_tuning_init", "vocabulary").lower(), given)
    found = adapter_of(model)
    total = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    logger.info(
        "--adapter %s: %d of %d parameters are trained (%.2f%%)",
        kind_name,
        found["trained"],
        total,
        100 * found["trained"] / total,
    )
    return model


def lora_targets(model) -> list[str] | str | None:
    """PEFT's LoRA targets; queries and values for types without any in PEFT (0.21: umT5, T5Gemma, mBART).

    >>> lora_targets(t5gemma)
    ['q_proj', 'v_proj']
    """
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN

    linear = (name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear))
    return KNOWN.get(model.config.model_type) or sorted(QUERIES_AND_VALUES.intersection(linear)) or None


# Names of the query and value projections in transformers' models, separate or fused with the keys.
QUERIES_AND_VALUES = frozenset(
    "q v q_proj v_proj query value query_proj value_proj q_lin v_lin q_b_proj kv_b_proj Wqkv qkv_proj".split()
)


def wrap(model, config, base_name: str | None, revision: str | None = None):
    """PEFT's model of a configuration; its weights are new."""
    base = Base(base_name, revision, fingerprint(model), dict(model.state_dict(keep_vars=True)))
    config.base_model_name_or_path, config.revision = base_name, revision
    model_class = _class_for(config)
    try:
        with warnings.catch_warnings():
            # PEFT 0.21 warns about its own use of transformers, and about layers that it handles correctly (GPT-2's).
            warnings.filterwarnings("ignore", message=".*(is_gradient_checkpointing|fan_in_fan_out).*")
            wrapped = model_class(model, config, adapter_name=NAME)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ConfigError(f"the adapter does not fit {type(model).__name__}: {str(error).splitlines()[0]}") from None
    wrapped.t5suite_base = base
    return wrapped


def is_adapted(model) -> bool:
    """Whether the model has an adapter over it (PEFT's)."""
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def inner_model(model):
    """The model below the adapter; a plain model itself."""
    return model.get_base_model() if is_adapted(model) else model


def adapter_of(model) -> dict:
    """What manifests record about a model's adapter; empty for a plain model."""
    if not is_adapted(model):
        return {}
    base = getattr(model, "t5suite_base", Base(None))
    trained = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters() if p.requires_grad)
    return {"adapter": kind_of(model.peft_config[NAME]), "trained": trained, "base": base.name}


def kind_of(config) -> str:
    """The kind of a PEFT configuration.

    Raises:
      ConfigError: one that is not in `ADAPTERS`.
    """
    for name, kind in ADAPTERS.items():
        is_dora = bool(getattr(config, "use_dora", False))
        if kind.config_class == type(config).__name__ and is_dora == ("use_dora" in kind.fixed):
            return name
    raise ConfigError(f"adapters of PEFT's type {config.peft_type} are not supported; these are: {', '.join(ADAPTERS)}")


def merged(model):
    """The plain model with the adapter's weights added to its own; the given model loses its adapter.

    Its logits equal the unmerged model's (float32: to 1e-5); tied weights stay tied.

    Raises:
      ConfigError: an adapter of virtual tokens or prefixes, which the model's weights cannot hold.
    """
    if not is_adapted(model):
        return model
    kind_name = kind_of(model.peft_config[NAME])
    if not ADAPTERS[kind_name].merges:
        able = ", ".join(name for name, kind in ADAPTERS.items() if kind.merges)
        raise ConfigError(f"{kind_name} cannot be merged into the model: it changes none of its weights; {able} can")
    require_proved("merging")
    plain = model.merge_and_unload(safe_merge=True)
    plain.requires_grad_(True)
    return plain


def begin_prompt(model, tokenizer, how: str, given: dict) -> None:
    """Initialises the virtual tokens: `random` keeps PEFT's values, else they are rows of the embedding matrix.

    A text is repeated, or cut, to the number of virtual tokens.

    Raises:
      ConfigError: a text without a token.
    """
    if how == "random":
        return
    rows_ND = model.prompt_encoder[NAME].embedding.weight
    if how == "text":
        ids = tokenizer(given["prompt_tuning_init_text"], add_special_tokens=False)["input_ids"]
        if not ids:
            raise ConfigError("--prompt_tuning_init_text: it contains no token")
        ids = torch.tensor([ids[place % len(ids)] for place in range(len(rows_ND))])
    else:
        special = {*tokenizer.all_special_ids}
        pieces = [number for number in range(len(tokenizer)) if number not in special][:COMMON_PIECES]
        ids = torch.tensor(pieces)[torch.randint(len(pieces), (len(rows_ND),))]
    embeddings_VD = model.get_input_embeddings().weight
    with torch.no_grad():
        rows_ND.copy_(embeddings_VD[ids.to(embeddings_VD.device)])


def fingerprint(model) -> str | None:
    """64 hexadecimal digits from a sample of each of a model's tensors, except a classifier's head, which is new.

    >>> fingerprint(t5_small) == fingerprint(t5_small_loaded_again)
    True
    """
    digest = hashlib.sha256()
    body = model.base_model if _task_of(model) in HEAD_TASKS.values() else model
    for name, parameter in body.named_parameters():
        if isinstance(body, EncoderHead) and name.startswith("classifier."):
            continue
        if hasattr(parameter, "ds_id") or parameter.is_meta or not parameter.dtype.is_floating_point:
            return None
        flat = parameter.detach().view(-1)
        sample = flat[:: max(1, flat.numel() // SAMPLED)][:SAMPLED].float().cpu()
        digest.update(f"{name} {tuple(parameter.shape)} ".encode() + sample.numpy().tobytes())
    return digest.hexdigest()


def _task_of(model) -> str:
    """The family of a language model; PEFT's task type for a model with a classification head."""
    name = type(model).__name__
    return next((task for ending, task in HEAD_TASKS.items() if name.endswith(ending)), recognize_family(model).name)


def _class_for(config):
    """PEFT's model class, or ours if virtual tokens would interfere (`prompted`)."""
    from peft.auto import MODEL_TYPE_TO_PEFT_MODEL_MAPPING

    from t5suite.models.prompted import PROMPTED

    require_proved("adapters")
    if config.is_prompt_learning and config.task_type in PROMPTED:
        require_proved("prompts")
        return PROMPTED[config.task_type]
    if config.task_type is None and config.is_prompt_learning:
        raise ConfigError("virtual tokens and prefixes need an encoder-decoder, a causal model or a classifier")
    return MODEL_TYPE_TO_PEFT_MODEL_MAPPING.get(config.task_type, peft_library().PeftModel)


def _check_targets(model, kind_name: str) -> None:
    """Refuses an adapter over a matrix that modules share: it would apply to only one of them."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper
    from peft.utils.other import TrainableTokensWrapper

    places = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(name)
    rows = {name: module for name, module in model.named_modules() if isinstance(module, TrainableTokensWrapper)}
    everywhere = tuple(rows)  # single rows of an embedding matrix, which PEFT trains wherever it is used
    held = {place for module in rows.values() for place in places[id(module.original_module.weight)]}
    if any(not place.startswith(everywhere) for place in held):
        raise ConfigError(
            f"--adapter {kind_name}: trainable_token_indices: without a tied output layer (T5 v1.1) PEFT would train "
            "the rows in only one of the places that use them; models with all embeddings tied support this"
        )
    for name, module in model.named_modules():
        inside = getattr(module, "base_layer", getattr(module, "original_module", None))
        wraps = isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper)) and not name.startswith(everywhere)
        weight = getattr(inside, "weight", None)
        if wraps and weight is not None and len(places.get(id(weight), ())) > 1:
            raise ConfigError(
                f"--adapter {kind_name}: {name.removeprefix('base_model.model.')} is one matrix with others of the "
                "model (tied embeddings), and an adapter over it would apply to only one of them; leave it out of "
                "--target_modules and --modules_to_save"
            )
