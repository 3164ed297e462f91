"""Texts -> token ids, as the tokenizer gives them for plain text: fast, and without ever making a control token.

    >>> encoder = make_text_encoder(tokenizer)
    >>> encoder.encode(["The end. </s>"])
    [[37, 414, 5, 3, 2, 87, 7, 3155]]
    >>> tokenizer("The end. </s>", add_special_tokens=False)["input_ids"]
    [37, 414, 5, 1]

A document that happens to hold `</s>`, `<pad>` or `<extra_id_0>` must not end a sequence or pose as a sentinel. With
transformers 5.23 `split_special_tokens=True` is no help for T5: the control tokens are pieces of the unigram model too,
with the best score of all, so the search for the best pieces finds `</s>` again. Here the pieces are renamed.

Two engines give the ids. The tokenizer's own (`tokenizers`) is the reference. SentencePiece's encoder, which T5 itself
used, is 7 to 11 times faster (`sentence_pieces` says what it takes to agree on all text, and makes the `spiece.model`
that transformers 5 does not save). It is taken where it agrees with the reference on PROBES. Whoever encodes a corpus
goes on comparing (`TextEncoder.reference`) and falls back where they ever differ. `--tokenizer_engine` chooses one.
"""

import functools
import itertools
import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from t5suite.base.errors import ConfigError
from t5suite.base.lookup import find
from t5suite.data.corpora.sentence_pieces import SentencePieceEngine, spiece_of

logger = logging.getLogger(__name__)

ENGINES = dict.fromkeys(("auto", "sentencepiece", "tokenizers"))
SENTENCEPIECE_FILES = ("spiece.model", "sentencepiece.model", "tokenizer.model")
SENTINEL = re.compile(r"\u2581?<extra_id_\d+>")

# Where encoders are known to differ: control tokens, white space, compatibility characters, what no piece covers.
PROBES = (
    "The house is wonderful. It's 3,500 years old (built 1500 B.C.)!",
    "  two  spaces,\ta tab,\r\nand a\n\nnew line ",
    "Straße ﬁne ① ｆｕｌｌ é e\u0301 İ ſ ½ … “quoted” – dashed — naïve",
    "\u200bzero\u00a0width \u2028 \ufeff \u00ad x\u0000y\u0007",
    "日本語 русский עברית हिन्दी 😀👍🏽 \ue000",
    "\u2581a\u2581b <0x41> [MASK] [CLS] [SEP] <mask> <s> <|endoftext|> ##ing",
    "x<pad>y </s> <unk> <extra_id_0> <extra_id_99>z </s></s>",
    "",
    " ",
)


@dataclass(frozen=True)
class TextEncoder:
    """Encodes texts in this process or in another one, to which it is pickled as plain data.

    Attributes:
      backend: the tokenizer's `tokenizers` JSON without control tokens; None for a tokenizer written in Python.
      python_tokenizer: that tokenizer.
      sentencepiece_model: the bytes of an equal SentencePiece model; None where there is none.
      control_ids: ids that no text should give; only a tokenizer written in Python may still give some.
      vocabulary_size: the largest id + 1.
    """

    backend: str | None
    python_tokenizer: object
    sentencepiece_model: bytes | None
    control_ids: frozenset[int]
    unk_id: int | None
    eos_id: int | None
    vocabulary_size: int
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
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)]).astype(np.int64)
        return np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int32, count=int(offsets[-1])), offsets

    def reference(self, texts: Sequence[str]) -> list[list[int]]:
        """The same by the tokenizer itself."""
        if self.backend is None:
            found = self.python_tokenizer(list(texts), add_special_tokens=False, split_special_tokens=True)
            return found["input_ids"]
        if "tokenizers" not in self._engines:
            self._engines["tokenizers"] = tokenizer_of(self.backend)
        encodings = self._engines["tokenizers"].encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def by_reference(self) -> "TextEncoder":
        """The encoder without a fast engine."""
        return replace(self, sentencepiece_model=None, _engines={})

    def __getstate__(self):
        return {**self.__dict__, "_engines": {}}


