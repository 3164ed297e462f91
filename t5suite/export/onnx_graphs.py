"""Models -> the graphs that ONNX files hold: what is traced, with which example inputs, and what may vary.

    >>> [graph.name for graph in GRAPHS["seq2seq"](model, reads_segments=False)]
    ['encoder_model', 'decoder_model', 'decoder_with_past_model']

A model that writes has one graph for the first step and one for a step with a cache. Batch sizes and lengths are free.
"""

import inspect
from collections.abc import Iterator
from typing import NamedTuple

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from t5suite.base.errors import ConfigError
from t5suite.models.caches import CACHE

# Rows, source, target and past tokens of the traced example: all different, none of them 0 or 1, which `torch.export`
# treats as constants. The step with a cache reads one token, as generation does.
ROWS, SOURCE, TARGET, PAST = 2, 7, 3, 5
PARTS = ("decoder", "encoder")
KINDS = ("key", "value")
NO_TRACE = "torch cannot trace it"
POSITIONS = "its positions would be constants"
# Types of models that get no graphs, and why.
NO_GRAPHS = {
    "switch_transformers": NO_TRACE, "t5gemma": NO_TRACE, "t5gemma2": NO_TRACE, "nllb-moe": NO_TRACE,
    "prophetnet": NO_TRACE, "led": NO_TRACE, "m2m_100": POSITIONS, "mixtral": NO_TRACE, "olmoe": NO_TRACE,
    "qwen3_moe": NO_TRACE, "deepseek_v3": NO_TRACE, "granitemoe": NO_TRACE,
}  # fmt: skip
# Of these, the types whose encoder by itself gets one.
ENCODERS_WITH_GRAPH = ("t5gemma",)
# How the dimensions that vary are called, by their place.
BATCH_AND_SOURCE = {0: "batch", 1: "source"}
BATCH_AND_TARGET = {0: "batch", 1: "target"}


class Traced(torch.nn.Module):
    """A model that computes `compute(model, inputs)`, its inputs by name."""

    def __init__(self, model, compute):
        super().__init__()
        self.model = model
        self.compute = compute

    def forward(self, inputs):
        """A tuple of tensors."""
        return self.compute(self.model, inputs)


class Graph(NamedTuple):
    """One file to write: example inputs, in order, and the names of each input's dimensions that vary."""

    name: str
    module: Traced
    inputs: dict[str, torch.Tensor]
    axes: dict[str, dict[int, str]]
    outputs: list[str]


def why_no_graphs(model_type: str, family: str) -> str | None:
    """Why a model of a type and of a family has no graphs; None if it has.

    >>> why_no_graphs("t5gemma", "seq2seq"), why_no_graphs("t5gemma", "encoder")
    ('torch cannot trace it', None)
    """
    if family != "seq2seq" and model_type in ENCODERS_WITH_GRAPH:
        return None
    return NO_GRAPHS.get(model_type)


def decoder_step(model, inputs):
    """The decoder of an encoder-decoder model -> logits, then keys and values layer by layer.

    Without a past it reads the first tokens and also returns the keys and values of the encoder's states. With a past
    it reads one more token and returns only the decoder's own.
    """
    past = [tensor for name, tensor in inputs.items() if name.startswith("past_key_values")]
    self_attention_cache = DynamicCache(list(zip(past[0::4], past[1::4], strict=True)) or None)
    cross_attention_cache = DynamicCache(list(zip(past[2::4], past[3::4], strict=True)) or None)
    mask_BS = inputs["encoder_attention_mask"]
    if past:  # the past has the keys and values of the encoder's states: only their shape is read
        width = getattr(model.config, "d_model", None) or model.config.hidden_size
        states_BSD = past[0].new_zeros((*mask_BS.shape, width))
    else:
        states_BSD = inputs["encoder_hidden_states"]
    outputs = model(
        encoder_outputs=BaseModelOutput(last_hidden_state=states_BSD),
        attention_mask=mask_BS,
        decoder_input_ids=inputs["input_ids"],
        use_cache=True,
        return_dict=True,
        **{CACHE: EncoderDecoderCache(self_attention_cache, cross_attention_cache)},
    )
    cache = getattr(outputs, CACHE)
    caches = [cache.self_attention_cache]
    if not past:
        caches.append(cache.cross_attention_cache)
    return outputs.logits, *_keys_and_values(*caches)


def causal_step(model, inputs):
    """A causal model, with or without a past -> logits, then keys and values layer by layer."""
    past = [tensor for name, tensor in inputs.items() if name.startswith("past_key_values")]
    plain = {name: tensor for name, tensor in inputs.items() if not name.startswith("past_key_values")}
    # A cache of plain layers instead of the model's own: a sliding-window cache keeps only the window, whose length
    # `torch.export` treats as a constant. The mask hides what is outside the window.
    cache = DynamicCache(list(zip(past[0::2], past[1::2], strict=True)) or None)
    outputs = model(**plain, use_cache=True, return_dict=True, **{CACHE: cache})
    return outputs.logits, *_keys_and_values(getattr(outputs, CACHE))


