"""Graphs -> ONNX files, through `torch.onnx.export`; and a comparison of the files with the model.

    >>> write_graphs(source, "exported")
    ['encoder_model.onnx', 'decoder_model.onnx', 'decoder_with_past_model.onnx']
    >>> compare(source.model, OnnxModel("exported"))
    {'first_step_logits': 1.9e-06, 'cached_step_logits': 2.1e-06, 'answers_equal': 12, ...}

Attention is traced as `eager` computes it: plain products, sums and a softmax, which every runtime has, with the mask
and T5's position bias rebuilt from the lengths of each call. Batch sizes and lengths are free.
"""

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig
from transformers.modeling_outputs import BaseModelOutput

from t5suite.base.errors import CheckpointError, ConfigError
from t5suite.base.lookup import find
from t5suite.export.onnx_runtime import OnnxModel
from t5suite.models.caches import CACHE
from t5suite.models.load_errors import short_message

# Rows, source, target and past tokens of the traced example: all different, none of them 0 or 1, which `torch.export`
# treats as constants. The step with a cache reads one token, as generation does.
ROWS, SOURCE, TARGET, PAST = 2, 7, 3, 5
PARTS, KINDS = ("decoder", "encoder"), ("key", "value")
OPSET = 18  # the lowest that torch 2.13 writes without a conversion
# Protobuf ends at 2 GiB: above this size, weights go into a file next to the graph.
LARGEST_FILE = 3 << 29


class Traced(torch.nn.Module):
    """A model that computes `compute(model, inputs)`, its inputs by name."""

    def __init__(self, model, compute):
        super().__init__()
        self.model, self.compute = model, compute

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


def decoder_step(model, inputs):
    """The decoder of an encoder-decoder model -> logits, then keys and values layer by layer.

    Without a past it reads the first tokens and also returns the keys and values of the encoder's states. With a past
    it reads one more token and returns only the decoder's own.
    """
    past = [tensor for name, tensor in inputs.items() if name.startswith("past_key_values")]
    own, cross = (DynamicCache(list(zip(past[i::4], past[i + 1 :: 4], strict=True)) or None) for i in (0, 2))
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
        **{CACHE: EncoderDecoderCache(own, cross)},
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
    layers = zip(*(cache.layers for cache in caches), strict=True)
    return [tensor for of_caches in layers for layer in of_caches for tensor in (layer.keys, layer.values)]


