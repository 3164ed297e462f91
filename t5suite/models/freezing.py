"""Parts of a model that are not trained: `--freeze encoder,layers:2 --freeze_regex 'relative_attention_bias'`.

    >>> freeze(model, "encoder,embeddings")
    ['encoder.block.0.layer.0.SelfAttention.q.weight', ..., 'shared.weight']

| part | what it names |
|---|---|
| `encoder`, `decoder` | a stack without its embeddings and output layer; a model of one stack has one of the two |
| `encoder:N`, `decoder:N` | the first N layers of that stack |
| `layers:N` | the first N layers of each stack |
| `embeddings` | the matrices with a row for each token, position or segment; not T5's table of relative positions |
| `head` | the output layer, and everything else after the stacks |

A frozen parameter gets no gradient and takes no optimizer state. T5 keeps one table of relative positions for all
layers of a stack, in its first layer: it is frozen with that. Tied weights are one matrix: freezing T5 v1.0's
embeddings also freezes its output layer, with a warning.
"""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import closest, suggestion
from t5suite.models.classes import num_elements
from t5suite.models.families import recognize_family
from t5suite.models.untrained_parts import untrained_parameters

logger = logging.getLogger(__name__)

# The flags of a whole pattern, such as (?i), and the pattern behind them.
LEADING_FLAGS = re.compile(r"((?:\(\?[aimsux]+\))*)(.*)", re.DOTALL)
# Names that an error shows when none is like the pattern.
SHOWN_NAMES = 4


@dataclass(frozen=True, eq=False)
class NamedParameter:
    """A parameter with all of its names: several, if it is tied."""

    parameter: nn.Parameter
    names: list[str]


def freeze(model, parts: str | None = None, freeze_regex: str | None = None) -> list[str]:
    """Freezes parts by name and parameters by pattern; returns the frozen names.

    >>> freeze(t5, "layers:1")[0]
    'encoder.block.0.layer.0.SelfAttention.q.weight'
    >>> freeze(t5, freeze_regex="^encoder(?!.*layer_norm)")[-1]
    'encoder.block.1.layer.1.DenseReluDense.wo.weight'

    Args:
      parts: `encoder,layers:2`, as in the table above.
      freeze_regex: found anywhere in a parameter's name (`re.search`), any of its names if it is tied.

    Raises:
      ConfigError: an unknown part, a bad pattern, either without a parameter to freeze, nothing left to train.
    """
    named = _named_parameters(model)
    frozen = _parameters_of_parts(model, parts) if parts else {}
    if freeze_regex is not None:
        frozen |= _matching(named, freeze_regex)
    if not (frozen or parts or freeze_regex):
        return []
    _check_part_is_frozen(model, frozen, _flags_text(parts, freeze_regex))
    for parameter in frozen.values():
        parameter.requires_grad_(False)
    _warn_of_frozen_head(model, parts, frozen, named)
    logger.info("frozen: %d of %d parameters", num_elements(frozen.values()), num_elements(model.parameters()))
    return [name for name, parameter in model.named_parameters() if id(parameter) in frozen]


def any_of(patterns: list[str]) -> str | None:
    """The pattern that is found where any of these is; None without any.

    >>> any_of(["(?i)LAYER_NORM", "^shared"])
    '(?i:LAYER_NORM)|(?:^shared)'
    """
    if len(patterns) < 2:
        return next(iter(patterns), None)
    groups = []
    for pattern in patterns:
        flags, rest = LEADING_FLAGS.fullmatch(pattern).groups()  # Python takes them at the beginning of the whole alone
        flags = re.sub("[(?)]", "", flags)
        if "x" in flags:
            rest += "\n"  # a comment at its end ends there
        groups.append(f"(?{flags}:{rest})")
    return "|".join(groups)


def warn_of_frozen_parameters(model) -> None:
    """Warns of what of a model in memory is frozen: by its owner, by an earlier run with it, or by its own class."""
    untrained = {id(parameter) for parameter in untrained_parameters(model)}
    parameters = [parameter for parameter in model.parameters() if id(parameter) not in untrained]
    num_frozen = num_elements(parameter for parameter in parameters if not parameter.requires_grad)
    if num_frozen:
        logger.warning(
            "model: %d of its %d parameters are frozen already and stay so; to train them, call requires_grad_(True) "
            "of their modules first",
            num_frozen,
            num_elements(parameters),
        )


def check_some_are_trained(model) -> None:
    """Raises a ConfigError if every parameter is frozen."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "model: all of its parameters are frozen (requires_grad is False), so nothing would be trained"
        )


def _named_parameters(model) -> dict[int, NamedParameter]:
    """A model's parameters with their names, by the parameter's id."""
    named = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        named.setdefault(id(parameter), NamedParameter(parameter, [])).names.append(name)
    return named


def _matching(named: dict[int, NamedParameter], pattern: str) -> dict[int, nn.Parameter]:
    """`{id: parameter}` of the parameters with a name that contains the pattern."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"--freeze_regex {pattern!r}: not a regular expression ({error})") from None
    matching = {
        key: entry.parameter for key, entry in named.items() if any(expression.search(name) for name in entry.names)
    }
    if not matching:
        names = [name for entry in named.values() for name in entry.names]
        near = closest(pattern, names) or names[:SHOWN_NAMES]
        raise ConfigError(f"--freeze_regex {pattern!r}: found in no parameter's name; there are {', '.join(near)}, ...")
    return matching


def _check_part_is_frozen(model, frozen: dict, flags: str) -> None:
    """Refuses to freeze nothing, and everything that is trained."""
    if not frozen:
        raise ConfigError(f"{flags}: nothing is left to freeze")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if all(id(parameter) in frozen for parameter in trained):
        raise ConfigError(f"{flags} would freeze every parameter; nothing would be trained")


