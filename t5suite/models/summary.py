"""A model's parameters by module, as a table: what there is, what is trained, what is frozen.

    >>> print_rows(module_rows(t5_small))
    shared                 16,449,536   trained
    encoder                18,881,280   trained
      block (6 layers)     18,880,768   trained
      final_layer_norm            512   trained
    decoder                25,175,808   trained
      ...
    lm_head                         0   is shared

A parameter counts where its first name stands; the layers of a list are one row.
"""

from dataclasses import dataclass

from torch import nn

DEPTH = 3


@dataclass(frozen=True)
class Row:
    """A module of the table.

    Attributes:
      name: its own, without those of the modules around it; of a list of layers with their number.
      depth: how many modules are around it.
      parameters, trained: numbers of weights, each counted once in the table; trained are those that are not frozen.
      tied_to: the module whose weights these are, where it has none that were not counted before.
    """

    name: str
    depth: int
    parameters: int
    trained: int
    tied_to: str | None = None

    @property
    def state(self) -> str:
        """In words: trained, frozen or how many of both."""
        if not self.parameters:
            return f"is {self.tied_to}" if self.tied_to else ""
        if self.trained in (0, self.parameters):
            return "trained" if self.trained else "frozen"
        return f"{self.trained:,} trained, {self.parameters - self.trained:,} frozen"


def module_rows(model, depth: int = DEPTH) -> list[Row]:
    """The table of a model; its parameters add up to the model's own number of them.

    Args:
      depth: modules within modules that have rows of their own.
    """
    rows, owners = [], {}
    for name, child in model.named_children():
        _add_rows(name, name, child, 0, depth, owners, rows)
    alone = [p for p in model._parameters.values() if p is not None and id(p) not in owners]
    if alone:
        rows.append(Row("(its own)", 0, _count(alone), _count(p for p in alone if p.requires_grad)))
    return rows


def totals(model) -> dict[str, int]:
    """`{"parameters": ..., "trainable": ..., "frozen": ...}`; a tied matrix counts once.

    >>> totals(freeze_encoder(t5_small))
    {'parameters': 60506624, 'trainable': 41625344, 'frozen': 18881280}
    """
    parameters = list(model.parameters())
    trained = _count(p for p in parameters if p.requires_grad)
    return {"parameters": _count(parameters), "trainable": trained, "frozen": _count(parameters) - trained}


def print_rows(rows: list[Row], file=None) -> None:
    """The table in columns."""
    names = ["  " * row.depth + row.name for row in rows]
    width = max(map(len, names), default=0) + 2
    for name, row in zip(names, rows, strict=True):
        print(f"{name:<{width}}{row.parameters:>17,}   {row.state}".rstrip(), file=file)


def _add_rows(name: str, path: str, module, depth: int, most: int, owners: dict, rows: list) -> None:
    everything = list(module.parameters())
    if not everything:
        return
    new = [p for p in everything if id(p) not in owners]
    tied_to = None if new else owners[id(everything[0])]
    if not new and depth:
        return
    place = len(rows)
    is_list = isinstance(module, nn.ModuleList)
    rows.append(None)
    if not is_list and depth + 1 < most:
        for child_name, child in module.named_children():
            _add_rows(child_name, f"{path}.{child_name}", child, depth + 1, most, owners, rows)
    for parameter in new:
        owners.setdefault(id(parameter), path)
    shown = f"{name} ({len(module)} layers)" if is_list else name
    rows[place] = Row(shown, depth, _count(new), _count(p for p in new if p.requires_grad), tied_to)


def _count(parameters) -> int:
    return sum(getattr(p, "ds_numel", p.numel()) for p in parameters)  # ZeRO-3's own are elsewhere