def seq2seq_graphs(model, reads_segments: bool) -> Iterator[Graph]:
    """The encoder, the decoder's first step, and its steps with a cache."""
    both, source = {0: "batch", 1: "source"}, _source(model)
    encoder = Traced(model.get_encoder(), lambda part, inputs: (part(**inputs, return_dict=True).last_hidden_state,))
    decoder = Traced(model, decoder_step)
    yield Graph("encoder_model", encoder, source, dict.fromkeys(source, both), ["last_hidden_state"])
    first = {
        "input_ids": _tokens(model, TARGET),
        "encoder_attention_mask": source["attention_mask"],
        "encoder_hidden_states": encoder(source)[0],
    }
    _, *kept = decoder({**first, "input_ids": _tokens(model, PAST)})
    names = [f"{i}.{part}.{kind}" for i in range(len(kept) // 4) for part in PARTS for kind in KINDS]
    outputs = ["logits", *(f"present.{name}" for name in names)]
    axes = dict.fromkeys(first, both) | {"input_ids": {0: "batch", 1: "target"}}
    yield Graph("decoder_model", decoder, first, axes, outputs)
    past = {f"past_key_values.{name}": tensor for name, tensor in zip(names, kept, strict=True)}
    step = {"input_ids": _tokens(model, 1), "encoder_attention_mask": source["attention_mask"], **past}
    axes = {"input_ids": {0: "batch"}, "encoder_attention_mask": both}
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
        step["position_ids"], axes["position_ids"] = torch.full((ROWS, 1), PAST), {0: "batch"}
    _, *kept = decoder(first)
    names = [f"{i}.{kind}" for i in range(len(kept) // 2) for kind in KINDS]
    outputs = ["logits", *(f"present.{name}" for name in names)]
    yield Graph("decoder_model", decoder, first, {key: {0: "batch", 1: "target"} for key in first}, outputs)
    past = {f"past_key_values.{name}": tensor for name, tensor in zip(names, kept, strict=True)}
    axes |= {key: {0: "batch", 2: "past"} for key in past}
    yield Graph("decoder_with_past_model", decoder, {**step, **past}, axes, outputs)


def encoder_graphs(model, reads_segments: bool) -> Iterator[Graph]:
    """An encoder with a head: logits [B, S, V] of a masked model, [B, labels] of a classifier."""
    inputs = _source(model)
    if reads_segments:
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    whole = Traced(model, lambda model, inputs: (model(**inputs, return_dict=True).logits,))
    yield Graph("model", whole, inputs, {key: {0: "batch", 1: "source"} for key in inputs}, ["logits"])


def _source(model) -> dict[str, torch.Tensor]:
    mask_BS = torch.ones(ROWS, SOURCE, dtype=torch.long)
    mask_BS[0, SOURCE - 2 :] = 0
    return {"input_ids": _tokens(model, SOURCE), "attention_mask": mask_BS}


def _tokens(model, length: int) -> torch.Tensor:
    return (torch.arange(ROWS * length).reshape(ROWS, length) * 7 + 3) % model.config.get_text_config().vocab_size


GRAPHS = {"seq2seq": seq2seq_graphs, "causal": causal_graphs}
GRAPHS |= dict.fromkeys(("masked", "encoder", "classification"), encoder_graphs)


def write_graphs(source, folder) -> list[str]:
    """Writes every graph of the source's float32 model, and its configuration; returns the files of the graphs.

    Raises:
      ConfigError: the family has no graphs, or torch cannot trace the model.
    """
    folder, model, files = Path(folder), source.model, []
    make = find(source.family, GRAPHS, "family that can be exported to ONNX", where="--model_family")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for graph in make(model, "token_type_ids" in source.tokenizer.model_input_names):
            files.append(f"{graph.name}.onnx")
            _write(graph, folder / files[-1])
    model.config.save_pretrained(folder)
    if model.can_generate():
        model.generation_config.save_pretrained(folder)
    return files


def _write(graph: Graph, file: Path) -> None:
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
            # Stack traces are half of a small file, and contain paths of this machine.
            for part in (program.model.graph, *(function.graph for function in program.model.functions.values())):
                part.metadata_props.clear()
                for node in part.all_nodes():
                    for holder in (node, *node.outputs):
                        holder.metadata_props.clear()
            program.save(str(file), external_data=size > LARGEST_FILE)
    except (torch.onnx.errors.OnnxExporterError, RuntimeError, ValueError) as error:
        while error.__cause__ is not None:  # torch's outer error says only that it failed
            error = error.__cause__
        name = type(graph.module.model).__name__
        raise ConfigError(
            f"--format onnx: torch cannot trace {graph.name} of {name} ({short_message(error)})"
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses the warnings and prints of the exporter and of ONNX Runtime's quantization; none needs action."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def quantize(folder, files: list[str]) -> dict[str, int]:
    """Replaces exported files by int8 ones; returns the bytes of all of them before and after."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    folder, new = Path(folder), Path(folder) / ".quantized"
    before = {name: _bytes_of(folder, name) for name in files}
    how = {"weight_type": QuantType.QInt8, "per_channel": True}
    new.mkdir()
    for name, size in before.items():
        # ONNX Runtime 1.31 transposes a classifier's weight and then fails on the shape recorded for it.
        model = onnx.load(folder / name, load_external_data=False)
        del model.graph.value_info[:]
        onnx.save(model, folder / name)
        with quiet():
            quantize_dynamic(folder / name, new / name, use_external_data_format=size > LARGEST_FILE, **how)
        (folder / f"{name}.data").unlink(missing_ok=True)
        for file in new.iterdir():
            file.replace(folder / file.name)
    new.rmdir()
    return {"bytes_before": sum(before.values()), "bytes_after": sum(_bytes_of(folder, name) for name in files)}


def _bytes_of(folder: Path, name: str) -> int:
    """The bytes of a file and of the weights file next to it."""
    return sum(part.stat().st_size for part in (folder / name, folder / f"{name}.data") if part.is_file())


# The comparison of the files with the model.
# None of these is the traced length; beyond 128 tokens T5's distances share their last bucket.
LENGTHS = (1, 2, 9, 31, 64, 150)
NEW_TOKENS = 24
# Of the largest value compared. Float32 sums in another order differ by about 1e-6 of it.
TOLERANCE = 1e-4


def check(model, exported: OnnxModel) -> dict:
    """The result of `compare`.

    Raises:
      CheckpointError: the differences exceed rounding.
    """
    found = compare(model, exported)
    wrong = [name for name, value in found.items() if name.endswith("_relative") and not value <= TOLERANCE]
    if wrong:
        raise CheckpointError(f"ONNX files differ from the model: {', '.join(f'{n} {found[n]:.2g}' for n in wrong)}")
    return found


@torch.no_grad()
def compare(model, exported: OnnxModel, lengths=LENGTHS) -> dict:
    """The largest differences between a model, on one prompt at a time, and its files, on all prompts padded.

    Differences are absolute, and relative to the largest value. For models that write: the logits of given answers (the
    first token's, and those made with a cache), and how many greedy answers are equal token by token, in one batch and
    one by one; end-of-sequence does not end them, so that each has `NEW_TOKENS`.
    """
    config, draw = model.config.get_text_config(), np.random.default_rng(0)
    room = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None) or max(lengths) * 9
    lengths = [length for length in lengths if length + NEW_TOKENS <= room] or [max(1, room - NEW_TOKENS)]
    special = {getattr(model.config, f"{name}_token_id", None) for name in ("pad", "eos", "bos", "decoder_start")}
    tokens = [token for token in range(config.vocab_size) if token not in special]
    prompts = [draw.choice(tokens, length).tolist() for length in lengths]
    if exported.family == "encoder":
        found = exported.logits(prompts)
        own = [model(input_ids=torch.tensor([prompt])).logits[0].numpy() for prompt in prompts]
        if found.ndim == 3:
            found = [logits[: len(prompt)] for logits, prompt in zip(found, prompts, strict=True)]
        return {**_difference("logits", np.concatenate(found), np.concatenate(own)), "rows": len(prompts)}
    # Random tokens: a model with random weights would repeat one token.
    answers_BT = draw.choice(tokens, (len(prompts), NEW_TOKENS))
    start = model.config.decoder_start_token_id if exported.family == "seq2seq" else None
    settings = GenerationConfig(
        max_new_tokens=NEW_TOKENS, do_sample=False, num_beams=1, pad_token_id=exported.pad, decoder_start_token_id=start
    )
    own, own_answers, before = [], [], model.generation_config
    model.generation_config = settings  # `generate` reads settings that are not given from here
    try:
        for prompt, answer in zip(prompts, answers_BT.tolist(), strict=True):
            if exported.family == "seq2seq":
                batch, skipped = {"input_ids": [prompt], "decoder_input_ids": [[start, *answer[:-1]]]}, 0
            else:
                batch, skipped = {"input_ids": [[*prompt, *answer[:-1]]]}, len(prompt) - 1
            logits = model(**{name: torch.tensor(rows) for name, rows in batch.items()}).logits
            own.append(logits[0, skipped:].numpy())
            written = model.generate(input_ids=torch.tensor([prompt]), generation_config=settings)[0].tolist()
            own_answers.append(written[-NEW_TOKENS:])
    finally:
        model.generation_config = before
    found_BTV, own_BTV = exported.step_logits(prompts, answers_BT), np.stack(own)
    together = exported.generate(prompts, NEW_TOKENS, ends=frozenset())
    alone = [exported.generate([prompt], NEW_TOKENS, ends=frozenset())[0] for prompt in prompts]
    return {
        **_difference("first_step_logits", found_BTV[:, 0], own_BTV[:, 0]),
        **_difference("cached_step_logits", found_BTV[:, 1:], own_BTV[:, 1:]),
        "answers_equal": sum(a == b for a, b in zip([*together, *alone], own_answers * 2, strict=True)),
        "answers": 2 * len(prompts),
        "tokens": sum(map(len, own_answers)),
    }


def _difference(name: str, found: np.ndarray, own: np.ndarray) -> dict:
    largest = float(np.abs(found - own).max())
    return {name: largest, f"{name}_relative": largest / max(float(np.abs(own).max()), 1e-30)}
