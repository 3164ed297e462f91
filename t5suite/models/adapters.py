"""Adapters (PEFT), a few trained weights over a frozen model: how they are created, initialised and merged.

>>> model = add_adapter(model, tokenizer, "lora", {"lora_r": 8}, base_name="google/t5-v1_1-small")
>>> describe_adapter(model)
{"adapter": "lora", "trained": 344064, "base": "google/t5-v1_1-small"}
>>> plain = merge_adapter(model)

The model itself is frozen and unchanged: only the adapter is trained, has optimizer moments and is saved
(`adapter_files`). `adapter_kinds` has the kinds and their settings.
"""

import hashlib
import itertools
import logging
import sys
import warnings
from dataclasses import dataclass, field

import torch

from t5suite.base.errors import ConfigError, DataError, first_line
from t5suite.base.libraries import require_proved
from t5suite.models.adapter_kinds import ADAPTERS, TASK_TYPES, adapter_config, adapter_kind, peft_library, prompt_init
from t5suite.models.classes import num_elements
from t5suite.models.encoders import TEXT_HEAD, WORD_HEAD, EncoderHead
from t5suite.models.families import recognize_family

logger = logging.getLogger(__name__)

# PEFT's name of a model's adapter.
ADAPTER_NAME = "default"
# PEFT's task types of transformers' heads, by the ending of the class's name.
HEAD_TASKS = {TEXT_HEAD: "SEQ_CLS", WORD_HEAD: "TOKEN_CLS"}
# Ends of the names of modules that PEFT 0.21 trains and saves with an adapter over a head.
CLASSIFIERS = ("classifier", "score")
# Vocabularies are sorted by frequency; prompt tuning drew from the 5000 commonest pieces (arXiv:2104.08691, 3.2)
COMMON_PIECES = 5000
# Elements of a tensor that a fingerprint reads.
SAMPLED_ELEMENTS = 64
# Names of the query and value projections in transformers' models, separate or fused with the keys.
QUERIES_AND_VALUES = frozenset(
    "q v q_proj v_proj query value query_proj value_proj q_lin v_lin q_b_proj kv_b_proj Wqkv qkv_proj".split()
)


@dataclass(frozen=True)
class AdapterBase:
    """The base model of an adapter.

    Attributes:
      name: the hub name or the folder of these weights; None if they are stored nowhere (random, changed).
      revision: of the hub's model.
      fingerprint: distinguishes it from another model of the same shape; None if it is sharded or quantized.
      parameters: its own tensors by name, taken before the adapter wraps them.
      sampled: the parameters that the fingerprint reads, by name.
    """

    name: str | None
    revision: str | None = None
    fingerprint: str | None = None
    parameters: dict = field(default_factory=dict)
    sampled: dict = field(default_factory=dict)


def add_adapter(
    model,
    tokenizer,
    kind_name: str,
    flag_values: dict | None = None,
    adapter_args: dict | None = None,
    *,
    base_name: str | None = None,
    revision: str | None = None,
):
    """The model with a new adapter over it; the model is changed in place, its own weights are frozen.

    Args:
      flag_values: flags with their values.
      adapter_args: further fields of PEFT's configuration.
      base_name: the name or folder that the model's weights can be loaded from; None if there is none.

    Raises:
      ConfigError: settings that do not fit the kind or the model; a model that has an adapter already.
    """
    flag_values = flag_values or {}
    if is_adapted(model):
        raise ConfigError(
            f"--adapter {kind_name}: the model already has an adapter ({describe_adapter(model)['adapter']}); leave "
            "out --adapter to continue training it, or merge it first (t5suite export)"
        )
    config = adapter_config(kind_name, model.config, _family_or_task(model), flag_values, adapter_args)
    if ADAPTERS[kind_name].config_class == "LoraConfig" and not (config.target_modules or config.target_parameters):
        config.target_modules = lora_targets(model)
    if kind_name == "prompt_tuning":
        _set_prompt_shape(config, model)
    if config.task_type == HEAD_TASKS[WORD_HEAD] and hasattr(config, "modules_to_save"):
        # PEFT 0.21 adds these names only after it has placed the adapter, and all-linear then covers the head.
        config.modules_to_save = [*(config.modules_to_save or ()), *CLASSIFIERS]
    model = wrap_with_adapter(model, config, base_name, revision)
    _check_targets(model, kind_name)
    if kind_name == "prompt_tuning":
        adapter_args = adapter_args or {}
        text = adapter_args.get("prompt_tuning_init_text")
        initialize_virtual_tokens(model, tokenizer, prompt_init(adapter_args), text)
    trained = num_elements(parameter for parameter in model.parameters() if parameter.requires_grad)
    total = num_elements(model.parameters())
    logger.info(
        "--adapter %s: %d of %d parameters are trained (%.2f%%)", kind_name, trained, total, 100 * trained / total
    )
    return model


