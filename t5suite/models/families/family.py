"""What one family of models is: its classes, and how its models read rows and answer."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from t5suite.base.errors import ConfigError
from t5suite.data.batches.collators import Seq2SeqCollator
from t5suite.data.batches.encodings import LanguageEncoding, TextEncoding
from t5suite.data.batches.pre_training_collator import PAIR_LABELS
from t5suite.models.answering.answerer import Answerer, AnswerSettings
from t5suite.models.classes import has_model_class, model_class_in
from t5suite.tasks.languages import Languages
from t5suite.tasks.tokenization import Lengths


@dataclass(frozen=True, eq=False)
class Family:
    """A kind of model: everything that differs from one kind to another is a field of this object.

    Attributes:
      name: as `--model_family` has it.
      auto_class: transformers' class that makes a model from a configuration (`AutoModelFor...`, or `ModelClasses`).
      special_tokens: its configurations' names for the tokenizer's special tokens, without `_token_id`.
      forward_arguments: what its models must take: text comes in under these names.
      encoding: `(model, tokenizer, lengths, separator, languages) -> encoding`, rows to ids and ids to answers.
      collator: the class that makes batches of encoded rows.
      answerer: the class that predicts: it writes, it scores candidates, or it classifies.
      text_head_class, word_head_class: what `auto_class` is for models with a head over the text, or over each word;
        None for models that write text.
      pair_head_class: the same for a language model that also has a head for pairs of sentences; None without one.
      answers_in_prompt_row: whether an answer takes positions behind its prompt, in the same row.
      takes_encoder_out: whether its models are the encoder of a whole encoder-decoder.
    """

    name: str
    auto_class: object
    special_tokens: tuple[str, ...]
    forward_arguments: tuple[str, ...]
    encoding: Callable[..., TextEncoding]
    collator: type[Seq2SeqCollator]
    answerer: type[Answerer]
    text_head_class: object | None = None
    word_head_class: object | None = None
    pair_head_class: object | None = None
    answers_in_prompt_row: bool = False
    takes_encoder_out: bool = False

    @property
    def has_head(self) -> bool:
        """Whether its fine-tuned models answer by a head instead of writing text."""
        return self.text_head_class is not None

    @property
    def has_decoder_inputs(self) -> bool:
        """Whether its models read the input and the answer in two sequences."""
        return "decoder_input_ids" in self.forward_arguments

    def has_model_for(self, config) -> bool:
        """Whether there is a model of this family for a configuration."""
        return has_model_class(self.auto_class, config)

    def model_class(self, config) -> type:
        """The class of its language models for a configuration."""
        return model_class_in(self.auto_class, config)

    def auto_class_with_head(self, config, per_word: bool):
        """The `AutoModelFor...` with a head for classes and numbers, or for labels of words.

        Raises:
          ConfigError: transformers has no such model with a head.
        """
        auto_class = self.word_head_class if per_word else self.text_head_class
        if not has_model_class(auto_class, config):
            predicted = "labels of words" if per_word else "classes"
            raise ConfigError(
                f"models of type {config.model_type!r} have no head for {predicted}; take bert, roberta, ..."
            )
        return auto_class

    def auto_class_with_pair_head(self, config):
        """The `AutoModelFor...` of language models that also have a head for pairs of sentences.

        >>> FAMILIES["masked"].auto_class_with_pair_head(AutoConfig.for_model("bert")).__name__
        'AutoModelForPreTraining'

        Raises:
          ConfigError: no such head: BERT, BigBird, ALBERT and a few more have one, RoFormer and ModernBERT do not.
        """
        if self.pair_head_class is not None and has_model_class(self.pair_head_class, config):
            parameters = inspect.signature(model_class_in(self.pair_head_class, config).forward).parameters
            if any(label in parameters for label in PAIR_LABELS.values()):
                return self.pair_head_class
        raise ConfigError(
            f"models of type {config.model_type!r} have no head for pairs of sentences; take bert, big_bird or albert"
        )

    def check_reads_text(self, config) -> None:
        """Refuses model types of audio and images that transformers lists among language models.

        >>> FAMILIES["seq2seq"].check_reads_text(AutoConfig.for_model("qwen2_audio"))
        ConfigError: models of type 'qwen2_audio' cannot be trained on text alone: Qwen2AudioForConditionalGeneration
        takes no decoder_input_ids (an audio model)

        Raises:
          ConfigError: its forward does not take the family's batches, it decodes something other than text, or it is a
            decoder that reads other media, too.
        """
        reason = self._why_not_text_alone(config)
        if reason is not None:
            raise ConfigError(f"models of type {config.model_type!r} cannot be trained on text alone: {reason}")

    def _why_not_text_alone(self, config) -> str | None:
        model_class = self.model_class(config)
        parameters = inspect.signature(model_class.forward).parameters
        missing = [name for name in self.forward_arguments if name not in parameters]
        if missing:
            note = _medium_note(config.model_type, model_class)
            return f"{model_class.__name__} takes no {', '.join(missing)}{note}"
        if config.model_type in OTHER_MEDIA:
            return f"{model_class.__name__} belongs to an encoder{_medium_note(config.model_type, model_class)}"
        text_config = config.get_text_config()
        if not self.answers_in_prompt_row or text_config is config:
            return None
        reason = "it reads images or sound, too"
        if self.has_model_for(text_config):
            reason += f"; save the text model that it has inside as a {self.model_class(text_config).__name__}"
        return reason

    def make_encoding(
        self, model, tokenizer, lengths: Lengths, separator: str | None, languages: Languages | None
    ) -> TextEncoding:
        """How a model reads rows and writes answers, and settings of the model that follow from it.

        Args:
          separator: between prompt and answer of a decoder-only model; None: the one that the model was trained with.
          languages: of the texts, for a tokenizer that has languages.

        Raises:
          ConfigError: an encoder without a head; languages that the tokenizer does not have.
        """
        languages = languages or Languages()
        encoding = self.encoding(model, tokenizer, lengths, separator, languages)
        if not isinstance(encoding, LanguageEncoding):
            check_no_languages(languages, tokenizer)
        return encoding

    def make_collator(self, config, pad_to_multiple_of: int = 1) -> Seq2SeqCollator:
        """What makes batches of encoded rows for a model of this configuration."""
        start = getattr(config, "decoder_start_token_id", None)
        return self.collator(config.pad_token_id, start, pad_to_multiple_of)

    def make_answerer(
        self,
        model,
        tokenizer,
        settings: AnswerSettings | None = None,
        collator: Seq2SeqCollator | None = None,
        device=None,
    ) -> Answerer:
        """What predicts with a model.

        Args:
          collator: by default one that does not pad to a multiple.
          device: where batches go, if not where the model is.
        """
        collator = collator or self.make_collator(model.config)
        return self.answerer(model, tokenizer, collator, device or model.device, settings or AnswerSettings())


def check_no_languages(languages: Languages, tokenizer) -> None:
    """Refuses languages of a model without them.

    Raises:
      ConfigError: the first of them.
    """
    for name, code in languages._asdict().items():
        if code is not None:
            raise ConfigError(
                f"--{name} {code}: {type(tokenizer).__name__} has no languages; mBART, M2M100, NLLB and multilingual "
                "Marian models have. For a T5, name them in the text: --prefix 'translate English to German: '"
            )


def _medium_note(model_type: str, model_class: type) -> str:
    """In brackets: what a model reads or writes instead of text, if that is known."""
    medium = OTHER_MEDIA.get(model_type)
    if medium is None and "audio" in getattr(model_class, "input_modalities", ()):
        medium = "audio"
    if medium is None:
        return ""
    article = "an" if medium[0] in "aeiou" else "a"
    return f" ({article} {medium} model)"


# Decoders of something other than text, by model type.
OTHER_MEDIA = {
    "moshi": "audio", "moss_transcribe_diarize": "audio", "musicgen": "music", "musicgen_melody": "music",
    "trocr": "vision", "whisper": "audio",
}  # fmt: skip
