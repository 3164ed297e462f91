"""Texts -> the files of a new tokenizer: T5's unigram pieces, BERT's word pieces, or GPT-2's byte pairs.

    >>> texts = lambda: iter(["the cat sat on the mat"] * 20)
    >>> files = train_files("bpe", texts, TokenizerSettings(vocab_size=270))
    >>> sorted(files)
    ['special_tokens_map.json', 'tokenizer.json', 'tokenizer_config.json']

Texts come from a function that starts over at each call, since a trainer may read them twice; no trainer stores them.
The same texts give the same bytes, on any machine: random draws and hash table orders in the trainers are fixed here.
"""

import io
import json
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from t5suite.base.errors import ConfigError, DataError
from t5suite.base.lookup import find
from t5suite.data.corpora.documents import Tally, document_hash, held_out_below, read_documents
from t5suite.data.corpora.encoding import make_text_encoder

Texts = Callable[[], Iterator[str]]

SENTINEL = re.compile(r"\u2581?<extra_id_\d+>")
T5_TOKENS = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
BERT_TOKENS = {
    "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
}  # fmt: skip
GPT_TOKENS = dict(bos_token="<|endoftext|>", eos_token="<|endoftext|>", unk_token="<|endoftext|>", pad_token="<|pad|>")
NORMALIZATIONS = ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity")
# Sums of floating-point numbers depend on the number of threads, so it is fixed.
UNIGRAM_THREADS = 16
# sentencepiece skips longer lines (4192 bytes) and lines with its own mark for an unknown character. It reads its
# special tokens' names as tokens, not as text, so that < and > would have no pieces in a text like WikiText.
LONGEST_LINE = 1000  # characters, of at most 4 bytes
UNKNOWN_MARK = "\u2585"
NOT_AS_TEXT = re.compile("|".join(map(re.escape, ["\0", UNKNOWN_MARK, *T5_TOKENS.values()])))


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


def train_files(kind: str, texts: Texts, settings: TokenizerSettings) -> dict[str, bytes]:
    """The files of a tokenizer of a kind in TRAINERS; each call of `texts` gives all texts, in the same order.

    Raises ConfigError for a vocabulary that is too small for the characters, DataError for one that is too large for
    the text (the message gives the largest one).
    """
    return find(kind, TRAINERS, "type of tokenizer", where="--type")(texts, settings)


def check_new_folder(output_dir) -> Path:
    """`output_dir` as a path; raises ConfigError if it is not empty, or is a file."""
    folder = Path(output_dir)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--output_dir {output_dir}: exists and is not an empty folder; give a new one")
    return folder