def lora_targets(model) -> list[str] | str | None:
    """PEFT's LoRA targets; queries and values for types without any in PEFT (0.21: umT5, T5Gemma, mBART).

    >>> lora_targets(t5gemma)
    ['q_proj', 'v_proj']
    """
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    targets = TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.get(model.config.model_type)
    if targets:
        return targets
    linear = {name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    last_parts = {name.rpartition(".")[2] for name in linear}
    return sorted(QUERIES_AND_VALUES & last_parts) or None


def _set_prompt_shape(config, model) -> None:
    """Prompt tuning needs the width of the embeddings alone.

    PEFT 0.21 takes that of the layers, and reads numbers of layers and heads that some configurations do not have.
    """
    if config.token_dim is None:
        config.token_dim = model.get_input_embeddings().weight.shape[-1]
    config.num_layers = 1
    config.num_attention_heads = 1


def wrap_with_adapter(model, config, base_name: str | None, revision: str | None):
    """PEFT's model of a configuration; its weights are new."""
    sampled = sampled_parameters(model)
    parameters = dict(model.state_dict(keep_vars=True))
    base = AdapterBase(base_name, revision, fingerprint_of(sampled), parameters, sampled)
    config.base_model_name_or_path = base_name
    config.revision = revision
    peft_class = _peft_class(config)
    try:
        with warnings.catch_warnings():
            # PEFT 0.21 warns about its own use of transformers, and about layers that it handles correctly (GPT-2's).
            warnings.filterwarnings("ignore", message=".*(is_gradient_checkpointing|fan_in_fan_out).*")
            adapted_model = peft_class(model, config, adapter_name=ADAPTER_NAME)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ConfigError(f"the adapter does not fit {type(model).__name__}: {first_line(error)}") from None
    adapted_model.t5suite_base = base
    return adapted_model


def _peft_class(config) -> type:
    """PEFT's model class, or ours if virtual tokens would interfere (`prompted`)."""
    from peft.auto import MODEL_TYPE_TO_PEFT_MODEL_MAPPING

    from t5suite.models.prompted import PROMPTED

    require_proved("adapters")
    if config.is_prompt_learning and config.task_type in PROMPTED:
        require_proved("prompts")
        return PROMPTED[config.task_type]
    if config.task_type is None and config.is_prompt_learning:
        raise ConfigError("virtual tokens need an encoder-decoder, a causal model or a classifier")
    return MODEL_TYPE_TO_PEFT_MODEL_MAPPING.get(config.task_type, peft_library().PeftModel)


def _family_or_task(model) -> str:
    """The family of a language model; PEFT's task type for a model with a classification head."""
    class_name = type(model).__name__
    for ending, task_type in HEAD_TASKS.items():
        if class_name.endswith(ending):
            return task_type
    return recognize_family(model).name


def is_saved_with_adapter(tensor_name: str) -> bool:
    """Whether a tensor of a model with a head is in a module that PEFT saves with every adapter.

    >>> is_saved_with_adapter("classifier.dense.weight"), is_saved_with_adapter("pooler.dense.weight")
    (True, False)
    """
    return any(part.endswith(CLASSIFIERS) for part in tensor_name.split(".")[:-1])


def is_adapted(model) -> bool:
    """Whether the model has an adapter over it (PEFT's)."""
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def has_adapter_layers(model) -> bool:
    """Whether an adapter has put layers of its own into the model (PEFT's LoRA does, virtual tokens do not)."""
    if "peft" not in sys.modules:  # nothing can have made such layers
        return False
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper

    return any(isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper)) for module in model.modules())


