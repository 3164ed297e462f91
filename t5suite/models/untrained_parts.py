"""Parts of a model that nothing has trained, as its configuration names them: frozen, and not to be used.

    >>> model.config.untrained_parts
    ['model.encoder.vision_tower.', ...]
    >>> model(pixel_values=images, input_ids=ids)
    ConfigError: pixel_values: the vision tower of this model is a placeholder that nothing has trained; ...

T5Gemma 2 is built with a vision tower, even for text alone. One that `t5suite adapt` has made has the smallest that
the class accepts.
"""

from t5suite.base.errors import ConfigError

# The setting of a configuration that names them: beginnings of parameters' names.
UNTRAINED = "untrained_parts"


def freeze_untrained(model) -> int:
    """Freezes what the configuration names, and makes the model refuse images; returns the number of parameters."""
    parameters = untrained_parameters(model)
    for parameter in parameters:
        parameter.requires_grad_(False)
    if parameters:
        model.register_forward_pre_hook(_refuse_images, with_kwargs=True)
    return sum(parameter.numel() for parameter in parameters)


def untrained_parameters(model) -> list:
    """The parameters that the configuration names.

    >>> [tuple(parameter.shape) for parameter in untrained_parameters(adapted)][:2]
    [(640,), (1, 1, 1, 1)]
    """
    beginnings = tuple(getattr(model.config, UNTRAINED, None) or ())
    if not beginnings:
        return []
    return [parameter for name, parameter in model.named_parameters() if name.startswith(beginnings)]


def _refuse_images(model, arguments, named_arguments) -> None:
    """Called with what `forward` is called with.

    Raises:
      ConfigError: there are images among it.
    """
    if named_arguments.get("pixel_values") is not None:
        raise ConfigError(
            "pixel_values: the vision tower of this model is a placeholder that nothing has trained; give text alone, "
            "or take google/t5gemma-2-270m-270m, which reads images"
        )
