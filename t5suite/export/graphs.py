"""A model -> the graphs that ONNX files hold: plain tensors in, plain tensors out, one step of generation each.

    >>> [graph.name for graph in graphs_of(t5, "seq2seq")]
    ['encoder_model', 'decoder_model', 'decoder_with_past_model']

Files and tensors are named as Optimum names them, so that other programs know them:

| file | reads | gives |
|---|---|---|
| `encoder_model` | input_ids [B, S], attention_mask [B, S] | last_hidden_state [B, S, D] |
| `decoder_model` | input_ids [B, T], encoder_attention_mask, encoder_hidden_states | logits [B, T, V], present.* |
| `decoder_with_past_model` | input_ids [B, 1], encoder_attention_mask, past_key_values.* | logits, present.* |
| `model` (masked, classification) | input_ids, attention_mask (, token_type_ids) | logits |

A decoder alone (GPT-2) has the two decoder files, with attention_mask [B, P + T] over past and new tokens, and
position_ids [B, T] where the model counts positions. Keys and values are
`present.<layer>.{decoder,encoder}.{key,value}` [B, H, P, K], without the middle part where there is no encoder; the
encoder's do not change, so that only the first step gives them.

transformers 5.23 has an exporter of its own (`transformers.exporters`, experimental), which keeps cache objects in a
layout that only itself reads; `torch.onnx.export` of these modules needs nothing private of either.
Shapes: B rows, S source and T target tokens, P past tokens, D width, H heads, K width of a head, V vocabulary.
"""

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find

# Rows, source, target and past tokens of the traced example: all different, none of them 0 or 1, which `torch.export`
# takes for constants. The step with a cache reads one token, as generation does.
ROWS, SOURCE, TARGET, PAST = 2, 7, 3, 5


@dataclass(frozen=True)
class Graph:
    """One file to be.

    Attributes:
      inputs: an example, by name and in order.
      axes: per input, the dimensions that vary, by their names.
    """

    name: str
    module: torch.nn.Module
    inputs: dict[str, torch.Tensor]
    axes: dict[str, dict[int, str]]
    outputs: list[str]


class Encoder(torch.nn.Module):
    """input_ids, attention_mask -> last_hidden_state."""

    def __init__(self, model):
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, inputs):
        """`inputs` by name, as all of these modules take them."""
        return (self.encoder(**inputs, return_dict=True).last_hidden_state,)


class FirstStep(torch.nn.Module):
    """The decoder of an encoder-decoder model over its first tokens; gives all keys and values."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs):
        """logits, then keys and values layer by layer: the decoder's own, those of the encoder's states."""
        outputs = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=inputs["encoder_hidden_states"]),
            attention_mask=inputs["encoder_attention_mask"],
            decoder_input_ids=inputs["input_ids"],
            past_key_values=EncoderDecoderCache(DynamicCache(), DynamicCache()),
            use_cache=True,
            return_dict=True,
        )
        own, cross = outputs.past_key_values.self_attention_cache, outputs.past_key_values.cross_attention_cache
        both = zip(own.layers, cross.layers, strict=True)
        return (outputs.logits, *(t for a, b in both for t in (a.keys, a.values, b.keys, b.values)))


class NextStep(torch.nn.Module):
    """The same decoder over one more token, given what it and the first step have kept."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs):
        """logits, then the decoder's own keys and values, one longer."""
        past = [tensor for name, tensor in inputs.items() if name.startswith("past_key_values")]
        own = DynamicCache(list(zip(past[0::4], past[1::4], strict=True)))
        cross = DynamicCache(list(zip(past[2::4], past[3::4], strict=True)))
        mask_BS = inputs["encoder_attention_mask"]
        # Keys and values of the encoder's states are there already: nothing reads these but for their shape.
        nothing_BSD = past[0].new_zeros((*mask_BS.shape, width_of(self.model.config)))
        outputs = self.model(
            encoder_outputs=BaseModelOutput(last_hidden_state=nothing_BSD),
            attention_mask=mask_BS,
            decoder_input_ids=inputs["input_ids"],
            past_key_values=EncoderDecoderCache(own, cross),
            use_cache=True,
            return_dict=True,
        )
        return (outputs.logits, *_keys_and_values(outputs.past_key_values.self_attention_cache))


class DecoderAlone(torch.nn.Module):
    """A causal model, with or without a past."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs):
        """logits, then keys and values layer by layer."""
        past = [tensor for name, tensor in inputs.items() if name.startswith("past_key_values")]
        plain = {name: tensor for name, tensor in inputs.items() if not name.startswith("past_key_values")}
        # A cache of plain layers, whatever the model would make: one that slides along keeps a window alone, whose
        # length `torch.export` takes for a constant. The mask hides what lies outside the window.
        cache = DynamicCache(list(zip(past[0::2], past[1::2], strict=True)) or None)
        outputs = self.model(**plain, past_key_values=cache, use_cache=True, return_dict=True)
        return (outputs.logits, *_keys_and_values(outputs.past_key_values))


class WholeModel(torch.nn.Module):
    """An encoder with a head: rows in, logits out."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs):
        """logits [B, S, V] of a masked model, [B, labels] of a classifier."""
        return (self.model(**inputs, return_dict=True).logits,)


