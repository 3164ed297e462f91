"""Texts -> the files of a new tokenizer: T5's unigram pieces, BERT's word pieces, or GPT-2's byte pairs.

    >>> texts = lambda: iter(["the cat sat on the mat"] * 20)
    >>> files = train_files("bpe", texts, TokenizerSettings(vocab_size=270))
    >>> sorted(files)
    ['special_tokens_map.json', 'tokenizer.json', 'tokenizer_config.json']

Texts come from a function that begins anew at each call, since a trainer may read them twice; none of them keeps them.
The same texts give the same bytes, on any machine: what the trainers draw or take in the order of a hash table is
fixed here.
"""

import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import find
from t5suite.data.tokenizers.files import BERT_TOKENS, GPT_TOKENS, T5_TOKENS, fast_tokenizer_files, t5_tokenizer_files

Texts = Callable[[], Iterator[str]]

NORMALIZATIONS = ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity")
# Sums of floating-point numbers depend on how many threads share them, so the number is not the machine's.
UNIGRAM_THREADS = 16
# sentencepiece passes over longer lines (4192 bytes) and over lines with its own mark for an unknown character. It
# counts its special tokens' names as these, not as text, so that < and > would have no pieces in a text like WikiText.
LONGEST_LINE = 1000  # characters, of at most 4 bytes
UNKNOWN_MARK = "\u2585"
NOT_AS_TEXT = re.compile("|".join(map(re.escape, ["\0", UNKNOWN_MARK, *T5_TOKENS.values()])))


@dataclass(frozen=True)
class TokenizerSettings:
    """What a tokenizer shall be like; `vocab_size` is what `len(tokenizer)` will be, special tokens included.

    >>> TokenizerSettings(vocab_size=32_100).num_sentinels
    100

    Attributes:
      num_sentinels: `<extra_id_0>`, ... at the end of the vocabulary, counting down (unigram).
      normalization: a rule of sentencepiece, T5's being nmt_nfkc; `_cf` folds case (unigram).
      byte_fallback: what has no piece is spelt in bytes instead of being unknown (unigram).
      character_coverage: the share of the text's characters that have pieces; the rarest others are unknown (unigram,
        wordpiece).
      lowercase: lower case without accents, as BERT's uncased models (wordpiece).

    Raises:
      ConfigError: a value outside its range.
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


def train_files(kind: str, texts: Texts, settings: TokenizerSettings) -> dict[str, bytes]:
    """The files of a tokenizer by name.

    Args:
      kind: a name in TRAINERS.
      texts: each call gives all texts, in the same order.

    Raises:
      ConfigError: an unknown kind; a vocabulary that is too small for the characters.
      DataError: a vocabulary that is too large for the text: the message says the largest one; no text.
    """
    return find(kind, TRAINERS, "type of tokenizer", where="--type")(texts, settings)


# ---------------------------------------------------------------------------------------------------------------------
# Unigram


def train_unigram(texts: Texts, settings: TokenizerSettings) -> dict[str, bytes]:
    """T5's kind (arXiv:1804.10959, arXiv:1910.10683): <pad> 0, </s> 1, <unk> 2, pieces, then the sentinels."""
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=training_lines(texts()),
            model_writer=model,
            model_type="unigram",
            vocab_size=_pieces_besides_sentinels(settings),
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            normalization_rule_name=settings.normalization,
            byte_fallback=settings.byte_fallback,
            character_coverage=settings.character_coverage,
            num_threads=UNIGRAM_THREADS,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:  # what sentencepiece raises, in the end, for each of its checks
        raise _unigram_error(str(error), settings) from error
    return t5_tokenizer_files(model.getvalue(), settings.num_sentinels)


def training_lines(texts) -> Iterator[str]:
    """The lines of the texts, cut (at white space, where there is some) so that sentencepiece passes over none.

    >>> list(training_lines(["One  line.\\nAnother.", "x" * 1500]))[:2]
    ['One line.', 'Another.']

    All white space becomes one space, as the tokenizer's folder will read it whatever the normalization.
    """
    for text in texts:
        for line in NOT_AS_TEXT.sub(_apart, text).splitlines():
            line = " ".join(line.split())
            while len(line) > LONGEST_LINE:
                cut = line.rfind(" ", 1, LONGEST_LINE)
                cut = cut if cut > 0 else LONGEST_LINE
                yield line[:cut]
                line = line[cut:].lstrip()
            if line:
                yield line


def _apart(found: re.Match) -> str:
    """`<unk>` -> `< unk>`, and a space for a single character."""
    return f"{found[0][0]} {found[0][1:]}" if len(found[0]) > 1 else " "


def _pieces_besides_sentinels(settings: TokenizerSettings) -> int:
    least = 3 + (256 if settings.byte_fallback else 0)
    size = settings.vocab_size - settings.num_sentinels
    if size <= least:
        specials = "<pad>, </s>, <unk>" + (", 256 bytes" if settings.byte_fallback else "")
        raise ConfigError(
            f"--vocab_size {settings.vocab_size} has no room beside {settings.num_sentinels} sentinels, {specials}; "
            f"give at least {least + settings.num_sentinels + 1}, or fewer --num_sentinels"
        )
    return size


