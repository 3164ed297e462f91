"""Where every tensor of an adapted model comes from, as a table; and the tensors themselves, filled by that table.

    >>> table = tensor_origins(adapted, decoder)
    >>> table[0].name, table[0].source
    ('model.encoder.text_model.embed_tokens.weight[:262144]', 'model.embed_tokens.weight')

Both stacks take the decoder's layers. T5Gemma's cross-attention takes the self-attention of its layer, with the norms
around it (arXiv:2504.06225); T5Gemma 2's is merged with it and has no tensors of its own (arXiv:2512.14856).
"""

from dataclasses import dataclass

import torch

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import listed

EMBEDDINGS = "model.embed_tokens.weight"
# Beginnings of names in the adapted model, the longest first.
STACKS = ("model.encoder.text_model.", "model.encoder.", "model.decoder.")
RENAMED = {
    "pre_self_attn_layernorm": "input_layernorm",
    "post_self_attn_layernorm": "post_attention_layernorm",
    "pre_cross_attn_layernorm": "input_layernorm",
    "post_cross_attn_layernorm": "post_attention_layernorm",
    "cross_attn": "self_attn",
}
MEAN_ROW = f"the mean of the rows of {EMBEDDINGS}"
ZEROS = "zeros; no id is read with it"
DRAWN = "drawn from N(0, 0.02), seed 0; untrained"
STANDARD_DEVIATION = 0.02


@dataclass(frozen=True)
class TensorOrigin:
    """A line of the table.

    Attributes:
      name: of a tensor in the adapted model; `[:n]` and `[n:]` for the rows of an embedding matrix.
      shape: of the tensor, or of these rows.
      source: the tensor in the decoder; None for a new one.
      start: what a new one begins with.
      tied_to: the tensor of the adapted model that it is the same as; None if it is stored.
    """

    name: str
    shape: tuple[int, ...]
    source: str | None = None
    start: str | None = None
    tied_to: str | None = None

    @property
    def size(self) -> int:
        """How many elements it adds to the model."""
        if self.tied_to is not None:
            return 0
        return torch.Size(self.shape).numel()

    @property
    def origin(self) -> str:
        """The line's last column.

        >>> TensorOrigin("norm.weight", (64,), source="model.norm.weight").origin
        'model.norm.weight'
        """
        if self.tied_to is not None:
            return f"is {self.tied_to}"
        return self.source or f"new: {self.start}"


def tensor_origins(adapted, decoder) -> list[TensorOrigin]:
    """The table.

    Args:
      adapted, decoder: models; on the meta device they suffice.

    Raises:
      ConfigError: a tensor of the decoder has no place in the adapted model, or one of the same name has another shape.
    """
    shapes = {name: tuple(parameter.shape) for name, parameter in decoder.named_parameters()}
    origins = []
    first_names: dict[int, str] = {}
    for name, parameter in adapted.named_parameters(remove_duplicate=False):
        first_name = first_names.setdefault(id(parameter), name)
        if first_name != name:
            origins.append(TensorOrigin(name, tuple(parameter.shape), tied_to=first_name))
        else:
            origins += _origins_of(name, tuple(parameter.shape), shapes)
    unused = sorted(shapes.keys() - {origin.source for origin in origins})
    if unused:
        raise ConfigError(
            f"{len(unused)} tensors of the decoder have no place in a {type(adapted).__name__}: {listed(unused)}"
        )
    return origins


def _origins_of(name: str, shape: tuple[int, ...], shapes: dict[str, tuple[int, ...]]) -> list[TensorOrigin]:
    """The lines of one stored tensor: two for embeddings that grow."""
    source = source_of(name)
    if source not in shapes:
        start = ZEROS if name.endswith("eoi_embedding") else DRAWN
        return [TensorOrigin(name, shape, start=start)]
    source_shape = shapes[source]
    if source_shape == shape:
        return [TensorOrigin(name, shape, source)]
    num_rows = source_shape[0]
    if source != EMBEDDINGS or source_shape[1:] != shape[1:] or num_rows > shape[0]:
        raise ConfigError(f"{source} is {source_shape} in the decoder, and {name} is {shape}")
    return [
        TensorOrigin(f"{name}[:{num_rows}]", source_shape, source),
        TensorOrigin(f"{name}[{num_rows}:]", (shape[0] - num_rows, *shape[1:]), start=MEAN_ROW),
    ]


def source_of(name: str) -> str:
    """The name that a tensor of the adapted model has in the decoder.

    >>> source_of("model.decoder.layers.3.cross_attn.q_proj.weight")
    'model.layers.3.self_attn.q_proj.weight'
    """
    stack = next((stack for stack in STACKS if name.startswith(stack)), "")
    parts = name.removeprefix(stack).split(".")
    return ".".join(["model", *(RENAMED.get(part, part) for part in parts)])


@torch.no_grad()
def fill_tensors(adapted, decoder, origins: list[TensorOrigin]) -> None:
    """Copies the decoder's tensors into the adapted model, and gives new ones their start."""
    sources = dict(decoder.named_parameters())
    parameters = dict(adapted.named_parameters())
    generator = torch.Generator().manual_seed(0)
    for origin in origins:
        if origin.tied_to is not None:
            continue
        name, _, rows = origin.name.partition("[")
        tensor = parameters[name]
        if rows.startswith(":"):
            tensor = tensor[: origin.shape[0]]
        elif rows:
            tensor = tensor[-origin.shape[0] :]
        if origin.source is not None:
            tensor.copy_(sources[origin.source])
        elif origin.start == MEAN_ROW:
            tensor.copy_(sources[EMBEDDINGS].mean(dim=0).expand(tensor.shape))
        elif origin.start == DRAWN:
            tensor.normal_(0, STANDARD_DEVIATION, generator=generator)
        else:
            tensor.zero_()
