"""Answers from folders that `t5suite export` wrote: ONNX or CTranslate2 files, without the PyTorch model.

    >>> predictor = load_exported(arguments, EncodingSettings(Lengths(512, 512)), batch_size=16)
    >>> prompts = prompts_of(predictor.encoding, ["sst2 sentence: Good."])
    >>> predictor.answers(prompts, DecodingSettings(), max_new_tokens=5)
    [[WrittenAnswer(text='positive', score=None, truncated=False, num_tokens=2)]]

Greedy answers (CTranslate2: beams, too), labels chosen by their scores, and the classes, numbers and labels of words
that an encoder's head predicts, as from `Predictor`. Flags that the files do not support are refused.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
from t5suite.inference.decoding_settings import DecodingSettings
from t5suite.inference.exported_files import CTranslate2Files, OnnxFiles
from t5suite.inference.predictor import (
    ANY_NUMBER,
    Choice,
    WrittenAnswer,
    check_lengths_of_choice,
    check_lengths_of_writing,
    choice_of,
    encoded_candidates,
)
from t5suite.models.answering.answerer import before_end
from t5suite.models.answering.call_settings import is_heeded, settings_with_effect
from t5suite.models.config_limits import check_length
from t5suite.models.encoders import labels_words, names_encoder
from t5suite.models.families.causal import SEPARATOR
from t5suite.models.families.family import check_no_languages
from t5suite.models.heads import check_trained_head, output_words
from t5suite.models.loading import load_tokenizer
from t5suite.models.tokenizer_checks import check_trained_with
from t5suite.tasks.languages import Languages
from t5suite.tasks.tokenization import Lengths
from t5suite.training.evaluation import batches_by_length

ONNX, CTRANSLATE2 = "ONNX files", "CTranslate2's files"
# By the file in the folder.
KINDS = {"model.onnx": ONNX, "decoder_model.onnx": ONNX, "model.bin": CTRANSLATE2}
# Flags of `t5suite predict` for the PyTorch model, and for ways of decoding that the files do not support.
MODEL_FLAGS = "device_map max_memory adapter_base model_class attn_implementation dtype".split()
WRITING_FLAGS = (
    "min_new_tokens num_beam_groups diversity_penalty do_sample repetition_penalty no_repeat_ngram_size".split()
)
BEAM_FLAGS = ["num_beams", "length_penalty"]


@dataclass(frozen=True)
class EncodingSettings:
    """How texts become ids, and ids texts.

    Attributes:
      lengths: the longest inputs and targets, in tokens.
      separator: between a decoder-only model's prompt and answer; None: the one that the model was trained with.
      languages: of the texts, for a model that has languages.
      template: texts around every row, whose control tokens are tokens (`tasks.tokens`).
    """

    lengths: Lengths
    separator: str | None = None
    languages: Languages | None = None
    template: str = ""


class ExportedPredictor:
    """`Predictor` for exported files, in one process.

    Args:
      files: `OnnxFiles` or `CTranslate2Files`.
      encoding: texts to ids and back, for the model's family.
      generation_settings: the generation configuration, which the files ignore, all but beams' length penalty.
      config: the model's configuration, whose positions limit lengths; None for CTranslate2's T5s, which have no limit.
    """

    def __init__(
        self, files, encoding: TextEncoding, batch_size: int = 16, generation_settings: dict | None = None, config=None
    ):
        self.files = files
        self.config = config
        self.encoding = encoding
        self.batch_size = batch_size
        settings = generation_settings or {}
        self.length_penalty = settings.get("length_penalty")
        self.ignored_settings = ignored_settings(settings, not isinstance(encoding, PromptEncoding))
        self.writes = not isinstance(encoding, SegmentEncoding)

    @property
    def why_no_free_text(self) -> str:
        """Why free text is not written, where the generation configuration has settings that the files ignore."""
        settings = ", ".join(f"{name} {setting}" for name, setting in self.ignored_settings.items())
        return f"the model's generation_config.json has {settings}, which exported files ignore"

    def answers(
        self,
        prompts: Sequence[list[int]],
        decoding: DecodingSettings,
        max_new_tokens: int,
        indices=None,
        scores=False,
        plain=False,
        languages=None,
    ) -> list[list[WrittenAnswer]]:
        """Per prompt, its one answer.

        Raises:
          ConfigError: free text is written, and the model has generation settings that the files ignore; a prompt or an
            answer is longer than the model's positions.
        """
        if self.config is not None:
            check_lengths_of_writing(self.config, self.encoding, prompts, max_new_tokens)
        if self.ignored_settings and not plain:
            raise ConfigError(self.why_no_free_text)
        eos = getattr(self.encoding, "eos", self.encoding.tokenizer.eos_token_id)
        ends = self.files.ends | {eos}
        length_penalty = decoding.length_penalty
        if length_penalty is None and not plain:
            length_penalty = self.length_penalty
        if length_penalty is None:
            length_penalty = 1.0

        def answer_batch(places):
            written_ids = self.files.write(
                [prompts[place] for place in places], max_new_tokens, eos, decoding.num_beams, length_penalty
            )
            texts = self.encoding.texts([before_end(ids, ends) for ids in written_ids])
            return [
                [WrittenAnswer(text, None, truncated=ids[-1] not in ends, num_tokens=len(ids))]
                for text, ids in zip(texts, written_ids, strict=True)
            ]

        return self._in_batches(prompts, answer_batch)

    def choices(self, prompts: Sequence[list[int]], candidates) -> list[Choice]:
        """Per prompt, the likeliest candidate and all probabilities.

        Raises:
          ConfigError: a prompt is longer than the model's positions.
        """
        candidate_ids = encoded_candidates(self.encoding, candidates)
        if self.config is not None:
            check_lengths_of_choice(self.config, self.encoding, prompts, candidate_ids)

        def choose_batch(places):
            pairs = [(prompts[place], candidate_ids[word]) for place in places for word in candidates[place]]
            log_probabilities = iter(self.files.log_probabilities(pairs))
            return [
                choice_of(candidates[place], [next(log_probabilities) for _ in candidates[place]]) for place in places
            ]

        return self._in_batches(prompts, choose_batch)

    def classes(self, features: Sequence[dict], limits: tuple[float, float] = ANY_NUMBER) -> list[Choice]:
        """Per text, what an encoder's head predicts.

        Raises:
          ConfigError: a text is longer than the model's positions.
        """
        ids_of_texts = [feature["input_ids"] for feature in features]
        if self.config is not None:
            check_length(self.config, max(map(len, ids_of_texts), default=0), "--max_source_length")

        def classify_batch(places):
            return self._classify([features[place] for place in places], limits)

        return self._in_batches(ids_of_texts, classify_batch)

    def _classify(self, features: list[dict], limits: tuple[float, float]) -> list[Choice]:
        """Labels of words, numbers or classes of a batch."""
        token_types = [feature["token_type_ids"] for feature in features if "token_type_ids" in feature]
        logits = self.files.model.logits([feature["input_ids"] for feature in features], token_types)
        if isinstance(self.encoding, LabelsEncoding):
            choices = []
            for feature, logits_TV in zip(features, logits, strict=True):
                word_starts = np.flatnonzero(np.array(feature["labels"]) != IGNORED)
                choices.append(Choice(self.encoding.word(logits_TV[word_starts].tolist()), None))
            return choices
        if self.encoding.words is None:
            return [Choice(answer_text(float(number), *limits), None) for (number,) in logits]
        return [choice_of(self.encoding.words, scores) for scores in log_softmax(logits, axis=-1).tolist()]

    def _in_batches(self, rows: list, answer_batch: Callable) -> list:
        """`answer_batch(places)` of every batch of similar length; in the rows' order."""
        answers = {}
        for places in batches_by_length([len(row) for row in rows], self.batch_size):
            answers.update(zip(places, answer_batch(places), strict=True))
        return [answers[place] for place in range(len(rows))]


