"""Graphs -> ONNX files, through `torch.onnx.export` (its dynamo exporter, torch 2.6 and later).

    >>> write_graphs(source, "exported")
    ['encoder_model.onnx', 'decoder_model.onnx', 'decoder_with_past_model.onnx']

Attention is traced as `eager` computes it: plain products, sums and a softmax, which every runtime has, with the mask
and T5's position bias made anew from the lengths of each call. Rows and lengths may be any.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from t5suite.base.errors import ConfigError
from t5suite.export.graphs import Graph, graphs_of
from t5suite.export.plain import cast, save_beside
from t5suite.models.configs import first_line

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
