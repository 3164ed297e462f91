"""ONNX files made by hand in milliseconds: graphs whose answers a few lines of NumPy give, too.

The next token's logits are a row of one table, for the last token, and the sum of rows of another, for all tokens that
the model may see: those of the source and of the answer so far. So an answer is right only if the padding is masked,
the past is handed on, and the last place is read.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET, IR_VERSION = 17, 8


class Tables:
    """The two tables, [V, V] both, and what follows from them.

    Attributes:
      last_VV: the logits that the last token gives. seen_VV: those that each token that is seen adds.
    """

    def __init__(self, vocabulary_size: int, seed: int = 0):
        rng = np.random.default_rng(seed)
        shape = (vocabulary_size, vocabulary_size)
        self.last_VV = rng.normal(0, 2.0, shape).astype(np.float32)
        self.seen_VV = rng.normal(0, 1.0, shape).astype(np.float32)

    def logits(self, source: list[int], answer: list[int]) -> np.ndarray:
        """Those of the token after the answer's last one, [V]; a decoder alone has no answer at its start."""
        tokens = [*source, *answer]
        return self.last_VV[tokens[-1]] + self.seen_VV[tokens].sum(axis=0)

    def written(self, source: list[int], start: list[int], most: int, eos: int) -> list[int]:
        """The likeliest token, repeatedly."""
        answer: list[int] = []
        while len(answer) < most and eos not in answer:
            answer.append(int(self.logits(source, [*start, *answer]).argmax()))
        return answer

    def log_probability(self, source: list[int], start: list[int], answer: list[int]) -> float:
        """The sum over an answer's tokens."""
        total = 0.0
        for place, token in enumerate(answer):
            logits = self.logits(source, [*start, *answer[:place]]).astype(np.float64)
            total += logits[token] - np.log(np.exp(logits).sum())
        return total


def write_causal(folder: Path, tables: Tables) -> None:
    """A decoder alone: its prompt's first step, and steps with a past."""
    seen = [("Gather", ["seen", "input_ids"], "new"), ("Unsqueeze", ["new", "one"], "new_heads")]
    _write(
        folder / "decoder_model.onnx",
        [*seen, ("Identity", ["new_heads"], "present.0.key"), *_logits("present.0.key", "attention_mask")],
        {"input_ids": ("batch", "target"), "attention_mask": ("batch", "target")},
        tables,
        {"logits": 3, "present.0.key": 4},
    )
    _write(
        folder / "decoder_with_past_model.onnx",
        [*seen, _joined_to_past("past_key_values.0.key", "present.0.key"), *_logits("present.0.key", "attention_mask")],
        {
            "input_ids": ("batch", "target"),
            "attention_mask": ("batch", "past_and_new"),
            "past_key_values.0.key": ("batch", 1, "past", len(tables.last_VV)),
        },
        tables,
        {"logits": 3, "present.0.key": 4},
    )


def write_seq2seq(folder: Path, tables: Tables) -> None:
    """An encoder, whose states are what its tokens add; the decoder's first step, and steps with a past."""
    size = len(tables.last_VV)
    source = {"encoder_attention_mask": ("batch", "source")}
    _write(
        folder / "encoder_model.onnx",
        [("Gather", ["seen", "input_ids"], "last_hidden_state")],
        {"input_ids": ("batch", "source"), "attention_mask": ("batch", "source")},
        tables,
        {"last_hidden_state": 3},
    )
    seen = [("Gather", ["seen", "input_ids"], "new"), ("Unsqueeze", ["new", "one"], "new_heads")]
    logits = [
        *_masked_sum("present.0.encoder.key", "encoder_attention_mask", "of_source"),
        ("ReduceSum", ["present.0.decoder.key", "two"], "of_answer"),
        ("Add", ["of_source", "of_answer"], "total_heads"),
        *_logits_of("total_heads"),
    ]
    _write(
        folder / "decoder_model.onnx",
        [
            *seen,
            ("Identity", ["new_heads"], "present.0.decoder.key"),
            ("Unsqueeze", ["encoder_hidden_states", "one"], "present.0.encoder.key"),
            *logits,
        ],
        {"input_ids": ("batch", "target"), **source, "encoder_hidden_states": ("batch", "source", size)},
        tables,
        {"logits": 3, "present.0.decoder.key": 4, "present.0.encoder.key": 4},
    )
    pasts = ("past_key_values.0.decoder.key", "past_key_values.0.encoder.key")
    _write(
        folder / "decoder_with_past_model.onnx",
        [
            *seen,
            _joined_to_past(pasts[0], "present.0.decoder.key"),
            ("Identity", [pasts[1]], "present.0.encoder.key"),
            *logits,
        ],
        {
            "input_ids": ("batch", "target"),
            **source,
            pasts[0]: ("batch", 1, "past", size),
            pasts[1]: ("batch", 1, "source", size),
        },
        tables,
        {"logits": 3, "present.0.decoder.key": 4},
    )