def inner_model(model):
    """The model below the adapter; a plain model itself."""
    return model.get_base_model() if is_adapted(model) else model


def trained_rows(model) -> set[int]:
    """The ids whose embeddings an adapter trains by themselves (`trainable_token_indices`)."""
    if not is_adapted(model):
        return set()
    rows = getattr(model.peft_config[ADAPTER_NAME], "trainable_token_indices", None) or ()
    if isinstance(rows, dict):  # by the name of a matrix
        rows = itertools.chain.from_iterable(rows.values())
    return set(rows)


def num_virtual_tokens(model, stack: str = "encoder") -> int:
    """How many virtual tokens of an adapter have positions before what a stack reads; 0 without such an adapter.

    Args:
      stack: `encoder` or `decoder` of an encoder-decoder model: virtual tokens are in the encoder, prefixes in the
        decoder. Other models have one stack.
    """
    if not is_adapted(model):
        return 0
    config = model.peft_config[ADAPTER_NAME]
    stack_with_prefixes = "decoder" if adapter_kind(config) == "prefix" else "encoder"
    if config.task_type == TASK_TYPES["seq2seq"] and stack != stack_with_prefixes:
        return 0
    return getattr(config, "num_virtual_tokens", 0)


def describe_adapter(model) -> dict:
    """What manifests record about a model's adapter; empty for a plain model."""
    if not is_adapted(model):
        return {}
    base = getattr(model, "t5suite_base", AdapterBase(None))
    trained = num_elements(parameter for parameter in model.parameters() if parameter.requires_grad)
    return {"adapter": adapter_kind(model.peft_config[ADAPTER_NAME]), "trained": trained, "base": base.name}


def merge_adapter(model):
    """The plain model with the adapter's weights added to its own; the given model loses its adapter.

    >>> merge_adapter(tuner.model).save_pretrained("merged")  # `tuner.save` would find no adapter

    Its logits equal the unmerged model's (float32: to 1e-5); tied weights stay tied.

    Raises:
      ConfigError: an adapter of virtual tokens or prefixes, which the model's weights cannot hold.
      DataError: the merged weights are not finite.
    """
    if not is_adapted(model):
        return model
    kind_name = adapter_kind(model.peft_config[ADAPTER_NAME])
    if not ADAPTERS[kind_name].merges:
        merging = ", ".join(name for name, kind in ADAPTERS.items() if kind.merges)
        raise ConfigError(f"{kind_name} cannot be merged into the model: it changes none of its weights; {merging} can")
    require_proved("merging")
    try:
        plain_model = model.merge_and_unload(safe_merge=True)
    except ValueError as error:  # how PEFT says that merged weights are not finite
        raise DataError(f"the adapter cannot be merged into the model: {error}") from error
    plain_model.requires_grad_(True)
    return plain_model


def initialize_virtual_tokens(model, tokenizer, init: str, text: str | None) -> None:
    """Initialises the virtual tokens: `random` keeps PEFT's values, else they are embeddings of pieces.

    Args:
      model: one on the meta device has no values, and stays as it is.
      init: a key of `PROMPT_INITS`.
      text: for `text`; repeated, or cut, to the number of virtual tokens.

    Raises:
      ConfigError: a text without a token.
    """
    from t5suite.models.prompted import embed_ids

    device = model.get_input_embeddings().weight.device
    if init == "random" or device.type == "meta":
        return
    rows_ND = model.prompt_encoder[ADAPTER_NAME].embedding.weight
    ids_N = _ids_of_text(tokenizer, text, len(rows_ND)) if init == "text" else _common_ids(tokenizer, len(rows_ND))
    with torch.no_grad():
        rows_ND.copy_(embed_ids(model, ids_N.to(device)))


