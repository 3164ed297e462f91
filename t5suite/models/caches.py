"""The name that transformers gives to a model's cache of keys and values.

    >>> outputs = model(**inputs, **{CACHE: cache})
    >>> getattr(outputs, CACHE) is cache
    True

transformers 5.24 renamed the argument, the output and the entry of `generate`'s keyword arguments from
`past_key_values` to `cache`, in every model. PEFT 0.21 still writes and reads `past_key_values`.
"""

import dataclasses

from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutputWithPast

OLD_NAME = "past_key_values"
NEW_NAME = "cache"
_OUTPUT_FIELDS = {field.name for field in dataclasses.fields(BaseModelOutputWithPast)}
CACHE = NEW_NAME if NEW_NAME in _OUTPUT_FIELDS else OLD_NAME


def renamed_argument(arguments: dict, old: str, new: str) -> dict:
    """Keyword arguments, one of them under another name.

    >>> renamed_argument({"past_key_values": 1, "use_cache": True}, "past_key_values", "cache")
    {'use_cache': True, 'cache': 1}
    """
    if old == new or old not in arguments:
        return arguments
    renamed = {name: value for name, value in arguments.items() if name != old}
    renamed[new] = arguments[old]
    return renamed


def cache_of_decoder(model, generation_config) -> dict:
    """The argument of `generate` for a T5 whose decoder is deeper than its encoder; none for other models.

    transformers 5.24 makes a cache of as many layers as that encoder has; this one grows with the layers that write.

    Args:
      generation_config: what the call sets; the model's own settings have the rest. Without a cache transformers reads
        the whole answer at every step, and would write it into this one again.
    """
    num_decoder_layers = getattr(model.config, "num_decoder_layers", None)
    if num_decoder_layers is None or num_decoder_layers <= model.config.num_hidden_layers:
        return {}
    use_cache = generation_config.use_cache
    if use_cache is None:
        use_cache = model.generation_config.use_cache
    if use_cache is False:
        return {}
    return {CACHE: EncoderDecoderCache(DynamicCache(), DynamicCache())}