def make_text_encoder(tokenizer, engine: str = "auto") -> TextEncoder:
    """The encoder of a Hugging Face tokenizer, by SentencePiece where that is equal on PROBES.

    Args:
      engine: `auto`; `tokenizers`, the tokenizer itself; or `sentencepiece`, which must be equal then.

    Raises:
      ConfigError: `sentencepiece` where the tokenizer is of another form or has other ids; no engine of that name.
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
        eos_id=tokenizer.eos_token_id,
        vocabulary_size=max(vocabulary.values()) + 1,
    )
    if engine == "tokenizers":
        return encoder
    fast, problem = _by_sentencepiece(encoder, tokenizer)
    if fast is None and engine == "sentencepiece":
        raise ConfigError(f"--tokenizer_engine {engine}: {problem}; leave the flag out, or give tokenizers")
    return fast or encoder


def _by_sentencepiece(encoder: TextEncoder, tokenizer) -> tuple[TextEncoder | None, str | None]:
    """The encoder with SentencePiece's engine, or why there is none."""
    model_file = _sentencepiece_file(tokenizer)
    content = model_file.read_bytes() if model_file else spiece_of(tokenizer)
    if encoder.backend is None or content is None:
        return None, f"{tokenizer.name_or_path} has no {SENTENCEPIECE_FILES[0]}, and is not of T5's form"
    model_file = model_file or "the spiece.model made of tokenizer.json"
    fast = replace(encoder, sentencepiece_model=content, _engines={})
    try:
        equal = fast.encode(PROBES) == encoder.reference(PROBES)
    except RuntimeError as error:  # SentencePiece's word for a file that is no model
        logger.warning("%s: %s", model_file, error)
        return None, f"{model_file}: {error}"
    return (fast, None) if equal else (None, f"{model_file} gives other ids than the tokenizer")


def tokenizer_of(backend: str):
    """The `tokenizers.Tokenizer` of a JSON, with the very scores that stand there.

    `tokenizers` 0.23 reads some of them off by a last bit (serde_json), which decides ties such as `-------` otherwise
    than in the process that wrote them (test_scores_are_read_as_they_stand).
    """
    import tokenizers

    found, model = tokenizers.Tokenizer.from_str(backend), json.loads(backend)["model"]
    if model["type"] == "Unigram" and not model.get("alpha"):
        pieces = [tuple(piece) for piece in model["vocab"]]
        found.model = tokenizers.models.Unigram(pieces, model["unk_id"], model.get("byte_fallback", False))
    return found


def control_tokens(tokenizer) -> frozenset[str]:
    """Tokens that stand for something else than text: special ones and sentinels, `<unk>` included.

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
    hidden = functools.partial(_hidden, names=names)
    if isinstance(model["vocab"], list):  # unigram: [piece, score]; <unk> is known by its number
        model["vocab"] = [[hidden(piece), score] for piece, score in model["vocab"]]
    elif model["type"] != "BPE":  # word pieces and words; a BPE builds its pieces from merges, of which these are none
        unk = model.get("unk_token")
        model["vocab"] = {piece if piece == unk else hidden(piece): number for piece, number in model["vocab"].items()}
    return json.dumps(settings)


def _hidden(piece: str, names: frozenset[str]) -> str:
    # U+0000 cannot be typed, and T5's normaliser removes it.
    return f"\0\0{piece}" if piece in names else piece


def _sentencepiece_file(tokenizer) -> Path | None:
    given = getattr(tokenizer, "vocab_file", None)
    places = [Path(given)] if given else []
    places += [Path(str(tokenizer.name_or_path)) / name for name in SENTENCEPIECE_FILES]
    return next((place for place in places if place.name in SENTENCEPIECE_FILES and place.is_file()), None)