def _unigram_error(message: str, settings: TokenizerSettings) -> ValueError:
    """sentencepiece's message -> ours, in terms of the whole vocabulary."""
    too_large = re.search(r"Vocabulary size too high \(\d+\). Please set it to a value <= (\d+)", message)
    if too_large:
        return too_large_error(settings.vocab_size, int(too_large[1]) + settings.num_sentinels)
    too_small = re.search(r"smaller than required_chars. (\d+) vs (\d+)", message)
    if too_small:
        return too_small_error(settings.vocab_size, max(map(int, too_small.groups())) + settings.num_sentinels)
    if "!sentences_.empty()" in message:
        return DataError("no text to train a tokenizer on")
    return DataError(f"sentencepiece cannot train on this text with --vocab_size {settings.vocab_size}: {message}")


def too_large_error(vocab_size: int, largest: int) -> DataError:
    """The text has not enough different pieces."""
    return DataError(
        f"--vocab_size {vocab_size}: this text gives {largest} pieces at most, special tokens included; "
        f"give --vocab_size {largest} or more text"
    )


def too_small_error(vocab_size: int, smallest: int) -> ConfigError:
    """Not even the characters have room."""
    return ConfigError(
        f"--vocab_size {vocab_size}: the characters and special tokens alone are {smallest}; "
        "give a larger one, or a lower --character_coverage"
    )


# ---------------------------------------------------------------------------------------------------------------------
# Word pieces


def train_wordpiece(texts: Texts, settings: TokenizerSettings) -> dict[str, bytes]:
    """BERT's kind (arXiv:1810.04805): [PAD] 0, [UNK], [CLS], [SEP], [MASK], characters, pieces; `##` inside of a word.

    The texts are read twice, first for their characters: the trainer would number those inside of words in the order
    of a hash table, and break ties between pieces by these numbers, so that no two runs gave the same vocabulary.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    normalizer = normalizers.BertNormalizer(lowercase=settings.lowercase)
    alphabet = covered_characters(map(normalizer.normalize_str, texts()), settings.character_coverage)
    specials = list(dict.fromkeys(BERT_TOKENS.values()))
    inside = [f"##{character}" for character in alphabet]
    smallest = len(specials) + len(alphabet) + len(inside)
    if settings.vocab_size < smallest:
        raise too_small_error(settings.vocab_size, smallest)
    trained = Tokenizer(models.WordPiece(unk_token=BERT_TOKENS["unk_token"]))
    trained.normalizer, trained.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size,
        special_tokens=specials + inside,  # to have their numbers, in this order, before anything is counted
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    trained.train_from_iterator(texts(), trainer)
    vocabulary = trained.get_vocab()
    if len(vocabulary) < settings.vocab_size:
        raise too_large_error(settings.vocab_size, len(vocabulary))
    # Made anew from the pieces alone, or the characters inside of words would stay special tokens.
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=BERT_TOKENS["unk_token"]))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return fast_tokenizer_files(tokenizer, BERT_TOKENS, pair_of_sentences=True)


def covered_characters(texts, coverage: float) -> list[str]:
    """The most frequent characters that make up this share of the text, sorted; white space does not count.

    >>> covered_characters(["aaab bbbc"], 0.9)
    ['a', 'b', 'c']
    >>> covered_characters(["aaab bbbc"], 0.8)
    ['a', 'b']
    """
    counts = Counter()
    for text in texts:
        counts.update(text)
    counts = {character: count for character, count in counts.items() if not character.isspace()}
    if not counts:
        raise DataError("no text to train a tokenizer on")
    wanted, covered, kept = math.ceil(sum(counts.values()) * coverage), 0, []
    for character in sorted(counts, key=lambda character: (-counts[character], character)):
        if covered >= wanted:
            break
        kept.append(character)
        covered += counts[character]
    return sorted(kept)


# ---------------------------------------------------------------------------------------------------------------------
# Byte pairs


def train_bpe(texts: Texts, settings: TokenizerSettings) -> dict[str, bytes]:
    """GPT-2's kind (Radford et al. 2019; arXiv:1508.07909): <|endoftext|> 0, <|pad|> 1, 256 bytes, pieces.

    Padding has a token of its own: were it the end-of-text token, losses that leave out padding would never teach a
    model to stop.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    specials, alphabet = list(dict.fromkeys(GPT_TOKENS.values())), sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(specials) + len(alphabet)
    if settings.vocab_size < smallest:
        raise too_small_error(settings.vocab_size, smallest)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    if tokenizer.get_vocab_size() < settings.vocab_size:
        raise too_large_error(settings.vocab_size, tokenizer.get_vocab_size())
    return fast_tokenizer_files(tokenizer, GPT_TOKENS)


TRAINERS = {
    "unigram": train_unigram,
    "wordpiece": train_wordpiece,
    "bpe": train_bpe,
}
# Which settings a trainer looks at, besides the vocabulary's size.
SETTINGS_OF = {
    "unigram": ("num_sentinels", "normalization", "byte_fallback", "character_coverage"),
    "wordpiece": ("character_coverage", "lowercase"),
    "bpe": (),
}
