"""Parts of a model that are not trained: `--freeze encoder,layers:2 --freeze_regex 'relative_attention_bias'`.

    >>> freeze(model, "encoder,embeddings", unfreeze_regex="final_layer_norm")
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

from torch import nn

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import closest, suggestion
from t5suite.models.families import family_of_model

logger = logging.getLogger(__name__)

SHOWN = 4


def freeze(
    model, parts: str | None = None, freeze_regex: str | None = None, unfreeze_regex: str | None = None
) -> list[str]:
    """Freezes parts by name and parameters by pattern, then unfreezes by pattern; returns the frozen names.

    >>> freeze(t5, "layers:1")[0]
    'encoder.block.0.layer.0.SelfAttention.q.weight'

    Args:
      parts: `encoder,layers:2`, as in the table above.
      freeze_regex, unfreeze_regex: found anywhere in a parameter's name (`re.search`), any of its names if it is tied.

    Raises:
      ConfigError: an unknown part, a bad pattern, either without a parameter to freeze (or to unfreeze),
        nothing left to train.
    """
    names: dict[int, tuple[nn.Parameter, list[str]]] = {}  # a tied parameter has several
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), (parameter, []))[1].append(name)
    wanted = _parameters_of_parts(model, parts) if parts else {}
    flags = " ".join(
        f"{flag} {value}"
        for flag, value in (("--freeze", parts), ("--freeze_regex", freeze_regex))
        if value is not None
    )
    if freeze_regex is not None:
        wanted |= _matching(names, freeze_regex, "--freeze_regex")
    if unfreeze_regex is not None:
        thawed = _matching(names, unfreeze_regex, "--unfreeze_regex")
        if not wanted.keys() & thawed.keys():
            raise ConfigError(
                f"--unfreeze_regex {unfreeze_regex!r}: --freeze and --freeze_regex name no such parameter"
            )
        wanted = {key: parameter for key, parameter in wanted.items() if key not in thawed}
    if not wanted:
        if parts or freeze_regex:
            raise ConfigError(f"{flags}: nothing is left to freeze")
        return []
    trained = [p for p in model.parameters() if p.requires_grad]
    if all(id(p) in wanted for p in trained):
        raise ConfigError(f"{flags} would freeze every parameter; nothing would be trained")
    for parameter in wanted.values():
        parameter.requires_grad_(False)
    table = part_table(model)
    if not {"embeddings", "head"} <= {part.strip() for part in (parts or "").split(",")}:
        for key in table.get("embeddings", {}).keys() & table.get("head", {}).keys() & wanted.keys():
            logger.warning(
                "frozen embeddings freeze the output layer, too: they are one matrix (%s)", ", ".join(names[key][1])
            )
    frozen = [name for name, parameter in model.named_parameters() if id(parameter) in wanted]
    logger.info(
        "frozen: %d of %d parameters",
        sum(p.numel() for p in wanted.values()),
        sum(p.numel() for p in model.parameters()),
    )
    return frozen


def _matching(names: dict, pattern: str, flag: str) -> dict[int, nn.Parameter]:
    """`{id: parameter}` of the parameters with a name that contains the pattern."""
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{flag} {pattern!r}: not a regular expression ({error})") from None
    found = {key: p for key, (p, aliases) in names.items() if any(expression.search(name) for name in aliases)}
    if not found:
        known = [name for _, aliases in names.values() for name in aliases]
        near = closest(pattern, known) or known[:SHOWN]
        raise ConfigError(f"{flag} {pattern!r}: found in no parameter's name; there are {', '.join(near)}, ...")
    return found


def _parameters_of_parts(model, parts: str) -> dict[int, nn.Parameter]:
    """`{id: parameter}` of `encoder,layers:2`."""
    table = part_table(model)
    found: dict[int, nn.Parameter] = {}
    for part in filter(None, (part.strip() for part in parts.split(","))):
        name, colon, count = part.partition(":")
        if name not in table and name != "layers":
            counted = [f"{name}:N" for name in ("layers", *stacks_of(model))]
            raise ConfigError(
                f"--freeze {parts}: {type(model).__name__} has no part {part!r}; {suggestion(part, [*table, *counted])}"
            )
        if colon or name == "layers":
            found |= _first_layers(model, name, count, f"--freeze {part}")
        else:
            found |= table[name]
    return found


def part_table(model) -> dict[str, dict[int, nn.Parameter]]:
    """`{part: {id: parameter}}` of everything that a model has: stacks, embeddings, head.

    >>> {part: len(parameters) for part, parameters in part_table(gpt2).items()}
    {'embeddings': 2, 'head': 1, 'decoder': 26}
    """
    everything = _by_id(model)
    stacks = {name: _by_id(stack) for name, stack in stacks_of(model).items()}
    embeddings = {id(m.weight): m.weight for m in _outside_layers(model) if isinstance(m, nn.Embedding)}
    output = model.get_output_embeddings()
    output = _by_id(output) if output is not None else {}
    in_stacks = {key for parameters in stacks.values() for key in parameters}
    behind = {key: p for key, p in everything.items() if key not in in_stacks and key not in embeddings}
    apart = embeddings.keys() | output.keys()
    table = {"embeddings": embeddings, "head": output | behind}
    table |= {name: {k: p for k, p in stack.items() if k not in apart} for name, stack in stacks.items()}
    return {name: parameters for name, parameters in table.items() if parameters}


def stacks_of(model) -> dict[str, nn.Module]:
    """A model's encoder and decoder; the single stack of other models is named by its kind.

    >>> list(stacks_of(t5)), list(stacks_of(gpt2)), list(stacks_of(bert))
    (['encoder', 'decoder'], ['decoder'], ['encoder'])
    """
    if model.config.is_encoder_decoder:
        return {"encoder": model.get_encoder(), "decoder": model.get_decoder()}
    return {"decoder" if family_of_model(model) == "causal" else "encoder": model.base_model}


def _first_layers(model, name: str, count: str, flag: str) -> dict[int, nn.Parameter]:
    stacks = stacks_of(model)
    if name != "layers" and name not in stacks:
        raise ConfigError(f"{flag}: layers are counted in {' and '.join(stacks)}; leave the number out")
    if not count.isdigit() or int(count) < 1:
        raise ConfigError(f"{flag}: give the number of layers, such as {name}:2")
    found = {}
    for stack_name, stack in stacks.items():
        if name in ("layers", stack_name):
            lists = [module for module in _outside_layers(stack) if isinstance(module, nn.ModuleList)]
            layers = max(lists, key=len, default=nn.ModuleList())
            if int(count) > len(layers):
                raise ConfigError(f"{flag}: the {stack_name} has {len(layers)} layers")
            for layer in layers[: int(count)]:
                found |= _by_id(layer)
    return found


def _by_id(module) -> dict[int, nn.Parameter]:
    return {id(parameter): parameter for parameter in module.parameters()}


def _outside_layers(module):
    """A module and its submodules, including lists of layers, but not the layers inside these lists."""
    yield module
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield child
        else:
            yield from _outside_layers(child)