def write_folder(output_dir, files: dict[str, bytes]) -> None:
    """Writes the files next to `output_dir` and renames: the folder has all of them, or does not exist."""
    folder = check_new_folder(output_dir)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        for name, content in files.items():
            (temporary / name).write_bytes(content)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def tokenizer_files(tokenizer, name: str, special_tokens: dict, input_names, more=None) -> dict[str, bytes]:
    """The files of a tokenizer of the `tokenizers` library, in the form that transformers 4 and 5 both read.

    transformers 5 writes its folders with names that 4.57 does not know (`"tokenizer_class": "TokenizersBackend"`, a
    list under `extra_special_tokens`), so 4.57 fails to load them.

    `name` is the class of the tokenizer; `more` are further settings for `tokenizer_config.json`.
    """
    config = {
        "tokenizer_class": name,
        **special_tokens,
        **(more or {}),
        "model_input_names": list(input_names),
        "clean_up_tokenization_spaces": False,
    }
    as_json = lambda value: (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()
    return {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": as_json(config),
        "special_tokens_map.json": as_json(special_tokens),
    }


def _check_size(vocab_size: int, smallest: int, largest: int | None = None) -> None:
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


# ---------------------------------------------------------------------------------------------------------------------
# Unigram


def train_unigram(texts: Texts, settings: TokenizerSettings) -> dict[str, bytes]:
    """T5's kind (arXiv:1804.10959, arXiv:1910.10683): <pad> 0, </s> 1, <unk> 2, pieces, then the sentinels."""
    import sentencepiece

    vocab_size, num_sentinels = settings.vocab_size, settings.num_sentinels
    least = 3 + (256 if settings.byte_fallback else 0)
    if vocab_size - num_sentinels <= least:
        specials = "<pad>, </s>, <unk>" + (", 256 bytes" if settings.byte_fallback else "")
        raise ConfigError(
            f"--vocab_size {vocab_size} has no room for pieces besides {num_sentinels} sentinels, {specials}; "
            f"give at least {least + num_sentinels + 1}, or fewer --num_sentinels"
        )
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=training_lines(texts()),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size - num_sentinels,
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
    except (RuntimeError, OSError) as error:  # what sentencepiece raises when a check fails
        if found := re.search(r"Vocabulary size too high \(\d+\). Please set it to a value <= (\d+)", str(error)):
            _check_size(vocab_size, 0, largest=int(found[1]) + num_sentinels)
        if found := re.search(r"smaller than required_chars. (\d+) vs (\d+)", str(error)):
            _check_size(vocab_size, max(map(int, found.groups())) + num_sentinels)
        if "!sentences_.empty()" in str(error):
            raise DataError("no text to train a tokenizer on") from None
        raise DataError(f"sentencepiece cannot train on this text with --vocab_size {vocab_size}: {error}") from error
    return t5_tokenizer_files(model.getvalue(), num_sentinels)


def training_lines(texts) -> Iterator[str]:
    """The lines of the texts, cut (at white space, if there is any) so that sentencepiece skips none.

    >>> list(training_lines(["One  line.\\nAnother.", "x" * 1500]))[:2]
    ['One line.', 'Another.']

    All white space becomes one space, as the saved tokenizer reads it whatever the normalization.
    """
    apart = lambda found: f"{found[0][0]} {found[0][1:]}"  # `<unk>` -> `< unk>`
    for text in texts:
        for line in NOT_AS_TEXT.sub(apart, text).replace("\0", " ").replace(UNKNOWN_MARK, " ").splitlines():
            line = " ".join(line.split())
            while len(line) > LONGEST_LINE:
                cut = line.rfind(" ", 1, LONGEST_LINE)
                cut = cut if cut > 0 else LONGEST_LINE
                yield line[:cut]
                line = line[cut:].lstrip()
            if line:
                yield line


def t5_tokenizer_files(spiece_model: bytes, num_sentinels: int = 100) -> dict[str, bytes]:
    """sentencepiece's model -> a folder for `T5Tokenizer`; the sentinels get the last ids, counting down.

    A model that has sentinels among its pieces gets no others. With byte pieces, or another unknown piece than the
    third, the class is `PreTrainedTokenizerFast`, because `T5Tokenizer` of transformers 5 ignores byte
    fallback and reads every character without a piece as unknown.
    """
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    model = sentencepiece_model_pb2.ModelProto.FromString(spiece_model)
    names = [piece.piece for piece in model.pieces]
    own_sentinels = [name for name in names if SENTINEL.fullmatch(name)]
    new_sentinels = [] if own_sentinels else [f"<extra_id_{i}>" for i in range(num_sentinels)]
    sentinels = new_sentinels or [name for name in own_sentinels if not name.startswith("▁")]
    byte_fallback, eos = model.trainer_spec.byte_fallback, T5_TOKENS["eos_token"]
    pieces = [(piece.piece, piece.score) for piece in model.pieces]
    pieces += [(sentinel, 0.0) for sentinel in reversed(new_sentinels)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=model.trainer_spec.unk_id, byte_fallback=byte_fallback))
    if model.normalizer_spec.precompiled_charsmap:
        tokenizer.normalizer = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    metaspace = {"replacement": "▁", "prepend_scheme": "always"}
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(**metaspace)]
    )
    decoder = decoders.Metaspace(**metaspace)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoder]) if byte_fallback else decoder
    tokenizer.add_special_tokens([*T5_TOKENS.values(), *sentinels])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {eos}", pair=f"$A {eos} $B {eos}", special_tokens=[(eos, tokenizer.token_to_id(eos))]
    )
    special = {**T5_TOKENS, "additional_special_tokens": sentinels}
    name, more = "T5Tokenizer", {"extra_ids": len(sentinels), "legacy": False}
    if is_beyond_t5(model):
        name, more = "PreTrainedTokenizerFast", {}
    files = tokenizer_files(tokenizer, name, special, ["input_ids", "attention_mask"], more)
    return {"spiece.model": spiece_model, **files}


def is_beyond_t5(model) -> bool:
    """Whether `T5Tokenizer` of transformers 5 would read texts otherwise than sentencepiece does by this model: it
    ignores bytes, takes the third piece for the unknown one, and adds sentinels to those that are there."""
    has_sentinels = any(SENTINEL.fullmatch(piece.piece) for piece in model.pieces)
    return model.trainer_spec.byte_fallback or model.trainer_spec.unk_id != 2 or has_sentinels


# ---------------------------------------------------------------------------------------------------------------------
# Word pieces


