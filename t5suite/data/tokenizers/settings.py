"""The settings of a new tokenizer."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import find

Texts = Callable[[], Iterator[str]]
NORMALIZATIONS = ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity")


@dataclass(frozen=True)
class TokenizerSettings:
    """Settings of a new tokenizer; `vocab_size` is its `len(tokenizer)`, special tokens included.

    >>> TokenizerSettings(vocab_size=32_100).num_sentinels
    100

    Attributes:
      num_sentinels: `<extra_id_0>`, ... at the end of the vocabulary, counting down (unigram).
      normalization: a rule of sentencepiece, T5's being nmt_nfkc; `_cf` folds case (unigram).
      byte_fallback: characters without a piece become bytes instead of unknown (unigram).
      character_coverage: the share of the text's characters that have pieces; the rarest others are unknown (unigram,
        wordpiece).
      lowercase: lower case without accents, as BERT's uncased models (wordpiece).

    """

    vocab_size: int
    num_sentinels: int = 100
    normalization: str = "nmt_nfkc"
    byte_fallback: bool = False
    character_coverage: float = 0.9995
    lowercase: bool = False

    def __post_init__(self):
        if self.vocab_size < 1:
            raise ConfigError(f"--vocab_size {self.vocab_size}: must be at least 1, such as 32000")
        if self.num_sentinels < 0:
            raise ConfigError(f"--num_sentinels {self.num_sentinels}: must be at least 0")
        if not 0 < self.character_coverage <= 1:
            raise ConfigError(f"--character_coverage {self.character_coverage}: must be above 0 and at most 1")
        find(self.normalization, dict.fromkeys(NORMALIZATIONS), "rule", where="--normalization")


def check_size(vocab_size: int, smallest: int, largest: int | None = None) -> None:
    """Checks a vocabulary's size against what the text and the special tokens need and give.

    Raises:
      ConfigError: it is too small for the characters.
      DataError: the text gives fewer pieces.
    """
    if vocab_size < smallest:
        raise ConfigError(
            f"--vocab_size {vocab_size}: the characters and special tokens alone are {smallest}; "
            "give a larger one, or a lower --character_coverage"
        )
    if largest is not None and largest < vocab_size:
        raise DataError(
            f"--vocab_size {vocab_size}: this text gives {largest} pieces at most, special tokens included; "
            f"give --vocab_size {largest} or more text"
        )