def exported_kind(folder) -> str | None:
    """The kind of export in a folder; None for a PyTorch model and for hub names."""
    folder = Path(folder)
    if any(folder.glob("*.safetensors")):
        return None
    for file_name, kind in KINDS.items():
        if (folder / file_name).is_file():
            return kind
    return None


def ignored_settings(generation_settings: dict, is_encoder_decoder: bool) -> dict:
    """The settings of a generation configuration that the model's own free text follows, and that files ignore."""
    settings = {}
    for name, setting in settings_with_effect(generation_settings, num_beams=1).items():
        if is_heeded(name, is_plain=False, is_encoder_decoder=is_encoder_decoder, num_beams=1):
            settings[name] = setting
    return settings


def load_exported(
    arguments, settings: EncodingSettings, batch_size: int, world_size: int = 1, tasks=()
) -> ExportedPredictor:
    """The files of a folder, ready to answer.

    Args:
      arguments: the flags of `t5suite predict`.
      tasks: those that an encoder's head is for.

    Raises:
      ConfigError: flags that the files do not support, or a model with languages.
    """
    folder = Path(arguments.model_name_or_path)
    kind = exported_kind(folder)
    _check_flags_of_files(arguments, kind)
    if world_size > 1:
        raise ConfigError(f"{folder} holds {kind}: one process answers, but {world_size} were launched")
    tokenizer = load_tokenizer(arguments.tokenizer_name or str(folder))
    check_trained_with(folder, tokenizer)
    if language_ids(tokenizer):
        raise ConfigError(f"{folder} holds {kind}, which cannot choose a language; use the original model")
    check_no_languages(settings.languages or Languages(), tokenizer)
    if kind == CTRANSLATE2:
        files = CTranslate2Files(folder, tokenizer, arguments.use_cpu)
        encoding = TextEncoding(tokenizer, settings.lengths, template=settings.template)
        return ExportedPredictor(files, encoding, batch_size, _generation_settings(folder))
    files = OnnxFiles(folder, arguments.use_cpu)
    config = AutoConfig.from_pretrained(folder)
    encoding = _onnx_encoding(config, files, tokenizer, settings, tasks)
    encoding = replace(encoding, template=settings.template)
    return ExportedPredictor(files, encoding, batch_size, _generation_settings(folder), config)


