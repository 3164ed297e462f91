"""Answers from exported ONNX files with only NumPy and ONNX Runtime: no torch, no transformers.

    >>> model = OnnxModel("exported")
    >>> model.generate([[304, 501, 1], [21, 1]], max_new_tokens=8)     # greedy; ends with end-of-sequence
    [[465, 1], [841, 1]]
    >>> OnnxModel("exported-bert").logits([[101, 2023, 102]]).shape
    (1, 2)

`generate` takes the likeliest token at each step, as transformers does without beams and sampling; it ignores the
other settings of a generation configuration (repetition penalties, forced tokens). Prompts of decoder-only models are
padded on the left. Shapes: B rows, S source tokens, T target tokens, P past tokens, V vocabulary.
"""

import importlib
import json
from functools import cached_property
from pathlib import Path

import numpy as np

from t5suite.base.errors import CheckpointError, ConfigError, DataError, first_line

# The names of the graphs, without `.onnx`.
ENCODER = "encoder_model"
FIRST_STEP = "decoder_model"
NEXT_STEP = "decoder_with_past_model"
ENCODER_WITH_HEAD = "model"
PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class OnnxModel:
    """A folder of ONNX files.

    Args:
      num_threads: ONNX Runtime's threads within an operation; default: its own choice.
      providers: ONNX Runtime's execution providers, by priority.

    Attributes:
      family: seq2seq, causal or encoder.
      eos: the tokens that end an answer. pad: the padding token.

    Raises:
      ConfigError: the folder holds no such files, or ONNX Runtime is not installed.
    """

    def __init__(self, folder, num_threads: int | None = None, providers=("CPUExecutionProvider",)):
        self.folder = Path(folder)
        self.num_threads = num_threads
        self.providers = list(providers)
        self.sessions = {}
        self.family = self._family_of_files()

    def _family_of_files(self) -> str:
        """The family whose graphs are in the folder."""
        if self._has_graph(ENCODER_WITH_HEAD):
            return "encoder"
        if not (self._has_graph(FIRST_STEP) and self._has_graph(NEXT_STEP)):
            raise ConfigError(
                f"{self.folder} holds no exported model: neither {ENCODER_WITH_HEAD}.onnx nor {FIRST_STEP}.onnx and "
                f"{NEXT_STEP}.onnx"
            )
        return "seq2seq" if self._has_graph(ENCODER) else "causal"

    def _has_graph(self, name: str) -> bool:
        return (self.folder / f"{name}.onnx").is_file()

    @cached_property
    def settings(self) -> dict:
        """The configuration, overridden by the generation configuration."""
        settings = {}
        for file in (self.folder / "config.json", self.folder / "generation_config.json"):
            settings_of_file = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
            settings |= {name: value for name, value in settings_of_file.items() if value is not None}
        return settings

    @cached_property
    def eos(self) -> frozenset[int]:
        """The tokens that end an answer."""
        eos = self.settings.get("eos_token_id", [])
        return frozenset(eos if isinstance(eos, list) else [eos])

    @property
    def pad(self) -> int:
        """The padding token; nothing attends to it."""
        return self.settings.get("pad_token_id", min(self.eos, default=0))

    def generate(self, prompts, max_new_tokens: int = 64, ends: frozenset[int] | None = None) -> list[list[int]]:
        """Per prompt (token ids), the likeliest next token, repeatedly, up to and including end-of-sequence.

        Args:
          ends: the tokens that end an answer, if not the model's own.

        Raises:
          ConfigError: the model does not generate text.
          DataError: an empty prompt.
        """
        if self.family == "encoder":
            raise ConfigError(f"{self.folder}: an encoder alone generates no text; it has `logits`")
        ends = self.eos if ends is None else ends
        answers = [[] for _ in prompts]
        open_rows = set(range(len(prompts)))
        steps = self._steps(prompts)
        logits_BV = next(steps)
        while True:
            tokens_B = logits_BV.argmax(axis=-1)
            for row in sorted(open_rows):
                answers[row].append(int(tokens_B[row]))
                if answers[row][-1] in ends or len(answers[row]) == max_new_tokens:
                    open_rows.remove(row)
            if not open_rows:
                return answers
            tokens_B = np.array([token if row in open_rows else self.pad for row, token in enumerate(tokens_B)])
            logits_BV = steps.send(tokens_B[:, None].astype(np.int64))

    def step_logits(self, prompts, answers) -> np.ndarray:
        """The logits for each token of answers (of one length), [B, T, V].

        Computed step by step, as in `generate`: log-probabilities of candidates are sums over their log-softmax.
        """
        answers_BT = np.asarray(answers, np.int64)
        steps = self._steps(prompts)
        logits_of_steps = [next(steps)]
        for place in range(answers_BT.shape[1] - 1):
            logits_of_steps.append(steps.send(answers_BT[:, place : place + 1]))
        return np.stack(logits_of_steps, axis=1)

    def logits(self, rows, segments=()) -> np.ndarray:
        """The logits of an encoder with a head for rows of tokens: [B, labels], or [B, S, V] of a masked model.

        Args:
          segments: per row, the number of each token's sentence (token_type_ids), for models that read it.
        """
        ids_BS, mask_BS = self.padded(rows)
        segments_BS = np.zeros_like(ids_BS)
        for row, numbers in enumerate(segments):
            segments_BS[row, : len(numbers)] = numbers
        inputs = {"input_ids": ids_BS, "attention_mask": mask_BS, "token_type_ids": segments_BS}
        return self._run(ENCODER_WITH_HEAD, inputs)["logits"]

    def padded(self, rows, on_the_left: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """`(ids, mask)`, [B, S] both.

        >>> model.padded([[5, 1], [7]])
        (array([[5, 1], [7, 0]]), array([[1, 1], [1, 0]]))
        """
        if not rows or not all(len(row) for row in rows):
            raise DataError("a row without a token: every prompt needs at least one")
        width = max(map(len, rows))
        ids_BS = np.full((len(rows), width), self.pad, np.int64)
        mask_BS = np.zeros((len(rows), width), np.int64)
        for number, row in enumerate(rows):
            start = width - len(row) if on_the_left else 0
            ids_BS[number, start : start + len(row)] = row
            mask_BS[number, start : start + len(row)] = 1
        return ids_BS, mask_BS

    def _steps(self, prompts):
        """A generator of the next token's logits [B, V]; each time, `send` it the tokens [B, 1] to continue with."""
        ids_BT, mask_BT = self.padded(prompts, on_the_left=self.family == "causal")
        if self.family == "seq2seq":
            states_BSD = self._run(ENCODER, {"input_ids": ids_BT, "attention_mask": mask_BT})["last_hidden_state"]
            start_B1 = np.full((len(prompts), 1), self.settings.get("decoder_start_token_id", self.pad), np.int64)
            inputs = {"input_ids": start_B1, "encoder_attention_mask": mask_BT, "encoder_hidden_states": states_BSD}
        else:
            positions_BT = np.maximum(mask_BT.cumsum(axis=1) - 1, 0)
            inputs = {"input_ids": ids_BT, "attention_mask": mask_BT, "position_ids": positions_BT}
        graph = FIRST_STEP
        while True:
            outputs = self._run(graph, inputs)
            inputs["input_ids"] = yield outputs["logits"][:, -1]
            for name in outputs.keys() - {"logits"}:
                inputs[name.replace("present.", "past_key_values.", 1)] = outputs[name]
            if self.family == "causal":
                inputs["attention_mask"] = np.pad(inputs["attention_mask"], ((0, 0), (0, 1)), constant_values=1)
                inputs["position_ids"] = inputs["attention_mask"].sum(axis=1, keepdims=True) - 1
            graph = NEXT_STEP

    def _run(self, name: str, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A graph's outputs by name; it gets the `inputs` that it reads.

        Raises:
          CheckpointError: ONNX Runtime cannot compute them: the graph is valid only at the traced lengths.
        """
        if name not in self.sessions:
            require_onnx("onnxruntime")
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.log_severity_level = 3
            if self.num_threads is not None:
                options.intra_op_num_threads = self.num_threads
            file = str(self.folder / f"{name}.onnx")
            self.sessions[name] = onnxruntime.InferenceSession(file, options, providers=self.providers)
        session = self.sessions[name]
        names = [node.name for node in session.get_outputs()]
        try:
            values = session.run(None, {node.name: inputs[node.name] for node in session.get_inputs()})
        except Exception as error:  # ONNX Runtime's error classes have no other parent
            place = f"{self.folder / name}.onnx"
            raise CheckpointError(f"{place}: ONNX Runtime cannot compute it: {first_line(error):.300}") from error
        return dict(zip(names, values, strict=True))


def require_onnx(*packages: str) -> None:
    """Refuses missing packages before any work.

    Raises:
      ConfigError: with the command that installs them.
    """
    for package in packages or PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(f"--format onnx: {error}; pip install 't5suite[onnx]'") from None
