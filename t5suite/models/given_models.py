"""A model that is in memory already, made ready as one that was loaded: `FineTuner(my_model, tokenizer=my_tokenizer)`.

>>> model = made_ready(T5ForConditionalGeneration(config), tokenizer)
>>> described_object(model)
'T5ForConditionalGeneration in memory, weights 1f6b03a0c2d4'
"""

import logging

import torch
from transformers import PreTrainedModel

from t5suite.base.errors import ConfigError
from t5suite.models.adapters import is_adapted
from t5suite.models.adapters.making import fingerprint
from t5suite.models.families import FAMILIES, family_of_model
from t5suite.models.head_tying import T5_TYPES
from t5suite.models.loading import check_vocabulary
from t5suite.models.own_models import hold_module
from t5suite.models.packed_t5 import accept_packed_batches
from t5suite.models.vocabulary import ensure_padding, set_generation_tokens, set_special_tokens

logger = logging.getLogger(__name__)


def is_plain_module(model) -> bool:
    """Whether it is a module without a configuration, which a holder must have (`own_models`)."""
    return isinstance(model, torch.nn.Module) and not hasattr(model, "config")


def made_ready(model, tokenizer, family: str | None = None, tasks=()):
    """The model itself, in float32, with the special tokens that its tokenizer has; it is changed in place.

    Args:
      family, tasks: of a plain module, which is put into a holder.

    Raises:
      ConfigError: it is no model, is an adapter of PEFT's making, has fewer embeddings than pieces.
    """
    if type(model).__name__.startswith("Peft") and not is_adapted(model):
        raise ConfigError("model: PEFT has wrapped it already; give its base model, and adapter='lora' and the like")
    if not (isinstance(model, PreTrainedModel) or is_adapted(model) or is_plain_module(model)):
        raise ConfigError(f"model: {type(model).__name__} is neither a model nor the name of one")
    if tokenizer is None:
        raise ConfigError("model: an object comes without a tokenizer; give tokenizer=..., an object or a name")
    ensure_padding(tokenizer)
    if is_plain_module(model):
        return hold_module(model, tokenizer=tokenizer, family=family, tasks=tasks)
    if any(parameter.dtype in (torch.bfloat16, torch.float16) for parameter in model.parameters()):
        logger.warning("the model's weights become float32; bf16=True computes in bfloat16 all the same")
        model.float()
    set_special_tokens(model.config, tokenizer, FAMILIES[family_of_model(model)].special_tokens, False)
    check_vocabulary(model, len(tokenizer))
    set_generation_tokens(model)
    if model.config.model_type in T5_TYPES and not is_adapted(model):
        accept_packed_batches(model)
    return model


def described_object(model) -> str:
    """What a run's settings say of it: its class, and what tells its weights from others."""
    return f"{type(model).__name__} in memory, weights {(fingerprint(model) or 'unknown')[:12]}"
