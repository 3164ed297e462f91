"""Classes of transformers: which one an `AutoModelFor...` takes for a configuration, the model in wrappers, its size.

>>> model_class_in(AutoModelForMaskedLM, AutoConfig.for_model("bert")).__name__
'BertForMaskedLM'
"""


def has_model_class(auto_class, config) -> bool:
    """Whether an `AutoModelFor...` has a class for a configuration."""
    return type(config) in auto_class._model_mapping


def model_class_in(auto_class, config) -> type:
    """The class that an `AutoModelFor...` uses for a configuration; the first one if it lists several."""
    model_class = auto_class._model_mapping[type(config)]
    return model_class[0] if isinstance(model_class, tuple | list) else model_class


def random_weights(model_class: type, config, **options):
    """A model of this class and configuration with random weights, made as the `from_config` of an `AutoModelFor...`
    makes it: in the configuration's dtype, with its attention.

    Args:
      options: `dtype`, `attn_implementation`, ...
    """
    return model_class._from_config(config, **options)


def bare_model(model):
    """The model inside wrappers and adapters, whose `forward` has the real signature."""
    unwrapped = getattr(model, "module", model)
    return unwrapped.get_base_model() if hasattr(unwrapped, "get_base_model") else unwrapped


def num_elements(parameters) -> int:
    """How many numbers these parameters have, also those that ZeRO-3 keeps on all ranks together."""
    return sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in parameters)