def graphs_of(model, family: str, reads_segments: bool = False) -> Iterator[Graph]:
    """The graphs of a model, made one after the other.

    Args:
      reads_segments: the tokenizer gives token_type_ids (BERT's pairs of sentences).

    Raises:
      ConfigError: a family that has no graphs.
    """
    make = find(family, GRAPHS, "family that can be exported to ONNX", where="--model_family")
    with torch.no_grad():
        yield from make(model, reads_segments)


def width_of(config) -> int:
    """The width of the encoder's states."""
    return getattr(config, "d_model", None) or config.hidden_size


def counts_positions(model) -> bool:
    """Whether a causal model is told positions, which it would otherwise count with the padding."""
    return "position_ids" in inspect.signature(model.forward).parameters


def _seq2seq_graphs(model, reads_segments: bool) -> Iterator[Graph]:
    source_axes = {0: "batch", 1: "source"}
    encoder = _source(model)
    axes = {name: source_axes for name in encoder}
    yield Graph("encoder_model", Encoder(model), encoder, axes, ["last_hidden_state"])
    (hidden_BSD,) = Encoder(model)(encoder)
    first = {
        "input_ids": _tokens(model, TARGET),
        "encoder_attention_mask": encoder["attention_mask"],
        "encoder_hidden_states": hidden_BSD,
    }
    axes = {name: source_axes for name in first} | {"input_ids": {0: "batch", 1: "target"}}
    _, *kept = FirstStep(model)({**first, "input_ids": _tokens(model, PAST)})
    names = [f"{i}.{part}.{kind}" for i in range(len(kept) // 4) for part in PARTS for kind in KINDS]
    present = [f"present.{name}" for name in names]
    yield Graph("decoder_model", FirstStep(model), first, axes, ["logits", *present])
    past = {f"past_key_values.{name}": tensor for name, tensor in zip(names, kept, strict=True)}
    step = {"input_ids": _tokens(model, 1), "encoder_attention_mask": encoder["attention_mask"], **past}
    axes = {"input_ids": {0: "batch"}, "encoder_attention_mask": source_axes}
    axes |= {name: {0: "batch", 2: "source" if ".encoder." in name else "past"} for name in past}
    outputs = ["logits", *(name for name in present if ".decoder." in name)]
    yield Graph("decoder_with_past_model", NextStep(model), step, axes, outputs)


def _causal_graphs(model, reads_segments: bool) -> Iterator[Graph]:
    first = {"input_ids": _tokens(model, PAST), "attention_mask": torch.ones(ROWS, PAST, dtype=torch.long)}
    if counts_positions(model):
        first["position_ids"] = torch.arange(PAST).repeat(ROWS, 1)
    _, *kept = DecoderAlone(model)(first)
    names = [f"{i}.{kind}" for i in range(len(kept) // 2) for kind in KINDS]
    outputs = ["logits", *(f"present.{name}" for name in names)]
    axes = {name: {0: "batch", 1: "target"} for name in first}
    yield Graph("decoder_model", DecoderAlone(model), first, axes, outputs)
    past = {f"past_key_values.{name}": tensor for name, tensor in zip(names, kept, strict=True)}
    step = {"input_ids": _tokens(model, 1), "attention_mask": torch.ones(ROWS, PAST + 1, dtype=torch.long)}
    axes = {"input_ids": {0: "batch"}, "attention_mask": {0: "batch", 1: "past_and_new"}}
    if counts_positions(model):
        step["position_ids"], axes["position_ids"] = torch.full((ROWS, 1), PAST), {0: "batch"}
    axes |= {name: {0: "batch", 2: "past"} for name in past}
    yield Graph("decoder_with_past_model", DecoderAlone(model), {**step, **past}, axes, outputs)


def _encoder_graphs(model, reads_segments: bool) -> Iterator[Graph]:
    inputs = _source(model)
    if reads_segments:
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    axes = {name: {0: "batch", 1: "source"} for name in inputs}
    yield Graph("model", WholeModel(model), inputs, axes, ["logits"])


def _source(model) -> dict[str, torch.Tensor]:
    mask_BS = torch.ones(ROWS, SOURCE, dtype=torch.long)
    mask_BS[0, SOURCE - 2 :] = 0
    return {"input_ids": _tokens(model, SOURCE), "attention_mask": mask_BS}


def _tokens(model, length: int) -> torch.Tensor:
    """Any tokens, [ROWS, length]."""
    size = model.config.get_text_config().vocab_size
    return (torch.arange(ROWS * length).reshape(ROWS, length) * 7 + 3) % size


def _keys_and_values(cache) -> Iterator[torch.Tensor]:
    if not isinstance(cache, DynamicCache):
        raise ConfigError(f"ONNX: the model keeps its past in a {type(cache).__name__}, which has no tensors to name")
    return (tensor for layer in cache.layers for tensor in (layer.keys, layer.values))


PARTS, KINDS = ("decoder", "encoder"), ("key", "value")
GRAPHS = {
    "seq2seq": _seq2seq_graphs,
    "causal": _causal_graphs,
    "masked": _encoder_graphs,
    "classification": _encoder_graphs,
}
