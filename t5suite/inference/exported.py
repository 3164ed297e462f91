"""Answers from folders that `t5suite export` wrote: ONNX or CTranslate2 files, without the PyTorch model.

    >>> predictor = exported_predictor(arguments, lengths=Lengths(512, 512), batch_size=16)
    >>> predictor.answers(["sst2 sentence: Good."], Decoding(), max_new_tokens=5)
    [[Answer(text='positive', score=None, truncated=False)]]

Greedy answers (CTranslate2: beams, too), labels chosen by their scores, and the classes, numbers and labels of words
that an encoder's head predicts, as from `Predictor`. Flags that the files do not support are refused.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from scipy.special import log_softmax
from transformers import AutoConfig

from t5suite.base.errors import ConfigError
from t5suite.data.batches.collators import IGNORED
from t5suite.data.batches.encodings import (
    DEFAULT_SEPARATOR,
    LabelsEncoding,
    PromptEncoding,
    SegmentEncoding,
    TextEncoding,
    answer_text,
    language_ids,
)
from t5suite.export.onnx_runtime import OnnxModel, require_onnx
from t5suite.inference.predictor import Answer, Choice, choice_of
from t5suite.inference.settings import Decoding
from t5suite.models.answering.greedy import NEUTRAL_SETTINGS, SETTINGS_WITHOUT_EFFECT
from t5suite.models.encoders import labels_words, names_encoder
from t5suite.models.families.causal import SEPARATOR
from t5suite.models.heads import output_words
from t5suite.models.loading import load_tokenizer
from t5suite.models.tokenizer_checks import check_trained_with
from t5suite.tasks.tokenization import Lengths
from t5suite.training.evaluation import batches_by_length

ONNX, CTRANSLATE2 = "ONNX files", "CTranslate2's files"
# By the file in the folder.
KINDS = {"model.onnx": ONNX, "decoder_model.onnx": ONNX, "model.bin": CTRANSLATE2}
FORCED_END = "forced_eos_token_id"


def exported_kind(folder) -> str | None:
    """The kind of export in a folder; None for a PyTorch model and for hub names."""
    folder = Path(folder)
    found = (kind for file, kind in KINDS.items() if (folder / file).is_file())
    return None if list(folder.glob("*.safetensors")) else next(found, None)


class OnnxAnswers:
    """Scores and greedy answers from a folder of ONNX files."""

    def __init__(self, folder, use_cpu: bool):
        require_onnx("onnxruntime")
        import onnxruntime

        there = onnxruntime.get_available_providers()
        wanted = ("CPUExecutionProvider",) if use_cpu else ("CUDAExecutionProvider", "CPUExecutionProvider")
        self.model = OnnxModel(folder, providers=[name for name in wanted if name in there])
        self.family = self.model.family

    def write(self, prompts, most: int, eos: int, num_beams: int, length_penalty: float) -> list[list[int]]:
        """Token ids, with the end token if the model wrote it."""
        return self.model.generate(prompts, most, ends=frozenset({eos}))

    def scores(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """Log-probabilities of answers after their prompts."""
        found = [0.0] * len(pairs)
        for length in {len(ids) for _, ids in pairs}:
            places = [i for i, (_, ids) in enumerate(pairs) if len(ids) == length]
            answers_BT = np.array([pairs[i][1] for i in places])
            log_p_BTV = log_softmax(self.model.step_logits([pairs[i][0] for i in places], answers_BT), axis=-1)
            sums_B = np.take_along_axis(log_p_BTV, answers_BT[:, :, None], axis=2)[:, :, 0].sum(1)
            for i, total in zip(places, sums_B.tolist(), strict=True):
                found[i] = total
        return found


class CTranslate2Answers:
    """Scores and answers from a folder of CTranslate2 files; only T5 types are exported to them."""

    def __init__(self, folder, tokenizer, use_cpu: bool):
        try:
            import ctranslate2
        except ImportError as error:
            raise ConfigError(f"{folder}: CTranslate2 files: {error}; pip install 't5suite[ctranslate2]'") from None
        self.model = ctranslate2.Translator(str(folder), device="cpu" if use_cpu else "auto", compute_type="default")
        self.tokenizer = tokenizer

    def write(self, prompts, most: int, eos: int, num_beams: int, length_penalty: float) -> list[list[int]]:
        """Token ids, with the end token if the model wrote it."""
        found = self.model.translate_batch(
            [self._tokens(prompt) for prompt in prompts],
            beam_size=num_beams,
            max_decoding_length=most,
            max_input_length=0,
            length_penalty=length_penalty,
        )
        ids = [self.tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in found]
        return [row if len(row) >= most else [*row, eos] for row in ids]

    def scores(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """Log-probabilities of answers, with their end token, after their prompts."""
        source, target = ([self._tokens(pair[side]) for pair in pairs] for side in (0, 1))
        # `score_batch` appends the end token itself.
        found = self.model.score_batch(source, [tokens[:-1] for tokens in target], max_input_length=0)
        return [math.fsum(result.log_probs) for result in found]

    def _tokens(self, ids) -> list[str]:
        return self.tokenizer.convert_ids_to_tokens(list(map(int, ids)))


class ExportedPredictor:
    """`Predictor` for exported files, in one process.

    Args:
      files: `OnnxAnswers` or `CTranslate2Answers`.
      encoding: texts to ids and back, for the model's family.
      settings: the generation configuration, which the files ignore.
    """

    def __init__(self, files, encoding: TextEncoding, batch_size: int = 16, settings: dict | None = None):
        self.files, self.encoding, self.batch_size = files, encoding, batch_size
        self.ends_by_force = (settings or {}).get(FORCED_END) is not None
        idle = {*SETTINGS_WITHOUT_EFFECT, FORCED_END}
        others = ((k, v) for k, v in (settings or {}).items() if k not in idle and v is not None)
        self.settings = {name: value for name, value in others if value != NEUTRAL_SETTINGS.get(name)}
        self.writes = not isinstance(encoding, SegmentEncoding)

    def answers(
        self, texts, decoding: Decoding, max_new_tokens: int, indices=None, scores=False, plain=False, languages=None
    ) -> list[list[Answer]]:
        """Per text, its one answer.

        Raises:
          ConfigError: free text is written, and the model has generation settings that the files ignore.
        """
        if self.settings and not plain:
            said = ", ".join(f"{name} {value}" for name, value in self.settings.items())
            raise ConfigError(f"the model's generation_config.json has {said}, which exported files ignore")
        eos = getattr(self.encoding, "eos", self.encoding.tokenizer.eos_token_id)
        prompts, penalty = self.encoding.prompts(texts), decoding.length_penalty

        def answer(places):
            asked, penalties = [prompts[i] for i in places], 1.0 if penalty is None else penalty
            written = self.files.write(asked, max_new_tokens, eos, decoding.num_beams, penalties)
            if self.ends_by_force:
                written = [[*ids[:-1], eos] if len(ids) == max_new_tokens else ids for ids in written]
            each = zip(self.encoding.texts(written), written, strict=True)
            return [[Answer(text, None, ids[-1:] != [eos])] for text, ids in each]

        return self._in_batches(prompts, answer)

    def choices(self, texts, candidates, languages=None) -> list[Choice]:
        """Per text, the likeliest candidate and all probabilities."""
        prompts, unique = self.encoding.prompts(texts), sorted({text for of_text in candidates for text in of_text})
        ids = dict(zip(unique, self.encoding.choices(unique), strict=True))

        def choose(places):
            pairs = [(prompts[i], ids[text]) for i in places for text in candidates[i]]
            found = iter(self.files.scores(pairs))
            return [choice_of(candidates[i], [next(found) for _ in candidates[i]]) for i in places]

        return self._in_batches(prompts, choose)

    def classes(self, segments, limits: tuple[float, float] = (-math.inf, math.inf)) -> list[Choice]:
        """Per text, what an encoder's head predicts."""
        features = [{name: rows[0] for name, rows in self.encoding.inputs([texts]).items()} for texts in segments]

        def classify(places):
            rows = [features[i] for i in places]
            types = [row["token_type_ids"] for row in rows if "token_type_ids" in row]
            found = self.files.model.logits([row["input_ids"] for row in rows], types)
            if isinstance(self.encoding, LabelsEncoding):
                starts = [np.flatnonzero(np.array(row["labels"]) != IGNORED) for row in rows]
                return [
                    Choice(self.encoding.word(logits[places].tolist()), None)
                    for logits, places in zip(found, starts, strict=True)
                ]
            if self.encoding.words is None:
                return [Choice(answer_text(float(value), *limits), None) for (value,) in found]
            return [choice_of(self.encoding.words, scores) for scores in log_softmax(found, axis=-1).tolist()]

        return self._in_batches([feature["input_ids"] for feature in features], classify)

    def _in_batches(self, rows, answer) -> list:
        found = {}
        for places in batches_by_length([len(row) for row in rows], self.batch_size):
            found.update(zip(places, answer(places), strict=True))
        return [found[place] for place in range(len(rows))]


