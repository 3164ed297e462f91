"""A model's parameters -> the groups that an optimizer works on.

>>> [(len(group["params"]), group["weight_decay"]) for group in decay_groups(t5, weight_decay=0.1)]
[(9, 0.1), (7, 0.0)]
"""

from collections.abc import Iterable

import torch
from torch import nn
from transformers import Trainer


def decay_names(model: nn.Module) -> set[str]:
    """Names of the parameters that weight decay holds for, by Hugging Face's rule.

    Norms, biases and whatever has `bias` in its name (T5's `relative_attention_bias` tables too) are left out;
    embeddings are decayed. The rule is a method of their `Trainer` that needs no trainer.
    """
    return set(Trainer.get_decay_parameter_names(None, model))


def trained_parameters(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """`(name, parameter)` of everything that is not frozen, tied parameters once."""
    return [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]


def decay_groups(model: nn.Module, weight_decay: float = 0.0, only: Iterable[str] | None = None) -> list[dict]:
    """Parameters with weight decay and parameters without, as two groups; a group that would be empty is left out.

    Args:
      only: names of the parameters to group; None means all that are trained.
    """
    decayed = decay_names(model)
    named = [(name, p) for name, p in trained_parameters(model) if only is None or name in only]
    groups = [
        {"params": [p for name, p in named if (name in decayed) == decays], "weight_decay": weight_decay * decays}
        for decays in (True, False)
    ]
    return [group for group in groups if group["params"]]


def hidden_matrices(model: nn.Module) -> set[str]:
    """Names of the trained matrices between the layers: 2-D, and neither an embedding, a head nor a bias table.

    T5's relative-bias tables are `nn.Embedding`s and so left out with the vocabulary.
    """
    outside = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is not None:
        outside.update(id(p) for p in head.parameters())
    return {name for name, p in trained_parameters(model) if p.ndim == 2 and id(p) not in outside}


def parameter_rms(parameters: list[torch.Tensor], factor: float = 1.0) -> list[torch.Tensor]:
    """Root mean square of each parameter times a factor, 0-d float32, on its device and without waiting for it.

    >>> parameter_rms([torch.tensor([3.0, 4.0])])
    [tensor(3.5355)]
    """
    exact = all(parameter.dtype == torch.float32 for parameter in parameters)  # naming the type costs a tenth
    norms = torch._foreach_norm(parameters, 2, dtype=None if exact else torch.float32)
    torch._foreach_mul_(norms, [factor / parameter.numel() ** 0.5 for parameter in parameters])
    return list(norms)
