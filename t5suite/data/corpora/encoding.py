"""Texts -> token ids, as the tokenizer gives them for plain text: fast, and never a control token.

    >>> encoder = make_text_encoder(tokenizer)
    >>> encoder.encode(["The end. </s>"])
    [[37, 414, 5, 3, 2, 87, 7, 3155]]
    >>> tokenizer("The end. </s>", add_special_tokens=False)["input_ids"]
    [37, 414, 5, 1]

A document that contains `</s>`, `<pad>` or `<extra_id_0>` must not end a sequence or act as a sentinel. With
transformers 5.23 `split_special_tokens=True` does not help for T5: the control tokens are also pieces of the unigram
model, with the best score of all, so the search for the best pieces finds `</s>` again. Here the pieces are renamed.

Two engines give the ids. The tokenizer's own (`tokenizers`) is the reference. SentencePiece's encoder, which T5 itself
used, is 7 to 11 times faster. It is used if it agrees with the reference on PROBES; a corpus build keeps
comparing and falls back if they ever differ. `--tokenizer_engine tokenizers` disables it.
"""

import base64
import itertools
import json
import logging
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from t5suite.base.lookup import find
from t5suite.tasks.tokens import tokenizer_of

logger = logging.getLogger(__name__)

ENGINES = dict.fromkeys(("auto", "tokenizers"))
SENTENCEPIECE_FILES = ("spiece.model", "sentencepiece.model", "tokenizer.model")
SENTINEL = re.compile(r"\u2581?<extra_id_\d+>")

# Where encoders are known to differ: control tokens, white space, compatibility characters, unknown characters.
PROBES = (
    "The house is wonderful. It's 3,500 years old (built 1500 B.C.)!",
    "  two  spaces,\ta tab,\r\nand a\n\nnew line ", "Straße ﬁne ① ｆｕｌｌ é e\u0301 İ ſ ½ … “quoted” – dashed — naïve",
    "\u200bzero\u00a0width \u2028 \ufeff \u00ad x\u0000y\u0007", "日本語 русский עברית हिन्दी 😀👍🏽 \ue000",
    "\u2581a\u2581b <0x41> [MASK] [CLS] [SEP] <mask> <s> <|endoftext|> ##ing",
    "x<pad>y </s> <unk> <extra_id_0> <extra_id_99>z </s></s>", "", " ",
)  # fmt: skip


@dataclass(frozen=True)
class TextEncoder:
    """Encodes texts in this process, or in another one: it pickles as plain data.

    Attributes:
      backend: the tokenizer's `tokenizers` JSON without control tokens; None for a tokenizer written in Python.
      python_tokenizer: that tokenizer.
      sentencepiece_model: the bytes of an equivalent SentencePiece model, or None.
      control_ids: ids that no text should give; only a tokenizer written in Python can still give them.
      fingerprint: what a resumed streaming run compares (`stream_encoder`).
    """

    backend: str | None
    python_tokenizer: object
    sentencepiece_model: bytes | None
    control_ids: frozenset[int]
    unk_id: int | None
    vocabulary_size: int
    fingerprint: str = ""
    _engines: dict = field(default_factory=dict, repr=False, compare=False)

    @property
    def engine(self) -> str:
        """'sentencepiece', 'tokenizers' or 'transformers': what `encode` uses."""
        if self.sentencepiece_model is not None:
            return "sentencepiece"
        return "transformers" if self.backend is None else "tokenizers"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of every text, without special tokens, by the fastest engine."""
        if self.sentencepiece_model is None:
            return self.reference(texts)
        if "sentencepiece" not in self._engines:
            self._engines["sentencepiece"] = SentencePieceEngine(self.sentencepiece_model, self.reference)
        return self._engines["sentencepiece"].encode(texts)

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The same as `(ids [N], offsets [T + 1])`; text i has the ids from offsets[i] to offsets[i + 1].

        >>> encoder.encode_flat(["The end.", "It's"])
        (array([ 37, 414,   5,  94,  31,   7], dtype=int32), array([0, 3, 6]))
        """
        rows = self.encode(texts)
        offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        return np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int32, count=int(offsets[-1])), offsets

    def reference(self, texts: Sequence[str]) -> list[list[int]]:
        """As `encode`, by the tokenizer itself."""
        if self.backend is None:
            found = self.python_tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True)
            return found["input_ids"]
        if "tokenizers" not in self._engines:
            self._engines["tokenizers"] = tokenizer_of(self.backend)
        encodings = self._engines["tokenizers"].encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def by_reference(self) -> "TextEncoder":
        """This encoder without the fast engine."""
        return replace(self, sentencepiece_model=None, _engines={})

    def __getstate__(self):
        return {**self.__dict__, "_engines": {}}