def _generation_settings(folder: Path) -> dict:
    """What a folder's `generation_config.json` says; nothing where there is none."""
    path = folder / "generation_config.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _check_flags_of_files(arguments, kind: str) -> None:
    """Refuses flags that exported files of this kind do not support.

    Raises:
      ConfigError: the first of them.
    """
    for name in [*MODEL_FLAGS, *unsupported_settings(kind)]:
        default = getattr(DecodingSettings, name, None)
        if getattr(arguments, name) not in (None, False, "float32", default):
            folder = Path(arguments.model_name_or_path)
            raise ConfigError(f"--{name}: {folder} holds {kind}, which cannot; use the original model")


def unsupported_settings(kind: str) -> list[str]:
    """The settings of answers that exported files of this kind do not support."""
    names = [*WRITING_FLAGS, "num_return_sequences", "scores"]
    if kind != CTRANSLATE2:
        names += BEAM_FLAGS
    return names


def _onnx_encoding(config, files: OnnxFiles, tokenizer, settings: EncodingSettings, tasks) -> TextEncoding:
    """The encoding of a model whose class is not loaded, by its configuration.

    Raises:
      ConfigError: an encoder without a head, or with one for something else than the tasks.
    """
    if files.family == "causal":
        separator = settings.separator
        if separator is None:
            separator = getattr(config, SEPARATOR, None)
        return PromptEncoding(tokenizer, settings.lengths, DEFAULT_SEPARATOR if separator is None else separator)
    if files.family == "encoder":
        check_trained_head(config, tasks, str(files.model.folder))
        encoding_class = LabelsEncoding if labels_words(config.architectures) else SegmentEncoding
        has_type_ids = "token_type_ids" in tokenizer.model_input_names
        has_several_types = getattr(config, "type_vocab_size", 2) > 1
        return encoding_class(
            tokenizer, settings.lengths, output_words(config), has_type_ids and has_several_types, names_encoder(config)
        )
    return TextEncoding(tokenizer, settings.lengths)
