"""A tokenizer from SentencePiece's file alone, as T5, mT5 and umT5 were published: `spiece.model` -> ids.

    >>> tokenizer_of_spiece(Path("umt5/spiece.model"), "google/umt5-small")("The house.")["input_ids"]
    [486, 3916, 304, 1]

transformers 5.24 has no tokenizer for an umT5 without `tokenizer.json`. Its `T5Tokenizer` serves T5's own file; by
others it reads characters without a piece as unknown, where SentencePiece reads bytes, and adds sentinels to those that
the file has. Those are converted here, with SentencePiece's ids.
"""

import tempfile
from pathlib import Path

from transformers import AutoTokenizer, T5Tokenizer

from t5suite.base.errors import ConfigError
from t5suite.base.model_files import kind_of_stand_in, table_or_empty
from t5suite.data.tokenizers.unigram import is_beyond_t5, t5_tokenizer_files
from t5suite.models.t5.output_layer import T5_TYPES

SPIECE = "spiece.model"
T5_CLASSES = ("T5Tokenizer", "T5TokenizerFast", "MT5Tokenizer", "MT5TokenizerFast")
# SentencePiece's number for unigram models.
UNIGRAM = 1
NUM_SENTINELS = 100


def tokenizer_of_spiece(path: Path, name: str, flag: str):
    """The tokenizer of a SentencePiece file.

    Args:
      name: the folder or repository that it is from.

    Raises:
      ConfigError: it is empty, damaged or of another kind.
    """
    content = path.read_bytes()
    model = _parse_model(content, path, name, flag)
    if not is_beyond_t5(model):
        return T5Tokenizer.from_pretrained(path.parent)
    settings = table_or_empty(path.parent / "tokenizer_config.json")
    files = t5_tokenizer_files(content, settings.get("extra_ids", NUM_SENTINELS))
    with tempfile.TemporaryDirectory() as folder:
        for file_name, file_content in files.items():
            (Path(folder) / file_name).write_bytes(file_content)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.name_or_path = name
    return tokenizer


def _parse_model(content: bytes, path: Path, name: str, flag: str):
    """SentencePiece's model of a file."""
    from sentencepiece import sentencepiece_model_pb2

    stand_in = kind_of_stand_in(content)
    if stand_in:
        raise ConfigError(f"{flag} {name}: {path.name} is {stand_in}")
    try:
        model = sentencepiece_model_pb2.ModelProto.FromString(content)
    except Exception as error:  # protobuf's DecodeError, of whichever of its implementations is installed
        if type(error).__name__ != "DecodeError":
            raise
        raise ConfigError(f"{flag} {name}: {path.name} is not a SentencePiece model, or a truncated one") from None
    if not model.pieces or not 0 <= model.trainer_spec.unk_id < len(model.pieces):
        raise ConfigError(f"{flag} {name}: {path.name} is a truncated SentencePiece model ({len(model.pieces)} pieces)")
    if model.trainer_spec.model_type != UNIGRAM:
        raise ConfigError(f"{flag} {name}: {path.name} is not of T5's kind (a unigram model); give tokenizer.json, too")
    return model


def spiece_of_hub(name: str, commit: str | None) -> Path | None:
    """`spiece.model` of a repository that has no `tokenizer.json`, in the hub's cache; None for a folder, or if there
    is none."""
    from huggingface_hub import try_to_load_from_cache

    if Path(name).exists():
        return None
    cached = try_to_load_from_cache(name, SPIECE, revision=commit)
    if not isinstance(cached, str) or not is_spiece_alone(Path(cached).parent):
        return None
    return Path(cached)


def is_spiece_alone(folder: Path) -> bool:
    """Whether a folder has a T5's `spiece.model` and no `tokenizer.json`; ALBERT's and Pegasus's have the same name."""
    if not (folder / SPIECE).is_file() or (folder / "tokenizer.json").is_file():
        return False
    tokenizer_class = table_or_empty(folder / "tokenizer_config.json").get("tokenizer_class")
    model_type = table_or_empty(folder / "config.json").get("model_type")
    return model_type in (None, *T5_TYPES) and tokenizer_class in (None, *T5_CLASSES)