def make_text_encoder(tokenizer, engine: str = "auto") -> TextEncoder:
    """The encoder of a Hugging Face tokenizer, by SentencePiece if that gives equal ids on PROBES.

    `engine`: `auto`, or `tokenizers`, the tokenizer itself.
    """
    find(engine, ENGINES, "engine", where="--tokenizer_engine")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    names = control_tokens(tokenizer)
    vocabulary = tokenizer.get_vocab()
    encoder = TextEncoder(
        backend=None if backend is None else _without_controls(backend.to_str(), names),
        python_tokenizer=tokenizer if backend is None else None,
        sentencepiece_model=None,
        control_ids=frozenset(vocabulary[name] for name in names if name in vocabulary) - {tokenizer.unk_token_id},
        unk_id=tokenizer.unk_token_id,
        vocabulary_size=max(vocabulary.values()) + 1,
    )
    if engine == "tokenizers" or backend is None:
        return encoder
    places = [Path(given)] if (given := getattr(tokenizer, "vocab_file", None)) else []
    places += [Path(str(tokenizer.name_or_path)) / name for name in SENTENCEPIECE_FILES]
    file = next((place for place in places if place.name in SENTENCEPIECE_FILES and place.is_file()), None)
    content = file.read_bytes() if file else spiece_of(tokenizer)
    if content is None:
        return encoder
    fast = replace(encoder, sentencepiece_model=content, _engines={})
    try:
        return fast if fast.encode(PROBES) == encoder.reference(PROBES) else encoder
    except (RuntimeError, ValueError) as error:  # SentencePiece's for a file that is not a model; ours
        logger.warning("%s: %s", file, error)
        return encoder


def control_tokens(tokenizer) -> frozenset[str]:
    """Tokens that do not represent text: special ones and sentinels, `<unk>` included.

    >>> sorted(control_tokens(t5_tokenizer))[:4]
    ['</s>', '<extra_id_0>', '<extra_id_10>', '<extra_id_11>']
    """
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    sentinels = {token for token in tokenizer.get_vocab() if SENTINEL.fullmatch(token)}
    return frozenset(special | sentinels | set(tokenizer.all_special_tokens))


def _without_controls(backend: str, names: frozenset[str]) -> str:
    """A `tokenizers` JSON whose control tokens keep their ids but are found in no text."""
    settings = json.loads(backend)
    settings["truncation"] = settings["padding"] = None
    settings["added_tokens"] = [token for token in settings["added_tokens"] if token["content"] not in names]
    model = settings["model"]
    # U+0000 cannot be typed, and T5's normaliser removes it.
    hidden = lambda piece: f"\0\0{piece}" if piece in names else piece
    if isinstance(model["vocab"], list):  # unigram: [piece, score]; <unk> is known by its number
        model["vocab"] = [[hidden(piece), score] for piece, score in model["vocab"]]
    elif model["type"] != "BPE":  # word pieces and words; a BPE builds its pieces from merges, never these
        unk = model.get("unk_token")
        model["vocab"] = {piece if piece == unk else hidden(piece): number for piece, number in model["vocab"].items()}
    return json.dumps(settings)


# ---------------------------------------------------------------------------------------------------------------------
# SentencePiece's own encoder, made to give the tokenizer's ids: short pieces of text, and no ties.
#
# `tokenizers` searches for the best pieces of each word separately, in float64. SentencePiece searches the whole text
# at once and sums scores in float32, where after 20,000 characters a score is accurate only to 0.004: of two ways to
# cut a word that are closer than that, it takes either (`comprising` in one of 125 speeches). So texts are cut at
# spaces into pieces of at most PIECE characters (measured: 10 of 350 long documents differ if encoded whole, none in
# pieces of 1000); the model's pieces never cross a space. The tokenizer encodes longer words, and those with runs of
# one character, where `............` is `....` and `........` in either order.


PIECE = 500
RUN = re.compile(r"(\S)\1\1")
SPACE = "\u2581"

Encode = Callable[[Sequence[str]], list[list[int]]]