def _ids_of_text(tokenizer, text: str, count: int) -> torch.Tensor:
    """`count` ids of a text, from its beginning again after its end."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not ids:
        raise ConfigError("--adapter_args prompt_tuning_init_text: it contains no token")
    return torch.tensor([ids[place % len(ids)] for place in range(count)])


def _common_ids(tokenizer, count: int) -> torch.Tensor:
    """`count` ids drawn from the commonest pieces."""
    special_ids = set(tokenizer.all_special_ids)
    pieces = [piece_id for piece_id in range(len(tokenizer)) if piece_id not in special_ids][:COMMON_PIECES]
    return torch.tensor(pieces)[torch.randint(len(pieces), (count,))]


def weights_fingerprint(model) -> str | None:
    """64 hexadecimal digits from a sample of each of a model's tensors, except a classifier's head, which is new.

    >>> weights_fingerprint(t5_small) == weights_fingerprint(t5_small_loaded_again)
    True
    """
    return fingerprint_of(sampled_parameters(model))


def sampled_parameters(model) -> dict:
    """The parameters that a fingerprint reads, by name: all but those of a classifier's head, which is new."""
    body = model.base_model if _family_or_task(model) in HEAD_TASKS.values() else model
    has_own_head = isinstance(body, EncoderHead)
    return {
        name: parameter
        for name, parameter in body.named_parameters()
        if not (has_own_head and name.startswith("classifier."))
    }


def fingerprint_of(sampled: dict) -> str | None:
    """The fingerprint of these parameters, as they are now; None if they are sharded, quantized or without values."""
    digest = hashlib.sha256()
    for name, parameter in sampled.items():
        if hasattr(parameter, "ds_id") or parameter.is_meta or not parameter.dtype.is_floating_point:
            return None
        elements = parameter.detach().view(-1)
        step = max(1, elements.numel() // SAMPLED_ELEMENTS)
        sample = elements[::step][:SAMPLED_ELEMENTS].float().cpu()
        digest.update(f"{name} {tuple(parameter.shape)} ".encode() + sample.numpy().tobytes())
    return digest.hexdigest()


def _check_targets(model, kind_name: str) -> None:
    """Refuses an adapter over a matrix that modules share: it would apply to only one of them."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper
    from peft.utils.other import TrainableTokensWrapper

    names_by_tensor = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names_by_tensor.setdefault(id(parameter), []).append(name)
    # Single rows of an embedding matrix, which PEFT trains wherever it is used.
    row_wrappers = {
        name: module for name, module in model.named_modules() if isinstance(module, TrainableTokensWrapper)
    }
    _check_row_wrappers(row_wrappers, names_by_tensor, kind_name)
    for name, module in model.named_modules():
        if not isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper)) or name.startswith(tuple(row_wrappers)):
            continue
        wrapped_module = getattr(module, "base_layer", getattr(module, "original_module", None))
        weight = getattr(wrapped_module, "weight", None)
        if weight is not None and len(names_by_tensor.get(id(weight), ())) > 1:
            raise ConfigError(
                f"--adapter {kind_name}: {name.removeprefix('base_model.model.')} is one matrix with others of the "
                "model (tied embeddings), and an adapter over it would apply to only one of them; leave it out of "
                "--target_modules and --adapter_args modules_to_save"
            )


def _check_row_wrappers(row_wrappers: dict, names_by_tensor: dict[int, list[str]], kind_name: str) -> None:
    """Refuses trained rows of a matrix that is also used outside of the modules that PEFT wraps."""
    wrapped_weights = [module.original_module.weight for module in row_wrappers.values()]
    names = [name for weight in wrapped_weights for name in names_by_tensor[id(weight)]]
    if not all(name.startswith(tuple(row_wrappers)) for name in names):
        raise ConfigError(
            f"--adapter {kind_name}: trainable_token_indices: without a tied output layer (T5 v1.1) PEFT would train "
            "the rows in only one of the places that use them; models with all embeddings tied support this"
        )
