"""Graphs -> ONNX files, through `torch.onnx.export`; float32, or quantized to int8.

    >>> write_graphs(source, "exported")
    ['encoder_model.onnx', 'decoder_model.onnx', 'decoder_with_past_model.onnx']

Attention is traced as `eager` computes it: plain products, sums and a softmax, which every runtime has, with the mask
and T5's position bias rebuilt from the lengths of each call.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.export.onnx_graphs import GRAPHS, Graph
from t5suite.models.generation_settings import save_generation_settings
from t5suite.models.load_errors import short_message

OPSET = 18  # the lowest that torch 2.13 writes without a conversion
# Protobuf ends at 2 GiB: above this size, weights go into a file next to the graph.
LARGEST_FILE = 3 << 29


def write_graphs(source, folder) -> list[str]:
    """Writes every graph of the source's float32 model, and its configuration; returns the files of the graphs.

    Raises:
      ConfigError: the family has no graphs, or torch cannot trace the model.
    """
    folder = Path(folder)
    model = source.model
    make_graphs = find(source.family, GRAPHS, "family that can be exported to ONNX", where="--model_family")
    model.set_attn_implementation("eager")
    names = []
    with torch.no_grad():
        for graph in make_graphs(model, "token_type_ids" in source.tokenizer.model_input_names):
            name = f"{graph.name}.onnx"
            _write_graph(graph, folder / name)
            names.append(name)
    # As `PreTrainedModel.save_pretrained` writes it: an adapter's merged model has its base's configuration.
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    if model.can_generate():
        save_generation_settings(model.generation_config, folder)
    return names


def _write_graph(graph: Graph, file: Path) -> None:
    """Traces a graph and writes it.

    Raises:
      ConfigError: torch cannot trace it.
    """
    size = sum(tensor.numel() * tensor.element_size() for tensor in graph.module.state_dict().values())
    try:
        with quiet():
            program = torch.onnx.export(
                graph.module.eval(),
                kwargs={"inputs": graph.inputs},  # a dict at the end of `args` is taken for keyword arguments
                input_names=list(graph.inputs),
                output_names=graph.outputs,
                dynamic_shapes={"inputs": {name: dict(graph.axes[name]) for name in graph.inputs}},
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
            _drop_stack_traces(program.model)
            program.save(str(file), external_data=size > LARGEST_FILE)
    except (torch.onnx.errors.OnnxExporterError, RuntimeError, ValueError) as error:
        while error.__cause__ is not None:  # torch's outer error says only that it failed
            error = error.__cause__
        name = type(graph.module.model).__name__
        raise ConfigError(
            f"--format onnx: torch cannot trace {graph.name} of {name} ({short_message(error)})"
        ) from error


def _drop_stack_traces(model) -> None:
    """Drops the traces of what was traced: half of a small file, with paths of this machine."""
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    for graph in graphs:
        graph.metadata_props.clear()
        for node in graph.all_nodes():
            node.metadata_props.clear()
            for output in node.outputs:
                output.metadata_props.clear()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses the warnings and prints of the exporter and of ONNX Runtime's quantization; none needs action."""
    disabled_level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled_level)


def quantize(folder, files: list[str]) -> dict[str, int]:
    """Replaces exported files by int8 ones; returns the bytes of all of them before and after."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder = Path(folder)
    new_folder = folder / ".quantized"
    bytes_before = {name: _bytes_of(folder, name) for name in files}
    new_folder.mkdir()
    for name, size in bytes_before.items():
        # ONNX Runtime 1.31 transposes a classifier's weight and then fails on the shape recorded for it.
        model = onnx.load(folder / name, load_external_data=False)
        del model.graph.value_info[:]
        onnx.save(model, folder / name)
        with quiet():
            quantize_dynamic(
                folder / name,
                new_folder / name,
                weight_type=QuantType.QInt8,
                per_channel=True,
                use_external_data_format=size > LARGEST_FILE,
            )
        (folder / f"{name}.data").unlink(missing_ok=True)
        for file in new_folder.iterdir():
            file.replace(folder / file.name)
    new_folder.rmdir()
    bytes_after = sum(_bytes_of(folder, name) for name in files)
    return {"bytes_before": sum(bytes_before.values()), "bytes_after": bytes_after}


def _bytes_of(folder: Path, name: str) -> int:
    """The bytes of a file and of the weights file next to it."""
    paths = (folder / name, folder / f"{name}.data")
    return sum(path.stat().st_size for path in paths if path.is_file())