def write_classifier(folder: Path, tables: Tables, num_labels: int) -> None:
    """An encoder with a head: the first labels' columns of what its tokens add."""
    _write(
        folder / "model.onnx",
        [
            ("Gather", ["seen", "input_ids"], "states"),
            ("Unsqueeze", ["states", "one"], "heads"),
            *_masked_sum("heads", "attention_mask", "sum_heads"),
            ("Squeeze", ["sum_heads", "one_and_two"], "sums"),
            ("Slice", ["sums", "zero", "labels", "one"], "logits"),
        ],
        {"input_ids": ("batch", "source"), "attention_mask": ("batch", "source")},
        tables,
        {"logits": 2},
        labels=np.array([num_labels]),
    )


def _joined_to_past(past: str, present: str):
    return "Concat", [past, "new_heads"], present, {"axis": 2}


def _masked_sum(states: str, mask: str, output: str) -> list[tuple]:
    """The sum over places [B, 1, 1, V] of the states [B, 1, P, V] that the mask [B, P] shows."""
    return [
        ("Cast", [mask], f"{output}.mask", {"to": TensorProto.FLOAT}),
        ("Unsqueeze", [f"{output}.mask", "one_and_three"], f"{output}.mask_heads"),
        ("Mul", [states, f"{output}.mask_heads"], f"{output}.shown"),
        ("ReduceSum", [f"{output}.shown", "two"], output),
    ]


def _logits(states: str, mask: str) -> list[tuple]:
    return [*_masked_sum(states, mask, "total_heads"), *_logits_of("total_heads")]


def _logits_of(total: str) -> list[tuple]:
    return [
        ("Squeeze", [total, "one"], "total"),
        ("Gather", ["last", "input_ids"], "of_last"),
        ("Add", ["of_last", "total"], "logits"),
    ]


def _write(
    file: Path, operations: list[tuple], inputs: dict, tables: Tables, outputs: dict[str, int], **constants
) -> None:
    """Writes a graph of `(operation, inputs, output[, attributes])`, which may read the tables and some axes.

    Args:
      inputs: the shapes by name. outputs: the numbers of dimensions by name.
    """
    axes = {"zero": [0], "one": [1], "two": [2], "one_and_two": [1, 2], "one_and_three": [1, 3]}
    values = {"last": tables.last_VV, "seen": tables.seen_VV}
    values |= {name: np.array(value, np.int64) for name, value in (axes | constants).items()}
    nodes = []
    for operation, names, output, *attributes in operations:
        nodes.append(helper.make_node(operation, names, [output], **dict(*attributes)))
    read_names = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        file.stem,
        [helper.make_tensor_value_info(name, _type_of(name), shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank) for name, rank in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in values.items() if name in read_names],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    onnx.save(model, str(file))


def _type_of(name: str) -> int:
    return TensorProto.INT64 if name.endswith(("input_ids", "mask")) else TensorProto.FLOAT