def train_wordpiece(texts: Texts, settings: TokenizerSettings) -> dict[str, bytes]:
    """BERT's kind (arXiv:1810.04805): [PAD] 0, [UNK], [CLS], [SEP], [MASK], characters, pieces; `##` inside of a word.

    The texts are read twice, first for their characters: the trainer would number those inside words in the order
    of a hash table, and break ties between pieces by these numbers, so no two runs would give the same vocabulary.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    normalizer = normalizers.BertNormalizer(lowercase=settings.lowercase)
    alphabet = covered_characters(map(normalizer.normalize_str, texts()), settings.character_coverage)
    specials, inside = list(BERT_TOKENS.values()), [f"##{character}" for character in alphabet]
    smallest = len(specials) + len(alphabet) + len(inside)
    _check_size(settings.vocab_size, smallest)
    trained = Tokenizer(models.WordPiece(unk_token=BERT_TOKENS["unk_token"]))
    trained.normalizer, trained.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size,
        special_tokens=specials + inside,  # numbered in this order, before anything is counted
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    trained.train_from_iterator(texts(), trainer)
    vocabulary = trained.get_vocab()
    _check_size(settings.vocab_size, smallest, largest=len(vocabulary))
    # Rebuilt from the pieces alone, or the characters inside words would stay special tokens.
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=BERT_TOKENS["unk_token"]))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(specials)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    return tokenizer_files(tokenizer, "PreTrainedTokenizerFast", BERT_TOKENS, names)


def covered_characters(texts, coverage: float) -> list[str]:
    """The most frequent characters that make up this share of the text, sorted; white space is ignored.

    >>> covered_characters(["aaab bbbc"], 0.9), covered_characters(["aaab bbbc"], 0.8)
    (['a', 'b', 'c'], ['a', 'b'])
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

    Padding has its own token: if it were the end-of-text token, losses that ignore padding would never teach a model
    to stop.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    specials, alphabet = list(dict.fromkeys(GPT_TOKENS.values())), sorted(pre_tokenizers.ByteLevel.alphabet())
    smallest = len(specials) + len(alphabet)
    _check_size(settings.vocab_size, smallest)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=settings.vocab_size, special_tokens=specials, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts(), trainer)
    _check_size(settings.vocab_size, smallest, largest=tokenizer.get_vocab_size())
    return tokenizer_files(tokenizer, "PreTrainedTokenizerFast", GPT_TOKENS, ["input_ids", "attention_mask"])


TRAINERS = {"unigram": train_unigram, "wordpiece": train_wordpiece, "bpe": train_bpe}
# Which settings a trainer uses, besides the vocabulary size.
SETTINGS_OF = {
    "unigram": ("num_sentinels", "normalization", "byte_fallback", "character_coverage"),
    "wordpiece": ("character_coverage", "lowercase"),
    "bpe": (),
}


# ---------------------------------------------------------------------------------------------------------------------
# Which documents of a corpus train a tokenizer, and which evaluate it.


MOST_HELD_OUT = 1000
NUM_FIRST = 100


@dataclass
class TrainingTexts:
    """Documents to train on, as a function that reads them again at each call.

    Attributes:
      max_documents: read at most this many, from the start.
      validation_fraction: share of the documents that is held out, by their text's hash.
      num_documents, held_out, first: how many documents the last call gave, the first 1000 that it held out, and the
        first 100 that it gave.
      tally: what could not be read, or was empty.
    """

    inputs: list[str]
    text_column_name: str = "text"
    text_unit: str = "line"
    bad_lines: str = "error"
    max_documents: int | None = None
    validation_fraction: float = 0.01
    num_documents: int = 0
    held_out: list[str] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

    def __post_init__(self):
        if self.max_documents is not None and self.max_documents < 1:
            raise ConfigError(f"--max_documents {self.max_documents}: must be at least 1")

    def __call__(self) -> Iterator[str]:
        """The documents to train on, in order."""
        below = held_out_below(self.validation_fraction)
        self.num_documents, self.held_out, self.first, self.tally = 0, [], [], Tally()
        options = {"text_unit": self.text_unit, "bad_lines": self.bad_lines, "tally": self.tally}
        documents = read_documents(self.inputs, self.text_column_name, **options)
        for text in islice(documents, self.max_documents):
            if document_hash(text) < below:
                if len(self.held_out) < MOST_HELD_OUT:
                    self.held_out.append(text)
            else:
                if len(self.first) < NUM_FIRST:
                    self.first.append(text)
                self.num_documents += 1
                yield text


# ---------------------------------------------------------------------------------------------------------------------
# Statistics of a tokenizer: the number of pieces, the length of texts, the share of unknown tokens.


SPECIAL_TOKENS = ("pad_token", "eos_token", "bos_token", "unk_token", "cls_token", "sep_token", "mask_token")


def measure(tokenizer, texts) -> dict:
    """Statistics over texts, encoded as in a corpus: a text that spells out `<unk>` gives characters, not the token.

    `unk_rate` is in points: of 100 tokens, how many are unknown. Special tokens are not added or counted.
    """
    texts = list(texts)
    encoder = make_text_encoder(tokenizer)
    ids_of_texts = encoder.encode(texts)
    words = sum(len(text.split()) for text in texts)
    tokens = sum(map(len, ids_of_texts))
    unknown = sum(ids.count(encoder.unk_id) for ids in ids_of_texts)
    return {
        "documents": len(texts),
        "words": words,
        "tokens": tokens,
        "tokens_per_word": round(tokens / max(words, 1), 4),
        "bytes_per_token": round(sum(len(text.encode()) for text in texts) / max(tokens, 1), 4),
        "unk_rate": round(100 * unknown / max(tokens, 1), 4),
    }


def special_ids(tokenizer) -> dict[str, int]:
    """The special tokens' ids, by the token: `{'<pad>': 0, '</s>': 1, '<unk>': 2, '<extra_id_0>': 32099, ...}`."""
    named = [getattr(tokenizer, name) for name in SPECIAL_TOKENS]
    tokens = dict.fromkeys(token for token in [*named, *tokenizer.all_special_tokens] if token is not None)
    return {token: tokenizer.convert_tokens_to_ids(token) for token in tokens}