def _keys_and_values(*caches) -> list[torch.Tensor]:
    for cache in caches:
        if not isinstance(cache, DynamicCache):
            raise ConfigError(f"ONNX: the model keeps its past in a {type(cache).__name__}, without tensors by layer")
    tensors = []
    for layers_at_depth in zip(*(cache.layers for cache in caches), strict=True):
        for layer in layers_at_depth:
            tensors += [layer.keys, layer.values]
    return tensors


def seq2seq_graphs(model, reads_segments: bool) -> Iterator[Graph]:
    """The encoder, the decoder's first step, and its steps with a cache."""
    source = _source(model)
    encoder = Traced(model.get_encoder(), lambda part, inputs: (part(**inputs, return_dict=True).last_hidden_state,))
    decoder = Traced(model, decoder_step)
    yield Graph("encoder_model", encoder, source, _each(source, BATCH_AND_SOURCE), ["last_hidden_state"])
    first = {
        "input_ids": _tokens(model, TARGET),
        "encoder_attention_mask": source["attention_mask"],
        "encoder_hidden_states": encoder(source)[0],
    }
    _, *past_tensors = decoder({**first, "input_ids": _tokens(model, PAST)})
    num_layers = len(past_tensors) // 4
    names = [f"{i}.{part}.{kind}" for i in range(num_layers) for part in PARTS for kind in KINDS]
    outputs = ["logits", *(f"present.{name}" for name in names)]
    axes = _each(first, BATCH_AND_SOURCE) | _each(["input_ids"], BATCH_AND_TARGET)
    yield Graph("decoder_model", decoder, first, axes, outputs)
    past = {f"past_key_values.{name}": tensor for name, tensor in zip(names, past_tensors, strict=True)}
    step = {"input_ids": _tokens(model, 1), "encoder_attention_mask": source["attention_mask"], **past}
    axes = {"input_ids": {0: "batch"}, **_each(["encoder_attention_mask"], BATCH_AND_SOURCE)}
    axes |= {name: {0: "batch", 2: "source" if ".encoder." in name else "past"} for name in past}
    outputs = [name for name in outputs if ".encoder." not in name]
    yield Graph("decoder_with_past_model", decoder, step, axes, outputs)


def causal_graphs(model, reads_segments: bool) -> Iterator[Graph]:
    """The first step over a prompt, and the steps with a cache."""
    decoder = Traced(model, causal_step)
    first = {"input_ids": _tokens(model, PAST), "attention_mask": torch.ones(ROWS, PAST, dtype=torch.long)}
    step = {"input_ids": _tokens(model, 1), "attention_mask": torch.ones(ROWS, PAST + 1, dtype=torch.long)}
    axes = {"input_ids": {0: "batch"}, "attention_mask": {0: "batch", 1: "past_and_new"}}
    if "position_ids" in inspect.signature(model.forward).parameters:  # without them it counts the padding
        first["position_ids"] = torch.arange(PAST).repeat(ROWS, 1)
        step["position_ids"] = torch.full((ROWS, 1), PAST)
        axes["position_ids"] = {0: "batch"}
    _, *past_tensors = decoder(first)
    names = [f"{i}.{kind}" for i in range(len(past_tensors) // 2) for kind in KINDS]
    outputs = ["logits", *(f"present.{name}" for name in names)]
    yield Graph("decoder_model", decoder, first, _each(first, BATCH_AND_TARGET), outputs)
    past = {f"past_key_values.{name}": tensor for name, tensor in zip(names, past_tensors, strict=True)}
    axes |= {key: {0: "batch", 2: "past"} for key in past}
    yield Graph("decoder_with_past_model", decoder, {**step, **past}, axes, outputs)


def encoder_graphs(model, reads_segments: bool) -> Iterator[Graph]:
    """An encoder with a head: logits [B, S, V] of a masked model, [B, labels] of a classifier."""
    inputs = _source(model)
    if reads_segments:
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    encoder = Traced(model, lambda model, inputs: (model(**inputs, return_dict=True).logits,))
    yield Graph("model", encoder, inputs, _each(inputs, BATCH_AND_SOURCE), ["logits"])


def _each(names, dimensions: dict[int, str]) -> dict[str, dict[int, str]]:
    """The same dimensions that vary, for each of several inputs."""
    return {name: dict(dimensions) for name in names}


def _source(model) -> dict[str, torch.Tensor]:
    mask_BS = torch.ones(ROWS, SOURCE, dtype=torch.long)
    mask_BS[0, SOURCE - 2 :] = 0
    return {"input_ids": _tokens(model, SOURCE), "attention_mask": mask_BS}


def _tokens(model, length: int) -> torch.Tensor:
    return (torch.arange(ROWS * length).reshape(ROWS, length) * 7 + 3) % model.config.get_text_config().vocab_size


GRAPHS = {"seq2seq": seq2seq_graphs, "causal": causal_graphs}
GRAPHS |= dict.fromkeys(("masked", "encoder", "classification"), encoder_graphs)
