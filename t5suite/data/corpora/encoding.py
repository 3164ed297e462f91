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
used, is 7 to 11 times faster. It is used if it agrees with the reference on PROBES, and no words were added to the
vocabulary (`--add_tokens`), which its model does not know. A corpus build compares a sample of its documents, and
encodes a unit anew where one differs; an odd text outside the sample may differ. `--reference_code quick_tokenizer`
and `t5suite corpus build --tokenizer_engine tokenizers` disable it.
"""

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
from t5suite.data.corpora.spiece_conversion import SENTINEL, convert_to_spiece
from t5suite.tasks.tokens import tokenizer_of

logger = logging.getLogger(__name__)

ENGINES = dict.fromkeys(("auto", "tokenizers"))
SENTENCEPIECE_FILES = ("spiece.model", "sentencepiece.model", "tokenizer.model")
RUN = re.compile(r"(\S)\1\1")
SPACE = "\u2581"
PIECE = 500

# Where encoders are known to differ: control tokens, white space, compatibility characters, unknown characters.
PROBES = (
    "The house is wonderful. It's 3,500 years old (built 1500 B.C.)!",
    "  two  spaces,\ta tab,\r\nand a\n\nnew line ", "Straße ﬁne ① ｆｕｌｌ é e\u0301 İ ſ ½ … “quoted” – dashed — naïve",
    "\u200bzero\u00a0width \u2028 \ufeff \u00ad x\u0000y\u0007", "日本語 русский עברית हिन्दी 😀👍🏽 \ue000",
    "\u2581a\u2581b <0x41> [MASK] [CLS] [SEP] <mask> <s> <|endoftext|> ##ing",
    "x<pad>y </s> <unk> <extra_id_0> <extra_id_99>z </s></s>", "", " ",
)  # fmt: skip


Encode = Callable[[Sequence[str]], list[list[int]]]


@dataclass(frozen=True)
class TextEncoder:
    """Encodes texts in this process, or in another one: it pickles as plain data.

    Attributes:
      backend: the tokenizer's `tokenizers` JSON without control tokens; None for a tokenizer written in Python.
      python_tokenizer: that tokenizer.
      sentencepiece_model: the bytes of an equivalent SentencePiece model, or None.
      control_ids: ids that no text should give; only a tokenizer written in Python can still give them.
      unk_id: the id of unknown text (`unknown_id`).
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
            encoding = self.python_tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True)
            return encoding["input_ids"]
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
    """The encoder of a Hugging Face tokenizer, by SentencePiece if that gives equal ids on PROBES, and knows all words.

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
        control_ids=control_ids(tokenizer),
        unk_id=unknown_id(tokenizer),
        vocabulary_size=max(vocabulary.values()) + 1,
    )
    added_words = {token.content for token in tokenizer.added_tokens_decoder.values()} - names
    if engine == "tokenizers" or backend is None or added_words:
        return encoder
    file = _sentencepiece_file(tokenizer)
    content = convert_to_spiece(tokenizer) if file is None else file.read_bytes()
    if content is None:
        return encoder
    fast = replace(encoder, sentencepiece_model=content, _engines={})
    try:
        return fast if fast.encode(PROBES) == encoder.reference(PROBES) else encoder
    except (RuntimeError, ValueError) as error:  # SentencePiece's for a file that is not a model; ours
        logger.warning("%s: %s", file, error)
        return encoder


def _sentencepiece_file(tokenizer) -> Path | None:
    """The tokenizer's SentencePiece model, if it has one on this disk."""
    paths = [Path(str(tokenizer.name_or_path)) / name for name in SENTENCEPIECE_FILES]
    vocabulary_file = getattr(tokenizer, "vocab_file", None)
    if vocabulary_file:
        paths.insert(0, Path(vocabulary_file))
    for path in paths:
        if path.name in SENTENCEPIECE_FILES and path.is_file():
            return path
    return None


def control_tokens(tokenizer) -> frozenset[str]:
    """Tokens that do not represent text: special ones and sentinels, `<unk>` included.

    >>> sorted(control_tokens(t5_tokenizer))[:4]
    ['</s>', '<extra_id_0>', '<extra_id_10>', '<extra_id_11>']
    """
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    sentinels = {token for token in tokenizer.get_vocab() if SENTINEL.fullmatch(token)}
    return frozenset(special | sentinels | set(tokenizer.all_special_tokens))