class SentencePieceEngine:
    """Texts -> ids by a SentencePiece model; `reference` encodes the words that may have ties.

    Raises RuntimeError if the bytes are not a model, ValueError if its pieces cross a space.
    """

    def __init__(self, model: bytes, reference: Encode):
        import sentencepiece

        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.reference = reference
        names = (self.processor.id_to_piece(number) for number in range(self.processor.get_piece_size()))
        if any(SPACE in name.lstrip(SPACE) for name in names):
            raise ValueError("its pieces cross spaces, so SentencePiece's encoder is not used")

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of every text, without special tokens."""
        cut = [pieces_of(text) for text in texts]
        pieces = [piece for parts in cut for piece in parts]
        exact = [number for number, (_, has_ties) in enumerate(pieces) if has_ties]
        ids = self.processor.encode([piece for piece, _ in pieces], out_type=int, num_threads=1)
        for number, found in zip(exact, self.reference([pieces[number][0] for number in exact]) if exact else ()):
            ids[number] = found
        each = iter(ids)
        joined = lambda count: list(itertools.chain.from_iterable(itertools.islice(each, count)))
        return [next(each) if len(parts) == 1 else joined(len(parts)) for parts in cut]


def pieces_of(text: str, size: int = PIECE) -> list[tuple[str, bool]]:
    """`(piece, whether it may have ties)` of a text, cut at spaces, which are dropped.

    >>> pieces_of("the end of it", size=8)
    [('the end', False), ('of it', False)]
    >>> pieces_of("and so ...... on")
    [('and so', False), ('......', True), ('on', False)]
    """
    has_runs = _has_run(text)
    if not has_runs and len(text) <= size:
        return [(text, False)]
    found, words, length = [], [], 0
    for word in text.split(" "):
        alone = len(word) > size or (has_runs and _has_run(word))
        if words and (alone or length + len(word) > size):
            found.append((" ".join(words), False))
            words, length = [], 0
        if alone:
            found.append((word, True))
        else:
            words.append(word)
            length += len(word) + 1
    return [*found, (" ".join(words), False)] if words else found


def _has_run(text: str) -> bool:
    """Whether three equal characters are in a row, as the model reads it: `…` is three dots."""
    return RUN.search(text if text.isascii() else unicodedata.normalize("NFKC", text)) is not None


# ---------------------------------------------------------------------------------------------------------------------
# The SentencePiece model of a tokenizer that has only tokenizer.json


BYTE = re.compile(r"<0x[0-9A-F]{2}>")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE_PIECE = 1, 2, 3, 4, 6
# Spaces, compatibility forms (ligatures, fractions), letters without a piece, and markup. No tabs: a
# model without normalization reads them as letters, and tokenizer.json as spaces.
TEXTS = (
    "the film was good.",
    "  two  spaces ",
    "ﬁne ½ naïve Ångström ＡＢＣ １２３",
    "don't stop: 3.14, (yes) <b>no</b> 你好 🙂",
    "",
)


def spiece_of(tokenizer) -> bytes | None:
    """A tokenizer's sentencepiece file, which transformers 5 does not write: tokenizer.json -> `spiece.model`.

    >>> content = spiece_of(tokenizer)
    >>> SentencePieceProcessor(model_proto=content).encode("the film was good.")
    [4, 304, 501, 513, 509, 503, 9, 325, 3]

    None if it is not of T5's kind (a unigram model with the sentinels after its pieces), or would encode TEXTS
    differently. Field numbers and types of pieces: sentencepiece's `sentencepiece_model.proto`.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    content = json.loads(backend.to_str()) if backend is not None else {}
    normalizer, model = content.get("normalizer"), content.get("model", {})
    charsmap = normalizer.get("precompiled_charsmap") if normalizer else None
    if model.get("type") != "Unigram" or (normalizer and (normalizer["type"] != "Precompiled" or not charsmap)):
        return None
    from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    special = {token for token in (tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token) if token}
    pieces, unknown, byte_fallback = list(model["vocab"]), model["unk_id"], bool(model.get("byte_fallback"))
    while pieces and SENTINEL.fullmatch(pieces[-1][0]):
        pieces.pop()
    for number, (piece, score) in enumerate(pieces):
        kind = UNKNOWN if number == unknown else CONTROL if piece in special else NORMAL
        kind = BYTE_PIECE if byte_fallback and BYTE.fullmatch(piece) else kind
        proto.pieces.add(piece=piece, score=score, type=USER_DEFINED if SENTINEL.fullmatch(piece) else kind)
    places = {piece: number for number, (piece, _) in enumerate(pieces)}
    trainer = proto.trainer_spec
    trainer.model_type, trainer.vocab_size, trainer.byte_fallback = 1, len(pieces), byte_fallback
    trainer.unk_id, trainer.unk_piece = unknown, pieces[unknown][0]
    for name in ("pad", "eos", "bos"):
        token = getattr(tokenizer, f"{name}_token")
        setattr(trainer, f"{name}_id", places.get(token, -1))
        if token in places:
            setattr(trainer, f"{name}_piece", token)
    settings = proto.normalizer_spec
    settings.add_dummy_prefix = settings.remove_extra_whitespaces = settings.escape_whitespaces = True
    settings.name = "nmt_nfkc" if charsmap else "identity"
    if charsmap:
        settings.precompiled_charsmap = base64.b64decode(charsmap)
    made = proto.SerializeToString()
    processor = SentencePieceProcessor(model_proto=made)
    for text in TEXTS:
        if processor.encode(text) != tokenizer(text, add_special_tokens=False)["input_ids"]:
            logger.warning("cannot convert tokenizer.json to spiece.model: it would encode %r differently", text)
            return None
    return made
