"""Which models `t5suite trim` takes, by their type and their tokenizer's class, before anything is loaded.

>>> check_type("m2m_100", "M2M100Tokenizer", "--model_name_or_path facebook/m2m100_418M")
ConfigError: --model_name_or_path facebook/m2m100_418M: M2M100's vocabulary cannot be trimmed: ...
"""

from collections.abc import Iterable
from pathlib import Path

from t5suite.base.errors import ConfigError
from t5suite.base.model_files import table_or_empty

# By type of configuration: the models of it whose vocabulary is trimmed.
TRIMMED_TYPES = {
    "t5": "T5, T5 v1.1 and FLAN-T5", "mt5": "mT5", "umt5": "umT5", "mbart": "mBART",
    "m2m_100": "NLLB", "t5gemma": "T5Gemma",
}  # fmt: skip
# By class of tokenizer: why its vocabulary is not trimmed, and what works.
REFUSED_TOKENIZERS = {
    "M2M100Tokenizer": "M2M100's vocabulary cannot be trimmed: it is vocab.json beside a SentencePiece model, read by "
    "Python alone; NLLB has the same architecture and a tokenizer.json: facebook/nllb-200-distilled-600M",
    "MarianTokenizer": "Marian's vocabulary cannot be trimmed: it is vocab.json beside two SentencePiece models; it is "
    "of one pair of languages already",
    "ByT5Tokenizer": "ByT5's vocabulary cannot be trimmed: it reads bytes, and has 384 rows",
}


# Ends of the classes of encoders, and of models whose head writes no words.
REFUSED_CLASSES = ("EncoderModel", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")


def types_in_words() -> str:
    """The models that are trimmed, for messages and help."""
    return ", ".join(TRIMMED_TYPES.values())


def check_type(model_type: str | None, tokenizer_class: str | None, place: str) -> None:
    """Refuses a model by its type or its tokenizer's class; what is unknown (None) is not refused.

    Args:
      place: the flag and the name, for messages.

    Raises:
      ConfigError: says what would work.
    """
    reason = REFUSED_TOKENIZERS.get((tokenizer_class or "").removesuffix("Fast"))
    if reason:
        raise ConfigError(f"{place}: {reason}")
    if model_type is not None and model_type not in TRIMMED_TYPES:
        raise ConfigError(f"{place}: models of type {model_type!r} are not trimmed; those of {types_in_words()} are")


def check_writes(class_names: Iterable[str], place: str) -> None:
    """Refuses a model by its classes' names: an encoder, or one with a head that writes no words.

    Raises:
      ConfigError: names the class.
    """
    for name in class_names:
        if str(name).endswith(REFUSED_CLASSES):
            raise ConfigError(f"{place}: {name} is not trimmed: it writes no text; whole models that write are")


def check_folder_type(folder, place: str) -> None:
    """Refuses a folder by what its small files say (`check_type`, `check_writes`)."""
    settings = table_or_empty(Path(folder) / "config.json")
    tokenizer_class = table_or_empty(Path(folder) / "tokenizer_config.json").get("tokenizer_class")
    check_type(settings.get("model_type"), tokenizer_class, place)
    check_writes(settings.get("architectures") or (), place)