def control_ids(tokenizer) -> frozenset[int]:
    """The ids of control tokens; that of unknown text is not among them, it stands for text.

    >>> sorted(control_ids(t5_tokenizer))[:3]
    [0, 1, 32000]
    """
    vocabulary = tokenizer.get_vocab()
    ids = {vocabulary[name] for name in control_tokens(tokenizer) if name in vocabulary}
    return frozenset(ids - {unknown_id(tokenizer)})


def unknown_id(tokenizer) -> int | None:
    """The id of unknown text; None where that token also begins or ends sequences, as GPT-2's does: it is no text."""
    unk_id = tokenizer.unk_token_id
    return None if unk_id in (tokenizer.bos_token_id, tokenizer.eos_token_id) else unk_id


def _without_controls(backend: str, names: frozenset[str]) -> str:
    """A `tokenizers` JSON whose control tokens keep their ids but are found in no text."""
    settings = json.loads(backend)
    settings["truncation"] = None
    settings["padding"] = None
    settings["added_tokens"] = [token for token in settings["added_tokens"] if token["content"] not in names]
    model = settings["model"]

    def hidden(piece: str) -> str:
        """A control token's name that is in no text: U+0000 cannot be typed, and T5's normaliser removes it."""
        return f"\0\0{piece}" if piece in names else piece

    if isinstance(model["vocab"], list):  # unigram: [piece, score]; <unk> is known by its number
        model["vocab"] = [[hidden(piece), score] for piece, score in model["vocab"]]
    elif model["type"] != "BPE":  # word pieces and words; a BPE builds its pieces from merges, never these
        unk = model.get("unk_token")
        model["vocab"] = {piece if piece == unk else hidden(piece): number for piece, number in model["vocab"].items()}
    return json.dumps(settings)


class SentencePieceEngine:
    """Texts -> ids by a SentencePiece model: the tokenizer's ids, by short pieces of text and without ties.

    `tokenizers` searches for the best pieces of each word separately, in float64. SentencePiece searches the whole text
    at once and sums scores in float32, where after 20,000 characters a score is accurate only to 0.004: of two ways to
    cut a word that are closer than that, it takes either (`comprising` in one of 125 speeches). So texts are cut at
    spaces into pieces of at most PIECE characters (measured: 10 of 350 long documents differ if encoded whole, none in
    pieces of 1000); the model's pieces never cross a space. The tokenizer, `reference`, encodes longer words, and those
    with runs of one character, where `............` is `....` and `........` in either order.

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
        pieces_by_text = [cut_at_spaces(text) for text in texts]
        pieces = list(itertools.chain.from_iterable(pieces_by_text))
        ids = self.processor.encode([piece for piece, _ in pieces], out_type=int, num_threads=1)
        tied = [number for number, (_, has_ties) in enumerate(pieces) if has_ties]
        if tied:
            reference_ids = self.reference([pieces[number][0] for number in tied])
            for number, piece_ids in zip(tied, reference_ids, strict=True):
                ids[number] = piece_ids
        unread_ids = iter(ids)
        text_ids = []
        for text_pieces in pieces_by_text:
            ids_of_pieces = itertools.islice(unread_ids, len(text_pieces))
            text_ids.append(list(itertools.chain.from_iterable(ids_of_pieces)))
        return text_ids


def cut_at_spaces(text: str, size: int = PIECE) -> list[tuple[str, bool]]:
    """`(piece, whether it may have ties)` of a text, cut at spaces, which are dropped.

    >>> cut_at_spaces("the end of it", size=8)
    [('the end', False), ('of it', False)]
    >>> cut_at_spaces("and so ...... on")
    [('and so', False), ('......', True), ('on', False)]
    """
    has_runs = _has_run(text)
    if not has_runs and len(text) <= size:
        return [(text, False)]
    pieces = []
    words = []
    length = 0
    for word in text.split(" "):
        may_have_ties = len(word) > size or (has_runs and _has_run(word))
        if words and (may_have_ties or length + len(word) > size):
            pieces.append((" ".join(words), False))
            words = []
            length = 0
        if may_have_ties:
            pieces.append((word, True))
        else:
            words.append(word)
            length += len(word) + 1
    if words:
        pieces.append((" ".join(words), False))
    return pieces


def _has_run(text: str) -> bool:
    """Whether three equal characters are in a row, as the model reads it: `…` is three dots."""
    return RUN.search(text if text.isascii() else unicodedata.normalize("NFKC", text)) is not None
