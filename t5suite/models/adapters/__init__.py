"""A few trained weights over a frozen model (PEFT): which kinds there are, how they are made, saved, loaded and merged.

>>> model = adapted(model, tokenizer, "lora", {"lora_r": 8}, base_name="google/t5-v1_1-small")
>>> save_adapter(model, "runs/x")                          # adapter_config.json, adapter_model.safetensors: 1.4 MB
>>> model = load_adapter("runs/x", tokenizer=tokenizer)    # the base by the name that the adapter stores
>>> plain = merged(model)
"""

from t5suite.models.adapters.files import (
    ADAPTER_WEIGHTS,
    is_adapter,
    load_adapter,
    restore_adapter,
    save_adapter,
)
from t5suite.models.adapters.kinds import ADAPTERS
from t5suite.models.adapters.making import adapted, adapter_of, inner_model, is_adapted, merged

__all__ = [
    "ADAPTERS",
    "ADAPTER_WEIGHTS",
    "adapted",
    "adapter_of",
    "inner_model",
    "is_adapted",
    "is_adapter",
    "load_adapter",
    "merged",
    "restore_adapter",
    "save_adapter",
]
