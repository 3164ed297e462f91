"""Graphs -> ONNX files, through `torch.onnx.export` (its dynamo exporter, torch 2.6 and later).

    >>> write_graphs(source, "exported")
    ['encoder_model.onnx', 'decoder_model.onnx', 'decoder_with_past_model.onnx']

Attention is traced as `eager` computes it: plain products, sums and a softmax, which every runtime has, with the mask
and T5's position bias made anew from the lengths of each call. Rows and lengths may be any.
"""

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.export.exporting import cast, save_beside
from t5suite.export.onnx_runtime import INSTALL
from t5suite.models.configs import first_line

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


OPSET = 18  # the lowest that torch 2.13 writes without a conversion
# Protobuf ends at 2 GiB: above this, weights go into a file beside the graph.
LARGEST_FILE = 3 << 29


def write_graphs(source, folder) -> list[str]:
    """Writes every graph of the source's model, its configuration and tokenizer; returns the files of the graphs.

    Raises:
      ConfigError: the family has no graphs, or torch cannot trace the model.
    """
    folder, model = Path(folder), source.model
    cast(model, torch.float32)
    model.set_attn_implementation("eager")
    reads_segments = "token_type_ids" in source.tokenizer.model_input_names
    files = []
    for graph in graphs_of(model, source.family, reads_segments):
        file = folder / f"{graph.name}.onnx"
        _write(graph, file, type(model).__name__)
        files.append(file.name)
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    save_beside(source, folder)
    return files


def _write(graph: Graph, file: Path, model_name: str) -> None:
    size = sum(tensor.numel() * tensor.element_size() for tensor in graph.module.state_dict().values())
    shapes = {name: dict(graph.axes[name]) for name in graph.inputs}
    try:
        with quiet():
            program = torch.onnx.export(
                graph.module.eval(),
                kwargs={"inputs": graph.inputs},  # a table at the end of `args` would be taken for keywords
                input_names=list(graph.inputs),
                output_names=graph.outputs,
                dynamic_shapes={"inputs": shapes},
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
            without_traces(program.model)
            program.save(str(file), external_data=size > LARGEST_FILE)
    except (torch.onnx.errors.OnnxExporterError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"--format onnx: torch cannot trace {graph.name} of {model_name} ({first_line(root_of(error))})"
        ) from error


def without_traces(model) -> None:
    """Takes the stack traces off every node: half of a small file, and the paths of this machine."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()


def root_of(error: BaseException) -> BaseException:
    """The error that an error came of: torch's own says no more than that there was one."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """torch 2.13's exporter warns of packages that it does not need, and prints its steps on standard output."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def quantize(folder, files: list[str]) -> dict[str, int]:
    """Replaces exported files by quantized ones; returns the bytes of all of them before and after.

    Raises:
      ConfigError: ONNX Runtime is not installed.
    """
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
    except ImportError as error:
        raise ConfigError(f"--quantize int8: {error}; {INSTALL}") from None
    folder, new = Path(folder), Path(folder) / ".quantized"
    before = _bytes_of(folder, files)
    new.mkdir()
    for name in files:
        with without_advice():
            quantize_dynamic(
                folder / name,
                new / name,
                weight_type=QuantType.QInt8,
                per_channel=True,
                use_external_data_format=_bytes_of(folder, [name]) > LARGEST_FILE,
            )
        (folder / f"{name}.data").unlink(missing_ok=True)
        for file in new.iterdir():
            file.replace(folder / file.name)
    new.rmdir()
    return {"bytes_before": before, "bytes_after": _bytes_of(folder, files)}


def _bytes_of(folder: Path, files: list[str]) -> int:
    """The bytes of files, with those of the weights that lie beside them."""
    parts = [folder / part for name in files for part in (name, f"{name}.data")]
    return sum(part.stat().st_size for part in parts if part.is_file())


@contextlib.contextmanager
def without_advice() -> Iterator[None]:
    """ONNX Runtime advises, on the root logger, to prepare graphs in ways that these do not need."""
    root = logging.getLogger()
    root.addFilter(_is_no_advice)
    try:
        yield
    finally:
        root.removeFilter(_is_no_advice)


def _is_no_advice(record: logging.LogRecord) -> bool:
    return "quant_pre_process" not in record.getMessage() and "pre-processing" not in record.getMessage()
