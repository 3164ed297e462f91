"""A plain model -> the same with an adapter over it, and back.

    >>> model = adapted(model, tokenizer, "prompt_tuning", {"num_virtual_tokens": 20}, base_name="t5-small")
    >>> adapter_of(model)
    {'adapter': 'prompt_tuning', 'trained': 10240, 'base': 't5-small'}

The model itself is frozen and stays what it is: only the adapter is trained, has moments and is saved.
"""

import hashlib
import logging
import warnings
from dataclasses import dataclass, field

import torch

from t5suite.base.errors import ConfigError
from t5suite.models.adapters.kinds import ADAPTERS, adapter_config, peft_library
from t5suite.models.families import family_of_model

logger = logging.getLogger(__name__)

NAME = "default"
# Vocabularies are sorted by frequency; prompt tuning drew from the 5000 commonest pieces (arXiv:2104.08691, 3.2)
COMMON_PIECES = 5000
SAMPLED = 64


@dataclass
class Base:
    """What an adapter stands on.

    Attributes:
      name: the hub's name or the folder that has these weights; None where nothing has them (random, changed).
      revision: of the hub's model.
      fingerprint: what tells it from another model of the same shape; None where it is in pieces.
      parameters: its own tensors by name, as they were before the adapter came over them.
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
      given: adapter flags with their values (`kinds.FLAGS`).
      args: further fields of PEFT's configuration.
      base_name: what brings the model's weights back; None where nothing does.

    Raises:
      ConfigError: settings that do not fit the kind or the model; a model that has an adapter already.
    """
    given = given or {}
    if is_adapted(model):
        raise ConfigError(
            f"--adapter {kind_name}: the model is an adapter already ({adapter_of(model)['adapter']}); leave --adapter "
            "out to train it further, or merge it first (--merge_adapter)"
        )
    family = _task_of(model)
    config = adapter_config(kind_name, model.config, family, given, args)
    model = wrap(model, config, base_name, revision)
    _check_targets(model, kind_name)
    if kind_name == "prompt_tuning":
        begin_prompt(model, tokenizer, given.get("prompt_tuning_init", "vocabulary").lower(), given)
    found = adapter_of(model)
    total = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    logger.info("--adapter %s: %d of %d parameters are trained (%.2f%%)", kind_name, found["trained"], total,
                100 * found["trained"] / total)  # fmt: skip
    return model


def wrap(model, config, base_name: str | None, revision: str | None = None):
    """PEFT's model of a configuration; its weights are new."""
    base = Base(base_name, revision, fingerprint(model), dict(model.state_dict(keep_vars=True)))
    config.base_model_name_or_path, config.revision = base_name, revision
    try:
        with warnings.catch_warnings():
            # What PEFT 0.21 says of its own use of transformers, and of layers that it then treats rightly (GPT-2's).
            warnings.filterwarnings("ignore", message=".*(is_gradient_checkpointing|fan_in_fan_out).*")
            wrapped = _class_for(config)(model, config, adapter_name=NAME)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise ConfigError(f"the adapter does not fit {type(model).__name__}: {str(error).splitlines()[0]}") from None
    wrapped.t5suite_base = base
    return wrapped


def is_adapted(model) -> bool:
    """Whether the model has an adapter over it."""
    return hasattr(model, "peft_config") and hasattr(model, "get_base_model")


def inner_model(model):
    """The model below the adapter; a plain model itself."""
    return model.get_base_model() if is_adapted(model) else model


def adapter_of(model) -> dict:
    """What manifests say of a model's adapter; empty for a plain model."""
    if not is_adapted(model):
        return {}
    base = getattr(model, "t5suite_base", Base(None))
    trained = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters() if p.requires_grad)
    return {"adapter": kind_of(model.peft_config[NAME]), "trained": trained, "base": base.name}


def kind_of(config) -> str:
    """The kind that a configuration of PEFT's is of.

    Raises:
      ConfigError: one that is not in `ADAPTERS`.
    """
    fixed = {True: "dora", False: "lora"}
    if type(config).__name__ == "LoraConfig":
        return fixed[bool(config.use_dora)]
    for name, kind in ADAPTERS.items():
        if kind.config_class == type(config).__name__:
            return name
    raise ConfigError(
        f"adapters of PEFT's type {config.peft_type} are not known here; these are: {', '.join(ADAPTERS)}"
    )


