"""Texts -> the files of a new tokenizer: T5's unigram pieces, BERT's word pieces, or GPT-2's byte pairs.

    >>> texts = lambda: iter(["the cat sat on the mat"] * 20)
    >>> files = train_files("bpe", texts, TokenizerSettings(vocab_size=270))
    >>> sorted(files)
    ['special_tokens_map.json', 'tokenizer.json', 'tokenizer_config.json']

Texts come from a function that starts over at each call, since a trainer may read them twice. Unigram's (sentencepiece)
holds all of them in memory: 21 bytes for a byte of text (measured). The others hold words and their counts. The same
texts give the same bytes, on any machine: random draws and hash table orders in the trainers are fixed here.
"""

from t5suite.base.lookup import find
from t5suite.data.tokenizers.byte_pairs import train_bpe
from t5suite.data.tokenizers.settings import Texts, TokenizerSettings
from t5suite.data.tokenizers.unigram import train_unigram
from t5suite.data.tokenizers.word_pieces import train_wordpiece


def train_files(kind: str, texts: Texts, settings: TokenizerSettings) -> dict[str, bytes]:
    """The files of a tokenizer of a kind in TRAINERS; each call of `texts` gives all texts, in the same order.

    Raises ConfigError for a vocabulary that is too small for the characters, DataError for one that is too large for
    the text (the message gives the largest one).
    """
    return find(kind, TRAINERS, "type of tokenizer", where="--type")(texts, settings)


TRAINERS = {"unigram": train_unigram, "wordpiece": train_wordpiece, "bpe": train_bpe}
# Which settings a trainer uses, besides the vocabulary size.
SETTINGS_OF = {
    "unigram": ("num_sentinels", "normalization", "byte_fallback", "character_coverage"),
    "wordpiece": ("character_coverage", "lowercase"),
    "bpe": (),
}
