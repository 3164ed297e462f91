"""The attention that a model's configuration asks for: sdpa, eager, flash_attention_2, ...

    >>> attention_of(model.config)
    'sdpa'

transformers 5.23 and 5.24 can set it for a model (`set_attn_implementation`), but have no public name to read it by,
nor to set it in a configuration that no model is made of yet.
"""


def attention_of(config) -> str | None:
    """The name of the attention; None until a model is made that chooses one."""
    return config._attn_implementation


def set_attention(config, name: str) -> None:
    """Lets models that are made of a configuration have the attention of this name."""
    config._attn_implementation = name