# Flags of `t5suite predict` for the PyTorch model, and for ways of decoding that the files do not support.
OF_THE_MODEL = "device_map max_memory adapter_base model_class attn_implementation dtype scores".split()
OF_WRITING = (
    "min_new_tokens num_beam_groups diversity_penalty do_sample repetition_penalty no_repeat_ngram_size".split()
)


def exported_predictor(
    arguments,
    *,
    lengths: Lengths,
    batch_size: int,
    separator: str | None = None,
    world_size: int = 1,
    template: str = "",
) -> ExportedPredictor:
    """The files of a folder, ready to answer.

    Args:
      arguments: the flags of `t5suite predict`.
      template: texts around every row, whose control tokens are tokens (`tasks.tokens`).

    Raises:
      ConfigError: flags that the files do not support, or a model with languages.
    """
    folder = Path(arguments.model_name_or_path)
    kind = exported_kind(folder)
    beams = [] if kind == CTRANSLATE2 else ["num_beams", "length_penalty"]
    for name in (*OF_THE_MODEL, *OF_WRITING, *beams, "num_return_sequences"):
        if getattr(arguments, name) not in (None, False, "float32", getattr(Decoding, name, None)):
            raise ConfigError(f"--{name}: {folder} holds {kind}, which cannot; use the original model")
    if world_size > 1:
        raise ConfigError(f"{folder} holds {kind}: one process answers, but {world_size} were launched")
    tokenizer = load_tokenizer(arguments.tokenizer_name or str(folder))
    check_trained_with(folder, tokenizer)
    if language_ids(tokenizer):
        raise ConfigError(f"{folder} holds {kind}, which cannot choose a language; use the original model")
    if kind == CTRANSLATE2:
        files = CTranslate2Answers(folder, tokenizer, arguments.use_cpu)
        return ExportedPredictor(files, TextEncoding(tokenizer, lengths, template=template), batch_size)
    files = OnnxAnswers(folder, arguments.use_cpu)
    encoding, config = TextEncoding(tokenizer, lengths), AutoConfig.from_pretrained(folder)
    if files.family == "causal":
        known = (separator, getattr(config, SEPARATOR, None), DEFAULT_SEPARATOR)
        encoding = PromptEncoding(tokenizer, lengths, next(text for text in known if text is not None))
    if files.family == "encoder":
        if config.problem_type is None:
            raise ConfigError(f"{folder}: this encoder has no head for labels")
        make = LabelsEncoding if labels_words(config.architectures) else SegmentEncoding
        has_types = "token_type_ids" in tokenizer.model_input_names and getattr(config, "type_vocab_size", 2) > 1
        encoding = make(tokenizer, lengths, output_words(config), has_types, names_encoder(config))
    file = folder / "generation_config.json"
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return ExportedPredictor(files, replace(encoding, template=template), batch_size, settings)