def merged(model):
    """The plain model with the adapter's weights added to its own; the adapter is gone from the model that was given.

    Its logits equal the unmerged ones' (float32: to 1e-5); what was tied stays tied.

    Raises:
      ConfigError: an adapter whose virtual tokens or prefixes are nothing that weights can hold.
    """
    if not is_adapted(model):
        return model
    kind_name = kind_of(model.peft_config[NAME])
    if not ADAPTERS[kind_name].merges:
        able = ", ".join(name for name, kind in ADAPTERS.items() if kind.merges)
        raise ConfigError(f"{kind_name} cannot be merged into the model: no weights of its own change; {able} can")
    plain = model.merge_and_unload(safe_merge=True)
    plain.requires_grad_(True)
    return plain


def begin_prompt(model, tokenizer, how: str, given: dict) -> None:
    """First values of the virtual tokens: `random` as PEFT has left them, else rows of the embedding matrix.

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
            raise ConfigError("--prompt_tuning_init_text: no token is in it")
        ids = torch.tensor([ids[place % len(ids)] for place in range(len(rows_ND))])
    else:
        special = {*tokenizer.all_special_ids}
        pieces = [number for number in range(len(tokenizer)) if number not in special][:COMMON_PIECES]
        ids = torch.tensor(pieces)[torch.randint(len(pieces), (len(rows_ND),))]
    embeddings_VD = model.get_input_embeddings().weight
    with torch.no_grad():
        rows_ND.copy_(embeddings_VD[ids.to(embeddings_VD.device)])


def fingerprint(model) -> str | None:
    """64 hexadecimal digits from some numbers of each of a model's tensors; a classifier's head, which is new, aside.

    >>> fingerprint(t5_small) == fingerprint(t5_small_loaded_again)
    True
    """
    digest = hashlib.sha256()
    body = model.base_model if _task_of(model) == "SEQ_CLS" else model
    for name, parameter in body.named_parameters():
        if hasattr(parameter, "ds_id") or parameter.is_meta or not parameter.dtype.is_floating_point:
            return None
        flat = parameter.detach().view(-1)
        sample = flat[:: max(1, flat.numel() // SAMPLED)][:SAMPLED].float().cpu()
        digest.update(f"{name} {tuple(parameter.shape)} ".encode() + sample.numpy().tobytes())
    return digest.hexdigest()


def _task_of(model) -> str:
    """The family of a language model; PEFT's word for a model with a classification head."""
    name = type(model).__name__
    return "SEQ_CLS" if name.endswith("ForSequenceClassification") else family_of_model(model)


def _class_for(config):
    """PEFT's class of model, or ours where virtual tokens would come between (`prompted`)."""
    from peft.auto import MODEL_TYPE_TO_PEFT_MODEL_MAPPING

    from t5suite.models.adapters.prompted import PROMPTED

    if config.is_prompt_learning and config.task_type in PROMPTED:
        return PROMPTED[config.task_type]
    if config.task_type is None and config.is_prompt_learning:
        raise ConfigError("virtual tokens and prefixes need a model that answers (encoder-decoder, causal, classifier)")
    return MODEL_TYPE_TO_PEFT_MODEL_MAPPING.get(config.task_type, peft_library().PeftModel)


def _check_targets(model, kind_name: str) -> None:
    """Refuses an adapter over a matrix that modules share: it would work in one of their places only."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils import AuxiliaryTrainingWrapper
    from peft.utils.other import TrainableTokensWrapper

    places = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(name)
    rows = {name: module for name, module in model.named_modules() if isinstance(module, TrainableTokensWrapper)}
    everywhere = tuple(rows)
    held = {place for module in rows.values() for place in places[id(module.original_module.weight)]}
    if any(not place.startswith(everywhere) for place in held):
        raise ConfigError(
            f"--adapter {kind_name}: trainable_token_indices: without a tied output layer (T5 v1.1) PEFT would train "
            "the rows in one of their places only; models where all are tied can have them"
        )
    for name, module in model.named_modules():
        if name.startswith(everywhere):
            continue  # single rows of an embedding matrix: PEFT trains them in all of its places
        inside = getattr(module, "base_layer", getattr(module, "original_module", None))
        if not isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper)) or inside is None:
            continue
        weight = getattr(inside, "weight", None)
        if weight is not None and len(places.get(id(weight), ())) > 1:
            shown = name.removeprefix("base_model.model.")
            raise ConfigError(
                f"--adapter {kind_name}: {shown} is one matrix with others of the model (tied embeddings), and an "
                "adapter over it would work in one place only; leave it out of --target_modules and --modules_to_save"
            )
