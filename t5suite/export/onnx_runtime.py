"""Answers from exported ONNX files with NumPy and ONNX Runtime alone: no torch, no transformers.

    >>> model = OnnxModel("exported")
    >>> model.generate([[304, 501, 1], [21, 1]], max_new_tokens=8)     # greedy; ends with end-of-sequence
    [[465, 1], [841, 1]]
    >>> OnnxModel("exported-bert").logits([[101, 2023, 102]]).shape
    (1, 2)

`generate` takes the likeliest token at each step, as transformers does without beams and sampling; it knows nothing of
the other settings of a generation configuration (repetition penalties, forced tokens). Prompts of decoders alone are
padded on the left. Shapes: B rows, S source tokens, T target tokens, P past tokens, V vocabulary.
"""

import importlib
import json
from functools import cached_property
from pathlib import Path

import numpy as np

from t5suite.base.errors import ConfigError, DataError

INSTALL = "pip install 't5suite[onnx]'"
ENCODER, FIRST, NEXT, WHOLE = "encoder_model", "decoder_model", "decoder_with_past_model", "model"


class OnnxModel:
    """A folder of ONNX files.

    Args:
      num_threads: ONNX Runtime's threads within an operation; its own choice without it.
      providers: what computes, the first that is there.

    Raises:
      ConfigError: the folder holds no such files, or ONNX Runtime is not installed.
    """

    def __init__(self, folder, num_threads: int | None = None, providers=("CPUExecutionProvider",)):
        self.folder = Path(folder)
        self.num_threads, self.providers = num_threads, list(providers)
        self.sessions = {}
        if not (self._has(WHOLE) or (self._has(FIRST) and self._has(NEXT))):
            raise ConfigError(
                f"{folder} holds no exported model: neither {WHOLE}.onnx nor {FIRST}.onnx and {NEXT}.onnx"
            )
        self.config = self._json("config.json")

    @property
    def family(self) -> str:
        """'seq2seq', 'causal' or 'encoder'."""
        if self._has(WHOLE):
            return "encoder"
        return "seq2seq" if self._has(ENCODER) else "causal"

    def generate(self, prompts, max_new_tokens: int = 64, ends: frozenset[int] | None = None) -> list[list[int]]:
        """Per prompt (token ids), the likeliest next token again and again, until end-of-sequence, which stays.

        Args:
          ends: the tokens that end an answer, if not the model's own.

        Raises:
          ConfigError: the model writes nothing.
          DataError: an empty prompt.
        """
        if self.family == "encoder":
            raise ConfigError(f"{self.folder}: an encoder alone writes nothing; it has `logits`")
        ends = self.eos if ends is None else ends
        logits_BV, step = self._start_seq2seq(prompts) if self.family == "seq2seq" else self._start_causal(prompts)
        answers, open_rows = [[] for _ in prompts], set(range(len(prompts)))
        for number in range(max_new_tokens):
            tokens_B = logits_BV.argmax(axis=-1)
            for row in sorted(open_rows):
                answers[row].append(int(tokens_B[row]))
                if answers[row][-1] in ends:
                    open_rows.remove(row)
            if not open_rows or number == max_new_tokens - 1:
                break
            tokens_B = np.array([t if row in open_rows else self.pad for row, t in enumerate(tokens_B)])
            logits_BV = step(tokens_B[:, None].astype(np.int64))
        return answers

    def step_logits(self, prompts, answers) -> np.ndarray:
        """The scores that each token of given answers (of one length) would be chosen by, [B, T, V].

        Made step by step, as `generate` makes them: log-probabilities of candidates are sums over their log-softmax.
        """
        logits_BV, step = self._start_seq2seq(prompts) if self.family == "seq2seq" else self._start_causal(prompts)
        answers_BT, steps = np.asarray(answers, np.int64), [logits_BV]
        for place in range(answers_BT.shape[1] - 1):
            steps.append(step(answers_BT[:, place : place + 1]))
        return np.stack(steps, axis=1)

    def encode(self, prompts) -> tuple[np.ndarray, np.ndarray]:
        """`(states [B, S, D], mask [B, S])` of an encoder-decoder's encoder."""
        ids_BS, mask_BS = self.padded(prompts)
        return self._run(ENCODER, {"input_ids": ids_BS, "attention_mask": mask_BS})["last_hidden_state"], mask_BS

    def logits(self, rows, segments=None) -> np.ndarray:
        """What an encoder with a head says of rows of tokens: [B, labels], or [B, S, V] of a masked model.

        Args:
          segments: per row, the number of each token's sentence (token_type_ids), for models that read it.
        """
        ids_BS, mask_BS = self.padded(rows)
        segments_BS = np.zeros_like(ids_BS)
        for row, numbers in enumerate(segments or []):
            segments_BS[row, : len(numbers)] = numbers
        given = {"input_ids": ids_BS, "attention_mask": mask_BS, "token_type_ids": segments_BS}
        return self._run(WHOLE, given)["logits"]

    def padded(self, rows, left: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """`(ids, mask)`, [B, S] both.

        >>> model.padded([[5, 1], [7]])
        (array([[5, 1], [7, 0]]), array([[1, 1], [1, 0]]))
        """
        if not rows or not all(len(row) for row in rows):
            raise DataError("a row without a token: every prompt needs at least one")
        width = max(map(len, rows))
        ids_BS, mask_BS = np.full((len(rows), width), self.pad), np.zeros((len(rows), width), np.int64)
        for number, row in enumerate(rows):
            place = slice(width - len(row), width) if left else slice(0, len(row))
            ids_BS[number, place], mask_BS[number, place] = row, 1
        return ids_BS.astype(np.int64), mask_BS

    @cached_property
    def eos(self) -> frozenset[int]:
        """The tokens that end an answer."""
        eos = self._generation("eos_token_id")
        return frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos])

    @cached_property
    def pad(self) -> int:
        """The token that fills rows up; nothing attends to it."""
        pad = self._generation("pad_token_id")
        return min(self.eos, default=0) if pad is None else pad

    def _start_seq2seq(self, prompts):
        hidden_BSD, mask_BS = self.encode(prompts)
        start = self._generation("decoder_start_token_id")
        ids_BT = np.full((len(prompts), 1), self.pad if start is None else start, np.int64)
        given = {"input_ids": ids_BT, "encoder_attention_mask": mask_BS, "encoder_hidden_states": hidden_BSD}
        first = self._run(FIRST, given)
        past = _past(first)

        def step(ids_B1):
            outputs = self._run(NEXT, {"input_ids": ids_B1, "encoder_attention_mask": mask_BS, **past})
            past.update(_past(outputs))
            return outputs["logits"][:, -1]

        return first["logits"][:, -1], step

    def _start_causal(self, prompts):
        ids_BT, mask_BT = self.padded(prompts, left=True)
        positions_BT = np.maximum(mask_BT.cumsum(axis=1) - 1, 0)
        first = self._run(FIRST, {"input_ids": ids_BT, "attention_mask": mask_BT, "position_ids": positions_BT})
        state = {"mask": mask_BT, "past": _past(first)}

        def step(ids_B1):
            state["mask"] = np.pad(state["mask"], ((0, 0), (0, 1)), constant_values=1)
            positions_B1 = state["mask"].sum(axis=1, keepdims=True) - 1
            given = {"input_ids": ids_B1, "attention_mask": state["mask"], "position_ids": positions_B1}
            outputs = self._run(NEXT, {**given, **state["past"]})
            state["past"] = _past(outputs)
            return outputs["logits"][:, -1]

        return first["logits"][:, -1], step

    def _run(self, name: str, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A graph's outputs by name; of `given` it gets what it reads."""
        session = self._session(name)
        fed = {node.name: given[node.name] for node in session.get_inputs()}
        names = [node.name for node in session.get_outputs()]
        return dict(zip(names, session.run(None, fed), strict=True))

    def _session(self, name: str):
        if name not in self.sessions:
            try:
                import onnxruntime
            except ImportError as error:
                raise ConfigError(f"ONNX files need ONNX Runtime ({error}); {INSTALL}") from None
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            if self.num_threads is not None:
                options.intra_op_num_threads = self.num_threads
            self.sessions[name] = onnxruntime.InferenceSession(
                str(self.folder / f"{name}.onnx"), options, providers=self.providers
            )
        return self.sessions[name]

    def _generation(self, key: str):
        value = self._json("generation_config.json").get(key)
        return self.config.get(key) if value is None else value

    def _json(self, name: str) -> dict:
        file = self.folder / name
        return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}

    def _has(self, name: str) -> bool:
        return (self.folder / f"{name}.onnx").is_file()


def _past(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What a step keeps -> what the next one reads."""
    return {
        name.replace("present.", "past_key_values.", 1): tensor
        for name, tensor in outputs.items()
        if name.startswith("present.")
    }


PACKAGES = ("onnx", "onnxscript", "onnxruntime")


def require_onnx() -> None:
    """Tells at once which packages are missing.

    Raises:
      ConfigError: with the line that installs them.
    """
    for package in PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(f"--format onnx: {error}; {INSTALL}") from None