def _flags_text(parts: str | None, freeze_regex: str | None) -> str:
    """The flags that freeze, as the user wrote them."""
    flags = {"--freeze": parts, "--freeze_regex": freeze_regex}
    return " ".join(f"{flag} {text}" for flag, text in flags.items() if text is not None)


def _warn_of_frozen_head(model, parts: str | None, frozen: dict, named: dict[int, NamedParameter]) -> None:
    """Warns where a frozen embedding matrix is also the output layer, and the user has not named both."""
    named_parts = {part.strip() for part in (parts or "").split(",")}
    if {"embeddings", "head"} <= named_parts:
        return
    table = part_table(model)
    tied = table.get("embeddings", {}).keys() & table.get("head", {}).keys()
    for key in tied & frozen.keys():
        names = ", ".join(named[key].names)
        logger.warning("frozen embeddings freeze the output layer, too: they are one matrix (%s)", names)


def _parameters_of_parts(model, parts: str) -> dict[int, nn.Parameter]:
    """`{id: parameter}` of `encoder,layers:2`."""
    table = part_table(model)
    parameters: dict[int, nn.Parameter] = {}
    for part in filter(None, (part.strip() for part in parts.split(","))):
        name, colon, count = part.partition(":")
        if name not in table and name != "layers":
            with_numbers = [f"{stack}:N" for stack in ("layers", *stacks_of(model))]
            closest_parts = suggestion(part, [*table, *with_numbers])
            raise ConfigError(f"--freeze {parts}: {type(model).__name__} has no part {part!r}; {closest_parts}")
        if colon or name == "layers":
            parameters |= _first_layers(model, name, count, f"--freeze {part}")
        else:
            parameters |= table[name]
    return parameters


def part_table(model) -> dict[str, dict[int, nn.Parameter]]:
    """`{part: {id: parameter}}` of everything that a model has: stacks, embeddings, head.

    >>> {part: len(parameters) for part, parameters in part_table(gpt2).items()}
    {'embeddings': 2, 'head': 1, 'decoder': 26}
    """
    stacks = {name: _by_id(stack) for name, stack in stacks_of(model).items()}
    embedding_layers = [module for module in _outside_layers(model) if isinstance(module, nn.Embedding)]
    embeddings = {id(layer.weight): layer.weight for layer in embedding_layers}
    output_layer = model.get_output_embeddings()
    output = {} if output_layer is None else _by_id(output_layer)
    after_stacks = _without(_by_id(model), embeddings, *stacks.values())
    table = {"embeddings": embeddings, "head": output | after_stacks}
    for name, stack in stacks.items():
        table[name] = _without(stack, embeddings, output)
    return {name: parameters for name, parameters in table.items() if parameters}


def _without(parameters: dict[int, nn.Parameter], *excluded: dict[int, nn.Parameter]) -> dict[int, nn.Parameter]:
    """`{id: parameter}` of those that are in none of the other tables."""
    excluded_ids = {key for table in excluded for key in table}
    return {key: parameter for key, parameter in parameters.items() if key not in excluded_ids}


def stacks_of(model) -> dict[str, nn.Module]:
    """A model's encoder and decoder; the single stack of other models is named by its kind.

    >>> list(stacks_of(t5)), list(stacks_of(gpt2)), list(stacks_of(bert))
    (['encoder', 'decoder'], ['decoder'], ['encoder'])
    """
    if model.config.is_encoder_decoder:
        return {"encoder": model.get_encoder(), "decoder": model.get_decoder()}
    return {"decoder" if recognize_family(model).name == "causal" else "encoder": model.base_model}


def _first_layers(model, name: str, count: str, flag: str) -> dict[int, nn.Parameter]:
    """`{id: parameter}` of the first layers of one stack, or of each (`layers`)."""
    stacks = stacks_of(model)
    if name != "layers" and name not in stacks:
        raise ConfigError(f"{flag}: layers are counted in {' and '.join(stacks)}; leave the number out")
    if not count.isdigit() or int(count) < 1:
        raise ConfigError(f"{flag}: give the number of layers, such as {name}:2")
    if name != "layers":
        stacks = {name: stacks[name]}
    parameters = {}
    for stack_name, stack in stacks.items():
        # T5Gemma 2's encoder has a vision tower beside the text's layers.
        layers = _layers_of(getattr(stack, "text_model", stack))
        if int(count) > len(layers):
            raise ConfigError(f"{flag}: the {stack_name} has {len(layers)} layers")
        for modules in layers[: int(count)]:
            for module in modules:
                parameters |= _by_id(module)
    return parameters


def _layers_of(stack) -> list[tuple[nn.Module, ...]]:
    """The modules of each layer of a stack: of its longest list of modules, and of those beside it of that length.

    XLM's layers are four lists: the attention of all layers, their feed-forward networks, and two of norms.
    """
    owners = [module for module in _outside_layers(stack) if not isinstance(module, nn.ModuleList)]
    lists_of_owners = [[child for child in owner.children() if isinstance(child, nn.ModuleList)] for owner in owners]
    lists = max(lists_of_owners, key=_longest)
    return list(zip(*[layers for layers in lists if len(layers) == _longest(lists)], strict=True))


def _longest(lists: list[nn.ModuleList]) -> int:
    """The length of the longest list; 0 without any."""
    return max(map(len, lists), default=0)


def _by_id(module) -> dict[int, nn.Parameter]:
    return {id(parameter): parameter for parameter in module.parameters()}


def _outside_layers(module) -> Iterator[nn.Module]:
    """A module and its submodules, including lists of layers, but not the layers inside these lists."""
    yield module
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from _outside_layers(child)
